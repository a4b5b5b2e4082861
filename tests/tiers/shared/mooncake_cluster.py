"""A real Mooncake Store for tests: a master on loopback, and one storage node, a process with some memory."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests import waits

QUIET = {"GLOG_minloglevel": "3", "MC_LOG_LEVEL": "ERROR", "MC_STORE_MEMCPY": "0"}
NODE = """
import sys, time
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
code = store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]), 16 << 20, "tcp", "", sys.argv[1])
print("up" if code == 0 else code, flush=True)
sys.stdin.read()
"""


def binary() -> str | None:
    """The master's program; it comes with the package."""
    beside = Path(sys.executable).with_name("mooncake_master")
    return str(beside) if beside.exists() else shutil.which("mooncake_master")


def missing() -> str:
    """Why there is no Mooncake here; nothing: there is."""
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    try:
        import mooncake.store  # noqa: F401
    except ImportError as wrong:
        return f"needs the extra mooncake and libibverbs1 (Debian): {wrong}"
    return "" if binary() else "mooncake_master is not installed"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class MooncakeCluster:
    """Start and kill as often as one likes, on the same port."""

    def __init__(self, node_bytes: int = 64 << 20) -> None:
        self.port, self._node_bytes = free_port(), node_bytes
        self._master: subprocess.Popen[bytes] | None = None
        self._node: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"mooncake://127.0.0.1:{self.port}?buffer=32MiB"

    def start(self) -> MooncakeCluster:
        self.start_master()
        self.start_node()
        return self

    def start_master(self) -> None:
        """Start it, and wait until it listens."""
        program = binary()
        assert program is not None
        where = ["-rpc_address", "127.0.0.1", "-rpc_port", str(self.port)]
        rest = ["-metrics_host", "127.0.0.1", "-metrics_port", str(free_port()), "-default_kv_lease_ttl", "5000"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._master = subprocess.Popen([program, *where, *rest], env=os.environ | QUIET, **quiet)  # type: ignore[call-overload]
        end = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < end and self._master.poll() is None, "the master does not start"
                waits.rest()

    def start_node(self) -> None:
        """Start it, and wait until its memory is in the store."""
        self._node = subprocess.Popen(
            [sys.executable, "-c", NODE, f"127.0.0.1:{self.port}", str(self._node_bytes)], env=os.environ | QUIET,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._node.stdout is not None and self._node.stdout.readline() == b"up\n"

    def kill_master(self) -> None:
        _kill(self._master)

    def kill_node(self) -> None:
        _kill(self._node)

    def kill(self) -> None:
        self.kill_node()
        self.kill_master()


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
