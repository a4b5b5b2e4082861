"""Turns: acts that must not fall between the steps of the thread that makes plans, handed to it by others.

    another thread: call(act) ... waits          the owner, between two steps: run(carry) ── act() ── its plan, in order

A commit of a recurrent state leaves a copy that the next plan carries, on any thread's behalf: only its owner can
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
    """One act, and whether it was begun or given up."""

    __slots__ = ("act", "done", "taken", "wrong")

    def __init__(self, act: Act) -> None:
        self.act, self.done, self.taken = act, Event(), False
        self.wrong: Exception | None = None


class Turns:
    """Acts that wait for their turn; `on_wait` is called for each, on the thread that asks."""

    def __init__(self, on_wait: Callable[[], None] = lambda: None) -> None:
        self._on_wait = on_wait
        self._asked: deque[_Asked] = deque()
        self._lock = Lock()
        self.closed = False

    def call(self, act: Act, deadline: float) -> bool:
        """Let the owner do it and run its plan; False: it was not done before the deadline."""
        asked = _Asked(act)
        self._asked.append(asked)
        self._on_wait()
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
            except Exception as error:  # raised to the caller: it is not the owner's fault
                asked.wrong = error
            finally:
                asked.done.set()
