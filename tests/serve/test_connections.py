"""How many connections a server has: idle ones make room, what is being answered goes on, nobody is shut out."""

from __future__ import annotations

import resource
import socket
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from quire import InputError
from quire.serve import ServeSettings
from quire.serve.connections import open_connections
from quire.serve.connections.open_connections import OpenConnections

from ..engine.threads import until
from .rig import NAME, Serving, Wire, serving


def is_over(wire: Wire) -> bool:
    """Whether the other side has hung up."""
    try:
        return wire.socket.recv(1) == b""
    except ConnectionResetError:
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
        until(lambda: sum(not one.is_idle for one in list(server.server.connections._where)) == 3)
        refused = server.get("/health")
        assert refused.status == 503 and refused.headers["retry-after"] == "1"
        assert "3 connections are open, and none of them is idle" in refused.error["message"]
        server.valve.open()
        for stream in streams:
            assert stream.read_until(b"[DONE]")
        until(lambda: server.get("/health").status == 200)  # they wait for their next requests
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
            kept.socket.settimeout(30)


@dataclass(eq=False)
class Line:
    """A connection without a socket."""

    is_idle: bool = True
    over: bool = False

    def hang_up(self) -> None:
        self.over = True


def test_who_has_most_connections_loses_his_own() -> None:
    limit: OpenConnections[Line] = OpenConnections(6)
    honest, busy = Line(), Line(is_idle=False)
    many = [Line() for _ in range(40)]
    assert limit.add(honest, "10.0.0.1") and limit.add(busy, "2001:db8::1")
    for nth, line in enumerate(many):
        assert limit.add(line, f"2001:db8::{nth + 2:x}")  # one network of 64 bits is one host
    assert len(limit) == 6 and not honest.over and not busy.over
    assert [line.over for line in many] == [True] * 36 + [False] * 4
    for line in many:
        line.is_idle = False
    assert limit.add(Line(is_idle=False), "10.0.0.2") and honest.over  # nobody else is idle
    newcomer = Line()
    assert not limit.add(newcomer, "10.0.0.3") and len(limit) == 6
    limit.remove(newcomer)
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
