"""Ground: what fetching and publishing stand on: the cache, its memory, the store and the names of pages. Decides
nothing.

Bytes that outside threads read or write lie in slots that open plans may still move: `settled` says when they do not.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock

import numpy as np

from quire.core.cache import Cache
from quire.core.outside.find import Found
from quire.core.records.groups import LayerGroup
from quire.core.records.plan import Kind, MoveColumn, Plan
from quire.core.records.request import Request
from quire.tiers.page_digest import BlockDigests
from quire.tiers.shared.calls.client import StoreClient
from quire.tiers.shared.open_finds import OpenFinds
from quire.tiers.shared.rank_parts import Answers, Place, Ranks
from quire.tiers.shared.stores.bad_pages import BadPages
from quire.tiers.shared.turns import Act, Turns

POLL = 0.001  # seconds between looks at plans: they end with the step that made them
MOST_KNOWN = 1 << 17  # pages
KNOWN_SECONDS = 300.0  # a store may have forgotten since
Page = tuple[int, int]  # block, group: sorted so, a text's pages come block by block


@dataclass(slots=True, eq=False)
class SharedGround:
    """One cache and one store."""

    cache: Cache
    ranks: Ranks  # whose memory has the pages
    tier: int  # where pages from the store go
    client: StoreClient
    fingerprints: tuple[bytes, ...]  # by rank
    rank: int  # of the memory here, where every rank has a cache of its own
    batch_bytes: int
    finds: OpenFinds
    turns: Turns | None = None  # of the thread that makes plans, where others must not
    known: KnownPages = field(default_factory=lambda: KnownPages())
    bad: BadPages = field(default_factory=BadPages)  # in the store: to be sent again, although it has them
    forgets: int = 0  # how often something was forgotten: what was under way then is given up
    closing: bool = False

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.cache.config.block_size

    @property
    def groups(self) -> list[LayerGroup]:
        """Those that read the sequence's own tokens, as the cache sees them."""
        config = self.cache.config
        return [group.clamped(config.max_length) for group in config.groups if not group.cross]

    def by_pool(self, counts: Sequence[int]) -> list[int]:
        """Numbers of pages by group, as numbers of slots by pool."""
        pools = self.cache.config.pool_of[: len(counts)]
        total = [0] * (max(pools, default=-1) + 1)
        for pool, count in zip(pools, counts, strict=True):
            total[pool] += count
        return total

    def page_bytes(self, group: int) -> int:
        """Bytes of a page."""
        return self.cache.config.groups[group].page_bytes

    def usable_blocks(self, request: Request) -> int:
        """Whole blocks of a request that may be shared."""
        if request.encoder is not None or not request.reuse or not self.cache.config.reuse:
            return 0  # what an encoder adds is part of the KV, and of no name here
        length = min(len(request.tokens), self.cache.config.max_length)
        limit = request.reuse_limit
        return (length if limit is None else min(length, limit)) // self.block_size

    def digests(self, request: Request, blocks: int) -> list[BlockDigests]:
        """Names of the first blocks of a request, by rank."""
        length, words, made = blocks * self.block_size, request.words(), []
        for fingerprint in self.fingerprints:
            one = BlockDigests(fingerprint, request.scope, self.block_size)
            one.extend(request.tokens[:length], None if words is None else words[:length])
            made.append(one)
        return made

    def batches(self, pages: Sequence[Page]) -> Iterator[list[Page]]:
        """The same pages in batches of a bounded size, whole blocks each; a large block alone in its batch."""
        batch: list[Page] = []
        size = 0
        for nth, (block, group) in enumerate(pages):
            own = sum(self.page_bytes(g) for b, g in pages[nth : nth + len(self.cache.config.groups)] if b == block)
            if batch and batch[-1][0] != block and size + own > self.batch_bytes:
                yield batch
                batch, size = [], 0
            batch.append((block, group))
            size += self.page_bytes(group)
        if batch:
            yield batch

    def own(self, names: Sequence[BlockDigests]) -> Sequence[BlockDigests]:
        """Those of the parts that come into memory that is reached from here; the first stands for the whole page."""
        return names if len(self.ranks) > 1 else names[self.rank : self.rank + 1]

    def get(self, number: int, batch: Sequence[Page], names: Sequence[BlockDigests], deadline: float) -> Answers:
        """Begin a batch: bring pages from the store; names as `own` gives them."""
        wanted = [[one.page(*page) for page in batch] for one in names]
        begun = time.monotonic()
        answers = self.ranks.get(number, wanted, [group for _, group in batch], deadline - begun)
        if len(self.ranks) > 1:  # else the client has counted
            self.client.tally.called("get", time.monotonic() - begun)
            self.client.tally.came(answers, (self.page_bytes(group) for _, group in batch))
        return answers

    def put(
        self, number: int, batch: Sequence[Page], nth: Sequence[int], names: Sequence[BlockDigests], deadline: float
    ) -> Answers:
        """Send those of a batch that could be copied; names likewise."""
        wanted = [[one.page(*batch[one_of]) for one_of in nth] for one in names]
        begun = time.monotonic()
        answers = self.ranks.put(number, nth, wanted, deadline - begun)
        if len(self.ranks) > 1:
            self.client.tally.called("put", time.monotonic() - begun)
            self.client.tally.went(answers, (self.page_bytes(batch[one_of][1]) for one_of in nth))
        return answers

    def in_turn(self, act: Act, deadline: float) -> bool:
        """Do something that makes a plan, when it is its turn; False: that did not come before the deadline.

        Where no other moves can be in that plan it is done at once. What has to make room for a page is then
        dropped, in place of going down: nothing here could carry it.
        """
        if self.turns is not None:
            return self.turns.call(act, deadline)
        plan = act()
        if len(plan):
            self.cache.finish(plan, range(len(plan)))
        return True

    def find(self, request: Request, deadline: float) -> Found | None:
        """As `finds.find`, with every page either there or in an open plan; None: its turn did not come."""
        if self.turns is None:
            return self.finds.find(request)
        made: list[Found] = []

        def act() -> Plan:
            plan = self.cache.offload(0)  # nothing but what was decided before, such as the copy of a state
            made.append(self.finds.find(request))
            return plan

        return made[0] if self.turns.call(act, deadline) else None

    def settled(self, places: Iterable[Place], deadline: float, *, reading: bool) -> bool:
        """Wait until no open plan touches these slots (when reading: fills them); False: the deadline passed."""
        pools = self.cache.config.pool_of  # a plan may move another group's page out of a slot, or into it
        wanted = {(pools[group], tier, slot) for group, tier, slot in places}
        while not self.closing:
            if not any(wanted & _touched(plan, pools, reading) for plan in self.cache.open_plans()):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL)
        return False


def _touched(plan: Plan, pool_of: Sequence[int], reading: bool) -> set[Place]:
    """Slots whose bytes a plan changes, by pool; unless the caller only reads, those that it reads as well."""
    moves = plan.moves
    pool, kind = np.array(pool_of)[moves[:, MoveColumn.GROUP]], moves[:, MoveColumn.KIND]
    from_ = np.full(len(moves), True) if not reading else kind == Kind.EXCHANGE
    ends = [
        (pool, moves[:, MoveColumn.DST_TIER], moves[:, MoveColumn.DST_SLOT]),
        (pool[from_], moves[from_, MoveColumn.SRC_TIER], moves[from_, MoveColumn.SRC_SLOT]),
    ]
    return {place for end in ends for place in zip(*(column.tolist() for column in end), strict=True)}


class KnownPages:
    """Pages that the store had lately, so that it is not asked again: bounded, and for a while only."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, float] = OrderedDict()
        self._lock = Lock()

    def add(self, names: Iterable[bytes]) -> None:
        """It has them."""
        now = time.monotonic()
        with self._lock:
            for name in names:
                self._seen.pop(name, None)
                self._seen[name] = now
            while len(self._seen) > MOST_KNOWN:
                self._seen.popitem(last=False)

    def discard(self, names: Iterable[bytes]) -> None:
        """It has not."""
        with self._lock:
            for name in names:
                self._seen.pop(name, None)

    def clear(self) -> None:
        """Forget it: unknown again."""
        with self._lock:
            self._seen.clear()

    def has(self, name: bytes) -> bool:
        """Whether it had this page lately."""
        with self._lock:
            return time.monotonic() - self._seen.get(name, float("-inf")) < KNOWN_SECONDS
