"""Three reports of other engines, re-enacted on a small recorded cache: python examples/incidents.py [FOLDER]

It makes the three files in which docs/incidents.md finds what was wrong: leak, starved and fewer-hits.incident.gz, in
build/incidents by default. Each engine below has the fault of the report; the cache beneath records its calls.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from quire import Cache, CacheConfig, Request, Span, TierConfig
from quire.incidents import Incidents

SIZE = 16


class SmallEngine:
    """Requests come, are computed at once, and go; a second passes with each step."""

    def __init__(self, folder: Path, slots: int, host: int = 0) -> None:
        self.now = 0.0
        self.incidents = Incidents(folder, thread=False, apart=False)
        tiers = [TierConfig("device", slots)] + ([TierConfig("host", host)] if host else [])
        config = CacheConfig(tiers, SIZE, max_sequences=16, max_length=4096, eviction="lru")
        self.cache = Cache(config, clock=lambda: self.now, watchers=[self.incidents])

    def prompt(self, user: int, length: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """A user's text, as long as it is by now."""
        return (1000 * user + np.arange(length)).astype(np.int32)

    def admit(self, *requests: Request) -> list[Request]:
        """One step; who did not get in."""
        self.now += 1.0
        with self.cache.claim(list(requests)) as claims:
            batch = self.cache.admit(claims)
        self.cache.finish(batch.plan)
        self.cache.commit(batch.sequences)
        return [refusal.request for refusal in batch.refused]

    def end(self, name: str) -> None:
        """A request is over."""
        self.cache.release(self.cache.sequence(name))

    def saved(self, name: str, reason: str) -> Path:
        """The calls so far, in a file of this name."""
        return self.incidents.save(reason).rename(self.incidents.folder / f"{name}.incident.gz")


def leaked_holds(folder: Path) -> Path:
    """Pages are held for a reader, and a request that is cancelled forgets to give them up."""
    engine = SmallEngine(folder, slots=32)
    for nth in range(12):
        name = f"request {nth}"
        if engine.admit(Request(name, engine.prompt(nth, 100))):
            break
        held = engine.cache.hold(engine.cache.sequence(name), Span(0, 100))
        engine.end(name)
        if nth % 3 and held is not None:
            engine.cache.drop(held)
    waits = Request("the next", engine.prompt(99, 400))
    for _ in range(20):
        engine.admit(waits)
    return engine.saved("leak", "requests wait and nothing runs")


def starved(folder: Path) -> Path:
    """A large request stands first in the queue; what would fit waits behind it."""
    engine = SmallEngine(folder, slots=64)
    engine.admit(Request("long answer", engine.prompt(1, 640)))
    large, small = (
        Request("large", engine.prompt(2, 900)),
        [Request(f"s{n}", engine.prompt(3 + n, 60)) for n in range(4)],
    )
    for _ in range(30):
        engine.admit(large, *small)
    return engine.saved("starved", "first tokens take half a minute")


def lost_hits(folder: Path, host: int = 0) -> Path:
    """Ten conversations in turns; since last night's change of the config there is no host memory."""
    engine = SmallEngine(folder, slots=60, host=host)
    for turn in range(12):
        for user in range(10):
            name = f"{user}/{turn}"
            engine.admit(Request(name, engine.prompt(user, 100 + 16 * turn)))
            engine.end(name)
    return engine.saved("fewer-hits", "slow since the change")


def main() -> None:
    """All three."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/incidents")
    for make in (leaked_holds, starved, lost_hits):
        print(make(folder))


if __name__ == "__main__":
    main()
