"""No two different inputs are ever taken for each other."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from quire import Cache, CacheConfig, InputError, Media, Request, Scope, Span, TierConfig, check
from quire.core.records.identity import token_words

VALUES = [None, 0, 1, -1, "", "0", "a", "ab", b"", b"a", b"ab", 2**80]


def test_scopes_encode_apart() -> None:
    """Every combination of typed values has an encoding of its own, also where plain joining would collide."""
    keys = {Scope(lora, salt, epoch).key for lora, salt, epoch in itertools.product(VALUES, repeat=3)}
    assert len(keys) == len(VALUES) ** 3


def test_scope_name_in_events_is_stable() -> None:
    seed, other = bytes(16), bytes(15) + b"1"
    assert Scope(lora=1).event_hash(seed) == Scope(lora=1).event_hash(seed) != Scope(lora=2).event_hash(seed)
    assert Scope(lora=1).event_hash(seed) != Scope(lora=1).event_hash(other)


@pytest.mark.parametrize("value", [True, 1.5, ("a",)])
def test_scope_refuses_values_without_a_type(value: object) -> None:
    with pytest.raises(InputError, match="use an int, a str"):
        Scope(salt=value)  # type: ignore[arg-type]


def test_plain_tokens_need_no_words() -> None:
    assert token_words(4, None, ()) is None
    assert token_words(4, np.zeros(4, np.int64), ()) is None


def test_words_tell_media_offsets_and_extra_ids_apart() -> None:
    """Same image, same offset: equal words. Other image, offset, uuid, or an extra id: different ones."""
    image, other = Media(b"x" * 32, (Span(1, 3),)), Media(b"y" * 32, (Span(1, 3),))
    named = Media(b"x" * 32, (Span(1, 3),), uuid="u")
    late = Media(b"x" * 32, (Span(0, 2),))
    ids = np.array([0, 5, 0, 0], np.int64)
    rows = set()
    for media, extra in [((image,), None), ((other,), None), ((named,), None), ((), ids), ((image,), ids)]:
        words = token_words(4, extra, media)
        assert words is not None
        assert not words[0].any() and words[1].any()
        rows.add(words[1].tobytes())
    assert len(rows) == 5
    first, second = token_words(4, None, (image,)), token_words(4, None, (late,))
    assert first is not None and second is not None
    assert (first[1] == second[0]).all() and (first[1] != second[1]).any()


def test_runs_of_one_item_count_on() -> None:
    """An item split in two runs goes on where the first run stopped."""
    whole = token_words(6, None, (Media(b"x" * 32, (Span(0, 4),)),))
    split = token_words(6, None, (Media(b"x" * 32, (Span(0, 2), Span(3, 5))),))
    assert whole is not None and split is not None
    assert (whole[2] == split[3]).all() and (whole[3] == split[4]).all() and not split[2].any()


def test_a_tenant_is_no_part_of_a_page() -> None:
    """Whose a request is says nothing about its pages: two tenants in one scope share, and a sequence knows its own."""
    cache = Cache(CacheConfig(tiers=[TierConfig("device", 8)], block_size=4, max_sequences=4))
    tokens = np.arange(9, dtype=np.int32)
    one, other = (Request(nth, tokens, tenant=name) for nth, name in enumerate(("alice", "bob")))
    (first,) = cache.add_sequence_batch([one]).sequences
    cache.commit([first])
    (second,) = cache.add_sequence_batch([other]).sequences
    assert (first.tenant, second.tenant, second.start) == ("alice", "bob", 8)
    forked = cache.fork(second, ["fork"])
    assert forked is not None and forked[0][0].tenant == "bob" and cache.suspend(second).tenant == "bob"
    assert "alice" not in repr(one) and "alice" not in repr(first) and Request("n", tokens).tenant is None
    check(cache)


@pytest.mark.parametrize("tenant", ["", "x" * 257, "\ud800", 1, b"alice"])
def test_a_tenant_is_a_name(tenant: object) -> None:
    with pytest.raises(InputError, match="tenant"):
        Request("r", np.arange(3, dtype=np.int32), tenant=tenant)  # type: ignore[arg-type]
