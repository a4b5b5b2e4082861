"""Moves that a caller waits for go before others, and nothing means anything else by it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.records.errors import StateError
from quire.tiers import Ticket
from quire.tiers.move_batch import MoveBatch
from quire.tiers.move_queue import MoveQueue, QueuedMoves

from ..waits import PATIENCE
from .rig import BLOCK, DEVICE, DISK, HOST, LAYOUTS, OFF, ON, REMOTE, SLOTS, SWAP, Rig, copy
from .stand_ins import GateTier, Meaning, Row, plan_of, rows_among

rows = rows_among(SLOTS, BLOCK)
flaws = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=3)
hurries = st.lists(st.tuples(st.integers(1, 4), st.sets(st.integers(0, 11), min_size=1, max_size=3)), max_size=4)


def gated() -> tuple[Rig, GateTier]:
    """A rig whose mover has begun a plan that waits at a gate: what is submitted now queues up."""
    rig = Rig(disk=GateTier)
    assert isinstance(rig.disk, GateTier)
    return rig, rig.disk


@settings(deadline=None, max_examples=60)  # each example starts a thread
@given(st.lists(st.lists(rows, min_size=1, max_size=12), min_size=1, max_size=4), hurries, flaws, st.data())
def test_plans_mean_the_same_in_any_hurry(
    plans: list[list[Row]], asked: list[tuple[int, set[int]]], full: set[tuple[int, int]], data: st.DataObject
) -> None:
    rig, disk = gated()
    meaning = Meaning(LAYOUTS, BLOCK, rig.pages())
    disk.lost, meaning.lost = {(0, 0)}, {(0, DISK, 0)}
    rig.remote.full, meaning.full = set(full), {(group, REMOTE, slot) for group, slot in full}
    made = [plan_of(0, copy((DISK, 0), (DEVICE, 0)))]
    made += [plan_of(number, *moves) for number, moves in enumerate(plans, start=1)]
    settled = data.draw(st.integers(0, len(plans)))  # the poison of the first is taken back behind so many
    with rig.mover:
        tickets = [rig.mover.submit(made[0])]
        assert disk.reached.wait(PATIENCE)
        for place, plan in enumerate(made[1:]):
            if place == settled:
                rig.mover.settle(0)
            tickets.append(rig.mover.submit(plan))
        for number, moves in asked:
            if number < len(made):
                rig.mover.hurry(tickets[number], [move for move in moves if move < len(made[number])])
        disk.gate.set()
        found = [ticket.wait() for ticket in tickets]
    said = [meaning.run(plan) for plan in made[: 1 + settled]]
    if settled < len(plans) and not any(SPOILT in _writes(row) for moves in plans[:settled] for row in moves):
        meaning.lost.discard(SPOILT)
    assert found == said + [meaning.run(plan) for plan in made[1 + settled :]]
    meaning.assert_held(rig.pages())


SPOILT = (0, DEVICE, 0)  # by the first plan


def _writes(row: Row) -> set[tuple[int, int, int]]:
    kind, group, source, target, _ = row
    return {(group, *target)} | ({(group, *source)} if kind == SWAP else set())


def begun(rig: Rig, disk: GateTier) -> Ticket:
    """A plan that waits at the gate."""
    ticket = rig.mover.submit(plan_of(0, copy((DISK, 0), (HOST, 0), group=1)))
    assert disk.reached.wait(PATIENCE)
    return ticket


def test_who_waits_for_some_moves_waits_for_no_others() -> None:
    rig, disk = gated()
    held = rig.page(DISK, 2)
    with rig.mover:
        first = begun(rig, disk)
        offloads = rig.mover.submit(plan_of(1, *((OFF, 0, (DEVICE, slot), (DISK, slot), BLOCK) for slot in (0, 1))))
        wanted = rig.mover.submit(plan_of(2, copy((DISK, 2), (DEVICE, 3)), copy((HOST, 0), (REMOTE, 0), group=2)))
        rig.mover.hurry(wanted, [0])
        assert not first.done and not wanted.are_over([0])
        with pytest.raises(TimeoutError, match="plan 2: not done after 0 s"):
            wanted.wait_for([0], 0)
        disk.gate.set()
        assert wanted.wait_for([0]) == wanted.wait() == offloads.wait() == []
    assert disk.calls == [("read", 1), ("read", 1), ("write", 2)]
    assert rig.page(DEVICE, 3) == held


def test_what_it_must_not_overtake_comes_with_it() -> None:
    """A page comes up into the slot of one of two that go down: that one goes first, and the other last."""
    rig, disk = gated()
    down, up = rig.page(DEVICE, 1), rig.page(DISK, 2)
    with rig.mover:
        begun(rig, disk)
        offloads = rig.mover.submit(plan_of(1, *((OFF, 0, (DEVICE, slot), (DISK, slot), BLOCK) for slot in (0, 1))))
        wanted = rig.mover.submit(plan_of(2, (ON, 0, (DISK, 2), (DEVICE, 1), BLOCK)))
        rig.mover.hurry(wanted, [0])
        disk.gate.set()
        assert wanted.wait() == offloads.wait() == []
    assert disk.calls == [("read", 1), ("write", 1), ("read", 1), ("write", 1)]
    assert (rig.page(DISK, 1), rig.page(DEVICE, 1)) == (down, up)


def test_only_the_failed_ones_of_those_asked_for_are_named() -> None:
    rig = Rig()
    rig.disk.lost = {(0, 1)}
    with rig.mover:
        ticket = rig.mover.submit(plan_of(0, *(copy((DISK, slot), (DEVICE, slot)) for slot in range(3))))
        assert (ticket.wait_for([0, 2]), ticket.wait_for([2, 1]), ticket.wait()) == ([], [1], [1])


def test_a_fault_of_the_mover_reaches_every_waiter() -> None:
    rig, disk = gated()
    with rig.mover:
        begun(rig, disk)
        tickets = [rig.mover.submit(plan_of(number, copy((HOST, 0), (DEVICE, number)))) for number in (1, 2)]
        rig.mover._ends.clear()
        disk.gate.set()
        tickets.append(rig.mover.submit(plan_of(3, copy((HOST, 0), (DEVICE, 0)))))
        for ticket in tickets:
            with pytest.raises(StateError, match=f"plan {ticket.number}: the mover has failed with IndexError"):
                ticket.wait_for([0], PATIENCE)


def test_what_nobody_waits_for_goes_in_pieces() -> None:
    """A large batch holds a move that is asked for up for the time of one piece."""
    five = list(range(5))
    batch = MoveBatch(0, 0, 1, False, (1, 10), five, five, five, five, list(range(10, 15)))
    queue, ticket = MoveQueue(piece_bytes=25), Ticket(0, 5)
    queue.add(ticket, [batch])
    taken = queue.take()
    assert isinstance(taken, QueuedMoves) and taken.batch.moves == [0, 1]
    queue.hurry(ticket, [4, 2])
    queue.bar(3)
    found = [queue.take() for _ in range(len(queue))]
    assert [one if isinstance(one, int) else one.batch.moves for one in found] == [[2, 4], [3], 3]
    tiny = MoveQueue(piece_bytes=1)
    tiny.add(ticket, [batch])
    assert [tiny.take()[1].moves for _ in range(5)] == [[0], [1], [2], [3], [4]]  # type: ignore[index]


def test_nothing_overtakes_where_poison_is_taken_back() -> None:
    """What is asked for lies behind such a place: all that lies before it goes first, in its order."""
    queue, tickets = MoveQueue(), [Ticket(number, 1) for number in range(3)]
    for ticket in tickets:
        place = ticket.number
        queue.add(ticket, [MoveBatch(0, 0, 1, False, (1, 10), [0], [place], [place], [place], [10 + place])])
        if place == 0:
            queue.bar(9)
    queue.hurry(tickets[2], [0])
    found = [queue.take() for _ in range(len(queue))]
    assert [one if isinstance(one, int) else one.ticket.number for one in found] == [0, 9, 2, 1]


@pytest.mark.parametrize(
    ("earlier", "comes_along"),
    [
        ((1, 11), True),  # it writes what is read
        ((12, 2), True),  # it writes what is written
        ((2, 13), True),  # it reads what is written
        ((11, 13), False),  # both read
        ((3, 14), False),
    ],
)
def test_what_a_move_must_not_overtake(earlier: tuple[int, int], comes_along: bool) -> None:
    """One that reads place 11 and writes place 2 is asked for."""
    queue, tickets = MoveQueue(), [Ticket(number, 1) for number in range(2)]
    for ticket, (source, target) in zip(tickets, (earlier, (11, 2)), strict=True):
        queue.add(ticket, [MoveBatch(0, 0, 1, False, (1, 10), [0], [0], [0], [source], [target])])
    queue.hurry(tickets[1], [0])
    found = [queue.take() for _ in range(len(queue))]
    order = [one if isinstance(one, int) else one.ticket.number for one in found]
    assert order == ([0, 1] if comes_along else [1, 0])
