"""A real redis-server for tests: on loopback, on a free port and a unix socket, in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.waits import rest

BINARY = shutil.which("redis-server")
NO_REDIS = "redis-server is not installed (Debian: apt install redis-server)"
FAULTS = ("kill", "stop", "empty", "full", "drop")
SETTINGS = ("--save", "", "--appendonly", "no", "--protected-mode", "no", "--unixsocketperm", "700")


class RedisServer:
    """One server; `start` and `kill` as often as one likes, always on the same port."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder, self.settings = folder, settings
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.socket = folder / "r"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> RedisServer:
        """Start it, and wait until it answers."""
        assert BINARY is not None
        place = ("--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self.socket))
        self.process = subprocess.Popen(
            [BINARY, *place, "--dir", str(self.folder), *SETTINGS, *self.settings], stdout=subprocess.DEVNULL
        )
        end = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as line:
                line.sendall(b"PING\r\n")
                if line.recv(64)[:1] in (b"+", b"-"):
                    return self
            assert time.monotonic() < end and self.process.poll() is None, "redis-server does not start"
            rest()

    def kill(self) -> None:
        """As a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def client(self) -> Any:
        """Of redis-py; to be closed."""
        import redis

        return redis.Redis(port=self.port)

    def suffer(self, fault: str) -> None:
        """One of FAULTS, or none."""
        if fault == "kill":
            self.kill()
            self.start()  # with nothing in it
            return
        if fault == "stop":
            self._signal(signal.SIGSTOP)
            return
        with self.client() as there:
            if fault == "empty":
                there.flushall()
            elif fault == "full":
                there.config_set("maxmemory", 1 << 20)
            elif fault == "drop":
                there.client_kill_filter(_type="normal", skipme=True)

    def mend(self) -> None:
        """It answers, and has room."""
        self._signal(signal.SIGCONT)
        with self.client() as there:
            there.config_set("maxmemory", 0)

    def _signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)


@contextlib.contextmanager
def redis_there(wanted: bool = True) -> Iterator[RedisServer | None]:
    """A server of its own, in a folder with a short name, since paths of sockets are short; None where it is not
    wanted, or cannot be had."""
    if not wanted or BINARY is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="qr") as folder:
        server = RedisServer(Path(folder))
        try:
            yield server.start()
        finally:
            server.kill()
