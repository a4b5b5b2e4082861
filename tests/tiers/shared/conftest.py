"""Fixtures of the shared stores' tests."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.tiers.shared.redis_server import BINARY, NO_REDIS, RedisServer, redis_there

needs_redis = pytest.mark.skipif(BINARY is None, reason=NO_REDIS)


def running() -> Iterator[RedisServer]:
    """A server, or the test is left out."""
    with redis_there() as server:
        if server is None:
            pytest.skip(NO_REDIS)
        yield server


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A server that the test may treat as it likes."""
    yield from running()


@pytest.fixture(scope="module")
def one_redis_server() -> Iterator[RedisServer]:
    """A server for the tests of a file that only use it."""
    yield from running()


@pytest.fixture
def empty_redis(one_redis_server: RedisServer) -> RedisServer:
    """That one, empty."""
    with socket.create_connection(("127.0.0.1", one_redis_server.port), 120) as line:
        line.sendall(b"FLUSHALL\r\n")
        assert line.recv(64) == b"+OK\r\n"
    return one_redis_server


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    """What ends with the test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=["folder", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store is."""
    if request.param == "folder":
        return str(tmp_path / "pages")
    server: RedisServer = request.getfixturevalue("empty_redis")
    return server.url
