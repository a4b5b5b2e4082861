"""Pages whose bytes come from outside: slots in any tier, findable when they are written.

Owns that present pages are neither asked for nor evicted on the way, and that a call gets all its pages or none. Knows
nothing of who writes. (Copy on write: `hits/partial` and `fork`.)
"""

from collections.abc import Sequence

import numpy as np

from quire.core.store.interface import Int32Array
from quire.core.store.reference.keys.chain import Chain
from quire.core.store.reference.learned.ages import fresh_class
from quire.core.store.reference.moves.attach import attach, is_unused, replace_page
from quire.core.store.reference.moves.events import log_stored
from quire.core.store.reference.moves.evict import NO_TIER, take_in
from quire.core.store.reference.moves.priority import refresh
from quire.core.store.reference.pools.listing import is_near
from quire.core.store.reference.pools.pool import Pool
from quire.core.store.reference.pools.reserve import Retention
from quire.core.store.reference.pools.state import NO_ROW, State
from quire.core.store.reference.rows.commit import Prompt, extend_known, set_kinds_along
from quire.core.store.reference.tree.node import Node, Page
from quire.core.store.reference.tree.tree import climb

Lack = tuple[int, int, int]  # group, pages wanted, slots that can be had


def write_blocks(
    state: State, root: Node | None, chain: Chain, tier: int, blocks: Sequence[list[int]], retention: Retention,
    *, now: int,
) -> list[tuple[Int32Array, Int32Array, Int32Array]] | Lack:  # fmt: skip
    """A page for every named block that has none, held by the caller; per group those blocks, their pages and slots."""
    last = max((block + 1 for some in blocks for block in some), default=0)
    nodes: list[Node] = []
    while root is not None and len(nodes) < last:
        child = (nodes[-1] if nodes else root).children.get(chain.block(len(nodes)))
        if child is None:
            break
        nodes.append(child)
    far = NO_TIER if tier == state.rules.slow else state.rules.slow  # what is there only counts as missing
    there = [[is_near(node.pages[pool.group], far) for node in nodes] for pool in state.pools]
    along = [(pool, page) for pool in state.pools for node in nodes if (page := node.pages[pool.group]) is not None]
    for pool, page in along:
        pool.claim_page(page)
    missing = [
        [block for block in some if block >= len(nodes) or not had[block]]
        for some, had in zip(blocks, there, strict=True)
    ]
    lack = next((lack for pool in state.pools if (lack := _lack(state, pool, tier, missing))), None)
    if not lack:
        refresh(state, now)
    fresh = fresh_class(len(nodes), len(chain) // state.rules.block_size)
    made = [
        [] if lack else make_pages(state, pool, tier, missing[pool.group], fresh, retention) for pool in state.pools
    ]
    for pool, page in along:
        pool.unclaim_page(page)
    if lack:
        return lack
    return [
        (np.array(some, np.int32), np.array([page.number for page in pages], np.int32),
         np.array([page.slots[tier] for page in pages], np.int32))
        for some, pages in zip(missing, made, strict=True)
    ]  # fmt: skip


def _lack(state: State, pool: Pool, tier: int, missing: list[list[int]]) -> Lack | None:
    """Whether a group's pool has less than its groups miss together."""
    have, need = room_in(pool, tier), sum(len(missing[other.group]) for other in state.pools if other.room is pool.room)
    return (pool.group, need, have) if missing[pool.group] and need > have else None


def room_in(pool: Pool, tier: int) -> int:
    """Slots of a tier that can be taken: listed, and not the hottest copy of a claimed page; on the device, less the
    reserve."""
    if tier == 0:
        return pool.available
    order = pool.orders[tier]
    return sum(order.is_listed(slot) and not order.is_claimed(slot) for slot in range(len(order.owner)))


def make_pages(state: State, pool: Pool, tier: int, missing: list[int], fresh: int, retention: Retention) -> list[Page]:
    """Open pages for these blocks."""
    if pool.cells is not None:
        pool.cells.fresh = fresh
    state.makes[0] = NO_ROW
    made = []
    for block in missing:
        slot = take_in(state, pool, tier)
        made.append(pool.open_page(slot, *retention.of_new(block), tier))
    return made


def publish(
    state: State, root: Node, chain: Chain, blocks: Sequence[list[int]], pages: Sequence[list[int]], prompt: Prompt
) -> int:
    """Written pages take their places in the tree, unless other pages came first, and are let go; how many did."""
    last = max((block + 1 for some in blocks for block in some), default=0)
    tip = extend_known(state, chain, root, 0, last)
    set_kinds_along(state, prompt, tip, 0)
    nodes = climb(tip, 0)
    stored = 0
    for pool, some, numbers in zip(state.pools, blocks, pages, strict=True):
        run: list[Node] = []
        before = -1
        for block, number in zip(some, numbers, strict=True):
            node = nodes[block]
            if run and before != block - 1:
                log_stored(state, pool, run)
                run = []
            other = node.pages[pool.group]
            if other is None:
                attach(pool, pool.page(number), node, state.rules.block_size)
                run.append(node)
                before = block
                stored += 1
            elif comes_up(state, pool.page(number), other):
                log_stored(state, pool, run)
                run = []
                replace_page(state, pool, other, pool.page(number))
                stored += 1
        log_stored(state, pool, run)
    for pool, some, numbers in zip(state.pools, blocks, pages, strict=True):
        let_go_written(pool, nodes, some, [pool.page(number) for number in numbers], state.now)
    return stored


def let_go_written(pool: Pool, nodes: list[Node], blocks: list[int], pages: list[Page], now: int) -> None:
    """Let go of the pages, the last first; what is above and between them is ranked anew."""
    for page in reversed(pages):
        pool.let_go(page, now)
    if blocks and pool.window is not None:
        for node in reversed(nodes[max(0, min(blocks) - pool.window.tail) :]):
            pool.rank_anew(node.pages[pool.group])


def comes_up(state: State, page: Page, other: Page) -> bool:
    """Whether a written page shall replace that of its block: one that is in the slow tier only."""
    return other.hottest == state.rules.slow and page.hottest < other.hottest and is_unused(other)
