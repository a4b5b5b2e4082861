"""Slots for those who ask: take, onboard, early offload, and the evictions these cause.

Owns the decisions which copy goes where, and the moves and counters that follow. Knows nothing of rows or hits; the
caller has made sure that there is a slot to take.

    evict a copy:   shadow below?  -> demote to it
                    worth keeping? -> offload to the first colder tier with room
                    else           -> drop
"""

from quire.core.records.errors import BrokenInvariant
from quire.core.store.twin.log import Move
from quire.core.store.twin.page import Page
from quire.core.store.twin.pool import COPIED, COPIED_TOKENS, DEMOTED, DROPPED, NEW, OFFLOADED, ONBOARDED, TOTAL, Pool


def take(pool: Pool) -> int:
    """A device slot without owner, evicting if need be."""
    slot = _pick_device(pool)
    if pool.owner(0, slot) is None:
        pool.unlist(0, slot)
        pool.count(NEW)
    else:
        evict_copy(pool, 0, slot)
    return slot


def new_page(pool: Pool, priority: int, duration: int) -> Page:
    """A new open page with one holder."""
    return pool.open_page(take(pool), priority, duration)


def spare_or_new(pool: Pool, spares: list[Page], priority: int, duration: int) -> Page:
    """An open page for a fork: one kept aside, else a new one."""
    if not spares:
        return new_page(pool, priority, duration)
    page = spares.pop()
    page.priority, page.duration = priority, duration
    return page


def copy_tokens(pool: Pool, source: Page, target: Page, tokens: int) -> None:
    """The first tokens of `source` go into the open page `target`."""
    tier, slot = pool.place(source)
    pool.moves.add_copy(pool.group, (tier, slot), (0, target.slots[0]), tokens, [target, source])
    pool.count(COPIED if tier == 0 else ONBOARDED)
    pool.count(COPIED_TOKENS, tokens)


def _pick_device(pool: Pool) -> int:
    slot = pool.orders[0].pick()
    if slot < 0:
        raise BrokenInvariant(f"group {pool.group} has no device slot left: the caller must look at available() first")
    pool.count(TOTAL)
    return slot


def evict_copy(pool: Pool, tier: int, slot: int) -> None:
    """The idle page whose hottest copy is in this slot loses it; the slot is the caller's then."""
    victim = pool.owner(tier, slot)
    if victim is None or not victim.is_idle:
        raise BrokenInvariant(f"slot {slot} of tier {tier} is to be had, and its page is in use")
    pool.strip(victim, tier)
    colder = victim.hottest
    if colder >= 0:
        pool.unlist(colder, victim.slots[colder])
        pool.list_idle(victim)
        pool.moved(victim, tier, colder)
        pool.count(DEMOTED)
        return
    if victim.priority >= pool.rules.offload_min:
        for target in range(tier + 1, len(pool.orders)):
            room = _make_room(pool, target, victim.priority)
            if room >= 0:
                _offload_to(pool, victim, (tier, slot), (target, room))
                return
    pool.detach(victim, lost=tier)
    pool.free(victim)
    pool.count(DROPPED)


def _offload_to(pool: Pool, victim: Page, source: tuple[int, int], target: tuple[int, int]) -> None:
    """An idle page that has just lost `source` goes on in `target`."""
    pool.moves.add(Move.OFFLOAD, pool.group, source, target, [victim])
    pool.add_copy(victim, *target)
    pool.list_idle(victim)
    pool.moved(victim, source[0], target[0])
    pool.count(OFFLOADED)


def _make_room(pool: Pool, tier: int, priority: int) -> int:
    """A slot of a colder tier for a page of this priority, -1 when there is none."""
    slot = pool.orders[tier].pick()
    if slot < 0:
        return -1
    owner = pool.owner(tier, slot)
    if _is_soft(pool, tier, slot):
        return _take_soft(pool, tier, slot)
    assert owner is not None
    if owner.priority > priority:
        return -1
    evict_copy(pool, tier, slot)
    return slot


def _is_soft(pool: Pool, tier: int, slot: int) -> bool:
    """Nobody's last copy: EMPTY or a shadow."""
    owner = pool.owner(tier, slot)
    return owner is None or owner.hottest < tier


def _take_soft(pool: Pool, tier: int, slot: int) -> int:
    owner = pool.owner(tier, slot)
    if owner is None:
        pool.unlist(tier, slot)
    else:
        pool.strip(owner, tier)
    return slot


def onboard(pool: Pool, page: Page) -> None:
    """Bring a held page from a colder tier to the device."""
    tier, slot = pool.place(page)
    target = _pick_device(pool)
    victim = pool.owner(0, target)
    if victim is None:
        pool.unlist(0, target)
        pool.count(NEW)
    elif _has_colder(victim) or victim.priority < pool.rules.offload_min:
        evict_copy(pool, 0, target)
    else:
        room = _soft_room(pool)
        if room is None:
            _exchange(pool, page, victim)
            return
        pool.strip(victim, 0)
        _offload_to(pool, victim, (0, target), room)
    pool.moves.add(Move.ONBOARD, pool.group, (tier, slot), (0, target), [page])
    pool.add_copy(page, 0, target)
    pool.moved(page, tier, 0)
    pool.count(ONBOARDED)
    if pool.rules.shadows:
        pool.orders[tier].push_shadow(slot)
    else:
        pool.discard_copy(page, tier)


def _has_colder(page: Page) -> bool:
    return any(slot >= 0 for slot in page.slots[page.hottest + 1 :])


def _soft_room(pool: Pool) -> tuple[int, int] | None:
    """A colder slot that costs nobody a last copy, taken; None when the next in line everywhere is a last copy."""
    for tier, order in enumerate(pool.orders[1:], start=1):
        slot = order.pick()
        if slot >= 0 and _is_soft(pool, tier, slot):
            return tier, _take_soft(pool, tier, slot)
    return None


def _exchange(pool: Pool, page: Page, victim: Page) -> None:
    """Full on both sides: the page and the device victim change places."""
    tier, slot = pool.place(page)
    target = victim.slots[0]
    pool.moves.add(Move.EXCHANGE, pool.group, (0, target), (tier, slot), [page, victim])
    pool.strip(victim, 0)
    pool.strip(page, tier)
    pool.add_copy(victim, tier, slot)
    pool.list_idle(victim)
    pool.add_copy(page, 0, target)
    pool.moved(victim, 0, tier)
    pool.moved(page, tier, 0)
    pool.count(OFFLOADED)
    pool.count(ONBOARDED)


def offload(pool: Pool, limit: int) -> int:
    """Copy the next device victims down into EMPTY slots, so that evicting them later moves nothing."""
    copied = 0
    for page in pool.orders[0].idle_pages(pool.rules.offload_min):
        if copied >= limit:
            break
        if page.claims or _has_colder(page):
            continue
        tier = next((tier for tier, order in enumerate(pool.orders) if tier and order.num_empty), 0)
        if not tier:
            break
        slot = pool.orders[tier].first_empty()
        pool.unlist(tier, slot)
        pool.moves.add(Move.OFFLOAD, pool.group, (0, page.slots[0]), (tier, slot), [page])
        pool.add_copy(page, tier, slot)
        pool.orders[tier].push_shadow(slot)
        pool.count(OFFLOADED)
        copied += 1
    return copied
