"""Waiting: a request that waits for pages gets them or is computed, in bounded time.

With the others requests waited forever: behind the head of a queue, for a hit that never came, for a dead peer.
"""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest

from quire import Request
from quire.transfer.wire.verdict import Key, Outcome
from tests.integrations.lasting_engine import SECONDS, LastingEngine
from tests.integrations.test_vllm_outer import disk_at, on_disk, served, totals
from tests.integrations.toy_engine import ToyEngine
from tests.integrations.toy_parts import SIZE, ToyRequest
from tests.museum.toys import PROMPT, ask, carry_out, kept, right, serve
from tests.scenarios.conftest import tokens
from tests.tiers.disk.stand_ins import Faults, FaultyFiles
from tests.transfer.rig import LIMITS, Rig
from tests.waits import until


class StrandingQueue:
    """vLLM's queue before 0.32: scanned from the front; a request that lacks blocks ends the scan.

    One that was told to be asked for again is passed over. One whose load is under way, or has ended, keeps its blocks
    and its place.
    """

    def __init__(self, engine: ToyEngine, blocks: int) -> None:
        self.engine, self.free = engine, list(range(1, 1 + blocks))
        self.queue: list[ToyRequest] = []
        self.landed: set[str] = set()
        self.failed: set[str] = set()
        self.ran: list[str] = []

    def step(self) -> None:
        step: dict[str, int] = {}
        for request in list(self.queue):
            if request.status == "loading" and request.request_id not in self.landed:
                continue
            if request.request_id in self.failed:  # reached at last: it gives back its blocks, and begins anew
                self.failed.remove(request.request_id)
                self.free += request.tables[0]
                request.tables, request.num_computed_tokens = [], 0
            gain: int | None = 0
            if request.num_computed_tokens == 0:
                gain = self.engine.side.look(request, 0)
            if gain is None:
                continue
            end = gain or request.num_tokens  # what is loaded, or all of it
            need = -(-end // SIZE) - (len(request.tables[0]) if request.tables else 0)
            if need > len(self.free):
                break
            table = request.tables[0] if request.tables else []
            request.tables = [table + [self.free.pop(0) for _ in range(need)]]
            self.engine.side.place(request, request.tables, gain)
            if gain:
                request.status, request.num_computed_tokens = "loading", gain
            else:
                step[request.request_id] = request.num_tokens - request.num_computed_tokens
                self.queue.remove(request)
        self._run(step)

    def _run(self, step: dict[str, int]) -> None:
        done = [one for one in self.engine.texts if one.request_id in step]
        tables = {one.request_id: one.tables for one in done}
        self.failed |= carry_out(self.engine, self.engine.side.order(step, (), tables.__getitem__))
        self.landed |= {one.request_id for one in self.queue if one.status == "loading"}
        for one in done:
            assert right(self.engine, one, one.num_computed_tokens)
            self.engine.side.finish(one)
            self.free += one.tables[0]
            self.ran.append(one.request_id)


@pytest.mark.parametrize("failing", [0.0, 1.1], ids=["loaded", "failed"])
def test_vllm_57841_loads_parked_behind_a_head_that_cannot_be_scheduled(failing: float) -> None:
    """Nothing ran again: the head lacks blocks, and the loads behind it hold them. Here the head is deferred."""
    engine = ToyEngine(0, hybrid=False, host=24, blocks=60)
    serve(engine, ask("first"))
    engine.movers[0].failing_loads = failing
    head, parked = ask("head", [60 + nth for nth in range(33)]), ask("parked", [*PROMPT[:20], 7, 8, 9])
    line = StrandingQueue(engine, blocks=9)  # the head needs nine
    engine.texts += [head, parked]
    line.queue = [parked]
    line.step()  # it loads, and has five blocks
    line.queue = [head, parked]
    for _ in range(6):
        line.step()
    assert sorted(line.ran) == ["head", "parked"] and not line.queue
    engine.nothing_is_held()


def test_vllm_57841_a_landed_load_without_room_does_not_block_a_smaller_request() -> None:
    """If others were deferred in every step, no request would be scheduled any more."""
    engine = ToyEngine(0, hybrid=False, host=24, blocks=60)
    serve(engine, ask("first"))
    large, small = ask("large", [*PROMPT[:20], *range(60, 80)]), ask("small", [50] * 9)
    line = StrandingQueue(engine, blocks=8)
    engine.texts += [large, small]
    line.queue = [large]
    line.step()  # five blocks of its ten
    line.step()  # loaded, and three blocks are left
    line.queue = [small, large]
    for _ in range(3):
        line.step()
    assert line.ran == ["small"]


def test_vllm_49829_a_hit_that_is_coming_and_never_comes(tmp_path: Path) -> None:
    """It had no deadline. Here a disk that does not answer costs `wait` seconds; then the prompt is computed."""
    on_disk(tmp_path)
    gate = Event()
    faults = Faults()
    below = disk_at(tmp_path) | {"wait": 0.02}
    engine = LastingEngine(1, tmp_path, below, files=FaultyFiles(faults), hybrid=False, blocks=60)
    engine.own, faults.gate = 0.0, gate
    try:
        request = ask("again", max_tokens=1)
        engine.side.arrive(request)
        assert engine.side.look(request, 0) is None and faults.reached.wait(SECONDS)
        until(lambda: engine.side.look(request, 0) is not None, "told what there is")
        assert engine.side.look(request, 0) == 0 and totals(engine)["late_prefetches"] == 1
        served(engine, "again")
    finally:
        gate.set()
    engine.settle()
    engine.side.close()


def test_vllm_49176_a_page_that_is_cut_short_while_it_is_offered(tmp_path: Path) -> None:
    """The load failed, the same hit was offered again, and so on. Here a failed page is forgotten."""
    on_disk(tmp_path)
    engine = LastingEngine(1, tmp_path, disk_at(tmp_path), hybrid=False, blocks=60)
    (pages,) = (tmp_path / "disk").glob("*/pages-0")
    with pages.open("r+b") as file:
        file.truncate(2 * 4096 + 7)  # in the middle of the third page
    engine.own = 0.0
    engine.run([ask("again", max_tokens=2)])  # raises if it takes for ever; every byte is looked at
    assert engine.seen["done"] == 1 and engine.seen["failed"] == 0  # the disk knew it, and no load was tried
    assert kept(engine) == 20 and engine.pages_are_right()
    engine.side.close()


def test_vllm_49176_a_load_that_fails_is_not_offered_again() -> None:
    """The same from host memory: the bytes change while the load is under way."""
    engine = ToyEngine(0, hybrid=False)
    serve(engine, ask("first"))
    request = ask("again")
    told: list[Any] = []
    for _ in range(3):
        gain = engine.side.look(request, 0)
        told.append(gain)
        if not gain:
            break
        request.tables = [list(range(20, 27))]
        engine.side.place(request, request.tables, gain)
        orders = engine.side.order({}, (), lambda _: request.tables)
        engine.movers[0].pages.memory[orders.loads[0].parts[0].slots[0]] ^= 1
        assert carry_out(engine, orders) == {"again"}
    assert told == [20, 0]


def test_vllm_46283_aborted_while_the_peer_is_dead() -> None:
    """The blocks were never freed, since the peer that should have released them was gone."""
    rig, key = Rig(), Key("r")
    request = Request("r", tokens(range(22)))
    rig.serve(request, key)
    free = rig.sides["d"].taken()
    session = rig.ask(request, key)
    rig.d.cancel(key)
    rig.step(names=("d",))  # the sender is dead: it says nothing any more
    assert not rig.empty()
    for _ in range(8):
        rig.step(LIMITS.lease, names=("d",))
    assert session.verdict is not None and session.verdict.outcome is Outcome.CANCELLED
    for _ in range(8):
        rig.step(LIMITS.lease, names=("p",))
    assert rig.sides["d"].taken() == free and rig.empty()


def test_vllm_46283_a_sender_whose_receiver_died_before_it_asked() -> None:
    """The other direction: the pages are held until the lease expires, and no longer."""
    rig, request = Rig(), Request("r", tokens(range(22)))
    rig.serve(request, Key("r"))
    rig.step(LIMITS.lease - 1, names=("p",))
    assert not rig.empty()
    (session,) = rig.step(1, names=("p",))
    assert session.verdict is not None and session.verdict.outcome is Outcome.FAILED and rig.empty()
