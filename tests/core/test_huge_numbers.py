"""Numbers that no machine counts to: told in the project's own errors, in a line, before anything changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quire import (
    Cache,
    CacheConfig,
    Encoder,
    InputError,
    LayerGroup,
    QuireError,
    Request,
    RetainRange,
    Span,
    TierConfig,
    check,
)  # fmt: skip

HUGE = 10**5000  # Python itself refuses to print it
TOKENS = np.arange(8, dtype=np.int32)
DEVICE = (TierConfig("device", 64),)

ALONE: dict[str, Callable[[], Any]] = {
    "a span": lambda: Span(HUGE, 0),
    "a span's end": lambda: Span(0, HUGE),
    "a range": lambda: RetainRange(HUGE, 0, 1),
    "a priority": lambda: RetainRange(0, 4, HUGE),
    "slots": lambda: CacheConfig((TierConfig("device", HUGE),)),
    "slots of one tier": lambda: CacheConfig((TierConfig("device", 2**31 - 1),)),
    "slots of all tiers": lambda: CacheConfig((TierConfig("device", 2**30), TierConfig("host", 2**30))),
    "a block": lambda: CacheConfig(DEVICE, HUGE),
    "a rank": lambda: CacheConfig(DEVICE, rank=HUGE),
    "a length": lambda: CacheConfig(DEVICE, max_length=HUGE),
    "a chunk": lambda: CacheConfig(DEVICE, max_chunk=-HUGE),
    "a least priority": lambda: CacheConfig(DEVICE, offload_min_priority=HUGE),
    "beams": lambda: Request("b", TOKENS, beams=-HUGE),
    "a dummy": lambda: Request.dummy("b", -HUGE),
    "a window": lambda: LayerGroup("local", window=-HUGE),
    "an encoder": lambda: Encoder(-HUGE),
    "sinks": lambda: LayerGroup("local", window=4, sinks=2**31),
    "snapshots": lambda: LayerGroup("ssm", snapshot_every=2**63),
    "snapshots while decoding": lambda: LayerGroup("ssm", snapshot_every=4, snapshot_decoding=2**63),
    "room for drafts": lambda: LayerGroup("draft", extra_tokens=2**31),
}
CALLS: dict[str, Callable[[Cache, Any], Any]] = {
    "a budget": lambda c, s: c.admit(c.claim([]), token_budget=-HUGE),
    "a commit": lambda c, s: c.commit(s, HUGE),
    "a commit below": lambda c, s: c.commit(s, -HUGE),
    "commits": lambda c, s: c.commit([s], HUGE),
    "growth": lambda c, s: c.grow(s, num_tokens=HUGE),
    "a trim": lambda c, s: c.trim(s, HUGE),
    "a find": lambda c, s: c.find(Request("f", TOKENS), 2**63),
    "an offload": lambda c, s: c.offload(-HUGE),
    "a table": lambda c, s: c.table(HUGE),
    "a usage": lambda c, s: c.usage(HUGE, HUGE),
    "a hold": lambda c, s: c.hold(s, Span(0, 2**61)),
    "a sequence": lambda c, s: c.sequence(HUGE),
    "forks": lambda c, s: c.fork(s, [HUGE, HUGE]),
    "failed moves": lambda c, s: c.finish(c.offload(0), [HUGE]),
}
FINE: dict[str, Callable[[Cache], Any]] = {
    "what is kept": lambda c: c.truncate(Request("b", TOKENS), HUGE),
    "a limit of reuse": lambda c: c.claim([Request("b", TOKENS, reuse_limit=HUGE)]).drop(),
    "a budget": lambda c: c.admit(c.claim([]), token_budget=HUGE),
    "tokens to come": lambda c: c.claim([Request("b", TOKENS, max_new_tokens=HUGE)]).drop(),
}


@pytest.mark.parametrize("what", ALONE)
def test_a_huge_number_is_refused_in_a_line(what: str) -> None:
    with pytest.raises(InputError) as refused:
        ALONE[what]()
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("what", CALLS)
def test_a_call_with_a_huge_number_changes_nothing(what: str, store: Any) -> None:
    cache = Cache(CacheConfig(DEVICE, 4, max_length=64), store=store)
    (sequence,) = cache.add_sequence_batch([Request("a", TOKENS)]).sequences
    before = (cache.num_free(), sequence.length, sequence.computed)
    with pytest.raises(QuireError) as refused:
        CALLS[what](cache, sequence)
    assert len(str(refused.value)) < 300
    assert (cache.num_free(), sequence.length, sequence.computed) == before
    check(cache)


@pytest.mark.parametrize("what", FINE)
def test_more_than_there_can_be_means_all(what: str, store: Any) -> None:
    cache = Cache(CacheConfig(DEVICE, 4, max_length=64), store=store)
    FINE[what](cache)
    check(cache)
