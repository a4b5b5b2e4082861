"""TorchTier keeps the contract of tiers on the CPU and on CUDA; tiers that copy by themselves do so under the mover."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from quire.core.records.errors import InputError, StateError, UnknownError  # noqa: E402
from quire.tiers import ArenaTier, Bytes, MemoryTier, Mover, Tier, TierError  # noqa: E402
from quire.tiers.base import CopyingTier  # noqa: E402
from quire.tiers.torch_tier import TorchTier  # noqa: E402

from .conformance import TierSuite, contents, fill  # noqa: E402
from .rig import BLOCK, DISK, LAYOUTS, REMOTE, SIZES, SLOTS, SWAP, Rig, copy  # noqa: E402
from .stand_ins import FlakyTier, Meaning, Row, plan_of  # noqa: E402
from .test_mover import flaws, rows  # noqa: E402

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]


def tier_on(device: str, num_slots: Sequence[int], page_bytes: Sequence[int]) -> TorchTier:
    shapes = zip(num_slots, page_bytes, strict=True)
    return TorchTier("torch", [torch.zeros(shape, dtype=torch.uint8, device=device) for shape in shapes])


class TestOnTheCpu(TierSuite):
    beside = frozenset({"copy", "reaches", "read_into", "write_from", "exchange", "read_and_write", "behind"})

    def make(self, num_slots: tuple[int, ...], page_bytes: tuple[int, ...], folder: Path) -> Tier:
        return tier_on("cpu", num_slots, page_bytes)


@needs_cuda
class TestOnCuda(TierSuite):
    beside = frozenset({"copy", "reaches", "read_into", "write_from", "exchange", "read_and_write", "behind"})

    def make(self, num_slots: tuple[int, ...], page_bytes: tuple[int, ...], folder: Path) -> Tier:
        return tier_on("cuda", num_slots, page_bytes)


def test_it_copies_by_itself_and_has_no_view() -> None:
    tier = tier_on("cpu", [1], [8])
    assert isinstance(tier, CopyingTier) and not isinstance(tier, MemoryTier)
    assert not isinstance(ArenaTier("host", [1], [8]), CopyingTier)


@pytest.mark.parametrize("device", DEVICES)
def test_memory_of_the_caller_is_shared(device: str) -> None:
    with torch.inference_mode():  # as an engine may make it
        arena = torch.zeros((3, 8), dtype=torch.uint8, device=device)
    tier = TorchTier("device", [arena])
    tier.write(0, [1], [np.full((1, 8), 5, np.uint8)])
    assert arena.tolist() == [[0] * 8, [5] * 8, [0] * 8]
    tier.copy(0, [1], [2], (4, 1))
    assert arena[2].tolist() == [5, 0] * 4
    tier.close()
    assert arena[1].tolist() == [5] * 8


@pytest.mark.parametrize(
    "arena",
    [
        torch.zeros((3, 8), dtype=torch.int8),
        torch.zeros(8, dtype=torch.uint8),
        torch.zeros((3, 16), dtype=torch.uint8)[:, ::2],
        torch.zeros((3, 0), dtype=torch.uint8),
    ],
)
def test_memory_of_another_shape_is_refused(arena: Any) -> None:
    with pytest.raises(InputError, match=r"\[num_slots, page_bytes\]"):
        TorchTier("device", [arena])


def test_groups_are_on_one_device() -> None:
    arenas = [torch.zeros((3, 8), dtype=torch.uint8, device=device) for device in ("cpu", "meta")]
    with pytest.raises(InputError, match="cpu, meta"):
        TorchTier("device", arenas)


@pytest.mark.parametrize("device", DEVICES)
def test_what_cannot_be_written_can_be_read_from(device: str) -> None:
    tier = tier_on(device, [2], [8])
    page = np.frombuffer(bytes(range(8)), np.uint8)
    tier.write(0, [0, 1], [page.reshape(1, 8), page.reshape(2, 4)[:, ::-1]])
    assert contents(tier, 0)[:, 0].tolist() == [[0, 1, 2, 3, 4, 5, 6, 7], [3, 2, 1, 0, 7, 6, 5, 4]]


@pytest.mark.parametrize("device", DEVICES)
def test_neighbours_of_different_cuts_stay_apart(device: str) -> None:
    tier, data = tier_on(device, [2], [16]), np.arange(1, 17, dtype=np.uint8)
    tier.write(0, [0, 1], [data[:8].reshape(1, 8), data[8:].reshape(2, 4)])
    assert contents(tier, 0)[:, 0].tolist() == [
        [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0],
        [9, 10, 11, 12, 0, 0, 0, 0, 13, 14, 15, 16, 0, 0, 0, 0],
    ]


places = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=8, unique_by=(lambda p: p[0], lambda p: p[1])
)


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None)
@given(places, st.sampled_from([(1, 24), (1, 7), (3, 8), (3, 2)]))
def test_neighbours_in_host_memory_get_their_own_bytes(
    device: str, pairs: list[tuple[int, int]], cut: tuple[int, int]
) -> None:
    tier, plain, host = tier_on(device, [8], [24]), ArenaTier("plain", [8], [24]), ArenaTier("host", [8], [24])
    for one, seed in ((tier, 0), (plain, 0), (host, 1)):
        fill(one, 0, seed)
    slots, buffers = [slot for slot, _ in pairs], host.view(0).reshape(8, cut[0], -1)[:, :, : cut[1]]
    wanted = host.view(0).copy()
    for one in (tier, plain):
        one.write(0, slots, [buffers[place] for _, place in pairs])
    assert np.array_equal(contents(tier, 0), contents(plain, 0))
    tier.write(0, slots, [np.full(cut, 7, np.uint8)] * len(pairs))
    tier.read(0, slots, [buffers[place] for _, place in pairs])
    for _, place in pairs:
        wanted[place].reshape(cut[0], -1)[:, : cut[1]] = 7
    assert np.array_equal(host.view(0), wanted)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cut", [(1, 24), (1, 5), (3, 8), (3, 2)])
def test_copies_fill_the_cut_of_their_targets(device: str, cut: tuple[int, int]) -> None:
    tier = tier_on(device, [8], [24])
    pages = fill(tier, 0)
    tier.copy(0, [1, 2, 1, 6], [4, 5, 0, 6], cut)
    for source, target in ((1, 4), (2, 5), (1, 0)):
        pages[target].reshape(cut[0], -1)[:, : cut[1]] = pages[source].reshape(cut[0], -1)[:, : cut[1]]
    assert np.array_equal(contents(tier, 0), pages)


def test_copies_that_make_no_sense_are_refused() -> None:
    tier = tier_on("cpu", [3, 0], [8, 8])
    before = fill(tier, 0)
    tier.copy(1, [], [], (1, 8))
    for group, sources, targets in ((0, [0], [3]), (0, [-1], [0]), (1, [0], [0]), (2, [], [])):
        with pytest.raises(UnknownError, match="torch"):
            tier.copy(group, sources, targets, (1, 8))
    for sources, targets, cut in (([0], [1, 2], (1, 8)), ([0, 1], [2, 2], (1, 8)), ([0], [1], (3, 1))):
        with pytest.raises(InputError, match="torch"):
            tier.copy(0, sources, targets, cut)
    assert np.array_equal(contents(tier, 0), before)
    tier.close()
    with pytest.raises(StateError, match="closed"):
        tier.copy(0, [0], [1], (1, 8))


@needs_cuda
def test_copies_come_after_what_the_device_was_given() -> None:
    arena = torch.zeros((64, 1 << 16), dtype=torch.uint8, device="cuda")
    tier, out = TorchTier("device", [arena]), np.zeros((64, 1, 1 << 16), np.uint8)
    torch.cuda._sleep(200_000_000)  # about a tenth of a second
    arena.fill_(7)
    tier.read(0, range(64), list(out))
    assert (out == 7).all()
    tier.write(0, range(64), list(out + 1))
    assert bool((arena == 8).all())


@needs_cuda
def test_pinned_memory_is_filled_as_well() -> None:
    tier, pinned = tier_on("cuda", [8], [1 << 16]), torch.zeros((8, 1 << 16), dtype=torch.uint8, pin_memory=True)
    host = ArenaTier.over("host", [pinned.numpy()])
    pages = fill(tier, 0)
    tier.read(0, [1, 2, 3, 7], [host.view(0)[slot : slot + 1] for slot in (4, 5, 6, 0)])
    assert np.array_equal(pinned.numpy()[[4, 5, 6, 0]], pages[[1, 2, 3, 7], 0])


class CopyingFlaky(FlakyTier):
    """A flaky tier that copies by itself."""

    def copy(self, group: int, src_slots: Sequence[int], dst_slots: Sequence[int], cut: tuple[int, int]) -> None:
        self.calls.append(("copy", len(dst_slots)))
        arena, wrong = self.arena.view(group), {}
        for source, target in zip(src_slots, dst_slots, strict=True):
            if (group, source) in self.lost or (group, target) in self.full:
                wrong[target] = "bad sector"
            else:
                strips, width = cut
                arena[target].reshape(strips, -1)[:, :width] = arena[source].reshape(strips, -1)[:, :width]
                self.lost.discard((group, target))
        if wrong:
            raise TierError(self.info().name, group, wrong)


def test_a_copy_inside_a_tier_that_copies_is_its_own() -> None:
    rig = Rig(disk=CopyingFlaky)
    held, old = rig.page(DISK, 0), rig.page(DISK, 2)
    with rig.mover:
        assert rig.mover.run(plan_of(0, copy((DISK, 0), (DISK, 1)))) == []
        assert rig.mover.run(plan_of(1, copy((DISK, 0), (DISK, 2), tokens=3))) == []
        assert rig.disk.calls == [("copy", 1), ("copy", 1)]
        assert rig.page(DISK, 1) == held
        assert rig.page(DISK, 2) == [*held[0:6], *old[6:8], *held[8:14], *old[14:16], *held[16:22], *old[22:24]]
        assert rig.mover.stats().bytes_moved == {(DISK, DISK): 24 + 18}


def test_between_tiers_and_in_exchanges_it_reads_and_writes() -> None:
    rig = Rig(disk=CopyingFlaky)
    with rig.mover:
        rig.mover.run(plan_of(0, copy((DISK, 0), (REMOTE, 1))))
        rig.mover.run(plan_of(1, copy((REMOTE, 0), (DISK, 1))))
        rig.mover.run(plan_of(2, (SWAP, 0, (DISK, 0), (DISK, 1), BLOCK)))
    assert {call for call, _ in rig.disk.calls} == {"read", "write"}


def test_a_copy_that_failed_poisons_its_target() -> None:
    rig = Rig(disk=CopyingFlaky)
    rig.disk.lost = {(0, 0)}
    with rig.mover:
        ticket = rig.mover.submit(plan_of(0, copy((DISK, 0), (DISK, 1)), copy((DISK, 2), (REMOTE, 0))))
        assert ticket.reasons() == {0: "bad sector"}
        assert rig.mover.run(plan_of(1, copy((DISK, 1), (REMOTE, 1)))) == [0]


plans = st.lists(st.lists(rows, max_size=20), min_size=1, max_size=4)


@settings(deadline=None)  # each example starts a thread
@given(plans, flaws)
def test_plans_mean_the_same_with_a_tier_that_copies(plans: list[list[Row]], lost: set[tuple[int, int]]) -> None:
    rig = Rig(disk=CopyingFlaky)
    meaning = Meaning(LAYOUTS, BLOCK, rig.pages())
    rig.disk.lost, meaning.lost = set(lost), {(group, DISK, slot) for group, slot in lost}
    made = [plan_of(number, *moves) for number, moves in enumerate(plans)]
    with rig.mover:
        assert [rig.mover.run(plan) for plan in made] == [meaning.run(plan) for plan in made]
    meaning.assert_held(rig.pages())


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None)
@given(plans, st.sampled_from([1, 100, 4096]))
def test_plans_mean_the_same_on_tensors(device: str, plans: list[list[Row]], staging_bytes: int) -> None:
    torch_tiers = [tier_on(device, SLOTS[0], SIZES), tier_on("cpu", SLOTS[3], SIZES)]
    tiers: list[Tier] = [torch_tiers[0], ArenaTier("host", SLOTS[1], SIZES), FlakyTier("disk", SLOTS[2], SIZES)]
    tiers.append(torch_tiers[1])
    groups = range(len(SIZES))
    pages = {(group, number): fill(tier, group, number) for number, tier in enumerate(tiers) for group in groups}
    meaning = Meaning(
        LAYOUTS, BLOCK, {(*key, slot): page[0] for key, held in pages.items() for slot, page in enumerate(held)}
    )
    with Mover(tiers, LAYOUTS, BLOCK, staging_bytes=staging_bytes) as mover:
        for number, moves in enumerate(plans):
            plan = plan_of(number, *moves)
            assert mover.run(plan) == meaning.run(plan) == []
    for group, number in pages:
        held: Bytes = contents(tiers[number], group)
        assert all(np.array_equal(page[0], meaning.pages[group, number, slot]) for slot, page in enumerate(held))
