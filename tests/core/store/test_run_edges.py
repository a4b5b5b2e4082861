"""Runs of evictions, and the lists they are taken from, where a shortcut of the compiled store could go another way
than the reference store: one state per test, met by luck alone in random lives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import LayerGroup, Request, RetainRange, Retention, Span, Writer
from quire.core.records.config import Eviction
from quire.core.store.reuse import AGE_EDGES

from .test_runs import BLOCK, ONE, Both, adaptive, text

EDGE = next(edge for edge in AGE_EDGES if edge > 100_000_000) / 1_000_000  # seconds: here a bin ends


def tokens(name: int, blocks: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(text(name, blocks), np.int32)


def refresh(both: Both) -> None:
    for cache in both.caches:
        cache.refresh()


def put(both: Both, name: object, ids: Any, *priorities: int) -> None:
    """A text that nobody holds, each of its blocks with a priority of its own."""
    ranges = [RetainRange(BLOCK * nth, BLOCK * nth + BLOCK, one) for nth, one in enumerate(priorities)]
    ask = Request(name, np.asarray(ids, np.int32), retention=Retention(tuple(ranges)))
    batches = [cache.add_sequence_batch([ask]) for cache in both.caches]
    both.plan([batch.plan for batch in batches])
    for cache, batch in zip(both.caches, batches, strict=True):
        cache.commit(batch.sequences)
        cache.release(batch.sequences[0])


def write(both: Both, tier: int, name: int, blocks: range, priority: int) -> None:
    """Some blocks of a text, in one tier: what lies above them need not be there."""
    rules = Retention((RetainRange(0, None, priority),))
    ask = Request(("written", name), tokens(name, blocks.stop), retention=rules)
    for cache in both.caches:
        writer = cache.writer(ask, tier=tier, from_=BLOCK * blocks.start)
        assert isinstance(writer, Writer) and not len(writer.plan)
        writer.written(BLOCK * blocks.stop)
        writer.close()


def test_a_parent_that_went_before_its_child_does_not_go_again() -> None:
    """Both are covered, the child by a page that is held; the parent was idle earlier."""
    both = adaptive(3, 0)
    rows = both.add(1, text(1, 3))
    ends = [[cache.hold(row, Span(BLOCK * nth, BLOCK * nth + BLOCK)) for nth in (1, 2)]
            for cache, row in zip(both.caches, rows, strict=True)]  # fmt: skip
    for cache, row, (second, _) in zip(both.caches, rows, ends, strict=True):
        cache.release(row)
        assert second is not None
        cache.drop(second)
    both.put(2, text(2, 2))
    both.same()
    assert both.caches[1].stats().dropped == 2


def test_a_parent_that_was_used_since_does_not_go_with_its_child() -> None:
    """All its blocks were used twice, the first one three times, much later: one class, and another age."""
    pytest.importorskip("quire.core.store._compiled", reason="the compiled store is not built")
    both = Both(6, 0, groups=ONE, eviction="adaptive", partial_reuse=False)
    for _ in range(2):
        both.put(1, [*text(1, 3), 7])
    both.now = 100.0
    both.put(2, [*text(1, 1), 8])
    both.put(3, text(3, 3))
    refresh(both)
    both.put(4, text(4, 2))
    both.same()
    assert both.caches[1].probe([Request("first", tokens(1, 3))])[0].start == BLOCK


def test_an_older_page_at_the_front_of_a_list_is_seen_to_grow_older() -> None:
    """Its child, of a lower priority, goes and releases it; the page behind it is not too old for the list yet."""
    both = adaptive(5, 0)
    put(both, 1, text(1, 2), 35, 30)
    both.now = 1.0
    both.put(2, text(2, 1))
    for both.now in (90.0, 91.0):  # to the list that both belong in; then it is known when they will not any more
        both.put(both.now, text(int(both.now), 1), 90)
        refresh(both)
    both.put(3, text(3, 1), 90)  # for the child
    both.now = EDGE + 0.5
    refresh(both)
    both.same()


def test_an_older_page_that_has_become_the_first_of_a_list_is_seen_to_grow_older() -> None:
    """It was idle later than the page before it, which is used now."""
    both = adaptive(6, 0)
    older = both.add(1, text(1, 1))
    both.now = 1.0
    both.put(2, text(2, 1))
    for both.now in (90.0, 91.0):
        both.put(both.now, text(int(both.now), 1), 90)
        refresh(both)
        for cache, row in zip(both.caches, older, strict=True) if both.now == 90.0 else ():
            cache.release(row)
    both.add(3, [*text(2, 1), 7])
    both.now = EDGE + 0.5
    refresh(both)
    both.same()


@pytest.mark.parametrize("eviction", ["lru", "adaptive"])
def test_what_a_writer_takes_from_the_device_goes_down(eviction: Eviction) -> None:
    pytest.importorskip("quire.core.store._compiled", reason="the compiled store is not built")
    both = Both(4, 6, groups=ONE, eviction=eviction)
    both.put(1, text(1, 4))
    ask = Request("written", tokens(2, 3))
    asked = [cache.writer(ask, tier=0) for cache in both.caches]
    writers = [writer for writer in asked if isinstance(writer, Writer)]
    both.plan([writer.plan for writer in writers])
    both.same()
    assert both.caches[1].stats().offloaded == 3
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("eviction", ["lru", "adaptive"])
def test_what_must_stay_on_the_host_stays_though_nobody_claims_it(eviction: Eviction) -> None:
    """The store's own promise: of a cache, only one with a slow tier asks for it."""
    pytest.importorskip("quire.core.store._compiled", reason="the compiled store is not built")
    both = Both(4, 4, groups=ONE, eviction=eviction)
    both.put(1, text(1, 4))
    both.put(2, text(2, 4))  # the first is on the host
    for cache in both.caches:
        cache._setup.store.keep(0, np.array([0, 1], np.int32))
    for ids in (text(3, 4), [*text(1, 2), 7], text(4, 4), text(5, 4)):  # it comes up, too, and goes
        both.put(ids[0], ids)
        one, other = (cache._setup.store.dump() for cache in both.caches)
        assert one == other
        assert min(one.groups[0].pages[nth].slots[1] for nth in (0, 1)) >= 0


def test_a_parent_that_is_released_on_the_host_goes_before_the_next_of_its_run() -> None:
    """A page goes down for its child's sake, in the place of one worth more, whose parent would be next. Then one is
    dropped, and its parent on the host is worth less."""
    both = adaptive(3, 4)
    for tier, name, blocks, priority in (
        (1, 1, range(1, 2), 60), (1, 2, range(2), 50), (1, 3, range(1), 38),
        (0, 1, range(1), 36), (0, 3, range(1, 2), 40), (0, 4, range(1), 45),
    ):  # fmt: skip
        write(both, tier, name, blocks, priority)
    both.put(9, text(9, 3), 90)
    both.same()
    ends = [both.caches[1].probe([Request("p", tokens(name, 2))])[0].start for name in (1, 2, 3, 4)]
    assert (ends, both.longest) == ([3, 2, 0, 2], 2)


def test_a_page_that_is_needed_on_the_host_stays() -> None:
    """It is worth less than what would come; but its child is on the device."""
    both = adaptive(2, 1)
    for tier, name, blocks, priority in ((1, 1, range(1), 36), (0, 1, range(1, 2), 60), (0, 2, range(1), 50)):
        write(both, tier, name, blocks, priority)
    both.put(9, text(9, 1), 90)
    both.same()
    assert [both.caches[1].probe([Request("p", tokens(name, 2))])[0].start for name in (1, 2)] == [3, 0]


def test_what_goes_down_comes_behind_what_is_as_old() -> None:
    both = adaptive(2, 2)
    for tier, name in ((1, 1), (1, 2), (0, 3), (0, 4)):
        write(both, tier, name, range(1), 36 if tier else 40)
    both.put(9, text(9, 2), 90)
    both.put(10, text(10, 1), 95)
    both.same()
    assert both.longest == 2


@pytest.mark.parametrize("kind", [{"snapshot_every": BLOCK}, {"window": BLOCK + 1}], ids=["states", "a window"])
def test_what_was_passed_is_ranked_anew_when_it_goes_down(kind: dict[str, Any]) -> None:
    """What came behind it was cut off since."""
    pytest.importorskip("quire.core.store._compiled", reason="the compiled store is not built")
    both = Both(2, 1, groups=(LayerGroup("one", page_bytes=1, **kind),), eviction="lru")
    for tier, name, blocks, priority in ((1, 2, range(1), 30), (0, 1, range(1), 35), (0, 1, range(1, 2), 35)):
        write(both, tier, name, blocks, priority)
    for cache in both.caches:
        assert cache.truncate(Request("cut", tokens(1, 2)), BLOCK) == 1
    both.add(9, text(9, 2))
    both.same()
    assert both.longest == 1
