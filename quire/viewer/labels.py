"""Labels: short names for requests and scopes that say nothing about them. Forgets what is gone, so it stays small."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from quire.core.records.identity import Scope

PLAIN = Scope()


class RequestNumbers:
    """A number for every request that is alive, in the order they were first seen."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._ids: dict[int, Hashable] = {}
        self._next = 1

    def keep(self, ids: Iterable[Hashable]) -> list[int]:
        """The numbers of these; all others are forgotten."""
        kept: dict[Hashable, int] = {}
        for id in ids:
            if id not in kept:
                number = self._numbers.get(id)
                if number is None:
                    number, self._next = self._next, self._next + 1
                kept[id] = number
        self._numbers, self._ids = kept, {number: id for id, number in kept.items()}
        return list(kept.values())

    def number(self, id: Hashable) -> int | None:
        """Of one that is kept."""
        return self._numbers.get(id)

    def id(self, number: int) -> Hashable:
        """The request of a number; None: it is gone."""
        return self._ids.get(number)


class ScopeLabels:
    """'plain' for the scope of requests that name none, 'scope 1' and so on for others: never a salt."""

    def __init__(self) -> None:
        self._labels: dict[bytes, str] = {}
        self._next = 1

    def keep(self, scopes: dict[int, Scope | None]) -> dict[int, str]:
        """The labels of these roots; all others are forgotten."""
        kept: dict[bytes, str] = {}
        found: dict[int, str] = {}
        for root, scope in scopes.items():
            key = b"restored %d" % root if scope is None else scope.key
            label = self._labels.get(key)
            if label is None:
                label = "plain" if key == PLAIN.key else f"scope {self._next}"
                self._next += label != "plain"
            kept[key] = found[root] = label
        self._labels = kept
        return found

    def label(self, scope: Scope) -> str:
        """Of one scope; 'a scope' when it is not there any more."""
        return self._labels.get(scope.key, "a scope")
