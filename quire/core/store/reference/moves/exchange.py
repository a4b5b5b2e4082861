"""The exchange: full on both sides, a page comes up to the device into the slot of one that goes down into its own.

Owns that move and its account. Knows nothing of when there is no other way (`onboard`).
"""

from quire.core.records.plan import Kind
from quire.core.store.reference.moves.events import log_moved
from quire.core.store.reference.moves.offload import note_move
from quire.core.store.reference.pools.pool import OFFLOADED, ONBOARDED, Pool
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import Page


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
