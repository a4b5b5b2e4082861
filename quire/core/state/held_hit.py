"""HeldHit: what one find holds, as the cache keeps it. Knows no handles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quire.core.records.request import Int32
from quire.core.state.prepared import ReadyRequest
from quire.core.state.setup import Setup

if TYPE_CHECKING:
    from quire.core.store.interface import Hit


@dataclass(slots=True, eq=False)
class HeldHit:
    """The hit of a request, claimed, and the blocks before it that the caller has."""

    prepared: ReadyRequest
    hit: Hit
    cross_hit: Hit | None  # in the encoder's stream
    first: int  # blocks before it the caller has
    blocks: int  # up to here what it holds is good
    places: list[tuple[Int32, Int32]] = field(default_factory=list)  # by group: tier and slot of each held page
    is_used: bool = False
    bad: set[tuple[int, int]] = field(default_factory=set)  # group and block of pages that were lost since


def hits_of(kept: HeldHit, group: int) -> Hit | None:
    """What it found in the stream that a group reads."""
    return kept.hit if group < kept.prepared.setup.own_groups.stop else kept.cross_hit


def give_up(kept: HeldHit) -> None:
    """Give its pages back."""
    setup: Setup = kept.prepared.setup
    setup.store.unclaim(kept.hit)
    if kept.cross_hit is not None and setup.cross is not None:
        setup.cross.store.unclaim(kept.cross_hit)


def freeze(setup: Setup, hit: Hit, cross_hit: Hit | None) -> None:
    """What is claimed stays claimed when it leaves the tree."""
    setup.store.freeze(hit)
    if cross_hit is not None and setup.cross is not None:
        setup.cross.store.freeze(cross_hit)
