"""What an engine's steps pay for a busy disk tier: decoding with it idle and with it writing and reading, in turn.

    OMP_NUM_THREADS=1 chrt -f 1 python benchmarks/disk_steps.py [--rounds 10] [--steps 10] [--rate 200] [--model FOLDER]

The embedded SmolLM2, or the model of a folder, decodes 4 answers. While the disk is busy, somebody writes pages into
host memory (`cache.writer`), which the keeper copies down, and prefetches older ones, which it reads, verifies and
brings up: about `--rate` MB/s together, 0 for as much as goes. With `--no-disk` the same pages come and go nowhere:
what that somebody costs alone.

Stretches of steps alternate, and which of the two comes first alternates too; ratios are of medians of all steps. The
disk's threads need a core besides the model's, so with two cores or more the stepping thread has the first for itself.
`chrt -f 1` (as root) keeps other people's work off both for as long as this runs. Beside the time there is the stepping
thread's processor time, and how often and how long it waited: for the interpreter, when another thread had it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import threading
import time
from itertools import cycle
from pathlib import Path
from statistics import median
from threading import Event, Thread

import numpy as np

from quire import Prefetch, Refusal, Request
from quire.engine import Engine, EngineConfig, Sampling, load
from quire.engine.memory.disk_side import DiskConfig
from quire.engine.model import smollm2

ANSWERS, BLOCKS, KEPT = 4, 8, 60  # blocks of one prompt that comes from elsewhere; prompts until one is read again
PROMPTS = 400  # different ones: more than host memory and disk have room for


class Load:
    """Pages that come from elsewhere and go to the disk, and older ones that come back; while it is told to."""

    def __init__(self, engine: Engine, rate: float) -> None:
        self._cache, self._rate = engine.cache, rate
        self._keeper = engine.disk_side.keeper if engine.disk_side is not None else None
        size, dice = engine.cache.config.block_size * BLOCKS, np.random.default_rng(0)
        texts = [dice.integers(0, 40_000, size).astype(np.int32) for _ in range(PROMPTS)]
        self._prompts = [Request(("load", nth), text) for nth, text in enumerate(texts)]
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
            if self._keeper is not None:
                self._keeper.flush()

    def close(self) -> None:
        """End it."""
        self._closing.set()
        self._on.set()
        self._thread.join()

    def _work(self) -> None:
        old: list[Request] = []
        for request in cycle(self._prompts):
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
            if self._keeper is not None:
                done += self._read(old[0])
            self.num_bytes += done * self._page_bytes
            if self._rate:
                self._closing.wait(max(0.0, done * self._page_bytes / self._rate - (time.monotonic() - begun)))

    def _read(self, request: Request) -> int:
        """Bring an older one up from the disk, if host memory has it no more; how many pages."""
        assert self._keeper is not None
        fetched = self._keeper.prefetch(request)
        if not isinstance(fetched, Prefetch):
            return 0
        self._keeper.idle()
        fetched.close()
        return len(fetched.plan)


def apart() -> None:
    """The calling thread has the first core for itself, all others the rest, where there are two."""
    if hasattr(os, "sched_setaffinity") and len(cores := sorted(os.sched_getaffinity(0))) > 1:
        mine = threading.get_native_id()
        for thread in map(int, os.listdir("/proc/self/task")):
            os.sched_setaffinity(thread, cores[:1] if thread == mine else cores[1:])


def measure(folder: Path | None, options: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of a step, idle and busy, and what the disk did meanwhile."""
    rounds, steps = options.rounds, options.steps
    config = EngineConfig(400, 200, disk_pages=600 if folder else 0, max_length=4096, max_sequences=8)
    disk = DiskConfig(folder, flush=0.0) if folder else None
    spent: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}  # time, processor time, times waited
    with Engine(load(options.model or smollm2.folder()), config, disk=disk) as engine:
        engine.warm_up()
        for nth in range(ANSWERS):
            engine.submit([17 + nth] * 8, Sampling(max_tokens=rounds * steps * 2 + 20, ignore_eos=True))
        for _ in range(10):
            engine.step()
        load_on, busy_seconds = Load(engine, options.rate * 1e6), 0.0
        apart()
        for nth in range(2 * rounds):
            busy = (nth % 4) in (1, 2)  # idle, busy, busy, idle, ...
            load_on.turn(busy)
            begun = time.perf_counter()
            for _ in range(steps):
                before = _now()
                engine.step()
                spent[busy].append(tuple(after - then for after, then in zip(_now(), before, strict=True)))  # type: ignore[arg-type]
            busy_seconds += busy * (time.perf_counter() - begun)
            load_on.turn(False)
        load_on.close()
        moved = load_on.num_bytes
    idle, busy_ms = (1e3 * np.array(spent[which]) for which in (False, True))
    waited = busy_ms[:, 0] - busy_ms[:, 1]
    return {
        "idle_ms": median(idle[:, 0]), "busy_ms": median(busy_ms[:, 0]),
        "ratio": median(busy_ms[:, 0]) / median(idle[:, 0]),
        "ratio_of_processor_time": median(busy_ms[:, 1]) / median(idle[:, 1]),
        "ratio_of_least": float(busy_ms[:, 0].min() / idle[:, 0].min()),
        "waited_ms": median(waited), "times_waited": median(busy_ms[:, 2]) / 1e3,
        "times_waited_idle": median(idle[:, 2]) / 1e3, "mb_per_s": moved / busy_seconds / 1e6,
    }  # fmt: skip


def _now() -> tuple[float, float, int]:
    """The time, this thread's processor time, and how often it has waited."""
    return time.perf_counter(), time.thread_time(), resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=".", help="on the disk that is meant")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rate", type=float, default=200.0, help="MB/s; 0: as much as goes")
    parser.add_argument("--model", help="a folder in transformers' format (default: the embedded SmolLM2)")
    parser.add_argument("--no-disk", action="store_true", help="pages come, and nobody copies them down")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quire-disk-", dir=options.folder) as folder:
        where = None if options.no_disk else Path(folder)
        numbers = measure(where, options)
    print(json.dumps(numbers) if options.json else "\n".join(f"{name:24} {n:10.3f}" for name, n in numbers.items()))


if __name__ == "__main__":
    main()
