"""Refused calls and the adaptive order: neither its counts, nor its lists, nor its clock show that one was made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from quire import (
    Cache,
    CacheConfig,
    LayerGroup,
    QuireError,
    Refusal,
    Request,
    RetainRange,
    Retention,
    Sequence,
    Span,
    TierConfig,
    check,
)
from quire.core.store import StoreName

GROUPS = (LayerGroup("full"), LayerGroup("local", window=6))


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def tokens(count: int, first: int = 0) -> Any:
    return np.arange(first, first + count, dtype=np.int32)


def busy(store: StoreName) -> tuple[Cache, Sequence]:
    """Full, with idle pages of several ages, one kept for a second, and pages made since they were last looked at."""
    clock = Clock()
    tiers = (TierConfig("device", 16), TierConfig("host", 16), TierConfig("disk", 40, slow=True))
    config = CacheConfig(
        tiers,
        4,
        GROUPS,
        max_sequences=3,
        max_length=64,
        eviction="adaptive",
        receipts=True,
        offload_min_priority=0,
        prefetch_share=0.01,
    )
    cache = Cache(config, clock=clock, store=store)
    kept = Retention((RetainRange(0, 8, 90, 1.0),))
    for number, retention in enumerate((kept, None, None, None, None)):
        clock.now += 0.1
        request = Request(number, tokens(21, 100 * number), retention=retention)
        batch = cache.add_sequence_batch([request])
        cache.finish(batch.plan)
        cache.commit(batch.sequences[0])
        cache.release(batch.sequences[0])
        cache.finish(cache.copy_down(4))
    batch = cache.add_sequence_batch([Request("live", tokens(9, 1000))])
    cache.finish(batch.plan)
    (live,) = batch.sequences
    assert cache.grow(live, tokens(8).reshape(1, -1)) is not None
    clock.now += 1000.0  # whoever asks what is kept, or how old pages are, changes something
    return cache, live


def wrong_calls(cache: Cache, live: Sequence) -> dict[str, Callable[[], object]]:
    """Every one is refused, some of them late."""
    long, row = Request("long", tokens(63, 5000)), np.array([live.row], np.int32)
    return {
        "commit more than there is": lambda: cache.commit(live, live.length + 1),
        "the same of many": lambda: cache.commit([live], np.array([live.length + 1], np.int32)),
        "the same by rows": lambda: cache.commit(row, np.array([live.length + 1], np.int32)),
        "commit a row twice": lambda: cache.commit([live, live]),
        "commit a row that does not live": lambda: cache.commit(np.array([2], np.int32)),
        "commit with a number too few": lambda: cache.commit(row, np.zeros(2, np.int32)),
        "trim what is not there": lambda: cache.trim(live, live.length + 1),
        "grow beyond the longest": lambda: cache.grow(live, num_tokens=100),
        "fork to a live id": lambda: cache.fork(live, [live.id]),
        "hold what has no slots": lambda: cache.hold(live, Span(0, 64)),
        "claim a live id": lambda: cache.claim([Request("live", tokens(9))]),
        "a prompt for which there is no room": lambda: cache.add_sequence_batch([long]),
        "admit it": lambda: cache.admit(cache.claim([long])),
        "a writer for which there is no room": lambda: cache.writer(long, tier=0),
        "a prefetch for which there is no room": lambda: cache.prefetch(Request("gone", tokens(21, 0))),
        "slots that are not there": lambda: cache.lose(0, [99]),
        "keep less than nothing": lambda: cache.truncate(long, -1),
    }


def test_a_refused_call_leaves_no_trace(store: StoreName) -> None:
    cache, live = busy(store)
    before = cache._setup.store.dump()
    assert before.groups[0].cells is not None and before.groups[0].cells.made > 0
    for name, call in wrong_calls(cache, live).items():
        try:
            found: Any = call()
        except QuireError:
            found = None
        assert found is None or isinstance(found, Refusal) or (found.refused and not found.sequences), name
        assert cache._setup.store.dump() == before, name
    check(cache)
    cache.commit(live)  # one that is not refused lets time pass, and what was kept for a second is no longer
    after = cache._setup.store.dump()
    assert after.groups[0].cells is not None and after.groups[0].cells.made == 0
    assert any(page.priority == 90 for page in before.groups[0].pages.values())
    assert not any(page.priority == 90 for page in after.groups[0].pages.values())
