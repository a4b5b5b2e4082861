"""Phase 2 for one request: seat turns its claim into holds, settle gives it slots, onboards and copies.

Owns the order of these steps and their counters. Between the two calls every request of a batch holds its pages, so no
settle can evict what another was promised. Knows nothing of budgets: the layer above has counted the slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.core.store.twin.chain import Chain
from quire.core.store.twin.evict import copy_tokens, new_page, onboard
from quire.core.store.twin.hits import Hit
from quire.core.store.twin.page import DEFAULT_PRIORITY, NEVER, Page
from quire.core.store.twin.parts import Parts
from quire.core.store.twin.pool import MISSED, PARTIAL_FROM, REUSED_FROM, REUSED_FULL, REUSED_PARTIAL, Pool
from quire.core.store.twin.table import Row
from quire.core.store.twin.tree import Node

NO_ROOT = -1


@dataclass(frozen=True, slots=True)
class Ask:
    """What a row shall have: pages in all, retention per block, retention while decoding, spare pages."""

    blocks: int
    priorities: npt.NDArray[np.int16] | None
    durations: npt.NDArray[np.int64] | None
    decode_priority: int
    decode_duration: int
    spare: int

    def retention(self, block: int) -> tuple[int, int] | None:
        """Priority and duration asked for a block, None when nothing is asked."""
        if self.priorities is None or self.priorities[block] < 0:
            return None
        return int(self.priorities[block]), NEVER if self.durations is None else int(self.durations[block])

    def check(self, hit: Hit, columns: int) -> None:
        lowest = hit.blocks + (hit.source_node is not None)
        if not lowest <= self.blocks <= columns:
            raise ValueError(f"{self.blocks} blocks asked, must be {lowest} to {columns}")
        for given in (self.priorities, self.durations):
            if given is not None and len(given) < self.blocks:
                raise ValueError(f"retention of {len(given)} blocks given, {self.blocks} asked")


def seat(parts: Parts, hit: Hit, number: int, row: Row) -> None:
    """A claimed hit becomes the holds of a new row; the claim on a partial source stays until settle."""
    tip, table = row.tip, parts.table
    for pool, pages in zip(parts.pools, hit.held, strict=True):
        for block, page in zip(hit.needed(pool.group), pages, strict=True):
            pool.unclaim(page)
            pool.hold(page)
            table.put(pool.group, number, block, page)
        table.capacity[pool.group][number] = hit.blocks
    table.occupy(number, row, hit.start, hit.blocks)
    if tip is not None:
        parts.tree.add_tip(tip)
    hit.held = []
    hit.mark(False)
    hit.row = number


def new_row(parts: Parts, hit: Hit, chain: Chain, root: int, keep: bool) -> Row:
    """The row a hit will become, checked; nothing is changed yet."""
    if not hit.claimed:
        raise ValueError("only a claimed hit can be seated")
    if hit.blocks > parts.table.columns:
        raise ValueError(f"the hit has {hit.blocks} blocks, a row {parts.table.columns} columns")
    if root == NO_ROOT and keep:
        raise ValueError("a row that keeps its blocks needs a root")
    tip: Node | None = None
    if root != NO_ROOT:
        top = parts.tree.root(root)
        tip = hit.nodes[hit.blocks - 1] if hit.blocks else top
        if not tip.alive or tip.root is not top:
            raise ValueError(f"the hit does not lie under root {root} any more")
    return Row(chain, tip, keep, len(parts.pools))


def settle(parts: Parts, number: int, hit: Hit, ask: Ask) -> None:
    """Give a seated row everything it asked for."""
    row = parts.table.row(number)
    if hit.row != number:
        raise ValueError(f"this hit is not seated in row {number}")
    ask.check(hit, parts.table.columns)
    take_over = _may_take_over(hit)
    row.priority, row.duration = ask.decode_priority, ask.decode_duration
    for pool in parts.pools:
        before = pool.counters.copy()
        _reuse_full(parts, pool, number, hit, ask)
        first = hit.blocks
        if hit.source_pages:
            _reuse_partial(parts, pool, number, hit, ask.retention(first) if take_over else None, take_over)
            first += 1
        _fill(parts, pool, number, range(first, ask.blocks), ask)
        for _ in range(ask.spare):
            row.spares[pool.group].append(new_page(pool, ask.decode_priority, ask.decode_duration))
        parts.table.capacity[pool.group][number] = ask.blocks
        parts.table.row_counters[pool.group][number] = pool.counters - before
    hit.source_pages, hit.row = [], -1


def _may_take_over(hit: Hit) -> bool:
    """The source is an idle leaf and nobody else has a claim on it."""
    node = hit.source_node
    if node is None or node.children or not node.alive:
        return False
    return all(page.is_idle and page.claims == 1 for page in hit.source_pages)


def _reuse_full(parts: Parts, pool: Pool, number: int, hit: Hit, ask: Ask) -> None:
    """Count and retain the hit's pages, then bring the cold ones to the device."""
    table, group = parts.table, pool.group
    found = [(block, table.page(group, number, block)) for block in hit.needed(group)]
    pages = [(block, page) for block, page in found if page is not None]
    for block, page in pages:
        pool.count(REUSED_FULL)
        pool.count(REUSED_FROM + page.hottest)
        retention = ask.retention(block)
        if retention is not None:
            pool.set_priority(page, retention[0])
            page.duration = retention[1]
    for block, page in pages:
        if page.hottest > 0:
            onboard(pool, page)
        table.put(group, number, block, page)


def _reuse_partial(
    parts: Parts, pool: Pool, number: int, hit: Hit, retention: tuple[int, int] | None, take_over: bool
) -> None:
    """The matched tokens of the source: its own page, taken over, or a new page they are copied into."""
    source = hit.source_pages[pool.group]
    pool.count(REUSED_PARTIAL)
    pool.count(REUSED_FROM + source.hottest)
    pool.count(PARTIAL_FROM + source.hottest)
    if take_over:
        _take_over(pool, source)
        source.priority, source.duration = retention or (DEFAULT_PRIORITY, NEVER)
        parts.table.put(pool.group, number, hit.blocks, source)
        return
    target = new_page(pool, source.priority, source.duration)
    copy_tokens(pool, source, target, hit.matched)
    pool.unclaim(source)
    parts.table.put(pool.group, number, hit.blocks, target)


def _take_over(pool: Pool, page: Page) -> None:
    """An idle page leaves the tree and becomes a row's open page, on the device and nowhere else."""
    pool.unclaim(page)
    pool.hold(page)
    if page.hottest > 0:
        onboard(pool, page)
    pool.detach(page)
    pool.discard_colder(page)


def _fill(parts: Parts, pool: Pool, number: int, columns: Sequence[int], ask: Ask) -> None:
    """New pages for what has to be computed."""
    for column in columns:
        page = new_page(pool, *(ask.retention(column) or (DEFAULT_PRIORITY, NEVER)))
        pool.count(MISSED)
        parts.table.put(pool.group, number, column, page)
