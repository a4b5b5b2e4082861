"""What newcomers get wrong first, and that the message says what to do instead."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quire import Cache, CacheConfig, InputError, LayerGroup, Request, Span, TierConfig, check
from quire.core.store import StoreName

from .conftest import seq

DEVICE = (TierConfig("device", 20),)


def test_a_prompt_longer_than_the_whole_budget_needs_max_chunk(store: StoreName) -> None:
    cache = Cache(CacheConfig(DEVICE, block_size=4, max_length=64), store=store)
    long = Request("long", seq(0, 20))
    (refusal, behind) = cache.add_sequence_batch([long, Request("b", seq(50, 2))], token_budget=8).refused
    assert (refusal.need, refusal.have, refusal.never, refusal.unchunked) == (20, 8, False, True)
    assert str(refusal).endswith("no step has more: pass max_chunk, and it is computed in parts")
    assert (behind.reason, behind.unchunked) == ("order", False)
    batch = cache.add_sequence_batch([long], token_budget=8, max_chunk=8)
    assert batch.num_tokens == 8 and not batch.refused
    check(cache)


def test_a_prompt_that_a_later_step_has_room_for_is_not_told_so(store: StoreName) -> None:
    cache = Cache(CacheConfig(DEVICE, block_size=4, max_length=64), store=store)
    requests = [Request("a", seq(0, 6)), Request("b", seq(50, 8))]
    (refusal,) = cache.add_sequence_batch(requests, token_budget=8).refused
    assert (refusal.need, refusal.have, refusal.unchunked) == (8, 2, False)
    assert str(refusal).endswith("release something or try in a later step")


def test_a_prompt_in_parts_is_not_told_to_be_one(store: StoreName) -> None:
    cache = Cache(CacheConfig(DEVICE, block_size=4, max_length=64), store=store)
    picture = Request("p", seq(0, 20), uncut=[Span(0, 12)])
    (refusal,) = cache.add_sequence_batch([picture], token_budget=8, max_chunk=8).refused
    assert (refusal.reason, refusal.need, refusal.have, refusal.unchunked) == ("tokens", 12, 8, False)


@pytest.mark.parametrize(
    ("construct", "words"),
    [
        (lambda: CacheConfig(DEVICE, blocksize=16), r"CacheConfig\(blocksize=\.\.\.\): .*; did you mean block_size\?"),  # type: ignore[call-arg]
        (lambda: TierConfig("device", slot=3), "did you mean slots?"),  # type: ignore[call-arg]
        (lambda: LayerGroup("near", windows=3), "did you mean window?"),  # type: ignore[call-arg]
        (lambda: replace(CacheConfig(DEVICE), evict="lru"), "did you mean eviction?"),  # type: ignore[call-arg]
        (lambda: CacheConfig(DEVICE, xyzzy=1), "there are tiers, block_size, "),  # type: ignore[call-arg]
    ],
)
def test_a_field_that_does_not_exist(construct: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        construct()
    with pytest.raises(TypeError):
        construct()


def test_an_engine_config_has_near_names_too() -> None:
    engine = pytest.importorskip("quire.engine", exc_type=ImportError)
    with pytest.raises(InputError, match=r"did you mean max_num_tokens\?"):
        engine.EngineConfig(max_num_token=3)


def test_configs_stay_what_they_were() -> None:
    config = CacheConfig(DEVICE, 8)
    assert pickle.loads(pickle.dumps(config)) == config == copy.deepcopy(config) == replace(config)
    with pytest.raises(TypeError, match="tiers"):
        CacheConfig()  # type: ignore[call-arg]


TEXT = "its tokens are text; pass token ids: np.asarray(tokenizer.encode(text), dtype=np.int32)"


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (np.zeros((1, 3), np.int32), "int32 with shape (1, 3); pass one row"),
        (np.zeros((), np.int32), "pass one row"),
        (np.zeros(3), "float64 with shape (3,); use np.ascontiguousarray(tokens, dtype=np.int32)"),
        ([1, 2], "a list; convert once, on arrival: np.asarray(tokens, dtype=np.int32)"),
        ("secret words", TEXT),
        (b"secret words", TEXT),
        (["secret", "words"], TEXT),
        (np.array(["secret", "words"]), TEXT),
    ],
)
def test_tokens_that_are_none(tokens: Any, words: str) -> None:
    with pytest.raises(InputError) as told:
        Request("a", tokens)
    assert words in str(told.value) and "secret" not in str(told.value)


def test_the_end_of_a_span_by_its_old_name(store: StoreName) -> None:
    cache = Cache(CacheConfig(DEVICE, block_size=4, max_length=64), store=store)
    (sequence,) = cache.add_sequence_batch([Request("a", seq(0, 10))], token_budget=8, max_chunk=8).sequences
    with pytest.warns(DeprecationWarning, match=r"Sequence\.span_end is called ran since 0\.2"):
        assert sequence.span_end == 8 == sequence.ran
    cache.commit(sequence)
    cache.add_sequence_batch([], continuing=[sequence])
    cache.commit(sequence)
    cache.grow(sequence, seq(50, 1))
    with pytest.warns(DeprecationWarning):
        assert (sequence.span_end, sequence.prompt_end, sequence.ran) == (10, 10, 11)
