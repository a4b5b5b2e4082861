"""The store's pages for states that a step writes itself: what is refused, and that nothing has changed then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import LayerGroup, Request, Retention, check
from quire.core.records.retain import RetainRange
from quire.core.store import StoreName

from ..conftest import seq, small

GROUPS = (LayerGroup("full"), LayerGroup("state", snapshot_every=4, snapshot_inside=True))


@pytest.mark.parametrize("wrong", [
    {"group": 0},  # it has no states
    {"columns": [2, 1]},
    {"columns": [1, 1]},
    {"columns": [-1]},
    {"columns": [10_000]},
    {"peak": -1},
    {"priorities": np.zeros(3, np.int16)},  # of fewer blocks
])  # fmt: skip
def test_what_cannot_be_asked_changes_nothing(store: StoreName, wrong: dict[str, Any]) -> None:
    cache = small(store, 64, groups=GROUPS, max_chunk=8)
    (sequence,) = cache.add_sequence_batch([Request("a", seq(0, 20))]).sequences
    before = cache._setup.store.dump()
    asked: dict[str, Any] = {"row": sequence.row, "group": 1, "columns": [2, 3], "peak": 0}
    asked |= {"priorities": None, "durations": None}
    with pytest.raises(ValueError):
        cache._setup.store.open_snapshots(**{**asked, **wrong})
    with pytest.raises(LookupError):
        cache._setup.store.open_snapshots(**{**asked, "row": 5})
    assert cache._setup.store.dump() == before
    assert cache._setup.store.open_snapshots(**{**asked, "columns": [2, 4]}) == 2
    assert cache._setup.store.open_snapshots(**asked) == 0, "nothing is reserved any more"


def test_they_are_retained_as_the_request_says(store: StoreName) -> None:
    """Priorities by block, as for pages of other groups; the adaptive order meets what was there before."""
    cache = small(store, 64, groups=GROUPS, eviction="adaptive")
    asked = Retention((RetainRange(0, 6, 80), RetainRange(8, 12, 10, 5.0)))
    (sequence,) = cache.add_sequence_batch([Request("a", seq(0, 15), retention=asked)]).sequences
    infos = [cache._setup.store.page_info(1, page) for page in sequence.pages(1).tolist() if page >= 0]
    assert [(info.priority, info.duration > 0) for info in infos] == [(80, False), (80, False), (10, True)]
    cache.commit(sequence)
    check(cache)
