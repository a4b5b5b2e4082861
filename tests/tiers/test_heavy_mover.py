"""The mover: plans mean their moves one by one, whatever batches they run in; failures spread and are all reported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.errors import InputError, StateError, UnknownError
from quire.core.plan import NO_MOVES, Kind, Plan
from quire.tiers import ArenaTier, Bytes, Mover, PageLayout, Tier

from .stand_ins import FlakyTier, GateTier, Meaning, Place, Row, plan_of

ON, OFF, COPY, SWAP = Kind.ONBOARD, Kind.OFFLOAD, Kind.COPY, Kind.EXCHANGE
BLOCK = 4
LAYOUTS = (PageLayout(24, planes=3), PageLayout(10), PageLayout(32, planes=2))
SIZES = tuple(layout.page_bytes for layout in LAYOUTS)
SLOTS = ((4, 3, 2), (3, 2, 3), (3, 3, 2), (2, 3, 3))  # by tier
DEVICE, HOST, DISK, REMOTE = range(4)


def arena_of(tier: Tier) -> ArenaTier:
    if isinstance(tier, FlakyTier):
        return tier.arena
    assert isinstance(tier, ArenaTier)
    return tier


class Rig:
    """Two tiers of memory, two without a view, every byte filled, and a mover over them."""

    def __init__(self, staging_bytes: int = 1 << 20, disk: type[FlakyTier] = FlakyTier) -> None:
        self.disk = disk("disk", SLOTS[DISK], SIZES)
        self.remote = FlakyTier("remote", SLOTS[REMOTE], SIZES)
        memory = [ArenaTier("device", SLOTS[DEVICE], SIZES), ArenaTier("host", SLOTS[HOST], SIZES)]
        self.tiers: list[Tier] = [*memory, self.disk, self.remote]
        dice = np.random.default_rng(1)
        for tier in self.tiers:
            for group, size in enumerate(SIZES):
                arena = arena_of(tier).view(group)
                arena[:] = dice.integers(0, 256, (len(arena), size), np.uint8)
        self.mover = Mover(self.tiers, LAYOUTS, BLOCK, staging_bytes=staging_bytes)

    def pages(self) -> dict[Place, Bytes]:
        """A copy of every page."""
        return {
            (group, number, slot): held.copy()
            for number, tier in enumerate(self.tiers)
            for group in range(len(SIZES))
            for slot, held in enumerate(arena_of(tier).view(group))
        }

    def page(self, tier: int, slot: int, group: int = 0) -> list[int]:
        return [int(byte) for byte in arena_of(self.tiers[tier]).view(group)[slot]]


@pytest.fixture
def rig() -> Iterator[Rig]:
    built = Rig()
    yield built
    built.mover.close()


def copy(source: tuple[int, int], target: tuple[int, int], tokens: int = BLOCK, group: int = 0) -> Row:
    return COPY, group, source, target, tokens


@st.composite
def rows(draw: st.DrawFn) -> Row:
    group = draw(st.integers(0, len(LAYOUTS) - 1))
    ends = []
    for _ in range(2):
        tier = draw(st.integers(0, len(SLOTS) - 1))
        ends.append((tier, draw(st.integers(0, SLOTS[tier][group] - 1))))
    return draw(st.sampled_from(Kind)), group, ends[0], ends[1], draw(st.integers(1, BLOCK))


flaws = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=3)


@settings(deadline=None, max_examples=12000)  # each example starts a thread
@given(st.lists(st.lists(rows(), max_size=20), min_size=1, max_size=4), flaws, flaws, st.sampled_from([1, 100, 4096]))
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
    for place, held in rig.pages().items():
        known = meaning.known[place]
        assert np.array_equal(held[known], meaning.pages[place][known])


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


def test_a_batch_is_one_call_of_the_tier(rig: Rig) -> None:
    rig.mover.run(plan_of(0, *((ON, 0, (DISK, slot), (DEVICE, 3 - slot), BLOCK) for slot in range(3))))
    assert rig.disk.calls == [("read", 3)]
    rig.mover.run(plan_of(1, *((OFF, 0, (DEVICE, slot), (DISK, slot), BLOCK) for slot in range(3))))
    assert rig.disk.calls == [("read", 3), ("write", 3)]
    rig.mover.run(plan_of(2, *(copy((DISK, slot), (REMOTE, slot)) for slot in range(2))))
    assert (rig.disk.calls[2:], rig.remote.calls) == ([("read", 2)], [("write", 2)])
    assert rig.mover.stats().num_batches == 3


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


def test_the_caller_goes_on_while_a_plan_runs() -> None:
    rig = Rig(disk=GateTier)
    assert isinstance(rig.disk, GateTier)
    with rig.mover:
        slow = rig.mover.submit(plan_of(3, copy((DISK, 0), (DEVICE, 0))))
        assert rig.disk.reached.wait(30)
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
