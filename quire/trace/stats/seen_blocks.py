"""SeenBlocks: what a cache that forgets nothing would have found, and how much one needs that forgets the oldest.

    distance of a block = tokens of different blocks and answers used since it was used, blocks before it, and its own

An LRU cache of so many tokens has just kept it. A request's last blocks are older than its first ones, as in the
cache: so what is before a block in its prompt is there when the block is. Requests come one after the other.

Exact up to MOST blocks; beyond, a sample of them by name, halved whenever it is full. What is reused is what was asked
less what is new, and the number of different blocks is estimated well by any sample: blocks that all have do no harm.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from itertools import accumulate, compress
from typing import Any, NamedTuple

import numpy as np

from quire.trace.stats.use_stack import UseStack

MOST = 1 << 20  # blocks that are kept, about 150 bytes each
MOST_ENDS = 1 << 18  # ends of prompts
TIMES = (1, 10, 60, 300, 600, 1800, 3600, 14400, 86400)  # seconds
DISTANCES = tuple(digit * 10**power for power in range(3, 10) for digit in (1, 2, 5))  # tokens
_EDGES = (
    *range(1000),
    *(number * 10**power for power in range(1, 9) for number in range(100, 1000)),
)  # to three digits
MOST_SLOTS = 1 << 21  # requests in the stack; those whose blocks were all used again are then left out
_MIX, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


class SeenPrompt(NamedTuple):
    """What one prompt found."""

    tokens: int  # of leading blocks that were there; of a sample at least so many
    blocks: int
    turn_gap: float | None  # seconds since the prompt that it continues, if it does


class SeenBlocks:
    """Blocks by id, an id being a block and all before it."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}  # into the arrays
        self._sizes, self._times, self._slots = array("q"), array("d"), array("q")  # slots: of their last use
        self._bits = 0  # one block in 2**bits is kept
        self._ends: OrderedDict[int, float] = OrderedDict()  # last whole blocks of prompts, and when they were asked
        self.asked = 0  # tokens
        self._stack = UseStack()
        self._by_time = [0] * (len(TIMES) + 1)
        self._by_distance = [0] * (len(_EDGES) + 1)

    @property
    def one_in(self) -> int:
        """The sample: 1 is all blocks."""
        return 1 << self._bits

    def add(self, ids: list[int], sizes: list[int], time: float, output: int = 0) -> SeenPrompt:
        """One more prompt, and how many tokens its answer has."""
        self.asked += sum(sizes)
        if len(self._stack) >= MOST_SLOTS:
            self._slots = array("q", self._stack.squeeze(np.asarray(self._slots)).tobytes())
        reused = self._use(ids, sizes, time, self._stack.push())
        self._stack.add(len(self._stack) - 1, output)
        while len(self._places) > MOST:
            self._halve()
        continued, gap = self._turn(ids, time)
        reused = max(reused, continued)
        whole = len(ids) - (len(ids) > 1 and sizes[-1] < sizes[0])
        self._ends.pop(ids[whole - 1], None)
        self._ends[ids[whole - 1]] = time
        if len(self._ends) > MOST_ENDS:
            self._ends.popitem(last=False)
        return SeenPrompt(sum(sizes[:reused]), reused, gap)

    def _turn(self, ids: list[int], time: float) -> tuple[int, float | None]:
        """Blocks of the longest prompt that this one continues, and the time since; each is continued but once.

        So a beginning that many share is no conversation. Ends are all kept, whatever the sample.
        """
        blocks = next((index for index in range(len(ids), 0, -1) if ids[index - 1] in self._ends), 0)
        return blocks, max(time - self._ends.pop(ids[blocks - 1]), 0.0) if blocks else None

    def _use(self, ids: list[int], sizes: list[int], time: float, slot: int) -> int:
        """Put the blocks of a prompt on top of all others; how many of them, from the first on, were there.

        Those that one request has used last stand together: they are moved at once.
        """
        reused, moved, grown = 0, 0, 0  # moved, grown: tokens that leave the run's slot, and that come to this one
        run, since = slot, 0  # the slot of the blocks before, and what was used since
        for index, (name, size) in enumerate(zip(ids, sizes, strict=True)):
            if self._bits and (name * _MIX & _MASK) >> (64 - self._bits):
                continue
            known = self._places.get(name)
            if known is None:
                self._keep(name, size, time, slot)
                grown += size << self._bits
                continue
            reused = index + 1
            if self._slots[known] != run:
                self._move(run, moved, slot, grown)
                run, moved, grown = self._slots[known], 0, 0
                since = self._stack.since(run)
            self._count(known, size, time, since + grown)
            moved += self._sizes[known] << self._bits
            self._sizes[known] = max(self._sizes[known], size)
            grown += self._sizes[known] << self._bits
            self._times[known], self._slots[known] = time, slot
        self._move(run, moved, slot, grown)
        return reused

    def _move(self, from_: int, moved: int, to: int, grown: int) -> None:
        self._stack.add(from_, -moved)
        self._stack.add(to, grown)

    def _keep(self, name: int, size: int, time: float, slot: int) -> None:
        self._places[name] = len(self._sizes)
        self._sizes.append(size)
        self._times.append(time)
        self._slots.append(slot)

    def _count(self, place: int, size: int, time: float, above: int) -> None:
        """A block is used again, with so many tokens above it."""
        reused = min(size, self._sizes[place]) << self._bits
        self._by_time[bisect_left(TIMES, time - self._times[place])] += reused
        self._by_distance[bisect_left(_EDGES, above + self._sizes[place])] += reused

    def _halve(self) -> None:
        """Keep every second block, by name: it stands for two."""
        self._stack.add_all(np.asarray(self._slots), -np.asarray(self._sizes) << self._bits)
        self._bits += 1
        kept = [not (name * _MIX & _MASK) >> (64 - self._bits) for name in self._places]
        order = list(self._places.values())
        places = list(compress(order, kept))
        self._places = {name: nth for nth, name in enumerate(compress(self._places, kept))}
        self._sizes = array("q", (self._sizes[place] for place in places))
        self._times = array("d", (self._times[place] for place in places))
        self._slots = array("q", (self._slots[place] for place in places))
        self._stack.add_all(np.asarray(self._slots), np.asarray(self._sizes) << self._bits)

    @property
    def different(self) -> int:
        """Tokens of all different blocks: what has to be computed in any case."""
        return min(sum(self._sizes) << self._bits, self.asked)

    def to_json(self) -> dict[str, Any]:
        """The ceiling, and how old the reused tokens were."""
        times = accumulate(self._corrected(self._by_time))
        distances = [*map(self.reused_within, DISTANCES), self.reused]
        return {
            "prompt_tokens": self.asked,
            "different_tokens": self.different,
            "ceiling": round(self.reused / max(self.asked, 1), 5),
            "sampled_one_block_in": self.one_in,
            "share_within_seconds": self._shares(TIMES, times),
            "share_within_tokens": self._shares(DISTANCES, distances),
            "tokens_for_90_percent": self.tokens_for(0.9),
        }

    @property
    def reused(self) -> int:
        """Tokens that a cache need not compute that forgets nothing."""
        return self.asked - self.different

    def reused_within(self, tokens: int) -> int:
        """Tokens that an LRU cache of so many, to three digits, would have had again."""
        return sum(self._corrected(self._by_distance)[: bisect_right(_EDGES, tokens)])

    def tokens_for(self, share: float) -> int | None:
        """What an LRU cache must keep to have this share of all that can be reused; None: nothing can."""
        edges = zip(_EDGES, accumulate(self._corrected(self._by_distance)), strict=False)
        return next((edge for edge, reused in edges if reused >= share * self.reused), None) if self.reused else None

    def _corrected(self, tokens: list[int]) -> list[int]:
        """Counts that add up to what was reused. Of a sample they do not: a block that all have is in it or not.

        Such a block was used a moment ago each time, so the difference is in the first counts that there are.
        """
        excess, corrected = sum(tokens) - self.reused, list(tokens)
        for index, number in enumerate(tokens):
            if number and excess:
                corrected[index] -= min(excess, number)
                excess -= min(excess, number)
        return corrected

    def _shares(self, edges: tuple[int, ...], reused: Iterable[int]) -> dict[str, float]:
        """Up to each edge; the last one is everything."""
        names = (*map(str, edges), "more")
        return {name: round(tokens / max(self.reused, 1), 4) for name, tokens in zip(names, reused, strict=True)}
