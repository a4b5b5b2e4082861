"""Traffic: who used which blocks, and who had used them before: all that is needed to judge a cache of any size.

A request uses a contiguous run of blocks from the first, and once more at its end, with its answer. A later request
that shares text takes the head of that run: a *piece*.

    use 5:  a b c d e f g          use 9:  a b c d x y         pieces of use 9: a b c d, from use 5
    had last before 9: a..g                                    had last by 5 from then on: e f g

A piece knows how many blocks were used since it was (`start`, its place in the order of last use): a cache of C blocks
that evicts what was used longest ago has exactly the blocks at places below C. Sums of runs give the places; no list
of blocks is walked. A use in the log takes some 50 bytes, a piece 21, a block 30: everything is bounded.

Up to `most_blocks` every block is tracked. Beyond, one in `one_in`, chosen by key, stands for as many; the hottest are
tracked in any case and stand for themselves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from quire.insight.block_table import BlockTable, Bools, Int64, Keys
from quire.insight.columns import Columns
from quire.insight.hot_blocks import MOST_HOT, HotBlocks
from quire.insight.running_sums import RunningSums

MOST_BLOCKS = 1 << 20
MOST_USES = 1 << 18
MOST_PIECES = 1 << 18
SAMPLED, HOT, PASSED = 0, 1, 2  # kinds of pieces: PASSED ones were used by a request that could not hit them
_LEAST_GAIN = 8  # forgetting what is old must free one block in so many; else the sample is halved
_ROOM = 1 << 10


class AskedPrompt(NamedTuple):
    """What is known of a request besides its blocks."""

    tokens: int
    hittable: int  # leading blocks that a cache could give it
    hits: tuple[int, ...]  # tokens of whole blocks that it was given, by tier


class Traffic:
    """Uses in order of time. `asked` of `use` is None for the end of a request: it hits nothing, and uses its blocks.

    Numbers of uses count from the oldest one that is remembered; a piece may be from an older one, below 0.
    """

    def __init__(
        self, num_tiers: int, window: float, *, one_in: int = 1, most_blocks: int = MOST_BLOCKS,
        most_uses: int = MOST_USES, most_pieces: int = MOST_PIECES,
    ) -> None:  # fmt: skip
        self.window, self.one_in = window, one_in
        self._most = (most_blocks, most_uses, most_pieces)
        self.table, self._hot = BlockTable(), HotBlocks()
        self._hot_keys: Keys = np.empty(0, np.uint64)  # ascending
        kinds = {"time": "f8", "tokens": "i4", "hittable": "i4", "plain": "i4", "stood": "i4"}
        # `plain` blocks are not hot, and those of them that are tracked stood for `stood`
        self.uses = Columns({**kinds, **{f"hits{tier}": "i4" for tier in range(num_tiers)}})
        self.pieces = Columns({"use": "i4", "before": "i4", "size": "i4", "start": "i8", "kind": "i1"})
        self._sums = RunningSums(np.zeros(0, np.int64), _ROOM)

    @property
    def num_bytes(self) -> int:
        """What it takes, temporary arrays aside."""
        return self.table.num_bytes + self.uses.num_bytes + self.pieces.num_bytes + 8 * len(self._sums)

    @property
    def num_distinct(self) -> int:
        """Different blocks that are remembered, as far as the sample shows."""
        return self._sums.total

    @property
    def _limit(self) -> np.uint64:
        return np.uint64(((1 << 64) - 1) // self.one_in)

    def use(self, keys: Keys, time: float, asked: AskedPrompt | None) -> None:
        """One more, of whole blocks from the first on."""
        self._make_room(len(keys), time)
        table, number = self.table, len(self.uses)
        if self.one_in == 1:
            places, hot = np.arange(len(keys)), np.zeros(len(keys), np.bool_)
        else:
            hot = _among(keys, self._hot_keys)
            places = (hot | (keys <= self._limit)).nonzero()[0]
            hot = hot[places]
        tracked = keys[places]
        num_known = table.num_leading(tracked)
        slots = table.find(tracked[:num_known])
        hittable = 0 if asked is None else int(np.searchsorted(places, asked.hittable))
        self._take(slots, hot[:num_known], hittable, number)
        table.last[slots] = number
        slots = np.concatenate([slots, table.insert(tracked[num_known:], number)])
        num_hot = int(np.count_nonzero(hot))
        stood = (len(hot) - num_hot) * self.one_in
        self._sums.add(number, num_hot + stood)
        if asked is None:
            self.uses.add(time, *[0] * (self.uses.width - 1))
        else:
            self.uses.add(time, asked.tokens, asked.hittable, len(keys) - num_hot, stood, *asked.hits)
        table.count_use(slots)
        if self.one_in > 1:
            self._note_hot(np.delete(keys, places), slots[~hot], number)

    def _take(self, slots: Int64, hot: Bools, hittable: int, number: int) -> None:
        """The blocks that were there leave the runs of those who had them last, as pieces."""
        if not len(slots):
            return
        last = self.table.last[slots]
        head = np.ones(len(last), np.bool_)
        np.not_equal(last[1:], last[:-1], out=head[1:])
        if hittable < len(head):
            head[hittable] = True
        heads = head.nonzero()[0]
        warm = np.add.reduceat(hot, heads, dtype=np.int64).tolist()
        owners, ends = last[heads].tolist(), [*heads[1:].tolist(), len(last)]
        first = 0
        taken: list[tuple[int, int]] = []
        for owner, exact, end in zip(owners, warm, ends, strict=True):
            start = self._sums.after(owner)
            sampled = (end - first - exact) * self.one_in
            for size, kind in ((exact, HOT), (sampled, SAMPLED)):
                if size:
                    self.pieces.add(number, owner, size, start, kind if first < hittable else PASSED)
                start += size
            taken.append((owner, exact + sampled))
            first = end
        for owner, size in taken:
            self._sums.add(owner, -size)

    # -- hot blocks --------------------------------------------------------------------------------------------------

    def _note_hot(self, outside: Keys, sampled: Int64, number: int) -> None:
        """A block that has become hot stands for itself from its next use on, in the sample or not."""
        table = self.table
        warm = sampled[table.uses[sampled] > self._hot.threshold]
        new = outside[self._hot.count(outside)]
        if not len(warm) and not len(new):
            return
        table.hot[warm] = True
        self._sums.add(number, len(new) + len(warm) * (1 - self.one_in))
        keys = np.concatenate([table.keys[warm], new])
        table.reserve(len(new))
        slots = table.insert(new, number)
        table.hot[slots], table.uses[slots] = True, self._hot.threshold
        self._hot_keys = np.sort(np.concatenate([self._hot_keys, keys]))
        if len(self._hot_keys) > 2 * MOST_HOT:
            self._hot.choose(table, table.hot)
            self._keep(np.ones(len(table.keys), np.bool_))

    # -- room --------------------------------------------------------------------------------------------------------

    def _make_room(self, blocks: int, now: float) -> None:
        most_blocks, most_uses, most_pieces = self._most
        if len(self.uses) >= most_uses:
            self._forget(len(self.uses) // 4 + 1)
        if len(self.pieces) + 2 * min(blocks, len(self.uses)) + 2 > most_pieces and len(self.pieces) > 4:
            self._forget(int(self.pieces["use"][len(self.pieces) // 4]) + 1)
        while len(self.table) + min(blocks, blocks // self.one_in + 1) > most_blocks:
            cut = int(np.searchsorted(self.uses["time"], now - self.window))
            old = int(np.count_nonzero((self.table.last < cut) & (self.table.keys != 0)))
            if old * _LEAST_GAIN >= most_blocks:
                self._forget(cut)
            elif not self._halve():
                break
        self.table.reserve(blocks)
        if len(self.uses) >= len(self._sums):
            self._recount()

    def _halve(self) -> bool:
        """Every second block stands for two; False when the sample is as small as it can be."""
        if self.one_in >= 1 << 20:
            return False
        self._hot.choose(self.table, self.table.keys != 0 if self.one_in == 1 else self.table.hot)
        self.one_in *= 2
        self._keep(np.ones(len(self.table.keys), np.bool_))
        return True

    def forget_before(self, time: float) -> None:
        """Uses before that, and the blocks without a use since; the last use stays."""
        cut = min(int(np.searchsorted(self.uses["time"], time)), len(self.uses) - 1)
        if cut > 0:
            self._forget(cut)

    def _forget(self, cut: int) -> None:
        """The uses before `cut`, and the blocks without a use since."""
        self.uses.drop(cut)
        self.pieces.drop(int(np.searchsorted(self.pieces["use"], cut)))
        self.pieces["use"][:] -= cut
        self.pieces["before"][:] -= cut
        self.table.last -= cut
        self._keep(self.table.last >= 0)

    def _keep(self, kept: Bools) -> None:
        """Of the marked slots those that are hot or in the sample."""
        self.table.keep(kept & (self.table.hot | (self.table.keys <= self._limit)))
        self._hot_keys = np.sort(self.table.keys[self.table.hot])
        self._recount()

    def _recount(self) -> None:
        """The sums anew, from the table."""
        table = self.table
        there = table.keys != 0
        weights = np.where(table.hot[there], 1, self.one_in)
        numbers = np.bincount(table.last[there], weights, len(self.uses)).astype(np.int64)
        self._sums = RunningSums(numbers, max(_ROOM, 2 * len(self.uses)))


def _among(keys: Keys, known: Keys) -> Bools:
    """Which of the keys are known; `known` ascends."""
    if not len(known):
        return np.zeros(len(keys), np.bool_)
    found: Bools = known[np.minimum(np.searchsorted(known, keys), len(known) - 1)] == keys
    return found
