"""The follower and the replay server it asks: what fails is told, answers are told apart, nobody piles up memory."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import zmq

from quire import InputError, StateError
from quire.events import Follower, Index, Status
from quire.events.follow import follower as follower_file
from quire.events.follow.stream_state import ReplayRequest
from quire.events.publish.archive import Archive
from quire.events.publish.payloads import PayloadMaker
from quire.events.publish.replay_server import MAX_REQUESTS
from quire.events.wire.names import Names
from quire.events.wire.protocol import END, MARK, SNAPSHOT, number
from quire.net.zmq_sockets import bound_to, open_socket

from ..waits import PATIENCE, until
from .lives import build, ids, run
from .test_publisher import ANY, exact, fetch, heard_by_hand, published, socket


def test_a_worker_removed_from_the_index_is_left_alone() -> None:
    cache = build(16)
    with published(cache) as publisher, heard_by_hand() as (index, follower):
        for worker in "ab":
            follower.follow(worker, publisher.endpoint, publisher.replay_endpoint)
        publisher.tell()
        until(lambda: exact(index, publisher, "a") and exact(index, publisher, "b"), "exact")
        index.remove("a")
        run(cache, 1, ids(range(9)))
        publisher.tell()
        until(lambda: exact(index, publisher, "b") and list(follower._feeds) == ["b"], "the other one goes on")
        follower.follow("a", publisher.endpoint, publisher.replay_endpoint)
        until(lambda: exact(index, publisher, "a"), "exact again")


def test_a_thread_that_fails_begins_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(follower_file, "PAUSE", 0.0)
    cache = build(16)
    with published(cache) as publisher, heard_by_hand() as (index, follower):
        follower.follow("w", publisher.endpoint, publisher.replay_endpoint)
        publisher.tell()
        until(lambda: exact(index, publisher), "exact")

        def broken(*_: Any, **__: Any) -> None:
            raise RuntimeError("a salt")

        monkeypatch.setattr(follower._poller, "poll", broken)
        follower._waker.send(b"!")
        until(lambda: follower.failures == 1, "failed")
        run(cache, 1, ids(range(40)))
        publisher.tell()
        until(lambda: exact(index, publisher), "exact again")
        follower.follow("v", publisher.endpoint)
        assert follower._thread.is_alive() and "RuntimeError" in caplog.text and "a salt" not in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_thread_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins again after every error; if that fails too, orders are refused and its owner can see it."""
    with published(build(16)) as publisher, heard_by_hand() as (_, follower):
        assert not follower.stopped
        follower.follow("w", publisher.endpoint)

        def broken(*_: Any, **__: Any) -> None:
            raise RuntimeError("broken")

        monkeypatch.setattr(follower, "_begin_again", broken)
        monkeypatch.setattr(follower._poller, "poll", broken)
        follower._waker.send(b"!")
        until(lambda: follower.stopped, "ended")
        with pytest.raises(StateError):
            follower.follow("v", publisher.endpoint)


def test_a_worker_that_cannot_be_followed_is_no_other_ones_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    with published(build(16)) as one, published(build(16)) as other, heard_by_hand() as (index, follower):
        for name, publisher in (("one", one), ("other", other)):
            publisher.tell()
            follower.follow(name, publisher.endpoint, publisher.replay_endpoint)
        until(lambda: set(index.workers().values()) == {Status.EXACT}, "exact")
        hear = index.hear

        def broken(worker: Any, *rest: Any, **options: Any) -> Any:
            if worker == "one":
                raise RuntimeError("broken")
            return hear(worker, *rest, **options)

        monkeypatch.setattr(index, "hear", broken)
        until(lambda: index.status("one") is Status.UNKNOWN, "given up")
        assert "ended with RuntimeError at " in index.report("one").reason
        other.tell(whole=True)
        until(lambda: exact(index, other, "other"), "the other is heard")


def test_a_way_to_ask_that_cannot_be_had_again_is_no_other_ones_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are too many open files, say."""
    with (
        published(build(16)) as one,
        socket(zmq.ROUTER, ANY, bind=True) as router,
        socket(zmq.PUB, ANY, bind=True) as pub,
    ):
        index = Index()
        with Follower(index, quiet=0.05, patience=0.2) as follower:
            follower.follow("one", one.endpoint, one.replay_endpoint)
            follower.follow("other", bound_to(pub), bound_to(router))
            monkeypatch.setattr(follower, "_connect_replay", lambda *_: open_socket(-1))  # as ZMQ fails
            until(lambda: "following it ended" in index.report("other").reason, "given up")
            one.tell()
            until(lambda: exact(index, one, "one"), "the other is heard")
            follower.leave("other")


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_long_answer_is_waited_for_and_answers_are_told_apart() -> None:
    """Parts come for longer than the patience; meanwhile a gap is found, and the first END is not the second's."""
    cache, clock, index = build(32), Clock(), Index()
    maker = PayloadMaker(Names.from_config(cache.config), "map", Archive(50, 1 << 20))
    batches = [maker.make(cache.take_events(whole=True))]
    for seed in range(4):
        run(cache, seed, ids(range(100 * seed, 100 * seed + 9)))
        batches.append(maker.make(cache.take_events()))
    with (
        socket(zmq.ROUTER, ANY, bind=True) as router,
        socket(zmq.XPUB, ANY, bind=True) as stream,
        Follower(index, quiet=0.1, patience=1.0, clock=clock) as follower,
    ):
        follower.follow("w", bound_to(stream), bound_to(router))
        stream.recv()  # it listens
        peer, _, request = router.recv_multipart()
        assert request == SNAPSHOT
        for part in range(1, 7):
            clock.now += 0.75
            router.send_multipart([peer, b"", b"", number(0), batches[0].payload])
            until(lambda part=part: index.report("w").repair_bytes == part * len(batches[0].payload), "heard")  # type: ignore[misc]
        assert not router.poll(0)  # it has not asked again
        router.send_multipart([peer, b"", b"", END, b""])
        until(lambda: not follower._feeds["w"].requests, "the answer is complete")
        clock.now += 0.2  # quiet for longer than it likes
        assert router.recv_multipart()[2] == MARK
        stream.send_multipart([b"", number(3), batches[3].payload])
        assert router.recv_multipart()[2] == number(1)
        router.send_multipart([peer, b"", b"", END, b""])  # of the mark: not of the batches
        for batch in batches[1:]:
            router.send_multipart([peer, b"", b"", number(batch.seq), batch.payload])
        router.send_multipart([peer, b"", b"", END, b""])
        until(lambda: index.status("w") is Status.EXACT and not follower._feeds["w"].requests, "exact")
        assert index.report("w").snapshots == 1 and index.report("w").replays == 1 and not router.poll(0)


def test_who_asks_and_reads_nothing_piles_up_nothing() -> None:
    cache = build(4096, 0, max_length=20_000)
    run(cache, 1, ids(range(12_000)))
    with published(cache) as publisher:
        publisher.tell()
        until(lambda: publisher.published == 1, "published")
        dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        try:
            dealer.set_hwm(1)
            dealer.set(zmq.SNDHWM, 0)
            dealer.connect(str(publisher.replay_endpoint))
            for _ in range(1_000):
                dealer.send_multipart([b"", number(0)])
            until(lambda: [len(asks) for asks in publisher._replay_server._requests.values()] == [MAX_REQUESTS], "full")
            assert len(fetch(publisher, number(0))) == 1  # others are answered
            whole = 0
            while dealer.poll(500):
                assert dealer.recv_multipart()[2] != END and dealer.recv_multipart()[2] == END
                whole += 1
            assert MAX_REQUESTS < whole < 1_000 and not publisher._replay_server._requests
        finally:
            dealer.close(0)


def test_a_batch_with_a_number_that_is_nonsense_does_not_last() -> None:
    cache, index = build(32), Index()
    maker = PayloadMaker(Names.from_config(cache.config), "map", Archive(50, 1 << 20))
    index.add("w")
    index.hear("w", *maker.make(cache.take_events(whole=True)))
    run(cache, 1, ids(range(9)))
    seq, payload = maker.make(cache.take_events())
    request = index.hear("w", seq + 10**6, payload)
    for _ in range(3):
        if request is not None:
            found = [maker.snapshot()] if request.start is None else maker.archive.since(request.start)
            for part in found:
                assert part is not None
                index.hear("w", *part, asked=True)
            request = index.answered("w", request)
    assert request is None and index.status("w") is Status.EXACT and not index._streams["w"].pending


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_a_whole_state_with_a_number_that_is_nonsense_is_not_believed(first: bool) -> None:
    """Its digest is right, but every batch after it would count as late."""
    cache, index = build(32), Index()
    maker = PayloadMaker(Names.from_config(cache.config), "map", Archive(50, 1 << 20))
    index.add("w")
    if not first:
        index.hear("w", *maker.make(cache.take_events(whole=True)))
    run(cache, 1, ids(range(9)))
    seq, payload = maker.make(cache.take_events(whole=True))
    request = index.hear("w", seq + 10**6, payload)
    assert index.status("w") is not Status.EXACT and request == ReplayRequest(None if first else seq)
    assert index.hear("w", seq, payload, asked=True) is None and index.status("w") is Status.EXACT
    run(cache, 2, ids(range(50, 59)))
    assert index.hear("w", *maker.make(cache.take_events())) is None and index.status("w") is Status.EXACT
    assert index.find(ids(range(50, 59)))["w"].tokens == 8 and index.report("w").damaged == 1


def test_an_index_says_how_many_workers_it_has_room_for() -> None:
    index = Index()
    for worker in range(4096):
        index.add(worker)
    with pytest.raises(InputError, match="4096 already"):
        index.add("one more")


class SlowIndex(Index):
    """Waits before it takes the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go_on = threading.Event(), threading.Event()

    def hear(self, *batch: Any, **how: Any) -> ReplayRequest | None:
        self.entered.set()
        assert self.go_on.wait(PATIENCE)
        return super().hear(*batch, **how)


def test_an_answer_that_there_was_no_time_to_read_is_not_asked_for_again() -> None:
    """A follower that others keep busy for longer than its patience has been answered all the same."""
    cache, clock, index = build(32), Clock(), SlowIndex()
    maker = PayloadMaker(Names.from_config(cache.config), "map", Archive(50, 1 << 20))
    seq, payload = maker.make(cache.take_events(whole=True))
    with (
        socket(zmq.ROUTER, ANY, bind=True) as router,
        socket(zmq.XPUB, ANY, bind=True) as stream,
        Follower(index, quiet=60.0, patience=0.5, clock=clock) as follower,
    ):
        follower.follow("w", bound_to(stream), bound_to(router))
        stream.recv()  # it listens
        peer, _, request = router.recv_multipart()
        assert request == SNAPSHOT
        stream.send_multipart([b"", number(seq), payload])
        assert index.entered.wait(PATIENCE)
        for answer in ((number(seq), payload), (END, b"")):
            router.send_multipart([peer, b"", b"", *answer])
        replay_socket = follower._feeds["w"].replay_socket
        assert replay_socket is not None and replay_socket.poll(20_000)  # the thread that owns it stands still
        clock.now += 1.0
        index.go_on.set()
        until(lambda: index.report("w").repair_bytes > 0 and not follower._feeds["w"].requests, "the answer is read")
        assert not router.poll(0) and index.status("w") is Status.EXACT
