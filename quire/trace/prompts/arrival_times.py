"""ArrivalTimes: when a logged request came, in milliseconds. The first line decides which field has it, and how.

Numbers are seconds, milliseconds, microseconds or nanoseconds since the epoch, told apart by their size; texts are
ISO 8601, without a zone in UTC.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from quire.core.records.errors import InputError, say
from quire.trace.prompts.fields import Fields, at
from quire.trace.read.lines import LATEST, Wrong
from quire.trace.units import shown

NAMES = (
    "timestamp", "@timestamp", "arrival_time", "arrival", "arrived_at", "received_at", "request_time",
    "request_timestamp", "start_time", "startTime", "started_at", "time", "ts", "created_at", "createdAt", "created",
    "datetime", "date", "TIMESTAMP", "Timestamp",
)  # fmt: skip
PLACES = ("", "request", "body", "metadata", "response", "response.body")
UNITS = {"s": 1000.0, "ms": 1.0, "us": 1e-3, "ns": 1e-6}  # in milliseconds
SINCE_EPOCH = {"s": (1e8, 1e11), "ms": (1e11, 1e14), "us": (1e14, 1e17), "ns": (1e17, 1e20)}  # 1973 to 5138


def check_rate(rate: float | None) -> None:
    """Requests per second that stand for missing times."""
    if rate is not None and not 0 < rate < math.inf:
        raise InputError(say(f"--rate {rate}", "it is not a rate", "give requests per second, above 0"))


class ArrivalTimes:
    """Reads one time per line."""

    def __init__(
        self, field: str | None = None, unit: str | None = None, rate: float | None = None, *, needed: bool = True
    ) -> None:
        self._field, self._unit, self._rate, self._needed = field, unit, rate, needed
        self.are_known = True  # else the log has none, no rate was given, and lines are a second apart
        self._given = unit is not None
        self._count = 0

    def read(self, fields: Fields) -> float:
        """Milliseconds."""
        if self._field is None and self._rate is None and not self._needed and _found(fields) is None:
            self._rate, self.are_known = 1.0, False
        if self._rate is not None:
            time = self._count * 1000 / self._rate
            if time > LATEST:
                raise Wrong(
                    f"at {self._rate:g} requests per second it comes after {LATEST:g} ms", "give a higher --rate"
                )
            self._count += 1
            return time
        if self._field is None:
            self._field = _found(fields)
        if self._field is None:
            raise Wrong(
                "it has no time that is known by name", "name its field: --time-field; or give arrivals: --rate"
            )
        value = at(fields, self._field)
        if value is None:
            raise Wrong(f"it has no time: the field {self._field!r} is not there", "add it, or pass --skip-bad")
        return self._milliseconds(value)

    def told(self) -> str:
        """Where times came from, in words."""
        if self._rate is not None:
            return f"{self._rate:g} requests per second, evenly: the log's own times were not read"
        how = "ISO 8601" if self._unit is None else f"{self._unit} {'as told' if self._given else 'since the epoch'}"
        return f"field {self._field!r} ({how})"

    def _milliseconds(self, value: Any) -> float:
        number = _number(value)
        time = _iso(value) if number is None and isinstance(value, str) else self._scaled(number)
        if time is None or not math.isfinite(time) or not 0 <= time <= LATEST:
            fact = f"its time, {self._field!r}, is {shown(value, 40)}"
            raise Wrong(fact, "give seconds or milliseconds since the epoch, or ISO 8601")
        return time

    def _scaled(self, number: float | None) -> float | None:
        if number is None:
            return None
        if self._unit is None:
            fits = [unit for unit, (least, most) in SINCE_EPOCH.items() if least <= number < most]
            if not fits:
                fact = f"its time, {self._field!r}, is {number:g}, which is not a time since the epoch"
                raise Wrong(fact, "say what it counts: --time-unit s, ms, us or ns")
            self._unit = fits[0]
        return number * UNITS[self._unit]


def _found(fields: Fields) -> str | None:
    """The field with the time."""
    for place in PLACES:
        inner = at(fields, place)
        for name in NAMES if isinstance(inner, dict) else ():
            value = inner.get(name)
            if _number(value) is not None or (isinstance(value, str) and _iso(value) is not None):
                return f"{place}.{name}" if place else name
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _iso(text: str) -> float | None:
    try:
        time = datetime.fromisoformat(text.strip().replace(",", "."))
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000
    except (ValueError, OverflowError):
        return None


def column(names: Sequence[str], wanted: Sequence[str]) -> int | None:
    """Which column of a table has one of these names, whatever its case and spacing."""
    plain = [_plain(name) for name in names]
    return next((plain.index(_plain(name)) for name in wanted if _plain(name) in plain), None)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
