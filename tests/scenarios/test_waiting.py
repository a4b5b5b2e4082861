"""Who waits a step for what another computes, and how a claim is left out for it. Rows `wait`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from quire import Cache, LayerGroup, Request, Scope, Span, StateError, check
from quire.core.store import StoreName

from .conftest import build, finish, run, tokens

FULL, STATE = LayerGroup("full"), LayerGroup("state", snapshot_every=8)


def gains(cache: Cache, mine: Request, other: Request, start: int, end: int) -> bool:
    """Whether a claim for `mine` would gain once `other` has computed the span."""
    with cache.claim([mine]) as claims:
        answer = claims[0].gains_from(cache.prepare(other), Span(start, end))
        check(cache)
    return answer


def ask(*parts: int | Iterable[int], **options: Any) -> Request:
    return Request(options.pop("id", "mine"), tokens(*parts), **options)


def test_equal_prompts_are_computed_once(store: StoreName) -> None:
    """wait-01: of three equal prompts two wait a step, and start behind the whole blocks of the first."""
    cache = build(store, 16)
    with cache.claim([ask(range(10), id=name) for name in "abc"]) as claims:
        first, *others = list(claims)
        for claim in others:
            assert claim.gains_from(first.prepared, Span(0, 10))
            claims.leave_out(claim)
        batch = cache.admit(claims)
    finish(cache, batch.plan)
    cache.commit(batch.sequences[0])
    with cache.claim([ask(range(10), id=name) for name in "bc"]) as claims:
        assert [claim.start for claim in claims] == [8, 8]
        assert not any(claim.gains_from(first.prepared, Span(0, 10)) for claim in claims)


def test_the_first_missing_block_decides(store: StoreName) -> None:
    """wait-02: it must be computed whole; blocks behind it alone are worth nothing."""
    cache = build(store, 16)
    run(cache, ask(range(4)))
    spans = [(4, 8), (5, 8), (4, 20), (4, 7), (8, 20), (0, 4)]
    answers = [gains(cache, ask(range(14)), ask(range(20), id="other"), *span) for span in spans]
    assert answers == [True, True, True, False, False, False]


def test_the_same_block_behind_another_beginning(store: StoreName) -> None:
    """wait-03: equal second blocks, other first ones: nobody waits."""
    cache = build(store, 16)
    assert not gains(cache, ask(range(50, 54), range(4, 12)), ask(range(12), id="other"), 0, 12)
    run(cache, ask(range(50, 54)))
    assert not gains(cache, ask(range(50, 54), range(4, 12)), ask(range(12), id="other"), 4, 12)


def test_who_cannot_share_does_not_wait(store: StoreName) -> None:
    """wait-04: another salt, other extra ids, reuse off on either side or in the cache."""
    ids = np.array([0, 0, 7, *[0] * 9], np.int64)
    strange: list[dict[str, Any]] = [{"scope": Scope(salt="b")}, {"extra_ids": ids}, {"reuse": False}]
    cache = build(store, 16)
    for options in strange:
        mine, other = ask(range(12), **options), ask(range(12), id="other")
        assert not gains(cache, mine, other, 0, 12) and not gains(cache, other, mine, 0, 12)
    for options in strange[:2]:
        assert gains(cache, ask(range(12), **options), ask(range(12), id="other", **options), 0, 12)
    assert not gains(build(store, 16, reuse=False), ask(range(12)), ask(range(12), id="other"), 0, 12)


def test_windows_are_found_as_they_are_computed(store: StoreName) -> None:
    """wait-05: the first 8 of 24 tokens are worth something to others as well, not less than a block."""
    cache = build(store, 16, groups=(FULL, LayerGroup("near", window=6)), max_chunk=16)
    answers = [gains(cache, ask(range(20)), ask(range(24), id="other"), 0, end) for end in (3, 8, 16, 24)]
    assert answers == [False, True, True, True]


@pytest.mark.parametrize("groups", [(FULL, STATE), (STATE,)])
def test_states_are_found_at_snapshots(store: StoreName, groups: tuple[LayerGroup, ...]) -> None:
    """wait-06: ends at 8, 16 and at the last edge inside the prompt, as far as the tokens are the same."""
    cache = build(store, 16, groups=groups, max_chunk=64)
    other = ask(range(23), id="other")
    answers = [gains(cache, ask(range(20), range(80, 86)), other, 0, end) for end in (4, 8, 12, 16, 20, 23)]
    assert answers == [False, True, False, True, True, False]
    assert not gains(cache, ask(range(15), range(80, 90)), other, 0, 16)
    assert not gains(cache, ask(range(9)), other, 8, 16)


@pytest.mark.parametrize(
    ("options", "answer"),
    [({}, True), ({"partial_reuse": False}, False), ({"copy_on_partial_reuse": False}, False)],
)
def test_the_last_token_is_always_computed(store: StoreName, options: dict[str, Any], answer: bool) -> None:
    """wait-07: a block that ends with the prompt is hit in part: with copies for partial hits, or not at all."""
    cache = build(store, 16, **options)
    assert gains(cache, ask(range(4)), ask(range(9), id="other"), 0, 9) is answer
    assert gains(cache, ask(range(5)), ask(range(9), id="other"), 0, 9)


def test_a_claim_is_left_out(store: StoreName) -> None:
    """wait-08: it gives back what it held, once; the others keep their order."""
    cache = build(store, 8)
    for start in (0, 20, 40):
        run(cache, ask(range(start, start + 8)))
    with cache.claim([ask(range(start, start + 9), id=start) for start in (0, 20, 40)]) as claims:
        middle = claims[1]
        assert cache.num_free() == 2
        claims.leave_out(middle)
        check(cache)
        assert cache.num_free() == 4
        with pytest.raises(StateError, match="none of these"):
            claims.leave_out(middle)
        batch = cache.admit(claims)
        with pytest.raises(StateError, match="admitted or dropped"):
            claims.leave_out(middle)
    assert [sequence.id for sequence in batch.sequences] == [0, 40] and not batch.refused
    finish(cache, batch.plan)
