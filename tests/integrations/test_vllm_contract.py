"""The vLLM connector as vLLM drives it: random runs with every byte checked, and the traps one by one. Without vLLM."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quire import Request, Scope, check
from quire.integrations.vllm.common.cache_groups import HOST
from quire.integrations.vllm.common.worker_orders import BadPage, StepOrders, WorkerReport
from quire.integrations.vllm.scheduler_side import MOST_FAILURES, PATIENCE
from tests.integrations.toy_engine import ToyEngine
from tests.integrations.toy_parts import SIZE, ToyRequest, requests

PROMPT = list(range(21))  # five whole blocks and a token


def ask(name: str, tokens: list[int] | None = None, **more: Any) -> ToyRequest:
    given = list(PROMPT if tokens is None else tokens)
    return ToyRequest(name, given, len(given), **more)


def stored(engine: ToyEngine, request: ToyRequest, count: int | None = None) -> StepOrders:
    """It runs alone: looked up, placed, `count` tokens of it computed in one step; the orders are not run yet."""
    assert engine.side.look(request, 0) == 0
    request.tables = [list(range(1, 2 + request.num_tokens // SIZE)) for _ in engine.kv_groups]
    engine.side.place(request, request.tables, 0)
    count = request.num_tokens if count is None else count
    orders = engine.side.order({request.request_id: count}, (), lambda _: request.tables)
    request.num_computed_tokens += count
    return orders


def run(engine: ToyEngine, orders: StepOrders) -> WorkerReport | None:
    """The orders on every rank, with one report."""
    report = None
    for worker in engine.workers:
        worker.start_loads(orders)
        worker.run_stores(orders)
        worker.received()
        told = worker.report()
        report = told if report is None or told is None else report.aggregate(told)
    return report


def kept(engine: ToyEngine, tokens: list[int] | None = None, scope: Scope | None = None) -> int:
    """Leading tokens that a look finds."""
    asked = Request("look", np.array(PROMPT if tokens is None else tokens, np.int32), scope or Scope())
    with engine.cache.find(asked) as found:
        return found.end


def filled(kind: type[ToyEngine] = ToyEngine, **more: Any) -> ToyEngine:
    """With the prompt in host memory, and nobody running."""
    engine = kind(0, hybrid=False, **more)
    first = ask("first")
    engine.side.hear(run(engine, stored(engine, first)))
    engine.side.finish(first)
    engine.nothing_is_held()
    return engine


WORLDS: list[dict[str, Any]] = [
    {"hybrid": False, "host": 60, "blocks": 40},
    {"hybrid": True, "ranks": 2, "ahead": True, "host": 24, "blocks": 40},
    {"hybrid": True, "late": 0.5, "failing": 0.1, "host": 40, "blocks": 60},
    {"hybrid": True, "ranks": 2, "ahead": True, "late": 0.5, "failing": 0.3, "host": 60, "blocks": 24},
    {"hybrid": True, "ahead": True, "host": 5, "blocks": 24},
]


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: "-".join(f"{name}{value}" for name, value in world.items()))
def test_random_requests_get_right_bytes_and_leave_nothing_behind(world: dict[str, Any]) -> None:
    seed = WORLDS.index(world)
    engine = ToyEngine(seed, **world)
    engine.run(requests(random.Random(seed), 24, salts=seed % 2 == 1), abort=0.05)
    assert engine.seen["done"] + engine.seen["aborts"] >= 24 and engine.seen["loads"] > 0
    assert bool(engine.seen["failed"]) == bool(world.get("failing"))
    assert len(engine.published) == engine.cache.usage(HOST).idle > 0  # all groups have one pool
    if world["host"] > 10:
        assert engine.pages_are_right() > 0 and engine.seen["loaded tokens"] > 0


def test_a_load_that_always_fails_does_not_livelock() -> None:
    engine = filled()
    engine.own, engine.movers[0].failing_loads = 0.0, 1.1
    engine.run([ask("again", max_tokens=3)])
    assert engine.seen["failed"] == 1 and engine.seen["done"] == 1  # its pages were lost at once: asked once
    assert kept(engine) == 20  # and stored again


def test_who_has_failed_too_often_is_offered_nothing() -> None:
    engine = filled()
    request = ask("unlucky")
    for nth in range(MOST_FAILURES):
        assert engine.side.look(request, 0) == 20
        request.tables = [list(range(1, 7))]
        engine.side.place(request, request.tables, 20)
        (copy,) = engine.side.order({}, (), lambda _: None).loads
        other = ask(f"other {nth}")
        engine.side.hear(WorkerReport({copy.job: 1}, {copy.job: copy.pages()[-1:]}))
        engine.side.hear(run(engine, stored_again(engine, other)))
        engine.side.finish(other)
        assert kept(engine) == 20  # another has brought the page back meanwhile
    assert engine.side.look(request, 0) == 0
    engine.side.finish(request)
    engine.nothing_is_held()


def stored_again(engine: ToyEngine, request: ToyRequest) -> StepOrders:
    engine.side.look(request, 0)
    request.tables = [list(range(11, 17))]
    engine.side.place(request, request.tables, 0)
    return engine.side.order({request.request_id: 21}, (), lambda _: request.tables)


def test_nothing_is_stored_on_top_of_a_load_that_failed() -> None:
    engine = filled()
    request = ask("poisoned", [*PROMPT, *range(30, 45)])
    assert engine.side.look(request, 0) == 20
    request.tables = [list(range(1, 11))]
    engine.side.place(request, request.tables, 20)
    orders = engine.side.order({}, (), lambda _: None)
    engine.movers[0].failing_loads = 1.1
    engine.side.hear(run(engine, orders))
    request.num_computed_tokens = 20
    assert engine.side.order({"poisoned": 16}, (), lambda _: request.tables).stores == []


def test_a_bad_page_is_found_by_its_checksum_and_lost() -> None:
    engine = filled()
    engine.own = 0.0
    engine.movers[0].pages.memory[:, 5] ^= 1  # every page
    engine.run([ask("again", max_tokens=2)])
    assert engine.seen["failed"] == 1 and engine.side.counts.take()["counters"]["lost_pages"] == 5
    assert engine.pages_are_right() > 0  # it was computed, and stored anew


def test_a_page_that_one_rank_could_not_store_is_not_found() -> None:
    engine = ToyEngine(0, hybrid=False, ranks=2)
    request = ask("half")
    orders = stored(engine, request)
    (copy,) = orders.stores
    report = run(engine, orders)
    assert report is not None and report.ended == {copy.job: 2}
    report.bad[copy.job] = [BadPage(0, copy.parts[0].slots[2])]
    engine.side.hear(report)
    assert kept(engine) == 2 * SIZE  # the first two blocks; the third is not there
    engine.side.finish(request)
    engine.nothing_is_held()


def test_a_store_counts_when_every_rank_has_ended_it_in_whatever_step() -> None:
    engine = ToyEngine(0, hybrid=False, ranks=2)
    request = ask("slow")
    (copy,) = stored(engine, request).stores
    engine.side.hear(WorkerReport({copy.job: 1}))
    assert kept(engine) == 0 and engine.side.is_pending
    engine.side.finish(request)  # vLLM finishes a request before it tells what the step reported
    engine.side.hear(WorkerReport({copy.job: 1}))
    assert kept(engine) == 20
    engine.nothing_is_held()


def test_stores_that_end_out_of_order_are_findable_in_order() -> None:
    engine = ToyEngine(0, hybrid=False)
    request = ask("two")
    first = stored(engine, request, 8).stores[0]
    second = engine.side.order({"two": 13}, (), lambda _: request.tables).stores[0]
    engine.side.hear(WorkerReport({second.job: 1}))
    assert kept(engine) == 0
    engine.side.hear(WorkerReport({first.job: 1}))
    assert kept(engine) == 20


def test_who_waits_holds_nothing() -> None:
    engine = filled()
    assert engine.side.look(ask("waits"), 0) == 20 and len(engine.cache.open_finds()) == 1
    assert engine.side.look(ask("waits"), 0) == 20 and len(engine.cache.open_finds()) == 1
    engine.side.order({}, (), lambda _: None)
    assert engine.cache.open_finds() == []


def test_who_runs_does_not_pin_what_is_written() -> None:
    engine = ToyEngine(0, hybrid=False, host=6)
    for nth in range(4):  # all of them stay: each needs five of the six slots
        request = ask(f"r{nth}", [nth] * 21)
        engine.side.hear(run(engine, stored(engine, request)))
        assert kept(engine, [nth] * 21) == 20
    assert engine.side.counts.take()["counters"].get("refused_stores") is None


def test_a_prompt_longer_than_the_memory_is_kept_in_part() -> None:
    engine = ToyEngine(0, hybrid=False, host=3)
    request = ask("long")
    engine.side.hear(run(engine, stored(engine, request)))
    assert kept(engine) == 3 * SIZE
    assert engine.side.counts.take()["counters"]["refused_stores"] == 1


def test_null_blocks_are_neither_stored_nor_found() -> None:
    engine = ToyEngine(0)
    request = ask("windowed")
    assert engine.side.look(request, 0) == 0
    request.tables = [[1, 2, 3, 4, 5, 6], [0, 0, 0, 4, 5, 6]]
    engine.side.place(request, request.tables, 0)
    orders = engine.side.order({"windowed": 21}, (), lambda _: request.tables)
    assert [part.blocks for part in orders.stores[0].parts] == [[1, 2, 3, 4, 5], [4, 5]]
    engine.side.hear(run(engine, orders))
    assert kept(engine) == 20 and kept(engine, PROMPT[:16]) == 0  # at 16 the window reads block 2, which was null


def test_a_load_leaves_out_what_vllm_has_no_block_for() -> None:
    engine = ToyEngine(0)
    first, again = ask("first"), ask("again")
    engine.side.hear(run(engine, stored(engine, first)))
    engine.side.finish(first)
    with engine.cache.find(Request("look", np.array(PROMPT, np.int32))) as found:
        slots = [dict(zip(found.blocks(g).tolist(), found.slots(g).tolist(), strict=True)) for g in range(2)]
    assert min(slots[1]) < 4  # the window reads more than its last block
    assert engine.side.look(again, 0) == 20
    engine.side.place(again, [[11, 12, 13, 14, 15, 16], [0, 0, 0, 0, 25, 26]], 20)
    (copy,) = engine.side.order({}, (), lambda _: None).loads
    assert copy.parts == [(0, [11, 12, 13, 14, 15], [slots[0][n] for n in range(5)]), (1, [25], [slots[1][4]])]


def test_blocks_that_two_share_are_stored_once() -> None:
    engine = ToyEngine(0, hybrid=False)
    one, two = ask("one"), ask("two")
    for request in (one, two):
        engine.side.look(request, 0)
        request.tables = [[1, 2, 3, 4, 5, 6]]  # the second found the first one's in vLLM's own cache
        engine.side.place(request, request.tables, 0)
    orders = engine.side.order({"one": 21, "two": 21}, (), lambda _: one.tables)
    assert len(orders.stores) == 1
    engine.side.hear(run(engine, orders))
    engine.side.finish(one)
    engine.side.finish(two)
    engine.nothing_is_held()


def test_an_abort_keeps_the_pages_of_its_load_until_every_rank_is_done() -> None:
    engine = filled(ranks=2)
    request = ask("aborted")
    assert engine.side.look(request, 0) == 20
    request.tables = [list(range(1, 7))]
    engine.side.place(request, request.tables, 20)
    (copy,) = engine.side.order({}, (), lambda _: None).loads
    engine.side.place(request, request.tables, 0)  # told again: the load goes on
    assert len(engine.cache.open_finds()) == 1
    engine.side.finish(request)
    engine.side.hear(WorkerReport({copy.job: 1}))
    assert len(engine.cache.open_finds()) == 1
    engine.side.hear(WorkerReport({copy.job: 1}))
    engine.nothing_is_held()


def test_a_preempted_request_comes_back_while_its_stores_are_under_way() -> None:
    engine = ToyEngine(0, hybrid=False)
    request = ask("back")
    orders = stored(engine, request)
    engine.side.order({}, {"back"}, lambda _: None)
    request.num_computed_tokens = 0
    assert engine.side.look(request, 0) == 0  # a stay of its own
    engine.side.hear(run(engine, orders))
    assert engine.side.look(request, 0) == 20
    engine.side.finish(request)
    engine.nothing_is_held()


def test_a_load_that_vllm_sees_otherwise_is_reported_as_failed_and_not_offered_again() -> None:
    engine = filled()
    request = ask("other")
    assert engine.side.look(request, 0) == 20
    request.tables = [list(range(1, 7))]
    engine.side.place(request, request.tables, 12)
    orders = engine.side.order({}, (), lambda _: None)
    assert orders.refused == ["other"] and orders.loads == []
    (worker,) = engine.workers
    worker.start_loads(orders)
    assert worker.received() == ({"other"}, {"other"})
    assert engine.side.look(request, 0) == 0
    engine.side.finish(request)
    assert engine.side.look(ask("other"), 0) == 20  # a new request of that id


def test_a_mover_that_cannot_be_asked_ends_no_worker() -> None:
    engine = filled()
    (worker,) = engine.workers
    broken = SimpleNamespace(take_ended=lambda: 1 / 0)
    mover, worker.mover = worker.mover, broken
    assert worker.received() == (set(), set()) and worker.report() is None
    worker.mover = mover


def test_new_weights_share_nothing_with_the_old_ones() -> None:
    engine = filled()
    running, early = ask("running"), ask("early", [*PROMPT[:12], 99])
    late = stored_again(engine, running)
    engine.side.look(early, 0)
    early.tables = [list(range(20, 24))]
    engine.side.place(early, early.tables, 12)
    load = engine.side.order({}, (), lambda _: None).loads[0]
    assert engine.side.reset() is False  # a load brings pages of the old weights
    assert kept(engine) == 0
    engine.side.hear(run(engine, late))
    engine.side.hear(WorkerReport({load.job: 1}))
    running.num_computed_tokens = 21
    running.all_token_ids += [7, 8, 9]
    assert engine.side.order({"running": 3}, (), lambda _: running.tables).stores == []
    assert kept(engine) == kept(engine, None, Scope(epoch=1)) == 0
    assert engine.side.reset() is True
    fresh = ask("fresh")
    engine.side.hear(run(engine, stored(engine, fresh)))
    assert kept(engine, None, Scope(epoch=2)) == 20
    for request in (running, early, fresh):
        engine.side.finish(request)
    engine.nothing_is_held()


def test_kv_of_old_weights_is_not_stored_by_who_had_no_whole_block_yet() -> None:
    engine = ToyEngine(0, hybrid=False)
    request = ask("young", PROMPT[:3])
    assert stored(engine, request).stores == []
    assert engine.side.reset() is True
    request.all_token_ids += PROMPT[3:10]
    request.tables = [list(range(1, 8))]
    assert engine.side.order({"young": 7}, (), lambda _: request.tables).stores == []
    engine.side.finish(request)
    engine.nothing_is_held()


def test_what_was_looked_up_under_old_weights_is_not_held_under_new_ones() -> None:
    """vLLM may look up and not place; nothing but the next order, or new weights, ends what the look holds."""
    engine, waits = filled(), ask("waits")
    assert engine.side.look(waits, 0) == 20 and engine.cache.open_finds()
    assert engine.side.reset() is True
    assert not engine.cache.open_finds() and engine.cache.usage(HOST).held == 0
    engine.side.finish(waits)
    engine.nothing_is_held()


def image(offset: int, length: int, name: str) -> Any:
    return SimpleNamespace(identifier=name, mm_position=SimpleNamespace(offset=offset, length=length))


def test_what_makes_requests_differ() -> None:
    engine = filled()
    lora = SimpleNamespace(lora_name="sql")
    different = {
        "salt": ask("salt", cache_salt="tenant 4"),
        "lora": ask("lora", lora_request=lora),
        "image": ask("image", mm_features=[image(6, 3, "a cat")]),
        "embeds": ask("embeds", prompt_embeds=object()),
        "session": ask("session", resumable=True),
        "no reading": ask("no reading", skip_reading_prefix_cache=True),
    }
    expected = {"image": 4}  # the block before the image
    assert {name: engine.side.look(request, 0) for name, request in different.items()} == dict.fromkeys(
        different, 0
    ) | expected
    cat, same, dog = (
        ask(name, mm_features=[image(6, 3, what)]) for name, what in (("c", "cat"), ("s", "cat"), ("d", "dog"))
    )
    engine.side.look(cat, 0)
    cat.tables = [list(range(1, 7))]
    engine.side.place(cat, cat.tables, 0)
    engine.side.hear(run(engine, engine.side.order({"c": 21}, (), lambda _: cat.tables)))
    assert engine.side.look(same, 0) == 20 and engine.side.look(dog, 0) == 4
    for request in (different["embeds"], different["session"]):
        engine.side.place(request, [list(range(20, 27))], 0)
        assert engine.side.order({request.request_id: 21}, (), lambda _: [list(range(20, 27))]).stores == []


def test_decoded_tokens_are_kept_and_never_ahead_of_what_is_known() -> None:
    engine = ToyEngine(0, hybrid=False)
    request = ask("decodes", PROMPT[:6])
    engine.side.hear(run(engine, stored(engine, request)))
    assert kept(engine) == 4
    request.tables = [list(range(1, 8))]
    request.num_computed_tokens = 11  # drafts, or a step ahead: KV that nobody knows the tokens of
    request.all_token_ids += PROMPT[6:9]
    engine.side.hear(run(engine, engine.side.order({"decodes": 3}, (), lambda _: request.tables)))
    assert kept(engine) == 8


def test_a_prompt_of_one_token_is_kept_with_what_is_decoded() -> None:
    engine = ToyEngine(0, hybrid=False)
    request = ask("short", PROMPT[:1])
    assert stored(engine, request).stores == []
    request.all_token_ids += PROMPT[1:10]
    request.tables = [list(range(1, 8))]
    engine.side.hear(run(engine, engine.side.order({"short": 9}, (), lambda _: request.tables)))
    assert kept(engine) == 8


def test_decoded_tokens_can_be_left_out() -> None:
    engine = ToyEngine(0, hybrid=False)
    object.__setattr__(engine.side.options, "store_decoded", False)
    request = ask("decodes", PROMPT[:6])
    engine.side.hear(run(engine, stored(engine, request)))
    request.all_token_ids += PROMPT[6:13]
    assert engine.side.order({"decodes": 7}, (), lambda _: [list(range(1, 8))]).stores == []


def test_retention_keeps_a_prompt_when_others_go() -> None:
    engine = ToyEngine(0, hybrid=False, host=12)
    kept_prompt = {"quire": {"priority": 90, "tokens": 12}}
    for nth, params in ((1, kept_prompt), (2, None), (3, {"quire": {"priority": "high"}}), (4, {"other": 1})):
        request = ask(f"r{nth}", [nth] * 21, kv_transfer_params=params)
        engine.side.hear(run(engine, stored(engine, request)))
        engine.side.finish(request)
    assert kept(engine, [1] * 21) == 12 and kept(engine, [2] * 21) == 0 and kept(engine, [4] * 21) == 20


def test_who_comes_back_has_generated_tokens_that_are_kept_as_such() -> None:
    engine = ToyEngine(0, hybrid=False, host=12)
    wish = {"quire": {"priority": 90, "decode_priority": 90}}
    back = ToyRequest("back", [1] * 21, 8, kv_transfer_params=wish)  # preempted after 13 tokens more
    for request in (back, ask("r2", [2] * 21), ask("r3", [3] * 21), ask("r4", [4] * 21)):
        engine.side.hear(run(engine, stored(engine, request)))
        engine.side.finish(request)
    assert kept(engine, [1] * 21) == 20 and kept(engine, [2] * 21) == 0


def test_receipts_go_to_who_asks() -> None:
    engine = filled()
    told = ask("told", [*PROMPT[:10], *range(60, 75)], kv_transfer_params={"quire": {"receipt": True}})
    assert engine.side.look(told, 0) == 8
    told.tables = [list(range(1, 8))]
    engine.side.place(told, told.tables, 8)
    engine.side.hear(run(engine, engine.side.order({}, (), lambda _: None)))
    answer = engine.side.finish(told)
    assert answer is not None and answer["quire"]["receipt"]["kept"] == 8
    assert answer["quire"]["receipt"]["misses"][-1][2] == 25
    assert engine.side.counts.take()["counters"]["missed_new"] > 0
    assert engine.side.finish(ask("silent")) is None


def test_a_store_ends_before_its_blocks_are_written_again() -> None:
    engine = ToyEngine(0, hybrid=False)
    (copy,) = stored(engine, ask("reads")).stores
    assert engine.side.order({}, (), lambda _: None, [77]).flush == []
    assert engine.side.order({}, (), lambda _: None, [77, 3]).flush == [copy.job]


def test_blocks_that_a_load_takes_over_are_flushed_too() -> None:
    engine = filled()
    (copy,) = stored(engine, ask("reads", [40] * 9)).stores
    request = ask("loads")
    assert engine.side.look(request, 0) == 20
    engine.side.place(request, [[9, 8, 7, 6, 1, 20]], 20)
    orders = engine.side.order({}, (), lambda _: None)
    assert orders.flush == [copy.job] and len(orders.loads) == 1


def test_a_store_that_could_not_be_waited_for_is_not_found() -> None:
    engine = ToyEngine(0, hybrid=False)
    request = ask("spoilt")
    orders = stored(engine, request)
    (worker,), (mover,) = engine.workers, engine.movers
    mover.flush = lambda jobs: 1 / 0  # type: ignore[method-assign, assignment]
    worker.flush(StepOrders(flush=[orders.stores[0].job]))
    mover.flush = lambda jobs: None  # type: ignore[method-assign]
    engine.side.hear(run(engine, orders))
    assert kept(engine) == 0
    engine.side.finish(request)
    engine.nothing_is_held()


def test_an_engine_is_kept_awake_only_for_a_while() -> None:
    engine = ToyEngine(0, hybrid=False)
    stored(engine, ask("lost"))
    assert engine.side.is_pending
    engine.clock += PATIENCE
    assert not engine.side.is_pending


def test_where_vllm_has_no_block_nothing_is_loaded() -> None:
    engine = filled()
    with engine.cache.find(Request("look", np.array(PROMPT, np.int32))) as found:
        slots = found.slots().tolist()
    again, tables = ask("again"), [[11, 0, 13, 14, 15, 16]]
    assert engine.side.look(again, 0) == 20
    engine.side.place(again, tables, 20)
    (load,) = engine.side.order({}, (), lambda _: tables).loads
    assert [(part.blocks, part.slots) for part in load.parts] == [([11, 13, 14, 15], [slots[0], *slots[2:5]])]
    engine.side.hear(WorkerReport({load.job: 1}))
    engine.side.finish(again)
    engine.nothing_is_held()


def test_counts_are_taken_once() -> None:
    engine = filled()
    told = engine.side.counts.take()
    assert told["counters"] == {
        "lookups": 1, "lookup_tokens": 21, "hit_tokens": 0, "stores": 1, "stored_pages": 5, "missed_new": 20,
        "missed_last_token": 1,
    }  # fmt: skip
    assert told["gauges"] == {"host_pages": 5.0, "host_slots": 24.0}
    assert engine.side.counts.take() == {}
    (worker,) = engine.workers
    assert worker.take_counts()["counters"]["store_bytes"] == 5 * 32 and worker.take_counts() == {}
    check(engine.cache)
