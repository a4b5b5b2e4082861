"""Events that cannot be encoded, and what else fails in the publisher's thread: counted, mended, and never silent."""

from __future__ import annotations

from typing import Any

import pytest
import zmq

from quire import Scope
from quire.events import Index, Status
from quire.events.publish import payloads
from quire.events.publish import publisher as publisher_file
from quire.events.publish.archive import Archive
from quire.events.publish.payloads import PayloadMaker
from quire.events.wire.names import Names
from quire.events.wire.protocol import MARK

from ..waits import until
from .consumer import Consumer
from .lives import build, ids, run
from .test_publisher import exact, fetch, heard, heard_by_hand, published, sent, socket

SECRET = "31415926535897932384626433832795"
ADAPTER = int(SECRET)  # a name that is no 64-bit number, which msgpack cannot write


@pytest.mark.parametrize("encoding", ["map", "array"])
def test_a_name_that_no_event_can_hold_is_left_out_and_all_else_is_told(encoding: Any) -> None:
    scope = Scope(lora=ADAPTER)
    cache, index, consumer = build(64), Index(), Consumer()
    index.add("w")
    maker = PayloadMaker(Names.from_config(cache.config), encoding, Archive(4, 1 << 20))
    index.hear("w", *maker.make(cache.take_events(whole=True)))
    for turn in range(12):  # many of one block each, which a template writes at once
        run(cache, turn, ids(range(100 * turn, 100 * turn + 4)), scope=scope)
    run(cache, 98, ids(range(3000, 3008)), scope=scope)
    run(cache, 99, ids(range(5000, 5012)), scope=Scope(salt="other"))
    seq, payload = maker.make(cache.take_events())
    assert maker.dropped >= 2
    assert index.hear("w", seq, payload) is None and index.status("w") is Status.EXACT, "our field has all of it"
    assert len(index.pages("w", 0)) == 12 + 2 + 3
    consumer.hear(payload)
    assert len(consumer.media(0)) == 3, "others hear of all that has a name"


def test_no_thread_ends_and_no_log_has_the_salt(caplog: pytest.LogCaptureFixture) -> None:
    cache = build(64)
    with published(cache) as publisher, heard(publisher) as (index, _):
        for turn in range(3):
            run(cache, turn, ids(range(100 * turn, 100 * turn + 8)), scope=Scope(lora=ADAPTER))
            publisher.tell()
            sent(publisher)
        run(cache, 9, ids(range(900, 909)))
        publisher.tell()
        until(lambda: exact(index, publisher), "exact")
        assert publisher.dropped == 3 and publisher.failure is None and publisher._thread.is_alive()
    assert len([one for one in caplog.records if "cannot be encoded" in one.getMessage()]) == 1, "not once for each"
    assert SECRET not in caplog.text


def test_a_batch_that_cannot_be_made_is_repaired_by_the_digest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = build(64)

    def broken(*_: Any) -> Any:
        raise RuntimeError(SECRET)

    with published(cache) as publisher, heard(publisher) as (index, _):
        publisher.tell()
        until(lambda: exact(index, publisher), "exact")
        with monkeypatch.context() as patch:
            patch.setattr(payloads, "encoded", broken)
            run(cache, 1, ids(range(8)))
            publisher.tell()
            until(lambda: publisher.unmade == 1, "left out")
        sent(publisher)
        assert publisher.failure is None
        run(cache, 2, ids(range(50, 58)))
        publisher.tell()
        until(lambda: exact(index, publisher) and len(index.pages("w", 0)) == 4, "repaired")
        assert publisher.dropped == 1
    assert SECRET not in caplog.text


def test_a_thread_that_fails_opens_its_sockets_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publisher_file, "PAUSE", 0.0)
    cache = build(64)

    def broken(*_: Any) -> Any:
        raise RuntimeError(SECRET)

    with published(cache) as publisher, heard_by_hand() as (index, follower):
        follower.follow("w", publisher.endpoint, publisher.replay_endpoint)
        where = publisher.endpoint, publisher.replay_endpoint
        publisher.tell()
        sent(publisher)
        assert publisher.tell() == 0, "nothing has changed"
        monkeypatch.setattr(publisher._replay_server, "serve", broken)
        publisher._wake()
        until(lambda: publisher.restarts == 1, "again")
        assert (publisher.endpoint, publisher.replay_endpoint) == where and publisher.failure is None
        assert publisher.tell(), "the whole state, for routers that cannot ask"
        run(cache, 1, ids(range(8)))
        until(lambda: publisher.tell() is not None, "told")
        until(lambda: exact(index, publisher) and len(index.pages("w", 0)) == 2, "heard by who was there before")
    assert "RuntimeError at " in caplog.text and SECRET not in caplog.text


def test_while_it_has_failed_it_says_so_and_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_file, "PAUSE", 0.01)
    monkeypatch.setattr(publisher_file, "LONGEST_PAUSE", 0.02)
    cache = build(64)
    with published(cache) as publisher:
        real = publisher._open

        def taken(*_: Any) -> None:
            raise OSError("somebody else has it")

        def broken(*_: Any) -> Any:
            raise RuntimeError("broken")

        monkeypatch.setattr(publisher, "_open", taken)
        monkeypatch.setattr(publisher._replay_server, "serve", broken)
        publisher._wake()
        until(lambda: isinstance(publisher.failure, OSError), "failed twice")
        run(cache, 1, ids(range(8)))
        assert publisher.tell() is None and "failed" in repr(publisher)
        monkeypatch.setattr(publisher, "_open", real)
        until(lambda: publisher.failure is None, "again")
        assert publisher.tell()
        sent(publisher)
        assert len(fetch(publisher, MARK)) == 1


def test_one_that_has_failed_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    with published(build(64)) as publisher:

        def broken(*_: Any) -> Any:
            raise RuntimeError("broken")

        monkeypatch.setattr(publisher._replay_server, "serve", broken)
        publisher._wake()
        until(lambda: publisher.failure is not None, "failed")
    assert not publisher._thread.is_alive()


def test_an_answer_that_cannot_be_made_is_one_routers_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = build(64)
    with published(cache) as publisher:
        assert publisher.replay_endpoint is not None
        publisher.tell()
        sent(publisher)
        answered = publisher._answer

        def sometimes(request: bytes) -> Any:
            if request == MARK:
                return answered(request)
            raise RuntimeError("broken")

        monkeypatch.setattr(publisher, "_answer", sometimes)
        with socket(zmq.DEALER, publisher.replay_endpoint) as dealer:
            dealer.send_multipart([b"", bytes(8)])
            assert len(fetch(publisher, MARK)) == 1
        assert publisher.failure is None and publisher.restarts == 0
