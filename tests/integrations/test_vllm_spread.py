"""What a step computes is stored over some steps: with blocks that vLLM takes back in between, every byte checked."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quire import Cache, Request, Scope
from quire.integrations.vllm.common.cache_groups import HOST, cache_config
from quire.integrations.vllm.common.connector_options import ConnectorOptions
from quire.integrations.vllm.common.request_identity import scope_of
from quire.integrations.vllm.common.worker_orders import Copy, StepOrders, WorkerReport
from quire.integrations.vllm.scheduler_side import SchedulerSide
from tests.integrations.test_vllm_contract import ask, filled, kept, stored
from tests.integrations.toy_engine import ToyEngine
from tests.integrations.toy_parts import SIZE, WINDOW, ToyRequest, groups, requests

WORLDS: list[dict[str, Any]] = [
    {"hybrid": False, "host": 400, "blocks": 40},
    {"hybrid": True, "ranks": 2, "ahead": True, "host": 400, "blocks": 40},
    {"hybrid": True, "late": 0.5, "host": 400, "blocks": 24},
    {"hybrid": False, "ahead": True, "late": 0.5, "host": 400, "blocks": 24},
    {"hybrid": True, "ranks": 2, "ahead": True, "late": 0.5, "failing": 0.3, "host": 60, "blocks": 24},
    {"hybrid": True, "ahead": True, "host": 5, "blocks": 24},
]


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: "-".join(f"{name}{value}" for name, value in world.items()))
def test_random_requests_are_stored_whole_over_some_steps(world: dict[str, Any], most: int) -> None:
    seed = 50 + WORLDS.index(world)
    engine = ToyEngine(seed, **world)
    engine.side.stores.set_most_blocks(most)
    engine.skips = 0.2
    engine.run(requests(random.Random(seed), 24), abort=0.03)
    assert engine.seen["done"] + engine.seen["aborts"] >= 24 and engine.seen["early"] > 0
    assert engine.pages_are_right() > 0 or world["host"] < 10
    if world["host"] < 100:
        return
    for request in engine.texts:  # there is room for all of them: nothing that was computed is missing
        asked = Request("look", np.array(request.all_token_ids, np.int32), scope_of(request, 0))
        with engine.cache.find(asked) as found:
            if request.num_tokens - request.num_prompt_tokens >= request.max_tokens:
                assert found.end >= (request.num_tokens - 1) // SIZE * SIZE  # the last one may come too late for a step


def begun(most: int = 2, **more: Any) -> tuple[ToyEngine, ToyRequest, StepOrders]:
    """Five blocks of a prompt are computed in one step, and no more than so many are stored with it."""
    engine = ToyEngine(0, **({"hybrid": False} | more))
    engine.side.stores.set_most_blocks(most)
    request = ask("spread")
    orders = stored(engine, request)
    engine.fill(request, request.tables, 0, 20)
    return engine, request, orders


def go_on(engine: ToyEngine, orders: StepOrders) -> None:
    """The workers run the orders, and are heard; then vLLM takes what is to be told, as with every step."""
    report = None
    for worker in engine.workers:
        worker.flush(orders)
        worker.start_loads(orders)
        worker.run_stores(orders)
        worker.received()
        told = worker.report()
        report = told if report is None or told is None else report.aggregate(told)
    engine.side.hear(report)
    if engine.events is not None:
        engine.events.take()


def blocks_of(copies: list[Copy]) -> list[list[int]]:
    return [part.blocks for copy in copies for part in copy.parts]


def test_the_rest_of_a_chunk_goes_with_the_next_steps_and_is_found_when_it_is_written() -> None:
    engine, request, orders = begun()
    assert (blocks_of(orders.stores), orders.early, kept(engine)) == ([[1, 2]], [], 0)
    go_on(engine, orders)
    for rest, had, end in (([3, 4], 8, 16), ([5], 16, 20)):
        assert kept(engine) == had and engine.side.is_pending
        orders = engine.side.order({"spread": 1}, (), lambda _: request.tables)
        assert (blocks_of(orders.early), orders.stores, kept(engine)) == ([rest], [], had)
        go_on(engine, orders)
        assert kept(engine) == end
    assert not engine.side.is_pending
    orders = engine.side.order({"spread": 1}, (), lambda _: request.tables)
    assert orders.early == [] and orders.stores == []
    engine.side.finish(request)
    engine.nothing_is_held()
    counted = engine.side.counts.take()["counters"]
    assert (counted["stored_pages"], counted["stores"], counted["carried_stores"]) == (5, 3, 2)


def test_who_is_not_in_a_step_is_stored_all_the_same_in_parts() -> None:
    engine, _, orders = begun()
    go_on(engine, orders)
    orders = engine.side.order({}, (), lambda _: None)  # vLLM tells no tables of those
    assert blocks_of(orders.early) == [[3, 4]]
    go_on(engine, orders)
    assert kept(engine) == 16


def test_what_is_computed_meanwhile_waits_for_what_was_before() -> None:
    engine, request, orders = begun()
    go_on(engine, orders)
    request.all_token_ids += range(100, 112)  # 33: eight blocks
    request.tables = [list(range(1, 10))]
    orders = engine.side.order({"spread": 12}, (), lambda _: request.tables)
    assert (blocks_of(orders.early), orders.stores) == ([[3, 4]], [])
    engine.fill(request, request.tables, 20, 33)
    request.num_computed_tokens = 33
    go_on(engine, orders)
    for rest in ([5, 6], [7, 8]):
        orders = engine.side.order({"spread": 1}, (), lambda _: request.tables)
        assert (blocks_of(orders.early), orders.stores) == ([rest], [])
        go_on(engine, orders)
    assert kept(engine, request.all_token_ids) == 32
    engine.texts.append(request)
    assert engine.pages_are_right() == 8


def test_a_step_stores_fewer_blocks_where_there_are_more_groups() -> None:
    most = []
    for count in (1, 2, 3, 6):
        model = SimpleNamespace(
            kv_cache_groups=groups(hybrid=False) * count, num_blocks=1, kv_cache_tensors=[SimpleNamespace(size=64)]
        )
        options = ConnectorOptions(host=1 << 22)
        cache = Cache(cache_config(model, options, world_size=1, max_length=800, events=False))
        side = SchedulerSide(cache, options, world_size=1)
        request = ask("long", list(range(800)))
        side.look(request, 0)
        side.place(request, (), 0)
        tables = {"long": [list(range(1, 201))] * count}
        (copy,) = side.order({"long": 800}, (), tables.__getitem__).stores
        most.append([len(part.blocks) for part in copy.parts])
    assert most == [[56], [23] * 2, [12] * 3, [8] * 6]


def test_after_new_weights_nothing_is_left_of_the_old_ones() -> None:
    engine, request, orders = begun()
    other = ask("other", [7] * 21)
    other_orders = stored(engine, other)
    engine.side.finish(other)
    for one in (orders, other_orders):
        go_on(engine, one)
    assert engine.side.reset()
    orders = engine.side.order({"spread": 1}, (), lambda _: request.tables)
    assert orders.early == [] and orders.stores == [] and kept(engine) == 0
    engine.side.finish(request)
    engine.nothing_is_held()


def test_who_waits_for_new_weights_is_stored_under_them() -> None:
    engine, request = ToyEngine(0, hybrid=False), ask("waits")
    engine.side.arrive(request)
    assert engine.side.look(request, 0) == 0 and engine.side.reset()
    go_on(engine, stored(engine, request))
    assert kept(engine) == 0 and kept(engine, scope=Scope(epoch=1)) == 20


def test_without_room_for_the_rest_it_is_counted_and_nothing_is_held() -> None:
    engine, request, orders = begun(host=3)
    go_on(engine, orders)
    assert kept(engine) == 8
    with engine.cache.find(Request("holds", np.array(request.all_token_ids, np.int32))):
        orders = engine.side.order({"spread": 1}, (), lambda _: request.tables)
        go_on(engine, orders)
    assert blocks_of(orders.early) == [[3]] and kept(engine) == 12
    assert engine.side.counts.take()["counters"]["refused_stores"] == 1
    assert engine.side.order({"spread": 1}, (), lambda _: request.tables).early == []
    engine.side.finish(request)
    engine.nothing_is_held()


@pytest.mark.parametrize("own", [0, 8])
def test_what_was_loaded_is_not_asked_for_again_but_what_vllm_had_before_is(own: int) -> None:
    engine = filled()
    engine.side.stores.set_most_blocks(2)
    with engine.cache.find(Request("look", np.array(range(21), np.int32))) as found:
        first = found.slots().tolist()[:2]
    if own:
        engine.cache.lose(0, first, tier=HOST)
    request = ask("again", [*range(21), *range(30, 45)])  # 36 tokens: nine blocks
    assert engine.side.look(request, own) == 20 - own
    request.tables = [list(range(1, 11))]
    engine.side.place(request, request.tables, 20 - own)
    go_on(engine, engine.side.order({}, (), lambda _: None))
    if not own:
        engine.cache.lose(0, first, tier=HOST)  # as if it was evicted since
    request.num_computed_tokens = 20
    engine.side.place(request, request.tables, 0)
    orders = engine.side.order({"again": 16}, (), lambda _: request.tables)
    assert blocks_of(orders.stores) == [[1, 2, 6, 7] if own else [6, 7]]
    assert blocks_of(engine.side.order({}, (), lambda _: None).early) == [[8, 9]]


def test_what_vllm_has_itself_is_stored_if_it_is_not_here() -> None:
    engine = ToyEngine(0, hybrid=False)
    engine.side.stores.set_most_blocks(2)
    request = ask("own")
    assert engine.side.look(request, 12) == 0
    request.tables, request.num_computed_tokens = [list(range(1, 7))], 12
    engine.side.place(request, request.tables, 0)
    orders = engine.side.order({"own": 9}, (), lambda _: request.tables)
    assert blocks_of(orders.stores) == [[1, 2, 3, 4, 5]]  # three that it had, and two
    engine.side.hear(WorkerReport({orders.stores[0].job: 1}))
    assert kept(engine) == 20


def test_who_ends_with_a_rest_that_another_has_stored_meanwhile_holds_nothing() -> None:
    engine, request, orders = begun()
    go_on(engine, orders)
    engine.side.stores.set_most_blocks(9)
    other = ask("other", max_tokens=1)
    assert engine.side.look(other, 0) == 8
    other.tables = [list(range(11, 17))]
    engine.side.place(other, other.tables, 8)
    go_on(engine, engine.side.order({}, (), lambda _: None))  # and something of the first one
    other.num_computed_tokens = 8
    engine.side.place(other, other.tables, 0)
    engine.side.stores.set_most_blocks(2)
    engine.fill(other, other.tables, 8, 20)
    go_on(engine, engine.side.order({"other": 13}, (), lambda _: other.tables))
    engine.side.finish(request)
    engine.side.finish(other)
    while engine.side.is_pending:
        go_on(engine, engine.side.order({}, (), lambda _: None))
    assert kept(engine) == 20
    engine.nothing_is_held()


def test_the_rest_is_there_already() -> None:
    engine, request, orders = begun()
    go_on(engine, orders)
    with engine.cache.writer(Request("brought", np.array(request.all_token_ids, np.int32)), tier=HOST) as brought:  # type: ignore[union-attr]
        brought.written(20)
    engine.side.finish(request)
    assert len(engine.cache.open_writers()) == 1  # it is not over yet
    for _ in range(2):
        assert engine.side.order({}, (), lambda _: None).early == []
    assert kept(engine) == 20
    engine.nothing_is_held()


def test_what_a_window_does_not_need_is_full_attentions() -> None:
    """A host for eleven blocks of both groups, in one pool: two prompts of six are kept, with their last windows."""
    engine = ToyEngine(0, hybrid=True, host=11, blocks=60)
    engine.side.stores.set_most_blocks(1)
    for nth, name in enumerate(("one", "two")):
        request = ask(name, list(range(100 * nth, 100 * nth + 25)))
        orders = stored(engine, request)
        engine.fill(request, request.tables, 0, 24)
        go_on(engine, orders)
        while engine.side.stores.num_carried:
            go_on(engine, engine.side.order({}, (), lambda _: None))
        engine.side.finish(request)
        engine.texts.append(request)
    assert [kept(engine, request.all_token_ids) for request in engine.texts] == [24, 24]
    assert engine.pages_are_right() == 2 * (6 + WINDOW // SIZE)
    engine.nothing_is_held()


def test_of_a_store_with_too_little_room_as_many_blocks_are_kept_as_fit_in_all_groups() -> None:
    engine = ToyEngine(0, hybrid=True, host=3)  # six slots
    request = ask("long", list(range(45)))
    orders = stored(engine, request)
    assert [len(part.blocks) for copy in orders.stores for part in copy.parts] == [3, 3]
    engine.fill(request, request.tables, 0, 44)
    go_on(engine, orders)
    engine.side.finish(request)
    engine.texts.append(request)
    assert kept(engine, request.all_token_ids) == 12 and engine.pages_are_right() == 3 + WINDOW // SIZE
    assert engine.side.counts.take()["counters"]["refused_stores"] == 1
