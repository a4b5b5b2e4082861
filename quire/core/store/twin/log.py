"""What happened: the moves to run and the events to publish, as arrays, drained once per step.

Owns the layout of both and the batching of removals. Knows nodes only by hash, parent and tokens.
"""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from quire.core.store.twin.chain import IntArray, WordArray, decode
from quire.core.store.twin.hashing import MASK, signed
from quire.core.store.twin.page import Page
from quire.core.store.twin.tree import Node

EventArrays = tuple[npt.NDArray[np.int64], WordArray, IntArray, IntArray, int]
Place = tuple[int, int]  # tier, slot
NO_PAGE = (-1, -1)


class Move(IntEnum):
    ONBOARD = 0
    OFFLOAD = 1
    COPY = 2
    EXCHANGE = 3


class Event(IntEnum):
    CREATED = 0
    STORED = 1
    MOVED = 2
    RETAINED = 3
    REMOVED = 4
    CLEARED = 5


class Moves:
    """Page moves in the order they must be seen."""

    __slots__ = ("_rows", "block_size")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._rows: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, kind: Move, group: int, source: Place, target: Place, pages: Sequence[Page]) -> None:
        """A whole-page move of `pages[0]`; an exchange names the page that goes down as `pages[1]`."""
        self._add(kind, group, (*source, *target, self.block_size), pages)

    def add_copy(self, group: int, source: Place, target: Place, tokens: int, page: Page) -> None:
        """The first `tokens` tokens of some page go into the new page `page`."""
        self._add(Move.COPY, group, (*source, *target, tokens), [page])

    def _add(self, kind: Move, group: int, ends: tuple[int, ...], pages: Sequence[Page]) -> None:
        names = [(page.number, page.stamp) for page in pages]
        first, second = (*names, NO_PAGE)[:2]
        self._rows.append((kind, group, *ends, *first, *second))

    def take(self) -> IntArray:
        rows = np.array(self._rows, np.int32).reshape(-1, 11)
        self._rows.clear()
        return rows


class Events:
    """Facts about committed pages; per group one open batch of removals that waits for the next store."""

    __slots__ = ("_details", "_hashes", "_limit", "_lost", "_records", "_removed", "_tokens", "on")

    def __init__(self, num_groups: int, on: bool, limit: int) -> None:
        self.on = on
        self._limit = limit
        self._lost = 0
        self._removed: list[list[int]] = [[] for _ in range(num_groups)]
        self._records: list[tuple[int, ...]] = []
        self._hashes: list[int] = []
        self._details: list[int] = []
        self._tokens: list[int] = []

    def created(self, group: int, slots: Sequence[int]) -> None:
        if self.on:
            self._record(Event.CREATED, group, slots, (0, 0))
            self._bound()

    def stored(self, group: int, run: Sequence[Node]) -> None:
        """A run of blocks, each the parent of the next, got pages of `group`."""
        if not self.on:
            return
        self._close(group)
        token_at = len(self._tokens)
        parent = run[0].parent
        assert parent is not None
        priorities = []
        for node in run:
            page = node.pages[group]
            assert page is not None
            priorities.append(page.priority)
            self._tokens += decode(node.identity)[0].tolist()
        where = (len(self._hashes), token_at)
        above = (int(parent.parent is None), signed(parent.hash), signed(parent.root.hash))
        self._records.append((Event.STORED, group, len(run), *where, run[0].size, *above))
        self._hashes += [node.hash for node in run]
        self._details += priorities
        self._bound()

    def moved(self, group: int, node: Node, source: int, target: int) -> None:
        if self.on:
            self._record(Event.MOVED, group, [node.hash], (source, target))
            self._bound()

    def retained(self, group: int, node: Node, before: int, after: int) -> None:
        if self.on and before != after:
            self._record(Event.RETAINED, group, [node.hash], (before, after))
            self._bound()

    def removed(self, group: int, node: Node) -> None:
        if self.on:
            self._removed[group].append(node.hash)
            self._bound()

    def cleared(self) -> None:
        """Everything is gone: says so per group, instead of the removals still waiting."""
        if self.on:
            for group, waiting in enumerate(self._removed):
                waiting.clear()
                self._record(Event.CLEARED, group, [], (0, 0))

    def take(self) -> EventArrays:
        for group in range(len(self._removed)):
            self._close(group)
        drained = (
            np.array(self._records, np.int64).reshape(-1, 9),
            np.array(self._hashes, np.uint64),
            np.array(self._details, np.int32),
            np.array(self._tokens, np.int32),
            self._lost,
        )
        self._discard()
        self._lost = 0
        return drained

    def _record(self, kind: Event, group: int, hashes: Sequence[int], ends: tuple[int, int]) -> None:
        self._records.append((kind, group, len(hashes), len(self._hashes), -1, *ends, 0, 0))
        self._hashes += [value & MASK for value in hashes]
        self._details += [0] * len(hashes)

    def _close(self, group: int) -> None:
        waiting = self._removed[group]
        if waiting:
            self._record(Event.REMOVED, group, waiting, (0, 0))
            waiting.clear()

    def _bound(self) -> None:
        held = len(self._hashes) + sum(map(len, self._removed))
        if held >= self._limit:
            self._lost += held
            self._discard()

    def _discard(self) -> None:
        for waiting in self._removed:
            waiting.clear()
        for part in (self._records, self._hashes, self._details, self._tokens):
            part.clear()
