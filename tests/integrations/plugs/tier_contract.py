"""What vLLM asks of a secondary tier, in our words, of vLLM's own file tier and of ours, made by vLLM's factory.

    PYTHONPATH=. .vllm-env/bin/python -m tests.integrations.plugs.tier_contract

Each promise is held by QuireTier over a disk, a disk and a store, and a store. The file tier is the control; what
is asked of ours alone is in OURS.
"""

from __future__ import annotations

import mmap
import tempfile
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.integrations.plugs.tier_lives import ROW, Engine, bytes_of, spec_of
from tests.waits import until

ROWS = 12
KINDS = ("fs", "disk", "both", "store")
NUMBERS = count()


def keys_of(name: str, blocks: int, group: int = 0) -> list[Any]:
    from vllm.v1.kv_offload.base import make_offload_key

    return [make_offload_key(f"{name}{nth}".encode().ljust(32), group) for nth in range(blocks)]


class Tier:
    """One tier over a host cache of its own."""

    def __init__(self, kind: str, folder: Path, model: Path | None = None) -> None:
        from vllm.v1.kv_offload.base import ReqContext
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

        memory = mmap.mmap(-1, ROWS * ROW)  # aligned, as vLLM's is: its file tier reads past the system's memory
        self.rows = np.frombuffer(memory, np.uint8).reshape(ROWS, ROW)
        model = model or folder / "model"
        model.mkdir(parents=True, exist_ok=True)
        (model / "w.safetensors").write_bytes(b"weights")
        config: dict[str, Any] = {"type": "fs", "root_dir": str(folder / "fs")}
        if kind != "fs":
            config = {"type": "QuireTier", "module_path": "quire.integrations.vllm.tier", "waiting": 1.0}
            config |= {"folder": str(folder / "disk"), "bytes": "4MiB"} if kind != "store" else {}
            config |= {"shared": str(folder / "store"), "wait": 30.0} if kind != "disk" else {}
        spec = spec_of(model)
        spec.kv_events_config = SimpleNamespace(enable_kv_cache_events=False)
        self.tier = SecondaryTierFactory.create_secondary_tier(config, memoryview(memory).cast("B", (ROWS, ROW)), spec)
        self.context = ReqContext
        self.kind, self.folder = kind, folder

    def submit(self, keys: list[Any], rows: list[int], is_load: bool, request: Any = None) -> int:
        from vllm.v1.kv_offload.tiering.base import TransferJob

        number = next(NUMBERS)
        job = TransferJob(number, keys, np.array(rows, np.int32), is_load, request or self.context(f"r{number}"))
        (self.tier.submit_load if is_load else self.tier.submit_store)(job)
        return number

    def done(self, keys: list[Any], rows: list[int], is_load: bool) -> Any:
        number = self.submit(keys, rows, is_load)
        self.tier.drain_jobs()
        (result,) = self.tier.get_finished_jobs()
        assert result.job_id == number
        return result

    def store(self, keys: list[Any]) -> Any:
        for row, key in enumerate(keys):
            self.rows[row] = bytes_of(key)
        return self.done(keys, list(range(len(keys))), False)

    def has(self, key: Any, request: Any = None) -> bool:
        """As a scheduler asks: again at each step, until it is known."""
        from vllm.v1.kv_offload.base import LookupResult, ScheduleEndContext

        asks = request or self.context(f"l{next(NUMBERS)}")
        self.tier.on_new_request(asks)
        answers = [self.tier.lookup(key, asks)]
        self.tier.on_schedule_end(ScheduleEndContext([], []))

        def known() -> bool:
            answers.append(self.tier.lookup(key, asks))
            self.tier.on_schedule_end(ScheduleEndContext([], []))
            return answers[-1] is not LookupResult.RETRY

        until(known)
        if request is None:
            self.tier.on_request_finished(asks)
        return answers[-1] is LookupResult.HIT

    def right(self, row: int, key: Any) -> bool:
        return bool(np.array_equal(self.rows[row], bytes_of(key)))

    def files(self) -> Iterator[Path]:
        """That hold pages."""
        for pattern in ("fs/**/*.bin", "disk/**/pages-0", "store/**/*-0"):
            yield from (path for path in self.folder.glob(pattern) if path.is_file())


def rows_go_and_come_back_in_any_order(tier: Tier) -> None:
    keys = keys_of("a", 3)
    assert not tier.has(keys[0]), "nothing is there yet"
    stored = tier.store(keys)
    assert stored.success and stored.transfer_bytes == 3 * ROW and stored.transfer_time >= 0
    assert all(map(tier.has, keys)) and not tier.has(keys_of("b", 1)[0])
    tier.rows[:] = 0
    loaded = tier.done(keys[::-1], [7, 3, 9], True)
    assert loaded.success and loaded.transfer_bytes == 3 * ROW
    assert tier.right(9, keys[0]) and tier.right(3, keys[1]) and tier.right(7, keys[2])
    assert not tier.rows[[0, 1, 2, 4, 5, 6, 8, 10, 11]].any(), "rows of others were touched"


def groups_of_one_block_are_pages_of_their_own(tier: Tier) -> None:
    first, second = keys_of("g", 1, 0), keys_of("g", 1, 1)
    tier.store(first)
    assert tier.has(first[0]) and not tier.has(second[0])


def what_is_stored_twice_is_there_once_and_right(tier: Tier) -> None:
    keys = keys_of("t", 2)
    assert tier.store(keys).success and tier.store(keys).success
    assert tier.done(keys, [5, 6], True).success and tier.right(5, keys[0]) and tier.right(6, keys[1])


def a_row_may_change_as_soon_as_its_store_is_over(tier: Tier) -> None:
    keys = keys_of("c", 4)
    tier.store(keys)
    tier.rows[:] = 255
    assert tier.done(keys, [4, 5, 6, 7], True).success
    assert all(tier.right(4 + nth, key) for nth, key in enumerate(keys))


def a_page_that_is_not_there_fails_its_load_and_is_a_miss_then(tier: Tier) -> None:
    """Else the scheduler would ask for it at every step."""
    keys, request = [*keys_of("p", 2), *keys_of("missing", 1)], tier.context("waits")
    tier.store(keys[:2])
    tier.has(keys[2], request)
    result = tier.done(keys, [5, 6, 7], True)
    assert not result.success and set(result.successful_keys or ()) == set(keys[:2])
    assert tier.right(5, keys[0]) and tier.right(6, keys[1]), "what came before is kept"
    assert not tier.has(keys[2], request)
    tier.tier.on_request_finished(request)


def each_job_is_reported_once_and_draining_leaves_no_other(tier: Tier) -> None:
    keys = keys_of("j", 6)
    for nth, key in enumerate(keys):
        tier.rows[nth] = bytes_of(key)
    numbers = [tier.submit([key], [nth], False) for nth, key in enumerate(keys)]
    tier.tier.drain_jobs()
    numbers += [tier.submit([key], [6 + nth], True) for nth, key in enumerate(keys)]
    tier.tier.drain_jobs()
    results = list(tier.tier.get_finished_jobs())
    assert sorted(one.job_id for one in results) == sorted(numbers) and all(one.success for one in results)
    assert list(tier.tier.get_finished_jobs()) == [] and all(tier.right(6 + nth, key) for nth, key in enumerate(keys))


def another_process_finds_what_was_stored(tier: Tier) -> None:
    keys = keys_of("s", 2)
    tier.store(keys)
    tier.tier.shutdown()
    tier.tier = again = (later := Tier(tier.kind, tier.folder)).tier
    tier.rows = later.rows
    assert again is tier.tier and all(map(tier.has, keys))
    assert tier.done(keys, [4, 5], True).success and tier.right(4, keys[0]) and tier.right(5, keys[1])


def jobs_of_any_size_go_to_other_rows(tier: Tier) -> None:
    for size in (0, 1, 2, 5):
        keys = keys_of(f"size{size}.", size)
        assert tier.store(keys).success
        tier.rows[:] = 0
        rows = list(range(ROWS - size, ROWS))
        assert tier.done(keys, rows, True).success and all(map(tier.right, rows, keys))


def a_row_that_there_is_not_fails_its_job(tier: Tier) -> None:
    keys = keys_of("row", 1)
    assert not tier.done(keys, [ROWS], False).success and not tier.has(keys[0])
    assert tier.store(keys).success and not tier.done(keys, [ROWS], True).success
    assert tier.done(keys, [ROWS - 1], True).success and tier.right(ROWS - 1, keys[0])


def jobs_under_way_keep_no_tier_from_ending(tier: Tier) -> None:
    before = threading.active_count()
    for nth in range(10):
        tier.submit(keys_of(f"end{nth}.", 1), [nth], False)
    tier.tier.shutdown()
    until(lambda: threading.active_count() <= before)
    tier.tier = (later := Tier(tier.kind, tier.folder)).tier
    tier.rows = later.rows


def a_folder_that_cannot_be_is_refused_at_once(tier: Tier) -> None:
    if tier.kind == "store":
        return  # a shared store may come later
    try:
        Tier(tier.kind, Path("/dev/null/there"), model=tier.folder / "model")
    except Exception as refused:
        assert "/dev/null" in str(refused)
    else:
        raise AssertionError("it was not refused")


def a_file_that_was_cut_is_a_failed_load(tier: Tier) -> None:
    keys = keys_of("cut", 2)
    tier.store(keys)
    for path in list(tier.files()):
        path.write_bytes(path.read_bytes()[: 100 if path.name != "pages-0" else 10])
    result = tier.done(keys, [5, 6], True)
    assert not result.success and not result.successful_keys


def a_flipped_bit_is_a_failed_load(tier: Tier) -> None:
    keys = keys_of("bit", 1)
    tier.store(keys)
    for path in list(tier.files()):
        raw = bytearray(path.read_bytes())
        raw[1000] ^= 8
        path.write_bytes(raw)
    result = tier.done(keys, [5], True)
    assert not result.success and not result.successful_keys


def stores_are_bounded(tier: Tier) -> None:
    for start in range(0, 700, 10):
        tier.store(keys_of(f"many{start}.", 10))
    assert sum(path.stat().st_blocks * 512 for path in tier.files() if path.name == "pages-0") <= 4 << 20


CLASSES = {"backpressure_cls": "EMABackpressureDetector", "policy_cls": "DropStorePolicy"}


def vllms_own_backpressure_holds_stores_back(folder: Path) -> None:
    """Its manager times our stores, and drops those that come while they take too long."""
    for name, high in (("pressed", 1e-12), ("free", 1e6)):  # seconds for a MiB
        limits = {"high_water_s": high, "low_water_s": high / 10, "warmup_completions": 0}
        place = folder / name
        place.mkdir()
        engine = Engine(place, 40, 60, backpressure=limits | CLASSES)
        disk, first, second = engine.tier.tier.disk, keys_of("first", 3), keys_of("second", 3)
        for keys in (first, second):
            engine.serve(keys)
            engine.tier.drain_jobs()
            engine.step()  # the manager hears of it
        kept = [sum(key in disk for key in keys) for keys in (first, second)]
        assert kept == [3, 0 if name == "pressed" else 3], (name, kept)
        engine.close()


EVERYONES: tuple[Callable[[Tier], None], ...] = (
    rows_go_and_come_back_in_any_order, groups_of_one_block_are_pages_of_their_own,
    what_is_stored_twice_is_there_once_and_right, a_row_may_change_as_soon_as_its_store_is_over,
    a_page_that_is_not_there_fails_its_load_and_is_a_miss_then, each_job_is_reported_once_and_draining_leaves_no_other,
    another_process_finds_what_was_stored, a_file_that_was_cut_is_a_failed_load, jobs_of_any_size_go_to_other_rows,
    a_row_that_there_is_not_fails_its_job, jobs_under_way_keep_no_tier_from_ending,
    a_folder_that_cannot_be_is_refused_at_once,
)  # fmt: skip
OURS = (a_flipped_bit_is_a_failed_load, stores_are_bounded)


def main() -> None:
    for kind in KINDS:
        for promise in (*EVERYONES, *(OURS if kind != "fs" else ())):
            if (kind, promise) == ("store", stores_are_bounded):
                continue  # a shared folder is bounded by shared_bytes, and by whoever sweeps
            with tempfile.TemporaryDirectory() as name:
                tier = Tier(kind, Path(name))
                try:
                    promise(tier)
                except BaseException:
                    print(f"NOT held by {kind}: {promise.__name__}", flush=True)
                    raise
                tier.tier.shutdown()
        print(f"{kind}: {len(EVERYONES)} promises of vLLM's file tier held", flush=True)
    with tempfile.TemporaryDirectory() as name:
        vllms_own_backpressure_holds_stores_back(Path(name))
    more = [one.__name__ for one in (*OURS, vllms_own_backpressure_holds_stores_back)]
    print(f"{len(more)} more are asked of ours alone: {', '.join(more)}")


if __name__ == "__main__":
    main()
