"""Cells: how the adaptive eviction order groups idle pages. Numbers only; knows no pages.

A page is in the cell (class, age). Its class says how often its block was used and, for a new block, whether its prompt
continued known text; or which hint was given when it was last used. Its age is the time since the last admission that
used it. Ages fall into bins that grow, three to the octave, from a tick to three hundred years. No time scale is better
off than another: on a clock of twice the speed everything is three bins further on. Ages are whole ticks, so that every
part of the cache finds the same bin.
"""

from typing import Final

from quire.core.records.retain import TICKS_PER_SECOND

ONCE, CONTINUED, FEW, MANY = range(4)  # classes: new text; new text behind known text; two or three uses; more;
SOON, LATER, NEVER = range(4, 7)  # and, whatever the uses: the hint given when it was last used
NUM_REUSE_CLASSES: Final = 7
HINT_SHIFT: Final = SOON - 1  # from the number of a hint to its class
NUM_AGES: Final = 160
AGES_PER_OCTAVE: Final = 3
NUM_CELLS: Final = NUM_REUSE_CLASSES * NUM_AGES
FEW_USES: Final = 3
MAX_USES: Final = 255  # counted no further
MOST_YOUNGER: Final = 15  # ages that a page may count as younger
AGE_EDGES: Final = tuple(
    round(2 ** (nth / AGES_PER_OCTAVE)) for nth in range(NUM_AGES - 1)
)  # first ticks, but of the first bin
AGING: Final = 32  # how often pages move to their next bins while as many pages are made as there are slots
REST_TICKS: Final = TICKS_PER_SECOND // 4  # how exactly it is known when a page went
MAX_CENSUS: Final = 1 << 14  # pages, and ghosts, that a census looks at: of more only every second, third, ...
MOST_WATCHED: Final = 1 << 10  # about how many pages of a pool the order is judged by; of a smaller one all
EVICTED, SPOILT = 1, 2  # why a page is gone: to make room; its bytes never came
OLDEST_FIRST: Final = tuple(
    reuse * NUM_AGES + age for age in reversed(range(NUM_AGES)) for reuse in range(NUM_REUSE_CLASSES)
)
FIRST_RANK: Final = (  # of a cache that has learned nothing yet: what never comes back, then the oldest
    *(cell for cell in OLDEST_FIRST if cell >= NEVER * NUM_AGES),
    *(cell for cell in OLDEST_FIRST if cell < NEVER * NUM_AGES),
)
LRU, RELEASE_ORDER, ADAPTIVE = range(3)  # orders, as the stores number them
