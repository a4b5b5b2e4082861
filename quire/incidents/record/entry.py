"""Entry: one call that changed a cache, as the serving thread leaves it. Knows neither names nor files.

The thread that encodes it later must find what the call was given, so whatever the caller may change is copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from quire.core.outside.writer import Skip
from quire.core.records.plan import Plan
from quire.core.records.request import Request
from quire.core.sequences.setbacks import Setback
from quire.core.state.claim import Refusal
from quire.core.state.sequence import Sequence

Moved = tuple[int, Any] | None  # a plan's number and its moves, which do not change; None: there is no plan


class Entry(NamedTuple):
    """A call, when it was made, what its clock said, what it was given and what it answered."""

    verb: str
    time: float
    clock: tuple[float, ...]
    given: tuple[Any, ...]
    answer: Any


class AskedRequest(NamedTuple):
    """A request as a call names it."""

    number: int  # of the Request object, counted from 0: the same object again is the same request
    prepared: bool
    junction: int  # a state is to be kept there too; 0: at none
    fresh: Request | None  # the first time; its tokens are not to be changed


def moved(plan: Plan | None) -> Moved:
    """A plan without the handle, whose loss the cache must notice."""
    return None if plan is None else (plan.number, plan.moves)


def lack_of(refusal: Refusal) -> tuple[str, int, int, bool, int]:
    """Why a request was refused."""
    group = -1 if refusal.group is None else refusal.group
    return refusal.reason, refusal.need, refusal.have, refusal.never, group


def relisted(some: Any) -> Any:
    """What can be looked at twice, as it is; what can only be used up, as a list. What is neither the call refuses."""
    if isinstance(some, list | tuple | np.ndarray | range | str) or not hasattr(some, "__iter__"):
        return some
    return list(some)


def ints(some: Iterable[int]) -> list[int]:
    return [int(one) for one in some]


def kept_skip(skip: Any) -> Any:
    """Blocks by group, to be looked at twice."""
    if not hasattr(skip, "items") or not skip:
        return skip
    return {group: relisted(blocks) for group, blocks in skip.items()}


def plain_skip(skip: Skip) -> list[tuple[int, list[int]]]:
    """The same in numbers."""
    return [(group, ints(blocks)) for group, blocks in skip.items()]


def copied(value: Any) -> Any:
    """An array as it is now."""
    return value.copy() if isinstance(value, np.ndarray) else value


def named_rows(some: Any) -> Any:
    """Rows by the way they were named: an array, a list of them, or one number."""
    if type(some) is np.ndarray:
        return some.copy()
    if isinstance(some, Sequence):
        return some.row
    return [sequence.row for sequence in some]


def nothing(_: object) -> None:
    """A call that answers nothing."""


def set_back(setbacks: tuple[Setback, ...]) -> Any:
    """Whose start has dropped."""
    return [(type(one.holder).__name__, one.old_start, one.start, one.lost) for one in setbacks]
