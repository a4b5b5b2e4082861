"""The suites on the two tiers that need nothing: ArenaTier, and the flaky stand-in that tests of the mover use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quire.core.records.errors import InputError
from quire.tiers import ArenaTier, Bytes, MemoryTier, PageLayout, Tier, TierError

from .conformance import FailureSuite, MemorySuite
from .stand_ins import FlakyTier


class TestArena(MemorySuite):
    def make(self, num_slots: tuple[int, ...], page_bytes: tuple[int, ...], folder: Path) -> Tier:
        return ArenaTier("arena", num_slots, page_bytes)


class TestArenaOverMemory(MemorySuite):
    def make(self, num_slots: tuple[int, ...], page_bytes: tuple[int, ...], folder: Path) -> Tier:
        arenas = [np.zeros(shape, np.uint8) for shape in zip(num_slots, page_bytes, strict=True)]
        return ArenaTier.over("shared", arenas)


class TestFlaky(FailureSuite):
    beside = frozenset({"arena", "bug", "calls", "full", "lost"})

    def make(self, num_slots: tuple[int, ...], page_bytes: tuple[int, ...], folder: Path) -> Tier:
        return FlakyTier("flaky", num_slots, page_bytes)

    def damage(self, tier: Tier, group: int, slot: int) -> None:
        assert isinstance(tier, FlakyTier)
        tier.lost.add((group, slot))

    def test_it_has_no_view(self, tier: Tier) -> None:
        assert not isinstance(tier, MemoryTier)


def test_memory_of_the_caller_is_shared() -> None:
    memory = np.zeros((3, 8), np.uint8)
    tier = ArenaTier.over("device", [memory])
    tier.write(0, [1], [np.full((1, 8), 5, np.uint8)])
    assert memory.tolist() == [[0] * 8, [5] * 8, [0] * 8]
    assert np.shares_memory(tier.view(0), memory)


@pytest.mark.parametrize(
    "arena",
    [
        np.zeros((3, 8), np.int8),
        np.zeros(8, np.uint8),
        np.zeros((3, 16), np.uint8)[:, ::2],
        np.zeros((2, 4, 8), np.uint8),
    ],
)
def test_memory_of_another_shape_is_refused(arena: Bytes) -> None:
    with pytest.raises(InputError, match=r"\[num_slots, page_bytes\]"):
        ArenaTier.over("device", [arena])


def test_memory_that_cannot_be_written_is_refused() -> None:
    arena = np.zeros((3, 8), np.uint8)
    arena.flags.writeable = False
    with pytest.raises(InputError, match="not writable"):
        ArenaTier.over("device", [arena])


@pytest.mark.parametrize(("num_slots", "page_bytes"), [((1, 2), (8,)), ((-1,), (8,)), ((1,), (0,))])
def test_sizes_that_make_no_tier_are_refused(num_slots: tuple[int, ...], page_bytes: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="tier 'x'"):
        ArenaTier("x", num_slots, page_bytes)


def test_an_error_of_a_tier_needs_a_slot() -> None:
    with pytest.raises(InputError, match="names no slot"):
        TierError("disk", 0, {})
    both = TierError("disk", 1, {4: "torn page", 7: "torn page"})
    assert str(both) == "tier 'disk', group 1, slot 4 (and 1 more): torn page; treat what it held as missing"


def test_a_layout_cuts_by_tokens() -> None:
    split, solid = PageLayout(96, planes=4), PageLayout(96)
    assert split.cut(3, 8) == (4, 9)
    assert split.cut(8, 8) == (1, 96)
    assert solid.cut(3, 8) == (1, 96)
