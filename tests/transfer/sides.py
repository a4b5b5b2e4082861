"""What the tests of transfer share about caches: both views over the same small hybrid model, with bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol
from zlib import crc32

import numpy as np

from quire import Cache, CacheConfig, Finished, LayerGroup, Plan, Request, Sequence, TierConfig
from quire.tiers import ArenaTier, Bytes, Tier
from quire.transfer.views.plain_view import BlockLists
from quire.transfer.views.quire_view import QuireView
from quire.transfer.views.staged_view import StagedView
from quire.transfer.views.view import CacheView, Landing

SIZE = 4
GROUPS = (
    LayerGroup("full", page_bytes=64),
    LayerGroup("near", page_bytes=32, window=6),
    LayerGroup("state", page_bytes=16, snapshot_every=0),
)
SLOTS = (24, 24, 8)


def tokens(*parts: int | Iterable[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    flat = [token for part in parts for token in ([part] if isinstance(part, int) else part)]
    return np.array(flat, np.int32)


class Side(Protocol):
    """One process's cache, its view and its pages, as the tests drive it."""

    pages: list[Bytes]

    @property
    def view(self) -> CacheView: ...

    def compute(self, request: Request) -> None:
        """The prompt has been computed here; its pages have their bytes."""

    def end(self, id: Any) -> None:
        """The request ends; what it had may be found."""

    def taken(self) -> list[int]:
        """Slots in use per group."""

    def rows(self, landing: Landing) -> list[list[int]]:
        """The slot of every block that a decoder would read, per group."""


def fill(
    pages: list[Bytes], slots: list[list[int]], request: Request, groups: tuple[LayerGroup, ...], size: int = SIZE
) -> None:
    """Bytes that depend on group, ordinal and all tokens up to there."""
    for group, row in enumerate(slots):
        for ordinal, slot in enumerate(row):
            if slot >= 0:
                pages[group][slot] = expected(request, group, ordinal, groups[group].page_bytes, size)


def expected(request: Request, group: int, ordinal: int, size: int, block: int = SIZE) -> Bytes:
    """What a page must hold."""
    prefix = request.tokens[: (ordinal + 1) * block]
    seed = [group, ordinal, crc32(prefix.tobytes() + request.scope.key)]  # the same in every process
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


class QuireSide:
    """A real cache."""

    def __init__(
        self, groups: tuple[LayerGroup, ...] = GROUPS, slots: tuple[int, ...] = SLOTS, size: int = SIZE,
        store: str = "auto",
    ) -> None:  # fmt: skip
        config = CacheConfig((TierConfig("device", tuple(slots)),), size, groups, 8, 256)
        self.cache = Cache(config, store=store)  # type: ignore[arg-type]
        self.view = QuireView(self.cache, self.run)
        self.groups, self.size = groups, size
        tier = ArenaTier("device", slots, [group.page_bytes for group in groups])
        self.pages = [tier.view(group) for group in range(len(groups))]

    def compute(self, request: Request) -> None:
        batch = self.cache.add_sequence_batch([request])
        (sequence,) = batch.sequences
        while True:
            self.run(batch.plan)
            last = (batch.spans[sequence].end - 1) // self.size
            rows = [self._row(sequence, group, last) for group in range(len(self.groups))]
            fill(self.pages, rows, request, self.groups, self.size)
            self.cache.commit(sequence)
            if sequence.computed == sequence.prompt_end:
                break
            batch = self.cache.add_sequence_batch([], continuing=[sequence])

    def _row(self, sequence: Sequence, group: int, last: int) -> list[int]:
        if self.groups[group].current:
            return [-1] * last + [sequence.state_slot(group)]
        reused = sequence.start // self.size
        return [-1] * reused + list(map(int, sequence.slots(group)[reused:]))

    def run(self, plan: Plan) -> Finished:
        """Copies on the one tier there is."""
        for move in plan:
            self.pages[move.group][move.dst[1]] = self.pages[move.group][move.src[1]]
        return self.cache.finish(plan)

    def end(self, id: Any) -> None:
        self.cache.release(self.cache.sequence(id))

    def rows(self, landing: Landing) -> list[list[int]]:
        sequence: Any = landing.ref
        last = (landing.length - 1) // self.size
        kinds = enumerate(self.groups)
        return [[-1] * last + [sequence.state_slot(g)] if k.current else sequence.slots(g).tolist() for g, k in kinds]

    def taken(self) -> list[int]:
        usage = [self.cache.usage(0, group) for group in range(len(self.groups))]
        return [use.capacity - use.empty - use.idle for use in usage]


class ListSide:
    """Plain block lists."""

    def __init__(
        self, groups: tuple[LayerGroup, ...] = GROUPS, slots: tuple[int, ...] = SLOTS, size: int = SIZE
    ) -> None:
        self.view = self.lists = BlockLists(groups, size, slots)
        self.groups, self.size = groups, size
        tier = ArenaTier("device", slots, [group.page_bytes for group in groups])
        self.pages = [tier.view(group) for group in range(len(groups))]

    def compute(self, request: Request) -> None:
        table = self.lists.compute(request, extra_tokens=3)
        assert table is not None
        last = (len(request.tokens) - 1) // self.size
        facts = zip(self.groups, table.slots, strict=True)
        rows = [[-1] * last + row if group.current else row for group, row in facts]
        fill(self.pages, rows, request, self.groups, self.size)

    def end(self, id: Any) -> None:
        self.lists.finish(self.lists._tables[id])

    def rows(self, landing: Landing) -> list[list[int]]:
        table: Any = landing.ref
        return table.slots  # type: ignore[no-any-return]

    def taken(self) -> list[int]:
        return [self.lists.num_used(group) for group in range(len(self.groups))]


class TierPages:
    """One group's slots of any tier, by number, as the sides use their arrays."""

    def __init__(self, tier: Tier, group: int) -> None:
        self.tier, self.group = tier, group

    def __getitem__(self, slot: int) -> Bytes:
        page = np.empty((1, self.tier.info().page_bytes[self.group]), np.uint8)
        self.tier.read(self.group, [int(slot)], [page])
        return page.reshape(-1)

    def __setitem__(self, slot: int, page: Bytes) -> None:
        self.tier.write(self.group, [int(slot)], [page[None]])


class StagedSide:
    """Another side whose pages are on a device that no link can address; `pages` are what a link is given instead."""

    def __init__(self, inner: Any, device: Tier, staging: tuple[int, ...]) -> None:
        info = device.info()
        inner.pages = [TierPages(device, group) for group in range(len(info.num_slots))]
        self.inner, self.device = inner, device
        tier = ArenaTier("staging", staging, info.page_bytes)
        self.view = self.staged = StagedView(inner.view, device, tier)
        self.pages = [tier.view(group) for group in range(len(staging))]

    def compute(self, request: Request) -> None:
        self.inner.compute(request)

    def end(self, id: Any) -> None:
        self.inner.end(id)

    def rows(self, landing: Landing) -> list[list[int]]:
        return self.inner.rows(landing.ref)  # type: ignore[no-any-return]

    def staged_slots(self) -> list[int]:
        return [self.staged.num_used(group) for group in range(len(self.pages))]

    def taken(self) -> list[int]:
        """The larger of both numbers: zero when neither the cache nor staging holds anything."""
        return list(map(max, self.inner.taken(), self.staged_slots()))


def landed_right(side: Side, landing: Landing, request: Request, groups: tuple[LayerGroup, ...] = GROUPS) -> bool:
    """Every page the decoder reads has the right bytes, whether it was held or delivered."""
    rows = side.rows(landing)
    for group, spans in enumerate(landing.needs):
        for span in spans:
            for ordinal in range(span.start, span.end):
                slot = rows[group][ordinal]
                want = expected(request, group, ordinal, groups[group].page_bytes, side.view.shape().block_size)
                if not np.array_equal(side.pages[group][slot], want):
                    return False
    return True
