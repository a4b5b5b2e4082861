"""Blocks that compaction has left out, and what the cache says of them later."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from quire.tiers.disk import OpenReport
from quire.tiers.disk.log.known import FewNumbers, KnownBlocks

from .test_folder import opened, stored
from .world import changes, page_of, places_of


def test_numbers_above_the_last_compaction_are_known() -> None:
    known = KnownBlocks()
    assert known.has(np.array([1, 5, 900])).all()
    known.compacted(np.array([5, 2]), before=7)
    assert known.has(np.array([1, 2, 5, 7, 8])).tolist() == [False, True, True, False, True]
    assert known.take(changes(nodes=[(8, 5), (9, 7), (10, 9), (11, -1)]).nodes).tolist() == [True, False, False, True]
    assert known.has(np.array([8, 9, 10, 11])).tolist() == [True, False, False, True]
    assert known.take(changes(nodes=[(12, 10)]).nodes).tolist() == [False]
    assert known.take(changes(nodes=[(7, 5), (9, 7)]).nodes).tolist() == [True, True], "told again"
    assert known.has(np.array([7, 9, 10])).tolist() == [True, True, False]
    known.compacted(np.array([11]), before=12)
    assert known.has(np.array([2, 8, 10, 11, 12, 13])).tolist() == [False, False, False, True, False, True]


def test_numbers_take_four_bytes_each_however_large_they_are() -> None:
    ours = [3, 7, (1 << 32) - 1, 1 << 32, (1 << 32) + 7, (5 << 32) + 3]
    few = FewNumbers(np.array([ours[3], *ours[:3], *ours[4:]]))
    others = [-1, 0, 4, (1 << 32) + 3, (2 << 32) + 7, (5 << 32) + 7]
    assert few.nbytes == 4 * len(ours) and few.has(np.array(ours)).all() and not few.has(np.array(others)).any()
    both = few.more(np.array([(2 << 32) + 7, 4, 4]))
    assert both.nbytes == 4 * (len(ours) + 2) and both.has(np.array(ours)).all()
    assert both.has(np.array(others)).tolist() == [False, False, True, False, True, False]
    none = FewNumbers(np.empty(0, np.int64))
    assert none.nbytes == 0 and not none.has(np.array([0, 1])).any()
    assert none.more(np.array([9])).has(np.array([9])).all()


def test_a_page_of_a_block_that_was_left_out_is_not_recorded(tmp_path: Path) -> None:
    """Block 1 loses its page, and the log is compacted; the cache still has the block, and stores the page again."""
    with opened(tmp_path) as folder:
        stored(folder, [(1, -1)], [(0, 5, 1)])
        stored(folder, [(2, -2)], [(0, 6, 2)])
        folder.record(changes(freed=[(0, 5)]))
        folder.fence()
        assert folder.manifest.compact() > 0
        folder.tier.write(0, [5], [page_of(1, 0)])
        assert folder.record(changes(pages=[(0, 5, 1)])).slot.tolist() == [5]
        folder.tier.write(0, [7], [page_of(3, 0)])
        assert folder.record(changes(nodes=[(3, 1)], pages=[(0, 7, 3)])).slot.tolist() == [7]
        stored(folder, [(4, 2)], [(0, 8, 4)])
    with opened(tmp_path) as again:
        assert places_of(again.contents) == [(0, 6, 2), (0, 8, 4)] and again.report == OpenReport()


def test_a_compaction_gives_way_to_a_record_that_names_what_it_would_leave_out(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        stored(folder, [(1, -1)], [(0, 5, 1)])
        folder.record(changes(freed=[(0, 5)]))
        folder.fence()
        stored(folder, [], [(0, 7, 1)])  # no fence covers it yet, and it names block 1
        assert folder.manifest.compact() == 0
        folder.fence()
        assert folder.manifest.compact() > 0
    with opened(tmp_path) as again:
        assert places_of(again.contents) == [(0, 7, 1)]
