"""Promises under pressure: both ways of admission on both public Mooncake traces, three memories, three batch sizes.

    python benchmarks/replay_promises.py FOLDER     # with mooncake_{conversation,synthetic}_trace.jsonl in it

Everybody waits from the beginning and nothing is decoded, so that every batch is full and every estimate is under
pressure. Pages go in LRU order. Prints a table; deterministic.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

from quire.cli.simulate import replay_command as replay

TRACES = {"conversation": "mooncake_conversation_trace.jsonl", "synthetic": "mooncake_synthetic_trace.jsonl"}
POOLS = ((400, 800), (600, 2400), (1000, 4000))
BATCHES = (8, 16, 32)
OPTIONS = "--prefill-only --arrivals at-once --eviction lru --json"


def play(trace: Path, way: str, pool: tuple[int, int], batch: int) -> dict[str, float]:
    """One run's counts."""
    device, host = pool
    options = f"--block-size 512 --device-blocks {device} --host-blocks {host} --batch {batch} --token-budget 0"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        replay.main(
            [
                str(trace),
                way,
                "--prefill-only",
                "--arrivals",
                "at-once",
                "--eviction",
                "lru",
                "--json",
                *options.split(),
            ]
        )
    numbers: dict[str, float] = json.loads(out.getvalue())
    return numbers


def main(folder: Path) -> None:
    heads = ["trace", "blocks", "batch", "batches", "broken: two-phase", "one at a time", "worst by", "tokens gained"]
    print(f"| {' | '.join(heads)} |")
    print("|---|---|---|---|---|---|---|---|")
    for name, file in TRACES.items():
        for pool in POOLS:
            for batch in BATCHES:
                two, one = (play(folder / file, way, pool, batch) for way in ("--two-phase", "--one-phase"))
                gained = two["tokens_saved"] - one["tokens_saved"]
                broken = (two["broken_promises"], one["broken_promises"], one["worst_overshoot_tokens"])
                row = (name, f"{pool[0]} + {pool[1]}", batch, *(f"{n:,}" for n in (two["batches"], *broken, gained)))
                print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
