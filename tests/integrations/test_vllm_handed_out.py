"""What is left of a chunk when vLLM takes its blocks back, and when it hands them out again: every byte checked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quire.integrations.vllm.common.worker_orders import BadPage, Copy, Part, StepOrders, WorkerReport
from quire.integrations.vllm.requests.left_blocks import LeftBlocks
from quire.integrations.vllm.requests.page_stores import fresh_blocks
from quire.integrations.vllm.worker.worker_side import WorkerSide
from tests.integrations.test_vllm_contract import ask, kept, stored
from tests.integrations.test_vllm_spread import begun, blocks_of, go_on
from tests.integrations.toy_engine import ToyEngine


@pytest.mark.parametrize("how", ["finish", "preempt", "ask again"])
def test_what_is_left_of_who_ends_is_stored_before_the_next_step_writes(how: str) -> None:
    engine, request, orders = begun(late=1.0)
    first = orders.stores[0].job
    go_on(engine, orders)
    if how == "finish":
        engine.side.finish(request)
    elif how == "ask again":  # as who was preempted between two steps
        engine.side.look(request, 0)
    assert engine.side.is_pending and engine.side.is_storing
    gone = {"spread"} if how == "preempt" else set()
    orders = engine.side.order({}, gone, lambda _: None, [5, 9])
    comes_back = how != "finish"  # all that is left at once; else what is handed out, and then the rest
    assert (blocks_of(orders.early), orders.stores) == ([[3, 4, 5] if comes_back else [5]], [])
    assert orders.early[0].job in orders.flush  # block 5 is somebody's again
    engine.workers[0].flush(orders)
    for layer in engine.kv[0][0]:
        layer[5] = 77
    engine.movers[0].flush([first])
    engine.side.hear(WorkerReport({first: 1, orders.early[0].job: 1}))
    assert kept(engine) == (20 if comes_back else 8)
    while engine.side.stores.num_carried:
        orders = engine.side.order({}, (), lambda _: None, [5])
        assert blocks_of(orders.early) in ([[3, 4]], []) and orders.flush == []
        engine.workers[0].flush(orders)
        engine.movers[0].flush([copy.job for copy in orders.early])
        engine.side.hear(WorkerReport({copy.job: 1 for copy in orders.early}))
    assert kept(engine) == 20
    engine.side.finish(request)
    engine.texts.append(request)
    assert engine.pages_are_right() == 5
    engine.nothing_is_held()


def test_an_early_store_that_could_not_end_in_time_counts_for_nothing() -> None:
    class Stuck:
        """A mover that cannot be waited for."""

        def __init__(self) -> None:
            self.begun: list[Copy] = []

        def store(self, copy: Copy) -> None:
            self.begun.append(copy)

        load = store

        def flush(self, jobs: Any) -> None:
            assert self.begun  # it had begun before it is waited for
            raise OSError("stuck")

        def take_ended(self) -> list[Any]:
            from quire.integrations.vllm.worker.host_pages import Ended

            return [Ended(copy, is_load=False) for copy in self.begun]

    worker, copy = WorkerSide(Stuck()), Copy(7, "spread", [Part(0, [3], [1])])
    worker.flush(StepOrders(early=[copy], flush=[7]))
    worker.received()
    told = worker.report()
    assert told is not None and told.bad == {7: copy.pages()}


def test_what_a_window_passes_is_stored_in_parts_from_where_it_was() -> None:
    engine, request, orders = begun(1, hybrid=True)
    assert blocks_of(orders.stores) == [[1], [1]]
    go_on(engine, orders)
    passed = [[1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 5, 6]]
    for block in (2, 3):
        orders = engine.side.order({"spread": 1}, (), lambda _: passed, [0, 9])  # the null block is nobody's
        assert blocks_of(orders.early) == [[block], [block]] and orders.flush == []
        go_on(engine, orders)
    orders = engine.side.order({"spread": 1}, (), lambda _: passed, [5])
    assert blocks_of(orders.early) == [[5]] and orders.flush == [orders.early[0].job]  # of the group with a window
    go_on(engine, orders)
    for early in ([[4], [4]], [[5]]):
        orders = engine.side.order({"spread": 1}, (), lambda _: passed, [5])
        assert blocks_of(orders.early) == early and orders.flush == []
        go_on(engine, orders)
    assert kept(engine) == 20 and kept(engine, list(range(16))) == 16  # at 16 the window reads block 3, which was kept
    engine.texts.append(request)
    assert engine.pages_are_right() > 0


def test_who_runs_has_the_blocks_that_no_window_passes() -> None:
    engine, request, orders = begun(1)
    go_on(engine, orders)
    orders = engine.side.order({"spread": 1}, (), lambda _: request.tables, [4])  # another one's, with that number
    assert blocks_of(orders.early) == [[2]] and orders.flush == []


def test_what_a_window_passes_while_more_is_computed_is_stored_from_where_it_was() -> None:
    engine, request, orders = begun(1, hybrid=True)
    go_on(engine, orders)
    request.all_token_ids += range(100, 108)  # 29: seven blocks
    now = [[1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 0, 0, 5, 6, 7, 8]]
    orders = engine.side.order({"spread": 8}, (), lambda _: now)
    engine.fill(request, now, 20, 29)
    request.num_computed_tokens = 29
    found = [blocks_of(orders.early)]
    while engine.side.stores.num_carried:
        go_on(engine, orders)
        orders = engine.side.order({}, (), lambda _: None)
        found.append(blocks_of(orders.early))
    assert found == [[[block], [block]] for block in range(2, 8)]
    go_on(engine, orders)
    assert kept(engine, request.all_token_ids) == 28
    engine.texts.append(request)
    assert engine.pages_are_right() > 0


def test_what_is_left_of_who_is_over_goes_in_parts_while_nobody_has_its_blocks() -> None:
    engine, request, orders = begun()
    go_on(engine, orders)
    engine.side.finish(request)
    for rest, had, flushed in (([3, 4], 8, False), ([5], 16, True)):
        assert engine.side.is_pending and kept(engine) == had
        orders = engine.side.order({}, (), lambda _: None, [0, 5] if flushed else [1, 2, 9])
        assert blocks_of(orders.early) == [rest] and bool(orders.flush) == flushed
        go_on(engine, orders)
    assert engine.side.is_pending and engine.side.order({}, (), lambda _: None).early == []
    assert kept(engine) == 20
    engine.texts.append(request)
    assert engine.pages_are_right() == 5
    engine.nothing_is_held()


def test_blocks_that_are_loaded_into_are_somebodys_again() -> None:
    engine, request, orders = begun(1)
    go_on(engine, orders)
    engine.side.finish(request)
    other = ask("other", [0, 1, 2, 3, 40])
    assert engine.side.look(other, 0) == 4
    other.tables = [[5, 9]]
    engine.side.place(other, other.tables, 4)
    orders = engine.side.order({}, (), lambda _: None)
    assert blocks_of(orders.loads) == [[5]] and blocks_of(orders.early) == [[5]]
    assert orders.flush == [orders.early[0].job]
    for block, had in ((2, 4), (3, 8), (4, 12)):
        go_on(engine, orders)
        assert kept(engine) == had  # what was stored before its turn is found when those before it are
        orders = engine.side.order({}, (), lambda _: None, [5])  # it is another's, and he goes on with it
        assert blocks_of(orders.early) == [[block]] and orders.flush == []
    go_on(engine, orders)
    engine.side.order({}, (), lambda _: None)
    engine.texts.append(request)
    assert kept(engine) == 20 and engine.pages_are_right() == 5


def test_of_what_is_left_only_what_is_handed_out_is_stored_before_its_turn() -> None:
    engine, request, orders = begun(1)
    go_on(engine, orders)
    engine.side.finish(request)
    for fresh, early, had in (([4], 4, 4), ([4, 5], 5, 4), ([4, 5], 2, 8), ([], 3, 12), ([], None, 16), ([], None, 20)):
        orders = engine.side.order({}, (), lambda _: None, fresh)
        assert blocks_of(orders.early) == ([] if early is None else [[early]])
        assert orders.flush == ([orders.early[0].job] if early in (4, 5) else [])
        go_on(engine, orders)
        for layer in engine.kv[0][0]:
            layer[fresh] = 77  # whoever has them now writes them
        assert kept(engine) == had
    assert not engine.side.stores.num_carried
    engine.texts.append(request)
    assert engine.pages_are_right() == 5
    engine.nothing_is_held()


@pytest.mark.parametrize("fresh", [range(1, 12), range(3, 400), [11, *range(400, 500)]])
def test_when_many_are_handed_out_all_that_is_left_goes_with_them(fresh: Any) -> None:
    engine, long = ToyEngine(0, hybrid=False), ask("long", list(range(41)))
    engine.side.stores.set_most_blocks(1)
    orders = stored(engine, long)
    engine.fill(long, long.tables, 0, 40)
    go_on(engine, orders)
    engine.side.finish(long)
    orders = engine.side.order({}, (), lambda _: None, fresh)
    ours = 11 not in fresh or 10 in fresh  # the eleventh block has nothing whole in it
    assert blocks_of(orders.early) == [list(range(2, 11)) if ours else [2]]
    assert orders.flush == ([orders.early[0].job] if ours else [])
    go_on(engine, orders)
    assert kept(engine, list(range(41))) == (40 if ours else 8)
    engine.texts.append(long)
    assert engine.pages_are_right() > 0


def test_a_page_that_could_not_be_stored_before_its_turn_is_not_found_when_it_comes() -> None:
    engine, request, orders = begun(1)
    go_on(engine, orders)
    engine.side.finish(request)
    orders = engine.side.order({}, (), lambda _: None, [4])
    (copy,) = orders.early
    (part,) = copy.parts
    assert part.blocks == [4]
    engine.side.hear(WorkerReport({copy.job: 1}, {copy.job: [BadPage(0, part.slots[0])]}))
    for worker in engine.workers:
        worker.flush(orders)
        worker.received()
        worker.report()
    while engine.side.stores.num_carried:
        go_on(engine, engine.side.order({}, (), lambda _: None))
    assert kept(engine) == 12
    engine.texts.append(request)
    assert engine.pages_are_right() > 0
    engine.nothing_is_held()


@pytest.mark.parametrize("how", ["preempt", "ask again"])
def test_who_comes_back_finds_all_that_it_had(how: str) -> None:
    engine, request, orders = begun()
    go_on(engine, orders)
    if how == "ask again":
        engine.side.look(request, 0)
    orders = engine.side.order({}, {"spread"}, lambda _: None)
    assert blocks_of(orders.early) == [[3, 4, 5]]
    go_on(engine, orders)
    assert engine.side.look(request, 0) == 20


def test_who_is_preempted_between_two_steps_and_comes_back_in_the_next_one_stays() -> None:
    """As with reset_prefix_cache: vLLM tells of the preemption with the step that begins it anew."""
    engine, request, orders = begun()
    go_on(engine, orders)
    request.num_computed_tokens = 0
    assert engine.side.look(request, 0) == 8
    tables = [[11, 12, 13, 14, 15, 16]]
    engine.side.place(request, tables, 0)  # vLLM would rather compute it
    orders = engine.side.order({"spread": 21}, {"spread"}, lambda _: tables, [11, 12, 13, 14, 15, 16])
    assert blocks_of(orders.early) == [[3, 4, 5]] and engine.side._stays.keys() == {"spread"}
    request.tables, request.num_computed_tokens = tables, 21
    engine.fill(request, tables, 0, 20)
    go_on(engine, orders)
    request.all_token_ids += range(21, 25)
    go_on(engine, engine.side.order({"spread": 4}, (), lambda _: [[*tables[0], 17]]))
    assert kept(engine, request.all_token_ids) == 24  # what it computes now is stored too
    engine.side.finish(request)
    engine.nothing_is_held()


def test_blocks_that_may_be_left_are_known_by_their_numbers() -> None:
    left = LeftBlocks(2)
    assert left.among({1, 2, 10**9}) == {}
    left.add([[5, 6, 7, 8], [0, 0, 900, 3000]], 1, 4)  # there is room for it now
    among = left.among({5, 6, 8, 900, 3000, 3001, 10**9})
    assert {group: sorted(blocks) for group, blocks in among.items()} == {0: [6, 8], 1: [900, 3000]}
    left.add([[1, 2], [6, 2]], 0, 2)  # 6 was somebody's in the other group before: whose it is now is not known here
    assert {group: sorted(blocks) for group, blocks in left.among({1, 6, 9}).items()} == {0: [1, 6], 1: [6]}
    left.clear()
    assert left.among(set(range(4000))) == {}


def test_what_is_computed_while_some_is_left_may_be_handed_out_too() -> None:
    engine, request, orders = begun(1)
    go_on(engine, orders)
    go_on(engine, engine.side.order({"spread": 1}, (), lambda _: request.tables, [50]))  # what is left is noted
    request.all_token_ids += range(100, 108)  # 29: seven blocks
    request.tables = [list(range(1, 9))]
    go_on(engine, engine.side.order({"spread": 8}, (), lambda _: request.tables))
    engine.fill(request, request.tables, 20, 29)
    request.num_computed_tokens = 29
    engine.side.finish(request)
    orders = engine.side.order({}, (), lambda _: None, [7])
    assert blocks_of(orders.early) == [[7]] and orders.flush == [orders.early[0].job]
    go_on(engine, orders)
    while engine.side.stores.num_carried:
        go_on(engine, engine.side.order({}, (), lambda _: None))
    assert kept(engine, request.all_token_ids) == 28
    engine.texts.append(request)
    assert engine.pages_are_right() == 7


def test_what_was_stored_before_its_turn_is_found_though_all_others_are_heard_of_late() -> None:
    engine, request, orders = begun(1)
    engine.side.finish(request)
    ordered = [orders]
    for fresh, early in (([5], 5), ([], 2), ([], 3), ([], 4), ([], None)):  # the last part was stored before
        ordered.append(engine.side.order({}, (), lambda _: None, fresh))
        assert blocks_of(ordered[-1].early) == ([] if early is None else [[early]])
    assert not engine.side.stores.num_carried and kept(engine) == 0
    for one in ordered:
        go_on(engine, one)
    engine.texts.append(request)
    assert kept(engine) == 20 and engine.pages_are_right() == 5
    engine.nothing_is_held()


def test_what_has_no_room_before_its_turn_is_not_stored_and_no_other_group_counts() -> None:
    """Two groups in a host of four slots, all taken by another text, and three blocks of one group handed out."""
    engine = ToyEngine(0, hybrid=True, host=2)
    tables = [list(range(1, 7)), list(range(11, 17))]
    for name, tokens, count in (("old", list(range(100, 109)), 9), ("spread", None, 21)):
        request = ask(name, tokens)
        assert engine.side.look(request, 0) == 0
        request.tables = [list(table) for table in tables]
        engine.side.place(request, request.tables, 0)
        orders = engine.side.order({name: count}, (), lambda _: tables)
        request.num_computed_tokens += count
        engine.fill(request, request.tables, 0, count // 4 * 4)
        go_on(engine, orders)
        engine.side.finish(request)
        engine.texts.append(request)
        go_on(engine, engine.side.order({}, (), lambda _: None) if name == "old" else StepOrders())
        engine.side.stores.set_most_blocks(1)
    orders = engine.side.order({}, (), lambda _: None, [13, 14, 15])
    assert orders.early == []
    go_on(engine, orders)
    assert kept(engine) == 4 and engine.pages_are_right() == 2
    engine.nothing_is_held()


def test_blocks_that_a_step_may_write() -> None:
    given = SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(block_ids=([1, 2], [0, 3]))],
        scheduled_cached_reqs=SimpleNamespace(new_block_ids=[None, ([4], [5])]),
        new_block_ids_to_zero=None, kv_cache_block_copies=None,
    )  # fmt: skip
    assert fresh_blocks(given) == [1, 2, 0, 3, 4, 5]
    given.new_block_ids_to_zero, given.kv_cache_block_copies = [6], [SimpleNamespace(src_block_id=1, dst_block_id=7)]
    assert fresh_blocks(given) == [1, 2, 0, 3, 4, 5, 6, 7]


def test_blocks_that_are_somebodys_again_are_stored_for_him() -> None:
    engine = ToyEngine(0, hybrid=False)
    first, second = ask("first"), ask("second", [40] * 21)
    (copy,) = stored(engine, first).stores
    engine.side.finish(first)  # and its store was not heard of
    engine.side.look(second, 0)
    second.tables = [list(range(1, 7))]
    engine.side.place(second, second.tables, 0)
    orders = engine.side.order({"second": 21}, (), lambda _: second.tables, range(1, 7))
    assert orders.flush == [copy.job] and blocks_of(orders.stores) == [[1, 2, 3, 4, 5]]
    engine.side.hear(WorkerReport({copy.job: 1, orders.stores[0].job: 1}))
    assert kept(engine) == 20 and kept(engine, [40] * 21) == 20


def test_a_store_that_is_heard_of_leaves_blocks_to_the_next_one_that_reads_them() -> None:
    engine = ToyEngine(0, hybrid=False)
    first, second, third = ask("first"), ask("second", [40] * 21), ask("third", [50] * 21)
    (copy,) = stored(engine, first).stores
    engine.side.finish(first)
    jobs = [copy.job]
    for request in (second, third):
        engine.side.look(request, 0)
        engine.side.place(request, (), 0)
        tables = [list(range(1, 7))]
        assert engine.side.is_storing  # else nobody asks which blocks a step hands out
        orders = engine.side.order({request.request_id: 21}, (), {request.request_id: tables}.__getitem__, range(1, 7))
        assert orders.flush == jobs
        engine.side.hear(WorkerReport({jobs.pop(): 1}))  # only now
        jobs.append(orders.stores[0].job)
        engine.side.finish(request)
