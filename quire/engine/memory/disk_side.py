"""The disk side of an engine: its cache's slow tier lasts in a folder, and waiting requests are prefetched from there.
Knows the engine's pages; decides nothing about steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from quire.core.cache import Cache
from quire.core.outside.prefetch import Prefetch as Coming
from quire.core.records.config import CacheConfig
from quire.core.records.errors import InputError, StateError, say, shown
from quire.core.records.request import Request
from quire.core.state.claim import Refusal
from quire.engine.model.layers import Model
from quire.engine.model.pages import Pages
from quire.engine.model.weights import model_fingerprint
from quire.tiers.base import PageLayout

if TYPE_CHECKING:
    from quire.tiers.disk import DiskKeeper  # needs xxhash, which others do without

_log = logging.getLogger("quire.engine")
HOST_BYTES = "256MiB"  # of an LLM with a disk for which nothing else is said


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """Where pages last: a folder, for one process; how long a waiting request is passed over for pages from there."""

    folder: str | Path
    namespace: str = ""  # what you know of the model and Quire cannot see
    wait: float = 2.0  # seconds
    flush: float = 5.0  # seconds that closing may take to copy down what is worth it

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | Path) or not str(self.folder):
            fact = f"it is a {type(self.folder).__name__}"
            raise InputError(say(f"disk={shown(self.folder)}", fact, "pass a folder, or a DiskConfig"))


class DiskPrefetch:
    """Pages on their way from the disk for one request."""

    __slots__ = ("_clock", "_coming", "_deadline", "_moved")

    def __init__(self, coming: Coming, moved: Future[list[int]], clock: Callable[[], float], deadline: float) -> None:
        self._coming, self._moved, self._clock, self._deadline = coming, moved, clock, deadline

    @property
    def done(self) -> bool:
        """They are here, some could not be read, or the time is over."""
        return self._moved.done() or self._clock() >= self._deadline

    def when_done(self, act: Callable[[], None]) -> None:
        """On the keeper's thread, as a rule."""
        self._moved.add_done_callback(lambda _: act())

    def close(self) -> None:
        """What has come is held no longer."""
        self._coming.close()


class DiskSide:
    """A prefetcher for the scheduler, and a participant that the engine closes. `keeper` is the DiskKeeper."""

    num_open = 0  # what is under way holds no request up: the scheduler knows which wait

    def __init__(self, model: Model, cache: Cache, pages: Pages, config: DiskConfig) -> None:
        from quire.tiers.disk import DiskFolder, DiskKeeper, DiskLimits, page_index

        if not cache.config.tiers[-1].slow:
            cure = "give disk_bytes to the LLM, or disk_pages in the EngineConfig"
            raise InputError(say("an engine with a disk", "its cache has no pages there", cure))
        self._cache, self._config = cache, config
        groups = cache.config.groups
        slots = [cache.config.slots_of(-1, nth) for nth in range(len(groups))]
        name = model_fingerprint(model, cache.config, namespace=config.namespace)
        limits = DiskLimits(page_index=page_index(cache.config), pool_of=cache.config.pool_of)
        folder = DiskFolder(config.folder, name, [group.page_bytes for group in groups], slots, limits=limits)
        layouts = [PageLayout(group.page_bytes, group.planes) for group in groups]
        try:
            self.keeper: DiskKeeper = DiskKeeper(cache, folder, pages.once_more(), layouts)
        except BaseException:
            folder.close()
            raise

    def prefetch(self, request: Request, clock: Callable[[], float]) -> DiskPrefetch | None:
        """Bring what the disk has of it; the last token of a prompt is computed in any case."""
        if len(request.tokens) <= self._cache.config.block_size:
            return None
        deadline = clock() + self._config.wait
        coming = self._cache.prefetch(request, deadline)
        if isinstance(coming, Refusal) and coming.have:  # as much of it as there is room for
            less = replace(request, reuse_limit=coming.have * self._cache.config.block_size)
            coming = self._cache.prefetch(less, deadline)
        if isinstance(coming, Refusal):
            return None
        if not len(coming.plan):
            coming.close()
            return None
        try:
            return DiskPrefetch(coming, self.keeper.run(coming.plan), clock, deadline)
        except StateError:  # it was closed
            coming.close()
            raise

    def step(self) -> None:
        """Its thread does everything by itself."""

    def close(self) -> bool:
        """Copy down what is worth it, make it durable, end the thread; False: it hangs in the disk."""
        try:
            self.keeper.close(self._config.flush)
        except StateError as wrong:  # what was durable before is, and the engine ends all the same
            _log.warning("%s", wrong)
        return not self.keeper.hanging


def check_disk_index(config: CacheConfig) -> None:
    """Refuse a disk whose index may not fit into memory, before the cache takes that memory."""
    from quire.tiers.disk import check_index

    if config.tiers[-1].slow:
        check_index(config)


def disk_config(given: object) -> DiskConfig:
    """A DiskConfig, or one for a folder; what can never work is refused before a model is loaded."""
    import quire.tiers.disk  # noqa: F401  (says which extra is missing)

    return given if isinstance(given, DiskConfig) else DiskConfig(given)  # type: ignore[arg-type]
