"""Configurations that cannot take effect say so, ordinary ones do not; what makes no sense at all is refused."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest

from quire import Cache, CacheConfig, ConfigWarning, InputError, LayerGroup, TierConfig
from quire.core.records.config import hopeless

DEVICE = (TierConfig("device", 64),)
BOTH = (TierConfig("device", 64), TierConfig("host", 64))
PLAIN = CacheConfig(DEVICE, block_size=4, max_sequences=4, max_length=64)
FULL = LayerGroup("full")


def with_group(slots: int = 64, **values: Any) -> CacheConfig:
    """A full group and one more."""
    return replace(PLAIN, tiers=(TierConfig("device", (64, slots)),), groups=(FULL, LayerGroup("other", **values)))


HOPELESS = {
    "window larger than its pool": (with_group(8, window=40), "group 'other' (window 40) needs 10 pages to resume"),
    "window and sinks larger": (with_group(4, window=9, sinks=9), "needs 5 pages to resume, and its pool has 4"),
    "no snapshots at all": (
        with_group(snapshot_every=0, snapshot_at_end=False),
        "group 'other' has snapshots every 0 tokens, none at the end of prompts",
    ),
    "snapshots beyond the longest prompt": (
        with_group(snapshot_every=64, snapshot_at_end=False),
        "and max_length is 64: only junctions, ends of sequences and requests that name snapshots leave any",
    ),
    "blocks no prompt fills": (
        replace(PLAIN, max_length=4, partial_reuse=False),
        "no prompt can be reused: blocks of 4 tokens are never full before the last token of max_length 4",
    ),
    "a cold tier without reuse": (replace(PLAIN, tiers=BOTH, reuse=False), "tier 'host' stays empty: reuse is off"),
    "a cold tier nothing goes to": (
        replace(PLAIN, tiers=BOTH, offload_min_priority=101),
        "tier 'host' stays empty: offload_min_priority is 101",
    ),
}

ORDINARY = {
    "plain": PLAIN,
    "host": replace(PLAIN, tiers=BOTH),
    "host with no slots, no reuse": replace(PLAIN, tiers=(DEVICE[0], TierConfig("host", 0)), reuse=False),
    "no reuse": replace(PLAIN, reuse=False),
    "no partial hits": replace(PLAIN, partial_reuse=False),
    "window": with_group(window=16),
    "window that just fits": with_group(10, window=40),
    "a window of one token with sinks": with_group(window=1, sinks=4),
    "window nobody outgrows, small pool": with_group(4, window=64, sinks=64),
    "state": with_group(snapshot_every=8),
    "state, snapshots at the end alone": with_group(snapshot_every=0),
    "state, regular snapshots alone": with_group(snapshot_every=60, snapshot_at_end=False),
    "state, kept while decoding": with_group(snapshot_every=0, snapshot_at_end=False, snapshot_decoding=60),
    "state without reuse": replace(with_group(snapshot_every=0, snapshot_at_end=False), reuse=False),
    "draft": with_group(extra_tokens=4),
    "cross": with_group(cross=True),
    "chunks": replace(with_group(8, window=16), max_chunk=4),
}


@pytest.mark.parametrize("name", HOPELESS)
def test_what_can_never_take_effect_is_said_once(name: str) -> None:
    config, said = HOPELESS[name]
    (reason,) = hopeless(config)
    assert said in reason
    with pytest.warns(ConfigWarning) as caught:
        Cache(config, store="twin")
    assert [str(warning.message) for warning in caught] == [reason]
    assert caught[0].filename == __file__, "it points at who built the cache"


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_configurations_do_not_warn(name: str) -> None:
    assert hopeless(ORDINARY[name]) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Cache(ORDINARY[name], store="twin")


def test_every_reason_is_told() -> None:
    groups = (LayerGroup("a", window=36, sinks=1), LayerGroup("b", window=40))
    config = replace(PLAIN, tiers=(TierConfig("device", 8), TierConfig("host", 8)), groups=groups)
    config = replace(config, offload_min_priority=101)
    with pytest.warns(ConfigWarning) as caught:
        Cache(config, store="twin")
    assert [str(warning.message).split()[1] for warning in caught] == ["'a'", "'b'", "'host'"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"window": 8, "snapshot_every": 4},
            "it asks for two kinds at once; use one of window, snapshot_every and cross",
        ),
        ({"window": 8, "cross": True}, "it asks for two kinds at once"),
        ({"snapshot_every": 0, "cross": True}, "it asks for two kinds at once"),
        ({"sinks": 4}, "it has 4 sinks and no window; only a window forgets; leave sinks at 0"),
        ({"window": 0}, "its window is 0; a query reads at least itself: give 1 or more"),
        ({"window": 2.0}, "its window is 2.0"),
        ({"window": 8, "sinks": -1}, "sinks -1 is not a size; give a whole number >= 0"),
        ({"snapshot_every": -4}, "snapshot_every -4 is not a size"),
        ({"extra_tokens": -1}, "extra_tokens -1 is not a size"),
        ({"snapshot_every": 4, "extra_tokens": 2}, "extra_tokens have no meaning for it; leave them at None"),
        ({"cross": True, "extra_tokens": 2}, "extra_tokens have no meaning for it"),
        ({"page_bytes": 10, "planes": 3}, "10 bytes do not divide into 3 planes; make page_bytes a multiple of planes"),
    ],
)
def test_a_group_that_makes_no_sense_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        LayerGroup("odd", **values)
    assert str(refused.value).startswith("layer group 'odd': ")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"groups": (LayerGroup("x", cross=True),)},
            "a cache needs at least one layer group that reads the sequence's",
        ),
        ({"groups": ()}, "a cache needs at least one layer group"),
        ({"groups": (LayerGroup("x", cross=True), FULL)}, "a cross group stands before others; put cross groups last"),
        ({"groups": (FULL, FULL)}, "two groups have one name; name each group apart"),
        (
            {"groups": (FULL, LayerGroup("s", snapshot_every=8, snapshot_decoding=6))},
            "snapshots every 6 tokens do not fall on edges",
        ),
        (
            {"groups": (FULL, LayerGroup("s", snapshot_every=6))},
            "group 's': snapshots every 6 tokens do not fall on edges of 4; use a multiple of block_size",
        ),
        ({"max_chunk": 0}, "max_chunk 0: it must be a whole number of at least 1; pass a positive int, or None"),
        ({"max_chunk": 8.0}, "max_chunk 8.0"),
        ({"max_length": 1 << 31}, "max_length 2147483648: it must be a whole number from 1 to 2,147,483,647"),
        ({"resume_every": 1 << 31}, "resume_every 2147483648: it must be a whole number from 0 to 2,147,483,647"),
        ({"rank": 1 << 31}, "rank 2147483648: it must be a whole number from 0 to 2,147,483,647"),
        ({"max_encoder_length": 0}, "max_encoder_length 0: it must be a whole number from 1 to 2,147,483,647"),
        ({"tiers": (TierConfig("device", (64, 64)),)}, "2 numbers for 1 groups; give one number per group"),
    ],
)
def test_a_cache_that_makes_no_sense_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        replace(PLAIN, **values)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("other", "order"),
    [
        ({}, "adaptive"), ({"window": 40}, "lru"), ({"snapshot_every": 16}, "lru"), ({"cross": True}, "lru"),
        ({"window": 40, "pool": "kv"}, "adaptive"), ({"snapshot_every": 16, "pool": "kv"}, "adaptive"),
    ],
)  # fmt: skip
def test_the_order_of_eviction_is_chosen_by_the_groups(other: dict[str, Any], order: str) -> None:
    groups = (replace(FULL, pool=other.get("pool")), LayerGroup("other", **other))
    assert CacheConfig(DEVICE, 4, groups).order == order
    assert CacheConfig(DEVICE, 4, groups, eviction="release_order").order == "release_order"
    auto, chosen = CacheConfig(DEVICE, 4, groups), CacheConfig(DEVICE, 4, groups, eviction="adaptive")
    assert [replace(one, groups=(FULL,)).order for one in (auto, chosen)] == ["adaptive", "adaptive"]
    window, states = (LayerGroup(window=8),), (LayerGroup(snapshot_every=8),)
    assert [replace(auto, groups=alone).order for alone in (window, states)] == ["adaptive", "lru"]
    assert [replace(chosen, groups=alone).order for alone in (window, states)] == ["adaptive", "adaptive"]
    assert (auto.eviction, chosen.eviction) == ("auto", "adaptive") and "eviction='auto'" in repr(auto)
    assert (Cache(auto)._setup.store.dump().groups[0].cells is not None) == (order == "adaptive")
