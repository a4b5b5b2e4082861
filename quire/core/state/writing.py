"""Writing: what one writer holds, as the cache keeps it: its text so far, and pages that wait for their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from quire.core.records.request import Int32
from quire.core.state.prepared import ReadyRequest

if TYPE_CHECKING:
    from quire.core.store.interface import Chain

NONE: Int32 = np.empty(0, np.int32)


@dataclass(slots=True, eq=False)
class Writing:
    """Pages of one tier that a writer fills; by group, ascending by block."""

    prepared: ReadyRequest
    chain: Chain  # its own: the request's tokens, and those that came since
    tier: int
    blocks: list[Int32]  # whose pages are not written yet
    pages: list[Int32]
    taken: int = 0  # blocks up to which slots were asked for,
    also: dict[int, set[int]] = field(
        default_factory=dict
    )  # and those behind that were asked for before their turn, by group
    fresh: Sequence[tuple[Int32, Int32, Int32]] = ()  # blocks, pages and slots that were had when last asked for
    is_cut: bool = False  # its text was forgotten since: nothing of it becomes findable
    bad: set[tuple[int, int]] = field(default_factory=set)  # group and block of those that were lost


def release(writing: Writing, now: int) -> None:
    """Give back what was not written."""
    setup = writing.prepared.setup
    for group in setup.own_groups:
        setup.store.unhold(group, writing.pages[group], now)
        writing.blocks[group] = writing.pages[group] = NONE
