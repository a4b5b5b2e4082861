"""Holds of a row's pages beyond the row.

Owns that the room of held pages that are to leave a row is made up for. Knows nothing of whom they are for.
"""

import numpy as np

from quire.core.store.interface import Int32Array
from quire.core.store.reference.pools.reserve import keep_more
from quire.core.store.reference.pools.state import State


def hold(state: State, group: int, number: int, span: tuple[int, int]) -> Int32Array | None:
    """One more holder for what the row has in these columns; page ids, None when there is no room for that."""
    row, table, pool = state.table.row(number), state.table, state.pools[group]
    first, last = span
    if not 0 <= first <= last <= table.columns:
        raise ValueError(f"columns [{first}, {last}) are not in a row of {table.columns}")
    stake = row.stakes[group]
    if state.groups[group].current:
        inside = first * table.block_size < int(table.computed[number]) <= last * table.block_size
        pages = [stake.current] if inside and not table.is_past(number) else []
    else:
        pages = table.pages_in(group, number, range(first, last))
        kept = sum(page is not None for page in pages[max(0, stake.base - first) :])
        if stake.peak:  # these will leave the row and not be room again: as many more must be reserved
            if pool.is_short(kept):
                return None
            keep_more(pool, stake, kept)
    held = [page for page in pages if page is not None]
    for page in held:
        pool.hold_page(page)
    return np.array([page.number for page in held], np.int32)


def unhold(state: State, group: int, pages: list[int], now: int) -> None:
    """Give up such holds, last to first."""
    pool = state.pools[group]
    found = [pool.page(number) for number in pages]
    if any(page.holders == 0 for page in found):
        raise ValueError("a page has no holder to give up")
    state.tell_time(now)
    for page in reversed(found):
        pool.let_go(page, now)
