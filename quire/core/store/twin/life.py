"""How holds end: release of a row, holds beyond it, pages and copies lost by a failed move.

Owns the order in which pages are given up. Knows nothing of how they were had.
"""

import numpy as np

from quire.core.store.twin.chain import IntArray
from quire.core.store.twin.commit import attach_rest, commit
from quire.core.store.twin.current import end
from quire.core.store.twin.parts import Parts
from quire.core.store.twin.promise import keep_more, promise


def release(parts: Parts, number: int, keep_tail: bool, now: int) -> None:
    """Give up a row, the deepest pages first; with `keep_tail` what it computed stays findable."""
    table = parts.table
    row = table.row(number)
    parts.now = now
    for pool, stake in zip(parts.pools, row.stakes, strict=True):
        promise(pool, stake, 0)
    if keep_tail:
        ahead = row.ahead
        commit(parts, [number], table.computed[[number]])
        attach_rest(parts, number, ahead)
    for pool in parts.pools:
        for page in reversed(row.spares[pool.group]):
            pool.unhold(page, now)
        for column in range(int(table.capacity[pool.group][number]) - 1, -1, -1):
            found = table.remove(pool.group, number, column)
            if found is not None:
                pool.unhold(found, now)
        end(parts, pool, number)
    table.vacate(number)
    if row.tip is not None:
        parts.tree.drop_tip(row.tip)


def hold(parts: Parts, group: int, number: int, span: tuple[int, int]) -> IntArray | None:
    """One more holder for what the row has in these columns; page ids, None when promised pages find no room."""
    row, table, pool = parts.table.row(number), parts.table, parts.pools[group]
    first, last = span
    if not 0 <= first <= last <= table.columns:
        raise ValueError(f"columns [{first}, {last}) are not in a row of {table.columns}")
    stake = row.stakes[group]
    if parts.reaches[group].current:
        inside = first * table.block_size < int(table.computed[number]) <= last * table.block_size
        pages = [stake.current] if inside and not table.is_past(number) else []
    else:
        pages = table.pages_in(group, number, range(first, last))
        kept = sum(page is not None for page in pages[max(0, stake.base - first) :])
        if stake.peak:  # these will leave the row and not be room again: as many more must be promised
            if pool.lacks(kept):
                return None
            keep_more(pool, stake, kept)
    held = [page for page in pages if page is not None]
    for page in held:
        pool.hold(page)
    return np.array([page.number for page in held], np.int32)


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
