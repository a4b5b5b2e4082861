"""How far the walks of docs/walk.md lead: the files and the deepest chain of calls of each step, as they run.

    python benchmarks/walks.py                 (a checkout; PYTHONPATH=OTHER for another one)

In the reference store, which is Python from end to end. `plain` is one full attention group on the device alone;
`rich` has full attention, a window and states, memory of the host, and evicts all the time. Counted are the files of
`quire` that a call enters (classes that only hold data too) and the calls of `quire` that lie within each other.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import quire
from quire import Cache, CacheConfig, LayerGroup, Request, TierConfig

HOME = str(Path(quire.__file__).parent) + "/"
WALKS = ("claim", "admit", "commit", "grow", "release")


@dataclass
class Walk:
    """Where the calls of one step have been so far."""

    files: dict[str, set[str]] = field(default_factory=dict)  # and what was called in each
    chain: list[str] = field(default_factory=list)

    def follow(self, call: Callable[[], Any]) -> Any:
        """Do it, and note where it goes."""
        open_calls: list[str] = []

        def note(frame: FrameType, event: str, _: object) -> None:
            name = frame.f_code.co_filename
            if not name.startswith(HOME):
                return
            if event == "call":
                self.files.setdefault(name.removeprefix(HOME), set()).add(frame.f_code.co_qualname)
                open_calls.append(f"{name.removeprefix(HOME)}:{frame.f_code.co_qualname}")
                if len(open_calls) > len(self.chain):
                    self.chain = open_calls.copy()
            elif event == "return":
                del open_calls[-1:]

        sys.setprofile(note)
        try:
            return call()
        finally:
            sys.setprofile(None)


def plain() -> CacheConfig:
    """One group, on the device."""
    return CacheConfig((TierConfig("device", 40),), block_size=16)


def rich() -> CacheConfig:
    """Groups of three kinds, and memory of the host below them."""
    groups = LayerGroup("full"), LayerGroup("window", window=48), LayerGroup("state", snapshot_every=32)
    return CacheConfig((TierConfig("device", 40), TierConfig("host", 60)), block_size=16, groups=groups)


def walk_through(config: CacheConfig) -> dict[str, Walk]:
    """Forty requests of eight conversations, which come back: two at a time, each with an answer of ten tokens."""
    walks = {name: Walk() for name in WALKS}
    cache, draw = Cache(config, store="twin"), np.random.default_rng(7)
    texts = [draw.integers(0, 1000, 70).astype(np.int32) for _ in range(8)]
    for turn in range(20):
        two = [(2 * turn + 5 * at) % 8 for at in range(2)]
        two = two if two[0] != two[1] else [two[0], (two[0] + 1) % 8]
        asks = [Request(f"{turn}-{one}", texts[one], max_new_tokens=12) for one in two]
        claims = walks["claim"].follow(lambda: cache.claim(asks))  # noqa: B023
        batch = walks["admit"].follow(lambda: cache.admit(claims, token_budget=4096))  # noqa: B023
        cache.finish(batch.plan)
        running = list(batch.sequences)
        walks["commit"].follow(lambda: cache.commit(running))  # noqa: B023
        while parts := [sequence for sequence in running if sequence.computed < sequence.prompt_end]:
            cache.finish(cache.add_sequence_batch([], continuing=parts).plan)
            walks["commit"].follow(lambda: cache.commit(parts))
        for token in range(10):
            more = np.full(len(running), token, np.int32)
            cache.finish(walks["grow"].follow(lambda: cache.grow(running, more)))  # noqa: B023
            walks["commit"].follow(lambda: cache.commit(running))  # noqa: B023
        for one, sequence in zip(two, running, strict=False):
            walks["release"].follow(lambda: cache.release(sequence))  # noqa: B023
            texts[one] = np.append(texts[one], np.arange(10, dtype=np.int32))[-90:]
    return walks


def main() -> None:
    """The table, and with -v what lies behind it."""
    warnings.simplefilter("ignore")
    found = {config.__name__: walk_through(config()) for config in (plain, rich)}
    print("| step | " + " | ".join(f"{name}: files | calls deep" for name in found) + " |")
    for step in WALKS:
        numbers = [f"{len(walks[step].files)} | {len(walks[step].chain)}" for walks in found.values()]
        print(f"| {step} | " + " | ".join(numbers) + " |")
    for name, walks in found.items() if "-v" in sys.argv else ():
        for step, walk in walks.items():
            files = [f"{file}: {', '.join(sorted(calls))}" for file, calls in sorted(walk.files.items())]
            print(f"\n{name} {step}", *files, "deepest:", *(f"  {call}" for call in walk.chain), sep="\n  ")


if __name__ == "__main__":
    main()
