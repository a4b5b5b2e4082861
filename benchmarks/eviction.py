"""Which eviction order saves more: generated workloads through a cache of one tier or two, by the clock of arrivals.

    python benchmarks/eviction.py [--blocks 1000,3000,10000] [--host 0] [--seeds 3] [--workloads agents,pairs] [--json]

Every workload is an hour of requests, about 45 blocks a second, so that with 1,000 blocks LRU keeps one for some twenty
seconds. A request is admitted, computed and released at its arrival: nothing is held, nothing waits. Recorded traces
are `quire replay`'s; benchmarks/README.md has the commands.

    agents   steps of tool loops: one of five system prompts, then 2 to 6 blocks more with every step, 5 to 60 s apart
    coding   a project's files (100 to 200 blocks), an edit behind them every 2 to 20 s; projects come and go
    pairs    chats of two turns, 20 to 120 s apart: the second one is the first and a little more, then never again
    scan     nine of ten requests are documents nobody asks for again; the others are chats that go on for minutes
    change   pairs for half an hour, agents from then on
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from random import Random

from loads import Asked, agents, change, coding, pairs, scan
from scales import run

from quire import CacheConfig, TierConfig
from quire.core.records.config import Eviction

BLOCK = 16

WORKLOADS: dict[str, Callable[[Random], Iterator[Asked]]] = {
    "agents": agents, "coding": coding, "pairs": pairs, "scan": scan, "change": change,
}  # fmt: skip


def hit_rate(asked: list[Asked], blocks: int, host: int, eviction: Eviction) -> float:
    """Share of all blocks that were found."""
    longest = max(len(text) for _, text in asked) + 1
    tiers = (TierConfig("device", blocks), *((TierConfig("host", host),) if host else ()))
    config = CacheConfig(
        tiers, BLOCK, max_sequences=2, max_length=longest * BLOCK, partial_reuse=False, eviction=eviction
    )
    return run(asked, config, speed=1, most=blocks).rate / 100


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", default="1000,3000,10000")
    parser.add_argument("--host", type=int, default=0, help="blocks of a second tier")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    rows = []
    for name in options.workloads.split(","):
        for blocks in map(int, options.blocks.split(",")):
            rates: dict[Eviction, list[float]] = {"lru": [], "adaptive": []}
            for seed in range(options.seeds):
                asked = list(WORKLOADS[name](Random(seed)))
                for eviction, found in rates.items():
                    found.append(hit_rate(asked, blocks, options.host, eviction))
            old, new = (statistics.mean(found) for found in rates.values())
            worst = min(b / a if a else 1.0 for a, b in zip(*rates.values(), strict=True))
            rows.append({"workload": name, "blocks": blocks, "lru": old, "adaptive": new, "worst": worst})
            if not options.json:
                print(f"{name:8}{blocks:7,} blocks   lru {old:7.2%}   adaptive {new:7.2%}   worst seed {worst:.3f}")
    if options.json:
        print(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
