"""The whole state as plain Python values, for tests: equal in both stores, so a node is named by its path.

Owns the layout of the dump. Changes nothing; linear in everything.
"""

from typing import Any

from quire.core.store.twin.chain import decode
from quire.core.store.twin.node import Node, Page
from quire.core.store.twin.order import Order
from quire.core.store.twin.pool import Pool
from quire.core.store.twin.state import Row, State
from quire.core.store.twin.traverse import subtree

Path = tuple[Any, ...]


def dump(state: State) -> dict[str, Any]:
    roots = list(state.tree.roots.values())
    nodes = [node for root in roots for node in subtree(root) if node is not root]
    return {
        "nodes": sorted(_node(node) for node in nodes),
        "groups": [_group(pool) for pool in state.pools],
        "rows": {number: _row(state, number) for number, row in enumerate(state.table.rows) if row is not None},
        "roots": sorted((root.hash, len(root.children)) for root in roots),
    }


def path(node: Node | None) -> Path | None:
    """Hash of the root, then per block the identities of its tokens."""
    if node is None:
        return None
    blocks: list[Any] = []
    while node.parent is not None:
        tokens, extras = decode(node.identity)
        blocks.append(tuple((token, *words) for token, words in zip(tokens.tolist(), extras.tolist(), strict=True)))
        node = node.parent
    return (node.hash, *reversed(blocks))


def _node(node: Node) -> tuple[Any, ...]:
    pages = tuple(-1 if page is None else page.number for page in node.pages)
    return (path(node), node.size, pages, len(node.children), node.tips)


def _page(page: Page) -> tuple[Any, ...]:
    retention = (page.priority, page.duration, page.expiry)
    return (path(page.node), page.holders, page.claims, tuple(page.slots), *retention)


def _group(pool: Pool) -> dict[str, Any]:
    return {
        "pages": {page.number: _page(page) for page in pool.pages if not page.is_free},
        "orders": [_order(order) for order in pool.orders],
        "free_pages": list(pool.free_pages),
        "available": pool.available,
        "counters": pool.counters.tolist(),
    }


def _order(order: Order) -> dict[int, list[int]]:
    return {level: list(queue.turns) for level, queue in enumerate(order.queues) if queue.turns}


def _row(state: State, number: int) -> tuple[Any, ...]:
    table = state.table
    row = table.row(number)
    numbers = (int(table.length[number]), int(table.computed[number]), int(table.committed[number]))
    spares = [[page.number for page in pages] for pages in row.spares]
    kept = (path(row.tip), row.keep, row.twins, spares, row.priority, row.duration)
    reach = (row.ahead, int(table.handed[number]), row.reached)
    return (*numbers, row.chain.tokens().tolist(), *kept, *_stakes(row), *reach)


def _stakes(row: Row) -> tuple[list[int], ...]:
    """One list per number, each by group."""
    names = ("front", "shown", "base", "own", "peak")
    currents = [-1 if stake.current is None else stake.current.number for stake in row.stakes]
    return (*([getattr(stake, name) for stake in row.stakes] for name in names), currents)
