"""What happened: the moves to run and the events to publish, as arrays, drained once per step.

Owns the layout of both and the batching of removals. Knows neither pages nor nodes: the caller that adds a record gives
the facts.

    record    kind, group, count, hash at, token at, size, before, after, parent, root, under a root
    detail    beside each hash of a page: priority | tier << 8 | PARTIAL | WORDS
"""

from collections.abc import Sequence

import numpy as np

from quire.core.records.events import Fact
from quire.core.records.plan import Kind
from quire.core.store.interface import EventArrays, Int32Array
from quire.core.store.reference.keys.hash import MASK
from quire.core.store.reference.tree.node import Page

Place = tuple[int, int]  # tier, slot
Mark = tuple[int, int]  # hash, detail
NO_PAGE = (-1, -1)
RECORD_WIDTH = 11


class Moves:
    """Page moves in the order they must be seen."""

    __slots__ = ("_rows", "block_size")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._rows: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, kind: Kind, group: int, source: Place, target: Place, pages: Sequence[Page]) -> None:
        """A whole-page move of `pages[0]`; an exchange names the page that goes down as `pages[1]`."""
        self._add(kind, group, (*source, *target, self.block_size), pages)

    def add_copy(self, group: int, source: Place, target: Place, tokens: int, pages: Sequence[Page]) -> None:
        """The first `tokens` tokens of `pages[1]` go into the new page `pages[0]`; from the device nothing can fail."""
        self._add(Kind.COPY, group, (*source, *target, tokens), pages if source[0] else pages[:1])

    def _add(self, kind: Kind, group: int, ends: tuple[int, ...], pages: Sequence[Page]) -> None:
        names = [(page.number, page.stamp) for page in pages]
        first, second = (*names, NO_PAGE)[:2]
        self._rows.append((kind, group, *ends, *first, *second))

    def is_pending(self, group: int, page: Page) -> bool:
        """Whether a move that waits for the next plan brings a page its bytes."""
        return any(row[1] == group and row[7] == page.number for row in self._rows)

    def take_moves(self) -> Int32Array:
        rows = np.array(self._rows, np.int32).reshape(-1, 11)
        self._rows.clear()
        return rows


class Log:
    """Events as records; per group one open batch of removals that waits for the next store. Off, it takes nothing."""

    __slots__ = ("_details", "_hashes", "_limit", "_records", "_removed", "_tokens", "lost", "on")

    def __init__(self, num_groups: int, on: bool, limit: int) -> None:
        self.on = on
        self._limit = limit
        self.lost = 0
        self._removed: list[list[Mark]] = [[] for _ in range(num_groups)]
        self._records: list[tuple[int, ...]] = []
        self._hashes: list[int] = []
        self._details: list[int] = []
        self._tokens: list[int] = []

    def __len__(self) -> int:
        """Records and hashes that wait, and 1 for a loss: more than 0 when there is something to take."""
        return len(self._records) + len(self._hashes) + sum(map(len, self._removed)) + (self.lost > 0)

    def log_created(self, group: int, slots: Sequence[int]) -> None:
        """A pool with so many slots per tier."""
        if self.on:
            self.log_record(Fact.CREATED, group, [(number, 0) for number in slots])
            self.log_bound()

    def log_removed(self, group: int, mark: Mark) -> None:
        """A page has left its node."""
        self._removed[group].append(mark)
        self.log_bound()

    def log_cleared(self) -> None:
        """Everything is gone: a record per group replaces all that waits, except CREATED, which come first."""
        if self.on:
            made = [record for record in self._records if record[0] == Fact.CREATED]
            hashes = self._hashes[: sum(record[2] for record in made)]
            self.log_discard()
            self._records += made
            self._hashes += hashes
            self._details += [0] * len(hashes)
            for group in range(len(self._removed)):
                self.log_record(Fact.CLEARED, group, [])

    def log_record(self, kind: Fact, group: int, marks: Sequence[Mark], ends: tuple[int, int] = (0, 0)) -> None:
        """A record that names pages by their hashes alone."""
        self._records.append((kind, group, len(marks), len(self._hashes), -1, 0, *ends, 0, 0, 0))
        self._add_marks(marks)

    def log_run(self, head: Sequence[int], marks: Sequence[Mark], tokens: Sequence[int], above: Sequence[int]) -> None:
        """A record of blocks below each other, with their tokens. `head`: kind, group, tokens per block, before, after;
        `above`: hash of the parent, of the root, and whether the parent is the root."""
        kind, group, size, before, after = head
        where = (len(self._hashes), len(self._tokens))
        self._records.append((kind, group, len(marks), *where, size, before, after, *above))
        self._tokens += tokens
        self._add_marks(marks)

    def _add_marks(self, marks: Sequence[Mark]) -> None:
        self._hashes += [name & MASK for name, _ in marks]
        self._details += [facts for _, facts in marks]

    def log_flush(self, group: int) -> None:
        """Make the open batch of removals of a group a record."""
        waiting = self._removed[group]
        if waiting:
            self.log_record(Fact.REMOVED, group, waiting)
            waiting.clear()

    def log_bound(self, more: int = 0) -> bool:
        """Too much was left in the log, or would be with so much more: drop everything, count it, go on; whether it
        did."""
        held = len(self._hashes) + sum(map(len, self._removed)) + more
        if held < self._limit:
            return False
        self.lost += held
        self.log_discard()
        return True

    def log_discard(self) -> None:
        for waiting in self._removed:
            waiting.clear()
        for part in (self._records, self._hashes, self._details, self._tokens):
            part.clear()

    def take_events(self) -> EventArrays:
        for group in range(len(self._removed)):
            self.log_flush(group)
        drained = (
            np.array(self._records, np.int64).reshape(-1, RECORD_WIDTH),
            np.array(self._hashes, np.uint64),
            np.array(self._details, np.int32),
            np.array(self._tokens, np.int32),
            self.lost,
        )
        self.log_discard()
        self.lost = 0
        return drained
