"""SeenBlocks: what a cache that forgets nothing would have found, and how long after its last use.

Exact up to MOST blocks; beyond, a sample of them by name, halved whenever it is full. What is reused is what was asked
less what is new, and the number of different blocks is told well by any sample: blocks that everybody has do no harm.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from itertools import compress
from typing import Any, NamedTuple

MOST = 1 << 20  # blocks that are kept, about 150 bytes each
MOST_ENDS = 1 << 18  # ends of prompts
TIMES = (1, 10, 60, 300, 600, 1800, 3600, 14400, 86400)  # seconds
DISTANCES = tuple(digit * 10**power for power in range(4, 10) for digit in (1, 2, 5))  # tokens
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
        self._sizes, self._times, self._news = array("q"), array("d"), array("q")
        self._bits = 0  # one block in 2**bits is kept
        self._ends: OrderedDict[int, float] = OrderedDict()  # last whole blocks of prompts, and when they were asked
        self.asked = 0  # tokens
        self._new = 0  # tokens of blocks that were kept and new, times their weight
        self._by_time = [0] * (len(TIMES) + 1)
        self._by_distance = [0] * (len(DISTANCES) + 1)

    @property
    def one_in(self) -> int:
        """The sample: 1 is all blocks."""
        return 1 << self._bits

    def add(self, ids: list[int], sizes: list[int], time: float) -> SeenPrompt:
        """One more prompt."""
        self.asked += sum(sizes)
        found = 0
        for place, (name, size) in enumerate(zip(ids, sizes, strict=True)):
            if self._bits and (name * _MIX & _MASK) >> (64 - self._bits):
                continue
            known = self._places.get(name)
            if known is None:
                self._keep(name, size, time)
            else:
                found = place + 1
                self._reuse(known, size, time)
        continued, gap = self._turn(ids, time)
        found = max(found, continued)
        whole = len(ids) - (len(ids) > 1 and sizes[-1] < sizes[0])
        self._ends.pop(ids[whole - 1], None)
        self._ends[ids[whole - 1]] = time
        if len(self._ends) > MOST_ENDS:
            self._ends.popitem(last=False)
        return SeenPrompt(sum(sizes[:found]), found, gap)

    def _turn(self, ids: list[int], time: float) -> tuple[int, float | None]:
        """Blocks of the longest prompt that this one continues, and the time since; each is continued but once.

        So a beginning that many share is no conversation. Ends are all kept, whatever the sample.
        """
        blocks = next((place for place in range(len(ids), 0, -1) if ids[place - 1] in self._ends), 0)
        return blocks, max(time - self._ends.pop(ids[blocks - 1]), 0.0) if blocks else None

    def _keep(self, name: int, size: int, time: float) -> None:
        self._places[name] = len(self._sizes)
        self._sizes.append(size)
        self._times.append(time)
        self._new += size << self._bits
        self._news.append(self._new)
        if len(self._places) > MOST:
            self._halve()

    def _reuse(self, place: int, size: int, time: float) -> None:
        reused = min(size, self._sizes[place]) << self._bits
        gap, between = time - self._times[place], self._new - self._news[place]
        self._by_time[bisect_left(TIMES, gap)] += reused
        self._by_distance[bisect_left(DISTANCES, between)] += reused
        if size > self._sizes[place]:
            self._new += (size - self._sizes[place]) << self._bits
            self._sizes[place] = size
        self._times[place], self._news[place] = time, self._new

    def _halve(self) -> None:
        """Keep every second block, by name."""
        self._bits += 1
        kept = [not (name * _MIX & _MASK) >> (64 - self._bits) for name in self._places]
        order = list(self._places.values())
        places = list(compress(order, kept))
        self._places = {name: nth for nth, name in enumerate(compress(self._places, kept))}
        self._sizes = array("q", (self._sizes[place] for place in places))
        self._times = array("d", (self._times[place] for place in places))
        self._news = array("q", (self._news[place] for place in places))

    @property
    def different(self) -> int:
        """Tokens of all different blocks: what has to be computed in any case."""
        return min(sum(self._sizes) << self._bits, self.asked)

    def to_json(self) -> dict[str, Any]:
        """The ceiling, and how old the reused tokens were."""
        reused = self.asked - self.different
        times = dict(zip((*map(str, TIMES), "more"), _shares(self._by_time), strict=True))
        distances = dict(zip((*map(str, DISTANCES), "more"), _shares(self._by_distance), strict=True))
        return {
            "prompt_tokens": self.asked,
            "different_tokens": self.different,
            "ceiling": round(reused / max(self.asked, 1), 5),
            "sampled_one_block_in": self.one_in,
            "share_within_seconds": times,
            "share_within_new_tokens": distances,
        }


def _shares(tokens: list[int]) -> list[float]:
    """Up to each edge; the last one is everything."""
    total, sums = max(sum(tokens), 1), 0
    shares = []
    for number in tokens:
        sums += number
        shares.append(round(sums / total, 4))
    return shares
