"""How holds end: release of a row, holds beyond it, pages and copies lost by a failed move.

Owns the order in which pages are given up. Knows nothing of how they were had.
"""

import numpy as np

from quire.core.store.twin.chain import IntArray
from quire.core.store.twin.commit import attach_rest, commit
from quire.core.store.twin.parts import Parts


def release(parts: Parts, number: int, keep_tail: bool, now: int) -> None:
    """Give up a row, the deepest pages first; with `keep_tail` what it computed stays findable."""
    table = parts.table
    row = table.row(number)
    parts.now = now
    if keep_tail:
        commit(parts, [number], table.computed[[number]])
        attach_rest(parts, number)
    for pool in parts.pools:
        for page in reversed(row.spares[pool.group]):
            pool.unhold(page, now)
        for column in range(int(table.capacity[pool.group][number]) - 1, -1, -1):
            found = table.remove(pool.group, number, column)
            if found is not None:
                pool.unhold(found, now)
    table.vacate(number)
    if row.tip is not None:
        parts.tree.drop_tip(row.tip)


def hold(parts: Parts, group: int, number: int, span: tuple[int, int]) -> IntArray:
    """One more holder for the row's pages in these columns; their ids."""
    parts.table.row(number)
    first, last = span
    if not 0 <= first <= last <= parts.table.columns:
        raise ValueError(f"columns [{first}, {last}) are not in a row of {parts.table.columns}")
    cells = parts.table.pages[group][number, first:last]
    held: IntArray = cells[cells >= 0].astype(np.int32)
    for page in held:
        parts.pools[group].hold(parts.pools[group].pages[page])
    return held


def unhold(parts: Parts, group: int, pages: list[int], now: int) -> None:
    """Give up such holds, last to first."""
    pool = parts.pools[group]
    found = [pool.page(number) for number in pages]
    if any(page.holders == 0 for page in found):
        raise ValueError("a page has no holder to give up")
    parts.now = now
    for page in reversed(found):
        pool.unhold(page, now)


def lose(parts: Parts, group: int, number: int, stamp: int) -> bool:
    """The bytes of a page never came: it leaves the tree; held, it lives on as an open page of its holders."""
    pool = parts.pools[group]
    page = pool.page(number)
    if page.stamp != stamp or page.is_free:
        return False
    if page.holders == 0 and page.claims:
        raise ValueError(f"page {number} of group {group} is claimed: drop the claims first")
    if page.node is not None:
        pool.detach(page)
    if page.holders:
        pool.discard_colder(page)
    else:
        pool.free(page)
    return True


def drop_copy(parts: Parts, group: int, number: int, tier: int) -> bool:
    """Give up a shadow; False when the page has none on that tier."""
    page = parts.pools[group].page(number)
    if not page.hottest < tier < len(page.slots) or page.slots[tier] < 0 or page.hottest < 0:
        return False
    parts.pools[group].discard_copy(page, tier)
    return True
