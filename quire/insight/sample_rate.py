"""RatedTraffic: a Traffic whose sample grows again when fewer blocks are asked for. Knows no cache.

A Traffic that has no room tracks one block in two, then one in four. It cannot go back: of a block that was not in the
sample it is unknown whether it was used before. So when the blocks of the window would fit into a larger sample,
another Traffic with that sample begins beside the first, and takes its place two windows later, when it knows of all
that is asked for whether it was used within a window before:

    first   ───one in 4──────────────────────────────────────────┐
    second              few blocks: begun ───one in 1────────────┴──► this one from now on
"""

from __future__ import annotations

import numpy as np

from quire.insight.block_table import Keys
from quire.insight.traffic import MOST_BLOCKS, AskedPrompt, Traffic

MOST_BYTES = 36 << 20  # of both; one more use may add a larger table before it is seen
LOOKS = 60  # in a window, whether fewer blocks are asked for
_SPARE = 2  # times: a larger sample must leave so much room: traffic goes up and down


class RatedTraffic:
    """As Traffic.use; `current` is the one to ask. `one_in` is the largest sample that may be."""

    def __init__(self, num_tiers: int, window: float, *, one_in: int = 1, most_blocks: int = MOST_BLOCKS) -> None:
        self._num_tiers, self._window, self._least, self._most = num_tiers, window, one_in, most_blocks
        self.current = self._new(one_in)
        self._next: Traffic | None = None
        self._next_look = -np.inf

    def _new(self, one_in: int) -> Traffic:
        return Traffic(self._num_tiers, self._window, one_in=one_in, most_blocks=self._most)

    @property
    def num_bytes(self) -> int:
        """What both take, temporary arrays aside."""
        return self.current.num_bytes + (0 if self._next is None else self._next.num_bytes)

    def use(self, keys: Keys, time: float, asked: AskedPrompt | None) -> None:
        """One more, of whole blocks from the first on."""
        self.current.use(keys, time, asked)
        if self._next is not None:
            self._next.use(keys, time, asked)
            self._compare(time)
        if self.current.one_in > self._least and self._next is None and time >= self._next_look:
            self._next_look = time + self._window / LOOKS
            self._begin(time)

    def _begin(self, now: float) -> None:
        """A larger sample, if the blocks of the window fit into one."""
        self.current.forget_before(now - self._window)
        one_in, blocks = self.current.one_in, self.current.num_distinct
        while one_in > self._least and blocks * 2 * _SPARE <= self._most * one_in:
            one_in = max(one_in // 2, self._least)
        if one_in < self.current.one_in and 2 * self.current.num_bytes < MOST_BYTES:
            self._next = self._new(one_in)

    def _compare(self, now: float) -> None:
        """The second one takes the place of the first when it knows as much, or goes when there is no room for it."""
        first, second = self.current, self._next
        assert second is not None
        if second.one_in >= first.one_in or self.num_bytes > MOST_BYTES:
            self._next = None
        elif second.uses["time"][0] <= max(float(first.uses["time"][0]), now - 2 * self._window):
            self.current, self._next = second, None
