"""The mover: plans mean their moves one by one, whatever batches they run in; tickets, order and counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.records.errors import InputError, StateError, UnknownError
from quire.core.records.plan import NO_MOVES, Plan

from ..waits import PATIENCE
from .rig import BLOCK, DEVICE, DISK, HOST, LAYOUTS, OFF, ON, REMOTE, SLOTS, SWAP, Rig, copy
from .stand_ins import GateTier, Meaning, Row, plan_of, rows_among

rows = rows_among(SLOTS, BLOCK)
flaws = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=3)


@settings(deadline=None)  # each example starts a thread
@given(st.lists(st.lists(rows, max_size=20), min_size=1, max_size=4), flaws, flaws, st.sampled_from([1, 100, 4096]))
def test_plans_mean_their_moves_one_after_the_other(
    plans: list[list[Row]], lost: set[tuple[int, int]], full: set[tuple[int, int]], staging_bytes: int
) -> None:
    rig = Rig(staging_bytes)
    meaning = Meaning(LAYOUTS, BLOCK, rig.pages())
    rig.disk.lost, meaning.lost = set(lost), {(group, DISK, slot) for group, slot in lost}
    rig.remote.full, meaning.full = set(full), {(group, REMOTE, slot) for group, slot in full}
    made = [plan_of(number, *moves) for number, moves in enumerate(plans)]
    with rig.mover:
        tickets = [rig.mover.submit(plan) for plan in made]
        assert [ticket.wait() for ticket in tickets] == [meaning.run(plan) for plan in made]
    meaning.assert_held(rig.pages())


@pytest.mark.parametrize("source", [DEVICE, HOST, DISK, REMOTE])
@pytest.mark.parametrize("target", [DEVICE, HOST, DISK, REMOTE])
def test_a_page_goes_from_any_tier_to_any(rig: Rig, source: int, target: int) -> None:
    held = rig.page(source, 0)
    assert rig.mover.run(plan_of(0, copy((source, 0), (target, 1)))) == []
    assert rig.page(target, 1) == rig.page(source, 0) == held


@pytest.mark.parametrize("source", [DEVICE, HOST, DISK])
@pytest.mark.parametrize("target", [DEVICE, HOST, DISK])
def test_a_part_of_a_page_is_the_head_of_each_strip(rig: Rig, source: int, target: int) -> None:
    held, old = rig.page(source, 0), rig.page(target, 1)
    rig.mover.run(plan_of(0, copy((source, 0), (target, 1), tokens=3)))
    assert rig.page(target, 1) == [*held[0:6], *old[6:8], *held[8:14], *old[14:16], *held[16:22], *old[22:24]]


def test_only_copies_are_cut(rig: Rig) -> None:
    held = rig.page(HOST, 0)
    rig.mover.run(plan_of(0, (ON, 0, (HOST, 0), (DEVICE, 0), 1), (OFF, 0, (DEVICE, 0), (HOST, 2), 1)))
    assert rig.page(DEVICE, 0) == rig.page(HOST, 2) == held
    whole = rig.page(HOST, 0, group=1)
    rig.mover.run(plan_of(1, copy((HOST, 0), (DEVICE, 0), tokens=1, group=1)))
    assert rig.page(DEVICE, 0, group=1) == whole


@pytest.mark.parametrize("other", [DEVICE, HOST, DISK])
def test_an_exchange_swaps_both_pages(rig: Rig, other: int) -> None:
    first, second = rig.page(DEVICE, 0), rig.page(other, 1)
    assert rig.mover.run(plan_of(0, (SWAP, 0, (DEVICE, 0), (other, 1), BLOCK))) == []
    assert (rig.page(DEVICE, 0), rig.page(other, 1)) == (second, first)


def test_many_exchanges_go_through_two_staging_pages() -> None:
    rig = Rig(staging_bytes=1)
    before = rig.pages()
    with rig.mover:
        rig.mover.run(plan_of(0, *((SWAP, 0, (HOST, slot), (DISK, slot), BLOCK) for slot in range(3))))
    for slot in range(3):
        assert rig.page(HOST, slot) == before[0, DISK, slot].tolist()
        assert rig.page(DISK, slot) == before[0, HOST, slot].tolist()


@pytest.mark.parametrize(
    "pairs", [((0, 1), (1, 2)), ((1, 2), (0, 1)), ((0, 0), (1, 1), (2, 3)), ((0, 0), (2, 1), (1, 2))]
)
@pytest.mark.parametrize("tokens", [2, BLOCK])
def test_neighbours_are_copied_together(rig: Rig, pairs: tuple[tuple[int, int], ...], tokens: int) -> None:
    plan = plan_of(0, *(copy((HOST, source), (DEVICE, target), tokens) for source, target in pairs))
    meaning = Meaning(LAYOUTS, BLOCK, rig.pages())
    assert rig.mover.run(plan) == meaning.run(plan) == []
    assert all(np.array_equal(held, meaning.pages[place]) for place, held in rig.pages().items())
    assert rig.mover.stats().num_batches == 1


def test_a_batch_is_one_call_of_the_tier(rig: Rig) -> None:
    rig.mover.run(plan_of(0, *((ON, 0, (DISK, slot), (DEVICE, 3 - slot), BLOCK) for slot in range(3))))
    assert rig.disk.calls == [("read", 3)]
    rig.mover.run(plan_of(1, *((OFF, 0, (DEVICE, slot), (DISK, slot), BLOCK) for slot in range(3))))
    assert rig.disk.calls == [("read", 3), ("write", 3)]
    rig.mover.run(plan_of(2, *(copy((DISK, slot), (REMOTE, slot)) for slot in range(2))))
    assert (rig.disk.calls[2:], rig.remote.calls) == ([("read", 2)], [("write", 2)])
    assert rig.mover.stats().num_batches == 3


def test_the_caller_goes_on_while_a_plan_runs() -> None:
    rig = Rig(disk=GateTier)
    assert isinstance(rig.disk, GateTier)
    with rig.mover:
        slow = rig.mover.submit(plan_of(3, copy((DISK, 0), (DEVICE, 0))))
        assert rig.disk.reached.wait(PATIENCE)
        later = rig.mover.submit(plan_of(5, copy((DEVICE, 0), (HOST, 0))))
        assert (slow.number, slow.done, later.number, later.done) == (3, False, 5, False)
        for ticket in (slow, later):
            with pytest.raises(TimeoutError, match=f"plan {ticket.number}: not done after 0 s"):
                ticket.wait(0)
        rig.disk.gate.set()
        assert later.wait() == []
        assert slow.done  # plans end in their order
        assert rig.page(HOST, 0) == rig.page(DISK, 0)


def test_closing_finishes_what_was_submitted() -> None:
    rig = Rig()
    rig.disk.lost = {(0, 0)}
    tickets = [rig.mover.submit(plan_of(number, copy((DISK, number), (DEVICE, number)))) for number in range(3)]
    rig.mover.close()
    rig.mover.close()
    assert [ticket.done for ticket in tickets] == [True] * 3
    assert [ticket.wait(0) for ticket in tickets] == [[0], [], []]
    with pytest.raises(StateError, match="plan 3: the mover is closed; make a new one"):
        rig.mover.submit(plan_of(3))
    with pytest.raises(StateError, match="settling plan 0"):
        rig.mover.settle(0)
    assert rig.page(DEVICE, 1) == rig.page(DISK, 1)  # the tiers stay open


def test_misuse_changes_nothing(rig: Rig) -> None:
    rig.mover.run(Plan(4, NO_MOVES))
    before, stats = rig.pages(), rig.mover.stats()
    fine = copy((DISK, 0), (DEVICE, 0))
    with pytest.raises(UnknownError, match=r"plan 5, move 1, slot 4 \(group 0, tier 0\): there are 4"):
        rig.mover.submit(plan_of(5, fine, copy((DISK, 0), (DEVICE, 4))))
    for number in (4, 3):
        with pytest.raises(InputError, match=f"plan {number}: plan 4 was submitted before it"):
            rig.mover.submit(plan_of(number, fine))
    with pytest.raises(InputError, match="settling plan 5: the newest one submitted is 4"):
        rig.mover.settle(5)
    assert rig.mover.run(Plan(5, NO_MOVES)) == []
    assert (stats.num_plans, rig.mover.stats().num_plans, rig.mover.stats().num_moves) == (1, 2, 0)
    assert all(np.array_equal(held, before[place]) for place, held in rig.pages().items())


def test_bytes_are_counted_by_direction(rig: Rig) -> None:
    rig.disk.lost = {(0, 2)}
    work = [
        *((ON, 0, (DISK, slot), (DEVICE, slot), BLOCK) for slot in range(3)),  # one fails
        copy((DEVICE, 0), (DEVICE, 3), tokens=1),  # 2 of 8 bytes in each of 3 strips
        (SWAP, 1, (DEVICE, 0), (HOST, 0), BLOCK),
        (SWAP, 0, (DEVICE, 2), (HOST, 0), BLOCK),  # reads poison
    ]
    assert rig.mover.run(plan_of(0, *work)) == [2, 5]
    stats = rig.mover.stats()
    expected = {(DISK, DEVICE): 48, (DEVICE, DEVICE): 6, (DEVICE, HOST): 10, (HOST, DEVICE): 10}
    assert stats.bytes_moved == expected
    assert (stats.num_plans, stats.num_moves, stats.num_failed, stats.num_batches) == (1, 6, 2, 3)
