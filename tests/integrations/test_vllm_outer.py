"""The vLLM connector with a disk and a shared store below its host memory: every byte checked, faults one by one."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Condition, Event
from types import SimpleNamespace
from typing import Any

import pytest

from quire import InputError, Scope
from quire.integrations.vllm.common.worker_orders import StepOrders
from quire.integrations.vllm.outer.page_memory import FOLDER, MemoryShape, PageMemory, SharedMemoryTier, announce_region
from quire.tiers.base import TierError
from tests.integrations.lasting_engine import SECONDS, LastingEngine
from tests.integrations.test_vllm_contract import ask, image, run
from tests.integrations.toy_parts import SIZE, ToyRequest, requests
from tests.tiers.disk.stand_ins import Faults, FaultyFiles
from tests.tiers.shared.conftest import needs_redis
from tests.tiers.shared.conftest import redis_server as redis_server
from tests.tiers.shared.redis_server import RedisServer
from tests.waits import until

ROOT = Path(__file__).resolve().parents[2]


def disk_at(tmp_path: Path) -> dict[str, Any]:
    return {"disk": str(tmp_path / "disk"), "disk_bytes": 1 << 20}


def served(engine: LastingEngine, name: str = "first", tokens: list[int] | None = None) -> None:
    """A prompt is computed and stored, and its request is over."""
    request = ask(name, tokens)
    engine.side.hear(run(engine, computed(engine, request)))
    engine.side.finish(request)


def computed(engine: LastingEngine, request: ToyRequest) -> StepOrders:
    """It runs, alone and in one step; the orders are not run yet."""
    if engine.side.look(request, 0) is None:  # the store is asked
        engine.settle()
        assert engine.side.look(request, 0) == 0
    request.tables = [list(range(1, 2 + request.num_tokens // SIZE)) for _ in engine.kv_groups]
    engine.side.place(request, request.tables, 0)
    engine.fill(request, request.tables, 0, request.num_tokens)
    return engine.side.order({request.request_id: request.num_tokens}, (), lambda _: request.tables)


def on_disk(tmp_path: Path, **more: Any) -> None:
    """The prompt is on disk, and the engine that computed it is gone."""
    engine = LastingEngine(0, tmp_path, disk_at(tmp_path), hybrid=False, **more)
    served(engine)
    assert engine.outer.keeper is not None and engine.outer.keeper.flush(SECONDS)
    engine.side.close()


def totals(engine: LastingEngine) -> dict[str, float]:
    engine.side.counts.add("stores", 0)  # so that there is something to tell
    engine.side.counts.take()
    return engine.side.counts.total


@pytest.mark.parametrize(
    "world", [{"hybrid": False}, {"hybrid": True, "ranks": 2, "ahead": True, "late": 0.3}], ids=str
)
def test_what_one_engine_computed_the_next_one_loads(tmp_path: Path, world: dict[str, Any]) -> None:
    rng, hits = random.Random(4), []
    texts = requests(rng, 14, salts=True)
    for round_ in range(2):
        engine = LastingEngine(round_, tmp_path, disk_at(tmp_path), host=24, blocks=60, **world)
        engine.own = 0.0
        for request in texts:
            request.all_token_ids = request.all_token_ids[: request.num_prompt_tokens]
            request.num_computed_tokens, request.status, request.tables = 0, "waiting", []
        engine.run(list(texts))
        assert engine.seen["done"] == 14
        engine.pages_are_right()
        told = totals(engine)
        hits.append(told["hit_tokens"])
        assert bool(told.get("disk_restored")) == bool(round_) and (told.get("disk_read") or not round_)
        engine.side.close()
        assert list(tmp_path.iterdir()) == [tmp_path / "disk"]  # nothing of the shared memory is left
    assert hits[1] > hits[0]


@pytest.mark.parametrize("failing", [0.0, 0.2])
def test_random_requests_with_a_small_host_and_a_disk(tmp_path: Path, failing: float) -> None:
    engine = LastingEngine(3, tmp_path, disk_at(tmp_path), hybrid=True, ranks=2, host=12, blocks=40, failing=failing)
    engine.run(requests(random.Random(3), 24, salts=True), abort=0.05)
    assert engine.seen["done"] + engine.seen["aborts"] >= 24
    engine.pages_are_right()
    engine.side.close()


def test_of_a_prompt_too_long_for_the_host_what_fits_of_all_groups_comes_up(tmp_path: Path) -> None:
    tokens = list(range(81))
    first = LastingEngine(0, tmp_path, disk_at(tmp_path), hybrid=True, host=24, blocks=60)
    served(first, tokens=tokens)
    assert first.outer.keeper is not None and first.outer.keeper.flush(SECONDS)
    first.side.close()
    for slots, blocks in ((6, 1), (30, 15 - 4)):  # half of them are for what waits, and the window may have four
        second = LastingEngine(1, tmp_path, disk_at(tmp_path), hybrid=True, host=slots // 2, blocks=60)
        request = ask("again", tokens)
        second.side.arrive(request)
        second.settle()
        assert second.side.look(request, 0) == blocks * SIZE
        second.side.finish(request)
        second.nothing_is_held()
        second.side.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.integrations.test_vllm_outer import LastingEngine, disk_at, served
at = Path(sys.argv[1])
engine = LastingEngine(0, at, disk_at(at), hybrid=False, ranks=2)
served(engine)
assert engine.outer.keeper.flush(30)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_engine_leaves_its_pages_on_disk_and_nothing_in_memory(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, check=False, timeout=300)
    assert done.returncode == -signal.SIGKILL and list(tmp_path.iterdir()) == [tmp_path / "disk"]
    engine = LastingEngine(1, tmp_path, disk_at(tmp_path), hybrid=False, ranks=2)
    engine.own = 0.0
    engine.run([ask("again", max_tokens=2)])
    assert engine.seen["loaded tokens"] == 20 and totals(engine)["disk_restored"] == 5
    engine.side.close()


def test_pages_begin_their_way_when_a_request_comes_and_no_step_waits_for_them(tmp_path: Path) -> None:
    on_disk(tmp_path)
    faults = Faults()
    engine = LastingEngine(0, tmp_path, disk_at(tmp_path), FaultyFiles(faults), hybrid=False)
    faults.gate = Event()
    request = ask("again")
    engine.side.arrive(request)
    assert len(engine.cache.open_prefetches()) == 1
    assert faults.reached.wait(SECONDS)  # the disk is read, and does not answer
    assert engine.side.look(request, 0) is None and engine.side.is_coming
    assert engine.side.order({}, (), lambda _: None).loads == []
    served(engine, "other", [*range(40, 50)])  # others go on
    assert engine.side.look(request, 0) is None
    faults.gate.set()
    engine.settle()
    assert engine.side.look(request, 0) == 20 and not engine.side.is_coming
    engine.side.finish(request)
    engine.nothing_is_held()
    engine.side.close()


def test_who_has_waited_long_enough_is_computed(tmp_path: Path) -> None:
    on_disk(tmp_path)
    faults = Faults()
    engine = LastingEngine(0, tmp_path, disk_at(tmp_path) | {"wait": 0.0}, FaultyFiles(faults), hybrid=False)
    faults.gate = Event()
    request = ask("again")
    assert engine.side.look(request, 0) == 0 and not engine.side.is_coming
    faults.gate.set()
    engine.side.finish(request)
    engine.nothing_is_held()
    engine.side.close()


def test_who_is_aborted_while_its_pages_come_leaves_nothing_held(tmp_path: Path) -> None:
    on_disk(tmp_path)
    faults = Faults()
    engine = LastingEngine(0, tmp_path, disk_at(tmp_path), FaultyFiles(faults), hybrid=False)
    faults.gate = Event()
    request = ask("gone")
    engine.side.arrive(request)
    assert engine.side.look(request, 0) is None
    engine.side.finish(request)
    assert not engine.side.is_coming and not engine.cache.open_prefetches()
    faults.gate.set()
    engine.nothing_is_held()
    assert engine.side.look(ask("later"), 0) == 20  # they came all the same, and stay
    engine.side.close()


def test_a_bad_page_on_disk_is_computed_and_never_loaded(tmp_path: Path) -> None:
    on_disk(tmp_path, ranks=2)
    (pages,) = (tmp_path / "disk").glob("*/pages-0")
    with pages.open("r+b") as file:  # the second rank's part of every page
        for slot in range(5):
            file.seek(slot * 4096 + 40)
            file.write(b"\xff" * 8)
    engine = LastingEngine(0, tmp_path, disk_at(tmp_path), hybrid=False, ranks=2)
    engine.own = 0.0
    engine.run([ask("again", max_tokens=3)])
    assert engine.seen["done"] == 1 and engine.seen["loads"] == 0
    assert (
        5 <= totals(engine)["disk_failed"] <= 10
    )  # who brings a page up finds it bad, and so may who looks it through
    assert engine.pages_are_right() > 0
    engine.side.close()


@pytest.mark.parametrize("mended", [False, True])
@pytest.mark.parametrize("where", ["pages-0", "manifest"])
def test_a_full_disk_costs_pages_and_nothing_else(tmp_path: Path, where: str, mended: bool) -> None:
    LastingEngine(0, tmp_path, disk_at(tmp_path), hybrid=False).side.close()
    faults = Faults()
    engine = LastingEngine(0, tmp_path, disk_at(tmp_path), FaultyFiles(faults), hybrid=False, host=12)
    places = range(8, 1 << 16, 8) if where == "manifest" else range(8, 1 << 20, 4096)
    faults.write_errors = {(where, place): errno.ENOSPC for place in places}
    engine.run(requests(random.Random(5), 8))
    assert engine.seen["done"] == 8 and engine.outer.keeper is not None
    engine.pages_are_right()
    with suppress(OSError):  # of the manifest
        assert not engine.outer.keeper.flush(SECONDS)
    told = engine.outer.keeper.report()
    assert "ENOSPC" in told.stalled if where == "manifest" else told.failed and not told.copied_down
    there = 0
    if mended:  # there is room again: what could not be recorded is, and the next one finds all of it
        faults.write_errors = {}
        assert engine.outer.keeper.flush(SECONDS)
        disk = engine.cache.usage(2)
        there = disk.capacity - disk.empty
    engine.side.close()
    again = LastingEngine(0, tmp_path, disk_at(tmp_path), hybrid=False)
    assert totals(again).get("disk_restored", 0) == there and bool(there) == mended
    again.side.close()


def test_a_disk_without_room_is_refused_at_the_start(tmp_path: Path) -> None:
    faults = Faults(free_bytes=1000)
    with pytest.raises(Exception, match="more would be needed"):
        LastingEngine(0, tmp_path, disk_at(tmp_path), FaultyFiles(faults), hybrid=False)
    with pytest.raises(InputError, match=r"one page takes 32 bytes.*give 'disk_bytes' more"):
        LastingEngine(0, tmp_path, {"disk": str(tmp_path), "disk_bytes": 1}, hybrid=False)


def test_pages_of_new_weights_are_not_found_by_another_process(tmp_path: Path) -> None:
    engine = LastingEngine(0, tmp_path, disk_at(tmp_path), hybrid=False)
    assert engine.side.reset()
    served(engine)
    (first,) = {one.epoch for one in scopes(engine)}
    assert engine.outer.keeper is not None and engine.outer.keeper.flush(SECONDS)
    engine.side.close()
    engine = LastingEngine(0, tmp_path, disk_at(tmp_path), hybrid=False)
    request = ask("before the update")
    assert engine.side.look(request, 0) == 0
    engine.side.finish(request)
    assert engine.side.reset()
    served(engine, "after another update")
    (second,) = {one.epoch for one in scopes(engine)}
    assert first != second and first is not None
    engine.side.close()


def scopes(engine: LastingEngine) -> list[Scope]:
    request = ask("asks")
    engine.side.look(request, 0)
    found = [stay.scope for stay in engine.side._stays.values()]
    engine.side.finish(request)
    return found


def adapter(name: str, at: Path) -> Any:
    return SimpleNamespace(lora_name=name, lora_path=str(at), lora_int_id=1, load_inplace=False)


def test_an_adapter_is_known_by_its_files(tmp_path: Path) -> None:
    engine = LastingEngine(0, tmp_path, disk_at(tmp_path), hybrid=False)
    for nth in range(2):
        (tmp_path / f"adapter {nth}").mkdir()
        (tmp_path / f"adapter {nth}" / "adapter.safetensors").write_bytes(b"weights %d" % nth)
    one, other, gone = (adapter("sql", tmp_path / f"adapter {nth}") for nth in range(3))
    names = [engine.outer.adapters.name(lora) for lora in (one, other, gone)]
    assert len(set(names)) == 3 and all(name.startswith("sql ") for name in names)
    again = LastingEngine(0, tmp_path / "adapter 0", {"shared": str(tmp_path / "store")}, hybrid=False)
    assert [again.outer.adapters.name(lora) for lora in (one, other)] == names[:2]
    assert again.outer.adapters.name(gone) != names[2]  # it cannot be read: nobody else means the same
    asked = ask("sql", lora_request=one)
    assert engine.side.look(asked, 0) == 0 and engine.side._stays["sql"].scope.lora == names[0]
    engine.side.close()
    again.side.close()


def test_two_machines_share_a_store(tmp_path: Path) -> None:
    shared = {"shared": str(tmp_path / "store")}
    one = LastingEngine(0, tmp_path, shared, hybrid=True, ranks=2)
    served(one)
    one.nothing_is_held()
    assert totals(one)["shared_sent"] > 0
    other = LastingEngine(1, tmp_path, shared, hybrid=True, ranks=2)
    other.own = 0.0
    other.run([ask("again", max_tokens=3)])
    assert other.seen["loaded tokens"] == 20 and totals(other)["shared_fetched"] > 0
    assert other.pages_are_right() > 0
    one.side.close()
    other.side.close()


class SteppingEngine(LastingEngine):
    """Each read of a page that is to go out to the store waits until some more steps have been, or for the end."""

    def __init__(self, seed: int, at: Path, below: dict[str, Any], **more: Any) -> None:
        self.stepped, self.steps, self.num_between = Condition(), 0, 0
        self.ending = self.reading = False
        self.dice = random.Random(seed)
        super().__init__(seed, at, below, **more)

    def schedule(self) -> None:
        super().schedule()
        with self.stepped:
            self.steps += 1
            self.stepped.notify_all()
        shared = self.outer.shared
        assert shared is not None  # its threads get as far as they can
        until(lambda: self.reading or shared.wait_until_idle(0.0))

    def come(self, request: ToyRequest) -> None:
        """vLLM steps on."""

    def settle(self) -> None:
        with self.stepped:
            self.ending = True
            self.stepped.notify_all()
        super().settle()
        self.ending = False

    def before_a_read(self) -> None:
        """On the thread that has found the page."""
        with self.stepped:
            goal, self.reading = self.steps + self.dice.randrange(1, 6), True
            self.stepped.wait_for(lambda: self.ending or self.steps >= goal, SECONDS)
            self.num_between, self.reading = self.num_between + (self.steps >= goal), False


@pytest.mark.parametrize("failing", [0.0, 0.2])
@pytest.mark.parametrize("hybrid", [False, True])
def test_what_steps_do_between_a_find_and_its_copy_does_not_go_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hybrid: bool, failing: float
) -> None:
    """Pages are evicted and lost, windows pass, requests end, while the store's thread holds what it has found."""
    below, reading = {"shared": str(tmp_path / "store")}, SharedMemoryTier.read
    texts = requests(random.Random(5), 32, salts=True)
    one = SteppingEngine(5, tmp_path, below, hybrid=hybrid, ranks=2, host=10, blocks=40, failing=failing)

    def read(tier: SharedMemoryTier, group: int, slots: Any, out: Any) -> None:
        one.before_a_read()
        reading(tier, group, slots, out)

    with monkeypatch.context() as patch:
        patch.setattr(SharedMemoryTier, "read", read)
        one.run(list(texts), abort=0.05)
        one.settle()
    assert one.num_between > 2 and totals(one)["shared_sent"] > 5
    one.side.close()
    other = LastingEngine(6, tmp_path, below, hybrid=hybrid, ranks=2, host=24, blocks=60)
    other.own = 0.0
    for request in texts:
        request.all_token_ids = request.all_token_ids[: request.num_prompt_tokens]
        request.num_computed_tokens, request.status, request.tables = 0, "waiting", []
    other.run(list(texts))
    assert totals(other)["shared_fetched"] > 2 and other.pages_are_right() > 0
    other.side.close()


def test_what_was_computed_before_an_image_goes_out_though_its_request_was_aborted(tmp_path: Path) -> None:
    engine = LastingEngine(0, tmp_path, {"shared": str(tmp_path / "store")}, hybrid=False)
    request = ask("aborted", mm_features=[image(10, 8, "a cat")])
    assert engine.side.look(request, 0) is None  # the store is asked
    engine.settle()
    assert engine.side.look(request, 0) == 0
    request.tables = [list(range(1, 7))]
    engine.side.place(request, request.tables, 0)
    engine.side.hear(run(engine, engine.side.order({"aborted": 12}, (), lambda _: request.tables)))
    engine.side.finish(request)
    engine.nothing_is_held()
    assert totals(engine)["shared_sent"] == 3  # the last of them has a part of the image
    engine.side.close()


@needs_redis
def test_a_redis_that_is_killed_costs_pages_and_nothing_else(tmp_path: Path, redis_server: RedisServer) -> None:
    below = disk_at(tmp_path) | {"shared": redis_server.url}
    engine = LastingEngine(0, tmp_path, below, hybrid=False)
    served(engine)
    engine.nothing_is_held()
    assert totals(engine)["shared_sent"] == 5
    other = LastingEngine(1, tmp_path, {"shared": redis_server.url}, hybrid=False)
    other.own = 0.0
    other.run([ask("again", max_tokens=2)])
    assert other.seen["loaded tokens"] == 20
    redis_server.kill()
    for one in (engine, other):
        one.run(requests(random.Random(6), 8))
        assert one.seen["done"] >= 8 and one.pages_are_right() > 0
        one.nothing_is_held()
        one.side.close()


def test_a_page_that_changed_in_memory_goes_nowhere(tmp_path: Path) -> None:
    engine = LastingEngine(0, tmp_path, disk_at(tmp_path) | {"shared": str(tmp_path / "store")}, hybrid=False, ranks=2)
    request = ask("first")
    report = run(engine, computed(engine, request))
    engine.movers[1].pages.memory[:, 3] ^= 1  # every page, one rank's part; before anybody could copy it down
    engine.side.hear(report)
    engine.side.finish(request)
    assert engine.outer.keeper is not None and not engine.outer.keeper.flush(SECONDS)
    engine.settle()
    told = totals(engine)
    assert not told.get("disk_written") and not told.get("shared_sent") and told["disk_failed"] > 0
    engine.side.close()


def test_memory_that_processes_share(tmp_path: Path) -> None:
    shape = MemoryShape(4, 2, 24, 2, "layers")
    one = PageMemory.make("pages", shape, tmp_path)
    two = PageMemory.make("pages", shape, tmp_path)  # the other rank
    taken = PageMemory.take("pages", tmp_path)
    assert taken.shape == shape and list(tmp_path.iterdir()) == []
    one.pages[3, 0] = 7
    two.pages[3, 1] = 9
    tier = SharedMemoryTier(taken, checksums=False)
    assert tier.info().pool_of == (0, 0)  # whoever moves pages must not take a slot for two
    page = taken.pages[:1].reshape(1, -1).copy()
    tier.read(1, [3], [page])
    assert page[0, :24].tolist() == [7] * 24 and page[0, 24:].tolist() == [9] * 24
    strict = SharedMemoryTier(taken, checksums=True)
    with pytest.raises(TierError, match="not those that were stored"):
        strict.read(1, [3], [page])  # nobody has made its checksums
    strict.write(1, [2], [page])
    strict.read(0, [2], [page])  # a slot is not a group's
    assert one.sums is not None and one.sums[2].all() and not one.sums[3].any()
    with pytest.raises(Exception, match="did not make it before its scheduler"):
        PageMemory.take("pages", tmp_path)


def test_memory_in_a_region_of_vllm_is_opened_where_its_worker_says(tmp_path: Path) -> None:
    shape = MemoryShape(3, 1, 4096, 2, "region of 2")
    with (tmp_path / "region").open("w+b") as region:
        region.truncate(3 * 4096)
        region.seek(1 * 4096)
        region.write(b"\7" * 4096)  # the second slot
        region.flush()
        (tmp_path / "region").unlink()  # as vLLM does
        announce_region("note", shape, f"/proc/{os.getpid()}/fd/{region.fileno()}", tmp_path)
        taken = PageMemory.take("note", tmp_path)
    assert taken.shape == shape and taken.sums is None and list(tmp_path.iterdir()) == []
    assert taken.pages[1].all() and not taken.pages[0].any() and not taken.pages[2].any()
    tier, page = SharedMemoryTier(taken, checksums=True), taken.pages[1].copy()  # there are none to look at
    tier.write(0, [2], [page])
    tier.read(0, [2], [page])
    assert taken.pages[2].all()
    announce_region("note", shape, "/proc/0/fd/0", tmp_path)
    with pytest.raises(Exception, match="vLLM's host region: it cannot be opened"):
        PageMemory.take("note", tmp_path)


@pytest.mark.skipif(not FOLDER.is_dir(), reason="no /dev/shm")
def test_too_much_memory_is_refused_with_the_numbers() -> None:
    told = os.statvfs(FOLDER)
    slots = 1 + told.f_blocks * told.f_frsize // 4096
    name = f"quire-test-{os.getpid()}"
    with pytest.raises(InputError, match=r"bytes free.*--shm-size"):
        PageMemory.make(name, MemoryShape(slots, 1, 4096, 1, ""))
    assert not (FOLDER / name).exists()
