"""RegretReport: what a cache hit over the last hour, and what others would have. Plain numbers; computes nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

GB = 10**9


@dataclass(frozen=True, slots=True)
class TierRegret:
    """One tier, with all hotter ones: what so much memory is worth. Rates are shares of all prompt tokens."""

    name: str
    blocks: int  # that fit into it
    num_bytes: int  # 0: the cache does not know
    measured: float  # hit rate of pages that were in this tier
    hit_rate: float  # that all tiers down to this one would have had together, evicting what was used longest ago
    optimum: float | None  # that they could have had at best, had they known what comes; None: not computed yet
    per_gb: float | None  # that one more GB in this tier would add to `hit_rate`; None: the cache knows no bytes


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A size of memory, and the hit rate that goes with it."""

    blocks: int
    num_bytes: int  # 0: the cache does not know
    hit_rate: float


@dataclass(frozen=True, slots=True)
class RegretReport:
    """The last hour of a cache. Rates are shares of all prompt tokens, in whole blocks."""

    seconds: float  # that it covers: up to the window
    requests: int
    prompt_tokens: int
    hit_rate: float  # measured
    ceiling: float  # of a cache that forgets nothing
    optimum: float | None  # the best that this much memory could have had, had it known what comes
    orders: dict[str, float]  # what each eviction order would have had in this much memory
    tiers: tuple[TierRegret, ...]
    curve: tuple[CurvePoint, ...]  # of all memory together, evicting what was used longest ago
    eviction: str  # the order that the cache has
    one_in: int  # blocks for which one is tracked: 1 is all of them
    num_blocks: int  # different ones that are remembered, as far as the sample shows
    lost: int  # requests that are not counted, or without their answers: they came faster than they could be
    note: str = field(default="")  # why something is missing

    @property
    def regret(self) -> float | None:
        """What the optimum would have had more than the cache had."""
        return None if self.optimum is None else self.optimum - self.hit_rate

    def to_json(self) -> dict[str, Any]:
        """Plain data, for a page or a file."""
        return {**asdict(self), "regret": self.regret, "tiers": [asdict(tier) for tier in self.tiers],
                "curve": [asdict(point) for point in self.curve]}  # fmt: skip

    def __repr__(self) -> str:
        best = "" if self.optimum is None else f", at best {self.optimum:.1%}"
        return f"RegretReport({self.requests} requests in {self.seconds:.0f} s, hit rate {self.hit_rate:.1%}{best})"
