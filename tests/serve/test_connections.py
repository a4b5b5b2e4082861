"""How many connections a server has: idle ones make room, what is being answered goes on, nobody is shut out."""

from __future__ import annotations

import errno
import http.client
import os
import resource
import shutil
import socket
import ssl
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quire import InputError
from quire.net.limits import open_connections
from quire.net.limits.open_connections import OpenConnections
from quire.serve import ServeSettings
from quire.serve.connections import acceptor, lingering
from quire.serve.http import exchange

from ..waits import PATIENCE, until
from .rig import NAME, Serving, Wire, serving


def is_over(wire: Wire) -> bool:
    """Whether the other side has hung up, after some last words."""
    try:
        while wire.socket.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def opened(server: Serving, stack: ExitStack, count: int) -> list[Wire]:
    """Connections that say nothing, one after the other."""
    wires = []
    for _ in range(count):
        before = len(server.server.connections)
        wires.append(stack.enter_context(server.wire()))
        until(lambda: len(server.server.connections) == min(before + 1, server.server.connections.most))  # noqa: B023
    return wires


def test_a_quiet_connection_goes_when_one_more_comes() -> None:
    with serving(max_connections=4) as server, ExitStack() as stack:
        quiet = opened(server, stack, 4)
        half = quiet[1]
        half.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x")  # not a request yet
        for gone in quiet:
            assert server.complete(max_tokens=1).status == 200
            assert is_over(gone)
            until(lambda: len(server.server.connections) == 3)  # that of the request is closed
            opened(server, stack, 1)


def test_what_is_answered_goes_on_and_the_newcomer_is_told() -> None:
    with serving(max_connections=3) as server, ExitStack() as stack:
        server.valve.shut()
        streams = [stack.enter_context(server.wire()) for _ in range(3)]
        for stream in streams:
            stream.ask("/v1/completions", {"prompt": "Once", "max_tokens": 4, "stream": True})
        until(lambda: sum(not one.is_idle for one in list(server.server.connections._open)) == 3)
        refused = server.complete()
        assert refused.status == 503 and refused.headers["retry-after"] == "1"
        assert "3 connections are open, and none of them is idle" in refused.error["message"]
        assert server.get("/health").status == server.get("/ready").status == 200, "in reserve"
        assert server.get("/health").headers["connection"] == "close" and server.get("/version").status == 503
        server.valve.open()
        for stream in streams:
            assert stream.read_until(b"[DONE]")
        until(lambda: server.get("/version").status == 200)  # they wait for their next requests
        assert len(server.server.connections) <= 3
    assert len(server.server.connections) == 0


def test_a_connection_that_was_answered_may_ask_again() -> None:
    with serving(max_connections=2) as server, server.wire() as kept:
        for _ in range(3):
            kept.ask("/v1/completions", {"prompt": "Once", "max_tokens": 1, "temperature": 0})
            assert b'"finish_reason"' in kept.read_until(b"}]")
            kept.socket.settimeout(0.01)
            with pytest.raises(TimeoutError):
                while kept.socket.recv(65536):
                    pass
            kept.socket.settimeout(PATIENCE)


@dataclass(eq=False)
class Line:
    """A connection without a socket."""

    is_idle: bool = True
    is_reading: bool = False
    over: bool = False
    is_told: bool = False

    def hang_up(self) -> None:
        self.over = True

    def turn_away(self) -> None:
        self.is_told = True


def test_who_has_most_connections_loses_his_own() -> None:
    limit: OpenConnections[Line] = OpenConnections(6)
    honest, busy = Line(), Line(is_idle=False)
    many = [Line() for _ in range(40)]
    assert limit.add(honest, "10.0.0.1") and limit.add(busy, "2001:db8::1")
    for nth, line in enumerate(many):
        assert limit.add(line, f"2001:db8::{nth + 2:x}")  # one network of 64 bits is one host
    assert len(limit) == 6 and not honest.is_told and not busy.is_told
    assert [line.is_told for line in many] == [True] * 36 + [False] * 4
    for line in many:
        line.is_idle = False
    assert limit.add(Line(is_idle=False), "10.0.0.2") and honest.is_told  # nobody else is idle
    newcomer = Line()
    assert not limit.add(newcomer, "10.0.0.3") and len(limit) == 6 and limit.num_open == 6 + 36 + 1 + 1
    limit.remove(newcomer)
    assert not any(line.over for line in many)
    limit.remove(busy)
    limit.remove(busy)
    assert len(limit) == 5 and limit.add(newcomer, "10.0.0.3")


class Files:
    """A process's limits of open files, in place of this one's: its hard limit could not be had back."""

    RLIMIT_NOFILE, RLIM_INFINITY = resource.RLIMIT_NOFILE, resource.RLIM_INFINITY

    def __init__(self, soft: int, hard: int, refuses: bool = False) -> None:
        self.limits, self.refuses = (soft, hard), refuses

    def getrlimit(self, _: int) -> tuple[int, int]:
        return self.limits

    def setrlimit(self, _: int, limits: tuple[int, int]) -> None:
        if self.refuses:
            raise ValueError("not permitted")
        assert limits[0] <= limits[1] or limits[1] == resource.RLIM_INFINITY
        self.limits = limits


@pytest.mark.parametrize(
    ("files", "most", "soft"),
    [
        (Files(300, 2000), 1024, 1280),
        (Files(300, 400), 144, 400),
        (Files(300, 2000, refuses=True), 44, 300),
        (Files(300, resource.RLIM_INFINITY), 1024, 1280),
        (Files(5000, 5000), 1024, 5000),
        (Files(resource.RLIM_INFINITY, resource.RLIM_INFINITY), 1024, resource.RLIM_INFINITY),
        (Files(100, 100), 1, 100),
    ],
)
def test_there_are_never_more_connections_than_files(
    files: Files, most: int, soft: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_connections, "resource", files)
    assert OpenConnections(1024).most == most
    assert files.limits[0] == soft


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "many"])
def test_settings_that_are_no_number_of_connections(wrong: object) -> None:
    with pytest.raises(InputError, match="max_connections"):
        ServeSettings(NAME, max_connections=wrong)  # type: ignore[arg-type]


def test_a_flood_of_connections_keeps_nobody_out() -> None:
    with serving(max_connections=8) as server, ExitStack() as stack:
        for _ in range(200):
            flood = socket.create_connection(("127.0.0.1", server.port))
            stack.callback(flood.close)
        assert server.complete(max_tokens=1).status == 200
        assert len(server.server.connections) <= 8


def test_whose_request_is_still_coming_makes_room_when_nobody_is_idle() -> None:
    limit: OpenConnections[Line] = OpenConnections(3)
    honest = Line(is_idle=False, is_reading=True)
    dripping = [Line(is_idle=False, is_reading=True) for _ in range(2)]
    assert limit.add(honest, "10.0.0.1") and all(limit.add(line, "10.0.0.2") for line in dripping)
    assert limit.add(Line(is_idle=False), "10.0.0.3") and dripping[0].is_told and not dripping[0].over
    assert not dripping[1].is_told and not honest.is_told and len(limit) == 3
    assert limit.num_open == 4, "who is told takes a moment to go"


def test_the_reserve_is_bounded_too() -> None:
    limit: OpenConnections[Line] = OpenConnections(1)
    assert limit.add(Line(is_idle=False), "10.0.0.1")
    honest, many = Line(), [Line() for _ in range(3 * limit.reserve)]
    assert not limit.add(honest, "10.0.0.2")
    for line in many:
        assert not limit.add(line, "10.0.0.3")
    assert limit.num_open == 1 + limit.reserve and not honest.over
    assert sum(line.over for line in many) == 2 * limit.reserve + 1


def test_few_files_are_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(open_connections, "resource", Files(64, 64))
    few: OpenConnections[Line] = OpenConnections(1024)
    assert few.most + few.reserve <= 32, "most files are others'"
    (record,) = caplog.records
    assert "may have 64 files open" in record.getMessage() and "ulimit -n" in record.getMessage()
    caplog.clear()
    monkeypatch.setattr(open_connections, "resource", Files(5000, 5000))
    OpenConnections(1024)
    assert not caplog.records


# -- TLS ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[str, str], ssl.SSLContext]:
    """A server's certificate and key, and a client that believes them."""
    pytest.importorskip("msgspec")
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command")
    from tests.net.certificates import Authority

    authority = Authority(tmp_path_factory.mktemp("tls"))
    own = authority.issue("server")
    return (str(own.cert), str(own.key)), ssl.create_default_context(cafile=str(authority.ca))


def health(server: Serving, client: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=PATIENCE, context=client)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    finally:
        connection.close()


def test_connections_without_a_handshake_are_counted_and_make_room(tls: Any) -> None:
    with serving(tls=tls[0], max_connections=8) as server, ExitStack() as stack:
        before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
        for _ in range(100):
            stack.enter_context(server.wire())
        assert health(server, tls[1]) == 200
        until(lambda: server.server.connections.num_open <= 8)  # one that never shook hands is told nothing
        if before:  # ours, and as many of the server's as it has places
            until(lambda: len(os.listdir("/proc/self/fd")) <= before + 100 + 8 + 4)
    assert server.server.connections.num_open == 0


def test_a_handshake_has_to_come_in_time(tls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "HANDSHAKE_SECONDS", 0.1)
    with serving(tls=tls[0]) as server, server.wire() as silent, server.wire() as wrong:
        wrong.socket.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        silent.socket.settimeout(50)  # asyncio's own limit is 60 seconds
        assert is_over(silent)
        while wrong.socket.recv(100):  # an alert
            pass
        until(lambda: server.server.connections.num_open == 0)
        monkeypatch.setattr(acceptor, "HANDSHAKE_SECONDS", PATIENCE)
        assert health(server, tls[1]) == 200


def test_when_there_are_no_files_left_idle_connections_give_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server, server.wire() as idle:
        until(lambda: len(server.server.connections) == 1)
        (own,) = server.server.servers
        listening, failures = own._listening, iter([errno.EMFILE, errno.EMFILE])  # type: ignore[attr-defined]

        class Short:
            """The listening socket of a process that has no files left, twice."""

            def accept(self) -> Any:
                number = next(failures, None)
                if number is not None:
                    raise OSError(number, os.strerror(number))
                return listening.accept()

            def fileno(self) -> int:
                return int(listening.fileno())

        monkeypatch.setattr(own, "_listening", Short())
        assert server.get("/health").status == 200
        assert is_over(idle)
        monkeypatch.setattr(own, "_listening", listening)


# -- bodies that drip --------------------------------------------------------------------------------------------------


def test_dripping_bodies_shut_nobody_out_and_are_told() -> None:
    with serving(max_connections=8) as server, ExitStack() as stack:
        drips = [stack.enter_context(server.wire()) for _ in range(30)]
        for wire in drips:
            wire.send_head("/v1/completions", 1000)
            wire.socket.sendall(b"{")
        until(lambda: sum(one.is_reading for one in list(server.server.connections._open)) == 8)
        assert server.get("/health").status == 200 and server.complete(max_tokens=1).status == 200
        told = 0
        for wire in drips:
            wire.socket.settimeout(0.02 if told >= 22 else PATIENCE)
            try:
                got = wire.socket.recv(65536)
            except TimeoutError:
                continue
            assert got.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in got
            told += 1
        assert told >= 22, "all that are over the places, and none was reset"
        assert server.server.connections.num_open <= 8 + server.server.connections.reserve


def test_a_body_has_a_least_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "PATIENCE", 0.1)
    with serving() as server, server.wire() as slow, server.wire() as quick:
        slow.send_head("/v1/completions", 1000)
        slow.socket.sendall(b"{")
        body = b'{"prompt": "Once", "max_tokens": 1}' + b" " * 200_000
        kind = b"host: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        head = b"POST /v1/completions HTTP/1.1\r\n" + kind
        quick.socket.sendall(head + body[:-1])  # all at once, and then nothing for longer than the patience
        got = slow.read_until(b"}}")
        assert got.startswith(b"HTTP/1.1 408 ") and b"less than 1024 bytes a second" in got
        quick.socket.sendall(body[-1:])
        assert quick.read_until(b"\r\n").startswith(b"HTTP/1.1 200 ")


def test_what_lingers_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lingering, "QUIET_SECONDS", 0.05)
    with serving(body_seconds=0.0) as server, server.wire() as wire:
        wire.send_head("/v1/completions", 100)
        assert wire.read_until(b"}}").startswith(b"HTTP/1.1 408 ")
        until(lambda: server.server.connections.num_open == 0)


# -- the end -----------------------------------------------------------------------------------------------------------


def test_while_streams_end_newcomers_are_told() -> None:
    with serving() as server, server.wire() as stream, server.wire() as body, server.wire() as kept:
        kept.socket.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"connection: close" not in kept.read_until(b"}").lower()
        server.valve.shut()
        stream.ask("/v1/completions", {"prompt": "Once", "max_tokens": 20, "ignore_eos": True, "stream": True})
        until(lambda: server.service.num_streams == 1)
        body.send_head("/v1/completions", 100)
        until(lambda: sum(one.is_reading for one in list(server.server.connections._open)) == 1)
        server.end()
        until(lambda: server.service.ending)
        assert body.read_until(b"}}").startswith(b"HTTP/1.1 503 "), "its body has not come"
        late = server.complete(max_tokens=1)
        assert late.status == 503 and late.error["code"] == "shutting_down" and late.headers["retry-after"] == "1"
        assert server.get("/ready").status == 503 and server.get("/health").status == 200
        assert server.get("/v1/models").status == 503 and server.get("/metrics").status == 200
        kept.socket.sendall(b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n")
        got = kept.read_until(b"}}").lower()
        assert got.startswith(b"http/1.1 503 ") and b"connection: close" in got
        server.valve.open()
        assert b"error" not in stream.read_until(b"[DONE]")
        server.join()
        with pytest.raises(ConnectionRefusedError):
            server.wire()


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), True, "30"])
def test_a_grace_that_is_none(wrong: Any) -> None:
    from quire.serve.server import check_grace

    with pytest.raises(InputError, match="grace"):
        check_grace(wrong)
    check_grace(0)
