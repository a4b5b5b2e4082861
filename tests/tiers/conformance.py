"""What every tier must do. Subclass a suite, say how to make the tier, and pytest runs it; knows no tier by name.

TierSuite is for all; MemorySuite for those with a view; FailureSuite for those that can lose a slot.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from quire.core.records.errors import InputError, QuireError, StateError, UnknownError
from quire.tiers import Bytes, MemoryTier, Tier, TierError, TierInfo

NUM_SLOTS = (6, 4, 0)
PAGE_BYTES = (48, 1024, 64)


def page(seed: int, page_bytes: int) -> Bytes:
    """A whole page of bytes that no other seed gives."""
    return np.random.default_rng(seed).integers(0, 256, (1, page_bytes), np.uint8)


def contents(tier: Tier, group: int) -> Bytes:
    """Every slot of a group, read."""
    info = tier.info()
    out = np.zeros((info.num_slots[group], 1, info.page_bytes[group]), np.uint8)
    tier.read(group, range(len(out)), list(out))
    return out


def fill(tier: Tier, group: int, seed: int = 0) -> Bytes:
    """Write every slot of a group; what was written."""
    info = tier.info()
    pages = [page(seed * 1000 + slot, info.page_bytes[group]) for slot in range(info.num_slots[group])]
    tier.write(group, range(len(pages)), pages)
    return np.stack(pages)


class TierSuite:
    """The contract of Tier."""

    def make(self, num_slots: tuple[int, ...], page_bytes: tuple[int, ...], folder: Path) -> Tier:
        """A new tier of these sizes; `folder` is empty and its own."""
        raise NotImplementedError

    @pytest.fixture
    def tier(self, tmp_path: Path) -> Tier:
        return self.make(NUM_SLOTS, PAGE_BYTES, tmp_path)

    def test_info_gives_name_and_sizes(self, tier: Tier) -> None:
        info = tier.info()
        assert info == TierInfo(info.name, NUM_SLOTS, PAGE_BYTES)
        assert info.name

    def test_pages_come_back(self, tier: Tier) -> None:
        wrote = [fill(tier, group, seed=group) for group in (0, 1)]
        assert np.array_equal(contents(tier, 0), wrote[0])
        assert np.array_equal(contents(tier, 1), wrote[1])

    def test_slots_of_a_batch_come_in_any_order(self, tier: Tier) -> None:
        pages = [page(seed, PAGE_BYTES[0]) for seed in range(3)]
        fill(tier, 0, seed=9)
        tier.write(0, [5, 0, 2], pages)
        out = np.zeros((4, 1, PAGE_BYTES[0]), np.uint8)
        tier.read(0, [2, 5, 0, 5], list(out))
        assert np.array_equal(out, np.stack([pages[2], pages[0], pages[1], pages[0]]))

    def test_a_write_touches_its_slots_only(self, tier: Tier) -> None:
        before, other = fill(tier, 0), fill(tier, 1)
        tier.write(0, [3], [page(77, PAGE_BYTES[0])])
        before[3] = page(77, PAGE_BYTES[0])
        assert np.array_equal(contents(tier, 0), before)
        assert np.array_equal(contents(tier, 1), other)

    def test_what_was_written_is_not_tied_to_the_buffer(self, tier: Tier) -> None:
        data = page(1, PAGE_BYTES[0])
        tier.write(0, [1], [data])
        data[:] = 0
        out = np.zeros_like(data)
        tier.read(0, [1], [out])
        assert np.array_equal(out, page(1, PAGE_BYTES[0]))

    @pytest.mark.parametrize(("strips", "width"), [(1, 1), (1, 47), (4, 12), (4, 5), (48, 1)])
    def test_leading_parts_are_read(self, tier: Tier, strips: int, width: int) -> None:
        pages = fill(tier, 0)
        out = np.zeros((2, strips, width), np.uint8)
        tier.read(0, [4, 1], list(out))
        assert np.array_equal(out, pages[[4, 1]].reshape(2, strips, -1)[:, :, :width])

    @pytest.mark.parametrize(("strips", "width"), [(1, 1), (1, 47), (4, 12), (4, 5), (48, 1)])
    def test_leading_parts_are_written_and_the_rest_stays(self, tier: Tier, strips: int, width: int) -> None:
        pages = fill(tier, 0)
        data = page(5, strips * width).reshape(strips, width)
        tier.write(0, [2], [data])
        pages[2].reshape(strips, -1)[:, :width] = data
        assert np.array_equal(contents(tier, 0), pages)

    def test_buffers_need_not_be_contiguous(self, tier: Tier) -> None:
        wide = np.zeros((4, 24), np.uint8)
        data = np.random.default_rng(3).integers(0, 256, (4, 24), np.uint8)
        tier.write(0, [0], [data[:, ::2]])
        tier.read(0, [0], [wide[:, 12:]])
        assert np.array_equal(wide[:, 12:], data[:, ::2])
        assert not wide[:, :12].any()

    def test_an_empty_batch_does_nothing(self, tier: Tier) -> None:
        before = fill(tier, 0)
        tier.write(0, [], [])
        tier.read(2, [], [])
        assert np.array_equal(contents(tier, 0), before)

    @pytest.mark.parametrize(("group", "slot"), [(0, 6), (0, -1), (1, 4), (2, 0), (3, 0), (-1, 0)])
    def test_what_is_not_there_is_refused(self, tier: Tier, group: int, slot: int) -> None:
        before = fill(tier, 0)
        size = PAGE_BYTES[group] if 0 <= group < 3 else PAGE_BYTES[0]
        buffers = [np.ones((1, size), np.uint8), np.ones((1, size), np.uint8)]
        for act in (tier.read, tier.write):
            with pytest.raises(UnknownError, match=tier.info().name):
                act(group, [0, slot], buffers)
        assert np.array_equal(contents(tier, 0), before)
        assert all(buffer.all() for buffer in buffers)

    @pytest.mark.parametrize("shape", [(1, 49), (5, 1), (2, 25), (48,), (1, 0), (0, 4), (1, 4, 12)])
    def test_a_buffer_that_is_no_cut_of_a_page_is_refused(self, tier: Tier, shape: tuple[int, ...]) -> None:
        before = fill(tier, 0)
        good, wrong = np.ones((1, 48), np.uint8), np.ones(shape, np.uint8)
        for act in (tier.read, tier.write):
            with pytest.raises(InputError, match="48 bytes"):
                act(0, [0, 1], [good, wrong])
        assert good.all()
        assert np.array_equal(contents(tier, 0), before)

    def test_buffers_hold_bytes_and_match_the_slots(self, tier: Tier) -> None:
        signed = np.ones((1, 48), np.int8)
        for act in (tier.read, tier.write):
            with pytest.raises(InputError, match="int8"):
                act(0, [0], [signed])  # type: ignore[list-item]
            with pytest.raises(InputError, match="2 slots, 1 buffers"):
                act(0, [0, 1], [np.ones((1, 48), np.uint8)])

    def test_a_slot_written_twice_in_a_batch_is_refused(self, tier: Tier) -> None:
        before = fill(tier, 0)
        with pytest.raises(InputError, match="once"):
            tier.write(0, [1, 2, 1], [np.ones((1, 48), np.uint8)] * 3)
        assert np.array_equal(contents(tier, 0), before)

    def test_a_closed_tier_refuses(self, tier: Tier) -> None:
        tier.close()
        tier.close()
        assert tier.info().num_slots == NUM_SLOTS
        for act in (tier.read, tier.write):
            with pytest.raises(StateError, match="closed"):
                act(0, [0], [np.ones((1, 48), np.uint8)])

    def test_it_has_the_methods_of_a_tier_and_at_most_one_more(self, tier: Tier) -> None:
        public = {name for name in dir(tier) if not name.startswith("_") and name not in self.beside}
        assert {"info", "read", "write", "close"} <= public <= {"info", "read", "write", "close", "view", "over"}

    beside: frozenset[str] = frozenset()  # public names of one tier that are not part of the contract


class MemorySuite(TierSuite):
    """The contract of MemoryTier, on top."""

    def test_the_view_is_the_memory_itself(self, tier: Tier) -> None:
        assert isinstance(tier, MemoryTier)
        pages = fill(tier, 1)
        view = tier.view(1)
        assert (str(view.dtype), view.shape, view.flags.c_contiguous) == ("uint8", (4, 1024), True)
        assert np.array_equal(view, pages[:, 0])
        view[2] = 7
        assert (contents(tier, 1)[2] == 7).all()

    def test_views_are_of_groups_that_exist(self, tier: Tier) -> None:
        assert isinstance(tier, MemoryTier)
        assert tier.view(2).shape == (0, 64)
        with pytest.raises(UnknownError, match="group 3"):
            tier.view(3)
        tier.close()
        with pytest.raises(StateError, match="closed"):
            tier.view(0)


class FailureSuite(TierSuite):
    """What a tier that can lose a slot owes its callers."""

    def damage(self, tier: Tier, group: int, slot: int) -> None:
        """Spoil what the slot holds, behind the tier's back."""
        raise NotImplementedError

    def test_a_failed_read_names_tier_slot_and_reason(self, tier: Tier) -> None:
        fill(tier, 0)
        self.damage(tier, 0, 3)
        with pytest.raises(TierError) as caught:
            contents(tier, 0)
        error = caught.value
        assert (error.tier, error.group, error.slot, list(error.failed)) == (tier.info().name, 0, 3, [3])
        assert error.reason and error.reason == error.failed[3]
        assert all(part in str(error) for part in (error.tier, "slot 3", error.reason))
        assert isinstance(error, QuireError)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)

    def test_a_batch_is_read_to_its_end(self, tier: Tier) -> None:
        pages = fill(tier, 0)
        self.damage(tier, 0, 1)
        self.damage(tier, 0, 4)
        out = np.zeros((6, 1, 48), np.uint8)
        with pytest.raises(TierError) as caught:
            tier.read(0, [1, 0, 5, 4, 2, 1], list(out))
        assert set(caught.value.failed) == {1, 4}
        assert np.array_equal(out[[1, 2, 4]], pages[[0, 5, 2]])

    def test_a_part_of_a_damaged_page_is_not_trusted(self, tier: Tier) -> None:
        fill(tier, 0)
        self.damage(tier, 0, 2)
        with pytest.raises(TierError):
            tier.read(0, [2], [np.zeros((4, 1), np.uint8)])

    def test_a_write_makes_the_slot_good(self, tier: Tier) -> None:
        pages = fill(tier, 0)
        self.damage(tier, 0, 3)
        pages[3] = page(50, 48)
        tier.write(0, [3], [pages[3]])
        assert np.array_equal(contents(tier, 0), pages)
