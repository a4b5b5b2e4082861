"""What an engine's steps pay for a busy disk tier: decoding with it idle and with it writing and reading, in turn.

    OMP_NUM_THREADS=1 python benchmarks/disk_steps.py [--folder .] [--rounds 30] [--steps 20] [--rate 200] [--json]

The embedded SmolLM2 decodes 4 answers. While the disk is busy, somebody writes pages into host memory (`cache.writer`),
which the keeper copies down, and prefetches older ones, which it reads, verifies and brings up: about `--rate` MB/s
together, 0 for as much as goes. Stretches of steps alternate, and which of the two comes first alternates too; the
ratio is that of the medians of all steps; beside it that of the stepping thread's processor time, which others on the
machine do not change. The disk's threads need a core besides the model's: without a free one they take turns.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from statistics import median
from threading import Event, Thread

import numpy as np

from quire import Prefetch, Refusal, Request
from quire.engine import Engine, EngineConfig, Sampling, load
from quire.engine.model import smollm2
from quire.engine.outer.disk_side import DiskConfig

ANSWERS, BLOCKS, KEPT = 4, 8, 12  # blocks of one prompt that comes from elsewhere; prompts that are read again


class Load:
    """Pages that come from elsewhere and go to the disk, and older ones that come back; while it is told to."""

    def __init__(self, engine: Engine, rate: float) -> None:
        assert engine.disk_side is not None
        self._cache, self._keeper, self._rate = engine.cache, engine.disk_side.keeper, rate
        self._on, self._closing, self._rests = Event(), Event(), Event()
        self._rests.set()
        self._page_bytes = sum(group.page_bytes for group in engine.cache.config.groups)
        self.num_bytes = 0
        self._thread = Thread(target=self._work, daemon=True)
        self._thread.start()

    def turn(self, on: bool) -> None:
        """Begin, or end and wait until the disk does nothing any more."""
        if on:
            self._rests.clear()
            self._on.set()
        else:
            self._on.clear()
            self._rests.wait()
            self._keeper.flush()

    def close(self) -> None:
        """End it."""
        self._closing.set()
        self._on.set()
        self._thread.join()

    def _prompts(self) -> Iterator[Request]:
        size = self._cache.config.block_size * BLOCKS
        for number in count():
            yield Request(("load", number), np.random.default_rng(number).integers(0, 40_000, size).astype(np.int32))

    def _work(self) -> None:
        old: list[Request] = []
        for request in self._prompts():
            if not self._on.is_set():
                self._rests.set()
            self._on.wait()
            if self._closing.is_set():
                return
            begun, done = time.monotonic(), 0
            writer = self._cache.writer(request, tier=1)
            if not isinstance(writer, Refusal):
                with writer:
                    self._cache.finish(writer.plan)
                    done += writer.written(len(request.tokens))
            old = [*old[-KEPT:], request]
            fetched = self._keeper.prefetch(old[0])
            if isinstance(fetched, Prefetch):
                self._keeper.idle()
                done += len(fetched.plan)
                fetched.close()
            self.num_bytes += done * self._page_bytes
            if self._rate:
                self._closing.wait(max(0.0, done * self._page_bytes / self._rate - (time.monotonic() - begun)))


def measure(folder: Path, rounds: int, steps: int, rate: float) -> dict[str, float]:
    """Milliseconds of a step, idle and busy, and what the disk did meanwhile."""
    config = EngineConfig(400, 200, disk_pages=600, max_length=4096, max_sequences=8)
    spent: dict[bool, list[float]] = {False: [], True: []}
    worked: dict[bool, list[float]] = {False: [], True: []}
    with Engine(load(smollm2.folder()), config, disk=DiskConfig(folder, flush=0.0)) as engine:
        engine.warm_up()
        for nth in range(ANSWERS):
            engine.submit([17 + nth] * 8, Sampling(max_tokens=rounds * steps * 2 + 20, ignore_eos=True))
        for _ in range(10):
            engine.step()
        load_on, busy_seconds = Load(engine, rate * 1e6), 0.0
        for nth in range(2 * rounds):
            busy = (nth % 4) in (1, 2)  # idle, busy, busy, idle, ...
            load_on.turn(busy)
            begun = time.perf_counter()
            for _ in range(steps):
                start, work = time.perf_counter(), time.thread_time()
                engine.step()
                spent[busy].append(time.perf_counter() - start)
                worked[busy].append(time.thread_time() - work)
            busy_seconds += busy * (time.perf_counter() - begun)
            load_on.turn(False)
        load_on.close()
        moved = load_on.num_bytes
    idle, busy_ms = 1e3 * median(spent[False]), 1e3 * median(spent[True])
    best = [float(np.quantile(spent[busy], 0.1)) for busy in (False, True)]
    return {
        "idle_ms": idle, "busy_ms": busy_ms, "ratio": busy_ms / idle, "ratio_of_quickest_tenth": best[1] / best[0],
        "ratio_of_processor_time": median(worked[True]) / median(worked[False]),
        "disk_mb_per_s": moved / busy_seconds / 1e6,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=".", help="on the disk that is meant")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rate", type=float, default=200.0, help="MB/s; 0: as much as goes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quire-disk-", dir=options.folder) as folder:
        numbers = measure(Path(folder), options.rounds, options.steps, options.rate)
    print(json.dumps(numbers) if options.json else "\n".join(f"{name:24} {n:10.3f}" for name, n in numbers.items()))


if __name__ == "__main__":
    main()
