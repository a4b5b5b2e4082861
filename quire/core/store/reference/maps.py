"""Slots, their order and nodes as arrays of small numbers, to be drawn part by part.

Owns what the columns mean. Shows no tokens; changes nothing.
"""

import numpy as np

from quire.core.store.interface import Int32Array
from quire.core.store.mapped import NodeColumn, SlotColumn, SlotState
from quire.core.store.reference.pools.pool import Pool
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import Node, Page
from quire.core.store.reference.tree.tree import below


def uses_of_page(pool: Pool, page: Page) -> int:
    """How often it was used, -1 where uses are not counted."""
    return -1 if pool.cells is None else page.uses


def slot_facts(pool: Pool, tier: int, slot: int) -> tuple[int, int, int, int]:
    """State, node, holders and uses of what lies in a slot."""
    order, page = pool.orders[tier], pool.orders[tier].owner[slot]
    if page is None:
        return SlotState.EMPTY if order.is_listed(slot) else SlotState.COMING, -1, 0, -1
    node = -1 if page.node is None else page.node.number
    if slot in order.shadows.turns:
        state = SlotState.SHADOW
    elif not order.is_listed(slot):
        state = SlotState.OPEN if page.node is None else SlotState.HELD
    else:
        state = SlotState.CLAIMED if page.claims else SlotState.IDLE
    return state, node, page.holders, uses_of_page(pool, page)


def map_slots(pool: Pool, tier: int, first: int, stop: int) -> Int32Array:
    """Rows of (state, node, holders, uses), one per slot."""
    rows = [slot_facts(pool, tier, slot) for slot in range(first, stop)]
    return np.array(rows, np.int32).reshape(-1, len(SlotColumn))


def map_order(pool: Pool, tier: int, limit: int) -> Int32Array:
    """Slots in the order in which they would be taken, those with a page only, at most `limit`."""
    order = pool.orders[tier]
    found = [*order.shadows.turns, *order.with_pages()]
    return np.array(found[: max(0, limit)], np.int32)


def node_facts(state: State, node: Node) -> tuple[int, ...]:
    """Number, parent, tokens and tips of a node; most holders and uses of its pages."""
    pages = [(pool, page) for pool, page in zip(state.pools, node.pages, strict=True) if page is not None]
    holders = max((page.holders for _, page in pages), default=0)
    uses = max((uses_of_page(pool, page) for pool, page in pages), default=-1)
    return node.number, -1 if node.parent is None else node.parent.number, node.size, node.tips, holders, uses


def map_nodes(state: State, first: int, limit: int) -> tuple[Int32Array, int]:
    """Rows of (node, parent, tokens, tips, holders, uses) from a number on; and the next number, -1: that was all."""
    found = [node for root in state.tree.roots.values() for node in (root, *below(root)) if node.number >= first]
    found.sort(key=lambda node: node.number)
    rows = [node_facts(state, node) for node in found[:limit]]
    after = found[limit].number if len(found) > limit else -1
    return np.array(rows, np.int32).reshape(-1, len(NodeColumn)), after
