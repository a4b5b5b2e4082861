"""Claims that stay open while others come and go: what they hold stays, other things may change. Rows `open`."""

from __future__ import annotations

import pytest

from quire import Cache, LayerGroup, Request, Scope
from quire.core.store import StoreName

from .conftest import admit, build, compute, finish, release, start_of, tokens
from .groups.test_windows import prefill

ONE, TWO = Scope(salt="one"), Scope(salt="two")


def push_out(cache: Cache, slots: int) -> None:
    """Strangers who store nothing take every slot, and go."""
    asks = [Request(f"stranger {place}", tokens(900), reuse=False) for place in range(slots)]
    release(cache, *admit(cache, *asks), store=False)


@pytest.mark.parametrize("scope", [ONE, TWO])
def test_a_tree_that_goes_and_comes_back_under_an_open_claim(store: StoreName, scope: Scope) -> None:
    """open-01: a claim to decode holds no snapshot; its tree goes, and the same tokens come, there or in another."""
    cache = build(store, 3, groups=(LayerGroup("state", snapshot_every=4),))
    release(cache, prefill(cache, Request("a", tokens(range(10)), ONE))[0], store=False)
    claims = cache.claim([Request("b", tokens(range(10)), ONE)], purpose="decode")
    assert (claims[0].start, claims[0].spans, cache.num_free()) == (8, ((),), 3)
    push_out(cache, 3)
    assert start_of(cache, tokens(range(10)), scope=ONE) == 0
    release(cache, prefill(cache, Request("c", tokens(range(10)), scope))[0], store=False)
    batch = cache.admit(claims)
    finish(cache, batch.plan)
    (sequence,) = batch.sequences
    compute(cache, sequence, 10)
    finish(cache, cache.grow(sequence, tokens(10, 11)))
    compute(cache, sequence)
    release(cache, sequence)
    found = {who.salt: start_of(cache, tokens(range(13)), scope=who) for who in (ONE, TWO)}
    assert found == ({"one": 12, "two": 0} if scope is ONE else {"one": 12, "two": 8})
