"""Series: what happened over virtual time, in at most 400 buckets of equal length. Counts nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire import Cache, CacheConfig
from quire.trace.units import Int64

BUCKETS = 400


class Series:
    """Events as they come; bucketed at the end, when it is known how long it took."""

    def __init__(self, config: CacheConfig, last_arrival: float) -> None:
        self._config = config
        self._rows: dict[str, list[tuple[float, ...]]] = {"admit": [], "step": [], "moved": [], "look": []}
        self._misses: dict[str, list[tuple[float, int]]] = {}  # by cause
        self._every = last_arrival / BUCKETS
        self.next_look = 0.0

    def admit(self, now: float, length: int, tiers: Sequence[int], blocks: Sequence[int]) -> None:
        """A prompt: its tokens, those reused by tier, and by group the blocks reused and asked for."""
        self._rows["admit"].append((now, length, *tiers, *blocks))

    def miss(self, now: float, cause: str, num_tokens: int) -> None:
        """Tokens of a prompt that were computed, for one reason."""
        self._misses.setdefault(cause, []).append((now, num_tokens))

    def step(self, now: float, admitted: bool, overshoot: int) -> None:
        """A step: a promise kept, or broken by so many tokens."""
        self._rows["step"].append((now, admitted and not overshoot, overshoot > 0, overshoot))

    def moved(self, now: float, up: int, down: int) -> None:
        """Bytes between tiers."""
        if up or down:
            self._rows["moved"].append((now, up, down))

    def look(self, now: float, cache: Cache) -> None:
        """How full each tier is, by bytes: slots not empty, and slots that sequences hold. Due at `next_look`."""
        self.next_look = now + self._every
        numbers: list[float] = [now]
        for tier in range(len(self._config.tiers)):
            total = used = held = 0
            for index, group in enumerate(self._config.groups):
                usage, size = cache._setup.usage(tier, index), max(group.page_bytes, 1)  # what the store knows
                total += usage.capacity * size
                used += (usage.capacity - usage.empty) * size
                held += usage.held * size
            numbers += [used / max(total, 1), held / max(total, 1)]
        self._rows["look"].append(tuple(numbers))

    def to_json(self) -> dict[str, Any]:
        """Every list has one item per bucket; None where a bucket has nothing to say."""
        last = max((rows[-1][0] for rows in self._rows.values() if rows), default=0.0)
        count = max(1, min(BUCKETS, len(self._rows["step"])))
        width = last / count or 1.0
        tiers = [tier.name for tier in self._config.tiers]
        groups = [group.name for group in self._config.groups]
        places, admitted = self._table("admit", 2 + len(tiers) + 2 * len(groups), width, count)
        sums = _sums(places, admitted[:, 1:], count)
        behind = 1 + len(tiers)
        kept = _sums(*self._parts("step", 4, width, count), count)
        steps, shots = self._table("step", 4, width, count)
        worst = np.zeros(count)
        np.maximum.at(worst, steps, shots[:, 3])
        moved = _sums(*self._parts("moved", 3, width, count), count)
        looks = self._last(width, count)
        return {
            "seconds": [round(width * (n + 1), 3) for n in range(count)],
            "hit_rate_by_tier": {name: _rate(sums[:, 1 + n], sums[:, 0]) for n, name in enumerate(tiers)},
            "hit_rate_by_group": {
                name: _rate(sums[:, behind + 2 * n], sums[:, behind + 2 * n + 1]) for n, name in enumerate(groups)
            },
            "prompt_tokens": _whole(sums[:, 0]),
            **self._by_cause(width, count),
            "use_by_tier": {name: looks[2 * n] for n, name in enumerate(tiers)},
            "held_by_tier": {name: looks[2 * n + 1] for n, name in enumerate(tiers)},
            "promises_kept": _whole(kept[:, 0]),
            "promises_broken": _whole(kept[:, 1]),
            "worst_overshoot_tokens": _whole(worst),
            "onboarded_bytes": _whole(moved[:, 0]),
            "offloaded_bytes": _whole(moved[:, 1]),
        }

    def _table(self, name: str, columns: int, width: float, count: int) -> tuple[Int64, NDArray[np.float64]]:
        """Rows of one kind and the bucket of each."""
        table = np.array(self._rows[name], np.float64).reshape(-1, columns)
        places = np.minimum((table[:, 0] / width).astype(np.int64), count - 1)
        return places, table

    def _parts(self, name: str, columns: int, width: float, count: int) -> tuple[Int64, NDArray[np.float64]]:
        places, table = self._table(name, columns, width, count)
        return places, table[:, 1:]

    def _by_cause(self, width: float, count: int) -> dict[str, dict[str, list[int]]]:
        """Tokens of each cause; nothing without receipts."""
        if not self._misses:
            return {}
        most_first = sorted(self._misses, key=lambda cause: -sum(number for _, number in self._misses[cause]))
        every = {}
        for cause in most_first:
            table = np.array(self._misses[cause], np.float64)
            places = np.minimum((table[:, 0] / width).astype(np.int64), count - 1)
            every[cause] = _whole(_sums(places, table[:, 1:], count)[:, 0])
        return {"computed_by_cause": every}

    def _last(self, width: float, count: int) -> list[list[float | None]]:
        """Fill of the tiers, last seen in each bucket, or before it."""
        columns = 1 + 2 * len(self._config.tiers)
        places, table = self._table("look", columns, width, count)
        seen: list[list[float | None]] = [[None] * count for _ in range(columns - 1)]
        for place, numbers in zip(places.tolist(), table[:, 1:].tolist(), strict=True):
            for column, number in enumerate(numbers):
                seen[column][place] = round(number, 5)
        for numbers_seen in seen:
            for place in range(1, count):
                if numbers_seen[place] is None:
                    numbers_seen[place] = numbers_seen[place - 1]
        return seen


def _sums(places: Int64, table: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    sums = np.zeros((count, table.shape[1]))
    np.add.at(sums, places, table)
    return sums


def _rate(part: NDArray[np.float64], whole: NDArray[np.float64]) -> list[float | None]:
    pairs = zip(part.tolist(), whole.tolist(), strict=True)
    return [round(some / all_, 5) if all_ else None for some, all_ in pairs]


def _whole(numbers: NDArray[np.float64]) -> list[int]:
    return [int(number) for number in numbers.tolist()]
