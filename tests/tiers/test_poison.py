"""What a failed move spoils, for how long, and that all of it is reported."""

from __future__ import annotations

from collections.abc import Sequence

from quire.tiers import Bytes, Mover

from .rig import BLOCK, DEVICE, DISK, HOST, LAYOUTS, ON, REMOTE, SIZES, SLOTS, SWAP, Rig, arena_of, copy
from .stand_ins import FlakyTier, GateTier, plan_of


def test_a_failed_read_is_reported_and_the_others_go_on(rig: Rig) -> None:
    rig.disk.lost = {(0, 1)}
    ticket = rig.mover.submit(plan_of(0, *((ON, 0, (DISK, slot), (DEVICE, slot), BLOCK) for slot in range(3))))
    assert ticket.wait() == [1]
    assert ticket.reasons() == {1: "bad sector"}
    assert rig.page(DEVICE, 0) == rig.page(DISK, 0)
    assert rig.page(DEVICE, 2) == rig.page(DISK, 2)


def test_poison_spreads_until_a_write_makes_the_slot_good(rig: Rig) -> None:
    rig.disk.lost = {(0, 0)}
    spoil = [(ON, 0, (DISK, 0), (DEVICE, 0), BLOCK), copy((DEVICE, 0), (DEVICE, 1)), copy((DEVICE, 2), (DEVICE, 3))]
    ticket = rig.mover.submit(plan_of(0, *spoil))
    assert ticket.wait() == [0, 1]
    assert ticket.reasons()[1] == "slot 0 of tier 'device', group 0: plan 0 could not fill it"
    kept = rig.page(HOST, 2)
    assert rig.mover.run(plan_of(1, copy((DEVICE, 1), (HOST, 0)), copy((HOST, 0), (DISK, 2)))) == [0, 1]
    assert rig.mover.run(plan_of(2, copy((HOST, 2), (DEVICE, 1)), copy((DEVICE, 1), (HOST, 0)))) == []
    assert rig.page(HOST, 0) == kept
    assert rig.mover.run(plan_of(3, copy((DISK, 2), (HOST, 1)), copy((DEVICE, 0), (HOST, 1)))) == [0, 1]


def test_what_could_not_be_read_is_not_written(rig: Rig) -> None:
    rig.disk.lost = {(0, 0)}
    kept = rig.page(REMOTE, 0)
    assert rig.mover.run(plan_of(0, copy((DISK, 0), (REMOTE, 0)), copy((DISK, 1), (REMOTE, 1)))) == [0]
    assert (rig.page(REMOTE, 0), rig.page(REMOTE, 1)) == (kept, rig.page(DISK, 1))
    assert rig.remote.calls == [("write", 1)]


def test_poison_is_of_one_place_not_of_a_number(rig: Rig) -> None:
    rig.disk.lost = {(0, 0)}
    assert rig.mover.run(plan_of(0, copy((DISK, 0), (HOST, 1)))) == [0]
    fine = [copy((DEVICE, 1), (DEVICE, 2)), copy((HOST, 1), (DEVICE, 0), group=1), copy((HOST, 0), (DEVICE, 1))]
    assert rig.mover.run(plan_of(1, *fine)) == []


def test_a_failed_write_poisons_what_it_wrote(rig: Rig) -> None:
    rig.remote.full = {(0, 1)}
    ticket = rig.mover.submit(plan_of(0, copy((HOST, 0), (REMOTE, 1)), copy((REMOTE, 1), (DEVICE, 0))))
    assert ticket.reasons()[0] == "no space left"
    assert ticket.wait() == [0, 1]


def test_a_failed_exchange_moves_nothing_and_poisons_both(rig: Rig) -> None:
    rig.disk.lost = {(0, 0)}
    first, second = rig.page(DEVICE, 0), rig.page(DISK, 0)
    reads = [copy((DEVICE, 0), (HOST, 0)), copy((DISK, 0), (HOST, 1))]
    assert rig.mover.run(plan_of(0, (SWAP, 0, (DEVICE, 0), (DISK, 0), BLOCK), *reads)) == [0, 1, 2]
    assert (rig.page(DEVICE, 0), rig.page(DISK, 0)) == (first, second)


def test_settling_takes_back_the_poison_of_one_plan(rig: Rig) -> None:
    rig.disk.lost = {(0, 0)}
    assert rig.mover.run(plan_of(0, copy((DISK, 0), (DEVICE, 0)))) == [0]
    assert rig.mover.run(plan_of(1, copy((DISK, 0), (DEVICE, 1)))) == [0]
    rig.mover.settle(1)
    assert rig.mover.run(plan_of(2, copy((DEVICE, 0), (HOST, 0)), copy((DEVICE, 1), (HOST, 1)))) == [0]


def test_a_settled_slot_is_what_was_computed_into_it(rig: Rig) -> None:
    rig.disk.lost = {(0, 0)}
    assert rig.mover.run(plan_of(0, copy((DISK, 0), (DEVICE, 0)), copy((DISK, 0), (DEVICE, 1)))) == [0, 1]
    rig.mover.settle(0)
    assert rig.mover.run(plan_of(1, copy((DISK, 0), (DEVICE, 1)))) == [0]
    rig.mover.settle(0)  # plan 1 spoilt slot 1 anew
    computed = arena_of(rig.tiers[DEVICE]).view(0)
    computed[0] = 9  # the slot went to a new sequence, which filled it without the mover
    assert rig.mover.run(plan_of(2, copy((DEVICE, 0), (HOST, 0)), copy((DEVICE, 1), (HOST, 1)))) == [1]
    assert rig.page(HOST, 0) == [9] * 24


def test_plans_submitted_before_settling_still_fail() -> None:
    rig = Rig(disk=GateTier)
    assert isinstance(rig.disk, GateTier)
    rig.disk.lost = {(0, 0)}
    with rig.mover:
        tickets = [rig.mover.submit(plan_of(0, copy((DISK, 0), (DEVICE, 0))))]
        tickets.append(rig.mover.submit(plan_of(1, copy((DEVICE, 0), (HOST, 0)))))
        rig.mover.settle(0)
        tickets.append(rig.mover.submit(plan_of(2, copy((DEVICE, 0), (HOST, 1)))))
        rig.disk.gate.set()
        assert [ticket.wait() for ticket in tickets] == [[0], [0], []]


def test_a_tier_with_a_bug_fails_its_batch_and_nothing_else(rig: Rig) -> None:
    rig.disk.bug = OSError("socket gone")
    work = [copy((DISK, 0), (DEVICE, 0)), copy((DISK, 1), (DEVICE, 1)), copy((HOST, 0), (DEVICE, 2))]
    ticket = rig.mover.submit(plan_of(0, *work))
    assert ticket.reasons() == {0: "OSError: socket gone", 1: "OSError: socket gone"}
    rig.disk.bug = None
    assert rig.mover.run(plan_of(1, copy((DEVICE, 0), (HOST, 0)), copy((DISK, 0), (DEVICE, 0)))) == [0]
    rig.tiers[HOST].close()
    assert rig.mover.run(plan_of(2, copy((DISK, 0), (DEVICE, 0)), copy((HOST, 0), (DEVICE, 1)))) == [1]


def test_an_error_about_other_slots_is_not_trusted(rig: Rig) -> None:
    class Confused(FlakyTier):
        def read(self, group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
            super().read(group, [2 - slot for slot in slots], out)

    disk = Confused("disk", SLOTS[DISK], SIZES)
    disk.lost = {(0, 2)}
    with Mover([rig.tiers[DEVICE], disk], LAYOUTS, BLOCK) as mover:
        assert mover.run(plan_of(0, copy((1, 0), (0, 0)))) == [0]
