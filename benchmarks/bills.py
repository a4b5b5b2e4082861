"""What bills cost: of a step that decodes, of a prompt that is new, of one that is cached, in bytes of a page.

    python benchmarks/bills.py [--rounds 15]

Two caches, full, do the same calls in turns, one of them billed; 100 tenants. Processor time, medians, microseconds.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from statistics import median
from typing import Any

import numpy as np

from quire import Cache, CacheConfig, LayerGroup, Request, TierConfig
from quire.insight.bills import Bills

BLOCK, PROMPT, ROWS, SLOTS = 16, 8192, 256, 20_000


class Work:
    """One cache, full of prompts, with sequences that decode."""

    def __init__(self, bills: Bills | None) -> None:
        tiers = [TierConfig("device", SLOTS)]
        config = CacheConfig(tiers, BLOCK, [LayerGroup(page_bytes=1 << 15)], max_sequences=ROWS + 4, max_length=16_384)
        self.cache = Cache(config, watchers=[] if bills is None else [bills])
        self.number = 0
        while self.cache.num_free() and self.number < 3 * SLOTS * BLOCK // PROMPT:
            self.prompt(new=True)
        self.rows = [self.admit(np.arange(40, dtype=np.int32) + 7 * nth) for nth in range(ROWS)]
        self.cache.commit(self.rows)
        self.tokens = np.zeros(ROWS, np.int32)

    def admit(self, tokens: Any) -> Any:
        self.number += 1
        (one,) = self.cache.add_sequence_batch([Request(self.number, tokens, tenant=f"t{self.number % 100}")]).sequences
        return one

    def prompt(self, new: bool) -> float:
        """Claim, admit, commit and release one prompt."""
        tokens = np.random.default_rng(self.number if new else 0).integers(0, 1 << 30, PROMPT, dtype=np.int32)
        began = time.thread_time_ns()
        one = self.admit(tokens)
        self.cache.commit(one)
        self.cache.release(one)
        return (time.thread_time_ns() - began) / 1000

    def step(self) -> float:
        """One token for every row."""
        began = time.thread_time_ns()
        self.cache.grow(self.rows, self.tokens)
        self.cache.commit(self.rows)
        return (time.thread_time_ns() - began) / 1000


def main() -> None:
    """A line for each kind of work."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    bills = Bills()
    both = [Work(None), Work(bills)]
    kinds: dict[str, Any] = {
        f"a step that decodes {ROWS} rows": lambda work: sum(work.step() for _ in range(BLOCK)) / BLOCK,
        f"a new prompt of {PROMPT} tokens": lambda work: work.prompt(new=True),
        "the same, cached": lambda work: work.prompt(new=False),
    }
    both[0].prompt(new=False), both[1].prompt(new=False)
    for name, run in kinds.items():
        times = [[run(work) for work in both] for _ in range(rounds)]
        plain, billed = (median(one) for one in zip(*times, strict=True))
        print(f"{name:32} {plain:8.1f} us, billed {billed:8.1f} us ({billed / plain - 1:+.1%})", flush=True)
    held = bills._book.pools[0]
    own = sum(array.nbytes for array in (held._party, held._stamp, held._tiers))
    began = time.thread_time_ns()
    bills.bill()
    print(
        f"{own / SLOTS:.0f} bytes a page, and 4.25 in the store; a bill {(time.thread_time_ns() - began) / 1000:.0f} us"
    )


if __name__ == "__main__":
    main()
