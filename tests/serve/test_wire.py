"""HTTP as clients write it, badly or oddly: each gets an answer in the form of all errors, and none is reset."""

from __future__ import annotations

import json
import logging
import socket
import sys
from typing import Any

import pytest

from quire.serve.connections import http_connection as connection
from quire.serve.connections import lingering

from ..waits import until
from .rig import Serving, Wire, serving

HOST = b"host: x\r\n"
WRITE = "/v1/completions"


def told(wire: Wire) -> tuple[int, bytes, dict[str, Any]]:
    """Status, head and error of an answer, up to the end of the connection."""
    got = b""
    while part := wire.socket.recv(65536):
        got += part
    head, _, body = got.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.lower(), json.loads(body)


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (b"GARBAGE\r\n\r\n", "readable HTTP"),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"bad header\r\n\r\n", "readable HTTP"),
        (b"GET /health HTTP/9.9\r\n" + HOST + b"\r\n", "readable HTTP"),
        (b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"content-length: -1\r\n\r\n", "readable HTTP"),
        (b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\nzz\r\n", "readable HTTP"),
        (b"CONNECT x:1 HTTP/1.1\r\n" + HOST + b"\r\n", "readable HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "readable HTTP"),
        (b"GET /health HTTP/1.1\r\n" + HOST + HOST + b"\r\n", "more than one host header"),
        (b"GET /health HTTP/1.1\r\n\r\n", "no Host header"),
        (
            b"GET /metrics HTTP/1.1\r\n" + HOST + b"authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
            "more than one authorization header",
        ),
    ],
)
def test_what_cannot_be_read_is_told_in_the_form_of_all_errors(
    server: Serving, data: bytes, fact: str, caplog: pytest.LogCaptureFixture
) -> None:
    with server.wire() as wire:
        wire.socket.sendall(data)
        wire.socket.shutdown(socket.SHUT_WR)
        status, head, body = told(wire)
        error = body["error"]
        assert status == 400 and b"application/json" in head and set(error) == {"message", "type", "param", "code"}
        assert fact in error["message"] and error["type"] == "invalid_request_error"
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING], "strangers fill no log"


def test_http_1_0_needs_no_host(server: Serving) -> None:
    with server.wire() as wire:
        wire.socket.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        status, _, body = told(wire)
        assert status == 200 and body == {"status": "ok"}


def test_an_upgrade_is_answered_as_http_without_a_warning(server: Serving, caplog: pytest.LogCaptureFixture) -> None:
    for wanted in (b"websocket", b"h2c"):
        with server.wire() as wire:
            wire.socket.sendall(
                b"GET /health HTTP/1.1\r\n" + HOST + b"connection: Upgrade\r\nupgrade: " + wanted + b"\r\n\r\n"
            )
            wire.socket.sendall(b"whatever that other language says")
            status, head, body = told(wire)
            assert status == 200 and body == {"status": "ok"} and b"connection: close" in head
    with server.wire() as wire:
        data = json.dumps({"prompt": "Once", "max_tokens": 1}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"connection: Upgrade\r\nupgrade: h2c\r\n"
        wire.socket.sendall(head + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data))
        wire.socket.sendall(data[:5])
        wire.socket.sendall(data[5:] + b"GET /health HTTP/1.1\r\n")
        status, _, body = told(wire)
        assert status == 200 and body["choices"]
    with server.wire() as wire:
        head += b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        wire.socket.sendall(head + b"5\r\n" + data[:5] + b"\r\n%x\r\n" % len(data[5:]) + data[5:] + b"\r\n0\r\n\r\n")
        status, _, body = told(wire)
        assert status == 200 and body["choices"]
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_garbage_behind_a_request_does_not_spoil_its_answer(server: Serving) -> None:
    with server.wire() as wire:
        data = json.dumps({"prompt": "Once", "max_tokens": 5, "ignore_eos": True, "stream": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"content-type: application/json\r\n"
        wire.socket.sendall(head + b"content-length: %d\r\n\r\n" % len(data) + data + b"GARBAGE\r\n\r\n")
        got = wire.read_until(b"[DONE]")
        assert got.startswith(b"HTTP/1.1 200 ") and got.count(b"HTTP/1.1 ") == 1


# -- clients that send no more -----------------------------------------------------------------------------------------


@pytest.fixture(params=["uvloop", "asyncio"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server over each kind of event loop."""
    if request.param == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    else:
        pytest.importorskip("uvloop")
    with serving() as made:
        yield made


def test_a_half_closed_client_gets_its_answer(either: Serving) -> None:
    for stream in (False, True):
        with either.wire() as wire:
            either.valve.shut()
            wire.ask(WRITE, {"prompt": "Once", "max_tokens": 3, "ignore_eos": True, "stream": stream})
            wire.socket.shutdown(socket.SHUT_WR)
            until(lambda: either.service.num_streams == 1)
            either.valve.open()
            got = b""
            while part := wire.socket.recv(65536):
                got += part
            assert b"HTTP/1.1 200 " in got
            assert (b"[DONE]" if stream else b"completion_tokens") in got
            if not stream:  # a stream's head may leave before the server sees that nothing more comes
                assert b"connection: close" in got.lower()
        either.until_idle()


def test_a_client_that_has_closed_is_found_out(either: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks the same as one that only sends no more, until it is sent something."""
    monkeypatch.setattr(connection, "LOOKS", (0.0, 0.05, 0.2))
    either.valve.shut()
    with either.wire() as wire:
        wire.ask(WRITE, {"prompt": "Once", "max_tokens": 300, "ignore_eos": True})
        until(lambda: either.service.num_streams == 1)
    until(lambda: either.service.num_streams == 0)
    either.valve.open()
    either.until_idle()
    assert either.metric("quire:http_requests_total", code="499") == 1


def test_half_a_body_is_no_request(server: Serving) -> None:
    before = server.metric("quire:http_requests_total", code="499")
    with server.wire() as wire:
        wire.send_head(WRITE, 100)
        wire.socket.sendall(b"{")
        wire.socket.shutdown(socket.SHUT_WR)
        assert wire.socket.recv(1) == b""
    until(lambda: server.metric("quire:http_requests_total", code="499") == before + 1)


# -- answers before the body has come ----------------------------------------------------------------------------------


def test_who_is_answered_before_his_body_has_come_reads_it(server: Serving) -> None:
    """It would be lost in a reset: he sends for as long as he likes, and then it is there."""
    with server.wire() as wire:
        head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"content-type: text/plain\r\n"
        wire.socket.sendall(head + b"content-length: 3000000\r\n\r\n")
        for _ in range(30):
            wire.socket.sendall(b"a" * 100_000)
        status, head, _ = told(wire)
        assert status == 415 and b"connection: close" in head


def test_an_answered_connection_is_kept_when_the_body_had_come(server: Serving) -> None:
    with server.wire() as wire:
        for _ in range(2):
            wire.ask(WRITE, {"prompt": "Once", "max_tokens": 0, "no such": 1})
            got = wire.read_until(b"}}").lower()
            assert got.startswith(b"http/1.1 400 ") and b"connection: close" not in got


def test_who_never_stops_sending_is_cut_in_the_end(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lingering, "QUIET_SECONDS", 0.1)
    with server.wire() as wire:
        head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"content-type: text/plain\r\n"
        wire.socket.sendall(head + b"content-length: 3000000\r\n\r\n")
        assert told(wire)[0] == 415
        until(lambda: not server.server.server_state.connections)
