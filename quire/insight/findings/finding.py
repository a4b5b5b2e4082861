"""Finding: one fault: whose it is, where, what to do, what that brings, and how sure it is. Prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import sqrt
from typing import Any

from quire.trace.units import Int32

Fetch = Callable[[Sequence[int]], dict[int, Int32]]  # tokens of requests, by number
Place = Callable[[int, int], str | None]  # the message of a request that has a token
EPOCH = 100_000_000.0  # seconds: less is a log's own clock


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault."""

    kind: str
    text: str  # what is wrong, and where
    advice: str
    requests: float  # the application's, of all
    affected: float  # of the application's
    before: float  # its hit rate; 0 where `saved` counts
    after: float  # the same without the fault
    confidence: float  # the least share of its lost prompts that have this fault, by 95 %
    application: str | None = None  # as the log names it
    token: int | None = None  # where it begins
    message: str | None = None
    examples: tuple[int, ...] = ()  # lines of the log
    prompt_tokens: int = 0  # the application's, of the log
    facts: dict[str, Any] = field(default_factory=dict)
    saved: float | None = None  # of the log's prompt tokens, that are computed for it: it adds requests, and no misses

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        rates = [None if self.saved is not None else round(rate, 4) for rate in (self.before, self.after)]
        return {
            "kind": self.kind, "text": self.text, "advice": self.advice, "application": self.application,
            "requests": round(self.requests, 4), "affected": round(self.affected, 4), "token": self.token,
            "message": self.message, "before": rates[0], "after": rates[1],
            "confidence": round(self.confidence, 3), "examples": list(self.examples), **self.facts,
        }  # fmt: skip

    @property
    def is_of_others(self) -> bool:
        """Whether its gain is of the prompts that do not have the fault."""
        return "others" in self.facts

    @property
    def gain(self) -> float:
        """Of the application's prompt tokens, or of the others'."""
        return self.after - self.before

    @property
    def weight(self) -> float:
        """Of all prompt tokens, about so many need not be computed without it."""
        return self.gain * float(self.facts.get("others", self.requests)) if self.saved is None else self.saved


def at_least(good: int, looked: int) -> float:
    """The least share that so many of so many allow, by 95 % (Wilson)."""
    if not looked:
        return 0.0
    share, z = good / looked, 1.96
    middle = share + z * z / (2 * looked)
    spread = z * sqrt(share * (1 - share) / looked + z * z / (4 * looked * looked))
    return max(0.0, (middle - spread) / (1 + z * z / looked))


def span_text(begin: float, end: float) -> str:
    """From when to when, for people: the time of day if the log has it."""
    if begin < EPOCH:
        return f"from {begin:.0f} to {end:.0f} s"
    first, last = (datetime.fromtimestamp(time, UTC) for time in (begin, end))
    until = f"{last:%H:%M:%S}" if first.date() == last.date() else f"{last:%Y-%m-%d %H:%M:%S}"
    return f"from {first:%Y-%m-%d %H:%M:%S} to {until} UTC"
