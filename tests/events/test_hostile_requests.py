"""Routers that ask too much, or read nothing: their answers stay within bounds, and others are answered."""

from __future__ import annotations

import time
import tracemalloc
from itertools import count

import msgspec
import pytest
import zmq

from quire.events import Follower, Index, Publisher, Room, Status
from quire.events.follow import follower as followers
from quire.events.publish import replay_server as replay_servers
from quire.events.publish.archive import Archive
from quire.events.publish.bytes_in_flight import SMALL
from quire.events.publish.payloads import PayloadMaker
from quire.events.publish.replay_server import ReplayServer
from quire.events.wire.names import Names
from quire.events.wire.protocol import END, SNAPSHOT, NumberedPayload, number
from quire.net.curve_keys import ServerSockets
from quire.net.limits.zmq_connections import LENIENT_FACTOR
from quire.net.zmq_sockets import bound_to

from ..waits import until
from .lives import build, ids, run
from .test_hostile import PROMPT, Pair
from .test_publisher import ANY, exact, fetch, published, sent, socket

# -- those who ask ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["stream", "answers"])
def test_a_worker_that_has_itself_asked_over_and_over_piles_up_nothing(way: str) -> None:
    """It is right and wrong by turns, so that there is always something to ask it for, and ends no answer."""
    pair, most = Pair(), followers.MAX_REQUESTS
    digest = bytes(len(msgspec.msgpack.decode(pair.whole[1])[1][-1]["quire"][10]))
    says = [pair.changed(_11=seq, **({"_10": digest} if seq % 2 else {})) for seq in range(6 * most)]
    asked: dict[bytes, int] = {}
    with (
        socket(zmq.ROUTER, ANY, bind=True) as router,
        socket(zmq.XPUB, ANY, bind=True) as stream,
        Follower(pair.index, quiet=60.0, patience=60.0) as follower,
    ):
        follower.follow("it", bound_to(stream), bound_to(router))
        stream.recv()  # it listens
        stream.set_hwm(0)

        def hear() -> bytes:
            who = router.recv_multipart()[0]
            asked[who] = asked.get(who, 0) + 1
            return who

        who = hear()
        for seq, payload in enumerate(says):
            if way == "stream":
                stream.send_multipart([b"", number(seq), payload])
            else:
                router.send_multipart([who, b"", b"", number(seq), payload])
            if seq % 2:
                who = hear()
        assert len(asked) > 2 and max(asked.values()) <= most and sum(asked.values()) == 1 + len(says) // 2
        assert pair.index.status("good") is Status.EXACT


def test_silent_peers_that_ask_for_snapshots_take_no_more_memory_than_there_is_room_for() -> None:
    """Each asks for as much as it may and reads nothing, while the state changes; then somebody honest asks."""
    cache = build(8192, 0, max_length=40_000, max_sequences=80)
    run(cache, 1, ids(range(30_000)))
    room = Room(answers=1 << 20)  # inproc: no buffers of a kernel between the ends
    with Publisher(cache, ANY, replay="inproc://quire-replay-in-a-test", room=room) as publisher:
        publisher.tell()
        sent(publisher)
        ((_, _, snapshot),) = fetch(publisher, SNAPSHOT)
        assert len(snapshot) > 8 * SMALL
        silent, server = [], publisher._replay_server
        tracemalloc.start()
        try:
            for seed in range(60):
                made: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
                made.set_hwm(1)
                made.set(zmq.SNDHWM, 0)
                made.connect(str(publisher.replay_endpoint))
                silent.append(made)
                for _ in range(8):
                    made.send_multipart([b"", SNAPSHOT])
                run(cache, 2 + seed, ids(range(50_000 + 8 * seed, 50_008 + 8 * seed)))
                publisher.tell()
                sent(publisher)
            until(lambda: server._in_flight.is_full, "full")
            until(lambda: len(server._requests) > 20, "they wait")
            assert server.num_bytes < (1 << 20) + 2 * len(snapshot)
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
        finally:
            tracemalloc.stop()
            for made in silent:
                made.close(0)
        until(lambda: server.num_bytes == 0, "given back")
        assert len(fetch(publisher, SNAPSHOT)) == 1


def test_memory_of_an_answer_is_given_back_once_it_is_read_though_nobody_asks_again() -> None:
    cache = build(8192, 0, max_length=40_000)
    run(cache, 1, ids(range(30_000)))
    with Publisher(cache, ANY, replay="inproc://quire-replay-read-late") as publisher:
        publisher.tell()
        sent(publisher)
        server = publisher._replay_server
        with socket(zmq.DEALER, str(publisher.replay_endpoint)) as late:
            late.send_multipart([b"", SNAPSHOT])
            until(lambda: late.poll(0) and not server._requests, "answered")
            time.sleep(0.05)  # the publisher's thread has gone to sleep
            assert server.num_bytes > SMALL
            while late.recv_multipart()[2] != END:
                pass
            until(lambda: server.num_bytes == 0, "given back")


def test_a_worker_that_answers_nothing_is_found_out_however_often_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "MAX_REQUESTS", 1 << 30)
    pair, asked, numbers = Pair(), set[bytes](), count()
    digest = bytes(len(msgspec.msgpack.decode(pair.whole[1])[1][-1]["quire"][10]))
    with (
        socket(zmq.ROUTER, ANY, bind=True) as router,
        socket(zmq.XPUB, ANY, bind=True) as stream,
        Follower(pair.index, quiet=60.0, patience=0.1) as follower,
    ):
        follower.follow("it", bound_to(stream), bound_to(router))
        stream.recv()  # it listens

        def has_asked_again() -> bool:
            for values, seq in zip(({}, {"_10": digest}), numbers, strict=False):
                stream.send_multipart([b"", number(seq), pair.changed(_11=seq, **values)])
            while router.poll(5):
                asked.add(router.recv_multipart()[0])
            return len(asked) > 1

        until(has_asked_again, "asked again, by another connection")


class Answering:
    """A server of answers that runs when the test says so: 30 parts to each request, and no buffers between."""

    def __init__(self, name: str, room: int = 36 * SMALL) -> None:
        self.server = ReplayServer(b"", 8, room, ServerSockets(None))
        self.where = self.server.open(f"inproc://quire-replay-{name}")
        self.parts = [NumberedPayload(seq, bytes(SMALL)) for seq in range(30)]

    def __enter__(self) -> Answering:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close(0)

    def ask(self, one: zmq.Socket[bytes]) -> bytes:
        """It asks for all, and is not answered yet; what the server calls it."""
        one.send_multipart([b"", number(0)])
        until(lambda: self.server.sockets[0].poll(0), "it came")
        self.server.take()
        return [*self.server._requests][-1]

    def serve(self) -> None:
        self.server.serve(lambda _: iter(self.parts))

    def read(self, one: zmq.Socket[bytes], many: int) -> list[bytes]:
        """What it is sent while the server goes on."""
        told = list[bytes]()

        def has_read() -> bool:
            self.serve()
            while len(told) < many and one.poll(0):
                told.append(one.recv_multipart()[-2])
            return len(told) == many

        until(has_read, f"{many} parts are read")
        return told


ALL = [*map(number, range(30)), END]


def test_one_who_does_not_read_has_its_share_of_the_room() -> None:
    with (
        Answering("shared") as answering,
        socket(zmq.DEALER, answering.where) as silent,
        socket(zmq.DEALER, answering.where) as honest,
    ):
        name, server = answering.ask(silent), answering.server
        answering.serve()
        assert server._in_flight.bytes_to(name) == server.num_bytes == 9 * SMALL
        answering.ask(honest)
        assert answering.read(honest, 31) == ALL

        def is_let_go() -> bool:
            answering.serve()
            return server.num_bytes == 9 * SMALL

        until(is_let_go, "the rest was let go")
        assert server._in_flight.bytes_to(name) == 9 * SMALL


def test_who_reads_is_answered_before_those_who_do_not() -> None:
    """All the room is taken; whenever some of it is given back, he who has the least under way comes first."""
    with (
        Answering("held") as answering,
        socket(zmq.DEALER, answering.where) as silent,
        socket(zmq.DEALER, answering.where) as honest,
    ):
        in_flight = answering.server._in_flight
        held = [in_flight.add(b"others", bytes(4 * SMALL)) for _ in range(9)]
        name = answering.ask(silent)
        in_flight.give_up(b"others", held.pop())
        answering.serve()
        assert in_flight.bytes_to(name) == 4 * SMALL and in_flight.is_full
        answering.ask(honest)
        in_flight.give_up(b"others", held.pop())
        assert answering.read(honest, 31) == ALL


def test_those_with_as_much_under_way_take_turns() -> None:
    """There is room for one message; who has just had one comes after the other."""
    with (
        Answering("turns", SMALL) as answering,
        socket(zmq.DEALER, answering.where) as one,
        socket(zmq.DEALER, answering.where) as other,
    ):
        for asks in (one, other):
            answering.ask(asks)
        told = [answering.read(asks, 1)[0] for _ in range(5) for asks in (one, other)]
        assert told == [number(seq) for seq in range(5) for _ in range(2)]


def test_who_asks_and_goes_is_not_kept() -> None:
    """While there is no room nobody finds out that it has gone; what is no request is not kept for a moment."""
    with published(build(16), room=Room(answers=SMALL, peers=2)) as publisher:
        publisher.tell()
        sent(publisher)
        server = publisher._replay_server
        held = server._in_flight.add(b"silent", bytes(SMALL))
        where = str(publisher.replay_endpoint)
        for nth in range(40):
            with socket(zmq.DEALER, where) as one:
                for request in (b"x" * 4_000, b"snapshot!", number(nth)):
                    one.send_multipart([b"", request])
                one.send_multipart([b"", b"", b""])
                one.close(1000)
        until(lambda: len(server._requests) == LENIENT_FACTOR * 2, "they wait")
        assert {request for asks in server._requests.values() for request in asks} <= {number(nth) for nth in range(40)}
        server._in_flight.give_up(b"silent", held)
        until(lambda: not server._requests, "forgotten")
        assert len(fetch(publisher, SNAPSHOT)) == 1


def test_who_holds_all_the_room_is_disconnected_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that nobody lets go stands for one that somebody does not read; ends of connections do not differ."""
    monkeypatch.setattr(replay_servers, "STALL", 0.05)
    cache, index = build(16), Index()
    with published(cache, room=Room(answers=SMALL)) as publisher, Follower(index, quiet=0.05, patience=0.5) as follower:
        publisher.tell()
        follower.follow("w", publisher.endpoint, publisher.replay_endpoint)
        until(lambda: exact(index, publisher), "exact")
        server = publisher._replay_server
        held = server._in_flight.add(b"silent", bytes(SMALL))
        with socket(zmq.DEALER, str(publisher.replay_endpoint)) as waits:
            news = waits.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            waits.send_multipart([b"", SNAPSHOT])
            until(lambda: news.poll(10), "disconnected")
            waits.disable_monitor()
            news.close(0)
            server._in_flight.give_up(b"silent", held)
        publisher.tell(whole=True)
        until(lambda: exact(index, publisher), "heard again")


def test_one_snapshot_is_made_for_all_who_ask_at_one_number() -> None:
    cache = build(32)
    maker = PayloadMaker(Names.from_config(cache.config), "map", Archive(5, 1 << 20))
    maker.make(cache.take_events(whole=True))
    first, again = maker.snapshot(), maker.snapshot()
    assert first is again
    run(cache, 1, PROMPT)
    maker.make(cache.take_events())
    assert maker.snapshot() != first


def test_subscribers_are_bounded_and_who_lives_comes_back() -> None:
    cache, index = build(16), Index()
    with published(cache, room=Room(subscribers=4)) as publisher, Follower(index, quiet=0.05) as follower:
        publisher.tell()
        follower.follow("w", publisher.endpoint, publisher.replay_endpoint)
        until(lambda: exact(index, publisher), "exact")
        many: list[zmq.Socket[bytes]] = [zmq.Context.instance().socket(zmq.SUB) for _ in range(8)]
        for one in many:
            one.set(zmq.RECONNECT_IVL, -1)  # they do not come back
            one.connect(publisher.endpoint)
        until(lambda: 0 < len(publisher._limit or ()) <= 4, "disconnected")
        for one in many:
            one.close(0)
        run(cache, 1, PROMPT)
        publisher.tell()
        until(lambda: exact(index, publisher) and index.find(PROMPT), "heard again")
