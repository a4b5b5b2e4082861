"""What a router's index costs by workers and overlap: memory, applying, looking up, forgetting a worker.

Run it as `python benchmarks/events_index.py`. Each row is a process of its own, since what it holds is measured as the
growth of its resident memory. Pages are told as a stream tells them, workers in turn; all lookups miss the caches:
each asks for other blocks than the one before.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from quire.core.store import open_store

PART, BLOCKS = 500, 512  # pages told at once, blocks of a prompt
STORED, REMOVED = 1, 4
ROWS = ((1, 0.0), (8, 0.0), (8, 0.1), (8, 0.5), (8, 1.0), (64, 0.0), (64, 0.1), (64, 0.5), (64, 1.0))


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def tell(ledger: Any, worker: int, kind: int, hashes: Any) -> None:
    """One record."""
    rows = np.array([[kind, 0, len(hashes), 0, 0]], np.int32)
    assert ledger.apply(worker, rows, hashes, np.full(len(hashes), 35, np.uint8)) == 0


def held(workers: int, shared: float, pages: int) -> list[Any]:
    """Per worker the hashes of its pages; a part of them is the same for all."""
    dice = np.random.default_rng(5)
    common = dice.integers(1, 1 << 63, int(pages * shared), dtype=np.uint64)
    own = (dice.integers(1, 1 << 63, pages - len(common), dtype=np.uint64) for _ in range(workers))
    return [np.concatenate([common, rest]) for rest in own]


def row(workers: int, shared: float, pages: int) -> dict[str, float]:
    """All numbers of one ledger."""
    hashes = held(workers, shared, pages)
    ledger = open_store().Ledger(workers, 1)
    tell(ledger, 0, STORED, hashes[0][:1])
    tell(ledger, 0, REMOVED, hashes[0][:1])
    before, begun = resident(), time.perf_counter()
    for start in range(0, pages, PART):
        for worker in range(workers):
            tell(ledger, worker, STORED, hashes[worker][start : start + PART])
    applied, grown = time.perf_counter() - begun, resident() - before
    prompts = [hashes[worker][at : at + BLOCKS] for at in range(0, pages - BLOCKS, BLOCKS) for worker in range(workers)]
    prompts = prompts[:: max(1, len(prompts) // 400)]
    begun = time.perf_counter()
    for prompt in prompts:
        ledger.runs(0, prompt, list(range(workers)))
    looked = time.perf_counter() - begun
    begun = time.perf_counter()
    ledger.clear(workers - 1)
    forgotten = time.perf_counter() - begun
    return {
        "bytes per page and worker": grown / (workers * pages),
        "apply, ns": applied / (workers * pages) * 1e9,
        "512 blocks looked up, us": looked / len(prompts) * 1e6,
        "a worker forgotten, ms": forgotten * 1e3,
    }


def main() -> None:
    """Measure and print, the best of some rounds each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=30_000, help="per worker")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for workers, shared in ROWS:
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            rounds = [pool.apply(row, (workers, shared, options.pages)) for _ in range(options.rounds)]
        best = {name: min(numbers[name] for numbers in rounds) for name in rounds[0]}
        found[f"{workers} workers, {shared:.0%} shared"] = best
        if not options.json:
            told = "".join(f"{value:10.1f} {name}" for name, value in best.items())
            print(f"{workers:3} workers, {shared:4.0%} shared{told}")
    if options.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
