"""Endings: a watcher of a cache that notes what each sequence was released with. Knows no test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Listed
from contextlib import contextmanager
from typing import NamedTuple

from quire import Cache
from quire.core.state.sequence import Sequence


class Ending(NamedTuple):
    """One release."""

    session: str | None
    back: str | None
    store: bool
    salt: object
    resume_points: Listed[int]


class Endings(list[Ending]):
    """Of one cache, in order."""

    def admitted(self, sequences: Iterable[Sequence]) -> None:
        pass

    def ending(self, sequence: Sequence, store: bool) -> None:
        asked = sequence.request
        self.append(Ending(sequence.session, sequence.back, store, asked.scope.salt, asked.resume_points))

    @property
    def backs(self) -> list[str | None]:
        return [one.back for one in self]


@contextmanager
def endings_of(cache: Cache) -> Iterator[Endings]:
    made = Endings()
    cache.watch(made)
    try:
        yield made
    finally:
        cache.watch(made, on=False)
