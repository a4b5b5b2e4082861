"""The publisher over real sockets: order, replay, snapshots, late and restarted ends, and that it never waits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import zmq

from quire import InputError, StateError
from quire.events import Follower, Index, Publisher, Room, Status
from quire.events.publish.publisher import QueuedBatch
from quire.events.wire.delta import decoded
from quire.events.wire.field import Form
from quire.events.wire.protocol import END, SNAPSHOT, number
from quire.net.zmq_sockets import bound_to

from ..waits import until
from .consumer import Consumer
from .lives import Life, build, ids, run

ANY = "tcp://127.0.0.1:*"


@contextmanager
def socket(kind: int, endpoint: str, bind: bool = False) -> Iterator[zmq.Socket[bytes]]:
    """A socket of the test's own."""
    made: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    made.set(zmq.RCVTIMEO, 20_000)
    if kind == zmq.SUB:
        made.subscribe(b"")
    (made.bind if bind else made.connect)(endpoint)
    try:
        yield made
    finally:
        made.close(0)


@contextmanager
def published(cache: Any, **options: Any) -> Iterator[Publisher]:
    with Publisher(cache, ANY, replay=ANY, **options) as publisher:
        yield publisher


@contextmanager
def heard(publisher: Publisher, **options: Any) -> Iterator[tuple[Index, Follower]]:
    """An index that follows it as 'w'."""
    index = Index()
    with Follower(index, quiet=0.05, patience=5.0) as follower:
        follower.follow("w", publisher.endpoint, publisher.replay_endpoint, **options)
        yield index, follower


def exact(index: Index, publisher: Publisher, worker: Any = "w") -> bool:
    """It is EXACT and knows the last batch."""
    stream = index._streams[worker]
    if publisher.waiting:
        return False
    return stream.status is Status.EXACT and (stream.run, stream.next) == (publisher._maker.run, publisher.published)


def sent(publisher: Publisher) -> None:
    """Wait until all that was told is sent: what waits together goes out together."""
    until(lambda: publisher.waiting == 0, "sent")


def fetch(publisher: Publisher, request: bytes) -> list[tuple[bytes, int, bytes]]:
    """What the ROUTER answers, as any DEALER hears it."""
    assert publisher.replay_endpoint is not None
    with socket(zmq.DEALER, publisher.replay_endpoint) as dealer:
        dealer.send_multipart([b"", request])
        got: list[tuple[bytes, int, bytes]] = []
        while True:
            blank, topic, seq, payload = dealer.recv_multipart()
            assert blank == b""
            if seq == END:
                assert payload == b""
                return got
            got.append((topic, int.from_bytes(seq, "big"), payload))


@pytest.mark.parametrize("encoding", ["map", "array"])
def test_an_index_follows_a_cache(encoding: Any) -> None:
    cache = build(64, 64, rank=3)
    with published(cache, encoding=encoding) as publisher, heard(publisher) as (index, _):
        for seed in range(30):
            run(cache, seed, ids(range(seed * 100, seed * 100 + 41)))
            publisher.tell()
        until(lambda: exact(index, publisher), "exact")
        holdings = {seed: index.find(ids(range(seed * 100, seed * 100 + 41))) for seed in range(30)}
        assert holdings[29]["w"].tokens == 40 and holdings[29]["w"].tiers == (40, 0)
        assert 0 < sum(found["w"].tiers[1] > 0 for found in holdings.values() if found) < 30
        assert index.find(ids(range(7000, 7100))) == {} and index.report("w").rank == 3


def test_a_late_index_gets_a_snapshot_that_fits_the_stream() -> None:
    cache = build(32, 16)
    life = Life(cache, 1)
    with published(cache, room=Room(batches=2)) as publisher:
        for _ in range(20):
            life.step()
            publisher.tell()
        sent(publisher)
        with heard(publisher) as (index, _):
            until(lambda: exact(index, publisher), "exact")
            assert index.report("w").snapshots == 1 and index.report("w").replays == 0
            for _ in range(5):
                life.step()
                publisher.tell()
            until(lambda: exact(index, publisher), "exact again")
            ledger = publisher._maker._ledger.pages(0, 0)
            assert index.pages("w") == {h: (t, p) for h, t, p in zip(*(part.tolist() for part in ledger), strict=True)}


def test_replay_and_snapshot_as_any_dealer_hears_them() -> None:
    cache = build(32)
    with published(cache, topic="kv@pod@model") as publisher:
        assert fetch(publisher, number(0)) == [] and fetch(publisher, SNAPSHOT) == []
        for seed in range(5):
            run(cache, seed, ids(range(seed * 50, seed * 50 + 9)))
            publisher.tell()
            sent(publisher)
        everything, rest = fetch(publisher, number(0)), fetch(publisher, number(3))
        assert [seq for _, seq, _ in everything] == [0, 1, 2, 3, 4] and rest == everything[3:]
        assert {topic for topic, _, _ in everything} == {b"kv@pod@model"} and fetch(publisher, number(9)) == []
        ((_, seq, payload),) = fetch(publisher, SNAPSHOT)
        delta, last = decoded(payload), decoded(everything[-1][2])
        assert delta is not None and last is not None
        assert seq == 4 and delta.form is Form.WHOLE and delta.digest.tolist() == last.digest.tolist()


def test_requests_that_are_none_are_passed_over() -> None:
    with published(build()) as publisher:
        assert publisher.replay_endpoint is not None
        with socket(zmq.DEALER, publisher.replay_endpoint) as dealer:
            for frames in ([b"x"], [b"", b"123"], [b"", b"", b"", b""], [b"", b"snapshot"]):
                dealer.send_multipart(frames)
            dealer.send_multipart([b"", number(0)])
            assert dealer.recv_multipart() == [b"", b"", END, b""]


def test_a_publisher_may_connect_to_a_router_that_binds() -> None:
    with socket(zmq.SUB, ANY, bind=True) as stream:
        endpoint = bound_to(stream)
        cache = build()
        with Publisher(cache, endpoint, topic="kv@a@m", encoding="array") as publisher:
            assert publisher.endpoint == endpoint and publisher.replay_endpoint is None
            until(lambda: publisher.tell(whole=True) is not None and stream.poll(20), "heard")  # once connected
            topic, _, payload = stream.recv_multipart()
            assert topic == b"kv@a@m" and Consumer().hear(payload) == 0


def test_losses_on_the_way_are_asked_for() -> None:
    """A relay that loses two of three messages stands between; what it loses comes from the ROUTER."""
    cache = build(32, 16)
    life = Life(cache, 5)
    with ExitStack() as stack:
        publisher = stack.enter_context(published(cache))
        taken = stack.enter_context(socket(zmq.SUB, publisher.endpoint))
        given = stack.enter_context(socket(zmq.PUB, ANY, True))
        index, follower = stack.enter_context(heard_by_hand())
        follower.follow("w", bound_to(given), publisher.replay_endpoint)
        until(lambda: publisher.tell(whole=True) is not None and taken.poll(20), "connected")
        for turn in range(60):
            life.step()
            publisher.tell()
            while taken.poll(1):
                frames = taken.recv_multipart()
                if turn % 3 == 0:
                    given.send_multipart(frames)
        until(lambda: exact(index, publisher), "exact")
        assert index.report("w").batches >= 10
        ledger = publisher._maker._ledger.pages(0, 0)
        assert index.pages("w") == {h: (t, p) for h, t, p in zip(*(part.tolist() for part in ledger), strict=True)}


def test_a_restarted_worker_is_another_stream() -> None:
    old, new = build(16), build(16)
    with heard_by_hand() as (index, follower):
        with Publisher(old, ANY, replay=ANY) as publisher:
            follower.follow("w", publisher.endpoint, publisher.replay_endpoint)
            run(old, 1, ids(range(20)))
            publisher.tell()
            until(lambda: exact(index, publisher), "exact")
            endpoints = publisher.endpoint, publisher.replay_endpoint
        with reopened(new, *endpoints) as publisher:
            run(new, 1, ids(range(500, 520)))
            until(lambda: publisher.tell() is not None and exact(index, publisher), "exact on the new one")
            assert index.find(ids(range(20))) == {} and index.find(ids(range(500, 520)))["w"].tokens == 20


def reopened(cache: Any, endpoint: str, replay: str | None) -> Publisher:
    """On the ports of one that was closed; they come free a moment later."""
    made: list[Publisher] = []

    def is_open() -> bool:
        try:
            made.append(Publisher(cache, endpoint, replay=replay, bind=True))
        except StateError:
            return False
        return True

    until(is_open, "the ports are free")
    return made[0]


@contextmanager
def heard_by_hand() -> Iterator[tuple[Index, Follower]]:
    index = Index()
    with Follower(index, quiet=0.05, patience=0.3) as follower:
        yield index, follower


def test_answers_that_are_none_harm_nobody() -> None:
    with socket(zmq.ROUTER, ANY, bind=True) as router, socket(zmq.PUB, ANY, bind=True) as stream:
        ends = [bound_to(one) for one in (stream, router)]
        with heard_by_hand() as (index, follower):
            follower.follow("w", *ends)
            peer, _, request = router.recv_multipart()
            assert request == SNAPSHOT
            for frames in ([b""], [b"x"], [b"", b"1", b"2"], [b"", b"", number(0), b"nonsense"], [b"", b"", END, b""]):
                router.send_multipart([peer, *frames])
            until(lambda: index.report("w").damaged == 1, "it was looked at")
            assert router.recv_multipart()[2] == SNAPSHOT and index.status("w") is Status.UNKNOWN  # and asked again
            follower.leave("w")


def test_a_silent_worker_is_unknown() -> None:
    cache = build(16)
    with heard_by_hand() as (index, follower):
        with published(cache) as publisher:
            follower.follow("w", publisher.endpoint, publisher.replay_endpoint)
            publisher.tell()
            until(lambda: exact(index, publisher), "exact")
        until(lambda: index.status("w") is Status.UNKNOWN, "unknown")
        follower.leave("w")
        assert index.workers() == {}


def test_a_full_recorder_is_counted_told_and_made_up_for() -> None:
    cache = build(64, max_events=20)
    with published(cache) as publisher, heard(publisher) as (index, _):
        publisher.tell()
        for seed in range(10):
            run(cache, seed, ids(range(seed * 100, seed * 100 + 20)))  # 50 blocks, nobody reads
        publisher.tell()
        until(lambda: publisher.published == 2 and exact(index, publisher), "exact")
        assert publisher.lost >= 20 and index.report("w").lost in (0, publisher.lost)  # 0: it came by a snapshot
        assert all(index.find(ids(range(seed * 100, seed * 100 + 20)))["w"].tokens == 20 for seed in range(10))


def test_misuse_is_told() -> None:
    cache = build()
    with pytest.raises(InputError, match="records no events"):
        Publisher(build(events=False), ANY)
    with pytest.raises(InputError, match="encoding 'xml'"):
        Publisher(cache, ANY, encoding="xml")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="names no transport"):
        Publisher(cache, "localhost:5557")
    with pytest.raises(InputError, match="routers drop it"):
        Publisher(cache, ANY, media=("GPU", "FS"))
    with pytest.raises(InputError, match="the cache has 2 tiers"):
        Publisher(cache, ANY, media=("GPU",))
    with pytest.raises(InputError, match="that is not a size"):
        Room(batches=0)
    with published(cache) as publisher, pytest.raises(StateError, match="bind"):
        Publisher(cache, publisher.endpoint, bind=True)
    with heard_by_hand() as (index, follower):
        with pytest.raises(InputError, match="names no transport"):
            follower.follow("w", "nowhere")
        assert index.workers() == {}


def test_another_reader_of_the_recorder_is_found_out() -> None:
    """What others take is missing here: that is counted, and the whole state told next makes up for it."""
    cache = build(4, 0)
    with published(cache) as publisher:
        publisher.tell()
        sent(publisher)
        run(cache, 1, ids(range(8)))
        cache.take_events()  # behind its back
        run(cache, 2, ids(range(100, 116)))  # evicts what nobody has heard of
        publisher.tell()
        until(lambda: publisher.repairs == 1, "found out")
        publisher.tell()
        with heard(publisher) as (index, _):
            until(lambda: exact(index, publisher), "exact")
            assert index.find(ids(range(100, 116)))["w"].tokens == 16 and index.find(ids(range(8))) == {}
        assert decoded(fetch(publisher, number(2))[0][2]).form is Form.WHOLE  # type: ignore[union-attr]
        run(cache, 3, ids(range(50, 58)))
        publisher.tell()
        sent(publisher)
        assert publisher.repairs == 1 and publisher.published == 4


def test_a_whole_state_that_is_odd_itself_is_not_told_over_and_over() -> None:
    """Two of its pages have one hash, say: it would be as odd the next time."""
    cache = build(4, 0)
    with published(cache) as publisher:
        run(cache, 1, ids(range(8)))
        batch = cache.take_events(whole=True)
        batch.hashes[1:] = batch.hashes[0]
        publisher._waiting, publisher._whole = len(batch.hashes), False
        publisher._queue.append(QueuedBatch(batch, 0))
        publisher._wake()
        until(lambda: publisher.published == 1, "told")
        sent(publisher)
        assert publisher._maker.inconsistent > 0 and publisher.repairs == 0 and publisher.tell() == 0


@pytest.mark.parametrize("package", ["zmq", "msgspec"])
def test_a_missing_package_is_told_with_its_cure(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import quire.events"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240).stderr
    assert "MissingExtra: quire.events: it needs" in told and "pip install 'quire-kv[events]'" in told
