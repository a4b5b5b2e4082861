"""Fixtures of the shared stores' tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiers.shared.redis_server import BINARY, RedisServer


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A running server; in a folder with a short name, since paths of sockets are short."""
    if BINARY is None:
        pytest.skip("redis-server is not installed (Debian: apt install redis-server)")
    with tempfile.TemporaryDirectory(prefix="qr") as folder:
        server = RedisServer(Path(folder))
        try:
            yield server.start()
        finally:
            server.kill()
