"""Threads that take turns: one runs at a time, and dice say who is next wherever it could make a difference: at a lock,
and at a call of a file. So a race is found by its seed and comes back with it. Knows no disk tier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event, Semaphore, Thread, get_ident

import numpy as np

from quire.tiers import Bytes
from quire.tiers.disk.calls.files import File

from .stand_ins import Fuse, Inode, MemoryFile, MemoryFiles

PATIENCE = 120.0  # seconds: longer than that and the turns themselves are broken


class Stopped(BaseException):
    """Another thread has failed: this one ends where it is."""


class _Player:
    def __init__(self) -> None:
        self.go = Semaphore(0)
        self.waits_for: TurnLock | None = None


class Turns:
    """Runs acts on a thread each, one at a time. Other threads pass through `pause` without a turn."""

    def __init__(self, dice: np.random.Generator) -> None:
        self._dice = dice
        self._players: dict[int, _Player] = {}
        self._done = Event()
        self.failed: BaseException | None = None
        self.num_pauses = 0

    def run(self, acts: Sequence[Callable[[], None]]) -> None:
        """Until all of them have ended; the first failure is raised here."""
        started = Semaphore(0)
        threads = [Thread(target=self._play, args=(act, started), daemon=True) for act in acts]
        for thread in threads:
            thread.start()
        for _ in threads:
            started.acquire()
        self._next().go.release()
        assert self._done.wait(PATIENCE), "nobody's turn ends"
        for thread in threads:
            thread.join()
        self._done.clear()
        if self.failed is not None:
            raise self.failed

    def pause(self) -> None:
        """Somebody else may go on, or this thread again."""
        me = self._players.get(get_ident())
        if me is not None:
            self.num_pauses += 1
            self._switch(me)

    def wait_for(self, lock: TurnLock) -> None:
        """Somebody else goes on, until the lock is free."""
        me = self._players[get_ident()]
        me.waits_for = lock
        self._switch(me)
        me.waits_for = None

    def _switch(self, me: _Player) -> None:
        if self.failed is not None:
            raise Stopped
        other = self._next()
        if other is not me:
            other.go.release()
            me.go.acquire()
        if self.failed is not None:
            raise Stopped

    def _next(self) -> _Player:
        ready = [player for player in self._players.values() if player.waits_for is None or player.waits_for.free]
        assert ready, "every thread waits for a lock that another one has"
        return ready[int(self._dice.integers(len(ready)))]

    def _play(self, act: Callable[[], None], started: Semaphore) -> None:
        me = self._players[get_ident()] = _Player()
        started.release()
        me.go.acquire()
        try:
            if self.failed is None:
                act()
        except Stopped:
            pass
        except BaseException as wrong:
            self.failed = wrong
        finally:
            del self._players[get_ident()]
            if self._players:
                (self._next() if self.failed is None else next(iter(self._players.values()))).go.release()
            else:
                self._done.set()


class TurnLock:
    """A lock between threads that take turns; for all others it is one that is never taken when they come."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.free = True

    def __enter__(self) -> None:
        self._turns.pause()
        while not self.free:
            self._turns.wait_for(self)
        self.free = False

    def __exit__(self, *_: object) -> None:
        self.free = True
        if self._turns.failed is None:
            self._turns.pause()


class TurnFile(MemoryFile):
    """Between any two calls others may have done something."""

    def __init__(self, inode: Inode, fuse: Fuse, turns: Turns) -> None:
        super().__init__(inode, fuse)
        self._turns = turns

    def read(self, offset: int, into: Bytes) -> int:
        self._turns.pause()
        return super().read(offset, into)

    def write(self, offset: int, parts: Sequence[Bytes]) -> int:
        self._turns.pause()
        return super().write(offset, parts)

    def sync(self) -> None:
        """What is written while it lasts may be on the disk or not."""
        self._turns.pause()
        super().sync()
        self._turns.pause()


class TurnFiles(MemoryFiles):
    def __init__(self, turns: Turns, names: dict[Path, Inode] | None = None) -> None:
        super().__init__(names)
        self.turns = turns

    def open(self, path: Path, create: bool = False) -> File:
        file = super().open(path, create)
        assert isinstance(file, MemoryFile)
        return TurnFile(file.inode, self.fuse, self.turns)

    def replace(self, source: Path, target: Path) -> None:
        self.turns.pause()
        super().replace(source, target)
        self.turns.pause()
