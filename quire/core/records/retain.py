"""Retention: which pages of a request should outlive it, how much and how long. Words and numbers; knows no pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quire.core.records.caller_arguments import keep_tuples
from quire.core.records.config import DEFAULT_PRIORITY, HIGHEST, LOWEST
from quire.core.records.errors import InputError, say, shown

TICKS_PER_SECOND = 1_000_000  # the store keeps time in whole microseconds
NONE = -1
LONGEST = 1e9  # seconds


@dataclass(frozen=True, slots=True)
class RetainRange:
    """Tokens `[start, end)` (None: to the last) keep `priority`, for `seconds` after release (None: without end)."""

    start: int
    end: int | None
    priority: int
    seconds: float | None = None

    def __post_init__(self) -> None:
        ends = (self.start,) if self.end is None else (self.start, self.end)
        if any(type(end) is not int for end in ends) or self.start < 0 or ends[-1] < self.start:
            ask = f"retain range [{shown(self.start)}, {shown(self.end)})"
            raise InputError(say(ask, "bounds are ints with 0 <= start <= end", "correct them"))
        _check(self.priority, self.seconds)


@dataclass(frozen=True, slots=True)
class Retention:
    """Ranges in order, without overlap, and the value of pages made while decoding."""

    ranges: Sequence[RetainRange] = ()  # kept as a tuple
    decode_priority: int = DEFAULT_PRIORITY
    decode_seconds: float | None = None
    by: Literal["first", "max"] = "first"  # a block takes the range of its first token, or the highest range it touches

    def __post_init__(self) -> None:
        keep_tuples(self, "ranges")
        _check(self.decode_priority, self.decode_seconds)
        if not isinstance(self.ranges, tuple) or not all(isinstance(item, RetainRange) for item in self.ranges):
            raise InputError(say("retention ranges", f"they are {shown(self.ranges)}", "pass a list of RetainRange"))
        if self.by not in ("first", "max"):
            raise InputError(say(f"retention by {shown(self.by)}", "it is not a known rule", "use 'first' or 'max'"))
        for before, after in zip(self.ranges, self.ranges[1:], strict=False):
            if before.end is None or after.start < before.end:
                ask = f"retain range from {after.start}"
                raise InputError(
                    say(ask, f"the one before it ends at {before.end}", "order the ranges without overlap")
                )


def is_timed(retention: Retention) -> bool:
    """Some page is kept for a time only."""
    return retention.decode_seconds is not None or any(item.seconds is not None for item in retention.ranges)


def bound_to(retention: Retention, length: int) -> Retention:
    """The same for a prompt that has grown: open ranges end where the prompt of `length` tokens did."""
    ranges = (replace(item, end=max(length, item.start)) if item.end is None else item for item in retention.ranges)
    return replace(retention, ranges=tuple(ranges))


def retained_blocks(
    retention: Retention, num_blocks: int, length: int, block_size: int
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Priority and duration in ticks of each block; NONE where the request says nothing."""
    starts = np.arange(num_blocks, dtype=np.int64) * block_size
    ends = np.minimum(starts + (block_size if retention.by == "max" else 1), max(length, 1))
    priorities = np.full(num_blocks, NONE, np.int16)
    ticks = np.full(num_blocks, NONE, np.int64)
    for item in retention.ranges:
        end = length if item.end is None else item.end
        touched = (starts < end) & (ends > item.start) & (item.priority > priorities) & (item.start < end)
        priorities[touched] = item.priority
        ticks[touched] = to_ticks(item.seconds)
    decoded = starts >= length
    priorities[decoded], ticks[decoded] = retention.decode_priority, to_ticks(retention.decode_seconds)
    return priorities, ticks


def to_ticks(seconds: float | None) -> int:
    """Whole microseconds; NONE for no limit."""
    return NONE if seconds is None else round(seconds * TICKS_PER_SECOND)


def _check(priority: int, seconds: float | None) -> None:
    if type(priority) is not int or not LOWEST <= priority <= HIGHEST:
        raise InputError(
            say(f"priority {shown(priority)}", f"priorities are ints from {LOWEST} to {HIGHEST}", "clamp it")
        )
    if seconds is not None and not (isinstance(seconds, int | float) and 0 <= seconds <= LONGEST):
        raise InputError(
            say(f"{shown(seconds)} seconds", f"a duration is 0 to {LONGEST:.0e} seconds", "pass None for no limit")
        )
