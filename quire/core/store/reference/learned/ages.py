"""Ages and classes of pages: integers from a table, the same in both stores.

Owns the arithmetic only. Knows nothing of pages.
"""

from bisect import bisect_right
from functools import partial

from quire.core.store.reuse import (
    AGE_EDGES,
    CONTINUED,
    FEW,
    FEW_USES,
    HINT_SHIFT,
    LATER,
    MANY,
    NEVER,
    NUM_AGES,
    ONCE,
    SOON,
)

age_bin = partial(bisect_right, AGE_EDGES)  # the bin of an age in ticks


def class_of(uses: int, fresh: int) -> int:
    """The class of a page used so often; `fresh`: that of a page used once."""
    return fresh if uses == 1 else FEW if uses <= FEW_USES else MANY


def fresh_class(known: int, blocks: int) -> int:
    """The class of new blocks of a prompt: whether half of it, or more, was known."""
    return CONTINUED if known and 2 * known >= blocks else ONCE


def hint_in(reuse: int) -> int:
    """The hint that a class stands for, 0: none."""
    return max(0, reuse - HINT_SHIFT)


def follows_hint(reuse: int) -> bool:
    """Whether text of this class was said to come back."""
    return reuse in (SOON, LATER)


def told_class(back: int, uses: int, reuse: int) -> int:
    """The class of a page of which a hint is given; none leaves its uses."""
    return back + HINT_SHIFT if back else class_of(uses, ONCE) if reuse >= SOON else reuse


def listed_class(reuse: int, recency: bool) -> int:
    """The class in which a page is listed: by age alone all pages share one, except those that never come back."""
    return reuse if not recency or reuse == NEVER else 0


def cell_number(reuse: int, age: int) -> int:
    """The number of a cell by class and bin."""
    return reuse * NUM_AGES + age
