"""What keeping incidents costs: of an engine's step on the host, of the thread that packs calls, in bytes of an hour.

    python benchmarks/incidents.py [--rounds 25]

Two engines with a tiny model decode the same answers, one of them recorded, in turns. The host part of a step is all
but the model: schedule, plans, outcomes; in processor time of its thread. The packing thread is measured by itself.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser
from statistics import median
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from fair import tiny

from quire.engine import Engine, EngineConfig, Sampling, Stats

STEPS = 20  # of each engine, in turns
MODEL = ("model", "compute", "forward", "sample")  # parts of a step that are no host work of the scheduler


def opened(model: Any, running: int, folder: str | None) -> Engine:
    """An engine in whose steps so many sequences decode."""
    config = EngineConfig(20_000, max_num_tokens=2 * running, max_sequences=running, max_length=1000,
                          max_waiting=2000, incidents=folder)  # fmt: skip
    engine = Engine(model, config)
    for nth in range(running):
        prompt = np.random.default_rng(nth).integers(1, 250, 24, dtype=np.int32)
        engine.submit(prompt, Sampling(max_tokens=900, ignore_eos=True))
    while len(engine.scheduler.ready) < running:
        engine.step()
    return engine


def host(engine: Engine) -> float:
    """Microseconds of one step without the model."""
    engine.stats = Stats()
    engine.step()
    return 1e6 * sum(spent for part, spent in engine.stats.seconds.items() if part not in MODEL)


def main() -> None:
    """A line for each size."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.modules[Stats.__module__].perf_counter = time.thread_time  # type: ignore[attr-defined]
    model = tiny()
    for running in (8, 64, 256):
        with opened(model, running, None) as plain, opened(model, running, mkdtemp()) as kept:
            assert kept.incidents is not None
            kept.incidents.close()  # its thread ends: what it would do is measured here
            without, recorded = [], []
            for _ in range(options.rounds):
                without.append(median(host(plain) for _ in range(STEPS)))
                recorded.append(median(host(kept) for _ in range(STEPS)))
            time.sleep(1)
            for _ in range(200):
                kept.step()
            calls = len(kept.incidents._waiting)
            began = time.thread_time()
            kept.incidents.work()
            packing = 1e6 * (time.thread_time() - began) / (200 + options.rounds * STEPS)
            ring = kept.incidents._ring
            steps = 200 + options.rounds * STEPS
            least, most = min(without), min(recorded)
            rounds = median(b / a for a, b in zip(without, recorded, strict=True)) - 1
            print(
                f"{running:4} sequences: host part {least:.0f} us, recorded {most:.0f} us "
                f"({most / least - 1:+.1%}; median of rounds {rounds:+.1%}), the thread "
                f"{packing:.1f} us a step, {calls / steps:.1f} calls and {ring.num_bytes / steps:.0f} bytes a step",
                flush=True,
            )


if __name__ == "__main__":
    main()
