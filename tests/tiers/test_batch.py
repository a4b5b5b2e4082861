"""How moves gather into batches, and which plans are refused. No bytes are moved here."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.records.errors import InputError, UnknownError
from quire.core.records.plan import NO_MOVES, Kind, Plan
from quire.tiers import PageLayout, TierInfo
from quire.tiers import move_batch as batches
from quire.tiers.move_batch import Ground, by_key, gather
from tests.effort import cases

from .stand_ins import Row, plan_of, rows_among

ON, OFF, COPY, SWAP = Kind.ONBOARD, Kind.OFFLOAD, Kind.COPY, Kind.EXCHANGE
LAYOUTS = (PageLayout(32, planes=2), PageLayout(24))
BLOCK = 4


def ground() -> Ground:
    device, host = TierInfo("device", (8, 4), (32, 24)), TierInfo("host", (16, 0), (32, 24))
    return Ground([device, host], LAYOUTS, BLOCK)


def gathered(*rows: Row) -> list[list[int]]:
    place = ground()
    return [batch.moves for batch in place.batches(place.check(plan_of(0, *rows)))]


def off(device: int, host: int) -> Row:
    return OFF, 0, (0, device), (1, host), BLOCK


def on(host: int, device: int) -> Row:
    return ON, 0, (1, host), (0, device), BLOCK


def copy(source: int, target: int, tokens: int = BLOCK, group: int = 0) -> Row:
    return COPY, group, (0, source), (0, target), tokens


def swap(device: int, host: int) -> Row:
    return SWAP, 0, (0, device), (1, host), BLOCK


def test_moves_without_hazards_are_one_batch() -> None:
    assert gathered(off(0, 3), off(1, 5), off(2, 0)) == [[0, 1, 2]]


def test_make_room_then_fill_it_gathers_by_direction() -> None:
    assert gathered(off(0, 0), on(9, 0), off(1, 1), on(8, 1), off(2, 2), on(7, 2)) == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize(
    "rows",
    [
        (copy(0, 1), copy(1, 2)),  # reads what the other wrote
        (copy(0, 1), copy(2, 0)),  # writes what the other reads
        (copy(0, 2), copy(1, 2)),  # writes what the other wrote
        (swap(0, 1), swap(0, 2)),
        (swap(0, 1), swap(2, 1)),
    ],
)
def test_each_hazard_ends_a_batch(rows: tuple[Row, Row]) -> None:
    assert gathered(*rows) == [[0], [1]]


def test_one_source_may_be_read_many_times_in_a_batch() -> None:
    assert gathered(copy(0, 1), copy(0, 2), copy(0, 3)) == [[0, 1, 2]]


def test_the_same_slot_number_in_another_tier_or_group_is_no_hazard() -> None:
    assert gathered(off(3, 3), off(4, 4), copy(5, 3, group=0)) == [[0, 1], [2]]
    assert gathered(copy(0, 1), copy(1, 2, group=1), copy(3, 4)) == [[0, 2], [1]]


def test_a_swap_writes_its_source_and_reads_its_target_too() -> None:
    assert gathered(swap(4, 4), off(0, 1), swap(0, 2)) == [[0], [1], [2]]
    assert gathered(off(0, 0), swap(1, 1), off(1, 2)) == [[0], [1], [2]]
    assert gathered(on(0, 0), swap(1, 1), on(1, 2)) == [[0], [1], [2]]
    assert gathered(off(0, 0), swap(1, 1), off(2, 1)) == [[0], [1], [2]]


def test_a_read_that_joins_an_early_batch_does_not_hide_one_in_a_later_batch() -> None:
    assert gathered(off(0, 0), copy(1, 2), off(1, 3), copy(3, 1)) == [[0, 2], [1], [3]]


def test_parts_of_different_length_do_not_mix_and_whole_ones_do() -> None:
    rows = (copy(0, 4, tokens=1), copy(1, 5, tokens=2), copy(2, 6, tokens=1), copy(3, 7))
    assert gathered(*rows) == [[0, 2], [1], [3]]
    place = ground()
    cuts = [batch.cut for batch in place.batches(place.check(plan_of(0, *rows)))]
    assert cuts == [(2, 4), (2, 8), (1, 32)]


def test_a_page_that_cannot_be_split_ignores_tokens() -> None:
    assert gathered(copy(0, 1, tokens=1, group=1), copy(2, 3, tokens=0, group=1)) == [[0, 1]]


move = st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(0, 5), st.booleans())


@pytest.mark.long
@settings(deadline=None, max_examples=cases(135, 400))
@given(st.lists(move, max_size=20))
def test_batches_keep_every_hazard_in_order(moves: list[tuple[int, int, int, bool]]) -> None:
    keys = [2 * key + swaps for key, _, _, swaps in moves]
    sources, targets = [row[1] for row in moves], [row[2] for row in moves]
    batches = gather(keys, sources, targets, [row[3] for row in moves])
    batch_of = {index: number for number, batch in enumerate(batches) for index in batch}
    assert sorted(batch_of) == list(range(len(moves)))
    assert all(len({keys[index] for index in batch}) == 1 for batch in batches)
    reads = [{source, target} if swaps else {source} for _, source, target, swaps in moves]
    writes = [{source, target} if swaps else {target} for _, source, target, swaps in moves]
    for early, late in combinations(range(len(moves)), 2):
        if writes[early] & (reads[late] | writes[late]) or reads[early] & writes[late]:
            assert batch_of[early] < batch_of[late]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ((4, 0, (0, 0), (1, 0), BLOCK), "kind 4: there are 4"),
        ((-1, 0, (0, 0), (1, 0), BLOCK), "kind -1"),
        ((OFF, 2, (0, 0), (1, 0), BLOCK), "group 2: there are 2"),
        ((OFF, 0, (2, 0), (1, 0), BLOCK), "tier 2: there are 2"),
        ((OFF, 0, (0, 0), (-1, 0), BLOCK), "tier -1"),
        ((OFF, 0, (0, 8), (1, 0), BLOCK), r"slot 8 \(group 0, tier 0\): there are 8"),
        ((OFF, 0, (0, 0), (1, 16), BLOCK), r"slot 16 \(group 0, tier 1\): there are 16"),
        ((OFF, 0, (0, -1), (1, 0), BLOCK), "slot -1"),
        ((OFF, 1, (0, 0), (1, 0), BLOCK), r"slot 0 \(group 1, tier 1\): there are 0"),
    ],
)
def test_a_move_to_nowhere_is_refused_and_named(row: Row, words: str) -> None:
    with pytest.raises(UnknownError, match=f"plan 7, move 1, {words}.*same sizes"):
        ground().check(plan_of(7, off(0, 0), row))


@pytest.mark.parametrize("tokens", [0, -1, BLOCK + 1])
def test_a_copy_of_no_tokens_or_too_many_is_refused(tokens: int) -> None:
    with pytest.raises(InputError, match=f"plan 0, move 0: it copies {tokens} tokens of a block of 4"):
        ground().check(plan_of(0, copy(0, 1, tokens=tokens)))


def test_moves_of_another_shape_are_refused() -> None:
    for moves in (np.zeros((2, 7), np.int32), np.zeros(11, np.int32), np.zeros((2, 11), np.int64)):
        with pytest.raises(InputError, match=r"plan 3: its moves are .*give int32 \[n, 11\]"):
            ground().check(Plan(3, moves))  # type: ignore[arg-type]


def test_a_plan_without_moves_is_fine() -> None:
    assert ground().batches(ground().check(Plan(0, NO_MOVES))) == []
    assert Ground([], [], BLOCK).batches(NO_MOVES) == []


def test_what_was_checked_does_not_change_with_the_plan() -> None:
    plan = plan_of(0, off(0, 0))
    moves = ground().check(plan)
    plan.moves[0, 3] = 99
    assert moves[0, 3] == 0


def test_places_have_names() -> None:
    infos = [TierInfo("a", (0, 2), (8, 8)), TierInfo("b", (3, 0), (8, 8)), TierInfo("c", (0, 2), (8, 8))]
    place = Ground(infos, [PageLayout(8), PageLayout(8)], BLOCK)
    assert [place.name(number) for number in (0, 2, 3, 4, 5, 6)] == [
        "slot 0 of tier 'b', group 0",
        "slot 2 of tier 'b', group 0",
        "slot 0 of tier 'a', group 1",
        "slot 1 of tier 'a', group 1",
        "slot 0 of tier 'c', group 1",
        "slot 1 of tier 'c', group 1",
    ]


@pytest.mark.parametrize("layout", [PageLayout(0), PageLayout(30, planes=2), PageLayout(32, planes=-1)])
def test_a_layout_must_divide_into_tokens(layout: PageLayout) -> None:
    with pytest.raises(InputError, match="layout of group 0"):
        Ground([], [layout], BLOCK)


def test_tiers_must_fit_the_layouts() -> None:
    with pytest.raises(InputError, match="tier 'x': it has 1 groups, the mover 2"):
        Ground([TierInfo("x", (1,), (32,))], LAYOUTS, BLOCK)
    with pytest.raises(InputError, match="tier 'x', group 1: pages of 25 bytes, the mover moves 24"):
        Ground([TierInfo("x", (1, 1), (32, 25))], LAYOUTS, BLOCK)
    with pytest.raises(InputError, match="block size 0"):
        Ground([], [], 0)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_moves_that_share_no_place_gather_by_their_keys_alone(keys: list[int]) -> None:
    sources, targets = list(range(len(keys))), list(range(len(keys), 2 * len(keys)))
    found = by_key(np.array(keys, np.int64))
    assert [part.tolist() for part in found] == gather(keys, sources, targets, [False] * len(keys))


@settings(deadline=None)
@given(st.lists(rows_among([(40, 4), (40, 4)], BLOCK), max_size=8))
def test_arrays_and_the_loop_find_the_same_batches(rows: list[Row]) -> None:
    found, place = [], Ground([TierInfo(name, (40, 4), (32, 24)) for name in ("device", "host")], LAYOUTS, BLOCK)
    for many in (0, 1 << 30):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batches, "MANY", many)
            found.append(place.batches(place.check(plan_of(0, *rows))))
    assert found[0] == found[1]
