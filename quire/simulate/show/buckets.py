"""Series of a ReplayResult in fewer, wider steps, so that a plot can be read. Counts add up, rates are means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quire.simulate.show.number_format import Json

Row = Sequence[float | None]


def joined(series: Json, most: int = 100) -> dict[str, Any]:
    """The same rows with at most `most` steps; steps without numbers stay None."""
    seconds = list(series.get("seconds") or ())
    stride = max(1, -(-len(seconds) // most))
    parts = [range(at, min(at + stride, len(seconds))) for at in range(0, len(seconds), stride)]
    weights = series.get("prompt_tokens") or [1.0] * len(seconds)

    def every(row: Row, join: Callable[[Row, range], float | None]) -> list[float | None]:
        return [join(row, part) for part in parts]

    def mean(row: Row, part: range) -> float | None:
        known = [(value, weights[at] or 0.0) for at in part if (value := row[at]) is not None]
        weight = sum(share for _, share in known)
        return sum(value * share for value, share in known) / weight if weight else None

    out: dict[str, Any] = {"seconds": [seconds[part[-1]] for part in parts]}
    for name, rows in series.items():
        if name.startswith("hit_rate_by"):
            out[name] = {key: every(row, mean) for key, row in rows.items()}
        elif name in ("use_by_tier", "held_by_tier"):
            out[name] = {key: every(row, _last) for key, row in rows.items()}
        elif name == "computed_by_cause":
            out[name] = {key: every(row, _sum) for key, row in rows.items()}
        elif name == "worst_overshoot_tokens":
            out[name] = every(rows, _worst)
        elif name != "seconds" and isinstance(rows, list):
            out[name] = every(rows, _sum)
    return out


def _known(row: Row, part: range) -> list[float]:
    return [value for at in part if (value := row[at]) is not None]


def _sum(row: Row, part: range) -> float | None:
    return sum(_known(row, part))


def _worst(row: Row, part: range) -> float | None:
    return max(_known(row, part), default=0)


def _last(row: Row, part: range) -> float | None:
    known = _known(row, part)
    return known[-1] if known else None
