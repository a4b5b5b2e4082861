"""Cells: how idle pages are told apart by the adaptive eviction order. Numbers only; knows no pages.

A page is in the cell (class, age). Its class says how often its block was used, and of a new block whether its prompt
continued text that was known. Its age is the time since the last admission that used it, in bins that grow: three to
the octave from a tick to three hundred years, so that no time scale is better off than another: on a clock of twice the
speed everything is three bins further on. Whole ticks, so that every part of the cache finds the same bin.
"""

from typing import Final

from quire.core.records.retain import TICKS_PER_SECOND

ONCE, CONTINUED, FEW, MANY = range(4)  # classes: new text; new text behind known text; two or three uses; more
NUM_REUSE_CLASSES: Final = 4
NUM_AGES: Final = 160
NUM_CELLS: Final = NUM_REUSE_CLASSES * NUM_AGES
FEW_USES: Final = 3
MAX_USES: Final = 255  # counted no further
AGE_EDGES: Final = tuple(round(2 ** (nth / 3)) for nth in range(NUM_AGES - 1))  # first tick of each bin but the first
AGING: Final = 32  # times that pages go on to their next bins while as many pages are made as there are slots
REST_TICKS: Final = TICKS_PER_SECOND // 4  # how exactly it is known when a page went
MAX_CENSUS: Final = 1 << 14  # pages, and ghosts, that a census looks at: of more only every second, third, ...
MOST_WATCHED: Final = 1 << 10  # pages of a pool that the order is judged by, about; of a smaller one all
EVICTED, SPOILT = 1, 2  # why a page is gone: to make room; its bytes never came
FIRST_RANK: Final = tuple(  # of a cache that has learned nothing yet: the oldest first
    reuse * NUM_AGES + age for age in reversed(range(NUM_AGES)) for reuse in range(NUM_REUSE_CLASSES)
)
LRU, RELEASE_ORDER, ADAPTIVE = range(3)  # orders, as the stores number them
