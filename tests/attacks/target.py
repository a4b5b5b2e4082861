"""Target: a `quire serve` of this machine to be attacked, and a list of what held. Knows no attack."""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
START, END = 180.0, 60.0  # seconds for a server to come, and to go
ALICE, BOB, OPERATOR = (f"sk-{name}-with-enough-characters" for name in ("alice", "bob", "operator"))


class Verdict:
    """What was tried, and whether it held."""

    def __init__(self, name: str) -> None:
        self.name, self.broken = name, 0
        self._began = time.monotonic()
        print(f"== {name}", flush=True)

    def note(self, text: str) -> None:
        """What is being tried."""
        print(f"   {time.monotonic() - self._began:6.1f} s  {text}", flush=True)

    def check(self, what: str, held: bool, seen: object = "") -> None:
        """One thing that must hold."""
        self.broken += not held
        shown = "" if held or seen == "" else f": {seen}"
        self.note(f"{'held  ' if held else 'BROKEN'}  {what}{shown}")

    @property
    def code(self) -> int:
        """Of the process."""
        print(f"== {self.name}: {'it held' if not self.broken else f'{self.broken} did NOT hold'}", flush=True)
        return int(self.broken > 0)


class Target:
    """One server. `log` is what it has written so far."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path, client: ssl.SSLContext | None) -> None:
        self.process, self.client, self._log = process, client, log
        self.port = int(url.rpartition(":")[2])

    @property
    def log(self) -> str:
        return self._log.read_text(errors="backslashreplace")

    @property
    def num_files(self) -> int:
        """Files that it has open; 0 where nobody can tell."""
        place = Path(f"/proc/{self.process.pid}/fd")
        return len(list(place.iterdir())) if place.exists() else 0

    def ask(
        self, method: str, path: str, body: bytes | None = None, key: str | None = None, seconds: float = 30.0
    ) -> tuple[int, bytes]:
        """Status and body; 0: there was no answer."""
        headers = {"content-type": "application/json"} | ({} if key is None else {"authorization": f"Bearer {key}"})
        link: http.client.HTTPConnection
        if self.client is None:
            link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        else:
            link = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=seconds, context=self.client)
        try:
            link.request(method, path, body, headers)
            got = link.getresponse()
            return got.status, got.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            link.close()

    def complete(self, key: str | None = None, **fields: Any) -> int:
        """The status of a short answer."""
        body = json.dumps({"prompt": "Once upon a time there was", "max_tokens": 2, **fields}).encode()
        return self.ask("POST", "/v1/completions", body, key)[0]

    def numbers(self, key: str | None = None) -> dict[str, float]:
        """Lines of /metrics."""
        status, data = self.ask("GET", "/metrics", key=key)
        lines = data.decode().splitlines() if status == 200 else []
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}


def more_files(wanted: int) -> int:
    """How many files this process may have open, of so many that it would like."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


@contextmanager
def target(*words: str, files: int | None = None, tls: bool = False, keys: Sequence[str] = ()) -> Iterator[Target]:
    """A server with these options; `files` is how many it may have open."""
    from tests.serve.rig import tiny_model

    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        model = tiny_model()
        model.module.save_pretrained(place / "tiny")
        model.tokenizer.save_pretrained(place / "tiny")
        options = ["--port", "0", "--model", str(place / "tiny"), "--device-memory", "8MiB", "--grace", "5", *words]
        client = None
        if tls:
            from tests.net.certificates import Authority

            authority = Authority(place)
            own = authority.issue("server")
            options += ["--tls-cert", str(own.cert), "--tls-key", str(own.key)]
            client = ssl.create_default_context(cafile=str(authority.ca))
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        environment |= {"QUIRE_API_KEYS": ",".join(keys), "QUIRE_VIEWER_KEY": OPERATOR if keys else ""}
        limit = None if files is None else _limit(files)
        with (place / "log").open("wb") as log:
            command = [sys.executable, "-m", "quire.cli", "serve", *options]
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": log}
            process = subprocess.Popen(command, cwd=ROOT, env=environment, preexec_fn=limit, **pipes)
        try:
            assert process.stdout is not None
            url = process.stdout.readline().decode().strip()
            if not url.startswith("http"):
                raise SystemExit(f"the server did not start:\n{(place / 'log').read_text()}")
            yield Target(process, url, place / "log", client)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _limit(files: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
