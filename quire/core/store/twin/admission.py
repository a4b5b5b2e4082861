"""Phase 2 for one request: seat turns its claim into holds, settle gives it slots, onboards and copies.

Owns the order of these steps and their counters. Between the two calls every request of a batch holds its pages, so no
settle can evict what another was promised. Knows nothing of budgets: the layer above has counted the slots.
"""

from collections.abc import Sequence

from quire.core.store.twin.chain import Chain
from quire.core.store.twin.chunk import Ask, Retention, check_asks, fill
from quire.core.store.twin.current import begin
from quire.core.store.twin.evict import copy_tokens, new_page, onboard
from quire.core.store.twin.hits import Hit
from quire.core.store.twin.page import Page
from quire.core.store.twin.parts import Parts
from quire.core.store.twin.pool import PARTIAL_FROM, REUSED_FROM, REUSED_FULL, REUSED_PARTIAL, Pool
from quire.core.store.twin.promise import Stake, count_own, promise
from quire.core.store.twin.table import Row
from quire.core.store.twin.tree import Node

NO_ROOT = -1


def seat(parts: Parts, hit: Hit, number: int, row: Row) -> None:
    """A claimed hit becomes the holds of a new row; the claim on a partial source stays until settle."""
    tip, table = row.tip, parts.table
    for pool, pages in zip(parts.pools, hit.pages_held, strict=True):
        for block, page in zip(hit.held_blocks(pool.group), pages, strict=True):
            pool.unclaim(page)
            pool.hold(page)
            table.put(pool.group, number, block, page)
        table.capacity[pool.group][number] = max(hit.blocks, _reach_of(hit, pool.group))
    table.occupy(number, row, hit.start, hit.blocks)
    if tip is not None:
        parts.tree.add_tip(tip)
    hit.seated(number)


def _reach_of(hit: Hit, group: int) -> int:
    """Columns up to the last held block: a claim with needs may hold blocks beyond the hit's."""
    return max(hit.held_blocks(group), default=-1) + 1


def new_row(parts: Parts, hit: Hit, chain: Chain, root: int, keep: bool) -> Row:
    """The row a hit will become; once everything is checked, the node it will go on from exists."""
    if not hit.claimed:
        raise ValueError("only a claimed hit can be seated")
    blocks = max(hit.blocks, *(_reach_of(hit, pool.group) for pool in parts.pools))
    if blocks > parts.table.columns:
        raise ValueError(f"the hit has {blocks} blocks, a row {parts.table.columns} columns")
    if root == NO_ROOT and keep:
        raise ValueError("a row that keeps its blocks needs a root")
    tip = None if root == NO_ROOT else _tip(parts, hit, chain, parts.tree.root(root))
    row = Row(chain, tip, keep, [Stake(hit.front(pool.group), hit.blocks) for pool in parts.pools])
    row.ahead = hit.has_needs
    return row


def _tip(parts: Parts, hit: Hit, chain: Chain, root: Node) -> Node:
    """The node of the hit's last block, made again when it went: the claim may be on other blocks than that."""
    tip = hit.nodes[hit.blocks - 1] if hit.blocks else root
    kept = any(_reach_of(hit, pool.group) >= hit.blocks for pool in parts.pools)  # by a page there, or below
    if (kept and tip.root is not root) or len(chain) < hit.blocks * parts.rules.block_size:
        raise ValueError(f"the hit does not lie under root {root.number}")
    if tip.alive and tip.root is root:
        return tip
    tip = root
    for block in range(hit.blocks):
        tip = parts.tree.child(tip, chain.block(block))
    return tip


def settle(
    parts: Parts, number: int, hit: Hit, asks: Sequence[Ask], retention: Retention, decode: tuple[int, int]
) -> None:
    """Give a seated row everything it asked for; `decode`: priority and duration of pages made later on."""
    row = parts.table.row(number)
    _check(parts, number, hit, asks, retention)
    row.priority, row.duration = decode
    take_over = _may_take_over(hit)
    for pool, ask in zip(parts.pools, asks, strict=True):
        before, reach = pool.counters.copy(), parts.reaches[pool.group]
        _reuse_full(parts, pool, number, hit.held_blocks(pool.group), retention)
        if hit.source_pages:
            _reuse_partial(parts, pool, number, hit, retention.of_new(hit.blocks) if take_over else None)
        fill(parts, pool, number, (*range(min(reach.sink, ask.first)), *range(ask.first, ask.stop)), retention)
        for _ in range(ask.spare):
            row.spares[pool.group].append(new_page(pool, row.priority, row.duration))
        held = 0 if reach.current else _reach_of(hit, pool.group)
        parts.table.capacity[pool.group][number] = max(ask.stop, held)
        promise(pool, row.stakes[pool.group], ask.peak)
        parts.table.row_counters[pool.group][number] = pool.counters - before
    hit.settled()


def _check(parts: Parts, number: int, hit: Hit, asks: Sequence[Ask], retention: Retention) -> None:
    if hit.row != number:
        raise ValueError(f"this hit is not seated in row {number}")
    check_asks(parts, asks, retention)
    lowest = hit.blocks + (hit.source_node is not None)
    for reach, ask in zip(parts.reaches, asks, strict=True):
        if not reach.current and ask.stop < lowest:
            raise ValueError(f"columns up to {ask.stop} asked, the hit has {lowest}")


def _may_take_over(hit: Hit) -> bool:
    """The source is an idle leaf and nobody else has a claim on it."""
    node = hit.source_node
    if node is None or node.children or not node.alive:
        return False
    return all(page.is_idle and page.claims == 1 for page in hit.source_pages)


def _reuse_full(parts: Parts, pool: Pool, number: int, held: Sequence[int], retention: Retention) -> None:
    """Count and retain the held pages, then bring the cold ones to the device; a state goes on from a copy."""
    table, group = parts.table, pool.group
    pages = [(block, pool.pages[table.pages[group][number, block]]) for block in held]
    for block, page in pages:
        pool.count(REUSED_FULL)
        pool.count(REUSED_FROM + page.hottest)
        asked = retention.asked(block)
        if asked is not None:
            pool.set_priority(page, asked[0])
            page.duration = asked[1]
    if parts.reaches[group].current:
        begin(parts, pool, number, held)
        return
    for block, page in pages:
        if page.hottest > 0:
            onboard(pool, page)
        table.put(group, number, block, page)


def _reuse_partial(parts: Parts, pool: Pool, number: int, hit: Hit, taken_over: tuple[int, int] | None) -> None:
    """The matched tokens of the source: its own page, taken over with this retention, or copied into a new page."""
    page = source = hit.source_pages[pool.group]
    pool.count(REUSED_PARTIAL)
    pool.count(REUSED_FROM + source.hottest)
    pool.count(PARTIAL_FROM + source.hottest)
    if taken_over is not None:
        _take_over(pool, source)
        source.priority, source.duration = taken_over
    else:
        page = new_page(pool, source.priority, source.duration)
        copy_tokens(pool, source, page, hit.matched)
        pool.unclaim(source)
    parts.table.put(pool.group, number, hit.blocks, page)
    count_own(pool, parts.table.row(number).stakes[pool.group], 1)


def _take_over(pool: Pool, page: Page) -> None:
    """An idle page leaves the tree and becomes a row's open page, on the device and nowhere else."""
    pool.unclaim(page)
    pool.hold(page)
    if page.hottest > 0:
        onboard(pool, page)
    pool.detach(page)
    pool.discard_colder(page)
