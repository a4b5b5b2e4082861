"""Groups of one pool have the same slots: plans that hand a slot from one to another mean their moves one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.records.errors import InputError
from quire.core.records.plan import Kind
from quire.tiers import ArenaTier, Bytes, Mover, PageLayout, Tier, TierInfo
from quire.tiers.base import check_pools, pools_in
from quire.tiers.move_batch import Ground
from quire.tiers.shared.ground import _touched
from tests.effort import cases

from .conformance import contents, fill
from .stand_ins import FlakyTier, Meaning, Place, Row, plan_of, rows_among

ON, OFF, COPY, SWAP = Kind.ONBOARD, Kind.OFFLOAD, Kind.COPY, Kind.EXCHANGE
BLOCK = 4
LAYOUTS = (PageLayout(24, planes=3), PageLayout(24, planes=2), PageLayout(10), PageLayout(24))
SIZES = tuple(layout.page_bytes for layout in LAYOUTS)
POOLS = (0, 0, 1, 0)  # by group
SLOTS = ((4, 4, 3, 4), (3, 3, 2, 3), (3, 3, 2, 3))  # by tier
DEVICE, HOST, DISK = range(3)


class PoolRig:
    """Two tiers of memory and one without a view, in which three of four groups have the same slots.

    `device`: where the first tier lies; "arena" is NumPy's memory, all else is a device of torch.
    """

    def __init__(self, staging_bytes: int = 1 << 20, device: str = "arena") -> None:
        self.disk = FlakyTier("disk", SLOTS[DISK], SIZES, POOLS)
        host = ArenaTier("host", SLOTS[HOST], SIZES, POOLS)
        self.tiers: list[Tier] = [ArenaTier("device", SLOTS[DEVICE], SIZES, POOLS), host, self.disk]
        if device != "arena":
            self.tiers[DEVICE] = tensors_on(device)
        for number, tier in enumerate(self.tiers):
            for group in (0, 2):
                fill(tier, group, number)
        self.mover = Mover(self.tiers, LAYOUTS, BLOCK, staging_bytes=staging_bytes)

    def pages(self) -> dict[Place, Bytes]:
        """A copy of every page, under the first group of its pool."""
        return {
            (group, number, slot): held[0].copy()
            for number, tier in enumerate([*self.tiers[:DISK], self.disk.arena])
            for group in (0, 2)
            for slot, held in enumerate(contents(tier, group))
        }


def tensors_on(device: str) -> Tier:
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    from quire.tiers.torch_tier import TorchTier

    shared = torch.zeros((SLOTS[DEVICE][0], SIZES[0]), dtype=torch.uint8, device=device)
    other = torch.zeros((SLOTS[DEVICE][2], SIZES[2]), dtype=torch.uint8, device=device)
    return TorchTier("device", [shared, shared[:], other, shared])


rows = rows_among(SLOTS, BLOCK)
flaws = st.sets(st.tuples(st.sampled_from([0, 2]), st.integers(0, 1)), max_size=3)


@pytest.mark.parametrize("device", ["arena", "cpu", "cuda"])
@pytest.mark.long
@settings(deadline=None, max_examples=cases(65, 200))  # each example starts a thread
@given(st.lists(st.lists(rows, max_size=20), min_size=1, max_size=4), flaws, flaws, st.sampled_from([1, 100, 4096]))
def test_plans_mean_their_moves_one_after_the_other(
    device: str, plans: list[list[Row]], lost: set[tuple[int, int]], full: set[tuple[int, int]], staging_bytes: int
) -> None:
    rig = PoolRig(staging_bytes, device)
    meaning = Meaning(LAYOUTS, BLOCK, rig.pages(), (0, 0, 2, 0))
    rig.disk.lost, meaning.lost = set(lost), {(group, DISK, slot) for group, slot in lost}
    rig.disk.full, meaning.full = set(full), {(group, DISK, slot) for group, slot in full}
    made = [plan_of(number, *moves) for number, moves in enumerate(plans)]
    with rig.mover:
        assert [rig.mover.run(plan) for plan in made] == [meaning.run(plan) for plan in made]
    meaning.assert_held(rig.pages())


def off(group: int, device: int, host: int) -> Row:
    return OFF, group, (DEVICE, device), (HOST, host), BLOCK


def on(group: int, host: int, device: int) -> Row:
    return ON, group, (HOST, host), (DEVICE, device), BLOCK


def test_a_slot_goes_from_one_group_to_another_within_a_plan() -> None:
    """Moves of group 1 are not gathered before the move of group 0 that makes their slot free."""
    rig = PoolRig()
    before = rig.pages()
    with rig.mover:
        rig.mover.run(plan_of(0, on(1, 0, 3), off(0, 1, 0), on(1, 1, 1), off(0, 2, 1), on(1, 2, 2)))
    after = rig.pages()
    for moved_from, moved_to in (((HOST, 0), (DEVICE, 3)), ((DEVICE, 1), (HOST, 0)), ((HOST, 1), (DEVICE, 1))):
        assert np.array_equal(after[0, *moved_to], before[0, *moved_from])
    assert np.array_equal(after[0, HOST, 1], before[0, DEVICE, 2])
    assert np.array_equal(after[0, DEVICE, 2], before[0, HOST, 2])


def test_a_slot_that_one_group_could_not_fill_is_bad_for_the_other_until_it_is_filled() -> None:
    rig = PoolRig()
    rig.disk.lost = {(0, 0)}
    with rig.mover:
        assert rig.mover.run(plan_of(0, (ON, 0, (DISK, 0), (DEVICE, 1), BLOCK))) == [0]
        ticket = rig.mover.submit(plan_of(1, off(1, 1, 0), on(3, 1, 1), off(1, 1, 2)))
        assert ticket.wait() == [0]
        assert ticket.reasons()[0] == "slot 1 of tier 'device', groups 0 and 1 and 3: plan 0 could not fill it"


def test_a_group_of_another_pool_waits_for_nobody() -> None:
    infos = [TierInfo(name, (4, 4, 4), (24, 24, 24), (0, 0, 1)) for name in ("device", "host")]
    ground = Ground(infos, [PageLayout(24)] * 3, BLOCK)

    def gathered(*moves: Row) -> list[list[int]]:
        return [batch.moves for batch in ground.batches(ground.check(plan_of(0, *moves)))]

    assert gathered(on(2, 0, 3), off(0, 1, 1), on(2, 1, 1)) == [[0, 2], [1]]
    assert gathered(on(1, 0, 3), off(0, 1, 1), on(1, 1, 1)) == [[0], [1], [2]]
    assert [ground.name(place) for place in (3, 4, 8, 15)] == [
        "slot 3 of tier 'device', groups 0 and 1",
        "slot 0 of tier 'host', groups 0 and 1",
        "slot 0 of tier 'device', group 2",
        "slot 3 of tier 'host', group 2",
    ]


def test_groups_of_a_pool_have_one_memory() -> None:
    tier = ArenaTier("device", (2, 2, 3), (8, 8, 8), (0, 0, 1))
    tier.view(0)[1] = 7
    assert tier.view(1)[1].tolist() == [7] * 8 and tier.info().num_bytes == (2 + 3) * 8
    again = ArenaTier.over("again", [tier.view(group) for group in range(3)])
    assert again.info() == TierInfo("again", (2, 2, 3), (8, 8, 8), (0, 0, 2))
    assert ArenaTier.over("none", [np.zeros((0, 8), np.uint8)] * 2).info().pool_of == (0, 1)  # nothing to share


def test_memory_with_only_a_part_in_common_is_refused() -> None:
    memory = np.zeros((5, 8), np.uint8)
    with pytest.raises(InputError, match="tier 'device', groups 0 and 1: their memory overlaps and is not the same"):
        ArenaTier.over("device", [memory[:3], memory[2:]])
    with pytest.raises(InputError, match="groups 0 and 2: their memory overlaps"):
        pools_in("device", [(0, 16), (16, 16), (8, 8)])
    assert pools_in("device", [(0, 16), (16, 16), (0, 16)]) == (0, 1, 0)


def test_a_pool_has_slots_of_one_size() -> None:
    with pytest.raises(InputError, match="groups 0 and 2: they have 3 and 4 slots of 8 and 8 bytes in one pool"):
        TierInfo("host", (3, 5, 4), (8, 8, 8), (0, 1, 0))
    with pytest.raises(InputError, match="they have 3 and 3 slots of 8 and 9 bytes in one pool"):
        TierInfo("host", (3, 3), (8, 9), (0, 0))
    with pytest.raises(InputError, match="pools of 1 groups, slots of 2"):
        TierInfo("host", (3, 3), (8, 8), (0,))


def test_tensors_of_a_pool_are_one_memory_too() -> None:
    torch = pytest.importorskip("torch")
    from quire.tiers.torch_tier import TorchTier

    dice = np.random.default_rng(3)
    shared = torch.from_numpy(dice.integers(0, 256, (4, 24), np.uint8))
    device = TorchTier("device", [shared, shared[:], torch.zeros(3, 10, dtype=torch.uint8), shared])
    host = ArenaTier("host", SLOTS[HOST], SIZES, POOLS)
    assert device.info().pool_of == (0, 0, 2, 0)
    before = shared.numpy().copy()
    with Mover([device, host], LAYOUTS, BLOCK) as mover:
        assert mover.run(plan_of(0, on(1, 0, 3), off(0, 1, 1), on(1, 2, 1), off(3, 1, 2))) == []
    assert np.array_equal(host.view(1)[1], before[1]) and not shared[1].any() and not host.view(0)[2].any()


def test_a_store_waits_for_plans_that_move_another_groups_page_out_of_its_slot() -> None:
    """What a shared store brings for group 1 goes into a slot that a plan under way still reads for group 0."""
    plan = plan_of(0, off(0, 1, 2), (SWAP, 0, (DEVICE, 3), (HOST, 1), BLOCK), on(2, 0, 0))
    assert _touched(plan, POOLS, reading=False) == {
        (0, DEVICE, 1), (0, HOST, 2), (0, DEVICE, 3), (0, HOST, 1), (1, HOST, 0), (1, DEVICE, 0),
    }  # fmt: skip
    assert _touched(plan, POOLS, reading=True) == {(0, HOST, 2), (0, DEVICE, 3), (0, HOST, 1), (1, DEVICE, 0)}


def test_a_tier_must_not_share_what_the_cache_does_not() -> None:
    info = TierInfo("host", (3, 3, 3), (8, 8, 8), (0, 1, 0))
    check_pools(info, (0, 1, 0))
    check_pools(TierInfo("host", (3, 3, 3), (8, 8, 8)), (0, 1, 0))  # memory of its own for each is more than needed
    with pytest.raises(InputError, match="groups 0 and 2: they have the same slots here, and pools of their own in"):
        check_pools(info, (0, 1, 1))
