"""Bytes per second of Quire's plugs, of each engine's own file backend, and of the disk itself, in one run.

    make vllm-env sglang-package lmcache-package
    PYTHONPATH=. .venv/bin/python benchmarks/plug_speed.py --folder /mnt/nvme/test

Pages are stored in jobs of 16 and loaded back, by the calls that the engine makes, twice each and in turn. `durable`
counts a sync of all that was written; `load` is past the memory of the system. `busy`: beside a thread that computes
in Python without a pause, as an engine's scheduler does while a request waits for its pages. `disk` is one thread that
writes, syncs and reads one file. Each engine runs in a process of its own; one whose package is not there is left out.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from disk_busy import busy_thread

ROOT = Path(__file__).resolve().parents[1]
JOB = 16  # pages
ENGINES = {"vllm": ".vllm-env/bin/python", "sglang": ".sglang", "lmcache": ".lmcache"}
NAMES = {
    "vllm": ("vLLM's `fs` tier", "`QuireTier`"), "sglang": ("SGLang's `HiCacheFile`", "`QuireHiCacheStorage`"),
    "lmcache": ("LMCache's `fs` adapter", "`QuireL2Adapter`"),
}  # fmt: skip
Speeds = tuple[float, ...]  # GB/s: stored, durable, loaded, loaded from memory, both beside a busy thread
COLUMNS = ("store", "until it is durable", "load, from the disk", "load, from memory", "from the disk, busy",
           "from memory, busy")  # fmt: skip


class VllmTier:
    """Rows of vLLM's host cache, by the calls of its tiering manager."""

    def __init__(self, folder: Path, ours: bool, count: int, size: int) -> None:
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

        from tests.integrations.plugs.tier_lives import spec_of

        self.memory = mmap.mmap(-1, count * size)
        np.frombuffer(self.memory, np.uint8)[:] = np.random.default_rng(0).integers(0, 256, count * size, np.uint8)
        view = memoryview(self.memory).cast("B", (count, size))
        model = folder / "model"
        model.mkdir(exist_ok=True)
        (model / "w.safetensors").write_bytes(b"weights")
        config: dict[str, Any] = {"type": "fs", "root_dir": str(folder / "fs")}
        if ours:
            config = {"type": "QuireTier", "module_path": "quire.integrations.vllm.tier", "bytes": 2 * view.nbytes,
                      "folder": str(folder / "quire"), "waiting": 1.0}  # fmt: skip
        spec = spec_of(model)
        spec.kv_events_config = SimpleNamespace(enable_kv_cache_events=False)
        self.tier = SecondaryTierFactory.create_secondary_tier(config, view, spec)
        self.count, self.size = count, size
        self.keys = [number.to_bytes(32, "big") + bytes(4) for number in range(count)]
        self.disk = self.tier.tier.disk if ours else None
        self.number = 0

    def move(self, is_load: bool) -> None:
        from vllm.v1.kv_offload.base import ReqContext
        from vllm.v1.kv_offload.tiering.base import TransferJob

        waiting = set()
        for start in range(0, self.count, JOB):
            rows = np.arange(start, min(start + JOB, self.count), dtype=np.int32)
            self.number += 1
            waiting.add(self.number)
            job = TransferJob(self.number, [self.keys[row] for row in rows], rows, is_load, ReqContext("r"))
            (self.tier.submit_load if is_load else self.tier.submit_store)(job)
        while waiting:
            done = self.tier.get_finished_jobs()
            assert all(one.success for one in done), "a row was not moved"
            waiting -= {one.job_id for one in done}
            time.sleep(0.0005)

    def close(self) -> None:
        self.tier.shutdown()


class SglangStorage:
    """Pages of a host pool, by the calls of HiCache's controller: tensors for its own, places for ours."""

    def __init__(self, folder: Path, ours: bool, count: int, size: int) -> None:
        from tests.integrations.sglang.sglang_package import LAYERS, PAGE, PAGES, config_of, enter, mha_pool, module

        if "sglang" not in sys.modules:
            enter(ROOT / ENGINES["sglang"])
        import torch

        self.torch, self.ours, self.page, self.places = torch, ours, PAGE, PAGES
        self.pool = mha_pool("page_first", heads=size // (PAGE * LAYERS * 4 * 64), dim=64)
        self.pool.kv_buffer.view(torch.int16).random_(-(2**15), 2**15)
        self.size, self.count = size // (PAGE * LAYERS * 4 * 64) * PAGE * LAYERS * 4 * 64, count
        self.keys = [f"{number:064x}" for number in range(count)]
        extra = {"backend_name": "quire", "module_path": "quire.integrations.sglang.hicache_storage", "interface_v1": 1,
                 "class_name": "QuireHiCacheStorage",
                 "quire": {"folder": str(folder / "quire"), "bytes": 2 * count * size, "namespace": "n"}}  # fmt: skip
        if ours:
            factory = module("storage.backend_factory").StorageBackendFactory
            self.storage = factory.create_backend("dynamic", config_of(extra_config=extra), self.pool)
        else:
            self.storage = module("hicache_storage").HiCacheFile(config_of(), str(folder / "file"))
        self.storage.register_mem_pool_host(self.pool)
        if ours:
            self.storage.on_host_pools_registered()
        self.disk = self.storage._open["kv"][1].disk if ours else None

    def move(self, is_load: bool) -> None:
        for start in range(0, self.count, min(JOB, self.places)):
            keys = self.keys[start : start + JOB]
            indices = self.torch.arange(len(keys) * self.page)
            if self.ours:
                act = self.storage.batch_get_v1 if is_load else self.storage.batch_set_v1
                assert all(act(keys, indices)), "a page was not moved"
            elif is_load:
                empty = [self.pool.get_dummy_flat_data_page() for _ in keys]
                for nth, page in enumerate(self.storage.batch_get(keys, empty)):
                    self.pool.set_from_flat_data_page(nth * self.page, page)
            else:
                pages = [self.pool.get_data_page(nth * self.page) for nth in range(len(keys))]
                assert self.storage.batch_set(keys, pages), "a page was not moved"

    def close(self) -> None:
        if self.ours:
            self.storage.close()


class LmcacheAdapter:
    """Objects, by the calls of LMCache's controllers."""

    def __init__(self, folder: Path, ours: bool, count: int, size: int) -> None:
        from tests.integrations.lmcache import lmcache_package
        from tests.integrations.lmcache.adapter_lives import adapter_of, object_of

        lmcache_package.enter(ROOT / ENGINES["lmcache"])
        lmcache_package.SHAPE = (2, 32, size // 16384, 128)  # bfloat16
        made = {"folder": str(folder / "quire"), "bytes": 2 * count * size, "namespace": "n", "waiting": 1.0}
        config = lmcache_package.plugin_config(made) if ours else lmcache_package.fs_config(folder / "fs")
        self.adapter = adapter_of(config)
        for part in self.adapter.tier.jobs.parts if ours else ():
            part.jobs._most_pages = 1 << 20  # LMCache says how large its L1 is; here there is none
        self.keys = [lmcache_package.key_of("speed", number) for number in range(count)]
        self.objects = [object_of(key) for key in self.keys]
        self.size, self.count = self.objects[0].get_size(), count
        self.disk = self.adapter.tier.disk if ours else None

    def move(self, is_load: bool) -> None:
        a, waiting = self.adapter, {}
        for start in range(0, self.count, JOB):
            some = slice(start, start + JOB)
            act = a.submit_load_task if is_load else a.submit_store_task
            waiting[act(self.keys[some], self.objects[some])] = JOB
        while waiting:
            if is_load:
                done = {number: a.query_load_result(number) for number in waiting}
                good = {number: bits.popcount() == waiting[number] for number, bits in done.items() if bits is not None}
            else:
                good = {number: one.is_successful() for number, one in a.pop_completed_store_tasks().items()}
            assert all(good.values()), "an object was not moved"
            waiting = {number: size for number, size in waiting.items() if number not in good}
            time.sleep(0.0005)

    def close(self) -> None:
        self.adapter.close()


SIDES: dict[str, Callable[..., Any]] = {"vllm": VllmTier, "sglang": SglangStorage, "lmcache": LmcacheAdapter}


def forget(folder: Path) -> None:
    """All is synced, and the system keeps none of these files in memory."""
    for path in [folder, *folder.rglob("*")]:
        if path.is_file():
            number = os.open(path, os.O_RDONLY)
            os.fsync(number)
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(number)


def speeds(make: Callable[[Path], Any], folder: Path) -> Speeds:
    side = make(folder)
    size = side.count * side.size / 1e9
    begun = time.monotonic()
    side.move(False)
    stored = time.monotonic() - begun
    if side.disk is not None:
        assert side.disk.fence()
    forget(folder)
    durable = time.monotonic() - begun
    loads = timed_loads(side)
    forget(folder)
    with busy_thread():
        loads += timed_loads(side)
    side.close()
    return tuple(size / took for took in (stored, durable, *loads))


def timed_loads(side: Any) -> list[float]:
    """Seconds for all pages, which the first time are not in memory."""
    took = []
    for _ in range(2):
        begun = time.monotonic()
        side.move(True)
        took.append(time.monotonic() - begun)
    return took


def disk_speeds(folder: Path, size: int) -> Speeds:
    with mmap.mmap(-1, size) as memory:
        np.frombuffer(memory, np.uint8)[:] = np.random.default_rng(0).integers(0, 256, size, np.uint8)
        number, begun = os.open(folder / "raw", os.O_RDWR | os.O_CREAT), time.monotonic()
        os.write(number, memory)
        written = time.monotonic() - begun
        os.fsync(number)
        durable = time.monotonic() - begun
        os.close(number)
        forget(folder)
        took = []
        for flags in (os.O_RDONLY | getattr(os, "O_DIRECT", 0), os.O_RDONLY):
            number, begun = os.open(folder / "raw", flags), time.monotonic()
            os.readv(number, [memory])
            os.close(number)
            took.append(time.monotonic() - begun)
    return size / 1e9 / written, size / 1e9 / durable, size / 1e9 / took[0], size / 1e9 / took[1]


def one_engine(name: str, at: str | None, count: int, size: int, times: int) -> None:
    """In this process: the engine's own backend and ours in turn; prints what it measured."""
    found: list[list[Speeds]] = [[], []]
    for _ in range(times):
        for ours in (False, True):
            with tempfile.TemporaryDirectory(dir=at) as folder:
                found[ours].append(speeds(lambda place, ours=ours: SIDES[name](place, ours, count, size), Path(folder)))  # type: ignore[misc]
    print(json.dumps(found))


def row(name: str, found: list[Any]) -> str:
    cells = [", ".join(f"{one[nth]:.2f}" for one in found if nth < len(one)) for nth in range(len(COLUMNS))]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="on the disk to be measured")
    parser.add_argument("--pages", type=int, default=128)
    parser.add_argument("--page-bytes", type=int, default=2 << 20)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--only", choices=SIDES, help="of this engine")
    parser.add_argument("--engine", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        one_engine(args.engine, args.folder, args.pages, args.page_bytes, args.times)
        return
    print(f"| GB/s | {' | '.join(COLUMNS)} |\n{'|---' * (1 + len(COLUMNS))}|")
    for _ in range(2):
        with tempfile.TemporaryDirectory(dir=args.folder) as name:
            print(row("the disk", [disk_speeds(Path(name), args.pages * args.page_bytes)]), flush=True)
    for engine, where in ENGINES.items():
        if args.only not in (None, engine):
            continue
        if not (ROOT / where).exists():
            print(f"(no {where}: {engine} is left out)")
            continue
        python = str(ROOT / where) if where.endswith("python") else sys.executable
        words = [python, __file__, "--engine", engine, "--pages", str(args.pages), "--times", str(args.times)]
        words += ["--page-bytes", str(args.page_bytes), *(["--folder", args.folder] if args.folder else [])]
        done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
        if done.returncode:
            sys.exit(done.stderr[-3000:])
        for title, found in zip(NAMES[engine], json.loads(done.stdout.splitlines()[-1]), strict=True):
            print(row(title, found), flush=True)


if __name__ == "__main__":
    main()
