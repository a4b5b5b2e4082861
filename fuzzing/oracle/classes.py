"""Classes of slots, and which slot goes next: the least by (class, stamp). Knows pools by what they answer."""

from __future__ import annotations

from typing import Any

from fuzzing.oracle.cells import AGES, CLASSES

EMPTY, SHADOW, IDLE = 0, 1, 2  # classes; an idle page of priority p is in IDLE + 2p + 1, one that is passed before it
COVERED = IDLE + 202  # the last one in the adaptive order; the numbers behind it are cells, so many lists a priority
LISTS = 1 + CLASSES * AGES
BEHIND_ALL = (1 << 60, 0)


def victim_of(pools: Any, tier: int, shadows: bool) -> int | None:
    """The slot of a tier to take next, with or without shadows; what must not be taken is passed over.

    Classes of idle pages are worked out here as `Pools.klass` has them: so many are asked that a call each takes long.
    """
    if not pools.world.release_order and (empty := pools.room.first_empty(tier)) is not None:
        return int(empty)  # nothing goes before it
    stamps, turns = pools.stamp[tier], dict[int, tuple[int, int]]()
    best, found, adaptive = (BEHIND_ALL, 0), None, pools.cells is not None
    for slot, page in enumerate(pools.owner[tier]):
        if page is None or len(page.copies) > 1:
            klass = pools.klass(tier, slot)
        elif page.holders or page.path is None:
            continue
        elif adaptive:
            cell = COVERED + 2 + page.priority * LISTS + (-1 if page.passed else page.cell)
            klass = COVERED if page.covered else cell
        else:
            klass = IDLE + 2 * page.priority + (not page.passed)
        if klass is None or (klass == SHADOW and not shadows):
            continue
        turn = turns.get(klass) or turns.setdefault(klass, pools.before(klass))
        if turn > best[0] or (turn == best[0] and stamps[slot] > best[1]):
            continue
        if page is None or not (page.claims or page.stays) or not pools.is_taboo(tier, page):
            best, found = (turn, stamps[slot]), slot
    return found
