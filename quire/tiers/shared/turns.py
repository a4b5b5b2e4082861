"""Turns: acts that must not fall between the steps of whoever makes plans, handed to him by other threads.

    another thread: call(act) ... waits          the owner, between two steps: run(carry) ── act() ── its plan, in order

A commit of a recurrent state leaves a copy that the next plan carries, whoever asks for that plan: only its owner can
run plans in the order they were made. Knows no engine and no store.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Event, Lock

from quire.core.records.plan import Plan

LOOK = 0.05  # seconds between looks at whether the end has come
Act = Callable[[], Plan]


class _Asked:
    """One act, and whether somebody has begun it or given it up."""

    __slots__ = ("act", "done", "taken", "wrong")

    def __init__(self, act: Act) -> None:
        self.act, self.done, self.taken = act, Event(), False
        self.wrong: Exception | None = None


class Turns:
    """Acts that wait for their turn; `tell`, if there is one, hears of each, on the thread that asks."""

    def __init__(self, tell: Callable[[], None] = lambda: None) -> None:
        self._tell = tell
        self._asked: deque[_Asked] = deque()
        self._lock = Lock()
        self.closed = False

    def call(self, act: Act, deadline: float) -> bool:
        """Let the owner do it and carry its plan; False: he had no time before the deadline, and it was not done."""
        asked = _Asked(act)
        self._asked.append(asked)
        self._tell()
        while not asked.done.wait(min(LOOK, max(0.0, deadline - time.monotonic()))):
            with self._lock:
                if not asked.taken and (self.closed or time.monotonic() >= deadline):
                    asked.taken = True
                    return False
        if asked.wrong is not None:
            raise asked.wrong
        return True

    def run(self, carry: Callable[[Plan], None]) -> None:
        """Do what has been asked for so far; on the owner's thread, between two steps."""
        for _ in range(len(self._asked)):
            asked = self._asked.popleft()
            with self._lock:
                if asked.taken:
                    continue
                asked.taken = True
            try:
                carry(asked.act())
            except Exception as wrong:  # told to who asked: it is not the owner's fault
                asked.wrong = wrong
            finally:
                asked.done.set()
