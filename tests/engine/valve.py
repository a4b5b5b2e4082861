"""Valve: in front of a model, so that a test says when a step goes on, or fails. The fixture of that name is one."""

from __future__ import annotations

from threading import Event
from typing import Any

from ..waits import PATIENCE


class Valve:
    """In front of a model: holds up its steps while it is shut, and makes one fail when asked to."""

    def __init__(self, module: Any) -> None:
        self.way, self.reached = Event(), Event()
        self.error: BaseException | None = None
        self.way.set()
        self.hook = module.register_forward_pre_hook(self._pass)

    def _pass(self, *_: object) -> None:
        if not self.way.is_set():
            self.reached.set()
        assert self.way.wait(PATIENCE)
        if self.error is not None:
            raise self.error

    def shut(self) -> None:
        """The next step stops in front of it."""
        self.reached.clear()
        self.way.clear()

    def open(self) -> None:
        """Steps go on."""
        self.way.set()
