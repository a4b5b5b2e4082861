"""The client of a store: a breaker that opens and closes, calls that hang, full queues, ends with work inside."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from threading import Event

import pytest

from quire import InputError
from quire.tiers import Bytes
from quire.tiers.shared import FolderStore, SharedCache, SharedConfig, StoreClient, StoreError, StoreMiss, Turns
from quire.tiers.shared.calls.breaker import FIRST_WAIT, LATE_CALLS, LONGEST_WAIT, Breaker
from quire.tiers.shared.calls.client import FULL_PAUSE, GRACE
from quire.tiers.shared.calls.crew import Crew
from quire.tiers.shared.calls.quota import MOST_LABELS, Quota, QuotaAccounts
from quire.tiers.shared.rank_parts import TiersRank
from quire.tiers.shared.shared_cache import FETCHERS, MOST_FETCHES
from tests.tiers.shared.machine import FULL, PATIENT, STATE, Machine, text
from tests.tiers.shared.redis_server import RedisServer
from tests.tiers.shared.store_suite import empty, name, page, soon
from tests.waits import until


class FakeClock:
    """Time that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now


class GatedStore(FolderStore):
    """A folder whose calls fail or hang as the test wants."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fails: StoreMiss | None = None
        self.gate = Event()
        self.reached = Event()
        self.hangs = False
        self.calls = 0

    def _wait(self) -> None:
        self.calls += 1
        if self.hangs:
            self.reached.set()
            assert self.gate.wait(PATIENT)
        if self.fails is not None:
            raise StoreError(self.name, self.fails, "as the test wants")

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        self._wait()
        return super().exists_many(names, deadline)

    def get_many(self, names: Sequence[bytes], into: Sequence[Bytes], deadline: float) -> list[StoreMiss | None]:
        self._wait()
        return super().get_many(names, into, deadline)

    def put_many(self, names: Sequence[bytes], pages: Sequence[Bytes], deadline: float) -> list[StoreMiss | None]:
        self._wait()
        return super().put_many(names, pages, deadline)


# -- breaker -----------------------------------------------------------------------------------------------------------


def test_a_breaker_opens_at_once_for_unreachable_and_after_some_late_calls() -> None:
    first, second = Breaker(FakeClock()), Breaker(FakeClock())
    assert first.failed(StoreMiss.UNREACHABLE, "gone") and first.is_open and first.why == "gone"
    for _ in range(LATE_CALLS - 1):
        assert not second.failed(StoreMiss.LATE, "slow")
    second.succeeded()
    for _ in range(LATE_CALLS - 1):
        assert not second.failed(StoreMiss.LATE, "slow")
    assert not second.is_open and second.failed(StoreMiss.LATE, "slow") and second.is_open


def test_probes_come_one_at_a_time_and_ever_later() -> None:
    clock = FakeClock()
    breaker = Breaker(clock)
    assert breaker.seconds_to_probe() is None and not breaker.begin_probe()
    breaker.failed(StoreMiss.UNREACHABLE, "gone")
    waits = []
    for _ in range(10):
        wait = breaker.seconds_to_probe()
        assert wait is not None and not breaker.begin_probe()
        waits.append(round(wait, 3))
        clock.now += wait
        assert breaker.begin_probe() and not breaker.begin_probe() and breaker.seconds_to_probe() is None
        breaker.end_probe()
    assert waits[:3] == [FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT] and waits[-1] == LONGEST_WAIT
    assert breaker.succeeded() and breaker.seconds_to_probe() is None
    breaker.failed(StoreMiss.UNREACHABLE, "again")
    assert breaker.seconds_to_probe() == pytest.approx(FIRST_WAIT) and breaker.num_openings == 2


# -- client ------------------------------------------------------------------------------------------------------------


def test_an_unreachable_store_is_not_asked_and_comes_back_by_a_probe(tmp_path: Path) -> None:
    clock = FakeClock()
    store = GatedStore(tmp_path)
    client = StoreClient(store, clock=clock)
    client.put_many([name(1)], [page(1)], soon())
    store.fails = StoreMiss.UNREACHABLE
    assert client.get_many([name(1), name(2)], empty(2), soon()) == [StoreMiss.UNREACHABLE] * 2
    calls = store.calls
    assert client.exists_many([name(1)], soon()) is StoreMiss.UNREACHABLE and not client.reachable
    assert client.put_many([name(1)], [page(1)], soon()) == [StoreMiss.UNREACHABLE]
    client.probe()
    assert store.calls == calls  # it is not due
    clock.now += FIRST_WAIT
    client.probe()
    assert store.calls == calls + 1 and not client.reachable
    store.fails = None
    clock.now += 2 * FIRST_WAIT
    client.probe()
    assert client.reachable and client.exists_many([name(1)], soon()) == [True]
    counts = client.counts()
    assert counts.misses == {"unreachable": 3} and counts.drops == {"unreachable": 1} and counts.openings == 1


def test_a_call_that_hangs_opens_the_breaker_once_and_its_end_counts_for_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    store = GatedStore(tmp_path)
    client = StoreClient(store, clock=clock)
    store.hangs = True

    class Ask:
        def run(self) -> None:
            client.exists_many([name(1)], clock.now + 5)

        def dropped(self) -> None: ...

    crew = Crew("test", 1, 1)
    assert crew.submit(Ask()) and store.reached.wait(PATIENT)
    assert client.reachable
    clock.now += 5 + GRACE + 0.1
    assert not client.reachable and client.breaker.num_openings == 1
    assert client.get_many([name(1)], empty(1), clock.now + 5) == [StoreMiss.UNREACHABLE]
    store.hangs = False
    store.gate.set()
    assert crew.wait_until_idle(PATIENT)
    assert client.reachable and client.breaker.num_openings == 1  # it has answered after all
    assert crew.close(PATIENT)


def test_a_full_store_is_read_and_not_written_for_a_while(tmp_path: Path) -> None:
    clock = FakeClock()
    store = GatedStore(tmp_path)
    client = StoreClient(store, clock=clock)
    client.put_many([name(1)], [page(1)], soon())
    store.fails = StoreMiss.FULL
    assert client.put_many([name(2)], [page(2)], soon()) == [StoreMiss.FULL]
    store.fails = None
    assert client.reachable and not client.takes_pages
    calls = store.calls
    assert client.put_many([name(2)], [page(2)], soon()) == [StoreMiss.FULL] and store.calls == calls
    assert client.get_many([name(1)], empty(1), soon()) == [None]
    clock.now += FULL_PAUSE / 2
    assert client.put_many([name(2)], [page(2)], soon()) == [StoreMiss.FULL], "and this makes it no longer"
    clock.now += FULL_PAUSE / 2
    assert client.takes_pages and client.put_many([name(2)], [page(2)], soon()) == [None]


def test_counts_say_what_happened(tmp_path: Path) -> None:
    client = StoreClient(FolderStore(tmp_path))
    client.put_many([name(1), name(2)], [page(1), page(2)], soon())
    client.get_many([name(1), name(3)], empty(2), soon())
    client.get_many([name(1)], empty(1), time.monotonic() - 1)
    counts = client.counts()
    assert (counts.sent, counts.hits, counts.bytes_out, counts.bytes_in) == (2, 1, 2048, 1024)
    assert counts.misses == {"absent": 1, "late": 1} and counts.calls == {"put": 1, "get": 1}
    client.close()
    assert client.get_many([name(1)], empty(1), soon()) == [StoreMiss.CLOSED] and not client.counts().reachable


# -- quotas ------------------------------------------------------------------------------------------------------------


def test_a_quota_fills_up_again_and_not_beyond() -> None:
    clock = FakeClock()
    accounts = QuotaAccounts({"a": Quota(100, seconds=10), "*": Quota(10, seconds=10)}, clock)
    assert accounts.take("a", 100) and not accounts.take("a", 1)
    clock.now += 5
    assert not accounts.take("a", 51) and accounts.take("a", 50)
    clock.now += 1000
    assert not accounts.take("a", 101) and accounts.take("a", 60)
    accounts.give_back("a", 60)
    assert accounts.take("a", 100)
    assert accounts.take("b", 10) and not accounts.take("b", 1) and accounts.take("c", 10)
    assert QuotaAccounts({}).take("any", 1 << 60)


def test_labels_are_bounded() -> None:
    accounts = QuotaAccounts({"*": Quota(1)})
    for number in range(MOST_LABELS + 100):
        accounts.take(str(number), 1)
    assert len(accounts._left) == MOST_LABELS


# -- a cache over a store that hangs ----------------------------------------------------------------------------------


def test_nobody_waits_for_a_store_that_hangs_and_too_much_is_refused_at_once(tmp_path: Path) -> None:
    store = GatedStore(tmp_path)
    one = Machine(store)
    one.serve(text(1))
    one.settle()
    store.hangs = True
    fetches = [one.shared.fetch(one.request(text(2))) for _ in range(FETCHERS)]
    until(lambda: store.calls >= 2 + FETCHERS)
    fetches += [one.shared.fetch(one.request(text(2))) for _ in range(MOST_FETCHES)]
    refused = one.shared.fetch(one.request(text(2)))
    assert refused.done and refused.why == StoreMiss.BUSY
    assert not fetches[0].done
    assert one.serve(text(3), wait=False, publish=False) == 0  # the cache works all the while
    store.hangs = False
    store.gate.set()
    one.settle()
    for fetch in (*fetches, refused):
        fetch.close()
    one.close()


def test_a_deadline_passes_although_the_call_hangs_and_late_bytes_change_nothing(tmp_path: Path) -> None:
    store = GatedStore(tmp_path)
    one, other = Machine(store), Machine(store)
    one.serve(text(1))
    one.settle()
    store.hangs = True
    for wait in (0.05, 1.0, PATIENT / 2):  # so long a busy machine may take to ask
        fetch = other.shared.fetch(other.request(text(1)), wait=wait)
        until(lambda fetch=fetch: fetch.done)  # type: ignore[misc]
        if store.reached.is_set():
            break
        fetch.close()
    assert store.reached.is_set()
    assert fetch.tokens == 0
    store.hangs = False
    store.gate.set()
    other.settle()
    assert fetch.tokens == 0 and fetch.why == StoreMiss.LATE and other.has(text(1)) == 0
    fetch.close()
    one.close()
    other.close()


def test_too_many_texts_to_send_are_dropped_and_counted(tmp_path: Path) -> None:
    store = GatedStore(tmp_path)
    one = Machine(store)
    store.hangs = True
    one.store(text(1))
    assert one.shared.publish(one.request(text(1)))
    assert store.reached.wait(PATIENT)
    offered = 0
    while one.shared.publish(one.request(text(1))):
        offered += 1
        assert offered < 1000
    assert one.shared.counts().drops == {"busy": 6}
    store.hangs = False
    store.gate.set()
    one.settle()
    one.close()


def test_closing_with_work_inside_ends_it_and_leaves_nothing_open(tmp_path: Path) -> None:
    store = GatedStore(tmp_path)
    one = Machine(store)
    one.store(text(1))
    one.publish(text(1))
    store.hangs = True
    fetches = [one.shared.fetch(one.request(text(2))) for _ in range(6)]
    one.shared.publish(one.request(text(1, 5)))
    assert store.reached.wait(PATIENT)
    assert not one.shared.close(timeout=0.01)  # a call hangs
    assert all(fetch.done for fetch in fetches[FETCHERS:])
    store.hangs = False
    store.gate.set()
    for crew in (one.shared._fetchers, one.shared._senders):
        assert crew.close(PATIENT)
    for fetch in fetches:
        fetch.close()
    one.close()


def test_a_fault_in_a_job_ends_that_job_and_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class FaultyStore(FolderStore):
        faulty = True

        def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
            if self.faulty:
                raise ZeroDivisionError("a fault")
            return super().exists_many(names, deadline)

    store = FaultyStore(tmp_path)
    one = Machine(store)
    with one.fetch(text(1)) as fetch:
        assert fetch.done and fetch.tokens == 0
    assert "ZeroDivisionError at " in caplog.text and not one.cache.open_finds()
    store.faulty = False
    one.serve(text(1))
    one.settle()
    assert one.shared.counts().sent == 6
    one.close()


def test_a_page_that_goes_up_while_it_is_read_stays_where_it_is_read(tmp_path: Path) -> None:
    """An admission of the same text brings it to the device; what is being read keeps its slot and goes out."""
    one, other = Machine(str(tmp_path), device=8, host=8), Machine(str(tmp_path))
    one.store(text(1, length=8))
    host = one.tiers[1]
    read = host.read

    def admitted_meanwhile(group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
        batch = one.cache.add_sequence_batch([one.request(text(1, length=12))])
        one.mover.run(batch.plan)
        one.cache.finish(batch.plan)
        rest = one.cache.add_sequence_batch([one.request(text(9, length=20))])  # takes what it can
        one.mover.run(rest.plan)
        one.cache.finish(rest.plan)
        read(group, slots, out)
        one.cache.release(rest.sequences[0], store=False)
        one.cache.release(batch.sequences[0], store=False)

    class MovingTier:
        info, write, close = host.info, host.write, host.close
        read = staticmethod(admitted_meanwhile)

    (memory,) = one.shared._ranks._ranks
    assert isinstance(memory, TiersRank)
    memory._tiers[1] = MovingTier()
    one.publish(text(1, length=8))
    memory._tiers[1] = host
    with other.fetch(text(1, length=8)):
        other.has(text(1, length=8))  # checks bytes
    assert one.shared.counts().sent == 2 and not one.shared.counts().drops
    one.close()
    other.close()


def test_a_slot_that_an_open_plan_still_reads_is_filled_when_the_plan_is_done(tmp_path: Path) -> None:
    """A page that goes up leaves a shadow, whose slot is free to take; its bytes are needed until they have gone up."""
    one, other = Machine(str(tmp_path)), Machine(str(tmp_path), device=8, host=4, host_share=1.0)
    one.serve(text(2, length=16))
    one.settle()
    other.store(text(1, length=16))
    batch = other.cache.add_sequence_batch([other.request(text(1, length=17))])
    assert len(batch.plan) == 4
    fetch = other.shared.fetch(other.request(text(2, length=16)))
    until(lambda: bool(other.cache.open_writers()) and len(other.cache.open_writers()[0].blocks()) == 4)
    assert not fetch.done  # it has the slots, and waits
    other.mover.run(batch.plan)
    other.cache.finish(batch.plan)
    other.settle()
    assert fetch.tokens == 16
    fetch.close()
    other.cache.release(batch.sequences[0], store=False)
    assert other.has(text(1, length=16)) == 16 and other.has(text(2, length=16)) == 16
    one.close()
    other.close()


def test_a_page_that_an_open_plan_still_fills_goes_out_when_the_plan_is_done(tmp_path: Path) -> None:
    one, other = Machine(str(tmp_path), device=4, host=8), Machine(str(tmp_path))
    one.serve(text(1, length=16), publish=False)
    batch = one.cache.add_sequence_batch([one.request(text(2, length=16))])  # pushes the first text to the host
    assert len(batch.plan) == 4
    one.shared.publish(one.request(text(1, length=16)))
    assert not one.shared.wait_until_idle(0.05)
    one.mover.run(batch.plan)
    one.cache.finish(batch.plan)
    one.settle()
    one.cache.release(batch.sequences[0], store=False)
    with other.fetch(text(1, length=16)) as fetch:
        assert fetch.tokens == 16 and other.has(text(1, length=16)) == 16
    one.close()
    other.close()


def test_a_store_that_comes_back_empty_is_filled_again(redis_server: RedisServer) -> None:
    one, other = Machine(redis_server.url), Machine(redis_server.url)
    one.serve(text(1))
    one.settle()
    redis_server.kill()
    one.serve(text(2))
    one.settle()
    assert not one.shared.client.reachable
    redis_server.start()
    until(lambda: one.shared.client.reachable)
    one.serve(text(1))
    one.settle()
    assert other.serve(text(1)) == 20
    one.close()
    other.close()


def test_of_an_unknown_prompt_only_the_first_blocks_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.tiers.shared.fetch.FIRST_ASK", 4)
    asked: list[int] = []

    class CountingStore(FolderStore):
        def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
            asked.append(len(names))
            return super().exists_many(names, deadline)

    store = CountingStore(tmp_path)
    one, other = Machine(store, device=40), Machine(store)
    other.fetch(text(1, length=120)).close()
    assert asked == [4]
    one.store(text(1, length=100))
    one.publish(text(1, length=100))
    asked.clear()
    with other.fetch(text(1, length=120)) as fetch:
        assert fetch.tokens == 100 and asked == [4, 16, 10]
    one.close()
    other.close()


def test_what_a_full_store_did_not_take_is_not_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.tiers.shared.calls.client.FULL_PAUSE", 0.0)

    class FullStore(FolderStore):
        is_full = True

        def put_many(self, names: Sequence[bytes], pages: Sequence[Bytes], deadline: float) -> list[StoreMiss | None]:
            return [StoreMiss.FULL] * len(names) if self.is_full else super().put_many(names, pages, deadline)

    store = FullStore(tmp_path)
    one = Machine(store, quotas={"all": Quota(6 * 96, seconds=1e9)})
    one.store(text(1))
    one.publish(text(1))
    assert one.shared.counts().drops == {"full": 6}
    store.is_full = False
    one.publish(text(1))
    assert one.shared.counts().sent == 6
    one.close()


# -- states: their copies are part of later plans ----------------------------------------------------------------------


def test_a_snapshot_goes_out_when_its_copy_has_been_made(tmp_path: Path) -> None:
    """A commit leaves it to the next plan, so that nothing shows yet that the page is empty."""
    one, other = Machine(str(tmp_path), FULL, STATE), Machine(str(tmp_path), FULL, STATE)
    one.serve(text(1, length=16))
    one.settle()
    with other.fetch(text(1, length=16)) as fetch:
        assert fetch.tokens == 16 and other.has(text(1, length=16)) == 16
    assert other.serve(text(1, length=20)) == 16
    one.close()
    other.close()


def test_a_fetch_takes_no_copy_away_from_the_plans(tmp_path: Path) -> None:
    one, other = Machine(str(tmp_path), FULL, STATE), Machine(str(tmp_path), FULL, STATE)
    one.serve(text(1, length=16))
    one.settle()
    other.serve(text(2, length=16), publish=False)  # its snapshot is in no plan yet
    with other.fetch(text(1, length=16)):
        assert other.has(text(1, length=16)) == 16 and other.has(text(2, length=16)) == 16
    one.close()
    other.close()


def test_turns_that_do_not_come_are_given_up(tmp_path: Path) -> None:
    one, other = Machine(str(tmp_path), FULL, STATE), Machine(str(tmp_path), FULL, STATE)
    one.serve(text(1, length=16))
    one.settle()
    with other.shared.fetch(other.request(text(1, length=16)), wait=0.1) as fetch:
        assert other.shared.wait_until_idle(PATIENT)
        assert (fetch.tokens, fetch.why) == (0, StoreMiss.LATE)
    assert not other.cache.open_writers() and not other.cache.open_finds()
    waiting = other.shared.fetch(other.request(text(1, length=16)))
    until(lambda: bool(other.turns and other.turns._asked and not other.turns._asked[-1].taken))
    other.close()
    waiting.close()
    one.close()


def test_what_fails_in_a_turn_is_told_to_who_asked() -> None:
    turns, told = Turns(), []

    class Ask:
        def run(self) -> None:
            try:
                turns.call(lambda: 1 // 0, soon())  # type: ignore[arg-type,return-value]
            except ZeroDivisionError as wrong:
                told.append(wrong)

        def dropped(self) -> None: ...

    crew = Crew("test", 1, 1)
    crew.submit(Ask())
    while not crew.wait_until_idle(0.005):
        turns.run(lambda plan: None)
    assert len(told) == 1 and crew.close(PATIENT)


def test_sequences_with_states_need_turns(tmp_path: Path) -> None:
    one = Machine(str(tmp_path), FULL, STATE)
    with pytest.raises(InputError, match="turns"):
        SharedCache(one.cache, one.tiers, SharedConfig(str(tmp_path)), bytes(32))
    one.close()
