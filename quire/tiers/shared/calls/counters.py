"""Counters of a shared store, as its client sees it. Numbers only; no names, no tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock

from quire.tiers.shared.stores.store import StoreMiss


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """Since it was opened. Misses are pages that were asked for and did not come, drops such as were not sent."""

    hits: int  # pages that came
    misses: dict[str, int]  # by reason
    sent: int  # pages that went out
    drops: dict[str, int]  # by reason
    bytes_in: int
    bytes_out: int
    seconds: dict[str, float]  # spent in calls of the store: exists, get, put
    calls: dict[str, int]
    openings: int  # times it was given up as unreachable
    reachable: bool


@dataclass(slots=True)
class StoreTally:
    """What a client counts, from any thread."""

    hits: int = 0
    sent: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    misses: Counter[str] = field(default_factory=Counter)
    drops: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    lock: Lock = field(default_factory=Lock)

    def called(self, verb: str, seconds: float) -> None:
        """A call of the store has ended."""
        with self.lock:
            self.calls[verb] += 1
            self.seconds[verb] += seconds  # type: ignore[assignment]

    def came(self, answers: Iterable[StoreMiss | None], page_bytes: Iterable[int]) -> None:
        """Pages that were asked for."""
        with self.lock:
            for answer, size in zip(answers, page_bytes, strict=True):
                if answer is None:
                    self.hits += 1
                    self.bytes_in += size
                else:
                    self.misses[answer] += 1

    def went(self, answers: Iterable[StoreMiss | None], page_bytes: Iterable[int]) -> None:
        """Pages that were sent."""
        with self.lock:
            for answer, size in zip(answers, page_bytes, strict=True):
                if answer is None:
                    self.sent += 1
                    self.bytes_out += size
                else:
                    self.drops[answer] += 1

    def dropped(self, reason: StoreMiss, pages: int) -> None:
        """Pages that were not even sent."""
        if pages:
            with self.lock:
                self.drops[reason] += pages

    def missed(self, reason: StoreMiss, pages: int) -> None:
        """Pages that were not even asked for."""
        if pages:
            with self.lock:
                self.misses[reason] += pages

    def counts(self, openings: int, reachable: bool) -> StoreCounts:
        """All of it, now."""
        with self.lock:
            return StoreCounts(
                self.hits, dict(self.misses), self.sent, dict(self.drops), self.bytes_in, self.bytes_out,
                dict(self.seconds), dict(self.calls), openings, reachable,
            )  # fmt: skip
