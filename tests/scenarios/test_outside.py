"""Pages from and for outside: writers, finds, pages that are bad, scopes that are forgotten. Rows `outside`."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quire import (
    Cache,
    CacheConfig,
    Found,
    InputError,
    LayerGroup,
    Refusal,
    Removed,
    Request,
    Scope,
    StateError,
    Stored,
    TierConfig,
    UnknownError,
    Writer,
    check,
)  # fmt: skip
from quire.core.records.plan import Kind
from quire.core.store import StoreName

from .conftest import Clock, admit, build, compute, finish, release, run, start_of, tokens

TENANT = Scope(salt="tenant 4")


def write(cache: Cache, text: range, tier: int = 1, written: int | None = None, scope: Scope = TENANT) -> None:
    """Somebody brings the whole blocks of a text, or those before a token."""
    with opened(cache, Request("w", tokens(text), scope), tier) as writer:
        writer.written(len(text) if written is None else written)
        check(cache)


def opened(cache: Cache, request: Request, tier: int = 1, end: int | None = None) -> Writer:
    writer = cache.writer(request, tier=tier, end=end)
    check(cache)
    assert isinstance(writer, Writer), writer
    return writer


def found(cache: Cache, text: range, from_: int = 0, scope: Scope = TENANT) -> Found:
    look = cache.find(Request("f", tokens(text), scope), from_)
    check(cache)
    return look


def end_of(cache: Cache, text: range, from_: int = 0, scope: Scope = TENANT) -> int:
    with found(cache, text, from_, scope) as look:
        return look.end


def host_only(store: StoreName, slots: int, **options: Any) -> Cache:
    return build(store, 0, slots, **options)


def test_what_is_written_is_found(store: StoreName) -> None:
    """outside-01: no device, 6 host slots; 0..13: three slots; nothing is found before, 8 tokens after 11 and all
    after 13 were written; then nobody holds them, and they are found in the slots that were told."""
    cache = host_only(store, 6)
    with opened(cache, Request("w", tokens(range(14)), TENANT)) as writer:
        slots = writer.slots().tolist()
        assert (writer.blocks().tolist(), len(set(writer.slots().tolist())), end_of(cache, range(14))) == (
            [0, 1, 2],
            3,
            0,
        )
        assert (writer.written(11), writer.blocks().tolist(), end_of(cache, range(14))) == (2, [2], 8)
        assert cache.usage(1).writing == 1 and cache.open_writers() == [writer]
        assert (writer.written(14), end_of(cache, range(14)), cache.usage(1).idle) == (1, 12, 3)
    assert not cache.open_writers() and cache.usage(1).held == 0
    with cache.find(cache.prepare(Request("f", tokens(range(14)), TENANT), keys=False)) as look:
        assert look.slots().tolist() == slots and look.tiers().tolist() == [1, 1, 1]


def test_what_does_not_come_is_given_back(store: StoreName) -> None:
    """outside-02: 4 host slots; 0..15, of which 8 tokens are written, closed; and a writer that is lost: 2 slots are
    empty after each, with a warning for the second."""
    cache = host_only(store, 4)
    write(cache, range(16), written=8)
    assert (cache.usage(1).empty, end_of(cache, range(16))) == (2, 8)
    writer = opened(cache, Request("w", tokens(range(16)), TENANT))
    assert (writer.blocks().tolist(), cache.usage(1).empty) == ([2, 3], 0)
    del writer
    gc.collect()
    with pytest.warns(ResourceWarning, match="1 of them were lost"):
        cache.num_free()
    assert (cache.usage(1).empty, end_of(cache, range(16))) == (2, 8)
    check(cache)


def test_a_writer_starts_empty_and_is_extended(store: StoreName) -> None:
    """outside-03: a prompt of 6, none of it yet; then up to 6; then 3 tokens more: no block, block 0, block 1; the
    text is found under all 9 tokens."""
    cache = host_only(store, 4)
    with opened(cache, Request("w", tokens(range(6)), TENANT), end=0) as writer:
        assert writer.blocks().tolist() == []
        assert writer.extend(end=6) is None and writer.blocks().tolist() == [0]
        assert writer.extend(tokens([6, 7, 8])) is None and writer.blocks().tolist() == [0, 1]
        assert (writer.written(9), writer.length, end_of(cache, range(9))) == (2, 9, 8)


def test_no_room_is_a_refusal_that_changes_nothing(store: StoreName) -> None:
    """outside-04: 3 host slots, two of them found; 8 other tokens need 2: refused, 1 is there; an extension likewise,
    and its tokens are not kept; once the find is closed there is room."""
    cache = host_only(store, 3)
    write(cache, range(8))
    look = found(cache, range(8))
    before = [stream.store.dump() for stream in cache._setup.streams]
    refused = cache.writer(Request("w", tokens(range(100, 108)), TENANT), tier=1)
    assert isinstance(refused, Refusal) and (refused.need, refused.have, refused.group, refused.never) == (
        2,
        1,
        0,
        False,
    )
    assert [stream.store.dump() for stream in cache._setup.streams] == before
    with opened(cache, Request("w", tokens(range(100, 104)), TENANT)) as writer:
        assert isinstance(writer.extend(tokens(range(104, 108))), Refusal) and writer.length == 4
        look.close()
        assert writer.extend(tokens(range(104, 108))) is None and writer.written(8) == 2
    assert (end_of(cache, range(100, 108)), end_of(cache, range(8))) == (8, 4)


def test_a_writer_does_not_evict_its_own_beginning(store: StoreName) -> None:
    """outside-05: 3 host slots with 0..7 and one other block, 0..7 the oldest: two blocks more of that text would
    have to evict it: refused, 1 of 2; one block takes the other's slot."""
    cache = host_only(store, 3)
    write(cache, range(8))
    write(cache, range(50, 54))
    assert isinstance(cache.writer(Request("w", tokens(range(16)), TENANT), tier=1), Refusal)
    write(cache, range(12))
    assert (end_of(cache, range(12)), end_of(cache, range(50, 54))) == (12, 0)


def test_blocks_are_left_out_by_group(store: StoreName) -> None:
    """outside-06: a full group and a window of 4; 0..11 without blocks 0 and 1 of the window, block 2 of it left out
    when written: 8 + 8 slots; nothing can be resumed at 12; with it, 12, and the window's one block is held."""
    groups = (LayerGroup("full"), LayerGroup("window", window=4))
    cache = host_only(store, 8, groups=groups)
    for last in (False, True):
        writer = cache.writer(Request("w", tokens(range(12)), TENANT), tier=1, skip={1: range(2) if last else [0, 1]})
        assert isinstance(writer, Writer) and writer.blocks(1).tolist() == [2]
        told = writer.slots(1).tolist()
        assert len(writer.blocks(0)) == (0 if last else 3)
        assert writer.written(12, {} if last else {1: [2]}) == (1 if last else 3)
        writer.close()
        check(cache)
        with found(cache, range(12)) as look:
            assert (look.end, look.blocks(0).tolist(), look.blocks(1).tolist()) == (
                (12, [0, 1, 2], [2]) if last else (0, [], [])
            )
            assert not last or look.slots(1).tolist() == told
    for left_out in ((), range(0), range(5, 9), range(-3, 2), range(2, 9), range(1, 3), range(3, 0), range(0, 9, 2)):
        with cache.writer(Request("v", tokens(range(50, 70)), TENANT), tier=1, skip={0: left_out}) as writer:  # type: ignore[union-attr]
            assert writer.blocks(0).tolist() == [block for block in range(5) if block not in left_out]


def test_a_find_behind_what_the_engine_has_itself(store: StoreName) -> None:
    """outside-07: 4 host slots, 0..15 written; block 0 is lost: nothing is found from 0, all from 4 or 7; blocks 1..3
    and 2..3 are held."""
    cache = host_only(store, 4)
    write(cache, range(16))
    with found(cache, range(16)) as look:
        slot = int(look.slots()[0])
    assert not cache.lose(0, [slot], tier=1).setbacks
    check(cache)
    assert end_of(cache, range(16)) == 0
    for from_, blocks in ((4, [1, 2, 3]), (7, [1, 2, 3]), (8, [2, 3]), (16, [])):
        with found(cache, range(16), from_) as look:
            assert (look.end, look.blocks().tolist(), look.tiers().tolist()) == (16, blocks, [1] * len(blocks))
            assert cache.usage(1).found == len(blocks)


def test_asking_teaches_nothing_and_use_does(store: StoreName) -> None:
    """outside-08: 4 host slots, a block each of a, b, c, d; a is found, then used: e takes b's slot, f c's; found
    only, b is the next to go. What the engine had itself is used too: of a chain of two, asked from 4, both stay."""
    cache = host_only(store, 4, eviction="lru")
    for first in (0, 10, 20, 30):
        write(cache, range(first, first + 4))
    with found(cache, range(4)) as look:
        look.used()
        look.used()
    write(cache, range(40, 44))
    assert [end_of(cache, range(n, n + 4)) for n in (0, 10, 20, 30)] == [4, 0, 4, 4]
    assert end_of(cache, range(20, 24)) == 4
    write(cache, range(50, 54))
    assert [end_of(cache, range(n, n + 4)) for n in (0, 20, 30)] == [4, 0, 4]
    cache = host_only(store, 4, eviction="lru")
    write(cache, range(8))
    write(cache, range(10, 18))
    with found(cache, range(8), 4) as look:
        look.used()
    write(cache, range(20, 28))
    assert (end_of(cache, range(8)), end_of(cache, range(10, 18))) == (8, 0)


def test_a_find_keeps_its_pages_from_eviction_and_is_given_back_when_lost(store: StoreName) -> None:
    """outside-09: 2 + 2 slots; 0..7 run and found: 8 other tokens are refused until the find is closed; a lost one is
    given back with a warning."""
    cache = build(store, 2, 2)
    run(cache, Request("a", tokens(range(8))))
    look = found(cache, range(8), scope=Scope())
    assert (look.end, look.slots().tolist(), cache.num_free(), cache.open_finds()) == (8, [0, 1], 0, [look])
    assert cache.add_sequence_batch([Request("b", tokens(range(20, 28)))]).refused
    look.close()
    assert look.closed and cache.num_free() == 2
    with pytest.raises(StateError, match="it was closed"):
        look.slots()
    look = found(cache, range(8), scope=Scope())
    del look
    gc.collect()
    with pytest.warns(ResourceWarning, match="finds: 1 of them were lost"):
        assert cache.num_free() == 2
    check(cache)


def test_a_bad_page_sets_back_whoever_rests_on_it(store: StoreName) -> None:
    """outside-10: 8 slots; 0..11 run; a sequence, a claim and a find on them; block 1 is bad: the sequence goes back
    to 4, the claim to 4, the find ends at 4 and keeps its pages; the next look finds 4."""
    cache = build(store, 8)
    run(cache, Request("a", tokens(range(12))))
    (sequence,) = admit(cache, Request("b", tokens(range(13))))
    look = found(cache, range(12), scope=Scope())
    with cache.claim([Request("c", tokens(range(13)))]) as claims:
        finished = cache.lose(0, [int(sequence.slots()[1])])
        told = {type(item.holder).__name__: (item.old_start, item.start, item.lost) for item in finished.setbacks}
        assert told == {"Found": (12, 4, False), "Sequence": (12, 4, False), "Claim": (12, 4, False)}
        check(cache)
        assert (look.end, look.blocks().tolist(), claims[0].start) == (4, [0, 1, 2], 4)
        finish(cache, finished.plan)
    look.close()
    assert start_of(cache, tokens(range(12))) == 4
    assert not cache.lose(0, [7]).setbacks and not cache.lose(0, []).setbacks
    with pytest.raises(UnknownError, match="slot 8"):
        cache.lose(0, [8])
    release(cache, sequence)


def test_a_bad_page_of_a_writer_is_never_found(store: StoreName) -> None:
    """outside-11: 0..11 to be written, the slot of block 1 is bad: told up to 4; written: 2 pages, found up to 4; a
    second writer brings block 1: found up to 12."""
    cache = host_only(store, 4)
    with opened(cache, Request("w", tokens(range(12)), TENANT)) as writer:
        (setback,) = cache.lose(0, [int(writer.slots()[1])], tier=1).setbacks
        assert (setback.holder, setback.start) == (writer, 4)
        check(cache)
        assert (writer.written(12), end_of(cache, range(12))) == (2, 4)
    write(cache, range(12))
    assert end_of(cache, range(12)) == 12


def test_a_bad_shadow_costs_only_itself(store: StoreName) -> None:
    """outside-12: 2 + 2 slots; 0..7 run, copied down early; the host copy of block 0 is bad: it goes, the page is
    found."""
    cache = build(store, 2, 2)
    run(cache, Request("a", tokens(range(8))))
    finish(cache, cache.offload(2))
    assert (cache.usage(1).shadows, cache.lose(0, [0], tier=1).plan) == (2, None)
    check(cache)
    assert (cache.usage(1).shadows, start_of(cache, tokens(range(9)))) == (1, 8)


@pytest.mark.parametrize("act", ["clear", "truncate", "forget"])
def test_what_is_open_outlives_what_is_forgotten(store: StoreName, act: str) -> None:
    """outside-13: 8 slots; 0..11 of a tenant run, then claimed, found and being written on; clear, truncate at 0 or
    forget: the find and the claim keep three pages, the claim is admitted at 11 and stores nothing, the writer
    neither; at the end all slots are empty."""
    cache = build(store, 8)
    run(cache, Request("a", tokens(range(12)), TENANT))
    look = found(cache, range(12))
    writer = opened(cache, Request("w", tokens(range(16)), TENANT), tier=0)
    claims = cache.claim([Request("b", tokens(range(12)), TENANT)])
    acts: dict[str, Callable[[], int]] = {
        "clear": cache.clear,
        "truncate": lambda: cache.truncate(Request("t", tokens(range(16)), TENANT)),
        "forget": lambda: cache.forget(Scope(salt="tenant 4")),
    }
    gone = acts[act]()
    check(cache)
    assert (gone, look.end, claims[0].start, end_of(cache, range(16)), writer.forgotten) == (3, 12, 11, 0, True)
    batch = cache.admit(claims)
    finish(cache, batch.plan)
    (sequence,) = batch.sequences
    compute(cache, sequence)
    release(cache, sequence)
    assert (writer.written(16), end_of(cache, range(16)), cache.usage().held) == (0, 0, 3)
    writer.close()
    look.close()
    check(cache)
    assert cache.usage().empty == 8


def test_forget_covers_what_a_scope_names(store: StoreName) -> None:
    """outside-14: 0..3 in five scopes: forgetting LoRA a takes two of them, epoch 1 one, a salt one; one that names
    nothing is refused; ghosts go with it, and a running sequence of that scope stores nothing any more."""
    cache = host_only(store, 8, eviction="adaptive")
    scopes = (Scope(), Scope(lora="a"), Scope(lora="a", salt="s"), Scope(salt="s"), Scope(epoch=1))
    for scope in scopes:
        write(cache, range(4), scope=scope)
    assert cache.forget(Scope(lora="a")) == 2
    assert [end_of(cache, range(4), scope=scope) for scope in scopes] == [4, 0, 0, 4, 4]
    write(cache, range(100, 120))
    write(cache, range(200, 212))
    assert cache.usage(0).ghosts > 0
    assert cache.forget(Scope(epoch=1)) + cache.forget(Scope(salt="s")) <= 2 and cache.usage(0).ghosts == 0
    with pytest.raises(InputError, match=r"use clear\(\)"):
        cache.forget(Scope())
    cache = build(store, 8)
    (sequence,) = admit(cache, Request("a", tokens(range(8)), TENANT))
    assert cache.forget(TENANT) == 0
    compute(cache, sequence)
    release(cache, sequence)
    assert cache.usage().empty == 8


def test_events_tell_pages_from_outside(store: StoreName) -> None:
    """outside-15: 0..7 written into the host: one record of two blocks, stored in tier 1; block 0 bad: one removed;
    the tenant forgotten: the other removed."""
    cache = host_only(store, 4, events=True)
    cache.take_events()
    write(cache, range(8))
    (stored,) = cache.take_events()
    assert isinstance(stored, Stored) and (stored.tier, len(stored.hashes), stored.scope) == (1, 2, TENANT)
    with found(cache, range(8)) as look:
        slot = int(look.slots()[0])
    cache.lose(0, [slot], tier=1)
    (removed,) = cache.take_events()
    assert isinstance(removed, Removed) and removed.hashes == stored.hashes[:1]
    cache.forget(TENANT)
    (removed,) = cache.take_events()
    assert isinstance(removed, Removed) and removed.hashes == stored.hashes[1:]


def test_a_cache_without_device_says_what_it_is_for(store: StoreName) -> None:
    """outside-16: no device: claims, probes and batches are refused in words; so is a device for one group alone."""
    cache = host_only(store, 4)
    for ask in (cache.claim, cache.probe, cache.add_sequence_batch):
        with pytest.raises(StateError, match="this cache has no device slots; use find and writer"):
            ask([Request("a", tokens(range(4)))])
    check(cache)
    assert (cache.num_free(), cache.usage(1).empty) == (0, 4)
    with pytest.raises(InputError, match="give at least 1"):
        build(store, (0, 4), (4, 4), groups=(LayerGroup("a"), LayerGroup("b")))
    with pytest.raises(InputError, match="give at least 1"):
        build(store, 0)


def test_room_in_the_middle_tier_moves_what_was_there(store: StoreName) -> None:
    """outside-17: 0 + 1 + 2 slots; two blocks written into tier 1, one after the other: the second's plan moves the
    first to tier 2; both are found."""
    tiers = (TierConfig("device", 0), TierConfig("host", 1), TierConfig("disk", 2))
    cache = Cache(CacheConfig(tiers, block_size=4, max_length=64), clock=Clock(), store=store)
    write(cache, range(4))
    with opened(cache, Request("w", tokens(range(10, 14)), TENANT)) as writer:
        assert [(move.src[0], move.dst[0]) for move in writer.plan] == [(1, 2)]
        finish(cache, writer.plan)
        writer.written(4)
    with found(cache, range(4)) as low, found(cache, range(10, 14)) as high:
        assert (low.tiers().tolist(), high.tiers().tolist()) == ([2], [1])


def test_the_first_to_write_a_block_wins(store: StoreName) -> None:
    """outside-18: two writers of one text; both are told as written: 2 pages and 0, two slots are empty again."""
    cache = host_only(store, 4)
    one, two = (opened(cache, Request(name, tokens(range(8)), TENANT)) for name in "ab")
    assert (one.written(8), two.written(8), cache.usage(1).empty, end_of(cache, range(8))) == (2, 0, 2, 8)
    check(cache)
    one.close()
    two.close()
    with pytest.raises(StateError, match="it was closed"):
        two.written(8)


def test_wrong_calls_are_refused(store: StoreName) -> None:
    """outside-19: a writer of what may not be stored, of too many tokens, beyond its text, of unknown groups; a find
    from no place; bad slots that are none: errors, and nothing has changed."""
    cache = host_only(store, 4, max_length=16)
    before = cache._setup.store.dump()
    request = Request("a", tokens(range(8)), TENANT)
    wrong: list[Callable[[], object]] = [
        lambda: cache.writer(Request("a", tokens(range(8)), reuse=False), tier=1),
        lambda: cache.writer(Request("a", tokens(range(20))), tier=1),
        lambda: cache.writer(request, tier=1, end=9),
        lambda: cache.writer(request, tier=2),
        lambda: cache.writer(request, tier=1, skip={1: [0]}),
        lambda: cache.find(request, -1),
        lambda: cache.find(request, 1.0),  # type: ignore[arg-type]
        lambda: cache.lose(0, ["a"], tier=1),  # type: ignore[list-item]
        lambda: cache.lose(1, [0]),
        lambda: cache.forget("tenant"),  # type: ignore[arg-type]
    ]
    for call in wrong:
        with pytest.raises((InputError, UnknownError), match="; "):
            call()
    assert cache._setup.store.dump() == before and not cache.open_writers() and not cache.open_finds()
    with opened(cache, request) as writer:
        with pytest.raises(InputError):
            writer.extend(tokens(range(9)))
        with pytest.raises(InputError):
            writer.extend(tokens(1), end=99)
        assert (writer.length, writer.blocks(0).tolist(), np.unique(writer.slots()).size) == (8, [0, 1], 2)


def test_a_snapshot_is_found_when_a_plan_has_its_copy(store: StoreName) -> None:
    """outside-20: a state kept every 8 tokens; 17 tokens, 8 of them committed: their snapshot's bytes are in no plan,
    and nothing is found; the next plan has the copy: found up to 8; 16 committed: still 8, until the next plan."""
    groups = (LayerGroup("full"), LayerGroup("state", snapshot_every=8))
    cache = build(store, (8, 4), groups=groups)
    (sequence,) = admit(cache, Request("a", tokens(range(17))))
    for end, before, then in ((8, 0, 8), (16, 8, 16)):
        compute(cache, sequence, end)
        assert end_of(cache, range(17), scope=Scope()) == before
        batch = cache.add_sequence_batch([], continuing=[sequence])
        ((kind, _, _, dst, _),) = [(m.kind, m.group, m.src, m.dst, m.tokens) for m in batch.plan if m.group == 1]
        with found(cache, range(17), scope=Scope()) as look:
            assert (look.end, look.tiers(1)[0], look.slots(1)[0]) == (then, *dst) and kind == Kind.COPY
        finish(cache, batch.plan)
    release(cache, sequence)


def test_a_plan_stays_open_when_the_clock_raises(store: StoreName) -> None:
    """outside-22: Nothing is half changed: the same call works once the clock does."""
    clock = Clock()
    cache = build(store, 3, 4, clock=clock)
    write(cache, range(8), scope=Scope())
    plan = cache.add_sequence_batch([Request("a", tokens(range(9)))]).plan
    del clock.now
    with pytest.raises(AttributeError):
        cache.finish(plan, [1])
    clock.now = 1.0
    assert [one.start for one in cache.finish(plan, [1]).setbacks] == [4]


def test_a_find_ends_right_before_a_snapshot_without_bytes(store: StoreName) -> None:
    """outside-23: With a state kept at every block: the one before it is found, and no earlier one."""
    cache = build(store, (8, 6), groups=(LayerGroup("full"), LayerGroup("state", snapshot_every=4)))
    (sequence,) = admit(cache, Request("a", tokens(range(13))))
    for end in (4, 8, 12):
        compute(cache, sequence, end)
        assert end_of(cache, range(13), scope=Scope()) == end - 4
        batch = cache.add_sequence_batch([], continuing=[sequence])
        assert end_of(cache, range(13), scope=Scope()) == end
        finish(cache, batch.plan)
    release(cache, sequence)


def test_a_find_passes_every_snapshot_without_bytes(store: StoreName) -> None:
    """outside-24: Two prompts of one step end at two edges of one text: neither snapshot is in a plan yet."""
    cache = build(store, (8, 6), groups=(LayerGroup("full"), LayerGroup("state", snapshot_every=64)))
    short, long = admit(cache, Request("a", tokens(range(5))), Request("b", tokens(range(9))))
    compute(cache, short, 4)
    compute(cache, long, 8)
    assert end_of(cache, range(9), scope=Scope()) == 0
    finish(cache, cache.add_sequence_batch([], continuing=[short, long]).plan)
    assert end_of(cache, range(9), scope=Scope()) == 8
    for sequence in (short, long):
        release(cache, sequence)


def test_a_find_waits_for_the_snapshots_of_every_group(store: StoreName) -> None:
    """outside-25: the first group still has its state at 4, the second makes it anew."""
    states = [LayerGroup(name, snapshot_every=4) for name in ("first", "second")]
    groups = (LayerGroup("full"), *states)
    cache = build(store, (8, 8, 3), groups=groups)
    run(cache, Request("first", tokens(range(5))), computed=4)
    for nth in range(2):  # their states take the places of the second group
        run(cache, Request(nth, tokens(range(10 * nth + 10, 10 * nth + 15))), computed=4)
    assert end_of(cache, range(5), scope=Scope()) == 0
    (sequence,) = admit(cache, Request("again", tokens(range(9))))
    compute(cache, sequence, 4)
    assert end_of(cache, range(9), scope=Scope()) == 0
    finish(cache, cache.add_sequence_batch([], continuing=[sequence]).plan)
    assert end_of(cache, range(9), scope=Scope()) == 4
    release(cache, sequence)


def test_a_find_names_what_a_failed_move_did_not_bring(store: StoreName) -> None:
    """outside-21: 3 + 4 slots; 0..7 written into the host; a plan brings both blocks up, and they are found on the
    device; the move of block 1 fails: block 1 is lost, the find ends at 4 and keeps both."""
    cache = build(store, 3, 4)
    write(cache, range(8), scope=Scope())
    plan = cache.add_sequence_batch([Request("a", tokens(range(9)))]).plan
    assert [move.kind for move in plan] == [Kind.ONBOARD] * 2
    with found(cache, range(8), scope=Scope()) as look:
        assert (look.end, look.tiers().tolist(), look.lost().tolist()) == (8, [0, 0], [])
        setbacks = cache.finish(plan, [1]).setbacks
        assert (look, 8, 4) in [(one.holder, one.old_start, one.start) for one in setbacks]
        assert (look.end, look.blocks().tolist(), look.lost().tolist()) == (4, [0, 1], [1])
        with pytest.raises(UnknownError, match="group 1"):
            look.lost(1)
    with pytest.raises(StateError, match="it was closed"):
        look.lost()
    check(cache)
