"""The whole state as plain Python values, equal in both stores, in time proportional to its size.

Owns how the records of a dump are filled. Changes nothing.
"""

from quire.core.store.dumped import (
    EMPTY,
    LOST,
    NONE,
    SHADOW,
    Dump,
    DumpedCells,
    DumpedGhost,
    DumpedGroup,
    DumpedKinds,
    DumpedNode,
    DumpedPage,
    DumpedReuse,
    DumpedRow,
    PageInfo,
)  # fmt: skip
from quire.core.store.reference.keys.chain import decode
from quire.core.store.reference.learned.cells import Cells
from quire.core.store.reference.orders.adaptive import Adaptive
from quire.core.store.reference.pools.order import Order
from quire.core.store.reference.pools.pool import Pool
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import Node, Page
from quire.core.store.reference.tree.point_kinds import Kinds
from quire.core.store.reference.tree.tree import below

Numbers = dict[Node, int]  # node -> its number in the dump


def dump(state: State) -> Dump:
    numbers: Numbers = {}
    nodes: list[DumpedNode] = []
    for root in sorted(state.tree.roots.values(), key=lambda root: root.hash):
        for node in (root, *below(root)):
            numbers[node] = len(nodes)
            nodes.append(dump_node(node, numbers))
    groups = [dump_group(pool, numbers) for pool in state.pools]
    live = [number for number, row in enumerate(state.table.rows) if row is not None]
    rows = {number: dump_row(state, number, numbers) for number in live}
    return Dump(nodes, groups, rows, None if state.kinds is None else dump_kinds(state.kinds))


def dump_kinds(kinds: Kinds) -> DumpedKinds:
    return DumpedKinds(list(kinds.cost), list(kinds.gain), list(kinds.is_kept))


def number_of(numbers: Numbers, node: Node | None) -> int:
    """A node's number in the dump."""
    return NONE if node is None else numbers.get(node, LOST)


def dump_node(node: Node, numbers: Numbers) -> DumpedNode:
    tokens, extras = decode(node.identity)
    words = tuple(map(tuple, extras.tolist())) if extras.any() else ()
    pages = tuple(NONE if page is None else page.number for page in node.pages)
    parent = number_of(numbers, node.parent)
    return DumpedNode(
        parent,
        node.root.hash,
        node.size,
        tuple(tokens.tolist()),
        words,
        pages,
        len(node.children),
        node.tips,
        node.asked,
        node.kind,
    )


def dump_page(page: Page, numbers: Numbers) -> DumpedPage:
    retention = (page.priority, page.duration, page.expiry)
    kept = (page.stays, page.copying, page.unwanted)
    return DumpedPage(number_of(numbers, page.node), page.holders, page.claims, tuple(page.slots), *retention, *kept)


def own_pages(pool: Pool) -> list[Page]:
    """Pages in use that are of the group itself."""
    return [page for page in pool.pages if page.group == pool.group and not page.is_free]


def dump_group(pool: Pool, numbers: Numbers) -> DumpedGroup:
    pages = {page.number: dump_page(page, numbers) for page in own_pages(pool)}
    orders = [dump_order(order) for order in pool.orders]
    cells = None if pool.cells is None else dump_cells(pool, pool.cells)
    return DumpedGroup(pages, orders, list(pool.room.free_pages), pool.available, pool.counters.tolist(), cells)


def dump_order(order: Order) -> dict[int, list[int]]:
    """Class -> slots front to back, classes that are not empty only."""
    empties = [] if order.ranking.empties_wait else list(order.empty_slots)
    own = {EMPTY: empties, SHADOW: list(order.shadows.turns)}
    return {level: slots for level, slots in own.items() if slots} | order.ranking.census()


def dump_cells(pool: Pool, cells: Cells) -> DumpedCells:
    order = pool.orders[0].ranking
    assert isinstance(order, Adaptive)
    return DumpedCells(
        pages={page.number: DumpedReuse(page.uses, page.reuse, page.used) for page in own_pages(pool)},
        ghosts=[None if ghost is None else DumpedGhost(*ghost[1:]) for ghost in cells.ghosts.places]
        + [None] * (cells.ghosts.room - len(cells.ghosts.places)),
        hits=cells.hits.ravel().tolist(),
        lost=cells.lost.ravel().tolist(),
        inserted=cells.inserted,
        made=cells.made,
        rank=order.rank,
        recency=cells.recency,
        rival=(cells.rival.gained, cells.rival.missed, cells.rival.watched, len(cells.rival)),
        clock=(cells.now, cells.asked, cells.aged),
    )


def dump_row(state: State, number: int, numbers: Numbers) -> DumpedRow:
    table = state.table
    row = table.row(number)
    return DumpedRow(
        length=int(table.length[number]),
        computed=int(table.computed[number]),
        committed=int(table.committed[number]),
        tokens=row.chain.tokens().tolist(),
        tip=number_of(numbers, row.tip),
        keep=row.keep,
        twins=row.twins,
        spares=[[page.number for page in pages] for pages in row.spares],
        priority=row.priority,
        duration=row.duration,
        fronts=[stake.front for stake in row.stakes],
        showns=[stake.shown for stake in row.stakes],
        bases=[stake.base for stake in row.stakes],
        owns=[stake.own for stake in row.stakes],
        peaks=[stake.peak for stake in row.stakes],
        currents=[NONE if stake.current is None else stake.current.number for stake in row.stakes],
        ahead=row.ahead,
        handed=int(table.handed[number]),
        reached=row.reached,
        launched=int(table.launched[number]),
        prompt=row.prompt,
        fresh=[stake.fresh for stake in row.stakes],
        followed=[stake.followed for stake in row.stakes],
        written=[stake.written for stake in row.stakes],
    )


def page_info(page: Page) -> PageInfo:
    """One page now."""
    node = NONE if page.node is None else page.node.number
    return PageInfo(node, page.holders, page.claims, page.priority, page.duration, page.expiry, page.group, page.stamp)
