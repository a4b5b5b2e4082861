"""Workers: who waits, for how long, and what a job may still touch."""

from __future__ import annotations

from threading import Event

from quire.tiers.disk.workers import DiskJob, Workers


def test_nobody_waits_for_threads_that_all_hang() -> None:
    gate, late = Event(), []
    workers = Workers("test", 1, 4)

    def hang(job: DiskJob) -> None:
        assert gate.wait(30)
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

    jobs = workers.run([fail, lambda job: None, fail], 600)
    assert [repr(job.error) for job in jobs] == ["ValueError('no')", "None", "ValueError('no')"]
    assert all(job.done for job in jobs) and workers.close(600)
    (after,) = workers.run([fail], 600)
    assert not after.done and after.given_up
