"""The rival: which pages are watched, that both stores watch the same, and that LRU itself would have had them."""

from __future__ import annotations

from collections import OrderedDict
from random import Random
from typing import Any

import numpy as np
import pytest

from quire.core.store import StoreName, open_store
from quire.core.store.interface import Store
from quire.core.store.reference.learned.rival import Rival
from quire.core.store.reuse import ADAPTIVE, LRU, MOST_WATCHED, NUM_CELLS

BOTH: tuple[StoreName, ...] = ("twin", "compiled")


class Stores:
    """The same calls on both."""

    def __init__(self, slots: int, block: int = 2, order: int = ADAPTIVE) -> None:
        self.modules = [open_store(name) for name in BOTH]
        group = (-1, 0, -1, 1, 0, 0, [slots])
        self.stores: list[Store] = [
            module.Store(block, [group], 2, 64, order, False, 0, False, 10, True, bytes(16), 8)
            for module in self.modules
        ]
        self.roots = [store.new_root(7) for store in self.stores]

    def run(self, prompt: Any, now: int) -> None:
        """One request's life."""
        for module, store, root in zip(self.modules, self.stores, self.roots, strict=True):
            chain = module.Chain(2, prompt)
            hit = store.walk(chain, root, len(prompt), 0)
            store.claim(hit)
            store.refresh(now)
            store.seat(hit, 0, chain, root, True)
            store.settle(0, hit, [(hit.blocks, len(prompt) // 2, 0, 0)], None, None, 35, -1)
            store.commit_row(0, len(prompt))
            store.release(0, True, now)

    def cells(self) -> Any:
        """What both know of the order."""
        one, other = (store.dump().groups[0].cells for store in self.stores)
        assert one is not None and one == other
        return one


def prompt_of(number: int, blocks: int) -> Any:
    return np.random.default_rng(number).integers(0, 50_000, 2 * blocks, dtype=np.int32)


def test_of_a_large_pool_some_pages_are_watched_the_same_in_both_stores() -> None:
    stores, dice = Stores(2 * MOST_WATCHED), Random(3)
    upside_down = np.arange(NUM_CELLS, dtype=np.int32)  # another order than LRU's: so one has what the other has not
    for turn in range(500):
        stores.run(prompt_of(dice.randrange(260), 16), turn * 1000)
        if turn == 150:
            for store in stores.stores:
                store.set_rank(0, upside_down, False)
    gained, missed, watched, known = stores.cells().rival
    assert gained > 10 and missed > 10
    assert 0.4 < watched / (2 * MOST_WATCHED) < 0.6 and known <= watched


def test_of_a_small_pool_all_pages_are_watched() -> None:
    stores = Stores(MOST_WATCHED)
    for turn in range(20):
        stores.run(prompt_of(turn, 16), turn)
    assert stores.cells().rival == (0, 0, 320, 320)


def test_a_page_that_leaves_is_watched_no_more() -> None:
    stores = Stores(64)
    for turn in range(10):
        stores.run(prompt_of(turn, 16), turn)
    assert stores.cells().rival == (0, 0, 64, 64)
    for store in stores.stores:
        store.clear()
    stores.roots = [store.new_root(7) for store in stores.stores]
    assert stores.cells().rival[2] == 0
    stores.run(prompt_of(11, 16), 11)
    assert stores.cells().rival[2:] == (16, 16)  # and what LRU had goes as others come


def test_where_the_order_is_lru_nobody_gains_and_nobody_misses() -> None:
    """Nothing learned: pages go by age, as the rival's do. Single blocks, so that none is covered."""
    stores, dice = Stores(48), Random(8)
    for turn in range(600):
        stores.run(prompt_of(dice.randrange(90), 1), turn * 1_000_000)
    assert stores.cells().rival[:2] == (0, 0)


@pytest.mark.parametrize("order", [LRU, LRU + 1])
def test_orders_that_learn_nothing_have_no_rival(order: int) -> None:
    stores = Stores(16, order=order)
    for turn in range(5):
        stores.run(prompt_of(turn, 4), turn)
    assert [store.dump().groups[0].cells for store in stores.stores] == [None, None]


def test_the_rival_by_its_definition() -> None:
    """Against a list of keys by last use, as long as there are watched pages."""
    rival, dice = Rival(32), Random(1)
    plain: OrderedDict[int, None] = OrderedDict()
    watched = gained = missed = 0
    for _ in range(5000):
        key = dice.randrange(60)
        act = dice.random()
        if act < 0.4 and watched < 32:
            assert rival.come_watched((0, key, 0))
            watched += 1
        elif act < 0.4:
            assert not rival.come_watched((0, key, 0))
            continue
        elif act < 0.6 and watched:
            rival.watched, watched = rival.watched - 1, watched - 1
            continue
        elif act < 0.8:
            gained += key not in plain
            rival.find_watched((0, key, 0))
        else:
            rival.miss_watched((0, key, 0))
            missed += key in plain
            if key in plain:
                plain.move_to_end(key)
            continue
        plain[key] = None
        plain.move_to_end(key)
        while len(plain) > watched:
            plain.popitem(last=False)
        assert len(rival) == len(plain)
    assert (rival.gained, rival.missed, rival.watched) == (gained, missed, watched)
    assert min(gained, missed) > 100
