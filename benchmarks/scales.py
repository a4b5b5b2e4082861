"""Is the adaptive order anywhere below LRU: twelve kinds of load, clocks of every speed, sizes, one to three tiers.

    python benchmarks/scales.py [--loads agents,pairs] [--blocks 300,1000,3000] [--clocks 0.001,1,10000,0]
                                [--memory device,host,disk] [--seed 1] [--trace PATH] [--limit 0] [--json FILE]

Every load (`benchmarks/loads.py`) runs through a cache with `lru`, and with `adaptive` on clocks that run so many times
as fast as the load says; 0 stands still. LRU does not look at the clock. With `host` the device has a quarter of the
blocks and host memory the rest; with `disk` a quarter of them is on the device, a quarter in host memory and the rest
is a slow tier: what a request finds there only is prefetched before it is admitted. A request is admitted, computed
and released at its arrival. `--trace`: a recorded conversation besides (lines with `timestamp` and `hash_ids`).
Prints the share of blocks found by LRU, then for each clock by how many points `adaptive` is above or below it, how
often it fell back, and at the end the worst of all.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from loads import LOADS, Asked

from quire import Cache, CacheConfig, Prefetch, Request, TierConfig
from quire.core.records.config import Eviction

BLOCK = 4
CLOCKS = "0.001,0.1,1,10,1000,10000,0"
MEMORIES = ("device", "host", "disk")


class Clock:
    """The time of the request in hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Outcome(NamedTuple):
    """Of one load in one cache."""

    rate: float  # share of blocks found, in %
    fallbacks: int


def tiers(blocks: int, memory: str) -> tuple[TierConfig, ...]:
    """So many blocks, where they are."""
    part = blocks // 4
    if memory == "device":
        return (TierConfig("device", blocks),)
    if memory == "host":
        return (TierConfig("device", part), TierConfig("host", blocks - part))
    return (TierConfig("device", part), TierConfig("host", part), TierConfig("disk", blocks - 2 * part, slow=True))


def run(asked: list[Asked], config: CacheConfig, speed: float, most: int) -> Outcome:
    """All requests of a load that fit, one after the other."""
    clock = Clock()
    cache = Cache(config, clock=clock)
    found, total, slow, size = 0, 0, config.tiers[-1].slow, config.block_size
    for now, text in asked:
        if len(text) >= most:
            continue
        clock.now = now * speed
        tokens = np.append(np.repeat(np.array(text, np.int32), size), np.int32(0))  # the last one is always computed
        request = Request("r", tokens)
        if slow:
            bring(cache, request)
        batch = cache.add_sequence_batch([request])
        (sequence,) = batch.sequences
        found += sequence.start // size
        total += len(text)
        cache.finish(batch.plan)
        cache.commit(sequence)
        cache.release(sequence)
        if slow:
            cache.finish(cache.copy_down(len(text)))
    return Outcome(100 * found / total, cache.usage().fallbacks)


def bring(cache: Cache, request: Request) -> None:
    """What is on disk only comes up to memory before it is asked for."""
    prefetch = cache.prefetch(request)
    if isinstance(prefetch, Prefetch):
        cache.finish(prefetch.plan)


def recorded(path: Path, limit: int) -> list[Asked]:
    """The requests of a recorded trace."""
    lines = path.read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines[: limit or None]]
    return [(entry["timestamp"] / 1000, tuple(entry["hash_ids"])) for entry in entries]


def measure(asked: list[Asked], blocks: int, memory: str, clocks: list[float]) -> tuple[Outcome, list[Outcome]] | None:
    """A load with LRU, and with the adaptive order on each clock; None if the device has no room for any request."""
    longest = max(len(text) for _, text in asked) + 1
    places = tiers(blocks, memory)
    most = places[0].slots if isinstance(places[0].slots, int) else blocks
    if all(len(text) >= most for _, text in asked):
        return None

    def config(eviction: Eviction) -> CacheConfig:
        return CacheConfig(
            places, BLOCK, max_sequences=2, max_length=longest * BLOCK, partial_reuse=False, eviction=eviction,
            prefetch_share=1.0,
        )  # fmt: skip

    return run(asked, config("lru"), 1.0, most), [run(asked, config("adaptive"), speed, most) for speed in clocks]


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--blocks", default="300,1000,3000")
    parser.add_argument("--clocks", default=CLOCKS)
    parser.add_argument("--memory", default="device")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trace", type=Path, help="a recorded conversation besides")
    parser.add_argument("--limit", type=int, default=0, help="requests of it; 0: all")
    parser.add_argument("--json", type=Path, help="where to write all of it")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    given = options(argv)
    clocks = [float(speed) for speed in given.clocks.split(",")]
    known = {name: list(LOADS[name](Random(given.seed))) for name in filter(None, given.loads.split(","))}
    if given.trace is not None:
        known["trace"] = recorded(given.trace, given.limit)
    rows, worst = [], (np.inf, "")
    print(f"{'load':10}{'memory':8}{'blocks':>7}{'lru':>7}  " + "".join(f"{f'x{speed:g}':>8}" for speed in clocks))
    for name, asked in known.items():
        for memory in given.memory.split(","):
            for blocks in map(int, given.blocks.split(",")):
                measured = measure(asked, blocks, memory, clocks)
                if measured is None:
                    print(f"{name:10}{memory:8}{blocks:7,}   no request fits into {blocks // 4} blocks of the device")
                    continue
                lru, found = measured
                falls = sum(outcome.fallbacks for outcome in found)
                by = [outcome.rate - lru.rate for outcome in found]
                print(f"{name:10}{memory:8}{blocks:7,}{lru.rate:7.1f}  " + "".join(f"{more:+8.1f}" for more in by)
                      + (f"   fell back {falls} times" if falls else ""), flush=True)  # fmt: skip
                rows.append(
                    {"load": name, "memory": memory, "blocks": blocks, "lru": lru.rate, "above": by, "falls": falls}
                )
                worst = min(worst, (min(by), f"{name}, {memory}, {blocks:,} blocks"))
    print(f"worst: {worst[0]:+.2f} points ({worst[1]})")
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
