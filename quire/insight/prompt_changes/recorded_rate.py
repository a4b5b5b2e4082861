"""recorded_rate: what some requests lose, as tokens a day at the rate at which they came."""

from __future__ import annotations

from collections.abc import Sequence

DAY = 86400.0  # seconds


def seconds_of(times: Sequence[float]) -> float | None:
    """How long so many requests take to come: between n of them are n - 1 gaps. None: their times do not say."""
    span = max(times) - min(times) if times else 0.0
    return span * len(times) / (len(times) - 1) if span > 0 else None


def per_day(tokens: int, seconds: float | None) -> float | None:
    """Tokens that are lost in so many seconds."""
    return None if seconds is None else tokens / seconds * DAY
