"""1,250 connections that never begin TLS: they take no descriptors for long, and /health is answered meanwhile."""

from __future__ import annotations

import socket
import sys
import time

from .target import Target, Verdict, more_files, target

COUNT, FILES = 1250, 1280
SECONDS = 20.0  # in which all of them must be gone: a handshake has five


def attack(server: Target, verdict: Verdict) -> None:
    """Connect, say nothing, and look."""
    before = server.num_files
    verdict.check("it is healthy before", server.ask("GET", "/health")[0] == 200)
    count = min(COUNT, more_files(COUNT + 200) - 200)
    silent: list[socket.socket] = []
    statuses, most = [], 0
    try:
        for nth in range(count):
            silent.append(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            if nth % 100 == 99:
                statuses.append(server.ask("GET", "/health", seconds=10.0)[0])
                most = max(most, server.num_files)
        verdict.note(f"{count} silent connections are open; the server has {most} files, {before} before")
        statuses += [server.ask("GET", "/health", seconds=10.0)[0] for _ in range(5)]
        verdict.check("/health is answered among them", set(statuses) == {200}, statuses)
        verdict.check("requests are answered among them", server.complete() == 200)
        verdict.check(f"it never has all of its {FILES} files open", most < FILES - 64, most)
        verdict.check("the silent ones are sent away", all_end(silent, SECONDS))
        verdict.check("and their files are free", server.num_files <= before + 16, server.num_files)
    finally:
        for one in silent:
            one.close()
    verdict.check("it is healthy after", server.ask("GET", "/health")[0] == 200)


def all_end(connections: list[socket.socket], seconds: float) -> bool:
    """Whether the other side closes each of them in time."""
    end = time.monotonic() + seconds
    for one in connections:
        one.settimeout(max(0.01, end - time.monotonic()))
        try:
            while one.recv(4096):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            continue
    return True


def main() -> int:
    """Run it."""
    verdict = Verdict("silent connections before TLS")
    with target(files=FILES, tls=True) as server:
        attack(server, verdict)
    return verdict.code


if __name__ == "__main__":
    sys.exit(main())
