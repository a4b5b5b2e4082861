"""Junctions: where a prompt parts from a cached text a state is kept, for whoever comes third. Rows `junction`."""

from __future__ import annotations

import pytest

from quire import Cache, ConfigWarning, LayerGroup, Request, Span, check
from quire.core.store import StoreName

from ..conftest import build, compute, decode, finish, release, start_of, tokens, try_admit
from .test_states import FULL, state
from .test_tails import build_talk
from .test_windows import prefill


def ask(name: str, shared: int, first: int, length: int = 70) -> Request:
    """A prompt that begins with 0..shared and goes on with first.."""
    return Request(name, tokens(range(shared), range(first, first + length - shared)))


def junction_of(cache: Cache, request: Request) -> tuple[int, int | None]:
    """Where it would start, and where it parts."""
    with cache.claim([request]) as claims:
        check(cache)
        return claims[0].start, claims[0].junction


def cached(store: StoreName, **options: bool) -> Cache:
    """70 tokens, computed; of their states only the one at 64 is kept."""
    cache = build_talk(store, **options)
    sequence, spans = prefill(cache, ask("first", 40, 100))
    assert spans == [Span(0, 64), Span(64, 70)]
    release(cache, sequence)
    return cache


def test_the_third_prompt_starts_where_the_second_parted(store: StoreName) -> None:
    """junction-01: three prompts that share 40 of 70: the second says 32, ends a step there, the third starts there."""
    cache = cached(store)
    assert junction_of(cache, ask("second", 40, 200)) == (0, 32)
    second, spans = prefill(cache, ask("second", 40, 200))
    assert spans == [Span(0, 32), Span(32, 64), Span(64, 70)]
    assert junction_of(cache, ask("third", 40, 300)) == (32, None)
    release(cache, second)
    assert [start_of(cache, tokens(range(40), other, 9)) for other in (range(100, 130), range(200, 230))] == [70, 70]


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        (ask("same", 40, 100), (64, None)),
        (ask("longer", 40, 100, 90), (70, None)),
        (ask("shorter", 40, 100, 47), (0, None)),
        (ask("one block", 16, 200), (0, 16)),
        (ask("less", 15, 200), (0, None)),
        (Request("late", tokens(range(40), range(100, 126), range(200, 220))), (64, None)),
        (ask("short", 32, 200, 48), (0, None)),
        (ask("long enough", 32, 200, 49), (0, 32)),
    ],
)
def test_where_a_prompt_parts(store: StoreName, request_: Request, found: tuple[int, int | None]) -> None:
    """junction-02: it has a whole block of the cached text, and the next whole one is another; not where it starts."""
    assert junction_of(cached(store), request_) == found


def test_where_nothing_parts(store: StoreName) -> None:
    """junction-03: no reuse, a limit before it, a text that ends, for decoding, no state: None; steps are not cut."""
    cache = cached(store)
    text = ask("second", 40, 200).tokens
    assert junction_of(cache, Request("a", text, reuse=False)) == (0, None)
    assert junction_of(cache, Request("a", text, reuse_limit=47)) == (0, None)
    assert junction_of(cache, Request("a", text, reuse_limit=48)) == (0, 32)
    ended, _ = prefill(cache, Request("ended", tokens(range(500, 579))))
    decode(cache, ended, 579, 580)
    release(cache, ended, store=False)
    assert junction_of(cache, Request("a", tokens(range(500, 600)))) == (64, None)  # nothing goes on behind 80
    with cache.claim([Request("a", text)], purpose="decode") as claims:
        assert claims[0].junction is None
    plain = build(store, 64, groups=(FULL, LayerGroup("near", window=24)), block_size=16)
    for name in ("first", "second"):
        sequence, spans = prefill(plain, ask(name, 40, 100 + len(name)))
        assert len(spans) == 1
        release(plain, sequence)


def test_each_claim_keeps_its_own_junction(store: StoreName) -> None:
    """junction-04: one prepared request claimed before and after another text came: each says what was so then."""
    with pytest.warns(ConfigWarning, match="junctions"):
        cache = build(store, (64, 8), groups=(FULL, state(0, snapshot_at_end=False)), block_size=16)
    prepared = cache.prepare(ask("second", 40, 200))
    before = cache.claim([prepared])
    first, _ = prefill(cache, ask("first", 40, 100))
    release(cache, first)
    with cache.claim([prepared]) as after:
        assert (before[0].junction, after[0].junction) == (None, 32)
        assert [claim.slots_needed[1] for claim in (before[0], after[0])] == [1, 2]
    batch = cache.admit(before)
    (second,) = batch.sequences
    assert batch.spans[second] == Span(0, 70)
    finish(cache, batch.plan)
    compute(cache, second)
    release(cache, second)


def test_a_junction_whose_state_is_gone_is_one_again(store: StoreName) -> None:
    """junction-05: 3 state slots: its state is pushed out, the next that parts there says 32; also as the only one."""
    cache = build_talk(store, slots=3)
    for name, first in (("first", 100), ("second", 200)):
        sequence, _ = prefill(cache, ask(name, 40, first))
        release(cache, sequence, store=False)
    assert junction_of(cache, ask("third", 40, 300)) == (32, None)
    for first in (1000, 2000, 3000, 4000):
        sequence, _ = prefill(cache, Request(first, tokens(range(first, first + 20))))
        release(cache, sequence, store=False)
    assert junction_of(cache, ask("third", 40, 300)) == (0, 32)
    with pytest.warns(ConfigWarning, match="junctions"):
        cache = build(store, (64, 8), groups=(FULL, state(0, snapshot_at_end=False)), block_size=16)
    for name, first in (("first", 100), ("second", 200)):
        batch = try_admit(cache, ask(name, 40, first))
        (sequence,) = batch.sequences
        assert batch.spans[sequence].end == (70 if name == "first" else 32)
        compute(cache, sequence)
        release(cache, sequence, store=False)
    assert start_of(cache, ask("third", 40, 300).tokens) == 32
