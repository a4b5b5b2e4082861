"""Threads of a server: none ends for good while /health says 200; what is down is told in /ready, and comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import StateError
from quire.net import lookup
from quire.net.lookup import Lookups
from quire.tiers.shared.calls.crew import Crew
from quire.trace.record.recorder import TraceRecorder

from ..waits import until
from .rig import serving

SECRET = "tenant-secret"
NUMBER = "31415926535897932384626433832795"  # msgpack cannot write it


def raises(*_: Any, **__: Any) -> Any:
    raise RuntimeError(SECRET)


def test_a_publisher_that_has_failed_is_told_until_it_is_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("zmq")
    from quire.events.publish import publisher as publisher_file

    monkeypatch.setattr(publisher_file, "PAUSE", 0.01)
    monkeypatch.setattr(publisher_file, "LONGEST_PAUSE", 0.02)
    with serving(outside={"publish": "tcp://127.0.0.1:*"}) as server:
        publisher = server.llm.publisher
        assert publisher is not None and server.get("/ready").status == 200
        with monkeypatch.context() as patch:
            patch.setattr(publisher, "_open", raises)
            patch.setattr(publisher._replay_server, "serve", raises)
            publisher._wake()
            until(lambda: publisher.failure is not None)
            got = server.get("/ready")
            assert got.status == 503 and got.error["code"] == "not_ready" and got.headers["retry-after"] == "1"
            assert got.error["message"].startswith("the publisher: it has failed with RuntimeError at ")
            assert server.get("/health").status == 200 and server.chat().status == 200, "it serves all the same"
            assert server.metric("quire:thread_up", part="publisher") == server.metric("quire:events_up") == 0
        until(lambda: server.get("/ready").status == 200)
        up = {"engine", "mover", "publisher", "regret"}
        assert all(server.metric("quire:thread_up", part=part) == 1 for part in up)
        assert server.metric("quire:thread_up") == len(up)
        assert server.metric("quire:event_restarts_total") == 1
    assert SECRET not in caplog.text


def test_an_adapter_that_no_event_can_name_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    """Wherever else such a name may come from: here from somebody who asks the engine itself."""
    pytest.importorskip("zmq")
    from quire import Scope

    with serving(outside={"publish": "tcp://127.0.0.1:*"}) as server:
        for turn in range(3):
            stream = server.llm.stream(f"{turn} a prompt of some blocks", max_tokens=1, scope=Scope(lora=int(NUMBER)))
            stream.wait()
        until(lambda: server.metric("quire:events_dropped_total") > 0)
        assert server.get("/ready").status == 200 and server.metric("quire:events_up") == 1
    assert NUMBER not in caplog.text


def test_a_job_that_raises_is_a_failed_engine_and_nobody_waits() -> None:
    with serving() as server:
        server.llm.loop._put(raises)
        until(lambda: server.get("/health").status == 503)
        assert server.get("/ready").status == 503 and server.chat().status == 503
        with pytest.raises(StateError, match="a step failed: RuntimeError"):
            server.llm.generate("x")


def test_an_engine_whose_thread_is_gone_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        loop = server.llm.loop
        with monkeypatch.context() as patch:
            patch.setattr(loop, "_thread", ended_thread())
            got = server.get("/health")
            assert got.status == 503 and "its thread has ended" in got.error["message"]


def test_a_mover_with_a_fault_of_its_own_fails_the_step_and_nobody_hangs() -> None:
    with serving(sizes={"device_pages": 30, "host_pages": 60, "max_length": 200, "max_sequences": 2}) as server:
        mover = server.llm.loop.engine.pages.mover
        mover._run_batch = raises  # type: ignore[method-assign]
        answers = [server.complete(prompt=chr(65 + place) * 150, max_tokens=2).status for place in range(4)]
        assert answers[-1] != 200 and mover._thread.is_alive()
        assert server.get("/health").status == 503 and server.metric("quire:thread_up", part="mover") == 0


def ended_thread() -> threading.Thread:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    return thread


WITH_HOST = {"device_pages": 60, "host_pages": 60}


def serving_all(folder: Path) -> Any:
    """Everything that has threads of its own, and can be beside the rest."""
    sizes = {**WITH_HOST, "disk_pages": 100, "incidents": folder / "incidents", "bills": folder / "bills.json"}
    outside = {"disk": folder / "disk", "shared": folder / "store", "publish": "tcp://127.0.0.1:*"}
    return serving(sizes=sizes, outside=outside)


SERVING: dict[
    str, Callable[[Any], tuple[Any, str, str]]
] = {  # where the thread of each part is that requests depend on
    "mover": lambda llm: (llm.loop.engine.pages.mover, "_thread", "its thread has ended"),
    "publisher": lambda llm: (llm.publisher, "_thread", "its thread has ended"),
    "disk": lambda llm: (llm.disk._thread, "_thread", "its thread has ended"),
    "disk worker": lambda llm: (llm.disk._folder.tier._workers, "_threads", "1 of its worker threads have ended"),
    "store": lambda llm: (llm.shared._fetchers, "_threads", "1 of its threads have ended"),
    "store sender": lambda llm: (llm.shared._senders, "_threads", "1 of its threads have ended"),
}
LOOKING_ON: dict[str, Callable[[Any], Any]] = {
    "trace": lambda llm: llm.loop.engine.recorder, "regret": lambda llm: llm.watched,
    "incidents": lambda llm: llm.loop.engine.incidents, "bills": lambda llm: llm.loop.engine.bills._saver,
    "scrub": lambda llm: llm.disk.scrubber,
}  # fmt: skip


def test_a_dead_thread_is_told_and_only_what_requests_depend_on_makes_it_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server of the same process has all of its threads: they are not taken for these."""
    pytest.importorskip("zmq")
    pytest.importorskip("xxhash")
    with serving_all(tmp_path / "one") as server, serving_all(tmp_path / "other") as other:
        for one in (server, other):
            one.llm.record(tmp_path / f"{one.port}.jsonl")
        for name, place in SERVING.items():
            owner, field, why = place(server.llm)
            threads, part = getattr(owner, field), name.partition(" ")[0]
            with monkeypatch.context() as patch:
                patch.setattr(owner, field, [ended_thread(), *threads[1:]] if field[-1] == "s" else ended_thread())
                got = server.get("/ready")
                assert got.status == 503 and got.error["message"].startswith(f"the {part}: {why};"), name
                assert server.metric("quire:thread_up", part=part) == 0, name
                assert server.get("/health").status == 200 == other.get("/ready").status, name
                assert other.metric("quire:thread_up", part=part) == 1, name
            assert server.get("/ready").status == 200, name
        for part, looking in LOOKING_ON.items():
            with monkeypatch.context() as patch:
                assert server.metric("quire:thread_up", part=part) == 1, part
                patch.setattr(looking(server.llm), "_thread", ended_thread())
                assert server.metric("quire:thread_up", part=part) == 0, part
                assert server.get("/ready").status == 200 == server.chat().status, part
                assert other.metric("quire:thread_up", part=part) == 1, part
        parts = {*SERVING, *LOOKING_ON, "engine"} - {"disk worker", "store sender"}
        assert server.metric("quire:thread_up") == len(parts)


class Job:
    """Waits for nothing."""

    def __init__(self, act: Any) -> None:
        self.act, self.done = act, threading.Event()

    def run(self) -> None:
        self.done.set()
        self.act()

    def dropped(self) -> None:
        raise AssertionError


def test_a_crew_goes_on_after_what_its_jobs_and_looks_raise(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from quire.tiers.shared.calls import crew as crew_file

    monkeypatch.setattr(crew_file, "PAUSE", 0.0)
    looks = iter([0.0, 0.0])
    crew = Crew("test", 1, 8, raises, lambda: next(looks, None))
    try:
        until(lambda: crew.failures == 2)
        bad, good = Job(raises), Job(int)
        assert crew.submit(bad) and crew.submit(good)
        assert good.done.wait(120) and crew.wait_until_idle(120)
        assert crew.failures == 3 and crew.stopped == 0
    finally:
        assert crew.close(120)
    assert crew.stopped == 0 and "RuntimeError at" in caplog.text and SECRET not in caplog.text


def test_a_lookup_that_fails_in_its_own_way_keeps_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: Lookups[int] = Lookups()
    try:
        monkeypatch.setattr(lookup, "addresses", raises)
        for token in range(2 * lookup.MOST_AT_ONCE):
            lookups.ask(token, b"name.example", 1)
        answers: list[Any] = []

        def all_come() -> bool:
            answers.extend(lookups.take())
            return len(answers) == 2 * lookup.MOST_AT_ONCE

        until(all_come)
        assert all(answer.address is None for answer in answers)
        until(lambda: lookups._threads == 0)
    finally:
        lookups.close()


def test_a_recording_that_has_ended_keeps_nothing_that_comes_later(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "t.jsonl", 4)
    recorder._writer.add = raises  # type: ignore[method-assign]
    tokens = np.arange(8, dtype=np.int32)
    recorder.add(recorder.arrive(), tokens, 1)
    until(lambda: recorder.error is not None)
    for _ in range(100):
        recorder.add(recorder.arrive(), tokens, 1)
        recorder.forget(recorder.arrive())
    until(recorder._queue.empty)
    assert recorder._thread.is_alive() and recorder.num_lost >= 100
    recorder.close()
    assert not recorder._thread.is_alive() and SECRET not in str(recorder.error)
