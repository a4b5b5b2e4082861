"""Tables: an engine's own copy of the block tables, kept by nothing but what it is told of them."""

from __future__ import annotations

from random import Random

import numpy as np

from fuzzing.compare import same
from quire import Cache

PASSED = 0.4  # share of calls after which it does not ask: the changes of several come together


class Tables:
    """The copies of one cache's tables."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.dice = Random(len(cache.config.groups))
        self.copies = [np.full_like(cache.table(group), -1) for group in range(len(cache.config.groups))]

    def follow(self, store: str, always: bool) -> None:
        """Take what has changed, each cell once and no other; then each copy is the table. Mostly after every call."""
        if not always and self.dice.random() < PASSED:
            return
        for group, copy in enumerate(self.copies):
            rows, columns, slots = self.cache.take_table_changes(group)
            same(f"told and not changed, group {group} of {store}", int(np.sum(copy[rows, columns] == slots)), 0)
            copy[rows, columns] = slots
            same(f"told and changed, group {group} of {store}", np.array_equal(copy, self.cache.table(group)), True)
