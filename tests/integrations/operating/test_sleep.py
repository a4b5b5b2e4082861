"""vLLM sleeps and wakes: what becomes of pages, of copies under way, and of requests that come meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from quire import InputError, StateError, check
from quire.integrations.vllm.common.connector_options import ConnectorOptions, check_sleep
from quire.integrations.vllm.common.worker_orders import Copy, Part
from quire.integrations.vllm.scheduler_side import SchedulerSide
from quire.integrations.vllm.worker.host_pages import Ended
from quire.integrations.vllm.worker.sleep import RankNote, SleepingMover, check_slots
from tests.integrations.test_vllm_contract import ask, filled, kept
from tests.integrations.toy_engine import ToyEngine
from tests.museum.stand_ins import Role, under_vllm, vllm_config


class KeepingEngine(ToyEngine):
    """Whose pages are to stay over a sleep."""

    def open_side(self, model: Any, slots: int) -> SchedulerSide:
        side = super().open_side(model, slots)
        options = replace(side.options, keep_over_sleep=True)
        return SchedulerSide(side.cache, options, world_size=self.ranks, events=side.events)


def nothing_ordered(engine: ToyEngine) -> None:
    engine.side.order({}, (), lambda _: None)


def test_pages_stay_over_a_sleep_that_the_ranks_tell_of() -> None:
    engine = filled(KeepingEngine)
    for nth in (1, 2):
        assert engine.side.reset() is True  # vLLM asks for it before it sleeps
        assert engine.side.weights.number and engine.cache.usage(1).idle == 5  # none counts, all are there
        early = ask(f"early {nth}")
        engine.side.arrive(early)  # a request comes while it sleeps
        engine.side.weights.wake(nth)
        assert engine.side.look(early, 0) == 20
        nothing_ordered(engine)
        engine.side.finish(early)
    engine.nothing_is_held()
    check(engine.cache)


@pytest.mark.parametrize("is_step", [True, False])
def test_a_reset_without_a_sleep_forgets(is_step: bool) -> None:
    engine = filled(KeepingEngine)
    assert engine.side.reset() is True
    engine.side.weights.wake(0)  # no rank has slept
    if is_step:
        nothing_ordered(engine)
    else:
        assert engine.side.look(ask("first"), 0) == 0
    assert engine.cache.usage(1).idle == 0
    engine.side.weights.wake(1)
    assert kept(engine) == 0 and engine.side.weights.number == 1


def test_new_weights_after_the_sleep_are_new_weights() -> None:
    """A second reset, before or behind the wake, is meant."""
    engine = filled(KeepingEngine)
    engine.side.reset()
    engine.side.reset()
    engine.side.weights.wake(1)
    assert engine.cache.usage(1).idle == 0 and engine.side.look(ask("again"), 0) == 0
    engine = filled(KeepingEngine)
    engine.side.reset()
    engine.side.weights.wake(1)
    engine.side.reset()
    nothing_ordered(engine)
    assert engine.cache.usage(1).idle == 0


def test_without_the_option_a_sleep_forgets() -> None:
    engine = filled()
    engine.side.reset()
    engine.side.weights.wake(1)
    assert engine.cache.usage(1).idle == 0 and engine.side.look(ask("again"), 0) == 0


def test_bytes_from_before_a_sleep_are_right_behind_it() -> None:
    engine = KeepingEngine(0, hybrid=False)
    engine.own = 0.0
    engine.run([ask("first", max_tokens=2)])
    engine.side.reset()
    engine.side.weights.wake(1)
    engine.run([ask("again", max_tokens=2)])  # looks at every byte that it loads
    assert engine.seen["loads"] == 1 and engine.seen["loaded tokens"] == 20 and engine.pages_are_right() > 0


class SlowMover:
    """Copies end when they are waited for."""

    def __init__(self) -> None:
        self.open: dict[int, Ended] = {}
        self.ended: list[Ended] = []

    def load(self, copy: Copy) -> None:
        self.open[copy.job] = Ended(copy, is_load=True)

    def store(self, copy: Copy) -> None:
        self.open[copy.job] = Ended(copy, is_load=False)

    def flush(self, jobs: Iterable[int]) -> None:
        self.ended += [self.open.pop(job) for job in list(jobs) if job in self.open]

    def take_ended(self) -> list[Ended]:
        ended, self.ended = self.ended, []
        return ended


def test_copies_end_before_the_memory_goes_and_none_begin_before_it_is_back() -> None:
    slow = SlowMover()
    mover, copies = SleepingMover(slow), [Copy(nth, "r", [Part(0, [nth], [nth])]) for nth in range(4)]
    mover.store(copies[0])
    mover.load(copies[1])
    mover.rest()
    assert not slow.open and mover.num_sleeps == 1
    mover.rest()
    assert mover.num_sleeps == 1  # twice is once
    for begin in (mover.load, mover.store):
        with pytest.raises(StateError, match="vLLM sleeps"):
            begin(copies[2])
    assert [one.copy.job for one in mover.take_ended()] == [0, 1]
    mover.wake()
    mover.store(copies[3])
    mover.flush([3])
    assert [one.copy.job for one in mover.take_ended()] == [3]
    mover.rest()
    assert mover.num_sleeps == 2


def test_only_a_vllm_that_tells_of_its_sleep_may_keep_pages() -> None:
    check_sleep(ConnectorOptions(4096), False)
    check_sleep(ConnectorOptions(4096, keep_over_sleep=True), True)
    with pytest.raises(InputError, match=r"keep_over_sleep=true: .*use vLLM 0\.33 or later"):
        check_sleep(ConnectorOptions(4096, keep_over_sleep=True), False)


def test_ranks_with_other_memory_than_the_scheduler_are_refused() -> None:
    check_slots({0: RankNote(7, 0), 1: RankNote(7, 0)}, 7)
    with pytest.raises(InputError, match=r"7 pages in host memory: rank 1 has made 8: .*give 'host' in bytes"):
        check_slots({0: RankNote(7, 0), 1: RankNote(8, 0)}, 7)


def test_the_connector_hears_of_sleep_from_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hooks, as vLLM 0.33 calls them: ranks rest and wake, and the scheduler's side is told when it wakes."""
    engine = ToyEngine(0, hybrid=False)
    module = under_vllm(monkeypatch, "0.33.0")
    base = module.KVConnectorBase_V1
    monkeypatch.setattr(base, "restore_kv_caches", lambda self: None, raising=False)
    from tests.museum.test_wrong_bytes import model_of

    config, model = vllm_config({"host": "1MB", "keep_over_sleep": True}), model_of(engine)
    sides = {role: module.QuireConnector(config, role, model) for role in Role}
    worker, scheduler = sides[Role.WORKER], sides[Role.SCHEDULER]
    assert worker.supports_sleep_mode(config.kv_transfer_config) and worker.get_handshake_metadata() is None
    worker.unregister_kv_caches()  # before it has anything: nothing happens
    worker.register_kv_caches({f"layer 0.{nth}": kv for nth, kv in enumerate(engine.kv[0][0])})
    note = worker.get_handshake_metadata()
    assert note == (scheduler.scheduler_side.cache.usage(1).capacity, 0)
    scheduler.set_xfer_handshake_metadata({0: note})
    assert scheduler.reset_cache() and scheduler.scheduler_side.weights.number == 1
    worker.unregister_kv_caches()
    worker.restore_kv_caches()
    scheduler.set_xfer_handshake_metadata({0: worker.get_handshake_metadata()})
    assert scheduler.scheduler_side.weights.number == 0
    with pytest.raises(InputError, match="rank 0 has made 3"):
        scheduler.set_xfer_handshake_metadata({0: RankNote(3, 1)})
