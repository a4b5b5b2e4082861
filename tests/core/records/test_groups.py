"""What each kind of layer group reads, needs, keeps and takes; and spans."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from quire import InputError, LayerGroup, Span
from quire.core.records.groups import (
    ALL,
    Marks,
    blocks_kept,
    forked_pages,
    is_stop,
    next_stop,
    peak_pages,
    snapshots_inside,
    stored_at,
)
from quire.core.records.span import merged, without

SIZES = some.integers(1, 5)


def blocks_of(spans: tuple[Span, ...]) -> set[int]:
    return {block for span in spans for block in range(span.start, span.end)}


def test_a_full_group_reads_every_block() -> None:
    group = LayerGroup("full")
    assert group.live_blocks(9, 4) == (Span(0, 3),) == group.needs_at(9, 4)
    assert group.live_blocks(0, 4) == ()
    assert stored_at(group, 4, 9, 4) == (1, 3) and stored_at(group, 4, 4, 4) == (1, 1)
    assert (group.tail(4), group.sink(4), blocks_kept(group, 4), group.kind) == (ALL, 0, ALL, "full")


@given(some.integers(1, 20), some.integers(0, 9), some.integers(0, 40), SIZES)
def test_a_window_reads_the_blocks_of_its_tokens(window: int, sinks: int, length: int, size: int) -> None:
    group = LayerGroup("w", window=window, sinks=sinks)
    tokens = {t for t in range(length) if t < sinks or t > length - window}
    reads = {token // size for token in tokens} | ({length // size} if length % size else set())  # it adds to that one
    sink_blocks = {block for block in range(group.sink(size)) if block * size < length}
    assert blocks_of(group.live_blocks(length, size)) == reads | sink_blocks == blocks_of(group.needs_at(length, size))


@given(some.integers(1, 20), some.integers(0, 40), SIZES)
def test_what_a_window_keeps_covers_every_query_until_the_next_commit(window: int, length: int, size: int) -> None:
    group = LayerGroup("w", window=window)
    kept = set(range(max(0, length // size - blocks_kept(group, size)), -(-length // size)))
    for position in range(length // size * size, length + 1):
        assert blocks_of(group.live_blocks(position, size)) <= kept


def test_a_window_that_nothing_outgrows_is_full_attention() -> None:
    assert LayerGroup("w", window=100, sinks=3).clamped(100) == LayerGroup("w")
    assert LayerGroup("w", window=99, sinks=3).clamped(100).window == 99


def test_a_state_is_needed_at_its_position_and_read_from_outside_the_table() -> None:
    group = LayerGroup("s", snapshot_every=8)
    assert group.live_blocks(9, 4) == () and group.current == 1 and group.kind == "state"
    assert (
        group.needs_at(8, 4) == (Span(1, 2),) and group.needs_at(9, 4) == (Span(2, 3),) and group.needs_at(0, 4) == ()
    )
    assert (group.tail(4), blocks_kept(group, 4), group.every(4)) == (1, 0, 2)


def test_snapshots_are_taken_every_so_often_and_where_a_request_says() -> None:
    group, marks = LayerGroup("s", snapshot_every=16), Marks((4,), 36)
    stops = [at for at in range(41) if is_stop(group, at, marks, 4)]
    assert stops == [4, 16, 32, 36]
    ends = [0]
    while ends[-1] < 39:
        ends.append(next_stop(group, ends[-1], 39, marks, 4))
    assert ends == [0, 4, 16, 32, 36, 39]
    assert [stored_at(group, a, b, 4, marks) for a, b in pairwise(ends)] == [(0, 1), (3, 4), (7, 8), (8, 9), (9, 9)]
    rare = LayerGroup("s", snapshot_every=0, snapshot_at_end=False)
    assert [at for at in range(41) if is_stop(rare, at, marks, 4)] == [4]
    assert next_stop(group, 0, 39, None, 4) == 39 and not is_stop(group, 16, None, 4)


def test_a_step_that_writes_states_itself_is_not_cut() -> None:
    """It gets a page for every snapshot in its span, its end included; one is charged, as elsewhere."""
    group, marks = LayerGroup("s", snapshot_every=16, snapshot_inside=True), Marks((4,), 36, uncut=(Span(30, 34),))
    assert next_stop(group, 0, 39, marks, 4) == 39
    assert snapshots_inside(group, 0, 39, marks, 4) == [0, 3, 8] and snapshots_inside(group, 4, 16, marks, 4) == [3]
    assert snapshots_inside(group, 16, 35, marks, 4) == snapshots_inside(group, 0, 39, None, 4) == []
    assert (stored_at(group, 0, 36, 4, marks), stored_at(group, 0, 39, 4, marks)) == ((9, 9), (9, 9))
    cut = LayerGroup("s", snapshot_every=16)
    for start in range(40):
        assert peak_pages(group, start, 39, None, 4, marks=marks) == peak_pages(cut, start, 39, None, 4, marks=marks)
    assert snapshots_inside(cut, 0, 39, marks, 4) == []
    rare = LayerGroup("s", snapshot_every=0, snapshot_at_end=False, snapshot_inside=True)
    assert snapshots_inside(rare, 0, 39, marks._replace(junction=24), 4) == [0, 5]


@given(
    some.integers(1, 9), some.integers(0, 5), some.integers(0, 3), some.lists(some.integers(1, 6), min_size=1), SIZES
)
def test_no_chunking_holds_more_of_a_window_than_its_peak(
    window: int, sinks: int, hit: int, chunks: list[int], size: int
) -> None:
    group = LayerGroup("w", window=window, sinks=sinks)
    start, length = hit * size, hit * size + sum(chunks) * size + 1
    longest = max(chunks) * size
    peak = peak_pages(group, start, length, longest, size)
    ends = [start]
    for chunk in chunks:
        ends.append(ends[-1] + chunk * size)
    own: set[int] = set()
    for begin, end in pairwise([*ends, length]):
        own |= set(range(begin // size, -(-end // size)))
        assert len(own) <= peak
        final = end // size
        own = {b for b in own if b >= final - blocks_kept(group, size) or b < group.sink(size)}


def test_beams_share_what_is_full_and_nothing_of_a_state() -> None:
    kinds = [LayerGroup(), LayerGroup(window=5), LayerGroup(snapshot_every=0), LayerGroup(cross=True)]
    assert [forked_pages(kind, 8, 4) for kind in kinds] == [0, 0, 1, 0]
    assert [forked_pages(kind, 9, 4) for kind in kinds] == [1, 1, 1, 0]


WRONG = [
    ({"page_bytes": -1}, "page_bytes -1"), ({"planes": -1}, "planes -1"), ({"page_bytes": 10, "planes": 3}, "planes"),
    ({"window": 0}, "window is 0"), ({"window": 4, "cross": True}, "two kinds"),
    ({"window": 4, "snapshot_every": 0}, "two kinds"), ({"sinks": 2}, "no window"),
    ({"sinks": -1, "window": 2}, "sinks"),
    ({"snapshot_decoding": 8}, "keeps no states"), ({"snapshot_every": 0, "snapshot_decoding": -8}, "is not a size"),
    ({"snapshot_inside": True}, "snapshot_inside is True"), ({"snapshot_every": 8, "snapshot_inside": 1}, "is 1;"),
    ({"snapshot_every": -4}, "snapshot_every"), ({"snapshot_every": 4, "extra_tokens": 1}, "extra_tokens"),
    ({"cross": True, "extra_tokens": 1}, "extra_tokens"), ({"extra_tokens": 1.5}, "extra_tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "fact"), WRONG)
def test_impossible_groups_are_refused(values: dict[str, Any], fact: str) -> None:
    with pytest.raises(InputError, match="layer group 'g'") as caught:
        LayerGroup("g", **values)
    assert fact in str(caught.value)


def test_an_empty_span_is_legal_and_false() -> None:
    assert not Span(3, 3)
    assert len(Span(1, 3)) == 2 and 1 in Span(1, 3) and 3 not in Span(1, 3)
    with pytest.raises(InputError, match="correct the bounds"):
        Span(3, 2)


SPANS = some.lists(
    some.tuples(some.integers(0, 9), some.integers(0, 5)).map(lambda p: Span(p[0], p[0] + p[1])), max_size=4
)


@given(SPANS, SPANS)
def test_spans_are_sets_of_places(some_spans: list[Span], others: list[Span]) -> None:
    places, taken = blocks_of(tuple(some_spans)), blocks_of(tuple(others))
    joined = merged(*some_spans)
    assert blocks_of(joined) == places and all(a.end < b.start for a, b in pairwise(joined)) and all(joined)
    assert blocks_of(without(joined, tuple(others))) == places - taken
