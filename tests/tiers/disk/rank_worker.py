"""A rank in a process of its own: `python -m tests.tiers.disk.rank_worker FOLDER RANK`. It is told what to do over its
standard input and output, as an engine's worker is over its wire; `RemoteRank` is the other end.
"""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import IO, Any

from quire.tiers import ArenaTier, Bytes, PageLayout
from quire.tiers.disk import DiskIO, LocalRank, RankDone
from quire.tiers.disk.slots import Failed, Sums

from .rig import BLOCK, DISK, FINGERPRINT, HOST

ROOT = Path(__file__).resolve().parents[3]
PART = 64  # bytes of one rank's part of a page


class OneRank:
    """A rank with its host memory."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.host = ArenaTier("host", (HOST,), (PART,))
        tiers = [ArenaTier("device", (0,), (PART,)), self.host]
        layouts, io = [PageLayout(PART)], DiskIO(2, 16, 60)
        self.disk = LocalRank(folder, FINGERPRINT, rank, tiers, layouts, (DISK,), block_size=BLOCK, io=io)

    def put(self, slot: int, page: Bytes) -> None:
        self.host.view(0)[slot] = page

    def get(self, slot: int) -> Bytes:
        page: Bytes = self.host.view(0)[slot].copy()
        return page


def send(out: IO[bytes], what: object) -> None:
    raw = pickle.dumps(what)
    out.write(struct.pack("<I", len(raw)) + raw)
    out.flush()


def receive(stream: IO[bytes]) -> Any:
    head = stream.read(4)
    if len(head) < 4:
        raise ConnectionError("the other end has gone")
    return pickle.loads(stream.read(struct.unpack("<I", head)[0]))


class RemoteRank:
    """A DiskRank over a pair of pipes, and the memory behind it."""

    def __init__(self, folder: Path, rank: int) -> None:
        command = [sys.executable, "-m", "tests.tiers.disk.rank_worker", str(folder), str(rank)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lock = Lock()
        self._closed = False
        assert self._ask("page_bytes") == (PART,)

    @property
    def disk(self) -> RemoteRank:
        return self

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

    def run(self, moves: Any) -> RankDone:
        done: RankDone = self._ask("run", moves)
        return done

    def look(self, group: int, slots: Sequence[int]) -> tuple[Sums, Failed]:
        found: tuple[Sums, Failed] = self._ask("look", group, list(slots))
        return found

    def erase(self, group: int, slots: Sequence[int]) -> None:
        self._ask("erase", group, list(slots))

    def sync(self) -> None:
        self._ask("sync")

    def put(self, slot: int, page: Bytes) -> None:
        self._ask("put", slot, page)

    def get(self, slot: int) -> Bytes:
        page: Bytes = self._ask("get", slot)
        return page

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                self._ask("close")
            finally:
                self.end()

    def end(self) -> None:
        """The process ends, however it is."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()


def main() -> int:
    ours = OneRank(Path(sys.argv[1]), int(sys.argv[2]))
    out, sys.stdout = sys.stdout.buffer, sys.stderr
    while True:
        try:
            verb, given = receive(sys.stdin.buffer)
        except ConnectionError:
            return 0
        act = getattr(ours if verb in ("put", "get") else ours.disk, verb)
        try:
            send(out, (act(*given), None))
        except Exception as error:
            send(out, (None, OSError(repr(error))))


if __name__ == "__main__":
    sys.exit(main())
