"""Learner: the order in which cells are evicted, from what was asked again. One step of NumPy above both stores.

Owns the estimate: how many hits a page of a cell brings for the time it takes up a slot, if it stays as long as pays
best. The stores count in whole numbers; the only fractions are here, so both evict alike. Knows no pages.

    hits    blocks asked again, by age   hazard    of the blocks that get to an age: the share asked again there
    lost    ghosts that fell out         survival  the share that gets from one age to another without being asked
    census  blocks that wait now         worth     hits until an age per slot-second until it, where that is best
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.core.records.retain import TICKS_PER_SECOND
from quire.core.store.interface import Int32Array, Int64Array, Store
from quire.core.store.reuse import AGE_EDGES, NUM_AGES, NUM_REUSE_CLASSES

Floats = NDArray[np.float64]

STARTS: Floats = np.array([0, *AGE_EDGES]) / TICKS_PER_SECOND  # of the ages, in seconds
WIDTHS: Floats = np.diff(STARTS, append=2 * STARTS[-1])
PRIOR = 50.0  # blocks' worth of what is assumed before anything is known, and of all classes for each of them
EXPECTED: Floats = np.minimum(0.5, 0.2 * WIDTHS / (STARTS + 10 + WIDTHS))  # hazard before anything is known
MOST = 0.98  # of a hazard
AHEAD = 3  # ages that a look ahead takes in at least, an octave: less would chase noise
FADING = 0.98  # of what was counted, from one step to the next
_AGES = np.arange(NUM_AGES)
_REACHED = _AGES[None, :] >= _AGES[:, None]  # [from, to]
_LONG_ENOUGH = (_AGES[None, :] >= _AGES[:, None] + AHEAD) | (_AGES[None, :] == NUM_AGES - 1)


class Learner:
    """What one group's requests have taught so far."""

    __slots__ = ("_hits", "_lost")

    def __init__(self) -> None:
        self._hits: Floats = np.zeros((NUM_REUSE_CLASSES, NUM_AGES))
        self._lost: Floats = np.zeros((NUM_REUSE_CLASSES, NUM_AGES))

    def order(self, hits: Int64Array, lost: Int64Array, census: Int64Array) -> Int32Array:
        """The order of the cells after these counts; they are remembered, and fade."""
        self._hits += hits
        self._lost += lost
        cells = np.argsort(worth(self._hits, self._lost + census).ravel(), kind="stable")
        self._hits *= FADING
        self._lost *= FADING
        return cells.astype(np.int32)


def learn(store: Store, group: int, learner: Learner) -> None:
    """Give a group of a store a new order."""
    store.set_rank(group, learner.order(*store.take_counts(group)))


def worth(hits: Floats, waiting: Floats) -> Floats:
    """Expected hits per slot-second of every cell; `waiting`: blocks that got to an age and were not asked there."""
    hazards = hazard(hits, waiting)
    stays = np.where(_REACHED[None, :, :-1], 1 - hazards[:, None, :-1], 1.0)
    survival = np.ones((NUM_REUSE_CLASSES, NUM_AGES, NUM_AGES))  # [class, from, to]
    np.cumprod(stays, axis=2, out=survival[:, :, 1:])
    survival *= _REACHED
    widths = np.where(np.eye(NUM_AGES, dtype=bool), 0.5, 1.0) * WIDTHS  # a page is half through the age it is at
    brought = np.cumsum(survival * hazards[:, None, :], axis=2)
    taken = np.cumsum(survival * widths * (1 - hazards[:, None, :] / 2), axis=2)
    rates = np.divide(brought, taken, out=np.zeros_like(brought), where=_LONG_ENOUGH[None] & (taken > 0))
    best: Floats = rates.max(axis=2)
    return best


def hazard(hits: Floats, waiting: Floats) -> Floats:
    """Share of blocks asked again at each age, by class; few of a class are filled up from all, few of all from what
    is expected."""
    reached = np.cumsum((hits + waiting)[:, ::-1], axis=1)[:, ::-1] - waiting / 2
    of_all = (hits.sum(axis=0) + PRIOR * EXPECTED) / (reached.sum(axis=0) + PRIOR)
    found: Floats = np.minimum(MOST, (hits + PRIOR * of_all) / (reached + PRIOR))
    return found
