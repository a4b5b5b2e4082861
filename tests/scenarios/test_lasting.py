"""Slow tiers, what lasts on a disk, a store that machines share. Rows `slow`, `disk`, `store`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import Cache, CacheConfig, LayerGroup, Prefetch, Refusal, Request, Scope, Stored, TierConfig, check
from quire.core.store import StoreName

from .conftest import Clock, finish, run, start_of, tokens

SLOW = 2
TENANT = Scope(salt="tenant 4")


def deep(store: StoreName, device: int, host: int, slow: int = 32, **options: Any) -> Cache:
    """A device, a host and a slow tier."""
    tiers = (TierConfig("device", device), TierConfig("host", host), TierConfig("disk", slow, slow=True))
    more: dict[str, Any] = {"block_size": 4, "max_length": 256, "prefetch_share": 1.0} | options
    clock = more.pop("clock", None) or Clock()
    return Cache(CacheConfig(tiers, **more), clock=clock, store=store)


def text(number: int) -> np.ndarray:
    """17 tokens that no other number gives."""
    return tokens(range(100 * number, 100 * number + 17))


def copy_down(cache: Cache, limit: int = 8) -> int:
    plan = cache.copy_down(limit)
    check(cache)
    finish(cache, plan)
    return len(plan)


def three_prompts(store: StoreName, **options: Any) -> Cache:
    """5 + 4 slots; three prompts of 17, one after the other, each copied down."""
    cache = deep(store, 5, 4, **options)
    for number in range(3):
        run(cache, Request(number, text(number), TENANT))
        copy_down(cache)
    return cache


def prefetch(cache: Cache, number: int, **more: Any) -> Prefetch | Refusal:
    coming = cache.prefetch(Request(f"p{number}", text(number), TENANT, **more))
    check(cache)
    return coming


def test_copies_go_down_ahead(store: StoreName) -> None:
    """slow-01: 8 + 8 slots; 17 tokens run, copied down; again: 4 whole blocks, then none; start 16, as before."""
    cache = deep(store, 8, 8)
    run(cache, Request("a", text(0)))
    assert (copy_down(cache), copy_down(cache)) == (4, 0)
    usage = cache.usage(SLOW)
    assert (usage.shadows, usage.idle, start_of(cache, text(0))) == (4, 0, 16)
    assert cache.stats().copied_down == 4


def test_a_claim_does_not_wait_for_a_slow_tier(store: StoreName) -> None:
    """slow-02: 5 + 4 slots, three prompts of 17 copied down; the first again: start 0, 16 tokens and 4 pages coming;
    prefetched: 16."""
    cache = three_prompts(store)
    with cache.claim([Request("again", text(0), TENANT)]) as claims:
        assert (claims[0].start, claims[0].coming, claims[0].coming_pages) == (0, 16, (4,))
    coming = prefetch(cache, 0)
    assert isinstance(coming, Prefetch) and (coming.end, len(coming.plan), cache.usage(1).filling) == (16, 4, 4)
    assert start_of(cache, text(0), scope=TENANT) == 0, "not before it has arrived"
    finish(cache, coming.plan)
    assert run(cache, Request("again", text(0), TENANT)).start == 16


def test_prefetches_take_a_share(store: StoreName) -> None:
    """slow-03: the same, half of 4 host slots; all of it is refused: needs 4, has 2; 8 tokens of it are 2 pages."""
    cache = three_prompts(store, prefetch_share=0.5)
    refused = prefetch(cache, 0)
    assert isinstance(refused, Refusal) and (refused.need, refused.have) == (4, 2)
    coming = prefetch(cache, 0, reuse_limit=8)
    assert isinstance(coming, Prefetch) and (coming.end, len(coming.plan)) == (8, 2)
    finish(cache, coming.plan)
    assert run(cache, Request("again", text(0), TENANT)).start == 8


def test_what_had_no_copy_yet_is_behind(store: StoreName) -> None:
    """slow-04: 5 + 4 slots, nothing is copied down; three prompts of 17: 4 whole pages of the first are dropped, and
    counted as behind; what was copied down in time goes without a count."""
    cache = deep(store, 5, 4)
    for number in range(3):
        run(cache, Request(number, text(number), TENANT))
    assert cache.stats().behind == 4
    assert three_prompts(store).stats().behind == 0


def test_a_prefetch_ends_with_its_deadline(store: StoreName) -> None:
    """slow-05: a prefetch of 4 pages with 5 seconds; 4 held; after 5 seconds: none, and they are still there."""
    clock = Clock()
    cache = three_prompts(store, clock=clock)
    coming = cache.prefetch(Request("p", text(0), TENANT), deadline=5.0)
    assert isinstance(coming, Prefetch)
    finish(cache, coming.plan)
    assert cache.usage(1).prefetched == 4
    clock.now = 5.0
    other = prefetch(cache, 9)
    assert isinstance(other, Prefetch)
    other.close()
    assert cache.usage(1).prefetched == 0 and start_of(cache, text(0), scope=TENANT) == 16


def test_a_page_that_cannot_be_read_is_lost(store: StoreName) -> None:
    """slow-06: a prefetch of 4 pages, the third cannot be read: start 8, and the slow tier has one page less."""
    cache = three_prompts(store)
    coming = prefetch(cache, 0)
    assert isinstance(coming, Prefetch)
    before = cache.usage(SLOW).empty
    cache.finish(coming.plan, [2])
    check(cache)
    assert start_of(cache, text(0), scope=TENANT) == 8 and cache.usage(SLOW).empty == before + 1
    coming.close()


def test_a_new_cache_takes_back_what_lasted(store: StoreName) -> None:
    """disk-01: three prompts copied down, 12 pages told; a new cache with events takes them back: told as stored in
    tier 2 under their old hashes; the first starts at 0, 16 coming; prefetched: 16."""
    seed = bytes(range(16))
    first = three_prompts(store, lasting=True, events=True, event_seed=seed)
    hashes = {name for event in first.take_events() if isinstance(event, Stored) for name in event.hashes}
    changes = first.lasting_changes()
    cache = deep(store, 5, 4, lasting=True, events=True, event_seed=seed)
    assert cache.restore(changes.nodes, changes.pages) == 12
    check(cache)
    stored = [event for event in cache.take_events() if isinstance(event, Stored)]
    assert {event.tier for event in stored} == {SLOW} and sum(len(event.hashes) for event in stored) == 12
    assert {name for event in stored for name in event.hashes} <= hashes
    with cache.claim([Request("a", text(0), TENANT)]) as claims:
        assert (claims[0].start, claims[0].coming) == (0, 16)
    coming = prefetch(cache, 0)
    assert isinstance(coming, Prefetch)
    finish(cache, coming.plan)
    assert run(cache, Request("a", text(0), TENANT)).start == 16


def test_a_tenant_is_forgotten_by_its_digest(store: StoreName) -> None:
    """disk-02: the same, restored; that tenant, not named since, is forgotten: 12 pages, 12 slots freed."""
    changes = three_prompts(store, lasting=True).lasting_changes()
    cache = deep(store, 5, 4, lasting=True)
    cache.restore(changes.nodes, changes.pages)
    assert (cache.forget(Scope(salt="another")), cache.forget(TENANT)) == (0, 12)
    check(cache)
    assert len(cache.lasting_changes().freed_slot) == 12 and cache.usage(SLOW).empty == 32


def test_a_disk_serves_right_bytes_or_none(tmp_path: Path) -> None:
    """disk-03: 8 host slots, a folder; 16 tokens written, closed, opened again: 4 pages restored, 16 tokens found with
    their bytes; one bit of the third page turned: 8."""
    pytest.importorskip("xxhash", reason="a disk needs the extra disk")
    from ..tiers.disk.rig import FINGERPRINT, Kept, page_of, prompt
    from ..tiers.disk.test_tier import flip

    kept = Kept(tmp_path)
    kept.compute(1)
    kept.close()
    again = Kept(tmp_path)
    assert again.keeper.report().restored == 4 and again.fetched(1) == 16
    again.close()
    third = page_of(prompt(1)[:12]).tobytes()
    pages = tmp_path / FINGERPRINT.hex() / "pages-0"
    flip(pages, pages.read_bytes().index(third) + 9)
    last = Kept(tmp_path)
    assert last.fetched(1) == 8 and last.keeper.report().failed == 1
    check(last.cache)
    last.close()


def test_what_one_machine_sends_another_fetches(tmp_path: Path) -> None:
    """store-01: two caches of 16 host slots, one folder; 17 tokens of a tenant: 4 pages sent; the other fetches 16
    tokens, for another tenant none; forgotten there: 4 here and 4 in the store, after which nobody finds them."""
    pytest.importorskip("xxhash", reason="a shared store needs the extra shared")
    from quire.tiers import ArenaTier
    from quire.tiers.fingerprint import facts_digest, fingerprint
    from quire.tiers.shared import Forgotten, SharedCache, SharedConfig

    groups = (LayerGroup("full", page_bytes=64),)
    config = CacheConfig((TierConfig("device", 0), TierConfig("host", 16)), 4, groups, max_length=64)
    which = fingerprint(config, facts_digest({"model": "m"}), dtype="float32")

    def machine() -> tuple[Cache, ArenaTier, SharedCache]:
        cache, host = Cache(config), ArenaTier("host", (16,), (64,))
        return cache, host, SharedCache(cache, [ArenaTier("device", (0,), (64,)), host], SharedConfig(tmp_path), which)

    def fetched(shared: SharedCache, scope: Scope) -> int:
        with shared.fetch(Request("f", text(0), scope), wait=60) as fetch:
            assert shared.wait_until_idle(120)
            return fetch.tokens

    (one, host, first), (two, _, second) = machine(), machine()
    writer = one.writer(Request("w", text(0), TENANT), tier=1)
    assert not isinstance(writer, Refusal)
    with writer:
        host.view(0)[writer.slots()] = 7
        writer.written(16)
    first.publish(Request("w", text(0), TENANT))
    assert first.wait_until_idle(120) and first.counts().sent == 4
    assert (fetched(second, Scope(salt="another")), fetched(second, TENANT)) == (0, 16)
    assert second.forget(TENANT) == Forgotten(here=4, store=4)
    assert fetched(second, TENANT) == 0 and first.close() and second.close()
    check(one)
    check(two)
