"""Writers in one pool of host memory that is full: both stores take the same slots, however few at a time.

The reference store claims all of the text, the compiled store looks at what goes next: the same must go.
"""

from __future__ import annotations

import random
from typing import Any, Literal

import numpy as np
import pytest

from quire import (
    Cache,
    CacheConfig,
    LayerGroup,
    Refusal,
    Request,
    RetainRange,
    Retention,
    TierConfig,
    Writer,
    check,
)

from ...effort import cases

SIZE = 4
Tokens = np.ndarray[tuple[int], np.dtype[np.int32]]


def pooled(
    store: Literal["twin", "compiled"], slots: int, windows: list[int | None], disk: int, device: int = 0
) -> Cache:
    layers = tuple(LayerGroup(f"g{nth}", window=window, pool="host") for nth, window in enumerate(windows))
    tiers = [TierConfig("device", device), TierConfig("host", slots)]
    if disk:
        tiers.append(TierConfig("disk", disk, slow=True))
    config = CacheConfig(tuple(tiers), SIZE, layers, max_length=400, partial_reuse=False, eviction="lru")
    return Cache(config, store=store, clock=lambda: 0.0)


def texts(rng: random.Random) -> list[Tokens]:
    """Some that part late, some that are nobody else's."""
    roots = [rng.choices(range(9), k=120) for _ in range(3)]
    made = []
    for _ in range(14):
        root = rng.choice(roots)
        cut = rng.randrange(1, 110)
        made.append(np.array(root[:cut] + rng.choices(range(9), k=rng.randrange(1, 40)), np.int32))
    return made


def one_text(cache: Cache, nth: int, tokens: Tokens, seed: int) -> list[Any]:
    """What happens to it: found, written part by part, read by others in between."""
    rng, told = random.Random(seed), list[Any]()
    wish = None if rng.random() < 0.8 else Retention([RetainRange(0, None, rng.choice([10, 60, 90]))])
    with cache.find(Request((nth, "f"), tokens)) as found:
        told.append(found.end)
        begin = found.end
        if rng.random() < 0.5:
            found.used()
    writer = cache.writer(Request(nth, tokens, retention=wish), tier=1, from_=begin, end=0)
    assert isinstance(writer, Writer)
    groups = range(len(cache.config.groups))
    with writer:
        at = begin
        while at < len(tokens):
            at = min(len(tokens), at + SIZE * rng.choice([1, 1, 1, 2, 3, 6, 40]))
            lack = writer.extend(None, end=at, skip={rng.choice(groups): range(rng.randrange(40))})
            told.append((lack.need, lack.have) if lack is not None else [writer.taken(group) for group in groups])
            if lack is not None or rng.random() < 0.05:
                break
            if rng.random() < 0.9:
                told.append(writer.written(at))
    return told


@pytest.mark.long
@pytest.mark.parametrize("seed", range(cases(12, 60)))
def test_few_slots_at_a_time_are_the_same_slots_in_both_stores(seed: int) -> None:
    rng = random.Random(seed)
    windows: list[int | None] = [None, *rng.choices([None, 2, 6, 9, 30], k=rng.choice([0, 1, 2, 4]))]
    slots, disk = rng.choice([6, 40, 90, 160, 300]), rng.choice([0, 0, 80])
    both = [pooled(store, slots, windows, disk) for store in ("twin", "compiled")]
    given = texts(rng)
    for nth in range(40):
        tokens = rng.choice(given)
        held = rng.choice(given)
        told = []
        for cache in both:
            with cache.find(Request((nth, "held"), held)):  # what others hold does not go
                told.append(one_text(cache, nth, tokens, seed * 1000 + nth))
        assert told[0] == told[1], f"text {nth}"
    for cache in both:
        check(cache)
        assert cache.usage(1).held == 0
    assert both[0].stats() == both[1].stats()


def written(cache: Cache, name: str, tokens: list[int], begin: int = 0) -> list[list[int]]:
    """All of a text, in one call; the slots it took, by group."""
    writer = cache.writer(Request(name, np.array(tokens, np.int32)), tier=1, from_=begin)
    assert isinstance(writer, Writer)
    with writer:
        writer.written(len(tokens))
        return [writer.taken(group)[1] for group in range(len(cache.config.groups))]


@pytest.fixture(params=["twin", "compiled"])
def store(request: pytest.FixtureRequest) -> Literal["twin", "compiled"]:
    return request.param  # type: ignore[no-any-return]


def end_of(cache: Cache, tokens: list[int]) -> int:
    with cache.find(Request("end", np.array(tokens, np.int32))) as found:
        return found.end


def test_what_others_hold_is_no_room(store: Literal["twin", "compiled"]) -> None:
    cache = pooled(store, 8, [None, 6], 0, device=8)
    text, other, more = list(range(100, 108)), list(range(200, 208)), [1, 2, 3, 4]
    written(cache, "other", other)  # first, and so the next to go
    written(cache, "text", text)
    with cache.claim([Request("held", np.array([*other, 9], np.int32))]):
        lack = cache.writer(Request("w", np.array(text + more, np.int32)), tier=1, from_=8)
        assert isinstance(lack, Refusal) and (lack.need, lack.have) == (2, 0)
    assert end_of(cache, text) == end_of(cache, other) == 8
    written(cache, "longer", text + more, 8)
    assert end_of(cache, text + more) == 12 and end_of(cache, other) == 0
    check(cache)


def test_room_in_the_middle_is_not_made_of_the_text_below(store: Literal["twin", "compiled"]) -> None:
    tiers = (TierConfig("device", 0), TierConfig("host", 2), TierConfig("cold", 2))
    cache = Cache(CacheConfig(tiers, SIZE, max_length=40, eviction="lru"), store=store)
    text, other = list(range(100, 108)), list(range(200, 208))
    for name, tokens, tier in (("text", text, 2), ("other", other, 1)):
        writer = cache.writer(Request(name, np.array(tokens, np.int32)), tier=tier)
        assert isinstance(writer, Writer)
        with writer:
            writer.written(8)
    longer = [*text, 1, 2, 3, 4]
    written(cache, "longer", longer, 8)
    assert end_of(cache, longer) == 12
    check(cache)
