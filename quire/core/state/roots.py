"""Roots: scope -> root of its tree, for one stream. Knows neither pages nor sequences.

What was restored from an earlier process is known by the digest of its scope, until a request names it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from quire.core.records.identity import RestoredScope, Scope, ScopeDigest, digest_of, scope_of_digest

if TYPE_CHECKING:
    from quire.core.store.interface import Store

NO_ROOT = -1


class Roots:
    """Scope -> root node of its tree. A root goes when nothing is left below it."""

    __slots__ = (
        "_digests", "_gone", "_lost", "_made", "_names", "_nodes", "_restored", "_scopes", "_seed", "_store", "_told",
    )  # fmt: skip

    def __init__(self, store: Store, told: bool, seed: bytes) -> None:
        self._store = store
        self._seed = seed  # of event hashes
        self._told = told  # events are on: a scope is named until its last events were taken
        self._names: dict[int, Scope | RestoredScope] = {}  # by the number that events name them with
        self._gone: dict[int, Scope | RestoredScope] = {}  # the same, of roots that went since events were last taken
        self._made: dict[int, tuple[int, int]] = {}  # how far the log was when a root was made, of those made since
        self._lost = 0  # what the log had lost when it was last looked at
        self._nodes: dict[bytes, int] = {}
        self._scopes: dict[int, tuple[bytes, Scope]] = {}  # by node
        self._digests: dict[ScopeDigest, int] = {}  # -> node, of roots that were restored and not named yet
        self._restored: dict[int, ScopeDigest] = {}  # the same by node

    def find(self, key: bytes) -> int:
        """The root of a scope, NO_ROOT when nothing was ever stored in it."""
        node = self._nodes.get(key, NO_ROOT)
        return self._digests.get(digest_of(key), NO_ROOT) if node == NO_ROOT and self._digests else node

    def restore(self, digest: ScopeDigest) -> int:
        """A new root for the scope of a digest, which has none."""
        scope = scope_of_digest(digest)
        name = scope.event_hash(self._seed)
        node = self._digests[digest] = self._store.new_root(name)
        self._restored[node] = digest
        if self._told:
            self._names[name] = scope
        return node

    def digest(self, node: int) -> ScopeDigest:
        """The digest of a root's scope."""
        if node in self._scopes:
            return self._scopes[node][1].digest
        return self._restored[node]

    def named(self) -> dict[int, Scope | None]:
        """The scope of every root; None: it was restored, and not named yet."""
        return {**{node: scope for node, (_, scope) in self._scopes.items()}, **dict.fromkeys(self._restored)}

    def name(self, scope: Scope | None) -> int:
        """The number that events name a scope with, and that what is gone from it is remembered by."""
        return 0 if scope is None else scope.event_hash(self._seed)

    def others(self, scope: Scope, most: int) -> list[tuple[int, Scope]]:
        """Roots of the `most` scopes that came up last besides this one; streams of the cache's own stay apart."""
        named = [(node, other) for node, (_, other) in self._scopes.items() if other.space == scope.space]
        return [(node, other) for node, other in named[::-1] if other.key != scope.key][:most]

    def make(self, key: bytes, scope: Scope) -> int:
        """The root of a scope, new if need be."""
        node = self._nodes.get(key, NO_ROOT)
        if node == NO_ROOT and self._digests:
            node = self._digests.pop(digest_of(key), NO_ROOT)
            if node != NO_ROOT:
                del self._restored[node]
                self._nodes[key], self._scopes[node] = node, (key, scope)
                if self._told:
                    self._names[scope.event_hash(self._seed)] = scope  # whole states name it from now on
        if node == NO_ROOT:
            self.sweep()
            name = scope.event_hash(self._seed)
            node = self._nodes[key] = self._store.new_root(name)
            self._scopes[node] = (key, scope)
            if self._told:
                self._names[name] = scope
                self._made[name] = self._mark()
        return node

    def _mark(self) -> tuple[int, int]:
        """How far the log is; another number whenever it has recorded or given up something."""
        return self._store.num_lost, self._store.num_events

    def sweep(self) -> None:
        """Free dead roots. Their names stay while the log may speak of them: not when it was given up since."""
        mark = self._mark()
        if mark[0] != self._lost:
            self._gone.clear()
            self._lost = mark[0]
        for node in self._store.dead_roots():
            if self._told:
                name = scope_of_digest(self.digest(node)).event_hash(self._seed)
                scope = self._names.pop(name)
                if self._made.pop(name, None) != mark:  # else no event speaks of it
                    self._gone[name] = scope
            if node in self._scopes:
                del self._nodes[self._scopes.pop(node)[0]]
            else:
                del self._digests[self._restored.pop(node)]
            self._store.free_root(node)

    def covered_by(self, scope: Scope) -> list[int]:
        """Roots of the scopes that have all that one names, in the order they were made."""
        named = [node for node, (_, own) in self._scopes.items() if scope.covers(own)]
        return named + [node for digest, node in self._digests.items() if scope.covers_digest(digest)]

    def forget(self) -> None:
        """The store has cleared its tree, roots included, and its log of all that speaks of them."""
        self._gone.clear()
        self._made.clear()
        self._names.clear()
        self._nodes.clear()
        self._scopes.clear()
        self._digests.clear()
        self._restored.clear()

    def take_names(self, names: Iterable[int]) -> dict[int, Scope | RestoredScope]:
        """The scopes that events speak of, by those numbers; scopes that are gone are forgotten then."""
        gone, self._gone = self._gone, {}
        self._made.clear()
        self._lost = 0
        return {name: self._names[name] if name in self._names else gone[name] for name in names}
