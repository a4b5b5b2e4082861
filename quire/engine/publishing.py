"""Publishing: a publisher that takes part in an engine's steps, so that routers hear after each what has changed.

Knows no sockets.
"""

from __future__ import annotations

import logging
from typing import Protocol

from quire.core.records.errors import StateError
from quire.engine.runner.engine import Engine

_log = logging.getLogger("quire.engine")


class PublisherLike(Protocol):
    """What is used of quire.events.Publisher."""

    def tell(self) -> int | None:
        """Queue what was recorded; never waits."""
        ...

    def close(self) -> None:
        """Send the rest and end."""
        ...


class EnginePublisher:
    """`EnginePublisher(engine, Publisher(engine.cache))`; the engine closes it. Needs EngineConfig(events=True)."""

    num_open = 0

    def __init__(self, engine: Engine, publisher: PublisherLike) -> None:
        self._publisher = publisher
        self.error: StateError | None = None  # why nothing is published any more
        engine.participants.append(self)
        self.step()  # what an earlier process has left on disk is published before the first request

    def __repr__(self) -> str:
        return f"EnginePublisher({'publishes' if self.error is None else 'has failed'})"

    def step(self) -> None:
        """Once per step; a publisher that has failed stops no engine; the failure is in the log and in `error`."""
        if self.error is None:
            try:
                self._publisher.tell()
            except StateError as error:
                self.error = error
                _log.error("routers hear nothing of this engine any more: %s", error)

    def close(self) -> bool:
        """Publish the end, then stop publishing."""
        self.step()
        self._publisher.close()
        return True
