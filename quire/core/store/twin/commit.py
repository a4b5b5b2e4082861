"""Commit: pages of full, computed blocks become findable; at release twins and the computed tail do too.

Owns who gets a node's place when two rows have computed the same block. Knows nothing of how rows end.
"""

from quire.core.store.twin.chain import IntArray
from quire.core.store.twin.page import Page
from quire.core.store.twin.parts import Parts
from quire.core.store.twin.pool import Pool
from quire.core.store.twin.table import Row
from quire.core.store.twin.tree import Node


def commit(parts: Parts, rows: list[int], computed: IntArray | None) -> int:
    """KV of these rows exists up to `computed` (None: up to their length); pages newly attached."""
    table = parts.table
    if computed is not None and len(computed) != len(rows):
        raise ValueError(f"{len(computed)} numbers given for {len(rows)} rows")
    if len(set(rows)) != len(rows):
        raise LookupError("a row is named twice")
    chains = [table.row(number).chain for number in rows]
    marks = [len(chain) for chain in chains] if computed is None else [int(mark) for mark in computed]
    for number, chain, mark in zip(rows, chains, marks, strict=True):
        if mark > len(chain):
            raise ValueError(f"row {number} has {len(chain)} tokens, {mark} cannot be computed")
    return sum(_commit_row(parts, number, mark) for number, mark in zip(rows, marks, strict=True))


def _commit_row(parts: Parts, number: int, computed: int) -> int:
    table = parts.table
    row = table.row(number)
    table.computed[number] = max(int(table.computed[number]), computed)
    first, stop = int(table.committed[number]), computed // table.block_size
    if not row.keep or row.tip is None or stop <= first:
        return 0
    nodes: list[Node] = []
    tip = row.tip
    for block in range(first, stop):
        tip = parts.tree.child(tip, row.chain.block(block))
        nodes.append(tip)
    parts.tree.add_tip(tip)
    parts.tree.drop_tip(row.tip)
    row.tip = tip
    table.committed[number] = stop
    return sum(_commit_pages(parts, pool, row, nodes, _pages(parts, pool, number, first, stop)) for pool in parts.pools)


def _pages(parts: Parts, pool: Pool, number: int, first: int, stop: int) -> list[Page | None]:
    return [parts.table.page(pool.group, number, column) for column in range(first, stop)]


def _commit_pages(parts: Parts, pool: Pool, row: Row, nodes: list[Node], pages: list[Page | None]) -> int:
    """Put one group's pages on their nodes; consecutive new ones are told as one run."""
    attached = 0
    run: list[Node] = []
    for node, page in zip(nodes, pages, strict=True):
        other = node.pages[pool.group]
        if page is not None and page.is_open and other is None:
            pool.attach(page, node)
            run.append(node)
            attached += 1
            continue
        _tell(pool, run)
        run = []
        if page is None or other is None or not page.is_open:
            continue  # a hole, or a page that has its node already
        if _is_cold_duplicate(other) and page.slots[0] >= 0:
            _replace(pool, other, page, parts.inherit)
        else:
            row.twins += 1
    _tell(pool, run)
    return attached


def _tell(pool: Pool, run: list[Node]) -> None:
    if run:
        pool.events.stored(pool.group, run)


def _is_cold_duplicate(page: Page) -> bool:
    return page.is_idle and page.claims == 0 and page.slots[0] < 0


def _replace(pool: Pool, old: Page, new: Page, inherit: bool) -> None:
    """A device page takes the node of an idle page that has only colder copies; those become its shadows."""
    node, hottest, priority = old.node, old.hottest, old.priority
    assert node is not None
    for tier, slot in enumerate(old.slots):
        if slot < 0:
            continue
        if pool.rules.shadows and inherit and new.slots[tier] < 0:
            pool.strip(old, tier)
            pool.add_copy(new, tier, slot)
            pool.orders[tier].push_shadow(slot)
        else:
            pool.discard_copy(old, tier)
    old.node = None
    pool.free_id(old)
    pool.attach(new, node)
    pool.events.moved(pool.group, node, hottest, 0)
    pool.events.retained(pool.group, node, priority, new.priority)


def attach_rest(parts: Parts, number: int) -> None:
    """Before a row goes: its twins take places that have become free, its computed tail becomes a partial block."""
    row = parts.table.row(number)
    if not row.keep or row.tip is None:
        return
    if row.twins:
        _attach_twins(parts, number, row.tip)
    _attach_tail(parts, number, row, row.tip)


def _attach_twins(parts: Parts, number: int, tip: Node) -> None:
    """Deepest block first, groups ascending."""
    node = tip
    for column in range(int(parts.table.committed[number]) - 1, -1, -1):
        for pool in parts.pools:
            page = parts.table.page(pool.group, number, column)
            if page is not None and page.is_open and node.pages[pool.group] is None:
                pool.attach(page, node)
                pool.events.stored(pool.group, [node])
        assert node.parent is not None
        node = node.parent


def _attach_tail(parts: Parts, number: int, row: Row, tip: Node) -> None:
    """The tokens after the last full block, unless a child begins with them already."""
    table = parts.table
    column, computed = int(table.committed[number]), int(table.computed[number])
    if not 0 < computed - column * table.block_size < table.block_size:
        return
    tail = row.chain.span(column * table.block_size, computed)
    for pool in parts.pools:
        page = table.page(pool.group, number, column)
        if page is None or not page.is_open or page.holders != 1 or tip.covers(tail, pool.group):
            continue
        node = parts.tree.child(tip, tail)
        pool.attach(page, node)
        pool.events.stored(pool.group, [node])
