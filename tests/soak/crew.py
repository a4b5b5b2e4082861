"""Crew: the workers, what they found, and their end. A worker that dies or hangs is a failure of its piece."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from .pieces import Result, command
from .worker import work

PATIENCE = 600.0  # seconds after which a piece counts as hung
LEAVE = 20.0  # seconds a worker has to end its last piece


class Post(NamedTuple):
    """A worker and the line to it."""

    process: BaseProcess
    line: Connection


@dataclass
class Totals:
    """What all workers have done."""

    counts: Counter[str] = field(default_factory=Counter)
    reached: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[Result] = field(default_factory=list)

    def take(self, result: Result) -> None:
        """One more piece."""
        self.counts[result.kind] += result.count
        self.reached.setdefault(result.kind, Counter()).update(result.reached)
        if result.failure is not None:
            self.failures.append(result)


class Crew:
    """So many workers; each does all kinds of pieces by their shares."""

    def __init__(self, size: int, shares: Mapping[str, float], folder: Path, tell: Callable[[Result], None]) -> None:
        self.shares, self.folder, self.tell = dict(shares), folder, tell
        self.totals = Totals()
        self.doing: dict[Connection, tuple[str, int, float]] = {}  # kind, seed, since when
        self.posts: dict[Connection, Post] = {}
        for _ in range(size):
            self._hire()

    def _hire(self) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, self.shares, self.folder), daemon=True)
        process.start()
        theirs.close()
        self.posts[ours] = Post(process, ours)

    def listen(self, seconds: float) -> None:
        """Take what comes in this time; whoever died or hangs is replaced."""
        until = monotonic() + seconds
        while (left := until - monotonic()) > 0:
            for line in wait(list(self.posts), left):
                assert isinstance(line, Connection)
                self._hear(line)
        now = monotonic()
        for line, (kind, seed, since) in list(self.doing.items()):
            if now - since > PATIENCE:
                self._lose(line, Result(kind, failure=f"hung for {PATIENCE:.0f} s", again=command(kind, seed)))

    def _hear(self, line: Connection) -> None:
        try:
            said = line.recv()
        except (EOFError, OSError):
            self._bury(line)
            return
        if isinstance(said, Result):
            self.doing.pop(line, None)
            self._take(said)
        else:
            self.doing[line] = (*said, monotonic())

    def _bury(self, line: Connection) -> None:
        process = self.posts[line].process
        process.join(LEAVE)
        failure = f"its process died with {process.exitcode}"
        if line in self.doing:
            kind, seed, _ = self.doing[line]
            self._lose(line, Result(kind, failure=failure, again=command(kind, seed)))
        else:  # between two pieces or before the first: another one would fare no better
            self._dismiss(line)
            self._take(Result("worker", failure=failure, again="python -m tests.soak --jobs 1"))

    def _take(self, result: Result) -> None:
        self.totals.take(result)
        if result.failure is not None:
            self.tell(result)

    def _lose(self, line: Connection, result: Result) -> None:
        self._dismiss(line)
        self._take(result)
        self._hire()

    def _dismiss(self, line: Connection) -> None:
        process = self.posts.pop(line).process
        self.doing.pop(line, None)
        if process.is_alive():
            process.kill()
        process.join()
        line.close()

    def end(self) -> None:
        """Every worker ends after its piece, and what it still has to say counts; who does not end is killed."""
        for line in self.posts:
            try:
                line.send(None)
            except OSError:
                continue  # it is gone; so it will be heard
        until = monotonic() + LEAVE
        lines = list(self.posts)
        while lines and (left := until - monotonic()) > 0:
            for spoken in wait(lines, left):
                assert isinstance(spoken, Connection)
                try:
                    said = spoken.recv()
                except (EOFError, OSError):
                    lines.remove(spoken)
                    continue
                if isinstance(said, Result):
                    self._take(said)
        for post in list(self.posts.values()):
            self._dismiss(post.line)
