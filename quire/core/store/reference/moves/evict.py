"""How a slot becomes free and a page is made in it: take, evict, make room in a colder tier.

Which page goes next is its order's choice (`orders/`, by way of `pools/order`). Owns the decision which copy of it goes
where, and the moves and counters that follow. Knows nothing of rows or hits; the caller has made sure that there is a
slot to take.

    evict a copy:   shadow below?          -> demote to it
                    worth keeping?         -> offload to the first colder tier with room, never to the slow one
                    copy in the slow tier? -> demote to that
                    else                   -> drop
"""

from quire.core.records.errors import BrokenInvariant
from quire.core.records.plan import Kind
from quire.core.store.reference.learned.ghosts import Ghost
from quire.core.store.reference.moves.attach import detach
from quire.core.store.reference.moves.events import log_moved
from quire.core.store.reference.pools.log import Place
from quire.core.store.reference.pools.pool import (
    BEHIND,
    COPIED,
    COPIED_TOKENS,
    DEMOTED,
    DROPPED,
    NEW,
    OFFLOADED,
    ONBOARDED,
    TOTAL,
    Pool,
)
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import Node, Page
from quire.core.store.reference.tree.resume_points import reached_from, ways_to_ends
from quire.core.store.reuse import EVICTED, NEVER

NO_TIER = -1


def pick_device(pool: Pool) -> int:
    """The device slot to take next."""
    slot = pool.pick(0)
    if slot < 0:
        raise BrokenInvariant(f"group {pool.group} has no device slot left: the caller must look at available() first")
    pool.count(TOTAL)
    return slot


def take(state: State, pool: Pool) -> int:
    """A device slot without owner, evicting if need be."""
    slot = pick_device(pool)
    if pool.owner(0, slot) is None:
        pool.unlist_slot(0, slot)
        pool.count(NEW)
    else:
        evict_copy(state, pool, 0, slot)
    return slot


def take_in(state: State, pool: Pool, tier: int) -> int:
    """A slot of any tier without owner; of a colder one it costs no device slot, and is not counted as such."""
    if tier == 0:
        return take(state, pool)
    slot = pool.pick(tier)
    if slot < 0:
        raise BrokenInvariant(f"group {pool.group} has no slot left in tier {tier}: the caller must count them first")
    if soft_room(pool, tier, slot) < 0:
        evict_copy(state, pool, tier, slot)
    return slot


def new_page(state: State, pool: Pool, priority: int, duration: int) -> Page:
    """A new open page with one holder."""
    return pool.open_page(take(state, pool), priority, duration)


def spare_or_new(state: State, pool: Pool, spares: list[Page], priority: int, duration: int) -> Page:
    """An open page for a fork: one kept aside, else a new one."""
    if not spares:
        return new_page(state, pool, priority, duration)
    page = spares.pop()
    page.priority, page.duration = priority, duration
    return page


def copy_part(state: State, pool: Pool, source: Page, target: Page, tokens: int) -> None:
    """The first tokens of `source` go into the open page `target`."""
    tier, slot = pool.place(source)
    state.moves.add_copy(pool.group, (tier, slot), (0, target.slots[0]), tokens, [target, source])
    pool.count(COPIED if tier == 0 else ONBOARDED)
    pool.count(COPIED_TOKENS, tokens)


def evict_copy(state: State, pool: Pool, tier: int, slot: int) -> None:
    """The idle page whose hottest copy is in this slot loses it; the slot is the caller's then."""
    victim = pool.owner(tier, slot)
    if victim is None or not victim.is_idle:
        raise BrokenInvariant(f"slot {slot} of tier {tier} is to be had, and its page is in use")
    pool = state.pools[victim.group]  # another's, perhaps, in the same pool
    passed = pool.is_listed_passed(tier, slot)
    pool.remove_copy(victim, tier)
    slow = state.rules.slow
    if victim.hottest not in (NO_TIER, slow):
        demote(state, pool, victim, tier)
        return
    if victim.priority >= state.rules.offload_min and offload_somewhere(state, pool, victim, (tier, slot)):
        return
    if victim.hottest != NO_TIER:
        demote(state, pool, victim, tier)
        return
    if slow >= 0 and tier < slow and is_worth_copying(state, pool, victim):
        pool.count(BEHIND)
    bury(state, pool, victim, EVICTED)
    node = None if passed else cut_off_below(state, pool, victim)
    detach(state, pool, victim, tier)
    if node is not None:
        pass_useless(state, pool, node)
    if pool.tenure is not None:
        pool.tenure.note_dropped(victim.number)
    pool.free_page(victim)
    pool.count(DROPPED)


def note_move(pool: Pool, page: Page, source: int, target: int) -> None:
    """A committed page has its hottest copy in another tier: it may cover its parent, or not any more."""
    if page.node is not None:
        pool.child_moved(page.node, source, target)


def offload_to(state: State, pool: Pool, victim: Page, source: Place, target: Place) -> None:
    """An idle page that has just lost `source` goes on in `target`."""
    state.moves.add(Kind.OFFLOAD, pool.group, source, target, [victim])
    pool.put_copy(victim, *target)
    pool.list_idle(victim)
    log_moved(state, pool, victim, source[0], target[0])
    note_move(pool, victim, source[0], target[0])
    pool.count(OFFLOADED)


def offload_somewhere(state: State, pool: Pool, victim: Page, source: Place) -> bool:
    """An idle page that has just lost `source`, its last copy outside the slow tier, goes on in a colder one with room.

    Making room must not mistake it for a page of the slow tier: it is on its way elsewhere.
    """
    slow = state.rules.slow
    hidden = victim.slots[slow] if slow >= 0 else NO_TIER
    if slow >= 0:
        victim.slots[slow] = NO_TIER
    for target in range(source[0] + 1, state.rules.num_fast):
        room = make_room(state, pool, target, victim)
        if room >= 0:
            offload_to(state, pool, victim, source, (target, room))
            break
    found = victim.hottest != NO_TIER
    if slow >= 0:
        victim.slots[slow] = hidden
    return found


def is_worth_copying(state: State, pool: Pool, page: Page) -> bool:
    """Whether a page is copied into the slow tier ahead of its eviction; a partial block would never come up again."""
    if page.node is None or page.node.size < state.rules.block_size:
        return False
    return page.priority >= state.rules.offload_min and (pool.cells is None or page.uses >= state.rules.min_uses)


def demote(state: State, pool: Pool, page: Page, tier: int) -> None:
    """An idle page that has lost its copy in `tier` goes on with the next colder one, where it is."""
    colder = page.hottest
    pool.unlist_slot(colder, page.slots[colder])
    pool.list_idle(page)
    log_moved(state, pool, page, tier, colder)
    note_move(pool, page, tier, colder)
    pool.count(DEMOTED)


def bury(state: State, pool: Pool, page: Page, why: int) -> None:
    """Remember a page that leaves the tree; of a partial block nothing is kept."""
    node = page.node
    if pool.ghosts is None or node is None or node.size != state.rules.block_size:
        return
    key = (node.root.hash, node.key, pool.group)
    if pool.cells is not None:
        pool.cells.remember(page, key, state.admissions, why)
    else:
        pool.ghosts.add(Ghost(key, state.now, 0, why, 0, NEVER if page.unwanted else 0, state.admissions))


def cut_off_below(state: State, pool: Pool, page: Page) -> Node | None:
    """A page goes that a request might have resumed with: none can resume at its block now, nor so near below it that
    its group reads the block there. What groups that need all blocks keep for that is of no use. The block, if so."""
    node, tail = page.node, state.groups[pool.group].tail
    if pool.cells is None or node is None or tail < 1 or node.size < state.rules.block_size:
        return None
    node.pages[pool.group] = None
    for below in reached_from(node, tail, state.rules.block_size):
        for other in state.pools:
            if other.reads is not None:
                other.cut_off(below.pages[other.group])
    return node


def pass_useless(state: State, pool: Pool, node: Node) -> None:
    """A page of this block is gone, which a request read that resumed there or a few blocks below: what other windows
    keep for such requests alone goes before others, the last first. Where nothing is left of the block, its text ends
    earlier now."""
    windows = [(other, other.window) for other in state.pools if other.window is not None]
    most, tail = max((window.tail for _, window in windows), default=0), state.groups[pool.group].tail
    for block, way in ways_to_ends(windows[0][1], node, tail, most) if windows and node.alive else ():
        for other, window in windows:
            if other is not pool and way >= window.tail and block.depth > window.sink:
                other.pass_over(block.pages[other.group])


def unbury(state: State, pool: Pool, node: Node) -> None:
    """The page of a node goes for another reason: what is remembered of an older one no longer holds."""
    if pool.cells is None and pool.ghosts is not None and node.size == state.rules.block_size:
        pool.ghosts.take_ghost((node.root.hash, node.key, pool.group))


def make_room(state: State, pool: Pool, tier: int, page: Page) -> int:
    """A slot of a colder tier for a page, -1 when there is none that it may have."""
    slot = pool.pick(tier)
    if slot < 0 or soft_room(pool, tier, slot) >= 0:
        return slot
    if pool.is_outranked(page, tier, slot):
        return -1
    evict_copy(state, pool, tier, slot)
    return slot


def soft_room(pool: Pool, tier: int, slot: int) -> int:
    """Take a picked slot if it is not a page's last copy: empty, or a shadow; else -1."""
    owner = pool.owner(tier, slot) if slot >= 0 else None
    if slot >= 0 and owner is None:
        pool.unlist_slot(tier, slot)
        return slot
    if owner is None or owner.hottest == tier:
        return -1
    return pool.remove_copy(owner, tier)
