"""eviction_cost: what is deep in a prompt costs more to compute again, and so stays longer."""

from typing import Any

import numpy as np
import pytest

from quire import Cache, CacheConfig, InputError, LayerGroup, Request, TierConfig
from quire.core.check import check
from quire.core.state.stream import dear_depths
from quire.core.store import StoreName
from quire.engine import EngineConfig
from quire.simulate import ReplaySettings


def survivors(store: StoreName, **cost: Any) -> list[str]:
    """Of a long text and a short one that came a while later, those whose ends are there after others came."""
    now = [0.0]
    config = CacheConfig([TierConfig("device", 64)], 4, eviction="adaptive", max_length=256, **cost)
    cache = Cache(config, clock=lambda: now[0], store=store)
    texts = {"long": np.arange(1000, 1161, dtype=np.int32), "short": np.arange(5000, 5017, dtype=np.int32)}
    for tokens in (texts["long"], texts["short"], *(np.full(5, 9000 + n, np.int32) for n in range(11))):
        now[0] += 100.0
        (sequence,) = cache.add_sequence_batch([Request(object(), tokens)]).sequences
        cache.commit(sequence)
        cache.release(sequence)
    check(cache)
    return [name for name, tokens in texts.items() if cache.probe([Request("p", tokens)])[0].start >= len(tokens) - 1]


@pytest.mark.parametrize("store", ["twin", "compiled"])
def test_a_deep_page_outlives_younger_ones_at_the_start_of_a_prompt(store: StoreName) -> None:
    assert survivors(store) == ["short"], "the oldest page goes first, whatever it costs"
    assert survivors(store, eviction_cost="compute", compute_doubles_at=1) == ["long"]
    assert survivors(store, eviction_cost="compute", compute_doubles_at=100_000) == ["short"], "here they cost the same"


def test_ages_shrink_by_the_fourth_root_of_what_a_token_costs() -> None:
    depths = dear_depths(LayerGroup(), 16, 1 << 20, 30_000)
    costs = [1 + (depth - 1) * 16 / 30_000 for depth in depths]
    assert [int(3 * 0.25 * np.log2(cost) + 0.5) for cost in costs] == list(range(1, len(depths) + 1))
    assert dear_depths(LayerGroup(), 16, 100, 30_000) == [], "no sequence gets where a token costs more"
    assert dear_depths(LayerGroup(window=50_000), 16, 1 << 20, 30_000) == depths[:1], "a window reads no more than that"
    assert dear_depths(LayerGroup(snapshot_every=64), 16, 1 << 20, 30_000) == [], "a state costs the same everywhere"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"eviction_cost": "time"}, "not a known cost"),
        ({"eviction_cost": "compute", "eviction": "lru"}, "only the adaptive order weighs pages"),
        ({"compute_doubles_at": 0}, "from 1 to"),
        ({"compute_doubles_at": 1.5}, "from 1 to"),
        ({"compute_doubles_at": 1 << 31}, "from 1 to 2,147,483,647"),
    ],
)
def test_costs_that_cannot_be_meant_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        CacheConfig([TierConfig("device", 8)], **fields)
    if fields == {"eviction_cost": "time"}:
        with pytest.raises(InputError, match="not a known cost"):
            EngineConfig(8, **fields)


def test_a_replay_says_what_it_weighed() -> None:
    assert "eviction_cost" not in ReplaySettings().to_json()
    assert ReplaySettings(eviction_cost="compute").to_json()["eviction_cost"] == "compute"


@pytest.mark.parametrize("store", ["twin", "compiled"])
def test_a_store_in_use_takes_no_depths(store: StoreName) -> None:
    cache = Cache(CacheConfig([TierConfig("device", 8)], 4, max_length=16, eviction="adaptive"), store=store)
    with pytest.raises(ValueError, match="1 to 15"):
        cache._setup.store.weigh(0, [])
    (sequence,) = cache.add_sequence_batch([Request("a", np.arange(9, dtype=np.int32))]).sequences
    cache.commit(sequence)
    with pytest.raises(ValueError, match="empty"):
        cache._setup.store.weigh(0, [2])
