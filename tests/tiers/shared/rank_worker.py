"""A rank of a shared cache in a process of its own: `python -m tests.tiers.shared.rank_worker STORE PART`. It is told
what to do over its standard input and output, as an engine's worker is over its wire; `RemoteRank` is the other end.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

from quire.tiers import ArenaTier, Bytes
from quire.tiers.shared import LocalSharedRank, SharedConfig
from quire.tiers.shared.ranks import Answers, Place
from tests.tiers.disk.rank_worker import ROOT, receive, send

HOST = 64  # slots


class OneRank(LocalSharedRank):
    """A rank with its host memory."""

    def __init__(self, place: str, part: int) -> None:
        self.host = ArenaTier("host", [HOST], [part])
        super().__init__([ArenaTier("device", [0], [part]), self.host], SharedConfig(place))

    def peek(self, slot: int) -> Bytes:
        page: Bytes = self.host.view(0)[slot].copy()
        return page


class RemoteRank:
    """A SharedRank over a pair of pipes, and the memory behind it."""

    def __init__(self, place: str, part: int) -> None:
        command = [sys.executable, "-m", "tests.tiers.shared.rank_worker", place, str(part)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lock = Lock()

    def _ask(self, verb: str, *given: object) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        with self._lock:
            send(self.process.stdin, (verb, given))
            told, error = receive(self.process.stdout)
        if error is not None:
            raise error
        return told

    def page_bytes(self) -> tuple[int, ...]:
        return tuple(self._ask("page_bytes"))

    def get(self, number: int, names: Sequence[bytes], groups: Sequence[int], seconds: float) -> Answers:
        return list(self._ask("get", number, list(names), list(groups), seconds))

    def place(self, number: int, nth: Sequence[int], places: Sequence[Place]) -> None:
        self._ask("place", number, list(nth), list(places))

    def copy(self, number: int, places: Sequence[Place]) -> list[bool]:
        return list(self._ask("copy", number, list(places)))

    def put(self, number: int, nth: Sequence[int], names: Sequence[bytes], seconds: float) -> Answers:
        return list(self._ask("put", number, list(nth), list(names), seconds))

    def drop(self, number: int) -> None:
        self._ask("drop", number)

    def peek(self, slot: int) -> Bytes:
        page: Bytes = self._ask("peek", slot)
        return page

    def close(self) -> None:
        """The process ends, however it is."""
        with suppress(Exception):
            self._ask("close")
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()


def main() -> int:
    ours = OneRank(sys.argv[1], int(sys.argv[2]))
    out, sys.stdout = sys.stdout.buffer, sys.stderr
    while True:
        try:
            verb, given = receive(sys.stdin.buffer)
        except ConnectionError:
            return 0
        try:
            send(out, (getattr(ours, verb)(*given), None))
        except Exception as error:
            send(out, (None, OSError(repr(error))))


if __name__ == "__main__":
    sys.exit(main())
