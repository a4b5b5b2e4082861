"""Ages and classes of pages: integers from a table, the same in both stores.

Owns the arithmetic only. Knows nothing of pages.
"""

from bisect import bisect_right

from quire.core.store.reuse import AGE_EDGES, CONTINUED, FEW, FEW_USES, MANY, NUM_AGES, ONCE


def age_bin(age: int) -> int:
    """The bin of an age in ticks."""
    return bisect_right(AGE_EDGES, age)


def class_of(uses: int, fresh: int) -> int:
    """The class of a page used so often; `fresh`: that of a page used once."""
    return fresh if uses == 1 else FEW if uses <= FEW_USES else MANY


def fresh_class(known: int, blocks: int) -> int:
    """The class of new blocks of a prompt: whether half of it, or more, was known."""
    return CONTINUED if known and 2 * known >= blocks else ONCE


def cell_number(reuse: int, age: int) -> int:
    """The number of a cell by class and bin."""
    return reuse * NUM_AGES + age
