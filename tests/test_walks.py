"""The steps of docs/walk.md stay short walks: how many files each leads through, and how deep its calls lie."""

from __future__ import annotations

import pytest

from benchmarks.walks import WALKS, plain, rich, walk_through
from quire import CacheConfig

MOST = {  # files and calls, as before the core was cut into rooms
    "plain": {"claim": (21, 11), "admit": (42, 17), "commit": (17, 12), "grow": (27, 17), "release": (22, 10)},
    "rich": {"claim": (22, 11), "admit": (41, 18), "commit": (26, 17), "grow": (25, 18), "release": (21, 14)},
}


@pytest.mark.parametrize("config", [plain(), rich()], ids=MOST)
def test_no_walk_gets_longer(config: CacheConfig, request: pytest.FixtureRequest) -> None:
    walks, most = walk_through(config), MOST[request.node.callspec.id]
    assert {name: sorted(walk.files) for name, walk in walks.items() if len(walk.files) > most[name][0]} == {}
    assert {name: walk.chain for name, walk in walks.items() if len(walk.chain) > most[name][1]} == {}


def test_every_walk_goes_somewhere() -> None:
    """Else nothing above says anything."""
    walks = walk_through(rich())
    assert set(walks) == set(WALKS) and all(len(walk.files) > 15 and len(walk.chain) > 8 for walk in walks.values())
    assert any(file.endswith("moves/evict.py") for file in walks["admit"].files)
