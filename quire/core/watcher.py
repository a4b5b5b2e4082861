"""The protocols of what watches a cache: it hears of sequences that begin and end. Knows no recorder and no file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from quire.core.state.sequence import Sequence


class SequenceWatcher(Protocol):
    """Whoever hears of sequences; called under the cache's lock: it calls no cache, waits for nothing, never raises."""

    def admitted(self, sequences: Iterable[Sequence]) -> None:
        """They have their pages; of one that was suspended, again."""

    def ending(self, sequence: Sequence, store: bool) -> None:
        """It is about to be released for good; with `store`, what it computed stays findable."""


class Recorder(Protocol):
    """What `Cache(record=...)` opens: a trace that is being written (`quire.trace.record.recorder`)."""

    path: Path
    num_lost: int  # requests that are not in the trace
    error: str | None  # why nothing is recorded any more

    @property
    def num_recorded(self) -> int:
        """Requests in the trace so far."""

    @property
    def is_open(self) -> bool:
        """Whether it still records."""

    def close(self) -> None:
        """Write what waits and the end mark: the file gets its name. Closing again does nothing."""
