"""What the log says: gaps and repairs, workers that are not believed, refused clients, a full queue; else nothing."""

from __future__ import annotations

import logging
import socket as sockets
import subprocess
import sys
from contextlib import ExitStack
from functools import partial

import pytest

from quire.events import Follower, Index, Keys, Room, Status
from quire.events.follow import index as indexes
from quire.events.publish.archive import Archive
from quire.events.publish.payloads import PayloadMaker
from quire.events.wire.names import Names

from ..waits import until
from .lives import build, ids, run
from .test_connection_limit import address_of
from .test_publisher import published, sent


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "quire.events")
    return caplog


def has(log: pytest.LogCaptureFixture, text: str) -> bool:
    return any(text in line for line in log.messages)


def test_a_gap_and_its_repair(log: pytest.LogCaptureFixture) -> None:
    cache, index = build(), Index()
    maker = PayloadMaker(Names.from_config(cache.config), "map", Archive(9, 1 << 20))
    index.add("w")
    batches = []
    for name in range(3):
        run(cache, name, ids(range(100 * name, 100 * name + 8)))
        batches.append(maker.make(cache.take_events(whole=not name)))
    index.hear("w", *batches[0])
    index.hear("w", *batches[2])
    index.hear("w", *batches[1], asked=True)
    index.silent("w")
    index.silent("w")
    assert log.messages == [
        "worker 'w' is exact",
        "worker 'w': something is missing from number 1 on",
        "worker 'w' is exact, its stream is repaired",
        "worker 'w' does not answer",
    ]


def test_a_worker_that_is_not_believed_is_told_with_the_reason_but_does_not_fill_the_log(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "WARN_EVERY", 1e9)
    index = Index()
    index.add("w")
    for seq in range(2**63, 2**63 + 50):
        index.hear("w", seq, b"")
    assert log.messages == ["worker 'w' is not believed: 'a batch of number 9223372036854775808'"]
    assert index.status("w") is Status.UNKNOWN


def test_a_full_queue_is_told_once(log: pytest.LogCaptureFixture) -> None:
    cache = build(4096, 0, max_length=20_000)
    run(cache, 1, ids(range(12_000)))
    with published(cache, room=Room(waiting=1)) as publisher:
        until(lambda: publisher.tell(whole=True) is None, "full", 60)
        publisher.tell()
        assert len([line for line in log.messages if "the queue is full" in line]) == 1
        sent(publisher)


def test_what_the_recorder_lost(log: pytest.LogCaptureFixture) -> None:
    cache = build(64, max_events=20)
    with published(cache) as publisher:
        publisher.tell()
        for seed in range(10):
            run(cache, seed, ids(range(seed * 100, seed * 100 + 20)))
        publisher.tell()
        sent(publisher)
        assert has(log, f"no room for {publisher.lost} hashes; the whole state is sent")


def test_a_client_without_the_right_key(log: pytest.LogCaptureFixture) -> None:
    server, friend, stranger = Keys.make(), Keys.make(), Keys.make()
    room, index = Room(keys=server.admitting([friend.public])), Index()
    with published(build(), room=room) as publisher, Follower(index, quiet=0.05, keys=stranger) as follower:
        follower.follow("w", publisher.endpoint, server=server.public)
        until(partial(has, log, f"a client with the public key {stranger.public!r} was refused"), "refused")
        assert index.status("w") is Status.UNKNOWN


def test_too_many_connections(log: pytest.LogCaptureFixture) -> None:
    with published(build(), room=Room(subscribers=1)) as publisher, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(sockets.create_connection(address_of(publisher.endpoint), 120))
        until(partial(has, log, "2 connections, 1 allowed: all are disconnected"), "disconnected")


def test_it_is_quiet_unless_logging_is_set_up() -> None:
    code = "from quire.events import Index; i = Index(); i.add('w'); i.hear('w', 2**63, b''); i.silent('w')"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert told.returncode == 0 and told.stderr == "" == told.stdout
