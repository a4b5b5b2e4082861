"""A rank in a process of its own, told what to do over its standard input and output, as an engine's worker is over its
wire. Knows no disk and no store.
"""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]


def send(out: IO[bytes], what: object) -> None:
    raw = pickle.dumps(what)
    out.write(struct.pack("<I", len(raw)) + raw)
    out.flush()


def receive(stream: IO[bytes]) -> Any:
    head = stream.read(4)
    if len(head) < 4:
        raise ConnectionError("the other end has gone")
    return pickle.loads(stream.read(struct.unpack("<I", head)[0]))


class RankProcess:
    """The end that asks."""

    def __init__(self, module: str, *words: str) -> None:
        command = [sys.executable, "-m", module, *words]
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

    def end(self) -> None:
        """The process ends, however it is."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()


def answer(act_of: Callable[[str], Callable[..., object]]) -> int:
    """The end that is asked, until the other one has gone."""
    out, sys.stdout = sys.stdout.buffer, sys.stderr
    while True:
        try:
            verb, given = receive(sys.stdin.buffer)
        except ConnectionError:
            return 0
        try:
            send(out, (act_of(verb)(*given), None))
        except Exception as error:
            send(out, (None, OSError(repr(error))))
