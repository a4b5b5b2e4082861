"""The protocols of what watches a cache: its sequences, or all its calls. Knows no recorder and no file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from quire.core.records.errors import InputError, listed, say
from quire.core.state.registry import PageWatcher
from quire.core.state.sequence import Sequence


class SequenceWatcher(Protocol):
    """What hears of sequences; called under the cache's lock: it calls no cache, waits for nothing, never raises."""

    def admitted(self, sequences: Iterable[Sequence]) -> None:
        """They have their pages; of one that was suspended, again."""

    def ending(self, sequence: Sequence, store: bool) -> None:
        """It is about to be released; with `store`, what it computed stays findable."""


@runtime_checkable
class CallWatcher(Protocol):
    """Hears of every call that changes a cache, from its making on (`quire.incidents`)."""

    def timed(self, clock: Callable[[], float]) -> Callable[[], float]:
        """The clock that the cache reads."""

    def attach(self, cache: Any) -> None:
        """The cache is made, and was not called yet."""


class Watchers(NamedTuple):
    """Who watches a cache."""

    of_sequences: tuple[SequenceWatcher, ...]
    of_calls: CallWatcher | None
    of_pages: PageWatcher | None


def sorted_watchers(watchers: Iterable[Any]) -> Watchers:
    """Those who hear of sequences, the one who hears of calls, and the one who hears of pages."""
    of_sequences: list[SequenceWatcher] = []
    of_calls: list[CallWatcher] = []
    of_pages: list[PageWatcher] = []
    for watcher in listed("watchers", watchers):
        if isinstance(watcher, CallWatcher):
            of_calls.append(watcher)
        elif isinstance(watcher, PageWatcher):
            of_pages.append(watcher)
            of_sequences.append(watcher)
        elif hasattr(watcher, "admitted") and hasattr(watcher, "ending"):
            of_sequences.append(watcher)
        else:
            fact = f"a {type(watcher).__name__} has no `admitted` and `ending`"
            raise InputError(say("the watchers of a cache", fact, "pass Incidents, Bills, or what hears of sequences"))
    for many, what in ((len(of_calls), "calls"), (len(of_pages), "pages")):
        if many > 1:
            raise InputError(say("the watchers of a cache", f"two of them hear of its {what}", "pass one"))
    return Watchers(tuple(of_sequences), of_calls[0] if of_calls else None, of_pages[0] if of_pages else None)


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
