"""Connector: a cache outside the engine that may bring KV and may want to keep it. Knows no scheduler.

claim and admit -> matched(request, start) -> allocated(sequence, span) -> compute what is left
... the answer is complete -> finished(sequence, free)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from quire.core.records.request import Request
from quire.core.records.span import Span
from quire.core.state.sequence import Sequence


class StepParticipant(Protocol):
    """A part that is called in every step of an engine: a Peer, an EnginePublisher."""

    @property
    def num_open(self) -> int:
        """What it is waiting for."""
        ...

    def step(self) -> None:
        """Do what is due; must not block."""
        ...

    def close(self) -> bool:
        """The engine is closing; its pages go when this returns True."""
        ...


class Connector(Protocol):
    """Called in the engine's thread, never for warm-up requests."""

    def matched(self, request: Request, start: int) -> int:
        """Tokens from `start` on whose KV it can bring; `start` is what the cache itself has. 0: none."""
        ...

    def allocated(self, sequence: Sequence, span: Span) -> int:
        """Slots for `span` are there: bring its KV into them now. Returns how many of its leading tokens have come."""
        ...

    def finished(self, sequence: Sequence, free: Callable[[], None]) -> bool:
        """The sequence computes no more. False: leave its pages until `free` is called, on any thread."""
        ...
