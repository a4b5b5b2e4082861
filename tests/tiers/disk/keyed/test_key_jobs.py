"""KeyJobs: submitting never waits, what waits is bounded, and a job that is given up touches nothing any more."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from threading import Event

import numpy as np
import pytest

from quire import InputError
from quire.tiers import Bytes
from quire.tiers.disk.keyed import KeyJobs, KeyJobsDone
from quire.tiers.disk.keyed.key_place import THERE, Still

from ....waits import PATIENCE, until

ROWS, SIZE = 8, 64


class MemoryPlace:
    """A place in memory whose calls wait at a gate."""

    def __init__(self) -> None:
        self.kept: dict[bytes, Bytes] = {}
        self.hanging = False
        self.gate, self.reached = Event(), Event()
        self.gate.set()
        self.tidied = 0
        self.closed = False
        self.broken = False

    def _wait(self) -> None:
        self.reached.set()
        assert self.gate.wait(PATIENCE)
        if self.broken:
            raise RuntimeError("a bug")

    def write(self, keys: Sequence[bytes], pages: Sequence[Bytes], still: Still) -> list[str]:
        self._wait()
        if not still():
            return ["given up"] * len(keys)
        self.kept |= {key: page.copy() for key, page in zip(keys, pages, strict=True)}
        return [THERE] * len(keys)

    def read(self, keys: Sequence[bytes], pages: Sequence[Bytes], still: Still) -> list[str]:
        self._wait()
        answers = []
        for key, page in zip(keys, pages, strict=True):
            answers.append(THERE if key in self.kept else "absent")
            if key in self.kept:
                page[:] = self.kept[key]
        return answers

    def use(self, keys: Sequence[bytes], reused: Collection[bytes]) -> None: ...

    def tidy(self) -> float | None:
        self.tidied += 1
        return None

    def close(self) -> None:
        self.closed = True


class Rig:
    def __init__(self, most_pages: int = 4) -> None:
        self.place, self.now = MemoryPlace(), 0.0
        self.view = np.zeros((ROWS, SIZE), np.uint8)
        self.heard: list[bool] = []
        self.jobs = KeyJobs(self.place, most_pages=most_pages, clock=lambda: self.now, ended=self.heard.append)

    def store(self, number: int, keys: list[bytes], rows: Sequence[int]) -> None:
        self.jobs.submit_store(number, keys, [self.view[row] for row in rows])

    def load(self, number: int, keys: list[bytes], rows: Sequence[int]) -> None:
        self.jobs.submit_load(number, keys, [self.view[row] for row in rows])

    def ended(self) -> dict[int, KeyJobsDone]:
        self.jobs.drain()
        return {done.number: done for done in self.jobs.finished()}


def test_rows_go_and_come_back_and_each_job_ends_once() -> None:
    rig = Rig()
    rig.view[:2] = [[1], [2]]
    rig.store(7, [b"a", b"b"], [0, 1])
    stored = rig.ended()
    rig.load(8, [b"b", b"x", b"a"], [3, 4, 5])
    loaded = rig.ended()
    assert (stored[7].good, stored[7].bad, stored[7].num_bytes) == ((b"a", b"b"), (), 2 * SIZE)
    assert (loaded[8].good, loaded[8].bad, loaded[8].is_load) == ((b"b", b"a"), (b"x",), True)
    assert rig.view[3:6, 0].tolist() == [2, 0, 1] and rig.jobs.finished() == []
    assert rig.jobs.close() and rig.place.closed and rig.place.tidied


def test_more_than_may_wait_is_refused_at_once_and_loads_pass_by() -> None:
    rig = Rig(most_pages=3)
    rig.place.gate.clear()
    rig.store(1, [b"a", b"b"], [0, 1])
    assert rig.place.reached.wait(PATIENCE)
    rig.store(2, [b"c", b"d"], [2, 3])
    (refused,) = rig.jobs.finished()
    assert (refused.number, refused.good, rig.jobs.refused) == (2, (), 2)
    rig.place.gate.set()
    assert rig.ended()[1].good
    rig.store(3, [b"%d" % nth for nth in range(5)], range(5))
    assert len(rig.ended()[3].good) == 5, "a job larger than the bound goes alone"
    assert rig.jobs.close()


def test_while_the_place_hangs_stores_are_given_up_and_leave_nothing() -> None:
    rig = Rig()
    rig.place.gate.clear()
    rig.store(1, [b"a"], [0])
    assert rig.place.reached.wait(PATIENCE)
    rig.now = 100.0
    assert rig.jobs.finished() == [], "slow is not hanging"
    rig.place.hanging = True
    assert [(done.number, done.bad) for done in rig.jobs.finished()] == [(1, (b"a",))]
    rig.store(2, [b"b"], [1])
    assert [done.number for done in rig.jobs.finished()] == [2]
    rig.view[0] = 9  # the row is somebody else's now
    rig.place.gate.set()
    assert rig.jobs.close() and not rig.place.kept and rig.jobs.finished() == []
    assert rig.jobs._writer.failures == 0, "it ended a second time"


def test_a_load_that_has_begun_is_never_given_up_and_one_that_waits_is() -> None:
    rig = Rig()
    rig.place.kept = {b"a": np.full(SIZE, 5, np.uint8)}
    rig.place.gate.clear()
    for number in range(4):  # two threads
        rig.load(number, [b"a"], [number])
    assert rig.place.reached.wait(PATIENCE)
    while sum(job.started for job in list(rig.jobs._jobs.values())) < 2:
        pass
    rig.place.hanging, rig.now = True, 100.0
    assert [(done.number, done.bad) for done in rig.jobs.finished()] == [(2, (b"a",)), (3, (b"a",))]
    rig.place.gate.set()
    assert sorted(rig.ended()) == [0, 1] and rig.view[:4, 0].tolist() == [5, 5, 0, 0]
    assert rig.jobs.close()


def test_a_bug_ends_its_job_and_not_the_threads() -> None:
    rig = Rig()
    rig.place.broken = True
    rig.store(1, [b"a"], [0])
    assert rig.ended()[1].bad == (b"a",)
    rig.place.broken = False
    rig.store(2, [b"a"], [0])
    assert rig.ended()[2].good == (b"a",)
    assert rig.jobs.close()
    rig.load(3, [b"a"], [0])
    assert rig.ended()[3].bad == (b"a",), "closed"


def test_after_each_store_the_place_may_tidy_though_more_waits() -> None:
    rig = Rig(most_pages=8)
    for number in range(3):
        rig.store(number, [b"%d" % number], [number])
    assert len(rig.ended()) == 3 and rig.jobs.close() and rig.place.tidied >= 3


def test_jobs_of_which_none_may_wait_are_refused() -> None:
    with pytest.raises(InputError, match="give 1 or more"):
        KeyJobs(MemoryPlace(), most_pages=0)


def test_whoever_wants_to_hears_of_the_end_of_each_job() -> None:
    rig = Rig(most_pages=1)
    rig.place.gate.clear()
    rig.store(1, [b"a"], [0])
    assert rig.place.reached.wait(PATIENCE)
    rig.store(2, [b"b"], [1])
    assert rig.heard == [False], "the one for which there was no room"
    rig.place.gate.set()
    rig.jobs.drain()
    rig.load(3, [b"a"], [2])
    rig.jobs.drain()
    until(lambda: len(rig.heard) == 3)
    assert rig.heard == [False, False, True] and rig.jobs.close()
