"""Workers: who waits, for how long, and what a job may still touch."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event, Thread

import numpy as np

from quire.tiers.disk.calls.files import REAL_FILES
from quire.tiers.disk.calls.workers import DiskJob, Workers

from ...waits import PATIENCE
from .stand_ins import Faults, FaultyFile


def test_nobody_waits_for_threads_that_all_hang() -> None:
    gate, late = Event(), []
    workers = Workers("test", 1, 4)

    def hang(job: DiskJob) -> None:
        assert gate.wait(PATIENCE)
        assert not job.touch(lambda: late.append(1))

    (stuck,) = workers.run([hang], 0.01)
    assert stuck.given_up and stuck.running and workers.hanging
    (unheard,) = workers.run([lambda job: late.append(2)], 600)  # a day's patience would not help
    assert unheard.given_up and not unheard.done
    gate.set()
    while workers.hanging:
        pass
    (heard,) = workers.run([lambda job: late.append(3)], 600)
    assert heard.done and late == [3]
    assert workers.close(600)


def test_an_act_that_raises_is_told_and_the_thread_goes_on() -> None:
    workers = Workers("test", 1, 1)

    def fail(job: DiskJob) -> None:
        raise ValueError("no")

    def leave(job: DiskJob) -> None:
        raise SystemExit

    jobs = workers.run([fail, lambda job: None, leave, fail], 600)
    assert [repr(job.error) for job in jobs] == ["ValueError('no')", "None", "SystemExit()", "ValueError('no')"]
    assert all(job.done for job in jobs) and not workers.stopped and workers.close(600)
    (after,) = workers.run([fail], 600)
    assert not after.done and after.given_up


def test_a_long_job_that_is_heard_of_is_not_given_up() -> None:
    """It says that it lives, and ends long after the deadline for one that says nothing."""
    workers = Workers("test", 1, 4)
    out, ones = np.zeros(1, np.uint8), np.ones(1, np.uint8)

    def work(job: DiskJob) -> None:
        begun = time.monotonic()
        assert job.fill(out, ones) and job.alive >= begun
        assert job.touch(lambda: None) and job.alive >= begun
        job.alive = begun + 600  # as if it said so over and over, however seldom a busy machine lets it
        Event().wait(2.2)  # behind the deadline of one that says nothing

    (job,) = workers.run([work], 2.0)
    assert job.done and not job.given_up and out[0] == 1
    assert not job.error and workers.close(600)


def test_more_jobs_than_there_is_room_for_are_all_done() -> None:
    workers, done = Workers("test", 2, 2), []
    calls = [
        Thread(target=lambda: done.extend(workers.run([lambda job: None] * 50, 600)), daemon=True) for _ in range(4)
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join(600)
    assert len(done) == 200 and all(job.done and not job.given_up for job in done)
    assert workers.close(600)


def test_a_job_that_was_given_up_fills_nothing() -> None:
    gate, out = Event(), np.zeros(1, np.uint8)
    workers = Workers("test", 2, 4)

    def late(job: DiskJob) -> None:
        assert gate.wait(PATIENCE)
        assert not job.fill(out, np.ones(1, np.uint8))

    (job,) = workers.run([late], 0.01)
    gate.set()
    assert workers.close(600) and job.done and job.given_up and job.error is None and out[0] == 0


def test_a_job_that_was_given_up_lets_no_file_fill_anything(tmp_path: Path) -> None:
    file = FaultyFile("file", REAL_FILES.open(tmp_path / "file", create=True), Faults(ready=frozenset({0})))
    file.write(0, [np.ones(4, np.uint8)])
    out, job = np.zeros(4, np.uint8), DiskJob(lambda job: None)
    job.give_up()
    assert job.read_ready(file, 0, out) == 0 and not out.any()
    heard = DiskJob(lambda job: None)
    assert heard.read_ready(file, 0, out) == 4 and out.all() and heard.alive > 0
    file.close()
