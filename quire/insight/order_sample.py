"""OrderSample: the last uses of a small sample of blocks, and what real caches of other eviction orders make of them.

An order such as `adaptive` has no formula: a cache must run. So a cache of Quire's own runs over the sample, with as
much less memory as the sample has fewer blocks. One of its tokens is one block; it moves no bytes. It reports the
difference to `lru` in the same sample: what the sample has too much or too little of is in both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, get_args

import numpy as np

from quire.core.cache import Cache
from quire.core.records.config import CacheConfig, Order, TierConfig
from quire.core.records.request import Request
from quire.insight.block_table import Keys

ORDERS: tuple[Order, ...] = get_args(Order)
MOST_USES = 1 << 13
MOST_KEYS = 1 << 18
MOST_SLOTS = 1 << 15
PAUSE = 16  # uses after which the thread may do something else


class SampledUse(NamedTuple):
    """One use: the sampled blocks of it."""

    time: float
    keys: Keys
    hittable: int  # leading ones that a cache could give it; 0: it is the end of a request


class OrderSample:
    """Bounded in uses and in blocks; when there are too many blocks, every second one is left out."""

    def __init__(self) -> None:
        self._uses: deque[SampledUse] = deque(maxlen=MOST_USES)
        self._num_keys = 0
        self._one_in = 1

    @property
    def num_bytes(self) -> int:
        """About what it takes."""
        return 8 * self._num_keys + 300 * len(self._uses)

    def add(self, keys: Keys, time: float, hittable: int) -> None:
        """One more use, of whole blocks from the first on."""
        if len(self._uses) == MOST_USES:
            self._num_keys -= len(self._uses[0].keys)
        use = self._thinned(SampledUse(time, keys, hittable), self._one_in)
        self._uses.append(use)
        self._num_keys += len(use.keys)
        while self._num_keys > MOST_KEYS and self._one_in < 1 << 20:
            self._halve()

    def _halve(self) -> None:
        self._one_in *= 2
        self._uses = deque((self._thinned(use, self._one_in) for use in self._uses), MOST_USES)
        self._num_keys = sum(len(use.keys) for use in self._uses)

    @staticmethod
    def _thinned(use: SampledUse, one_in: int) -> SampledUse:
        places = (use.keys <= np.uint64(((1 << 64) - 1) // one_in)).nonzero()[0]
        return SampledUse(use.time, use.keys[places], int(np.searchsorted(places, use.hittable)))

    def gains(self, capacity: int, since: float) -> Iterator[dict[str, float] | None]:
        """What each order hits more than lru with so much memory: a share of the blocks it could have hit since then.

        The last that it yields; before it None, to pause.
        """
        while capacity // self._one_in > MOST_SLOTS:
            self._halve()
        slots, uses = max(capacity // self._one_in, 1), [use for use in self._uses if len(use.keys)]
        asked = sum(use.hittable for use in uses if use.time >= since)
        hits: dict[str, int] = {}
        for order in ORDERS:
            hits[order] = 0
            for found in _hits(uses, order, slots, since):
                hits[order] += found
                yield None
        yield {order: (number - hits["lru"]) / asked if asked else 0.0 for order, number in hits.items()}


def _hits(uses: list[SampledUse], order: Order, slots: int, since: float) -> Iterator[int]:
    """Blocks that a cache of this order hits, in parts."""
    now = 0.0
    longest = min(max((len(use.keys) for use in uses), default=1), slots - 1)
    if longest < 1:
        return
    config = CacheConfig(
        (TierConfig("device", slots),), block_size=1, max_sequences=1, max_length=longest + 1, partial_reuse=False,
        eviction=order,
    )  # fmt: skip
    cache = Cache(config, clock=lambda: now)
    found = 0
    for number, use in enumerate(uses):
        now = use.time
        tokens = np.empty(min(len(use.keys), longest) + 1, np.int32)
        tokens[:-1] = (use.keys[:longest] & np.uint64(0x3FFFFFFF)).astype(np.int32)
        tokens[-1] = -1 - number  # a last token is always computed, so one that no request has stands there
        batch = cache.add_sequence_batch([Request(number, tokens)])
        for sequence in batch.sequences:
            if use.time >= since:
                found += min(sequence.start, use.hittable)
            cache.finish(batch.plan)
            cache.commit(sequence, len(tokens) - 1)
            cache.release(sequence)
        if number % PAUSE == PAUSE - 1:
            yield found
            found = 0
    yield found
