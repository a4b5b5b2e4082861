"""Lose: pages that somebody found to be bad go at once, whatever is open. Knows slots; what follows is setbacks'."""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.life.setbacks import Finished, LostPage, give_up
from quire.core.records.errors import InputError, UnknownError, listed, say, shown, whole_numbers
from quire.core.state.registry import Registry


def lose_pages(registry: Registry, group: int, slots: Iterable[int], tier: int) -> Finished:
    """The pages in these slots are bad. A slot that holds nothing is no error: the page has gone already."""
    setup = registry.setup
    store, place = setup.pools[group]
    named = listed("slots of bad pages", slots)
    told = whole_numbers(named)
    if told is None:
        raise InputError(say(f"slots {shown(named)} of bad pages", "they are no whole numbers", "pass slot numbers"))
    numbers, capacity = sorted(set(told)), setup.config.slots_of(tier, group)
    wrong = [number for number in numbers if not 0 <= number < capacity]
    if wrong:
        fact = f"group {group} has {capacity} slots in tier {tier}"
        raise UnknownError(say(f"bad page in slot {shown(wrong[0])}", fact, "number them from 0"))
    now = setup.now()  # before the first change: a caller's clock may raise
    lost: list[LostPage] = []
    for page in [page for number in numbers if (page := store.page_in(place, tier, number)) >= 0]:
        if not store.drop_copy(place, page, tier):  # a shadow alone: its page is good where it is read
            info = store.page_info(place, page)  # of another group, perhaps, of the same pool
            lost.append(LostPage(group - place + info.group, page, info.stamp))
    if not lost:
        return Finished(())
    if registry.timed:
        setup.refresh(now)  # they are remembered, and when they went
    return Finished(give_up(registry, lost, now), registry.take_plan())
