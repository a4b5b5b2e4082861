"""1,100 bodies of one key that come byte by byte: /health and other tenants are answered, the refused are told so."""

from __future__ import annotations

import selectors
import socket
import sys
import time
from collections import Counter

from .target import ALICE, BOB, OPERATOR, Target, Verdict, more_files, target

COUNT = 1100
SECONDS = 15.0
HEAD = (
    f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ALICE}\r\n"
    "content-type: application/json\r\ncontent-length: 1000000\r\n\r\n{"
).encode()


class Drip:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setblocking(False)
        self.heard, self.is_over, self.was_reset = b"", False, False
        self.send(HEAD)

    def send(self, data: bytes) -> None:
        """Some of the body, if anybody still takes it."""
        try:
            self.socket.send(data)
        except BlockingIOError:
            return
        except OSError:  # it was told before
            return

    def hear(self) -> None:
        """What has come."""
        try:
            data = self.socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            self.is_over, self.was_reset = True, not self.heard
            return
        self.heard += data
        self.is_over = not data

    @property
    def status(self) -> str:
        """What it was told, in a word."""
        if self.heard.startswith(b"HTTP/1.1 ") and b"\r\n\r\n" in self.heard:
            later = " with Retry-After" if b"retry-after:" in self.heard.lower() else ""
            return self.heard[9:12].decode() + later
        return "reset" if self.was_reset else "closed" if self.is_over else "open"


def attack(server: Target, verdict: Verdict) -> None:
    """Drip, and look."""
    count = min(COUNT, more_files(COUNT + 200) - 200)
    drips: list[Drip] = []
    health: list[int] = []
    others: list[int] = []
    with selectors.DefaultSelector() as selector:
        for _ in range(count):
            drips.append(Drip(server.port))
            selector.register(drips[-1].socket, selectors.EVENT_READ, drips[-1])
        verdict.note(f"{count} bodies drip")
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for key, _ in selector.select(0.1):
                key.data.hear()
                if key.data.is_over:
                    selector.unregister(key.fileobj)
            for drip in drips:
                if not drip.is_over:
                    drip.send(b" ")
            health.append(server.ask("GET", "/health", seconds=10.0)[0])
            others.append(server.complete(BOB))
            time.sleep(0.5)
    told = Counter(drip.status for drip in drips)
    verdict.note(f"they were told {dict(told)}; the server has {server.num_files} files")
    verdict.check(f"/health was answered {len(health)} times", set(health) == {200}, Counter(health))
    verdict.check(f"another tenant was answered {len(others)} times", set(others) == {200}, Counter(others))
    verdict.check("each was told 408, or 503 with Retry-After", set(told) <= {"408", "503 with Retry-After"}, told)
    for drip in drips:
        drip.socket.close()
    verdict.check("all places are free again", in_progress(server) <= 1, in_progress(server))
    verdict.check("the same key is answered again", server.complete(ALICE) == 200)


def in_progress(server: Target) -> float:
    """Requests that are not answered yet; the one that asks is one."""
    return sum(
        value for name, value in server.numbers(OPERATOR).items() if name.startswith("quire:http_requests_in_progress")
    )


def main() -> int:
    """Run it."""
    verdict = Verdict("dripping bodies")
    with target(keys=[f"alice {ALICE}", f"bob {BOB}"]) as server:
        attack(server, verdict)
    return verdict.code


if __name__ == "__main__":
    sys.exit(main())
