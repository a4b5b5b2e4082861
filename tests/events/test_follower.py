"""The follower and the desk it asks: what fails is told, answers are told apart, nobody piles up memory."""

from __future__ import annotations

import time
from typing import Any

import pytest
import zmq

from quire import InputError, StateError
from quire.events import Follower, Index, Status
from quire.events.follow.stream_state import Ask
from quire.events.publish.archive import Archive
from quire.events.publish.payloads import Press
from quire.events.publish.replay_server import MAX_ASKS
from quire.events.wire.names import Names
from quire.events.wire.protocol import END, MARK, SNAPSHOT, number

from .lives import build, ids, run, until
from .test_publisher import ANY, exact, fetch, heard_by_hand, published, socket


def end_of(one: zmq.Socket[bytes]) -> str:
    return one.get(zmq.LAST_ENDPOINT).decode().rstrip("\0")


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
        until(lambda: exact(index, publisher, "b") and list(follower._lines) == ["b"], "the other one goes on")
        follower.follow("a", publisher.endpoint, publisher.replay_endpoint)
        until(lambda: exact(index, publisher, "a"), "exact again")


def test_a_thread_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = build(16)
    with published(cache) as publisher, heard_by_hand() as (index, follower):
        follower.follow("w", publisher.endpoint, publisher.replay_endpoint)
        publisher.tell()
        until(lambda: exact(index, publisher), "exact")

        def broken(*_: Any, **__: Any) -> None:
            raise RuntimeError("broken")

        monkeypatch.setattr(follower._poller, "poll", broken)
        follower._bell.send(b"!")
        until(lambda: not follower._thread.is_alive(), "ended")
        assert index.status("w") is Status.UNKNOWN
        with pytest.raises(StateError, match="ended with RuntimeError"):
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
        assert "ended with RuntimeError('broken')" in index.report("one").reason
        other.tell(whole=True)
        until(lambda: exact(index, other, "other"), "the other is heard")


def test_a_way_to_ask_that_cannot_be_had_again_is_no_other_ones_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are too many open files, say."""
    with (
        published(build(16)) as one,
        socket(zmq.ROUTER, ANY, bind=True) as desk,
        socket(zmq.PUB, ANY, bind=True) as pub,
    ):
        index = Index()
        with Follower(index, quiet=0.05, patience=0.2) as follower:
            follower.follow("one", one.endpoint, one.replay_endpoint)
            follower.follow("other", end_of(pub), end_of(desk))
            monkeypatch.setattr(follower, "_desk", lambda *_: zmq.Context.instance().socket(-1))  # as ZMQ fails
            until(lambda: "following it ended" in index.report("other").reason, "given up")
            one.tell()
            until(lambda: exact(index, one, "one"), "the other is heard")
            follower.leave("other")


def test_a_long_answer_is_waited_for_and_answers_are_told_apart() -> None:
    """Parts come for longer than the patience; meanwhile a gap is found, and the first END is not the second's."""
    cache = build(32)
    press = Press(Names.of(cache.config), "map", Archive(50, 1 << 20))
    batches = [press.print(cache.take_events(whole=True))]
    for seed in range(4):
        run(cache, seed, ids(range(100 * seed, 100 * seed + 9)))
        batches.append(press.print(cache.take_events()))
    with socket(zmq.ROUTER, ANY, bind=True) as desk, socket(zmq.PUB, ANY, bind=True) as stream:
        index = Index()
        with Follower(index, quiet=0.1, patience=1.0) as follower:
            follower.follow("w", end_of(stream), end_of(desk))
            peer, _, ask = desk.recv_multipart()
            assert ask == SNAPSHOT
            for _ in range(6):
                time.sleep(0.25)
                desk.send_multipart([peer, b"", b"", number(0), batches[0][1]])
            assert not desk.poll(0)  # it has not asked again
            desk.send_multipart([peer, b"", b"", END, b""])
            assert desk.recv_multipart()[2] == MARK
            stream.send_multipart([b"", number(3), batches[3][1]])
            assert desk.recv_multipart()[2] == number(1)
            desk.send_multipart([peer, b"", b"", END, b""])  # of the mark: not of the batches
            assert not desk.poll(100) and index.report("w").snapshots == 1
            for seq, payload in batches[1:]:
                desk.send_multipart([peer, b"", b"", number(seq), payload])
            desk.send_multipart([peer, b"", b"", END, b""])
            until(lambda: index.status("w") is Status.EXACT, "exact")
            assert index.report("w").snapshots == 1 and index.report("w").replays == 1


def test_who_asks_and_reads_nothing_piles_up_nothing() -> None:
    cache = build(4096, 0, max_length=20_000)
    run(cache, 1, ids(range(12_000)))
    with published(cache) as publisher:
        publisher.tell()
        until(lambda: publisher.published == 1, "published")
        desk: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        try:
            desk.set_hwm(1)
            desk.set(zmq.SNDHWM, 0)
            desk.connect(str(publisher.replay_endpoint))
            for _ in range(1_000):
                desk.send_multipart([b"", number(0)])
            until(lambda: [len(asks) for asks in publisher._desk._asks.values()] == [MAX_ASKS], "full")
            assert len(fetch(publisher, number(0))) == 1  # others are answered
            whole = 0
            while desk.poll(500):
                assert desk.recv_multipart()[2] != END and desk.recv_multipart()[2] == END
                whole += 1
            assert MAX_ASKS < whole < 1_000 and not publisher._desk._asks
        finally:
            desk.close(0)


def test_a_batch_with_a_number_that_is_nonsense_does_not_last() -> None:
    cache, index = build(32), Index()
    press = Press(Names.of(cache.config), "map", Archive(50, 1 << 20))
    index.add("w")
    index.hear("w", *press.print(cache.take_events(whole=True)))
    run(cache, 1, ids(range(9)))
    seq, payload = press.print(cache.take_events())
    ask = index.hear("w", seq + 10**6, payload)
    for _ in range(3):
        if ask is not None:
            found = [press.snapshot()] if ask.start is None else press.archive.since(ask.start)
            for part in found:
                assert part is not None
                index.hear("w", *part, asked=True)
            ask = index.answered("w", ask)
    assert ask is None and index.status("w") is Status.EXACT and not index._tracks["w"].pending


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_a_whole_state_with_a_number_that_is_nonsense_is_not_believed(first: bool) -> None:
    """Its digest is right, but every batch after it would count as late."""
    cache, index = build(32), Index()
    press = Press(Names.of(cache.config), "map", Archive(50, 1 << 20))
    index.add("w")
    if not first:
        index.hear("w", *press.print(cache.take_events(whole=True)))
    run(cache, 1, ids(range(9)))
    seq, payload = press.print(cache.take_events(whole=True))
    ask = index.hear("w", seq + 10**6, payload)
    assert index.status("w") is not Status.EXACT and ask == Ask(None if first else seq)
    assert index.hear("w", seq, payload, asked=True) is None and index.status("w") is Status.EXACT
    run(cache, 2, ids(range(50, 59)))
    assert index.hear("w", *press.print(cache.take_events())) is None and index.status("w") is Status.EXACT
    assert index.find(ids(range(50, 59)))["w"].tokens == 8 and index.report("w").damaged == 1


def test_an_index_says_how_many_workers_it_has_room_for() -> None:
    index = Index()
    for worker in range(4096):
        index.add(worker)
    with pytest.raises(InputError, match="4096 already"):
        index.add("one more")


def test_an_answer_that_there_was_no_time_to_read_is_not_asked_for_again() -> None:
    """A follower that others keep busy for longer than its patience has been answered all the same."""
    cache, index = build(32), Index()
    press = Press(Names.of(cache.config), "map", Archive(50, 1 << 20))
    seq, payload = press.print(cache.take_events(whole=True))
    with (
        socket(zmq.ROUTER, ANY, bind=True) as desk,
        socket(zmq.XPUB, ANY, bind=True) as stream,
        Follower(index, quiet=60.0, patience=0.5) as follower,
    ):
        follower.follow("w", end_of(stream), end_of(desk))
        stream.recv()  # it listens
        peer, _, ask = desk.recv_multipart()
        assert ask == SNAPSHOT
        with index._lock:
            stream.send_multipart([b"", number(seq), payload])
            time.sleep(0.2)  # it has been woken, and waits for the index
            for answer in ((number(seq), payload), (END, b"")):
                desk.send_multipart([peer, b"", b"", *answer])
            time.sleep(0.5)
        until(lambda: index.report("w").repair_bytes > 0, "the answer is read")
        assert not desk.poll(200) and index.status("w") is Status.EXACT
