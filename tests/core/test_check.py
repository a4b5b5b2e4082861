"""check: each invariant, broken by hand, is found and named; and looking takes time by size alone.

The reference store's objects can be bent one at a time; what its layout cannot get wrong is bent in a dump.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

from quire import BrokenInvariant, Cache, CacheConfig, Encoder, LayerGroup, Request, TierConfig, check
from quire.core.check import the_tree_is_whole
from quire.core.store.dumped import LOST, DumpedNode
from quire.core.store.reference.pools.order import Queue

from .conftest import seq

LIVE, OTHER = 0, 1  # rows of the two sequences


class Bent:
    """A sound cache of objects, and its insides: two live sequences, an idle chain of two blocks, a host tier."""

    def __init__(self) -> None:
        tiers = (TierConfig("device", 12), TierConfig("host", 6))
        self.cache = Cache(CacheConfig(tiers, 4, max_sequences=4, max_length=32, eviction="lru"), store="twin")
        (gone,) = self.cache.add_sequence_batch([Request("gone", seq(100, 8))]).sequences
        self.cache.commit(gone)
        self.cache.release(gone)
        self.live = self.cache.add_sequence_batch([Request(name, seq(at, 10)) for name, at in (("a", 0), ("b", 50))])
        self.cache.commit(np.array([sequence.row for sequence in self.live.sequences], np.int32))
        assert [sequence.row for sequence in self.live.sequences] == [LIVE, OTHER]
        self.inside: Any = self.cache._setup.store._state  # type: ignore[attr-defined]
        self.table, self.tree = self.inside.table, self.inside.tree
        (self.pool,) = self.inside.pools
        self.order = self.pool.orders[0]
        check(self.cache)

    def page(self, column: int, row: int = LIVE) -> Any:
        """A committed one in columns 0 and 1, an open one in column 2."""
        return self.table.page(0, row, column)

    def idle(self) -> Any:
        return next(page for page in self.pool.pages if page.is_idle)

    def swap(self, column: int, page: Any, row: int = LIVE) -> None:
        """Another page in a column, held as it should be."""
        self.pool.let_go(self.page(column, row), 0)
        self.pool.hold_page(page)
        self.table.set_column(0, row, column, page)


def two_pages_in_a_slot(bent: Bent) -> None:
    bent.page(0).slots[0] = bent.page(1).slots[0]


def a_slot_listed_twice(bent: Bent) -> None:
    bent.order.ranking.queues.setdefault(50, Queue()).turns[bent.order.first_empty()] = 0


def a_slot_in_no_list(bent: Bent) -> None:
    del bent.order.empty_slots[bent.order.first_empty()]


def a_slot_that_is_none(bent: Bent) -> None:
    a_slot_in_no_list(bent)
    bent.order.empty_slots[12] = None


def a_page_without_copy(bent: Bent) -> None:
    bent.pool.discard_copy(bent.page(2), 0)


def a_page_id_twice(bent: Bent) -> None:
    bent.pool.room.free_pages.append(bent.pool.room.free_pages[0])


def a_priority_that_is_not_listed(bent: Bent) -> None:
    bent.idle().priority = 80


def an_idle_page_in_no_list(bent: Bent) -> None:
    page = bent.idle()
    bent.order.ranking.queues[73].turns.pop(page.slots[0])
    bent.order.shadows.turns[page.slots[0]] = 0


def an_open_page_of_nobody(bent: Bent) -> None:
    bent.page(2).holders = -1


def a_page_of_another_node(bent: Bent) -> None:
    bent.page(0).node = bent.page(1).node


def a_page_of_a_node_outside_the_tree(bent: Bent) -> None:
    node = bent.page(0).node
    bent.page(0).node = type(node)(99, node.identity, node.parent, 1)


def a_node_with_an_open_page(bent: Bent) -> None:
    bent.tree.child(bent.page(1).node, b"\0" * 28).pages[0] = bent.page(2)


def a_holder_too_many(bent: Bent) -> None:
    bent.page(1).holders += 1


def a_free_page_in_a_row(bent: Bent) -> None:
    bent.table.pages[0][LIVE, 3] = bent.pool.room.free_pages[0]


def a_claim_of_nobody(bent: Bent) -> None:
    bent.page(0).claims += 1


def a_free_slot_too_many(bent: Bent) -> None:
    bent.pool.room.vacant += 1


def more_reserved_than_there_is(bent: Bent) -> None:
    stake = bent.table.row(LIVE).stakes[0]
    stake.peak = stake.own + 100
    bent.pool.room.reserved += 100


def a_row_that_shows_another_slot(bent: Bent) -> None:
    bent.table.slots[0][LIVE, 0] += 1


def a_page_beyond_the_capacity(bent: Bent) -> None:
    bent.table.capacity[0][LIVE] = 2


def a_row_without_device_slot(bent: Bent) -> None:
    page, below = bent.page(1), bent.pool.orders[1].first_empty()
    bent.pool.discard_copy(page, 0)
    bent.pool.unlist_slot(1, below)
    bent.pool.put_copy(page, 1, below)
    bent.table.slots[0][LIVE, 1] = -1


def a_state_where_there_is_none(bent: Bent) -> None:
    bent.table.currents[0][LIVE] = bent.page(0).number


def a_state_in_another_slot(bent: Bent) -> None:
    bent.table.current_slots[0][LIVE] = 3


def a_hole_that_will_be_read(bent: Bent) -> None:
    bent.pool.let_go(bent.table.take_column(0, LIVE, 0), 0)


def a_committed_page_to_be_written(bent: Bent) -> None:
    bent.table.computed[LIVE] = 4


def an_open_page_of_two_rows(bent: Bent) -> None:
    bent.swap(2, bent.page(2, OTHER))


def a_page_of_other_tokens(bent: Bent) -> None:
    bent.table.row(LIVE).chain._identity[3] ^= 1


def a_page_of_other_tokens_far_up(bent: Bent) -> None:
    bent.swap(1, bent.page(1, OTHER))


def a_block_one_place_too_far(bent: Bent) -> None:
    bent.swap(1, bent.page(0))


def a_node_for_nothing(bent: Bent) -> None:
    bent.tree.child(bent.page(1).node, b"\0" * 28)


def less_handed_out_than_computed(bent: Bent) -> None:
    bent.table.handed[LIVE] = 8


def more_tokens_than_the_length(bent: Bent) -> None:
    bent.table.row(LIVE).chain.add_tokens(seq(0, 1))


def computed_tokens_without_slots(bent: Bent) -> None:
    row = bent.table.row(LIVE)
    row.chain.add_tokens(seq(0, 10))
    row.ahead = True  # it waits for a transfer, so holes are right
    for numbers in (bent.table.length, bent.table.handed, bent.table.computed):
        numbers[LIVE] = 20


def a_row_without_sequence(bent: Bent) -> None:
    bent.cache._registry.sequences.pop("a")


def a_row_lost(bent: Bent) -> None:
    bent.cache._registry.free_rows.pop()


FOUND: list[tuple[Callable[[Bent], None], str]] = [
    (two_pages_in_a_slot, "a slot holds two pages"),
    (a_slot_listed_twice, "a slot is listed twice"),
    (a_slot_in_no_list, r"empty \+ \d+ used != 12"),
    (a_slot_that_is_none, "a slot is out of range"),
    (a_page_without_copy, "has no copy"),
    (a_page_id_twice, "page ids are lost or doubled"),
    (a_priority_that_is_not_listed, "tier 0: order"),
    (an_idle_page_in_no_list, "tier 0: order"),
    (an_open_page_of_nobody, "has no holder"),
    (a_page_of_another_node, "is not its node's page"),
    (a_page_of_a_node_outside_the_tree, "is not its node's page"),
    (a_node_with_an_open_page, "nodes name pages that do not know them"),
    (a_holder_too_many, "holder count 2 is wrong"),
    (a_free_page_in_a_row, "pages that do not exist are held"),
    (a_claim_of_nobody, "1 claims, 0 expected"),
    (a_free_slot_too_many, "free count is not"),
    (more_reserved_than_there_is, "reserved slots are not there"),
    (a_row_that_shows_another_slot, "are not the pages' device slots"),
    (a_page_beyond_the_capacity, "has pages beyond its capacity"),
    (a_row_without_device_slot, "row 0: no slot"),
    (a_state_where_there_is_none, "row 0: state"),
    (a_state_in_another_slot, "state in slot 3"),
    (a_hole_that_will_be_read, "row 0: holes in"),
    (a_committed_page_to_be_written, "would write into committed page"),
    (an_open_page_of_two_rows, "of another row"),
    (a_page_of_other_tokens, "block 0: page .* is of other tokens"),
    (a_page_of_other_tokens_far_up, "block 1: page .* is of other tokens"),
    (a_block_one_place_too_far, "block 1: page .* is of other tokens"),
    (a_node_for_nothing, "a node stands for nothing"),
    (less_handed_out_than_computed, "row 0: 2, 10, 8, 10"),
    (more_tokens_than_the_length, "row 0: 2, 10, 10, 10"),
    (computed_tokens_without_slots, "row 0 lacks slots"),
    (a_row_without_sequence, r"rows \[0, 1\] vs sequences \[1\]"),
    (a_row_lost, "rows are lost or doubled"),
]


@pytest.mark.parametrize(("bend", "words"), FOUND, ids=[bend.__name__ for bend, _ in FOUND])
def test_a_broken_invariant_is_named(bend: Callable[[Bent], None], words: str) -> None:
    bent = Bent()
    bend(bent)
    with pytest.raises(BrokenInvariant, match=words):
        check(bent.cache)


def test_rows_of_the_encoders_stream_are_those_of_requests_with_an_encoder() -> None:
    groups = (LayerGroup("text"), LayerGroup("cross", cross=True))
    config = CacheConfig((TierConfig("device", 12),), block_size=4, groups=groups, max_sequences=4, max_length=32)
    cache = Cache(config, store="twin")
    cache.add_sequence_batch([Request("r", seq(0, 6), encoder=Encoder(5))])
    check(cache)
    assert cache._setup.cross is not None
    cache._setup.cross.store.release(0, False, 0)
    with pytest.raises(BrokenInvariant, match="the encoder's stream has other rows"):
        check(cache)


def bent_nodes(nodes: list[DumpedNode]) -> Iterator[tuple[str, list[DumpedNode]]]:
    """A root, then a chain of two blocks of four tokens and a partial one."""
    root, first, second, tail = nodes
    yield "a node has no parent", [root, first._replace(parent=-1), second, tail]
    yield "a node has no parent", [root, first, second, tail, tail._replace(parent=LOST)]
    yield "a node has no parent", [root, first._replace(parent=2), second, tail]
    yield "size 3 of", [root, first, second._replace(size=3), tail]
    yield "a partial block is a parent", [root, first, second, tail, second._replace(parent=3)]
    yield "a node stands for nothing", [root, first, second, tail._replace(pages=(-1,))]
    yield "child counts are wrong", [root, first, second._replace(children=2), tail]
    yield "child counts are wrong", [root._replace(children=0), first, second, tail]
    twice = [root, first, second._replace(children=2), tail, tail]
    yield "a block stands twice under its parent", twice


def test_a_tree_that_is_not_whole_is_found(store: str) -> None:
    dump = chain_of(store, 2, tail=2)._setup.store.dump()
    the_tree_is_whole(dump, 4)
    assert [(node.parent, node.size) for node in dump.nodes] == [(-1, 0), (0, 4), (1, 4), (2, 2)]
    for words, nodes in bent_nodes(dump.nodes):
        with pytest.raises(BrokenInvariant, match=words):
            the_tree_is_whole(dump._replace(nodes=nodes), 4)


def chain_of(store: str, blocks: int, tail: int = 0) -> Cache:
    """A cache that has one idle chain, and a live sequence on it."""
    config = CacheConfig(
        (TierConfig("device", 2 * blocks + 8),), block_size=4, max_sequences=2, max_length=4 * blocks + 16
    )
    cache = Cache(config, store=store)  # type: ignore[arg-type]
    (sequence,) = cache.add_sequence_batch([Request("r", seq(0, 4 * blocks + tail))]).sequences
    cache.commit(sequence)
    cache.release(sequence)
    if not tail:
        cache.add_sequence_batch([Request("s", seq(0, 4 * blocks + 1))])
    return cache


def lines_run(cache: Cache) -> int:
    """Lines of Python that a check runs."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        check(cache)
    finally:
        sys.settrace(before)
    return count


def items_in(value: object) -> int:
    """Numbers in a dump."""
    if isinstance(value, dict):
        return sum(map(items_in, value.values()))
    return sum(map(items_in, value)) if isinstance(value, list | tuple) else 1


def test_a_check_takes_time_by_size_not_by_depth(store: str) -> None:
    small, large = chain_of(store, 100), chain_of(store, 400)
    assert items_in(large._setup.store.dump()) < 4.5 * items_in(small._setup.store.dump())
    assert lines_run(large) < 4.5 * lines_run(small)
