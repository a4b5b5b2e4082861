"""The change of a page's priority: by request, or when its time is over.

Owns that an idle page goes to the back of its new class, and that the change is logged. Knows nothing of who asks.
"""

from quire.core.store.reference.moves.events import log_retained
from quire.core.store.reference.pools.pool import Pool
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import DEFAULT_PRIORITY, Page


def set_priority(state: State, pool: Pool, page: Page, priority: int) -> None:
    before, page.priority = page.priority, priority
    log_retained(state, pool, page, before, priority)
    if page.is_idle:
        pool.relist(page)


def refresh(state: State, now: int) -> None:
    """Idle pages whose time is over fall back to the default priority; in the adaptive order all have become older."""
    state.tell_time(now)
    for room in state.rooms:
        while (page := room.expiries.take_due(now)) is not None:
            if page.is_idle:
                set_priority(state, state.pools[page.group], page, DEFAULT_PRIORITY)
        if room.cells is not None and room.cells.is_aging():
            for order in room.orders:
                order.ranking.age(room.cells.aged)
