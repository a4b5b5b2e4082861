"""An engine's own copy of a block table: what changed since it was told last, and rows copied into its own memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import Cache, InputError, LayerGroup, Request, UnknownError
from quire.core.store import StoreName

from ..conftest import seq, small


class Copy:
    """A table kept by nothing but what it is told."""

    def __init__(self, cache: Cache, group: int = 0) -> None:
        self.cache, self.group = cache, group
        self.table = np.full_like(cache.table(group), -1)

    def cells(self) -> list[tuple[int, ...]]:
        """Take what has changed; the copy is the table again."""
        rows, columns, slots = changes = self.cache.take_table_changes(self.group)
        self.table[rows, columns] = slots
        assert np.array_equal(self.table, self.cache.table(self.group))
        return [tuple(cell) for cell in changes.T.tolist()]


def admitted(cache: Cache, *requests: Request, **options: Any) -> list[Any]:
    batch = cache.add_sequence_batch(requests, **options)
    cache.finish(batch.plan)
    return batch.sequences


def test_grow_tells_which_rows_got_a_slot_and_the_slots(store: StoreName) -> None:
    cache = small(store, 8)
    one, other = admitted(cache, Request("one", seq(0, 4)), Request("other", seq(50, 6)))
    copy = Copy(cache)
    assert len(copy.cells()) == 3
    cache.commit([one, other])
    cache.grow([one, other], seq(90, 2))
    assert copy.cells() == [(one.row, 1, one.slots()[1])], "only one has crossed the edge of a block"
    cache.commit([one, other])
    assert copy.cells() == [], "nothing leaves a group that reads all"
    cache.grow([one, other], seq(90, 2))
    assert copy.cells() == []


def test_changes_of_many_calls_are_told_at_once_and_each_cell_once(store: StoreName) -> None:
    cache = small(store, 8)
    (one,) = admitted(cache, Request("one", seq(0, 9)))
    cache.commit(one)
    cache.grow(one, seq(90, 8))
    cache.trim(one, 8)
    copy = Copy(cache)
    assert copy.cells() == [(one.row, block, slot) for block, slot in enumerate(one.slots().tolist())]
    row, slots = one.row, one.slots().tolist()
    cache.release(one)
    (again,) = admitted(cache, Request("again", seq(0, 9)))
    assert again.row == row and again.slots().tolist()[:2] == slots[:2], "what it shares is where it was"
    assert copy.cells() == [(row, 2, again.slots()[2])]


def test_what_leaves_a_window_is_told_as_a_hole(store: StoreName) -> None:
    cache = small(store, 16, groups=(LayerGroup(), LayerGroup("window", window=5)))
    (one,) = admitted(cache, Request("one", seq(0, 15)))
    copies = [Copy(cache, group) for group in (0, 1)]
    before = [copy.cells() for copy in copies]
    cache.commit(one)
    assert before[0] and copies[0].cells() == []
    assert copies[1].cells() == [(one.row, 0, -1), (one.row, 1, -1)]
    cache.grow(one, seq(90, 2))
    cache.commit(one)
    assert [len(copy.cells()) for copy in copies] == [1, 2], "a slot each, and a hole"


def test_forks_releases_and_setbacks_are_told(store: StoreName) -> None:
    cache = small(store, 6, 6)
    copy = Copy(cache)
    (one,) = admitted(cache, Request("one", seq(0, 10)))
    cache.commit(one)
    copy.cells()
    forked = cache.fork(one, ["two"])
    assert forked is not None
    cache.finish(forked[1])
    assert [cell[0] for cell in copy.cells()] == [forked[0][0].row] * 3
    cache.release([one, *forked[0]])
    assert {cell[2] for cell in copy.cells()} == {-1}
    (other,) = admitted(cache, Request("other", seq(100, 24)))  # the six pages go down
    cache.commit(other)
    cache.release(other)
    batch = cache.add_sequence_batch([Request("again", seq(0, 10))])
    assert batch.sequences[0].start == 10 - 1
    copy.cells()
    cache.finish(batch.plan, [place for place, move in enumerate(batch.plan) if move.dst[0] == 0][:1])
    copy.cells()


def test_rows_are_copied_no_wider_than_the_longest_of_them(store: StoreName) -> None:
    cache = small(store, 16)
    short, long = admitted(cache, Request("short", seq(0, 3)), Request("long", seq(50, 12)))
    table = cache.table(rows=[long, short])
    assert table.tolist() == [long.slots().tolist(), [*short.slots().tolist(), -1, -1]]
    out = np.full((4, 10), 77, np.int32)
    part = cache.table(rows=np.array([short.row, long.row, short.row], np.int32), out=out)
    assert np.shares_memory(part, out) and part.shape == (3, 3)
    assert part[1].tolist() == long.slots().tolist() and part[0].tolist() == part[2].tolist()
    assert (out[3:] == 77).all() and (out[:, 3:] == 77).all(), "the rest is as it was"
    assert cache.table(rows=[]).shape == (0, 0)


def test_rows_of_a_table_that_cannot_be_copied_are_refused(store: StoreName) -> None:
    cache = small(store, 16)
    one, other = admitted(cache, Request("one", seq(0, 9)), Request("other", seq(50, 4)))
    fits = np.zeros((2, 8), np.int32)
    wrong: list[Any] = [
        np.zeros((2, 2), np.int32), np.zeros((0, 8), np.int32), fits.astype(np.int64), fits[:, ::2], fits[0], [[0] * 8],
    ]  # fmt: skip
    for out in wrong:
        with pytest.raises(InputError, match="rows of a table"):
            cache.table(rows=[one], out=out)
    fits.flags.writeable = False
    with pytest.raises(InputError, match="cannot be written"):
        cache.table(rows=[one], out=fits)
    with pytest.raises(InputError, match="no rows are named"):
        cache.table(out=np.zeros((2, 8), np.int32))
    row = other.row
    cache.release(other)
    for rows in ([row], [one.row, -1], [one.row, 8]):
        with pytest.raises(UnknownError, match="no live sequence"):
            cache.table(rows=np.array(rows, np.int32))
    assert cache.table(rows=[one]).tolist() == [one.slots().tolist()]
