"""What happened: the moves to run and the events to publish, as arrays, drained once per step.

Owns the layout of both and the batching of removals. Knows nodes only by hash, parent and tokens.

    record    kind, group, count, hash at, token at, size, before, after, parent, root, under a root
    detail    beside each hash of a page: priority | tier << 8 | PARTIAL | WORDS
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from quire.core.store.twin.chain import IntArray, WordArray, decode
from quire.core.store.twin.hashing import MASK, signed
from quire.core.store.twin.page import Page
from quire.core.store.twin.tree import Node, below

EventArrays = tuple[npt.NDArray[np.int64], WordArray, IntArray, IntArray, int]
Place = tuple[int, int]  # tier, slot
NO_PAGE = (-1, -1)
RECORD_WIDTH = 11
PARTIAL, WORDS = 1 << 16, 1 << 17  # the block is not full; some of its tokens carry words


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

    def add_copy(self, group: int, source: Place, target: Place, tokens: int, pages: Sequence[Page]) -> None:
        """The first `tokens` tokens of `pages[1]` go into the new page `pages[0]`; from the device nothing can fail."""
        self._add(Move.COPY, group, (*source, *target, tokens), pages if source[0] else pages[:1])

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

    __slots__ = ("_block_size", "_details", "_hashes", "_limit", "_records", "_removed", "_tokens", "lost", "on")

    def __init__(self, num_groups: int, on: bool, limit: int, block_size: int) -> None:
        self.on = on
        self._limit = limit
        self._block_size = block_size
        self.lost = 0
        self._removed: list[list[tuple[int, int]]] = [[] for _ in range(num_groups)]
        self._records: list[tuple[int, ...]] = []
        self._hashes: list[int] = []
        self._details: list[int] = []
        self._tokens: list[int] = []

    def __len__(self) -> int:
        """Records and hashes that wait, and 1 for a loss: more than 0 when there is something to take."""
        return len(self._records) + len(self._hashes) + sum(map(len, self._removed)) + (self.lost > 0)

    def created(self, group: int, slots: Sequence[int]) -> None:
        if self.on:
            self._record(Event.CREATED, group, [(number, 0) for number in slots])
            self._bound()

    def stored(self, group: int, run: Sequence[Node]) -> None:
        """A run of blocks, each the parent of the next, got pages of `group`."""
        if self.on:
            self._close(group)
            self._blocks(Event.STORED, group, run, (0, 0))
            self._bound()

    def moved(self, group: int, node: Node, source: int, target: int) -> None:
        if self.on:
            self._blocks(Event.MOVED, group, [node], (source, target))
            self._bound()

    def retained(self, group: int, node: Node, before: int, after: int) -> None:
        if self.on and before != after:
            self._record(Event.RETAINED, group, [(node.hash, self._facts(group, node))], 0, (before, after))
            self._bound()

    def removed(self, group: int, node: Node, priority: int, tier: int) -> None:
        """A page has left its node; it was last told to be in `tier`."""
        if self.on:
            self._removed[group].append((node.hash, priority | tier << 8 | self._flags(node)))
            self._bound()

    def cleared(self) -> None:
        """Everything is gone: says so per group, instead of all that waits, but for CREATED, which come first."""
        if self.on:
            made = [record for record in self._records if record[0] == Event.CREATED]
            hashes = self._hashes[: sum(record[2] for record in made)]
            self._discard()
            self._records += made
            self._hashes += hashes
            self._details += [0] * len(hashes)
            for group in range(len(self._removed)):
                self._record(Event.CLEARED, group, [])

    def whole(self, pools: Sequence[Sequence[int]], roots: Sequence[Node]) -> None:
        """Instead of what waits: cleared and created for every group, then all pages, chains in one tier as one."""
        if not self.on:
            return
        self._discard()
        self.cleared()
        for group, slots in enumerate(pools):
            self._record(Event.CREATED, group, [(number, 0) for number in slots])
        for group in range(len(pools)):
            for root in roots:
                for run, tier in chains(root, group):
                    self._blocks(Event.STORED, group, run, (0, tier))

    def take(self) -> EventArrays:
        for group in range(len(self._removed)):
            self._close(group)
        drained = (
            np.array(self._records, np.int64).reshape(-1, RECORD_WIDTH),
            np.array(self._hashes, np.uint64),
            np.array(self._details, np.int32),
            np.array(self._tokens, np.int32),
            self.lost,
        )
        self._discard()
        self.lost = 0
        return drained

    def _blocks(self, kind: Event, group: int, run: Sequence[Node], ends: tuple[int, int]) -> None:
        """A record of blocks that are each other's parents, with tokens, parent and root."""
        token_at, parent = len(self._tokens), run[0].parent
        assert parent is not None
        for node in run:
            self._tokens += decode(node.identity)[0].tolist()
        above = (signed(parent.hash), signed(parent.root.hash), int(parent.parent is None))
        where = (len(self._hashes), token_at)
        self._records.append((kind, group, len(run), *where, run[0].size, *ends, *above))
        self._hashes += [node.hash for node in run]
        self._details += [self._facts(group, node) for node in run]

    def _record(
        self, kind: Event, group: int, marks: Sequence[tuple[int, int]], size: int = 0, ends: tuple[int, int] = (0, 0)
    ) -> None:
        self._records.append((kind, group, len(marks), len(self._hashes), -1, size, *ends, 0, 0, 0))
        self._hashes += [name & MASK for name, _ in marks]
        self._details += [facts for _, facts in marks]

    def _facts(self, group: int, node: Node) -> int:
        page = node.pages[group]
        assert page is not None
        return page.priority | page.hottest << 8 | self._flags(node)

    def _flags(self, node: Node) -> int:
        words = bool(decode(node.identity)[1].any())
        return PARTIAL * (node.size < self._block_size) | WORDS * words

    def _close(self, group: int) -> None:
        waiting = self._removed[group]
        if waiting:
            self._record(Event.REMOVED, group, waiting)
            waiting.clear()

    def _bound(self) -> None:
        held = len(self._hashes) + sum(map(len, self._removed))
        if held >= self._limit:
            self.lost += held
            self._discard()

    def _discard(self) -> None:
        for waiting in self._removed:
            waiting.clear()
        for part in (self._records, self._hashes, self._details, self._tokens):
            part.clear()


def chains(root: Node, group: int) -> Iterator[tuple[list[Node], int]]:
    """All blocks below a root that have a page of `group`, parents first; runs of one tier and size, with the tier."""
    run: list[Node] = []
    tier = -1
    for node in below(root):
        page = node.pages[group]
        if page is None:
            continue
        if run and node.parent is run[-1] and page.hottest == tier and node.size == run[-1].size:
            run.append(node)
            continue
        if run:
            yield run, tier
        run, tier = [node], page.hottest
    if run:
        yield run, tier
