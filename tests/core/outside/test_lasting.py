"""What outlives the process: changes of the slow tier as they are told, and a new cache that takes them back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quire import (
    Cache,
    CacheConfig,
    Encoder,
    InputError,
    LayerGroup,
    Prefetch,
    Request,
    Scope,
    StateError,
    TierConfig,
    check,
)
from quire.core.records.events import EventBatch, Moved, Removed, Stored
from quire.core.records.identity import RestoredScope
from quire.core.records.lasting import BlockNodes, LastingChanges, LastingPages
from quire.core.records.reports.index_size import index_size
from quire.core.store import StoreName

from ..conftest import serve, text

SIZE = 4
SLOW = 2
TENANT = Scope(lora="a", salt="secret")


def cache_of(store: StoreName, *groups: LayerGroup, **options: Any) -> Cache:
    tiers = (TierConfig("device", 20), TierConfig("host", 20), TierConfig("disk", 40, slow=True))
    config = CacheConfig(
        tiers, SIZE, groups or (LayerGroup(),), max_length=64, lasting=True, prefetch_share=1.0, **options
    )
    return Cache(config, store=store)


def told(cache: Cache) -> LastingChanges:
    cache.finish(cache.copy_down(99))
    check(cache)
    return cache.lasting_changes()


def filled(store: StoreName) -> tuple[Cache, LastingChanges]:
    cache = cache_of(store)
    serve(cache, Request("a", text(1), TENANT))
    serve(cache, Request("b", np.concatenate([text(1)[:8], text(2)]), TENANT))
    serve(cache, Request("c", text(1), extra_ids=np.arange(1, 18)))
    return cache, told(cache)


def test_changes_tell_pages_with_the_blocks_they_need_once(store: StoreName) -> None:
    cache, changes = filled(store)
    nodes, pages = changes.nodes, changes.pages
    assert len(nodes.number) == len(set(nodes.number.tolist())) == 12 and nodes.number.min() >= 1
    assert set(pages.node.tolist()) == set(nodes.number.tolist()) and len(set(pages.slot.tolist())) == 12
    assert set(nodes.roots) == {TENANT.digest, Scope().digest} and len(TENANT.digest) == 64
    known = {-1 - root for root in range(2)}
    for number, parent in zip(nodes.number.tolist(), nodes.parent.tolist(), strict=True):
        assert parent in known  # parents come first
        known.add(number)
    assert len(nodes.words) == 16 and not len(changes.freed_slot)
    again = cache.lasting_changes()
    assert not len(again.nodes.number) and not len(again.pages.slot) and not len(again.freed_slot)


def test_what_leaves_the_slow_tier_is_told(store: StoreName) -> None:
    cache, changes = filled(store)
    gone = changes.pages.slot[:1].tolist()
    cache.lose(0, gone, tier=SLOW)
    assert cache.lasting_changes().freed_slot.tolist() == gone
    cache.truncate(Request("x", text(1), TENANT), 12)
    assert len(cache.lasting_changes().freed_slot) in (0, 1)
    cache.forget(Scope(salt="secret"))
    cache.clear()
    left = cache.lasting_changes()
    assert len(left.pages.slot) == 0 and cache.usage(SLOW).empty == 40
    serve(cache, Request("a", text(1), TENANT))
    new = told(cache)
    assert new.nodes.number.min() > changes.nodes.number.max()  # a number is never given again


def test_a_slot_that_is_written_again_is_told_as_freed_and_new(store: StoreName) -> None:
    cache, changes = filled(store)
    cache.clear()
    serve(cache, Request("a", text(3)))
    new = told(cache)
    assert set(new.pages.slot.tolist()) <= set(range(40))
    assert set(new.freed_slot.tolist()) == set(changes.pages.slot.tolist())


def test_restore_then_prefetch_then_claim_finds_what_was_there(store: StoreName) -> None:
    _, changes = filled(store)
    cache = cache_of(store)
    assert cache.restore(changes.nodes, changes.pages) == 12
    check(cache)
    assert cache.usage(SLOW).idle == 12 and not len(cache.lasting_changes().pages.slot)
    asks = [
        (Request("a", text(1), TENANT), 16),
        (Request("b", np.concatenate([text(1)[:8], text(2)]), TENANT), 24),
        (Request("c", text(1), extra_ids=np.arange(1, 18)), 16),
        (Request("d", text(1), Scope(lora="a")), 0),
        (Request("e", text(1)), 0),
    ]
    for ask, hit in asks:
        found = cache.prefetch(ask)
        assert isinstance(found, Prefetch) and found.end == hit
        cache.finish(found.plan)
        assert serve(cache, ask) == hit
        check(cache)
    new = told(cache)
    assert new.nodes.number.min() > changes.nodes.number.max()
    assert set(new.nodes.roots) <= {TENANT.digest, Scope().digest, Scope(lora="a").digest}


@pytest.mark.parametrize(("scope", "pages"), [(Scope(salt="secret"), 8), (Scope(lora="a"), 8), (Scope(epoch=1), 0)])
def test_forget_covers_scopes_that_are_known_by_digest_only(store: StoreName, scope: Scope, pages: int) -> None:
    _, changes = filled(store)
    cache = cache_of(store)
    cache.restore(changes.nodes, changes.pages)
    assert cache.forget(scope) == pages
    check(cache)
    assert len(cache.lasting_changes().freed_slot) == pages
    assert cache.clear() == 12 - pages
    check(cache)


def test_a_restored_scope_that_is_gone_begins_anew(store: StoreName) -> None:
    _, changes = filled(store)
    cache = cache_of(store)
    cache.restore(changes.nodes, changes.pages)
    assert cache.forget(Scope(salt="secret")) == 8
    assert serve(cache, Request("other", text(7), Scope(salt="somebody"))) == 0  # may get the number of the old root
    assert serve(cache, Request("a", text(1), TENANT)) == 0 and serve(cache, Request("a2", text(1), TENANT)) == 16
    assert serve(cache, Request("x", text(7), TENANT)) == 0
    check(cache)


def by_hash(events: EventBatch) -> dict[tuple[int, int], int]:
    """(group, hash) -> tier, of all whole blocks that are told as stored or moved and not as removed."""
    there: dict[tuple[int, int], int] = {}
    for event in events:
        if isinstance(event, Stored) and event.tokens_per_block == SIZE:
            there |= dict.fromkeys(((event.group, name) for name in event.hashes), event.tier)
        elif isinstance(event, Moved):
            there[event.group, event.hash] = event.target
        elif isinstance(event, Removed):
            for name in event.hashes:
                there.pop((event.group, name), None)
    return there


def test_what_was_restored_is_told_as_stored_in_the_slow_tier(store: StoreName) -> None:
    seed = bytes(range(16))
    first = cache_of(store, events=True, event_seed=seed)
    serve(first, Request("a", text(1), TENANT))
    serve(first, Request("c", text(1), extra_ids=np.arange(1, 18)))
    before, changes = by_hash(first.take_events()), told(first)
    cache = cache_of(store, events=True, event_seed=seed)
    assert cache.restore(changes.nodes, changes.pages) == 8
    events = cache.take_events()
    assert by_hash(events) == dict.fromkeys(before, SLOW), "the hashes that the first process told"
    assert not events.lost and by_hash(cache.take_events(whole=True)) == dict.fromkeys(before, SLOW)
    scopes = [event.scope for event in events if isinstance(event, Stored)]
    assert scopes.count(Scope()) == 1 and scopes.count(RestoredScope(TENANT.digest)) == 1
    assert "secret" not in repr(list(events)) and not len(cache.take_events())
    check(cache)


def test_a_restored_scope_is_named_in_events_once_somebody_has_named_it(store: StoreName) -> None:
    _, changes = filled(store)
    cache = cache_of(store, events=True)
    cache.restore(changes.nodes, changes.pages)
    there = by_hash(cache.take_events())
    request = Request("a", text(1), TENANT)
    found = cache.prefetch(request)
    assert isinstance(found, Prefetch)
    cache.finish(found.plan)
    assert serve(cache, request) == 16
    later = list(cache.take_events())
    assert [event.target for event in later if isinstance(event, Moved)] == [1] * 4 + [0] * 4
    assert {event.scope for event in later if isinstance(event, Stored)} <= {TENANT}
    whole = cache.take_events(whole=True)
    assert TENANT in {event.scope for event in whole if isinstance(event, Stored)}
    assert set(there) <= set(by_hash(whole)), "a page keeps its hash"
    check(cache)


def test_a_restored_scope_that_nobody_named_is_told_as_removed(store: StoreName) -> None:
    _, changes = filled(store)
    cache = cache_of(store, events=True)
    cache.restore(changes.nodes, changes.pages)
    assert cache.forget(Scope(salt="secret")) == 8
    serve(cache, Request("new", text(5), Scope(salt="somebody")))  # old roots are swept, and their names are kept
    events = cache.take_events()
    assert sum(len(event.hashes) for event in events if isinstance(event, Removed)) == 8
    assert RestoredScope(TENANT.digest) in {event.scope for event in events if isinstance(event, Stored)}
    assert by_hash(cache.take_events(whole=True)) == by_hash(events)
    check(cache)


def test_more_than_the_recorder_holds_is_told_as_lost(store: StoreName) -> None:
    _, changes = filled(store)
    cache = cache_of(store, events=True, max_events=15)  # three of them are the pools' slots
    cache.restore(changes.nodes, changes.pages)
    events = cache.take_events()
    assert events.lost == 15 and not len(events)
    assert len(by_hash(cache.take_events(whole=True))) == 12
    enough = cache_of(store, events=True, max_events=16)
    enough.restore(changes.nodes, changes.pages)
    assert len(by_hash(enough.take_events())) == 12


def test_a_scope_is_typed_in_its_digest() -> None:
    digests = {Scope(lora=value).digest for value in (None, 0, "0", b"0")}
    assert len(digests | {Scope(salt=0).digest}) == 5
    assert Scope(lora="a").covers_digest(TENANT.digest) and not Scope(lora="b").covers_digest(TENANT.digest)


def test_several_streams_come_back_apart(store: StoreName) -> None:
    groups = (LayerGroup("full"), LayerGroup("cross", cross=True))
    cache = cache_of(store, *groups)
    request = Request("a", text(1), encoder=Encoder(8, np.arange(8, dtype=np.int32)))
    serve(cache, request)
    changes = told(cache)
    assert sorted(changes.pages.group.tolist()) == [0, 0, 0, 0, 1, 1]
    new = cache_of(store, *groups)
    assert new.restore(changes.nodes, changes.pages) == 6
    check(new)
    found = new.prefetch(request)
    assert isinstance(found, Prefetch) and len(found.plan) == 6
    new.finish(found.plan)
    with new.claim([request]) as claims:
        assert claims[0].start == 16 and claims[0].encoder_start == 8


def _changed(of: Any, **arrays: Any) -> Any:
    return replace(of, **arrays)


BAD = {
    "unknown parent": lambda n, p: (_changed(n, parent=np.where(n.parent > 0, 99, n.parent)), p),
    "behind its child": lambda n, p: (_changed(n, number=n.number[::-1].copy(), parent=n.parent[::-1].copy()), p),
    "its own parent": lambda n, p: (_changed(n, parent=np.where(n.parent > 0, n.number, n.parent)), p),
    "no such root": lambda n, p: (_changed(n, roots=n.roots[:1]), p),
    "a number twice": lambda n, p: (_changed(n, number=np.ones_like(n.number)), p),
    "a block twice": lambda n, p: (_changed(n, tokens=np.zeros_like(n.tokens), parent=np.full_like(n.parent, -1)), p),
    "tokens are missing": lambda n, p: (_changed(n, tokens=n.tokens[:-1]), p),
    "a short block": lambda n, p: (_changed(n, start=np.minimum(n.start, len(n.tokens) - 1)), p),
    "words of no token": lambda n, p: (_changed(n, word_at=n.word_at + 999), p),
    "a root without digest": lambda n, p: (_changed(n, roots=(b"short", *n.roots[1:])), p),
    "slot twice": lambda n, p: (n, _changed(p, slot=np.zeros_like(p.slot))),
    "slot out of range": lambda n, p: (n, _changed(p, slot=p.slot + np.int32(39))),
    "slot below 0": lambda n, p: (n, _changed(p, slot=p.slot - np.int32(1))),
    "no such group": lambda n, p: (n, _changed(p, group=p.group + np.int32(1))),
    "no such block": lambda n, p: (n, _changed(p, node=p.node + 99)),
    "two pages of a block": lambda n, p: (n, _changed(p, node=np.full_like(p.node, p.node[0]))),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_arrays_are_refused_and_change_nothing(store: StoreName, what: str) -> None:
    _, changes = filled(store)
    cache = cache_of(store)
    before = cache._setup.store.dump()
    with pytest.raises(InputError):
        cache.restore(*BAD[what](changes.nodes, changes.pages))
    assert cache._setup.store.dump() == before
    assert cache.restore(changes.nodes, changes.pages) == 12
    check(cache)


def test_a_cache_that_was_used_takes_nothing_back(store: StoreName) -> None:
    cache, changes = filled(store)
    with pytest.raises(StateError, match="used"):
        cache.restore(changes.nodes, changes.pages)
    with pytest.raises(InputError, match="BlockNodes"):
        cache_of(store).restore(changes, changes.pages)  # type: ignore[arg-type]
    empty = BlockNodes(
        np.empty(0, np.int64), np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0, np.int32),
        np.empty((0, 3), np.uint64), np.empty(0, np.int64), (),
    )  # fmt: skip
    none = LastingPages(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int64))
    assert cache_of(store).restore(empty, none) == 0


def chains_of(count: int, size: int) -> tuple[BlockNodes, LastingPages]:
    """So many blocks, 50 in a chain, each with a page."""
    number = np.arange(1, count + 1)
    parent = np.where(number % 50 == 1, -1, number - 1)
    nodes = BlockNodes(
        number, parent, np.arange(count + 1) * size, np.arange(count * size, dtype=np.int32),
        np.empty((0, 3), np.uint64), np.empty(0, np.int64), (Scope().digest,),
    )  # fmt: skip
    return nodes, LastingPages(np.zeros(count, np.int32), np.arange(count, dtype=np.int32), number)


@pytest.mark.parametrize("size", [16, 48])
@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize("eviction", ["lru", "adaptive"])
def test_usage_says_what_knowing_the_pages_takes(eviction: Any, events: bool, size: int) -> None:
    """As the compiled store counts it, but for room to grow: an eighth of the blocks' part."""
    pages = 1 << 13

    def opened(slots: int) -> Cache:
        tiers = (TierConfig("device", 8), TierConfig("host", 8), TierConfig("disk", slots, slow=True))
        more: dict[str, Any] = {"eviction": eviction, "events": events, "lasting": True, "max_sequences": 1}
        return Cache(CacheConfig(tiers, size, max_length=64, **more), store="compiled")

    cache, small = opened(pages), opened(1)
    empty = cache.usage(SLOW).index_bytes
    cache.restore(*chains_of(pages, size))
    told = cache.usage(SLOW).index_bytes
    taken = sum(cache._setup.store.nbytes()) - sum(small._setup.store.nbytes())
    assert 0.88 * taken < told < taken
    known = index_size(cache.config)
    assert empty == known.slot * pages and told <= known.page * pages
    assert cache.usage(1).index_bytes == cache.usage(0).index_bytes == 0
    if not events and size == 16:
        assert known.page <= 187  # what the disk itself knows of a page takes 13


def test_blocks_that_groups_share_are_counted_once(store: StoreName) -> None:
    groups = (LayerGroup("full"), LayerGroup("near", window=8))
    first = cache_of(store, *groups)
    serve(first, Request("a", text(1)))
    changes = told(first)
    cache = cache_of(store, *groups)
    known, before = index_size(cache.config), [cache.usage(SLOW, group).index_bytes for group in (0, 1)]
    assert before == [40 * known.slot] * 2
    cache.restore(changes.nodes, changes.pages)
    pages = [cache.usage(SLOW, group).idle for group in (0, 1)]
    grown = [cache.usage(SLOW, group).index_bytes - 40 * known.slot for group in (0, 1)]
    assert pages[0] >= pages[1] > 0
    assert grown == [pages[0] * known.block + 8 * 64, 0]  # the smallest index
