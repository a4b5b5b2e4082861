"""What the live page costs: a cache of 100,000 pages on the device, as many on the host, and 1,000 requests.

    python benchmarks/viewer.py [--pages 100000] [--requests 1000] [--seconds 20]

Prints the time of a snapshot in each colour, the longest hold of the cache's lock, bytes sent, and the share of a core
that one open page takes, as the process itself counts it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from quire import Cache, CacheConfig, Request, Scope, TierConfig, Viewer
from quire.core import maps
from quire.core.colder_tiers import registry_of
from quire.viewer.cells import COLOURS
from quire.viewer.snapshot import Snapshots
from quire.viewer.source import CacheSource

BLOCK = 16
LOOK = """
import json, sys, time, urllib.request
end = time.monotonic() + float(sys.argv[2])
asked = size = 0
while time.monotonic() < end:
    with urllib.request.urlopen(sys.argv[1] + "viewer/snapshot?colour=state") as reply:
        body = reply.read()
    asked, size = asked + 1, size + len(body)
    time.sleep(max(0.25, json.loads(body)["pace"]))
print(json.dumps({"asked": asked, "bytes": size // asked}))
"""


class TimedLock:
    """The cache's lock; remembers how long it was held, in time of the core: others run on it, too."""

    def __init__(self, lock: Any) -> None:
        self._lock, self.held = lock, list[float]()

    def __enter__(self) -> bool:
        taken = bool(self._lock.__enter__())
        self._since = time.thread_time()
        return taken

    def __exit__(self, *given: Any) -> None:
        self.held.append(time.thread_time() - self._since)
        self._lock.__exit__(*given)


def filled(pages: int, requests: int) -> Cache:
    """Half of the device in use by live requests, the rest cached; a host tier of the same size, full."""
    length = max(2, pages // (2 * requests)) * BLOCK
    tiers = (TierConfig("device", pages), TierConfig("host", pages))
    config = CacheConfig(tiers, block_size=BLOCK, max_sequences=requests, max_length=2 * length, receipts=True)
    cache, rng = Cache(config), np.random.default_rng(0)
    systems = [rng.integers(0, 1 << 30, length // 4, dtype=np.int32) for _ in range(8)]
    for number in range(5 * requests):
        own = rng.integers(0, 1 << 30, length - length // 4, dtype=np.int32)
        tokens = np.concatenate([systems[number % 8], own])
        batch = cache.add_sequence_batch([Request(number, tokens, Scope(lora=number % 8))])
        cache.finish(batch.plan)
        cache.commit(batch.sequences)
        if number < 4 * requests:
            cache.release(batch.sequences[0])
    return cache


def snapshots(cache: Cache, times: int = 12) -> None:
    """Milliseconds of a core for one, by colour; with the tree read anew and without."""
    made = Snapshots(CacheSource(cache))
    for colour in COLOURS:
        spent: dict[bool, list[float]] = {True: [], False: []}
        for anew in [True, False] * times:
            made._read = -9e9 if anew else time.monotonic() + 9
            began = time.thread_time()
            size = len(json.dumps(made.make(colour)))
            spent[anew].append(1e3 * (time.thread_time() - began))
        with_tree, without = median(spent[True]), median(spent[False])
        print(f"snapshot, {colour:6} {without:6.2f} ms, with the tree {with_tree:6.2f} ms, {size:,} bytes")


def lock_holds(cache: Cache) -> None:
    """How long somebody else waits for the lock at most."""
    registry = registry_of(cache)
    setup, lock = registry.setup, registry.setup.lock
    timed: Any = TimedLock(lock)
    cache._lock, registry.setup = timed, replace(setup, lock=timed)
    try:
        for colour in COLOURS * 3:
            Snapshots(CacheSource(cache)).make(colour)
    finally:
        cache._lock, registry.setup = lock, setup
    held = sorted(timed.held)
    print(
        f"lock held {1e6 * median(held):.0f} us in the middle, {1e3 * held[-1]:.2f} ms at most, parts of {maps.PART:,}"
    )


def share_of_a_core(cache: Cache, seconds: float) -> None:
    """What this process spends while one page is open, less what it spends while none is."""
    with Viewer(cache) as viewer:
        resting = _spent(seconds / 4, lambda: time.sleep(seconds / 4))
        found: dict[str, Any] = {}

        def look() -> None:
            done = subprocess.run(
                [sys.executable, "-c", LOOK, viewer.url, str(seconds)], capture_output=True, check=True
            )
            found.update(json.loads(done.stdout))

        share = _spent(seconds, look)
    print(
        f"one open page: {100 * (share - resting):.2f} % of a core, {found['asked'] / seconds:.1f} snapshots a second,"
    )
    print(f"  {found['bytes']:,} bytes each")


def _spent(seconds: float, act: Any) -> float:
    began = time.process_time()
    act()
    return (time.process_time() - began) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    cache = filled(options.pages, options.requests)
    print(f"{cache!r}, {cache._setup.store.num_nodes:,} blocks in the tree")
    snapshots(cache)
    lock_holds(cache)
    share_of_a_core(cache, options.seconds)


if __name__ == "__main__":
    main()
