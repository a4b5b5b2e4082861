"""Routers: events describe what a cache has, after a restart, with windows, and while the engine is idle.

With the others a router went on sending requests to pages that were long gone, or had never been there.
"""

from __future__ import annotations

import random

import pytest

from quire import LayerGroup, Request
from quire.core.store import StoreName
from quire.integrations.vllm.common.worker_orders import BadPage, WorkerReport
from quire.integrations.vllm.reports.kv_events import RemovedBlocks, StoredBlocks
from tests.events.lives import build, ids, run
from tests.events.test_index import Worker
from tests.integrations.toy_engine import ToyEngine
from tests.integrations.toy_parts import requests
from tests.museum.toys import PROMPT, ask, begin, carry_out, serve

pytest.importorskip("msgspec")

from quire.events.follow.index import Index
from quire.events.follow.stream_state import Status
from quire.events.publish.archive import Archive
from quire.events.publish.payloads import PayloadMaker
from quire.events.wire.names import Names

HYBRID = (LayerGroup("full"), LayerGroup("near", window=6))


def test_llm_d_router_2853_blocks_of_a_restarted_engine_stayed_in_the_index() -> None:
    """Its sequence numbers restarted at 0 unnoticed. Here a new publisher is told apart, and replaces the old one."""
    index = Index()
    worker = Worker(index, "w")
    run(worker.cache, 1, ids(range(16)))
    worker.tell()
    assert index.find(ids(range(16)))["w"].tokens == 16
    again = build(partial_reuse=False)  # the same engine, an empty cache
    maker = PayloadMaker(Names.from_config(again.config), "map", Archive(50, 1 << 24))
    run(again, 1, ids(range(50, 58)))
    wish = index.hear("w", *maker.make(again.take_events()))
    assert index.find(ids(range(16))) == {} and wish is not None  # it asks for what it has not heard
    index.hear("w", *maker.make(again.take_events(whole=True)))
    assert index.find(ids(range(50, 58)))["w"].tokens == 8 and index.find(ids(range(16))) == {}
    assert index.status("w") is Status.EXACT


def test_llm_d_router_2362_sparse_groups_were_read_as_prefixes(store: StoreName) -> None:
    """The index took a window's last blocks for its first. Ours reports what the cache would reuse."""
    index = Index(store=store)
    worker = Worker(index, "w", slots=(40, 11), host=0, groups=HYBRID)
    run(worker.cache, 1, ids(range(34)))
    run(worker.cache, 2, ids(range(100, 120)))  # of the first the window is gone in the middle
    worker.tell()
    told = []
    for end in range(4, 36, 4):
        prompt = ids(range(end), 9)
        (probe,) = worker.cache.probe([Request("q", prompt)])
        held = index.find(prompt[:-1]).get("w")
        assert (held.tokens if held else 0) == probe.start
        told.append(probe.start)
    assert told == [4, 8, 12, 16, 16, 16, 16, 32]  # 28 is not to be had, and 32 is


def test_llm_d_router_2362_an_event_names_the_blocks_that_are_there_and_their_tokens() -> None:
    """An event with more tokens than hashes is ambiguous: it spans blocks that the window has passed."""
    engine = ToyEngine(0)
    assert engine.events is not None
    request = ask("windowed")
    engine.side.look(request, 0)
    request.tables = [[1, 2, 3, 4, 5, 6], [0, 0, 0, 4, 5, 6]]
    engine.side.place(request, request.tables, 0)
    carry_out(engine, engine.side.order({"windowed": 21}, (), lambda _: request.tables))
    names = request.block_hashes
    told = {one.group: one for one in engine.events.take() if isinstance(one, StoredBlocks)}
    assert (told[0].hashes, told[0].parent, told[0].tokens) == (tuple(names[:5]), None, tuple(PROMPT[:20]))
    assert (told[1].hashes, told[1].parent, told[1].tokens) == (tuple(names[3:5]), names[2], tuple(PROMPT[12:20]))


def test_llm_d_router_2362_blocks_with_a_gap_between_them_are_two_events() -> None:
    """A page in the middle could not be stored: no event spans it."""
    engine = ToyEngine(0, hybrid=False)
    assert engine.events is not None
    request = ask("gap")
    orders = begin(engine, request)
    (copy,) = orders.stores
    engine.side.hear(WorkerReport({copy.job: 1}, {copy.job: [BadPage(0, copy.parts[0].slots[2])]}))
    names, events = request.block_hashes, engine.events.take()
    assert [(one.hashes, one.tokens) for one in events if isinstance(one, StoredBlocks)] == [
        (tuple(names[:2]), tuple(PROMPT[:8])),
        (tuple(names[3:5]), tuple(PROMPT[12:20])),
    ]


def test_aibrix_2287_an_idle_engine_never_told_that_all_was_cleared() -> None:
    """Events leave vLLM in a step, and an idle engine takes none. Here unsent events keep it stepping."""
    engine = ToyEngine(0, hybrid=False)
    assert engine.events is not None
    serve(engine, ask("first"))
    there = {name for one in engine.events.take() for name in one.hashes}
    assert len(there) == 5 and not engine.side.is_pending  # idle
    engine.side.reset()
    assert engine.side.is_pending
    engine.side.order({}, (), lambda _: None)  # the empty step that follows
    gone = [one for one in engine.events.take() if isinstance(one, RemovedBlocks)]
    assert {name for one in gone for name in one.hashes} == there and not engine.side.is_pending


def test_aibrix_2287_events_of_an_aborted_request_are_sent_while_idle() -> None:
    """The same for every other event: here pages whose store ends after their request."""
    engine = ToyEngine(0, hybrid=False)
    assert engine.events is not None
    orders = begin(engine, request := ask("aborted"))
    engine.side.finish(request)
    carry_out(engine, orders)
    assert engine.side.is_pending and len(engine.events.take()) == 1 and not engine.side.is_pending


def test_aibrix_2287_a_publisher_reports_that_an_idle_cache_was_cleared() -> None:
    """In our own engine no request has to run for it."""
    index = Index()
    worker = Worker(index, "w")
    run(worker.cache, 1, ids(range(16)))
    worker.tell()
    assert worker.cache.clear() == 4
    worker.tell()
    assert index.find(ids(range(16))) == {} and index.status("w") is Status.EXACT


def test_events_and_pages_agree_after_a_random_run() -> None:
    """The control: events and pages agree after aborts, failures and preemptions, with windows."""
    engine = ToyEngine(7, host=12, blocks=30, failing=0.2)
    engine.run(requests(random.Random(7), 10), abort=0.1)
    assert len(engine.published) == engine.cache.usage(1).idle > 0
