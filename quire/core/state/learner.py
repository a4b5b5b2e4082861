"""Learner: the order in which cells are evicted, from what was asked again. One step of NumPy above both stores.

Owns the estimate: how many hits a page of a cell brings for the time it takes up a slot, if it stays as long as pays
best. The stores count in whole numbers; the only fractions are here, so both evict alike. Knows no pages, and no time
scale: of all ages it looks at the span that blocks get to, younger and older ones are as the ends of it. And the
judgement: where LRU would have had more hits of late, pages go by age alone, until what was learned is tried again.

    hits    blocks asked again, by age   hazard    of the blocks that get to an age: the share asked again there
    lost    ghosts that fell out         survival  the share that gets from one age to another without being asked
    census  blocks that wait now         worth     hits until an age per slot-tick until it, where that is best

A hint makes a class like others, with ages of its own: hints that are not true, or always the
same, are worth what comes of them. Of "never" nothing is expected to come back, until it does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.core.store.interface import Int32Array, Int64Array, Store
from quire.core.store.reuse import (
    AGE_EDGES,
    CONTINUED,
    FIRST_RANK,
    NEVER,
    NUM_AGES,
    NUM_REUSE_CLASSES,
    OLDEST_FIRST,
    SOON,
)

Floats = NDArray[np.float64]

SPAN = 45  # ages that are looked at: fifteen octaves
BEYOND = 6  # of them: older than any that is known, so that what is old has a future, too
STARTS: Floats = np.array([0, *AGE_EDGES], np.float64)  # of the ages, in ticks
PRIOR = 50.0  # blocks' worth of what is assumed before anything is known, and of all classes for each of them
EXPECTED = 0.04  # hazard of an age before anything is known: the longer unused, the longer it will be
MOST = 0.98  # of a hazard
AHEAD = 3  # ages that a look ahead takes in at least, an octave: less would chase noise
FADING = 0.98  # of what was counted, from one step to the next
MEMORY = 31 / 32  # of the judge, from one step to the next
MOST_AT_ONCE, MOST_CREDIT, MOST_DEBT, LEAST = 8, 4, 4, 16  # an eighth, a fourth of the watched pages; at least so many
SHORTEST_WAIT, LONGEST_WAIT, PROBATION = 8, 128, 32  # steps by age alone; steps after which old debts are forgotten
_AGES = np.arange(SPAN)
_OLDEST_FIRST, _FIRST_RANK = np.array(OLDEST_FIRST, np.int32), np.array(FIRST_RANK, np.int32)
_TRUST = np.where(np.arange(NUM_REUSE_CLASSES) == NEVER, 0.0, 1.0)[:, None]  # of a class: how much of all is expected
_REACHED = _AGES[None, :] >= _AGES[:, None]  # [from, to]
_LONG_ENOUGH = (_AGES[None, :] >= _AGES[:, None] + AHEAD) | (_AGES[None, :] == SPAN - 1)
_PASSED = np.where(
    (_AGES[None, :] == _AGES[:, None]) & (_AGES < SPAN - 1), 0.5, 1.0
)  # half through its age, but the last
_YOUNGEST_LAST = -np.tile(np.arange(NUM_AGES), NUM_REUSE_CLASSES)


class Judge:
    """Whether what is learned may rule. `balance`: watched pages that the order found and LRU had not, less those that
    it lacked and LRU had; it fades, and what was gained long ago excuses little."""

    __slots__ = ("_ruled", "_wait", "_waits", "balance", "fallen")

    def __init__(self) -> None:
        self.balance = 0
        self.fallen = False
        self._ruled = 0  # steps since it began to rule
        self._waits = SHORTEST_WAIT  # steps that it will wait for the next time
        self._wait = 0

    def hear(self, gained: int, missed: int, watched: int) -> bool:
        """After another step; whether it is LRU's turn."""
        if self.fallen:
            self._wait -= 1
            self.fallen = self._wait > 0
            self.balance = self._ruled = 0
            return self.fallen
        self._ruled += 1
        if self._ruled > PROBATION:
            self._waits = SHORTEST_WAIT
        most = max(LEAST, watched // MOST_AT_ONCE)  # a step with one long request says little
        balance = int(self.balance * MEMORY) + max(-most, min(gained - missed, most))
        self.balance = min(balance, max(LEAST, watched // MOST_CREDIT))
        if self.balance < -max(2 * LEAST, watched // MOST_DEBT):
            self.fallen, self._wait = True, self._waits
            self._waits = min(2 * self._waits, LONGEST_WAIT)
        return self.fallen


class Learner:
    """What one group's requests have taught so far."""

    __slots__ = ("_hits", "_lost", "judge")

    def __init__(self) -> None:
        self.judge = Judge()
        self._hits: Floats = np.zeros((NUM_REUSE_CLASSES, NUM_AGES))
        self._lost: Floats = np.zeros((NUM_REUSE_CLASSES, NUM_AGES))

    def order(
        self, hits: Int64Array, lost: Int64Array, census: Int64Array, rival: Int64Array
    ) -> tuple[Int32Array, bool]:
        """The order of the cells after these counts, which are remembered, and fade; whether it is by age alone."""
        self._hits += hits
        self._lost += lost
        found = worth_of_all(self._hits, self._lost + census)
        cells = np.lexsort((_YOUNGEST_LAST, found.ravel()))  # of equal worth the oldest first
        self._hits *= FADING
        self._lost *= FADING
        if self.judge.hear(*rival.tolist()):
            return _OLDEST_FIRST, True
        if self._hits.sum() < 1:  # what never comes back says nothing of what does
            return _FIRST_RANK, True
        return cells.astype(np.int32), False


def learn(store: Store, group: int, learner: Learner) -> None:
    """Give a group of a store a new order."""
    store.set_rank(group, *learner.order(*store.take_counts(group)))


def worth_of_all(hits: Floats, waiting: Floats) -> Floats:
    """Expected hits per slot-tick of every cell; `waiting`: blocks that got to an age and were not asked there."""
    first, classes = span(hits, waiting), _classes_seen(hits, waiting)
    ages = np.clip(np.arange(NUM_AGES) - first, 0, SPAN - 1)
    known = worth(_gather(hits[:classes], first), _gather(waiting[:classes], first), widths(first))
    found = np.zeros((NUM_REUSE_CLASSES, SPAN))
    found[SOON:NEVER] = known[CONTINUED]  # hints not given yet: such text mostly continues
    found[:classes] = known
    every: Floats = found[:, ages]
    return every


def _classes_seen(hits: Floats, waiting: Floats) -> int:
    """Classes that need to be looked at: there may be no hints."""
    return NUM_REUSE_CLASSES if hits[SOON:].any() or waiting[SOON:].any() else SOON


def span(hits: Floats, waiting: Floats) -> int:
    """The first age that is looked at: the last one lies behind the oldest that one block in a thousand gets to."""
    reached = np.cumsum((hits + waiting).sum(axis=0)[::-1])[::-1]
    known = int(np.count_nonzero(reached >= max(1.0, reached[0] / 1000)))
    return min(max(0, known + BEYOND - SPAN), NUM_AGES - SPAN)


def widths(first: int) -> Floats:
    """Ticks from each age of a span to the next; the first of them begins at nothing, the last is open."""
    starts = STARTS[first : first + SPAN].copy()
    starts[0] = 0
    return np.diff(starts, append=2 * starts[-1])


def _gather(counts: Floats, first: int) -> Floats:
    """The counts of a span: what is younger or older is counted at its ends."""
    inside = counts[:, first : first + SPAN].copy()
    inside[:, 0] += counts[:, :first].sum(axis=1)
    inside[:, -1] += counts[:, first + SPAN :].sum(axis=1)
    return inside


def worth(hits: Floats, waiting: Floats, widths: Floats) -> Floats:
    """The same of the cells of a span, whose ages are so wide."""
    hazards = hazard(hits, waiting)
    stays = np.where(_REACHED[None, :, :-1], 1 - hazards[:, None, :-1], 1.0)
    survival = np.ones((len(hits), SPAN, SPAN))  # [class, from, to]
    np.cumprod(stays, axis=2, out=survival[:, :, 1:])
    survival *= _REACHED
    spent = _PASSED * widths
    brought = np.cumsum(survival * hazards[:, None, :], axis=2)
    taken = np.cumsum(survival * spent * (1 - hazards[:, None, :] / 2), axis=2)
    rates = np.divide(brought, taken, out=np.zeros_like(brought), where=_LONG_ENOUGH[None] & (taken > 0))
    best: Floats = rates.max(axis=2)
    return best


def hazard(hits: Floats, waiting: Floats) -> Floats:
    """Share of blocks asked again at each age, by class; few of a class are filled up from all, few of all from what
    is expected."""
    reached = np.cumsum((hits + waiting)[:, ::-1], axis=1)[:, ::-1] - waiting / 2
    others = slice(0, NEVER)  # what comes back never says nothing of the rest
    of_all = (hits[others].sum(axis=0) + PRIOR * EXPECTED) / (reached[others].sum(axis=0) + PRIOR)
    found: Floats = np.minimum(MOST, (hits + PRIOR * of_all * _TRUST[: len(hits)]) / (reached + PRIOR))
    return found
