"""Pages in a row's columns: brought up to the device, made for holes, and given up.

Owns what makes way for a page that comes up, by an exchange if need be, and that what is the row's own is counted.
Knows nothing of why; the caller has made sure that there is a slot to take.
"""

from collections.abc import Iterable

from quire.core.records.plan import Kind
from quire.core.store.reference.moves.events import log_moved
from quire.core.store.reference.moves.evict import evict_copy, new_page, note_move, offload_to, pick_device, soft_room
from quire.core.store.reference.moves.offload import has_shadow
from quire.core.store.reference.pools.pool import MISSED, NEW, OFFLOADED, ONBOARDED, Pool
from quire.core.store.reference.pools.reserve import Retention, count_own, keep_more
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import Page


def onboard(state: State, pool: Pool, page: Page) -> None:
    """Bring a held page from a colder tier to the device."""
    tier, slot = pool.place(page)
    target = pick_device(pool)
    victim = pool.owner(0, target)
    if victim is None:
        pool.unlist_slot(0, target)
        pool.count(NEW)
    elif not clear_slot(state, state.pools[victim.group], target, victim):
        if not page.stays and victim.group == page.group:
            exchange(state, pool, page, victim)
            return
        evict_copy(state, pool, 0, target)  # the page is read below, or a move would be of two groups
    state.moves.add(Kind.ONBOARD, pool.group, (tier, slot), (0, target), [page])
    pool.put_copy(page, 0, target)
    log_moved(state, pool, page, tier, 0)
    pool.count(ONBOARDED)
    if state.rules.shadows or page.stays:
        pool.orders[tier].push_shadow(slot)
    else:
        pool.discard_copy(page, tier)
    note_move(pool, page, tier, 0)


def clear_slot(state: State, pool: Pool, slot: int, victim: Page) -> bool:
    """Free a device slot without displacing idle pages below; False: only an exchange will do."""
    if has_shadow(state, victim) or victim.priority < state.rules.offload_min:
        evict_copy(state, pool, 0, slot)
        return True
    for tier in range(1, state.rules.num_fast):
        room = soft_room(pool, tier, pool.pick(tier))
        if room >= 0:
            pool.remove_copy(victim, 0)
            offload_to(state, pool, victim, (0, slot), (tier, room))
            return True
    return False


def exchange(state: State, pool: Pool, page: Page, victim: Page) -> None:
    """Full on both sides: the page and the device victim change places."""
    tier, slot = pool.place(page)
    target = victim.slots[0]
    state.moves.add(Kind.EXCHANGE, pool.group, (0, target), (tier, slot), [page, victim])
    pool.remove_copy(victim, 0)
    pool.remove_copy(page, tier)
    pool.put_copy(victim, tier, slot)
    pool.list_idle(victim)
    pool.put_copy(page, 0, target)
    log_moved(state, pool, victim, 0, tier)
    log_moved(state, pool, page, tier, 0)
    note_move(pool, victim, 0, tier)
    note_move(pool, page, tier, 0)
    pool.count(OFFLOADED)
    pool.count(ONBOARDED)


def fill_holes(state: State, pool: Pool, number: int, columns: Iterable[int], retention: Retention) -> int:
    """New pages for columns without one; how many."""
    table, stake = state.table, state.table.row(number).stakes[pool.group]
    holes = [column for column in columns if table.page(pool.group, number, column) is None]
    for column in holes:
        table.set_column(pool.group, number, column, new_page(state, pool, *retention.of_new(column)))
        pool.count(MISSED)
        count_own(pool, stake, 1)
    return len(holes)


def clear_columns(state: State, pool: Pool, number: int, columns: range) -> int:
    """The columns become holes, last to first; what was the row's own is not any more. Pages given up."""
    stake, cleared = state.table.row(number).stakes[pool.group], 0
    for column in reversed(columns):
        page = state.table.take_column(pool.group, number, column)
        if page is None:
            continue
        if stake.kept and column >= stake.base and page.holders > 1:
            keep_more(pool, stake, -1)  # what was set aside for it is used now
        pool.let_go(page, state.now)
        if column >= stake.base:
            count_own(pool, stake, -1)
        cleared += 1
    return cleared


def take_columns(state: State, pool: Pool, number: int) -> list[Page]:
    """All pages of a row for which nothing is reserved, the last first; its columns are holes from now on."""
    columns = range(int(state.table.capacity[pool.group][number]) - 1, -1, -1)
    pages = [state.table.take_column(pool.group, number, column) for column in columns]
    return [page for page in pages if page is not None]
