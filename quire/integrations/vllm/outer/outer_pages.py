"""OuterPages: a disk, and a store that machines share, below the host memory of a connector. Knows no vLLM and no step.

    request comes ──► ahead: pages from the disk, then what is missing from the store ──► look finds them in host memory
    pages stored  ──► the keeper's thread copies them down to the disk
    request ends  ──► served: its pages go out to the store

Nothing here waits for a disk or a store but `close`. What fails costs a recompute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from quire.core.cache import Cache
from quire.core.outside.prefetch import Prefetch
from quire.core.records.errors import QuireError, StateError
from quire.core.records.request import Request
from quire.core.state.claim import Refusal
from quire.core.state.prepared import Prepared
from quire.integrations.vllm.common.connector_options import ConnectorOptions
from quire.integrations.vllm.outer.model_print import AdapterNames
from quire.integrations.vllm.outer.page_memory import PageMemory, SharedMemoryTier
from quire.tiers.arena import ArenaTier
from quire.tiers.base import PageLayout, Tier

if TYPE_CHECKING:
    from quire.tiers.disk import DiskKeeper  # need xxhash, which host memory alone does without
    from quire.tiers.disk.calls.files import Files
    from quire.tiers.shared import Fetch, SharedCache

log = logging.getLogger(__name__)
HOLD = 30.0  # seconds for which pages that have come wait for their request to be placed
FLUSH = 5.0  # seconds that closing may take to copy down what is worth it
Clock = Callable[[], float]


class OuterCounts(NamedTuple):
    """Pages since the start."""

    disk_restored: int = 0
    disk_written: int = 0
    disk_read: int = 0
    disk_failed: int = 0
    shared_fetched: int = 0
    shared_sent: int = 0


class PagesAhead:
    """Pages of one waiting request on their way into host memory; `done` when waiting longer brings nothing."""

    __slots__ = ("_deadline", "_disk", "_fetch", "_moved", "_outer", "_prepared")

    def __init__(self, outer: OuterPages, prepared: Prepared) -> None:
        self._outer, self._prepared = outer, prepared
        self._deadline = outer.clock() + outer.options.wait
        self._disk: Prefetch | None = None
        self._moved: Future[list[int]] | None = None
        self._fetch: Fetch | None = None
        self._begin_disk()
        if self._moved is None:
            self._begin_fetch()

    @property
    def done(self) -> bool:
        """They are here, they will not come, or the time is over."""
        if self._outer.clock() >= self._deadline:
            return True
        if self._moved is not None:
            if not self._moved.done():
                return False
            self._moved = None
            self._begin_fetch()
        return self._fetch is None or self._fetch.done

    @property
    def late(self) -> bool:
        """The time is over, and something is still on its way."""
        disk = self._moved is not None and not self._moved.done()
        return disk or (self._fetch is not None and not self._fetch.done)

    def close(self) -> None:
        """What has come is held no longer; what has not may stay away."""
        if self._disk is not None:
            self._disk.close()
        if self._fetch is not None:
            self._fetch.close()

    def _begin_disk(self) -> None:
        keeper, cache = self._outer.keeper, self._outer.cache
        if keeper is None:
            return
        until = self._outer.clock() + self._outer.options.wait + HOLD
        try:
            coming = cache.prefetch(self._prepared, until)
            if isinstance(coming, Refusal) and coming.have:  # as much of it as there is room for
                limit = self._outer.blocks_in(coming.have) * cache.config.block_size
                less = replace(self._prepared.request, reuse_limit=limit)
                coming = cache.prefetch(less, until)
            if isinstance(coming, Refusal):
                return
            self._disk = coming
            if len(coming.plan):
                self._moved = keeper.run(coming.plan)
        except StateError as closed:  # an engine that ends still asks
            log.debug("%s", closed)

    def _begin_fetch(self) -> None:
        shared, left = self._outer.shared, self._deadline - self._outer.clock()
        if shared is not None and left > 0:
            self._fetch = shared.fetch(self._prepared.request, wait=left)


class OuterPages:
    """Of one engine, in the process of its scheduler; `keeper` and `shared` are those that the options name.

    `clock` is the cache's.
    """

    def __init__(
        self, cache: Cache, memory: PageMemory, options: ConnectorOptions, name: bytes, *,
        clock: Clock = time.monotonic, files: Files | None = None,
    ) -> None:  # fmt: skip
        self._files = files
        self.cache, self.memory, self.options, self.clock = cache, memory, options, clock
        self._sizes = [memory.shape.whole_page] * memory.shape.groups
        self.adapters = AdapterNames()
        self.keeper: DiskKeeper | None = None
        self.shared: SharedCache | None = None
        if options.disk is not None:
            self.keeper = self._open_disk(options.disk, name)
        try:
            if options.shared is not None:
                self.shared = self._open_shared(options.shared, name)
        except BaseException:
            self.close()
            raise

    def _tiers(self) -> list[Tier]:
        """The device, of which the cache has nothing, and the host; one caller at a time, so each has its own."""
        device = ArenaTier("device", [0] * len(self._sizes), self._sizes)
        return [device, SharedMemoryTier(self.memory, checksums=self.options.checksums)]

    def _open_disk(self, folder: str, name: bytes) -> DiskKeeper:
        from quire.tiers.disk import DiskFolder, DiskKeeper, DiskLimits
        from quire.tiers.disk.calls.files import REAL_FILES

        config, sizes = self.cache.config, self._sizes
        slots = [config.slots_of(-1, group) for group in range(len(sizes))]
        limits = DiskLimits(pool_of=config.pool_of)
        opened = DiskFolder(folder, name, sizes, slots, limits=limits, files=self._files or REAL_FILES)
        try:
            return DiskKeeper(self.cache, opened, self._tiers(), [PageLayout(size) for size in sizes])
        except BaseException:
            opened.close()
            raise

    def _open_shared(self, place: str, name: bytes) -> SharedCache:
        from quire.tiers.shared import SharedCache, SharedConfig

        return SharedCache(self.cache, self._tiers(), SharedConfig(place, wait=self.options.wait), name)

    def ahead(self, prepared: Prepared) -> PagesAhead:
        """Begin to bring what a request can use and host memory has not."""
        return PagesAhead(self, prepared)

    def blocks_in(self, slots: int) -> int:
        """Blocks of a text whose pages of all groups are sure to fit into so many slots: of windows and states few."""
        size, groups = self.cache.config.block_size, self.cache.config.groups
        tails = [-(-(group.window or 1) // size) + 1 for group in groups if group.bounded]
        full = len(groups) - len(tails)
        return max(slots // len(groups), (slots - sum(tails)) // full if full else 0)

    def served(self, request: Request, prompt: int) -> None:
        """All that was stored of a request is there; others may go on behind it, or behind its prompt."""
        if self.shared is not None:
            try:
                self.shared.publish(request, edges=(prompt, prompt - 1))
            except QuireError as wrong:
                log.debug("%s", wrong)

    def counts(self) -> OuterCounts:
        """What it has done so far."""
        disk = None if self.keeper is None else self.keeper.report()
        store = None if self.shared is None else self.shared.counts()
        read, sent = (0, 0) if store is None else (store.hits, store.sent)
        if disk is None:
            return OuterCounts(shared_fetched=read, shared_sent=sent)
        failed = disk.failed + disk.scrubbed_bad
        return OuterCounts(disk.restored, disk.copied_down, disk.brought_up, failed, read, sent)

    def close(self) -> None:
        """Copy down what is worth it, make it durable, end the threads; again: nothing."""
        if self.shared is not None:
            self.shared.close()
        if self.keeper is not None:
            try:
                self.keeper.close(FLUSH)
            except StateError as wrong:  # what was durable before is, and the engine ends all the same
                log.warning("%s", wrong)
