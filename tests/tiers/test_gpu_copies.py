"""Many fragments by one launch; on CUDA, or on the CPU in Triton's interpreter. Between tiers: the bulk calls."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from quire.core.records.errors import InputError, UnknownError  # noqa: E402
from quire.core.records.plan import Kind  # noqa: E402
from quire.tiers import ArenaTier, Bytes, Mover, PageLayout  # noqa: E402
from quire.tiers import torch_tier as module  # noqa: E402
from quire.tiers.base import BulkTier  # noqa: E402
from quire.tiers.gpu.gpu_copies import TILE, WORD, FragmentCopies, fits  # noqa: E402
from quire.tiers.torch_tier import TorchTier  # noqa: E402
from tests.effort import cases  # noqa: E402

from .conformance import contents, fill  # noqa: E402
from .stand_ins import plan_of  # noqa: E402

CUDA = torch.cuda.is_available()
RUNS = CUDA or os.environ.get("TRITON_INTERPRET") == "1"  # which tests/conftest.py sets, before anybody imports Triton
MISSING = "Triton is not installed" if importlib.util.find_spec("triton") is None else "" if RUNS else "no CUDA here"
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
PAGE = 48  # bytes: 6 words, 3 strips of 16


def host_pages(count: int, size: int, seed: int) -> Bytes:
    pages = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (count, size), np.uint8))
    return np.asarray((pages.pin_memory() if CUDA else pages).numpy())


class Reaching(TorchTier):
    """On the CPU: takes any memory, and carries it in the interpreter."""

    __slots__ = ()

    def reaches(self, group: int, view: Bytes) -> bool:
        return super().reaches(group, view) if CUDA else True


def tier_of(slots: int, size: int = PAGE) -> TorchTier:
    return Reaching("device", [torch.zeros(slots, size, dtype=torch.uint8, device="cuda" if CUDA else "cpu")])


def address(page: Bytes) -> int:
    return int(page.__array_interface__["data"][0])


def wait() -> None:
    if CUDA:
        torch.cuda.synchronize()


@pytest.mark.parametrize("words", [1, 5, TILE - 1, TILE, TILE + 1, 2 * TILE + 3])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("programs", [1, 3])
def test_each_target_has_its_source_and_nothing_else_changes(words: int, swap: bool, programs: int) -> None:
    width = words * WORD
    one, other = host_pages(4, width + 16, 1), host_pages(4, width + 16, 2)
    was, had = one.copy(), other.copy()
    copies = FragmentCopies(torch.device("cuda" if CUDA else "cpu"), programs)
    pairs = ((0, 3), (2, 1), (3, 0))
    sources = np.array([address(one[source]) for source, _ in pairs])
    targets = np.array([address(other[target]) for _, target in pairs])
    copies.run(sources, targets, width, (targets, sources) if swap else None)
    wait()
    for source, target in pairs:
        had[target, :width], was[source, :width] = was[source, :width].copy(), had[target, :width].copy()
        if not swap:
            was[source] = one[source]
    assert np.array_equal(other, had) and np.array_equal(one, was)
    assert swap or np.array_equal(one, host_pages(4, width + 16, 1))


@pytest.mark.parametrize("words", [1, TILE + 1])
@pytest.mark.parametrize("num_pairs", [1, 2, 3])
def test_partners_are_read_before_what_they_overwrite(words: int, num_pairs: int) -> None:
    """A page makes room for its partner; the last ones have none."""
    width = words * WORD
    device, host = host_pages(3, width, 1), host_pages(6, width, 2)
    was, had = device.copy(), host.copy()
    copies = FragmentCopies(torch.device("cuda" if CUDA else "cpu"), 2)
    here, there, below = ([address(page) for page in pages] for pages in (device, host[:3], host[3:]))
    partners = np.array(below[:num_pairs]), np.array(here[:num_pairs])
    copies.run(np.array(here), np.array(there), width, partners)
    wait()
    assert np.array_equal(host[:3], was) and np.array_equal(host[3:], had[3:])
    assert np.array_equal(device[:num_pairs], had[3 : 3 + num_pairs])
    assert np.array_equal(device[num_pairs:], was[num_pairs:])


def test_tables_grow_and_none_are_no_work() -> None:
    copies = FragmentCopies(torch.device("cuda" if CUDA else "cpu"))
    copies.run(np.zeros(0, np.int64), np.zeros(0, np.int64), 8)
    one, other = host_pages(40, 8, 1), host_pages(40, 8, 2)
    for count in (1, 40, 2):
        other[:] = 0
        sources, targets = (np.array([address(page) for page in pages[:count]]) for pages in (one, other))
        copies.run(sources, targets, 8)
        wait()
        assert np.array_equal(other[:count], one[:count]) and not other[count:].any()


def test_only_whole_words_fit() -> None:
    assert fits(8, 1 << 40, 0) and not fits(8, 4) and not fits(9)


places = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=8, unique_by=(lambda p: p[0], lambda p: p[1])
)


@pytest.mark.parametrize("plain_bytes", [1, 4 << 20])
@pytest.mark.long
@settings(deadline=None, max_examples=cases(10, 20))
@given(places, st.sampled_from([(1, 48), (1, 8), (3, 16), (3, 8), (3, 5), (6, 8)]))
def test_bulk_calls_do_what_calls_per_page_do(
    plain_bytes: int, pairs: list[tuple[int, int]], cut: tuple[int, int]
) -> None:
    tier, plain = tier_of(8), ArenaTier("plain", [8], [PAGE])
    view, other = host_pages(8, PAGE, 1), host_pages(8, PAGE, 1)
    slots, rows = [slot for slot, _ in pairs], [row for _, row in pairs]
    cuts = other.reshape(8, cut[0], -1)[:, :, : cut[1]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PLAIN_BYTES", plain_bytes)
        for one in (tier, plain):
            fill(one, 0, 5)
        tier.write_from(0, slots, view, rows, cut)
        plain.write(0, slots, [cuts[row] for row in rows])
        assert np.array_equal(contents(tier, 0), contents(plain, 0))
        for one in (tier, plain):
            fill(one, 0, 6)
        tier.read_into(0, slots, view, rows, cut)
        plain.read(0, slots, [cuts[row] for row in rows])
        assert np.array_equal(view, other)
        before = contents(tier, 0)
        tier.exchange(0, slots, view, rows)
        for slot, row in pairs:
            assert np.array_equal(contents(tier, 0)[slot, 0], other[row]) and np.array_equal(view[row], before[slot, 0])


@pytest.mark.parametrize("plain_bytes", [1, 4 << 20])
@pytest.mark.long
@settings(deadline=None, max_examples=cases(10, 30))
@given(places, places)
def test_both_ways_at_once_is_one_way_after_the_other(
    plain_bytes: int, down: list[tuple[int, int]], up: list[tuple[int, int]]
) -> None:
    """Slots that are read are written too, or are not; a row that is filled is none that is read."""
    tier, plain = tier_of(8), tier_of(8)
    view, other = host_pages(16, PAGE, 1), host_pages(16, PAGE, 1)
    lists = (
        ([slot for slot, _ in down], [row for _, row in down]),
        ([slot for slot, _ in up], [8 + row for _, row in up]),
    )
    for one in (tier, plain):
        fill(one, 0, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PLAIN_BYTES", plain_bytes)
        tier.read_and_write(0, view, *lists)
    plain.read_into(0, lists[0][0], other, lists[0][1], (1, PAGE))
    plain.write_from(0, lists[1][0], other, lists[1][1], (1, PAGE))
    assert np.array_equal(view, other) and np.array_equal(contents(tier, 0), contents(plain, 0))


def test_the_mover_makes_room_and_fills_it_by_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    tier, view = tier_of(4), host_pages(6, PAGE, 1)
    fill(tier, 0, 3)
    device, host = contents(tier, 0)[:, 0].copy(), view.copy()
    calls: list[int] = []
    told = TorchTier.read_and_write

    def counted(*given: Any) -> None:
        calls.append(len(given[3][0]))
        told(*given)

    monkeypatch.setattr(TorchTier, "read_and_write", counted)
    down = [(Kind.OFFLOAD, 0, (0, slot), (1, row), 4) for slot, row in ((0, 1), (2, 3), (3, 0))]
    up = [(Kind.ONBOARD, 0, (1, row), (0, slot), 4) for row, slot in ((4, 2), (5, 0))]
    with Mover([tier, ArenaTier.over("host", [view])], [PageLayout(PAGE)], 4) as mover:
        assert mover.run(plan_of(0, *down, *up)) == []
        assert calls == [3] and mover.stats().bytes_moved == {(0, 1): 3 * PAGE, (1, 0): 2 * PAGE}
        now = contents(tier, 0)[:, 0]
        assert np.array_equal(view[[1, 3, 0]], device[[0, 2, 3]]) and np.array_equal(view[[2, 4, 5]], host[[2, 4, 5]])
        assert np.array_equal(now, np.stack([host[5], device[1], host[4], device[3]]))
        back = (Kind.OFFLOAD, 0, (0, 1), (1, 2), 4), (Kind.ONBOARD, 0, (1, 2), (0, 3), 4)
        assert mover.run(plan_of(1, *back)) == []  # what comes up is what went down: one after the other
        assert calls == [3] and np.array_equal(contents(tier, 0)[3, 0], device[1])
        monkeypatch.setattr(TorchTier, "read_and_write", lambda *_: 1 // 0)
        failed = mover.reasons(plan_of(2, *down, *up))
        assert sorted(failed) == [0, 1, 2, 3, 4] and "ZeroDivisionError" in failed[0]
        assert mover.run(plan_of(3, (Kind.OFFLOAD, 0, (0, 2), (1, 5), 4))) == [0], "nothing is known of that slot"


def test_what_makes_no_sense_changes_nothing() -> None:
    tier, view = tier_of(4), host_pages(4, PAGE, 1)
    before = contents(tier, 0)

    def write(slots: list[int], rows: list[int], memory: Bytes) -> None:
        tier.write_from(0, slots, memory, rows, (1, PAGE))

    def swap(slots: list[int], rows: list[int], memory: Bytes) -> None:
        tier.exchange(0, slots, memory, rows)

    for call in (write, swap):
        with pytest.raises(UnknownError, match="4 slots"):
            call([0, 4], [0, 1], view)
        with pytest.raises(UnknownError, match="it has 4 rows, asked are 0 to 4"):
            call([0, 1], [0, 4], view)
        with pytest.raises(InputError, match="one row per slot"):
            call([0, 1], [0], view)
        with pytest.raises(InputError, match="each slot once"):
            call([1, 1], [0, 1], view)
        with pytest.raises(InputError, match="page_bytes"):
            call([0], [0], view[:, :40])
    assert np.array_equal(contents(tier, 0), before) and np.array_equal(view, host_pages(4, PAGE, 1))


def test_the_mover_carries_a_batch_by_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    tier, view = tier_of(4), host_pages(4, PAGE, 1)
    calls: list[str] = []

    def noted(name: str) -> Any:
        told = getattr(TorchTier, name)

        def call(*given: Any) -> Any:
            calls.append(name)
            return told(*given)

        return call

    for name in ("read", "write", "read_into", "write_from", "exchange"):
        monkeypatch.setattr(TorchTier, name, noted(name))
    fill(tier, 0, 3)
    device, host = contents(tier, 0)[:, 0].copy(), view.copy()
    calls.clear()
    with Mover([tier, ArenaTier.over("host", [view])], [PageLayout(PAGE)], 4) as mover:
        assert mover.run(plan_of(0, (Kind.OFFLOAD, 0, (0, 1), (1, 2), 4), (Kind.OFFLOAD, 0, (0, 3), (1, 0), 4))) == []
        assert mover.run(plan_of(1, (Kind.ONBOARD, 0, (1, 1), (0, 0), 4))) == []
        assert mover.run(plan_of(2, (Kind.EXCHANGE, 0, (0, 2), (1, 3), 4))) == []
        assert mover.run(plan_of(3, (Kind.EXCHANGE, 0, (1, 3), (0, 2), 4))) == []
    assert calls == ["read_into", "write_from", "exchange", "exchange"]
    host[2], host[0], device[0] = device[1], device[3], host[1].copy()
    assert np.array_equal(view, host) and np.array_equal(contents(tier, 0)[:, 0], device)


def test_memory_that_is_not_pinned_goes_page_by_page() -> None:
    tier = TorchTier("device", [torch.zeros(4, PAGE, dtype=torch.uint8, device="cuda" if CUDA else "cpu")])
    assert isinstance(tier, BulkTier) and not tier.reaches(0, np.zeros((4, PAGE), np.uint8))
    if CUDA:
        assert tier.reaches(0, host_pages(4, PAGE, 1))
        assert not tier.reaches(0, host_pages(5, PAGE, 1).reshape(-1)[4:196].reshape(4, PAGE))
        tier.close()
        assert not tier.reaches(0, host_pages(4, PAGE, 1))
