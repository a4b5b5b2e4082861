"""Held and needed pages, group by group: what a prompt that only decodes must be sent. Rows `need`.

One hybrid model: 6 full layers, 18 with a window of 128, 24 recurrent ones; blocks of 32 tokens. `check` walks every
path of the tree, too slow for 10,000 tokens: these scenarios do without it.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from quire import Cache, CacheConfig, Hold, LayerGroup, Request, Sequence, Span, TierConfig
from quire.core.state.claim import Spans
from quire.core.state.prepared import Purpose
from quire.core.store import StoreName

from ..conftest import tokens

SIZE = 32
FULL = LayerGroup("full", page_bytes=786_432)
NEAR = LayerGroup("near", page_bytes=2_359_296, window=128)
STATE = LayerGroup("state", page_bytes=51_216_384, snapshot_every=2_048, snapshot_at_end=False)
SLOTS = {"full": 320, "near": 20, "state": 7}
PROMPT = tokens(range(10_000))
NONE = Span(0, 0)


def compute_all(cache: Cache, request: Request, hold_at: int = 0, kept: Span = NONE) -> tuple[Sequence, Hold | None]:
    """A prompt in chunks; the blocks `kept` are held as soon as `hold_at` tokens are computed."""
    batch, held = cache.add_sequence_batch([request]), None
    (sequence,) = batch.sequences
    while True:
        assert not cache.finish(batch.plan).setbacks
        cache.commit(sequence)
        if kept and sequence.computed == hold_at:
            held = cache.hold(sequence, Span(kept.start * SIZE, kept.end * SIZE))
            assert held is not None
        if sequence.computed == sequence.prompt_end:
            return sequence, held
        batch = cache.add_sequence_batch([], continuing=[sequence])


def after_a_turn(
    store: StoreName,
    groups: tuple[LayerGroup, ...] = (FULL, NEAR, STATE),
    turn: int = 8_512,
    hold_at: int = 0,
    kept: Span = NONE,
) -> Cache:
    """A cache with an earlier turn of the prompt; other content has taken every window page that was not held."""
    slots = tuple(SLOTS[group.name] for group in groups)
    tiers = (TierConfig("device", slots),)  # in the order of release: others keep the windows of the snapshots
    config = CacheConfig(tiers, SIZE, groups, 2, 12_000, max_chunk=256, eviction="release_order")
    cache = Cache(config, store=store)
    sequence, held = compute_all(cache, Request("turn", PROMPT[:turn]), hold_at or turn, kept)
    cache.release(sequence, store=False)  # no snapshot of its last state
    other, _ = compute_all(cache, Request("other", tokens(range(20_000, 20_000 + 52 * SIZE))))
    cache.release(other, store=False)
    if held:
        cache.drop(held)
    return cache


def wanted_bytes(cache: Cache, wants: Iterable[Spans]) -> int:
    pages = [sum(len(span) for span in spans) for spans in wants]
    return sum(count * group.page_bytes for count, group in zip(pages, cache.config.groups, strict=True))


def look(cache: Cache, purpose: Purpose) -> tuple[int, tuple[Spans, ...], tuple[Spans, ...], tuple[int, ...]]:
    with cache.claim([Request("next", PROMPT)], purpose=purpose) as claims:
        (claim,) = claims
        return claim.start, claim.spans, claim.wanted_blocks, claim.slots_needed


def test_each_group_wants_what_it_lacks_and_nothing_more(store: StoreName) -> None:
    """need-01: 8,512 of 10,000 tokens known, window pages gone: 47, 5 and 1 pages instead of 313, 5 and 1."""
    cache = after_a_turn(store)
    start, spans, wants, slots = look(cache, "decode")
    assert (start, spans) == (0, ((Span(0, 8_512),), (), ()))
    assert wants == ((Span(266, 313),), (Span(308, 313),), (Span(312, 313),))
    assert (wanted_bytes(cache, wants), slots) == (99_975_168, (47, 5, 1))
    with_one_cutoff = tuple(group.needs_at(10_000, SIZE) for group in cache.config.groups)
    assert wanted_bytes(cache, with_one_cutoff) == 309_166_080


def test_window_pages_beyond_the_known_prefix_count_too(store: StoreName) -> None:
    """need-02: window pages 308 and 309 of a longer turn are there, full ones only to 265: 47, 3 and 1 pages."""
    cache = after_a_turn(store, turn=9_920, kept=Span(308, 310))
    start, spans, wants, slots = look(cache, "decode")
    assert (start, spans) == (0, ((Span(0, 8_512),), (Span(9_856, 9_920),), ()))
    assert wants == ((Span(266, 313),), (Span(310, 313),), (Span(312, 313),))
    assert (wanted_bytes(cache, wants), slots) == (95_256_576, (47, 3, 1))


@pytest.mark.parametrize(
    ("groups", "hold_at", "kept", "start"),
    [
        ((FULL, NEAR, STATE), 0, NONE, 0),
        ((FULL, NEAR, STATE), 8_512, Span(262, 266), 0),
        ((FULL, NEAR, STATE), 8_192, Span(252, 256), 8_192),
        ((FULL, NEAR), 8_512, Span(262, 266), 8_512),
        ((FULL, STATE), 0, NONE, 8_192),
    ],
)
def test_computing_resumes_where_every_group_can(
    store: StoreName, groups: tuple[LayerGroup, ...], hold_at: int, kept: Span, start: int
) -> None:
    """need-03: snapshots every 2,048: without window pages 0; with the turn's own still 0; with 252..255: 8,192."""
    cache = after_a_turn(store, groups, hold_at=hold_at, kept=kept)
    assert look(cache, "compute")[0] == look(cache, "decode")[0] == start


def test_a_decoder_gets_room_for_what_it_wants(store: StoreName) -> None:
    """need-04: admitted for decoding: found pages in their places, room for the wanted ones, holes in between."""
    cache = after_a_turn(store, turn=9_920, kept=Span(308, 310))
    with cache.claim([Request("next", PROMPT)], purpose="decode") as claims:
        (sequence,) = cache.admit(claims).sequences
    assert (sequence.slots(0) >= 0).all() and len(sequence.slots(0)) == 313
    assert (sequence.slots(1)[:308] == -1).all() and (sequence.slots(1)[308:] >= 0).all()
    assert (sequence.state_slot(2) >= 0, sequence.computed, sequence.length) == (True, 0, 10_000)
    cache.commit(sequence, 10_000)  # a transfer has brought the rest
    assert [sequence.held(group) for group in range(2)] == [(Span(0, 10_000),), (Span(9_856, 10_000),)]
    assert cache.grow(sequence, tokens(1)) is not None
    cache.release(sequence)
