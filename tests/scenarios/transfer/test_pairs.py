"""Blocks by ordinal: which page goes where, what is wanted, how a prompt is cut. Rows `pair`, `want`, `piece`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from quire import InputError, LayerGroup, Span
from quire.transfer.geometry.pieces import part_of, piece_of, whole
from quire.transfer.geometry.slices import BlockRun, num_pages, offered, pairs, places_of, run_at, runs_of
from quire.transfer.geometry.wants import below, first_missing, holes, wanted_after, wants

SIZE = 16
Tile = tuple[tuple[int, int], tuple[int, int], bool]
FULL = LayerGroup("full")


def moved(source: list[BlockRun], target: list[BlockRun], blocks: int) -> list[tuple[int, int]]:
    """Slot to slot, both lists given as runs."""
    have, room = places_of(source, blocks), places_of(target, blocks)
    return [(int(have[o]), int(room[o])) for o in pairs(have, room)]


def local(window: int) -> LayerGroup:
    return LayerGroup("local", window=window)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (((7, 8, 9, 10), 0), ((1, 2, 3, 4), 0), [(7, 1), (8, 2), (9, 3), (10, 4)]),
        (((40, 41, 42, 43, 44, 45), 0), ((90, 91, 92), 48), [(43, 90), (44, 91), (45, 92)]),
        (((70, 71), 48), ((80, 81, 82, 83, 84), 0), [(70, 83), (71, 84)]),
        (((5, 6, 7, 8), 16), ((30, 31, 32), 32), [(6, 30), (7, 31), (8, 32)]),
        (((5, 6, 7), 0), ((30, 31), 48), []),
        (((5, 6, 7, 8, 9), 0), ((30, 31, 32, 33), 32), [(7, 30), (8, 31), (9, 32)]),
    ],
)
def test_pages_meet_by_ordinal(
    source: tuple[tuple[int, ...], int], target: tuple[tuple[int, ...], int], expected: list[tuple[int, ...]]
) -> None:
    """pair-01: whatever start and length the two lists have."""
    assert moved([run_at(source[1], source[0], SIZE)], [run_at(target[1], target[0], SIZE)], 8) == expected


def test_a_list_starts_at_a_block() -> None:
    """pair-02: a start inside a block would shift every pair: an error, as is a list that leaves the prompt."""
    with pytest.raises(InputError, match="blocks start every 16 tokens"):
        run_at(15, [5, 6, 7, 8], SIZE)
    for runs in ([BlockRun(3, (1, 2))], [BlockRun(1, (5,)), BlockRun(1, (6,))], [BlockRun(0, (-1,))]):
        with pytest.raises(InputError, match="ascending runs"):
            places_of(runs, 4)
    with pytest.raises(InputError, match="one side has 3 blocks, the other 4"):
        pairs(places_of([], 3), places_of([], 4))


def test_holes_at_different_places_never_shift_a_pair() -> None:
    """pair-03: as many holes on both sides, at other ordinals; windows evicted at different times."""
    assert moved([BlockRun(0, (1,)), BlockRun(2, (3,))], [BlockRun(1, (8, 9))], 3) == [(3, 9)]
    assert moved([BlockRun(0, (100, 101))], [BlockRun(1, (201,))], 2) == [(101, 201)]
    assert moved([BlockRun(8, (18, 19))], [BlockRun(7, (27, 28, 29))], 10) == [(18, 28), (19, 29)]


def test_a_group_that_wants_nothing_gets_nothing() -> None:
    """pair-04: beside one that wants ordinals 1 and 2."""
    assert moved([BlockRun(0, (1, 2, 3))], [], 3) == []
    assert moved([BlockRun(0, (4, 5, 6))], [BlockRun(1, (50, 60))], 3) == [(5, 50), (6, 60)]


def test_lists_and_runs_say_the_same() -> None:
    """pair-05: a full run, a window's run, none; a hole makes two runs."""
    for runs in ((BlockRun(0, (1, 2, 3)),), (BlockRun(2, (9,)),), (), (BlockRun(0, (4,)), BlockRun(2, (5,)))):
        assert runs_of(places_of(runs, 3)) == runs
    assert places_of([BlockRun(2, (9,))], 3).tolist() == [-1, -1, 9]


@pytest.mark.parametrize(("cached", "want"), [(64, ()), (63, (Span(3, 4),)), (48, (Span(3, 4),)), (0, (Span(0, 4),))])
def test_a_cached_prefix_counts_in_whole_blocks(cached: int, want: tuple[Span, ...]) -> None:
    """want-01: 64 tokens in 4 blocks: an exact hit wants nothing, 63 and 48 cached tokens want the last block."""
    assert wanted_after(FULL, 64, SIZE, cached) == want


@pytest.mark.parametrize(("cached", "full", "near"), [(48, Span(3, 5), Span(3, 5)), (16, Span(1, 5), Span(2, 5))])
def test_a_window_wants_the_later_of_two_edges(cached: int, full: Span, near: Span) -> None:
    """want-02: 80 tokens, window 40: never the sum of what is cached and what has left the window."""
    assert wanted_after(FULL, 80, SIZE, cached) == (full,)
    assert wanted_after(local(40), 80, SIZE, cached) == (near,)
    assert whole(80, SIZE).span == Span(0, 80)


@pytest.mark.parametrize(
    ("group", "run", "length", "evicted", "expected"),
    [
        (local(40), BlockRun(0, (10, 11, 12, 13, 14)), 80, 0, (BlockRun(2, (12, 13, 14)),)),
        (local(40), BlockRun(0, (-1, -1, 12, 13, 14)), 80, 2, (BlockRun(2, (12, 13, 14)),)),
        (local(32), BlockRun(0, tuple(range(100, 107))), 96, 0, (BlockRun(4, (104, 105)),)),
        (local(32), BlockRun(4, (104, 105, 106)), 96, 4, (BlockRun(4, (104, 105)),)),
        (local(32), BlockRun(0, tuple(range(100, 107))), 96, 5, (BlockRun(5, (105,)),)),
        (FULL, BlockRun(0, tuple(range(7))), 96, 0, (BlockRun(0, tuple(range(6))),)),
        (
            LayerGroup("local", window=32, sinks=4),
            BlockRun(0, tuple(range(7))),
            96,
            0,
            (BlockRun(0, (0,)), BlockRun(4, (4, 5))),
        ),
        (local(96), BlockRun(0, tuple(range(6))), 96, 0, (BlockRun(0, tuple(range(6))),)),
    ],
)
def test_a_block_list_is_cut_from_behind_first(
    group: LayerGroup, run: BlockRun, length: int, evicted: int, expected: tuple[BlockRun, ...]
) -> None:
    """want-03: scratch behind the prompt, then evicted blocks, then what has left the window; sinks stay."""
    assert runs_of(offered(group, run, length, SIZE, evicted=evicted)) == expected


def test_a_long_prompt_offers_its_window_only() -> None:
    """want-04: 131,072 tokens, window 4,096, blocks of 64, nothing evicted yet: 64 slots from ordinal 1,984."""
    (run,) = runs_of(offered(local(4_096), BlockRun(0, tuple(range(2_048))), 131_072, 64))
    assert (run.first, len(run.slots)) == (1_984, 64)


def test_a_hole_that_nothing_explains_is_an_error() -> None:
    """want-05: a hole in the prompt; the same behind what is computed so far is none."""
    with pytest.raises(InputError, match="block 1 has no slot"):
        offered(FULL, BlockRun(0, (5, -1, 7)), 48, SIZE)
    assert runs_of(offered(FULL, BlockRun(0, (5, -1, 7)), 48, SIZE, done=31)) == (BlockRun(0, (5,)),)
    with pytest.raises(InputError, match="block 0 has no slot"):
        offered(FULL, BlockRun(1, (6, 7)), 48, SIZE)


def test_each_group_wants_for_itself() -> None:
    """want-06: full attention has 266 of 313 blocks, the window none of its 5, the state is missing."""
    full, near = LayerGroup("f", 786_432), LayerGroup("w", 2_359_296, window=128)
    groups = (full, near, LayerGroup("s", 51_216_384, snapshot_every=2_048))
    needs = tuple(group.needs_at(10_000, 32) for group in groups)

    def count(spans: Iterable[tuple[Span, ...]]) -> int:
        return sum(num_pages(s) * g.page_bytes for s, g in zip(spans, groups, strict=True))

    for near_held, expected in (((), 99_975_168), ((Span(308, 310),), 95_256_576)):
        held = ((Span(0, 266),), near_held, ())
        assert count(wants(needs, held)) == expected
        assert first_missing(needs, held) == 266
    assert count(needs) == 309_166_080


def test_a_peer_with_one_start_sends_more_and_never_less() -> None:
    """want-07: the first block any group lacks; a full hit of all groups leaves nothing."""
    needs = ((Span(0, 6),), (Span(4, 6),))
    for held, start, sent in (
        (((Span(0, 5),), (Span(4, 6),)), 5, ((Span(5, 6),), (Span(5, 6),))),
        (((Span(0, 6),), ()), 4, ((Span(4, 6),), (Span(4, 6),))),
        (needs, 6, ((), ())),
    ):
        assert first_missing(needs, held) == start
        assert wants(needs, below(held, start)) == sent


def test_what_was_not_delivered_is_named() -> None:
    """want-08: blocks 0 to 3 needed, 0 held, 1 and 3 delivered: 2 is missing."""
    assert holes(wants(((Span(0, 4),),), ((Span(0, 1),),)), ((Span(1, 2), Span(3, 4)),)) == ((Span(2, 3),),)


def tiles(length: int, chunks: list[tuple[int, int]], begun: int = 0) -> list[Tile | None]:
    made = [piece_of(Span(*c), length, SIZE, last=c == chunks[-1], begun=begun) for c in chunks]
    return [None if p is None else ((p.span.start, p.span.end), (p.blocks.start, p.blocks.end), p.last) for p in made]


def test_pieces_tile_the_prompt() -> None:
    """piece-01: 120 tokens in four chunks; 100 with 24 cached; a chunk inside one block sends nothing."""
    chunks = [(0, 40), (40, 47), (47, 90), (90, 120)]
    assert tiles(120, chunks) == [((0, 32), (0, 2), False), None, ((32, 80), (2, 5), False), ((80, 120), (5, 8), True)]
    assert tiles(100, [(24, 56), (56, 100)], 24) == [((0, 48), (0, 3), False), ((48, 100), (3, 7), True)]


def test_what_forgets_goes_with_the_last_piece() -> None:
    """piece-02: 96 tokens in two pieces; a window of 96 is sent as it comes, one of 32 and a state at the end."""
    groups = (FULL, local(96), local(32), LayerGroup("state", snapshot_every=32))
    slots = [np.arange(6, dtype=np.int32)] * 2 + [
        places_of([BlockRun(4, (4, 5))], 6),
        places_of([BlockRun(5, (7,))], 6),
    ]
    first = piece_of(Span(0, 40), 96, SIZE, last=False)
    last = piece_of(Span(40, 96), 96, SIZE, last=True)
    assert first is not None and last is not None
    early = [runs_of(part) for part in part_of(groups, slots, first, 96, SIZE)]
    late = [runs_of(part) for part in part_of(groups, slots, last, 96, SIZE)]
    assert early == [(BlockRun(0, (0, 1)),)] * 2 + [()] * 2
    assert late == [(BlockRun(2, (2, 3, 4, 5)),)] * 2 + [(BlockRun(4, (4, 5)),), (BlockRun(5, (7,)),)]


def test_a_last_piece_may_be_empty() -> None:
    """piece-03: no tokens are left; it is a piece all the same. A last one that does not end the prompt is an error."""
    empty = piece_of(Span(64, 64), 64, SIZE, last=True)
    assert empty is not None
    assert (empty.span, empty.blocks, empty.last) == (Span(64, 64), Span(4, 4), True)
    for chunk, last in ((Span(0, 65), False), (Span(0, 32), True)):
        with pytest.raises(InputError, match="the last one ends with it"):
            piece_of(chunk, 64, SIZE, last=last)
