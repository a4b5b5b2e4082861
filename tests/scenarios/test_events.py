"""What a listener is told. Rows `event`."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest

from quire import Cleared, Created, Event, InputError, LayerGroup, Moved, Removed, Request, Retained, Scope, Stored
from quire.core.store import StoreName

from ..waits import PATIENCE
from .conftest import admit, both_orders, build, compute, events, keep, release, run, start_of, tokens


def stored(event: Event) -> tuple[int | None, int, tuple[int, ...]]:
    """Parent, number of blocks, priorities."""
    assert isinstance(event, Stored)
    return event.parent, len(event.hashes), event.priorities


def kinds(found: Iterable[Event]) -> list[tuple[str, int]]:
    return [(type(event).__name__, event.group) for event in found]


def test_a_full_recorder_gives_up_its_backlog_and_says_so(store: StoreName) -> None:
    """event-01: room for 3 hashes: creation and two blocks are lost, the third block is told with its parent."""
    cache = build(store, 8, events=True, max_events=3)
    (sequence,) = admit(cache, Request("a", tokens(range(13))))
    for computed in (4, 8, 12):
        compute(cache, sequence, computed)
    batch = cache.take_events()
    (event,) = batch
    assert isinstance(event, Stored)
    assert batch.lost == 3
    assert event.parent is not None and event.tokens.tolist() == [8, 9, 10, 11]
    assert cache.take_events().lost == 0


def test_priorities_are_told_and_their_changes(store: StoreName) -> None:
    """event-02: nine tokens at 50, again without a value, again at 10: stored at 50, nothing, two changes 50 to 10."""
    cache = build(store, 16, events=True)
    prompt = tokens(range(9))
    run(cache, Request(0, prompt, retention=keep(50, 50, 50)), computed=8)
    created, chain = events(cache)
    assert isinstance(chain, Stored)
    assert created == Created(0, (16,)) and stored(chain) == (None, 2, (50, 50))
    run(cache, Request(1, prompt), computed=8)
    assert events(cache) == []
    run(cache, Request(2, prompt, retention=keep(10, 10, 10)), computed=8)
    assert events(cache) == [Retained(0, chain.hashes[0], 50, 10), Retained(0, chain.hashes[1], 50, 10)]


def test_a_taken_over_page_is_removed_and_stored_anew(store: StoreName) -> None:
    """event-03: eight tokens at 50: a repetition takes the second block over, and stores it again when computed."""
    cache = build(store, 16, events=True)
    prompt = tokens(range(8))
    run(cache, Request(0, prompt, retention=keep(50, 50)))
    _, chain = events(cache)
    assert isinstance(chain, Stored)
    first, second = chain.hashes
    run(cache, Request(1, prompt))
    removed, again = events(cache)
    assert removed == Removed(0, (second,)) and stored(again) == (first, 1, (35,))
    run(cache, Request(2, prompt, retention=keep(10, 10)))
    changed, removed, again = events(cache)
    assert isinstance(again, Stored)
    assert (changed, removed) == (Retained(0, first, 50, 10), Removed(0, (second,)))
    assert stored(again) == (first, 1, (10,)) and again.hashes == (second,)


def test_reading_never_waits(store: StoreName) -> None:
    """event-04: without events there is nothing to read; with events first the pools, then what was stored."""
    silent, cache = build(store, 8), build(store, 8, 4, events=True)
    for one in (silent, cache):
        run(one, Request("a", tokens(range(4))))
    assert events(silent) == []
    created, block = events(cache)
    assert created == Created(0, (8, 4)) and stored(block) == (None, 1, (35,))
    assert events(cache) == []


@both_orders
@pytest.mark.parametrize(("computed", "gone"), [(4, 2), (5, 4)])
def test_removals_go_out_together(store: StoreName, eviction: str, computed: int, gone: int) -> None:
    """event-05: two prompts of 5 tokens on four slots, then 15 others: one removal of all, before the store."""
    cache = build(store, 4, events=True, eviction=eviction)
    run(cache, Request(0, tokens(range(5))), computed=computed)
    run(cache, Request(1, tokens(range(10, 15))), computed=computed)
    known = {name for event in events(cache) if isinstance(event, Stored) for name in event.hashes}
    run(cache, Request(2, tokens(range(20, 35))))
    removed, *others = events(cache)
    assert isinstance(removed, Removed) and set(removed.hashes) == known and len(removed.hashes) == gone
    assert [stored(event)[1] for event in others] == [3, 1]


@pytest.mark.parametrize(("slots", "eviction"), [(8, "release_order"), (4, "lru")])
def test_a_removal_is_told_before_the_next_store(store: StoreName, slots: int, eviction: str) -> None:
    """event-06: a block of priority 0 makes room for another prompt: its removal comes first."""
    cache = build(store, slots, events=True, eviction=eviction)
    run(cache, Request(0, tokens(range(9)), retention=keep(0, 80, 80)), computed=8)
    _, chain = events(cache)
    assert isinstance(chain, Stored)
    run(cache, Request(1, tokens(range(20, 29))), computed=8)
    removed, other = events(cache)
    assert removed == Removed(0, (chain.hashes[0],)) and stored(other) == (None, 2, (35, 35))


def test_groups_do_not_wait_for_each_other(store: StoreName) -> None:
    """event-07: two layer groups: pools ascending; each group's removals wait for that group's own next store."""
    groups = (LayerGroup("a"), LayerGroup("b"))
    cache = build(store, 3, events=True, groups=groups)
    run(cache, Request(0, tokens(range(9))), computed=8)
    assert kinds(events(cache)) == [("Created", 0), ("Created", 1), ("Stored", 0), ("Stored", 1)]
    (sequence,) = admit(cache, Request(1, tokens(range(20, 29))))
    compute(cache, sequence, 8)
    assert kinds(events(cache)) == [("Removed", 0), ("Stored", 0), ("Removed", 1), ("Stored", 1)]
    release(cache, sequence)


def test_a_flush_tells_waiting_removals_by_group(store: StoreName) -> None:
    """event-08: removals without a store after them go out at the next reading, ascending, and only once."""
    cache = build(store, 2, events=True, groups=(LayerGroup("a"), LayerGroup("b")))
    run(cache, Request(0, tokens(range(8))))
    events(cache)
    admit(cache, Request(1, tokens(range(20, 28))))
    found = events(cache)
    assert kinds(found) == [("Removed", 0), ("Removed", 1)]
    assert [len(event.hashes) for event in found if isinstance(event, Removed)] == [2, 2]
    assert events(cache) == []


def test_an_orphan_is_told_when_it_goes(store: StoreName) -> None:
    """event-09: a block whose parent was evicted before it is removed with an event of its own."""
    cache = build(store, 2, events=True, eviction="lru")
    run(cache, Request(0, tokens(range(8)), retention=keep(0, 90)))
    _, chain = events(cache)
    assert isinstance(chain, Stored)
    admit(cache, Request(1, tokens(range(20, 24))))
    assert events(cache) == [Removed(0, (chain.hashes[0],))]
    admit(cache, Request(2, tokens(range(30, 34))))
    assert events(cache) == [Removed(0, (chain.hashes[1],))]


def test_moves_between_tiers_are_told_for_the_hottest_copy(store: StoreName) -> None:
    """event-10: down at eviction, up at reuse; a shadow comes and goes in silence."""
    cache = build(store, 1, 2, events=True)
    run(cache, Request(0, tokens(range(4))))
    _, block = events(cache)
    assert isinstance(block, Stored)
    name = block.hashes[0]
    run(cache, Request(1, tokens(range(10, 14))))
    moved, other = events(cache)
    assert moved == Moved(0, name, 0, 1) and isinstance(other, Stored)
    back = cache.claim([Request(2, tokens(range(4)))], purpose="decode")
    batch = cache.admit(back)
    assert (len(batch.plan), set(events(cache))) == (2, {Moved(0, other.hashes[0], 0, 1), Moved(0, name, 1, 0)})
    assert cache.usage(1).shadows == 1
    release(cache, *batch.sequences)
    admit(cache, Request(3, tokens(range(20, 24))))  # the shadow is the hottest copy again: nothing to copy
    assert events(cache) == [Moved(0, name, 0, 1)]


def test_clearing_is_one_event(store: StoreName) -> None:
    """event-11: whatever was stored, the listener starts afresh with one word per group; hashes differ by scope."""
    cache = build(store, 8, events=True)
    run(cache, Request(0, tokens(range(8))))
    run(cache, Request(1, tokens(range(8)), Scope(salt="s")))
    _, plain, salted = events(cache)
    assert isinstance(plain, Stored) and isinstance(salted, Stored)
    assert not set(plain.hashes) & set(salted.hashes)
    assert (plain.scope, salted.scope) == (Scope(), Scope(salt="s"))
    cache.clear()
    assert events(cache) == [Cleared(0)]
    assert start_of(cache, tokens(range(8))) == 0
    run(cache, Request(2, tokens(range(8))))
    (again,) = events(cache)
    assert isinstance(again, Stored)
    assert again.hashes == plain.hashes  # content names a block, not its history


def test_moves_do_not_flush_removals(store: StoreName) -> None:
    """event-12: one page dropped, then one moved: the move is told first; a store of the group lets the removal go."""
    cache = build(store, 2, 1, events=True)
    run(cache, Request(0, tokens(range(4)), retention=keep(0)))
    run(cache, Request(1, tokens(range(10, 14)), retention=keep(50)))
    _, gone, kept = events(cache)
    assert isinstance(gone, Stored) and isinstance(kept, Stored)
    (sequence,) = admit(cache, Request(2, tokens(range(20, 28))))
    compute(cache, sequence)
    moved, removed, other = events(cache)
    assert moved == Moved(0, kept.hashes[0], 0, 1) and removed == Removed(0, gone.hashes)
    assert stored(other) == (None, 2, (35, 35))
    release(cache, sequence)
    admit(cache, Request(3, tokens(range(30, 34))))
    assert kinds(events(cache)) == [("Removed", 0)]  # no store after it: the reading flushes


def test_the_whole_state_is_told_on_demand(store: StoreName) -> None:
    """event-13: cleared, created, then every page where it is, parents first; what waited is void, and said no more."""
    cache = build(store, 2, 4, events=True)
    run(cache, Request(0, tokens(range(8)), retention=keep(50, 60)))
    events(cache)
    run(cache, Request(1, tokens(range(10, 15))))
    batch = cache.take_events(whole=True)
    cleared, created, cold, hot, tail = batch
    assert isinstance(cold, Stored) and isinstance(hot, Stored) and isinstance(tail, Stored)
    assert batch.whole and (cleared, created) == (Cleared(0), Created(0, (2, 4)))
    assert (cold.tier, stored(cold), cold.tokens.tolist()) == (1, (None, 2, (50, 60)), list(range(8)))
    assert (hot.tier, stored(hot)) == (0, (None, 1, (35,)))
    assert (tail.tier, stored(tail), tail.tokens_per_block) == (0, (hot.hashes[0], 1, (35,)), 1)
    assert events(cache) == [] and not cache.take_events().whole


def test_after_a_loss_the_whole_state_makes_up_for_it(store: StoreName) -> None:
    """event-14: room for 3 hashes, 4 blocks stored one by one: the whole state has all 4, and the loss."""
    cache = build(store, 8, events=True, max_events=3)
    (sequence,) = admit(cache, Request("a", tokens(range(17))))
    for computed in (4, 8, 12, 16):
        compute(cache, sequence, computed)
    batch = cache.take_events(whole=True)
    *_, chain = batch
    assert batch.lost == 3 and stored(chain) == (None, 4, (35,) * 4)
    assert cache.take_events(whole=True).lost == 0


def test_reading_may_wait(store: StoreName) -> None:
    """event-15: up to a time, or until something comes; with events off, or for the whole state, it never does."""
    cache, silent = build(store, 8, events=True), build(store, 8)
    events(cache)
    assert not len(cache.take_events(timeout=0.01))
    found: list[Event] = []
    reader = threading.Thread(target=lambda: found.extend(cache.take_events(timeout=None)))
    reader.start()
    run(cache, Request(0, tokens(range(4))))
    reader.join(PATIENCE)
    assert [stored(event) for event in found] == [(None, 1, (35,))]
    assert not len(silent.take_events(timeout=None)) and len(cache.take_events(timeout=None, whole=True)) == 3
    wrongs: list[Any] = [-1, float("nan"), "1", True]
    for wrong in wrongs:
        with pytest.raises(InputError, match="not a time to wait"):
            cache.take_events(timeout=wrong)


def test_every_batch_carries_the_rank(store: StoreName) -> None:
    """event-16: of a cache of rank 5, also an empty one; a rank below 0 is refused."""
    cache = build(store, 8, events=True, rank=5)
    assert [cache.take_events().rank, cache.take_events().rank] == [5, 5]
    for wrong in (-1, 1.0, "0", True):
        with pytest.raises(InputError, match="rank"):
            build(store, 8, rank=wrong)
