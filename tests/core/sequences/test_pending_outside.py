"""Pending pages and what is outside the step: nothing is copied, told or left out for a page that is not computed."""

from __future__ import annotations

from quire import Cache, CacheConfig, Request, Sequence, TierConfig, Writer, check
from quire.core.store import StoreName
from tests.core.conftest import seq, small
from tests.core.sequences.test_in_flight import found, start
from tests.core.sequences.test_pending import flying, sharer


def lasting(store: StoreName) -> Cache:
    """A disk behind the host, which keeps whole blocks that are idle or held."""
    tiers = (TierConfig("device", 32), TierConfig("host", 16), TierConfig("disk", 32, slow=True))
    config = CacheConfig(tiers, 4, max_sequences=8, max_length=64, lasting=True, share_pending=True)
    return Cache(config, store=store)


def both(cache: Cache) -> tuple[Sequence, Sequence]:
    """One that a step in flight computes, and one that shares of it."""
    one, _ = flying(cache)
    two = sharer(cache)
    assert two.start == 8 and two.counts().reused_pending == 2
    return one, two


def end(cache: Cache, *sequences: Sequence) -> None:
    for step in [*cache.open_steps(), cache.launch()]:
        cache.commit(step)
    cache.release(sequences)
    check(cache)


def test_nothing_pending_is_offloaded(store: StoreName) -> None:
    cache = small(store, 32, 16, share_pending=True)
    pair = both(cache)
    assert not cache.offload(99) and cache.usage(1).empty == 16
    check(cache)
    end(cache, *pair)
    plan = cache.offload(99)
    assert len(plan) == 3, "two that they share, and their end"
    cache.finish(plan)
    check(cache)


def test_nothing_pending_is_copied_to_disk_or_told_to_last(store: StoreName) -> None:
    cache = lasting(store)
    pair = both(cache)
    for _ in range(2):
        assert not cache.copy_down(99)
        changes = cache.lasting_changes()
        assert not len(changes.pages.slot) and not len(changes.freed_slot)
        check(cache)
    end(cache, *pair)
    cache.finish(cache.copy_down(99))
    assert len(cache.lasting_changes().pages.slot) == 2
    check(cache)


def test_a_writer_is_not_spared_what_is_pending(store: StoreName) -> None:
    """It brings the same blocks while a step computes them: each is there once in the end, and its slots are free."""
    cache = small(store, 32, 16, share_pending=True)
    pair = both(cache)
    writer = cache.writer(Request("w", seq(0, 11)), tier=1)
    assert isinstance(writer, Writer) and writer.blocks().tolist() == [0, 1]
    check(cache)
    assert writer.written(8) == 2 and found(cache, seq(0, 11)) == 8
    writer.close()
    check(cache)
    end(cache, *pair)
    assert found(cache, seq(0, 11)) == 11 and cache.num_free() == 32


def test_a_writer_that_comes_second_finds_its_place_taken(store: StoreName) -> None:
    cache = small(store, 32, 16, share_pending=True)
    pair = both(cache)
    writer = cache.writer(Request("w", seq(0, 11)), tier=1)
    assert isinstance(writer, Writer)
    end(cache, *pair)
    assert writer.written(8) == 0
    writer.close()
    check(cache)
    assert cache.usage(1).empty == 16


def test_pages_that_are_pending_are_not_held_for_others(store: StoreName) -> None:
    """A prefetch, as a find, counts on what is there: nothing is to come up, and nothing is held."""
    cache = lasting(store)
    pair = both(cache)
    with cache.find(Request("f", seq(0, 11))) as hit:
        assert hit.end == 0
    assert cache.probe([Request("p", seq(0, 11))], purpose="decode")[0].start == 0
    (third,) = start(cache, Request("n", seq(0, 11), reuse=False))
    assert third.start == 0
    end(cache, *pair, third)
