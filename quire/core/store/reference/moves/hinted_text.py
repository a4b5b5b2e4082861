"""Hints of callers: on the text of a row that ends, on what its session leaves behind, on any text.

Owns which blocks a hint applies to. For a row these are its *own text*: from its end up to where another text parts, or
has parted. Knows nothing of what an order makes of it.
"""

from typing import NamedTuple

from quire.core.store.reference.keys.chain import Chain
from quire.core.store.reference.pools.pool import NEVER_BACK, SUPERSEDED, TOLD, Pool
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import Node, Page

LATER_BACK = NEVER_BACK - 1
APART = 4  # uses of a block more than of the next: turns may have ended between them; more were other texts


class End(NamedTuple):
    """Where a row ended, for the next of its session; it may be gone by then."""

    tip: Node
    begun: int  # blocks that were there before it
    ended: int  # the latest time by then


def hint_along(state: State, root: Node, chain: Chain, keep: int, back: int) -> int:
    """Hint when the text of a chain comes back, from the first block that starts at `keep` or later; its page count.

    Where nothing is learned, *never* ranks no block that another text goes on from: no use of it would come to light.
    """
    nodes, below, alone = blocks_along(state, root, chain), None, True
    first, count = -(-keep // state.rules.block_size), 0
    for node in reversed(nodes[first:]):
        alone = alone and goes_on_alone(node, below)
        heard = [pool for pool in state.pools if alone or back != NEVER_BACK or pool.cells is not None]
        count += sum([hint_page(pool, node.pages[pool.group], back) for pool in heard])
        below = node
    return count


def blocks_along(state: State, root: Node, chain: Chain) -> list[Node]:
    """The blocks of a chain that are in the tree, one behind the other; the last may be partial: the longest."""
    nodes, size, parent = list[Node](), state.rules.block_size, root
    most = min(len(chain) // size, state.table.columns)
    while len(nodes) < most and (child := parent.children.get(chain.block(len(nodes)))):
        nodes.append(child)
        parent = child
    first = len(nodes) * size
    for end in range(min(first + size, len(chain) + 1) - 1, first, -1):
        if (child := parent.children.get(chain.span(first, end))) is not None:
            return [*nodes, child]
    return nodes


def hint_page(pool: Pool, page: Page | None, back: int) -> bool:
    """A page comes back then, if there is one."""
    if page is not None:
        if back:
            pool.count(TOLD + back)
        pool.hear_page(page, back)
    return page is not None


def hint_row(state: State, number: int, tail: Node | None, back: int) -> None:
    """A row ends, and its own text comes back then; `tail`: the partial block that it leaves. A hint that a person is
    thinking counts only where a tool has run before."""
    row = state.table.row(number)
    if row.tip is None or not row.keep:
        return
    for pool, stake in zip(state.pools, row.stakes, strict=True):
        believed = back != LATER_BACK or stake.followed or pool.cells is None
        for page in own_text(pool, row.tip, tail, (row.begun if pool.cells is None else 0, 1, None)):
            if believed:
                hint_page(pool, page, back)
            else:
                pool.count(TOLD + back)


def own_text(pool: Pool, tip: Node, tail: Node | None, bounds: tuple[int, int, int | None]) -> list[Page]:
    """Pages of a text from its end up, as far as no other goes on from there or was asked for apart from it. Bounds:
    blocks that are not looked at, rows that may end at the tip, and the latest time of a page's last use."""
    floor, tips, latest = bounds
    found = [] if tail is None or tail.pages[pool.group] is None else [tail.pages[pool.group]]
    below, node, uses = tail, tip, 0
    while node.parent is not None and node.depth > floor and node.tips <= tips and goes_on_alone(node, below):
        page = node.pages[pool.group]
        if page is not None:
            if pool.cells is not None and (0 < uses < page.uses - APART or (latest is not None and page.used > latest)):
                break
            found.append(page)
            uses = page.uses
        below, node, tips = node, node.parent, 0
    return [page for page in found if page is not None]


def goes_on_alone(node: Node, below: Node | None) -> bool:
    """Whether no text goes on from a block but the one below; the partial end of an earlier turn is none."""
    others = [child for child in node.children.values() if child is not below]
    return not others or (len(others) == 1 and others[0].size < node.size)


def end_of_row(state: State, number: int) -> End | None:
    """Where a row ends; None: it has left nothing."""
    row = state.table.row(number)
    if row.tip is None or row.tip.parent is None or not row.keep:
        return None
    return End(row.tip, row.begun, max((room.cells.now for room in state.rooms if room.cells is not None), default=0))


def supersede(state: State, number: int, end: End) -> int:
    """A seated row continues where the last row of its session ended, or leaves text behind; that text's page count."""
    row, tip = state.table.row(number), end.tip
    if row.tip is None or not row.keep or not tip.alive or tip.root is not row.tip.root:
        return 0
    shared, tail, count = shared_with(state, tip, row.chain), end_below(tip), 0
    for pool in state.pools if shared < tip.depth else ():
        floor = shared if pool.cells is not None else max(shared, end.begun)
        for page in own_text(pool, tip, tail, (floor, 0, end.ended)):
            pool.count(SUPERSEDED)
            pool.hear_page(page, NEVER_BACK)
            count += 1
    return count


def shared_with(state: State, tip: Node, chain: Chain) -> int:
    """Blocks up to a tip that a chain begins with."""
    nodes, node = blocks_along(state, tip.root, chain), tip  # a partial block is no tip
    while node.parent is not None and (node.depth > len(nodes) or nodes[node.depth - 1] is not node):
        node = node.parent
    return node.depth


def end_below(tip: Node) -> Node | None:
    """The partial block that a row has left below its last one, if nothing else is there."""
    child = next(iter(tip.children.values()), None)
    return child if child is not None and len(tip.children) == 1 and child.size < tip.size else None
