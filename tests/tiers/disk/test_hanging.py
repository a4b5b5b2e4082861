"""A disk that does not answer: nobody waits for it for ever, and what it did not say is not held against its pages."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any

import pytest

from quire import Request, Scope, StateError, check
from quire.core.outside.prefetch import Prefetch
from quire.core.sequences.setbacks import Finished, Setback
from quire.tiers import Bytes
from quire.tiers.disk import DiskFolder, DiskIO, KeeperPace
from quire.tiers.disk.calls.files import File, RealFiles
from quire.tiers.disk.calls.owner import model_folder
from quire.tiers.disk.fsck import examine
from quire.tiers.disk.log.read_manifest import NAME
from quire.tiers.disk.pages.tier import DiskTier

from ...waits import until
from .rig import BY_HAND, DISK, FINGERPRINT, OFTEN, PAGE, Kept, page_of, prompt
from .test_tier import flip

PATIENT = 120.0  # seconds after which something hangs
SOON, LONG = DiskIO(2, 16, 0.1), DiskIO(2, 16, PATIENT)
MINE = Scope(salt="mine")


class GatedFile:
    """A file whose calls of some kinds wait while the gate is closed."""

    def __init__(self, name: str, file: File, files: GatedFiles) -> None:
        self._name, self._file, self._files = name, file, files
        self.size, self.resize, self.close = file.size, file.resize, file.close

    def read(self, offset: int, into: Bytes) -> int:
        self._files.meet(self._name, "read")
        return self._file.read(offset, into)

    def read_ready(self, offset: int, into: Bytes) -> int:
        return 0

    def write(self, offset: int, parts: Sequence[Bytes]) -> int:
        self._files.meet(self._name, "write")
        return self._file.write(offset, parts)

    def sync(self) -> None:
        self._files.meet(self._name, "sync")
        self._file.sync()


class GatedFiles(RealFiles):
    """A disk that stops to answer calls of one kind to one file."""

    def __init__(self) -> None:
        self.closed: set[tuple[str, str]] = set()
        self.gate, self.reached = Event(), Event()

    def open(self, path: Path, create: bool = False) -> File:
        self.meet(path.name, "open")
        return GatedFile(path.name, super().open(path, create), self)

    def meet(self, name: str, what: str) -> None:
        if (name, what) in self.closed:
            self.reached.set()
            assert self.gate.wait(PATIENT)


@pytest.fixture
def files() -> Iterator[GatedFiles]:
    files = GatedFiles()
    yield files
    files.closed.clear()
    files.gate.set()


def within(act: Callable[[], Any]) -> Any:
    """What it returns or raises, and it does so."""
    got: list[Any] = []

    def work() -> None:
        try:
            got.append(act())
        except BaseException as error:
            got.append(error)

    thread = Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENT)
    assert got, "it hangs"
    return got[0]


def kept_on(folder: Path, files: GatedFiles, pace: KeeperPace = BY_HAND) -> Kept:
    Kept(folder).close()  # so that the log is open under its own name
    return Kept(folder, pace, files)


def expect(kept: Kept, io: DiskIO) -> None:
    assert isinstance(kept.folder.tier, DiskTier)
    kept.folder.watch.seconds, kept.folder.tier._io = io.deadline, io


def stop(kept: Kept, files: GatedFiles, name: str, what: str) -> None:
    """From now on the disk does not answer these calls. Only now is it expected to: a busy machine is as slow."""
    files.closed.add((name, what))
    expect(kept, SOON)


def answer(kept: Kept, files: GatedFiles) -> None:
    """It answers again, and may take its time."""
    expect(kept, LONG)
    files.closed.clear()
    files.gate.set()


@pytest.mark.parametrize("place", [(NAME, "sync"), (NAME, "write"), ("pages-0", "sync")])
def test_a_caller_waits_no_longer_than_the_disk_answers(
    tmp_path: Path, files: GatedFiles, place: tuple[str, str]
) -> None:
    kept = kept_on(tmp_path, files)
    kept.compute(1, MINE)
    assert kept.keeper.flush()
    kept.compute(2)
    stop(kept, files, *place)
    assert within(lambda: kept.keeper.flush(0.1)) is False
    assert isinstance(within(lambda: kept.keeper.fence()), TimeoutError)
    gone = within(lambda: kept.keeper.forget(MINE))
    assert isinstance(gone, TimeoutError) and "out of the cache, and not yet off the disk" in str(gone)
    assert kept.found(1, MINE) == 0 and kept.found(2) == 16
    if place[0] == NAME:
        assert isinstance(within(lambda: kept.keeper.idle()), TimeoutError)
        ahead = within(lambda: kept.keeper.prefetch(Request("f", prompt(1), MINE)))
        assert isinstance(ahead, Prefetch) and ahead.end == 0
    answer(kept, files)
    while not kept.keeper.flush():  # it comes round
        pass
    assert page_of(prompt(1)[:4]).tobytes() not in (kept.folder.folder / "pages-0").read_bytes()
    assert prompt(1)[:4].tobytes() not in (kept.folder.folder / NAME).read_bytes()
    check(kept.cache)
    kept.close()
    assert not examine(kept.folder.folder).findings
    again = Kept(tmp_path)
    assert (again.fetched(1, MINE), again.fetched(2)) == (0, 16)
    again.close()


def test_a_plan_is_given_up_at_once_while_the_log_hangs(tmp_path: Path, files: GatedFiles) -> None:
    before = Kept(tmp_path)
    before.compute(1)
    before.close()
    kept = Kept(tmp_path, BY_HAND, files)
    kept.compute(2)
    stop(kept, files, NAME, "sync")
    assert within(lambda: kept.keeper.flush(0.1)) is False
    ahead = kept.cache.prefetch(Request("f", prompt(1)))
    assert isinstance(ahead, Prefetch) and len(ahead.plan) == 4
    assert within(lambda: kept.keeper.run(ahead.plan).result()) == [0, 1, 2, 3]
    ahead.close()
    answer(kept, files)
    while not kept.keeper.flush():
        pass
    assert kept.fetched(1) == 16, "its pages were never bad"
    check(kept.cache)
    kept.close()


def test_closing_ends_on_a_disk_that_hangs(tmp_path: Path, files: GatedFiles) -> None:
    kept = kept_on(tmp_path, files, KeeperPace(look_seconds=600, close_seconds=0.2, scrub_bytes_per_second=0))
    kept.compute(1)
    stop(kept, files, NAME, "sync")
    closed = within(lambda: kept.keeper.close(0.0))
    assert isinstance(closed, StateError) and "does not answer" in str(closed) and kept.keeper.hanging
    files.gate.set()
    until(lambda: not kept.keeper.hanging)
    again = Kept(tmp_path)  # the lock was given back
    again.close()


def test_a_folder_on_a_disk_that_hangs_is_not_opened(tmp_path: Path, files: GatedFiles) -> None:
    Kept(tmp_path).close()
    files.closed.add((NAME, "read"))
    wrong = within(lambda: DiskFolder(tmp_path, FINGERPRINT, (PAGE,), (DISK,), io=SOON, files=files))
    assert isinstance(wrong, StateError) and "has not answered for 0.1 s" in str(wrong)
    files.gate.set()
    while isinstance(opened := within(lambda: Kept(tmp_path)), StateError):  # it is closed as soon as it is open
        pass
    opened.close()


def test_reads_that_were_given_up_say_nothing_of_their_pages(tmp_path: Path, files: GatedFiles) -> None:
    before = Kept(tmp_path)
    before.compute(1)
    before.close()
    kept = Kept(tmp_path, BY_HAND, files)
    stop(kept, files, "pages-0", "read")
    assert kept.fetched(1) == 0
    report = kept.keeper.report()
    assert (report.failed, report.given_up) == (0, 4)
    answer(kept, files)
    while (found := kept.fetched(1)) < 16:  # a thread may still be in the call
        assert found == 0
    assert kept.keeper.report().failed == 0 and kept.cache.usage(2).capacity - kept.cache.usage(2).empty == 4
    check(kept.cache)
    kept.close()


def test_the_scrubber_loses_nothing_that_it_could_not_read(tmp_path: Path, files: GatedFiles) -> None:
    before = Kept(tmp_path)
    before.compute(1)
    before.close()
    files.closed.add(("pages-0", "read"))
    pace, seconds = KeeperPace(look_seconds=600, scrub_bytes_per_second=1e9), count()
    while isinstance(
        kept := within(lambda: Kept(tmp_path, pace, files, io=DiskIO(2, 16, 0.1 * 2 ** next(seconds)))), StateError
    ):  # this machine is slower than that
        pass
    scrubber = kept.keeper._scrubber
    assert scrubber is not None
    until(lambda: scrubber.num_looked_at)
    kept.keeper.idle()
    assert kept.keeper.report().scrubbed_bad == scrubber.num_bad == 0
    files.closed.clear()
    files.gate.set()
    while kept.fetched(1) < 16:
        pass
    kept.close()


def test_pages_that_no_fence_covered_are_not_dropped_unread(tmp_path: Path, files: GatedFiles) -> None:
    """Opened on a disk that does not answer: that is an error, not a folder without them."""
    kept = Kept(tmp_path / "disk", pace=BY_HAND)
    kept.compute(1)
    kept.keeper.run(kept.cache.copy_down(8)).result()
    shutil.copytree(tmp_path / "disk", tmp_path / "killed")
    kept.close()
    files.closed.add(("pages-0", "read"))
    wrong = within(lambda: Kept(tmp_path / "killed", files=files, io=SOON))
    assert isinstance(wrong, StateError)
    assert re.search("did not answer|has not answered", str(wrong)), wrong
    again = Kept(tmp_path / "killed")
    assert again.folder.report.unfenced == 4 and again.fetched(1) == 16
    again.close()


def test_what_has_gone_meanwhile_has_not_failed(tmp_path: Path) -> None:
    before = Kept(tmp_path)
    before.compute(1, MINE)
    before.close()
    kept = Kept(tmp_path)
    ahead = kept.cache.prefetch(Request("f", prompt(1), MINE))
    assert isinstance(ahead, Prefetch)
    assert kept.keeper.forget(MINE) == 4
    assert kept.keeper.run(ahead.plan).result() == [0, 1, 2, 3]
    ahead.close()
    assert kept.keeper.report().failed == kept.keeper.report().given_up == 0
    check(kept.cache)
    kept.close()


def test_a_page_that_was_forgotten_on_its_way_down_is_overwritten(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.compute(1, MINE)
    down = kept.cache.copy_down(8)
    assert kept.keeper.forget(MINE) == 4
    kept.keeper.run(down).result()
    kept.keeper.flush()
    assert page_of(prompt(1)[:4]).tobytes() not in (kept.folder.folder / "pages-0").read_bytes()
    kept.close()
    assert not examine(kept.folder.folder).findings


# -- errors that nobody expected ---------------------------------------------------------------------------------------


class Boom(Exception):
    """A fault of ours."""


def failing(cache: Any, name: str) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise Boom("no")

    setattr(cache, name, fail)


@pytest.mark.parametrize("name", ["lasting_changes", "copy_down"])
def test_the_thread_survives_what_nobody_expected(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    before = Kept(tmp_path)
    before.compute(1, MINE)
    before.close()
    kept = Kept(tmp_path, OFTEN)
    with caplog.at_level(logging.ERROR, "quire.tiers"):
        failing(kept.cache, name)
        until(lambda: kept.keeper.report().errors)
    assert "Boom: no" in kept.keeper.report().broken
    assert within(lambda: kept.keeper.flush(1)) is False and "used no more: Boom: no" in caplog.text
    within(kept.keeper.idle)
    ahead = kept.cache.prefetch(Request("f", prompt(1), MINE))
    assert isinstance(ahead, Prefetch) and len(ahead.plan)
    assert within(lambda: kept.keeper.run(ahead.plan).result()) == [0, 1, 2, 3], "nothing is read any more"
    ahead.close()
    assert isinstance(within(lambda: kept.keeper.forget(MINE)), OSError | Boom)
    assert isinstance(within(kept.close), StateError)
    again = Kept(tmp_path)
    assert again.fetched(1, MINE) == 16, "what was durable is"
    again.close()


def test_a_compaction_that_fails_unexpectedly_is_counted(tmp_path: Path) -> None:
    kept = Kept(tmp_path, KeeperPace(look_seconds=0.001, compact_bytes=1, scrub_bytes_per_second=0))
    failing(kept.folder.manifest, "compact")
    number = 0
    while not kept.keeper.report().errors:
        kept.compute(number := number % 7 + 1)
    assert "Boom" in kept.keeper.report().broken
    assert isinstance(within(kept.close), StateError)


def test_setbacks_are_told_on_the_keepers_thread(tmp_path: Path) -> None:
    """Whoever finds the bad page: the scrubber has a thread of its own."""
    before = Kept(tmp_path)
    before.compute(1)
    before.close()
    flip(model_folder(tmp_path, FINGERPRINT) / "pages-0", 3)
    again = Kept(tmp_path, KeeperPace(look_seconds=600, scrub_bytes_per_second=1e9))
    lose, told = again.cache.lose, list[str]()
    found = again.cache.find(Request("reader", prompt(1)))

    def losing(group: int, slots: Iterable[int], tier: int = 0) -> Finished:
        lose(group, slots, tier)
        return Finished((Setback(found, 4, 0),))

    again.cache.lose = losing  # type: ignore[method-assign]
    again.keeper._upkeep.plans.on_setbacks = lambda finished: told.append(current_thread().name)
    while not again.keeper.report().scrubbed_bad:
        again.keeper.idle()
    again.keeper.idle()
    assert told == ["quire-keeper"] and again.keeper.report().scrubbed_bad == 1
    found.close()
    again.close()


# -- forks -------------------------------------------------------------------------------------------------------------


def in_child(act: Callable[[], None]) -> int:
    """The exit status of a fork that did it: 0 when it raised nothing, -9 when it hung."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(PATIENT))
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    status = os.waitpid(pid, 0)[1]
    return os.waitstatus_to_exitcode(status)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_is_refused_and_leaves_the_lock_to_its_parent(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.compute(1)
    kept.keeper.flush()

    def use() -> None:
        acts: tuple[Callable[[], object], ...] = (
            kept.keeper.flush,
            kept.keeper.idle,
            lambda: kept.keeper.forget(MINE),
            lambda: kept.folder.tier.read(0, [0], [page_of(prompt(1)).reshape(1, -1)]),
            kept.folder.fence,
            lambda: DiskFolder(tmp_path, FINGERPRINT, (PAGE,), (DISK,)),
        )
        for nth, act in enumerate(acts):
            with pytest.raises(StateError, match="is a fork of" if nth < 5 else "has it open"):
                act()
        kept.keeper.close()
        kept.folder.close()

    assert in_child(use) == 0
    ready, end = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # it outlives the folder's owner
        os.close(end[1])
        os.write(ready[1], b"x")
        os.read(end[0], 1)
        os._exit(0)
    os.close(end[0])
    os.read(ready[0], 1)
    kept.compute(2)
    assert kept.keeper.flush()
    kept.close()
    again = Kept(tmp_path)
    assert again.fetched(1) == 16 and again.fetched(2) == 16
    again.close()
    os.close(end[1])
    os.waitpid(child, 0)
