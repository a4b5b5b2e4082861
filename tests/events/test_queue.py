"""A publisher's queue: it never waits, what waits goes out as fewer, longer batches, and comes to the same."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from quire import LayerGroup, Moved, StateError
from quire.core.records.events import merged
from quire.events import Room
from quire.events.follow.index import Index
from quire.events.follow.stream_state import Status
from quire.events.publish.archive import Archive
from quire.events.publish.payloads import PayloadMaker
from quire.events.publish.publisher import BURST, GATHERED, QueuedBatch
from quire.events.wire.names import Names
from quire.events.wire.protocol import MARK

from ..waits import PATIENCE, until
from .consumer import Consumer
from .lives import FULL, MIXED, Life, build, ids, run
from .test_publisher import fetch, published, sent


@pytest.mark.parametrize("encoding", ["map", "array"])
@pytest.mark.parametrize("groups", [FULL, MIXED], ids=["full", "mixed"])
def test_batches_told_as_one_come_to_the_same(encoding: Any, groups: tuple[LayerGroup, ...]) -> None:
    """For routers and for the index; with moves, removals, clearings and whole states in them."""
    moved = 0
    for seed in range(8):
        cache, index = build(12, 8, groups=groups), Index()
        makers = {
            name: PayloadMaker(Names.from_config(cache.config), encoding, Archive(4, 1 << 20))
            for name in ("apart", "as one")
        }
        consumers = {name: Consumer() for name in makers}
        for name in makers:
            index.add(name)
        life = Life(cache, seed)
        for turn in range(8):
            batches = []
            for step in range(4):
                life.step()
                if (turn, step) == (4, 2):
                    cache.clear()
                batches.append(cache.take_events(whole=step == 0 and turn in (0, 6)))
            moved += sum(isinstance(event, Moved) for batch in batches for event in batch)
            for name, told in (("apart", batches), ("as one", [merged(batches)])):
                for batch in told:
                    seq, payload = makers[name].make(batch)
                    consumers[name].hear(payload)
                    assert index.hear(name, seq, payload) is None and index.status(name) is Status.EXACT
            for group in range(len(groups)):
                assert index.pages("apart", group) == index.pages("as one", group)
                assert consumers["apart"].media(group) == consumers["as one"].media(group)
    assert moved > 100


def test_what_waits_goes_out_together_up_to_a_whole_state_or_enough_of_it() -> None:
    cache = build(64, 0)
    with published(cache) as publisher:
        pass  # its thread is gone: the queue is ours
    for seed in range(40):
        run(cache, seed, ids(range(300 * seed, 300 * seed + 200)))
        whole = seed in (0, 30)
        publisher._queue.append(QueuedBatch(cache.take_events(whole=whole), 7 * whole))
    gathered = []
    while publisher._queue:
        batches, lost = publisher._gather()
        gathered.append((merged(batches), lost))
    assert [(batch.whole, lost) for batch, lost in gathered if batch.whole or lost] == [(True, 7), (True, 7)]
    sizes = [len(batch.hashes) for batch, _ in gathered]
    before_whole = [size for size, (after, _) in zip(sizes, gathered[1:], strict=False) if not after.whole]
    assert 4 <= len(sizes) < 10 and min(before_whole) >= GATHERED > max(sizes) - 200


def test_tell_never_waits_and_takes_nothing_when_the_queue_is_full() -> None:
    cache = build(4096, 0, max_length=20_000)
    run(cache, 1, ids(range(12_000)))
    with published(cache, room=Room(waiting=1)) as publisher:
        until(lambda: publisher.tell(whole=True) is None, "full", 60)
        run(cache, 2, ids(range(50_000, 50_040)))
        until(lambda: publisher.tell(), "told later")
        sent(publisher)
        assert publisher._maker._ledger.sums_by_tier(0)[0, 0, 0] == 3010 and publisher.lost == 0


def test_what_waits_is_sent_at_the_end_and_then_it_is_closed() -> None:
    cache = build(64)
    with published(cache) as publisher:
        for seed in range(20):
            run(cache, seed, ids(range(seed * 100, seed * 100 + 8)))
            publisher.tell()
    assert publisher.waiting == 0 and publisher._maker._ledger.sums_by_tier(0)[0, 0, 0] == 40
    with pytest.raises(StateError, match="it is closed"):
        publisher.tell()


def test_who_asks_is_answered_while_the_engine_never_pauses() -> None:
    """The queue does not run dry: it tells faster than the thread can send."""
    cache = build(4096, 0, max_length=20_000)
    run(cache, 1, ids(range(12_000)))
    with published(cache) as publisher, ThreadPoolExecutor(1) as engine:
        publisher.tell()
        ended = threading.Event()

        def never_pauses() -> None:
            while not ended.is_set():
                if publisher.waiting < 300_000:
                    publisher.tell(whole=True)

        telling = engine.submit(never_pauses)
        try:
            until(lambda: publisher.published > 2 * BURST, "sent")
            assert len(fetch(publisher, MARK)) == 1
        finally:
            ended.set()
        telling.result()


def test_batches_wait_in_the_order_in_which_they_were_taken() -> None:
    """One thread has taken what was recorded and not yet queued it when another comes to tell what followed."""
    cache = build(4, 0)
    with published(cache) as publisher:
        publisher.tell()
        sent(publisher)
        took, other_took = threading.Event(), threading.Event()
        take = publisher._take

        def slow(whole: bool) -> Any:
            taken = take(whole)
            if took.is_set():
                other_took.set()
            else:
                took.set()
                other_took.wait(0.2)  # it may not get there: that is what the lock is for
            return taken

        publisher._take = slow  # type: ignore[method-assign]
        run(cache, 1, ids(range(16)))
        first = threading.Thread(target=publisher.tell)
        first.start()
        assert took.wait(PATIENCE)
        run(cache, 2, ids(range(100, 116)))  # evicts what the first thread tells of
        publisher.tell()
        first.join()
        sent(publisher)
        assert publisher._maker.inconsistent == 0 and publisher.repairs == 0
