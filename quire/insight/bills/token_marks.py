"""TokenMarks: of one live sequence, whose its prompt tokens were, so that the line can be written when it ends.

A setback lowers where a sequence starts: what it reused behind that is computed after all. Knows no pages.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.core.state.sequence import Sequence
from quire.insight.bills.bill import BillLine
from quire.insight.bills.token_totals import TokenTotals

KINDS = np.array([1, 0], np.int8)  # by whether it was used before
UNKNOWN, OWN, SHARED = -1, 0, 1  # of a block: no page stands for it, or one that was used before, or one that was not


class TokenMarks:
    """`kinds`: by block of the hit; `rest`: of the tokens behind the last whole one."""

    __slots__ = ("_kinds", "_rest", "_size", "account", "computed", "end", "forked", "received", "sources", "start")

    def __init__(self, account: int, start: int, end: int, size: int) -> None:
        self.account, self.start, self.end = account, start, end
        self._size, self._rest = size, UNKNOWN
        self._kinds: NDArray[np.int8] = np.full(start // size, UNKNOWN, np.int8)
        self.computed = start  # what was there when it was seated, or forked
        self.forked = False  # it goes on from another one
        self.received = False  # its prompt comes by a transfer
        self.sources: list[tuple[int, int]] = []  # group and page that the tokens behind the last block came from

    def note_blocks(self, blocks: NDArray[np.int32], mine: NDArray[np.bool_]) -> None:
        """Pages of these blocks were found; those that are `mine` were used before."""
        blocks, kinds = blocks[blocks < len(self._kinds)], KINDS[mine.view(np.int8)[blocks < len(self._kinds)]]
        self._kinds[blocks] = np.maximum(self._kinds[blocks], kinds)

    def note_rest(self, mine: bool) -> None:
        """A page was found that stands for all tokens before it."""
        self._rest = max(self._rest, OWN if mine else SHARED)

    def reused(self, start: int) -> tuple[int, int]:
        """Tokens before `start` that were its own, and others'. A block without page of its own is as the next that has
        one: what stands there stands for it, too."""
        start = min(start, self.start)
        if not start:
            return 0, 0
        kinds, size = np.append(self._kinds, np.int8(self._rest)), self._size
        if kinds.min() == UNKNOWN:
            known = np.flatnonzero(kinds != UNKNOWN)
            if len(known):
                after = np.searchsorted(known, np.arange(len(kinds)))
                kinds = np.where(after < len(known), kinds[known[np.minimum(after, len(known) - 1)]], OWN)
        whole, rest = divmod(start, size)
        shared = int(np.count_nonzero(kinds[:whole] == SHARED)) * size + rest * (rest and int(kinds[whole] == SHARED))
        return start - shared, shared

    def write(self, line: BillLine, sequence: Sequence) -> None:
        """What the sequence has used by now."""
        computed, start, end = sequence.computed, sequence.start, self.end
        prompt = max(0, min(computed, end) - min(start, self.start))
        if self.received:
            line.received += prompt
        else:
            line.computed += prompt
        own, shared = self.reused(start)
        line.reused_own += own
        line.reused_shared += shared
        line.answers += max(0, computed - max(end, self.computed))

    def count(self, totals: TokenTotals, sequence: Sequence) -> None:
        """The same, whosever it is."""
        if self.forked:
            totals.add_fork(sequence, self.computed)
        else:
            totals.add_prompt(sequence, self.received)
