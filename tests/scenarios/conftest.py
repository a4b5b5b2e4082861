"""What the scenarios share: both stores, tokens, a clock that stands still, and the acts of one request's life.

Every act ends with `check(cache)`, so a scenario that passes has kept every invariant on its way.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from quire import Batch, Cache, CacheConfig, Event, Plan, Request, RetainRange, Retention, Sequence, TierConfig, check
from quire.core.records.request import Int32
from quire.core.sequences.rows import Sequences
from quire.core.store import StoreName

Slots = int | tuple[int, ...]  # of every group alike, or one number per group
ORDERS = ("lru", "release_order")
both_orders = pytest.mark.parametrize("eviction", ORDERS)


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def build(store: StoreName, slots: Slots, host: Slots = 0, *, clock: Clock | None = None, **options: Any) -> Cache:
    """A cache of `slots` device slots (and `host` host slots); blocks of 4 tokens unless told otherwise."""
    tiers = (TierConfig("device", slots), TierConfig("host", host)) if host else (TierConfig("device", slots),)
    config = CacheConfig(tiers, **{"block_size": 4, "max_sequences": 16, "max_length": 2048} | options)
    return Cache(config, clock=clock or Clock(), store=store)


def tokens(*parts: int | Iterable[int]) -> Int32:
    """Token ids from ranges, lists and single numbers, one after the other."""
    flat = [token for part in parts for token in ([part] if isinstance(part, int) else part)]
    return np.array(flat, np.int32)


def keep(*values: int | None, size: int = 4, seconds: float | None = None) -> Retention:
    """A retention with one priority per block; None leaves the block without a value."""
    ranges = [
        RetainRange(place * size, (place + 1) * size, value, seconds)
        for place, value in enumerate(values)
        if value is not None
    ]
    return Retention(tuple(ranges))


@dataclass(frozen=True)
class Ran:
    """What a request got: its first token to compute and its device slots."""

    start: int
    slots: list[int]


def admit(cache: Cache, *requests: Request, **limits: Any) -> list[Sequence]:
    """All of them, in one batch, moves done."""
    batch = try_admit(cache, *requests, **limits)
    assert not batch.refused, [str(refusal) for refusal in batch.refused]
    return batch.sequences


def try_admit(cache: Cache, *requests: Request, **limits: Any) -> Batch:
    """As many as fit, moves done."""
    with cache.claim(requests) as claims:
        check(cache)
        batch = cache.admit(claims, **limits)
    check(cache)
    finish(cache, batch.plan)
    return batch


def finish(cache: Cache, plan: Plan | None) -> None:
    """The moves have run, none failed."""
    assert plan is not None, "there was no room"
    assert not cache.finish(plan).setbacks
    check(cache)


def compute(cache: Cache, sequence: Sequence, computed: int | None = None) -> int:
    """The step has run: KV exists up to `computed` (None: for every token). Pages that became findable."""
    stored = cache.commit(sequence, computed)
    check(cache)
    return stored


def decode(cache: Cache, sequence: Sequence, *sampled: int) -> None:
    """Steps that sample these tokens: all before is computed, the last one is not."""
    for token in sampled:
        compute(cache, sequence)
        finish(cache, cache.grow(sequence, tokens(token)))


def fork(cache: Cache, sequence: Sequence, *names: Hashable) -> tuple[list[Sequence], Plan]:
    """One more sequence per name; there is room for them."""
    made = cache.fork(sequence, names)
    assert made is not None, "there was no room"
    return made


def release(cache: Cache, *sequences: Sequence, store: bool = True) -> None:
    """Give them up, in this order."""
    for sequence in sequences:
        cache.release(sequence, store=store)
        check(cache)


def run(cache: Cache, request: Request, computed: int | None = None, sampled: Iterable[int] = ()) -> Ran:
    """One request from admission to release."""
    (sequence,) = admit(cache, request)
    ran = got(sequence)
    compute(cache, sequence, computed)
    decode(cache, sequence, *sampled)
    release(cache, sequence)
    return ran


def got(sequence: Sequence) -> Ran:
    """Start and slots of a live sequence."""
    return Ran(sequence.start, sequence.slots().tolist())


def named(sequence: Sequence, form: str) -> Sequences:
    """A sequence in each way that calls take it."""
    forms: dict[str, Sequences] = {"one": sequence, "many": [sequence], "rows": np.array([sequence.row], np.int32)}
    return forms[form]


def start_of(cache: Cache, prompt: Int32, **request: Any) -> int:
    """Where a request would start now; asks, changes nothing."""
    (probe,) = cache.probe([Request("probe", prompt, **request)])
    return probe.start


def events(cache: Cache) -> list[Event]:
    """What was recorded since the last call."""
    return list(cache.take_events())
