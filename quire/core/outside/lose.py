"""Lose: which pages are lost when slots are reported as bad. What follows from it is setbacks' business."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from quire.core.records.errors import InputError, UnknownError, listed, say, shown, whole_numbers
from quire.core.state.registry import Registry


class LostPage(NamedTuple):
    """A page whose bytes never came, or are bad."""

    group: int
    page: int
    stamp: int


def bad_pages(registry: Registry, group: int, slots: Iterable[int], tier: int) -> list[LostPage]:
    """The pages in these slots, which are bad; a bad shadow goes at once, and its page is none of them.

    A slot that holds nothing is not an error: the page has gone already.
    """
    setup = registry.setup
    store, place = setup.pools[group]
    named = listed("slots of bad pages", slots)
    told = whole_numbers(named)
    if told is None:
        raise InputError(say(f"slots {shown(named)} of bad pages", "they are not whole numbers", "pass slot numbers"))
    numbers, capacity = sorted(set(told)), setup.config.slots_of(tier, group)
    wrong = [number for number in numbers if not 0 <= number < capacity]
    if wrong:
        fact = f"group {group} has {capacity} slots in tier {tier}"
        raise UnknownError(say(f"bad page in slot {shown(wrong[0])}", fact, "number them from 0"))
    lost: list[LostPage] = []
    for page in [page for number in numbers if (page := store.page_in(place, tier, number)) >= 0]:
        if not store.drop_copy(place, page, tier):  # a shadow alone: its page is good where it is read
            info = store.page_info(place, page)  # of another group, perhaps, of the same pool
            lost.append(LostPage(group - place + info.group, page, info.stamp))
    return lost
