"""The tier under vLLM's real TieringOffloadingManager, with real bytes: random requests, restarts, kills, flipped bits.

    PYTHONPATH=. .vllm-env/bin/python -m tests.integrations.plugs.tier_lives --lives 20 --kills 50 [--redis]

Every third life has a shared store beside its disk, every third a store alone: a folder, or with --redis a server that
has one fault after the other; then every second kill has it, too. Runs in the environment of
`make vllm-env`. A row's bytes follow from its key, so that every load that vLLM would do is compared byte for byte.
vLLM's host cache is its own, in shared memory; the scheduler is played as vLLM's calls it.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.tiers.disk.dying import Tell, until_killed
from tests.tiers.disk.keyed.durable_keys import DurableKeys, durable_of, lost, say_kills, whole_after
from tests.tiers.shared.redis_server import FAULTS, NO_REDIS, RedisServer, redis_there
from tests.waits import until

ROW, BLOCK = 8192, 16
TEXTS = 30


def spec_of(model: Path) -> Any:
    """What a tier is given of the engine: vLLM's own records."""
    from vllm.v1.kv_offload.config import (
        OffloadingCacheConfig,
        OffloadingConfig,
        OffloadingGroupConfig,
        OffloadingModelConfig,
        OffloadingParallelConfig,
    )

    config = OffloadingConfig(
        groups=(OffloadingGroupConfig(BLOCK, ("layer.0", "layer.1"), 0),), worker_kv_bytes_per_block=ROW // 2,
        enable_kv_cache_events=False, extra_config={}, engine_id="tier-lives",
        model=OffloadingModelConfig(str(model), "float16"), cache=OffloadingCacheConfig(BLOCK, 1),
        parallel=OffloadingParallelConfig(0, 2, 2, 1, 1, 1, 0, 1, None, False),
    )  # fmt: skip
    return SimpleNamespace(config=config, blocks_per_chunk=1)


class Engine:
    """vLLM's manager with our tier below it, in a process's life."""

    def __init__(self, folder: Path, rows: int, disk_rows: int, **options: Any) -> None:
        from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
        from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager

        name = f"tier-lives-{os.getpid()}-{os.urandom(4).hex()}"
        region = SharedOffloadRegion(name, rows, None, ROW, ROW // 2)
        os.unlink(region.mmap_path)  # it goes with the process, however that ends
        region._creator = False
        primary = CPUPrimaryTierOffloadingManager(rows, region)
        view = primary.get_kv_memoryview()
        self.rows = np.frombuffer(region.mmap_obj, np.uint8).reshape(rows, ROW)
        model = folder / "model"
        model.mkdir(exist_ok=True)
        (model / "w.safetensors").write_bytes(b"weights")
        disk = {"folder": str(folder / "disk"), "bytes": disk_rows * (ROW + 256)} if disk_rows else {}
        config = {"type": "QuireTier", "module_path": "quire.integrations.vllm.tier", "waiting": 1.0, **disk, **options}
        self.tier = SecondaryTierFactory.create_secondary_tier(config, view, spec_of(model))
        self.manager = TieringOffloadingManager(primary, [self.tier])
        self.hits = self.loads = self.number = 0

    def step(self) -> None:
        from vllm.v1.kv_offload.base import ScheduleEndContext

        self.manager.on_schedule_end(ScheduleEndContext([], []))

    def serve(self, keys: list[Any]) -> int:
        """A request: its leading blocks that were found, compared; the others are computed and stored."""
        from vllm.v1.kv_offload.base import LookupResult, ReqContext

        context = ReqContext(str(self.number))
        self.number += 1
        for nth, key in enumerate(keys):
            context.set_offload_key_position(key, (nth + 1) * BLOCK)
        self.manager.on_new_request(context)
        found = 0
        late = time.monotonic() + 120
        while True:
            answers = list[LookupResult]()
            for key in keys:  # up to the first miss, as vLLM does: a promotion behind it could push out what was found
                if LookupResult.MISS not in answers:
                    answers.append(self.manager.lookup(key, context))
            found = next((nth for nth, one in enumerate(answers) if one is not LookupResult.HIT), len(answers))
            if found == len(keys) or answers[found] is LookupResult.MISS:
                break
            self.step()  # on its way up, or written a moment ago
            threading.Event().wait(0.001)
            assert time.monotonic() < late, f"a request waits for ever: {answers}"
        if found:
            spec = self.manager.prepare_load(keys[:found], context)
            for key, row in zip(keys, spec.chunk_ids.tolist(), strict=False):
                assert np.array_equal(self.rows[row], bytes_of(key)), "wrong bytes"
            self.manager.complete_load(keys[:found], context)
        stored = self.manager.prepare_store(keys[found:], context) if keys[found:] else None
        if stored is not None and stored.keys_to_store:
            for key, row in zip(stored.keys_to_store, stored.store_spec.chunk_ids.tolist(), strict=True):
                self.rows[row] = bytes_of(key)
            self.manager.complete_store(stored.keys_to_store, context)
        self.manager.on_request_finished(context)
        self.step()
        self.hits, self.loads = self.hits + found, self.loads + len(keys)
        return found

    def forget_host(self) -> None:
        """The host cache is emptied, as when vLLM sleeps; the disk keeps its pages."""
        self.manager.reset_cache()
        flushed = getattr(self.manager, "on_reset_flushed", None)  # from 0.33 on: the workers have heard of it
        if flushed is not None:
            flushed()

    def close(self) -> None:
        del self.rows
        self.manager.shutdown()


def bytes_of(key: bytes) -> Any:
    return np.random.default_rng(np.frombuffer(key, np.uint32)).integers(0, 256, ROW, np.uint8)


def text(dice: np.random.Generator) -> list[Any]:
    """A request's blocks: a shared beginning, then its own."""
    from vllm.v1.kv_offload.base import make_offload_key

    head, own = int(dice.integers(TEXTS)), int(dice.integers(3))
    names = [f"{head}.{nth}" for nth in range(int(dice.integers(1, 5)))]
    names += [f"{head}.{own}.{len(names)}.{nth}" for nth in range(int(dice.integers(4)))]
    return [make_offload_key(name.encode().ljust(32), 0) for name in names]


def live(folder: Path, seed: int, server: RedisServer | None) -> int:
    """Requests, an emptied host cache, a restart, damage, a restart; how many pages the store gave."""
    dice, kind = np.random.default_rng(seed), seed % 3  # a disk, a disk and a store, a store
    shared = str(folder / "store") if server is None else server.url
    options: dict[str, Any] = {"shared": shared, "wait": 20.0} if kind else {}
    engine = Engine(folder, int(dice.integers(16, 40)), 0 if kind == 2 else int(dice.integers(20, 120)), **options)
    for turn in range(60):
        fault = FAULTS[(seed + turn // 10) % len(FAULTS)] if server is not None and kind and turn % 10 == 5 else ""
        if server is not None and fault:
            server.suffer(fault)
        engine.serve(text(dice))
        if server is not None and fault:
            server.mend()
            store = engine.tier.tier.store
            until(lambda: not store.hanging and store.client.takes_pages)  # noqa: B023
        if turn % 20 == 19:
            engine.forget_host()
    disk, store = engine.tier.tier.disk, engine.tier.tier.store
    assert disk is None or disk.counts().pages_read > 0, "nothing came from the disk"
    came = 0 if store is None else store.counts().hits
    assert came or store is None or (server is not None and kind == 1), "nothing came from the store"
    engine.close()
    flip(folder, dice, server)
    again = Engine(folder, 30, 0 if kind == 2 else 120, **options)
    disk, store = again.tier.tier.disk, again.tier.tier.store
    assert disk is None or len(disk) > 0, "nothing has outlived the process"
    for _ in range(40):
        again.serve(text(dice))
    if kind == 2:
        assert store.counts().hits and store.counts().misses.get("damaged"), "no flipped bit was met"
    came += 0 if store is None else store.counts().hits
    again.close()
    return came


def flip(folder: Path, dice: np.random.Generator, server: RedisServer | None) -> None:
    """Some bits of the pages on disk, and of every third in the store, in a Redis of every second."""
    if server is not None:
        with server.client() as there:
            for name in sorted(there.keys())[::2]:
                raw = bytearray(there.get(name))
                raw[int(dice.integers(len(raw)))] ^= 1 << int(dice.integers(8))
                there.set(name, bytes(raw))
    shared = [path for path in sorted((folder / "store").rglob("*-0")) if path.is_file()]
    for file in [*(folder / "disk").rglob("pages-0"), *shared[::3]]:
        raw = bytearray(file.read_bytes())
        for place in dice.integers(len(raw), size=20):
            raw[place] ^= 1 << int(dice.integers(8))
        file.write_bytes(raw)


def killed(folder: Path, seed: int, shared: str) -> tuple[int, int]:
    """An engine that serves until it is killed; pages that the next one finds, every byte of them right, and how many
    of them were durable."""
    options: dict[str, Any] = {"shared": shared, "wait": 20.0} if shared else {}

    def life(tell: Tell) -> None:
        try:
            dice = np.random.default_rng([seed, 1])
            engine = Engine(folder, 30, 60, **options)
            durable = DurableKeys(engine.tier.tier.disk, tell)
            threading.Timer(float(dice.random()) * 1.5 + 0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()
            while True:
                engine.serve(text(dice))
                if dice.random() < 0.2:
                    engine.tier.drain_jobs()
                    durable.fence()
        except BaseException:
            traceback.print_exc()

    told = until_killed(life)
    whole_after(told, folder / "disk")
    dice, again = np.random.default_rng([seed, 2]), Engine(folder, 30, 60, **options)
    found, missing = len(again.tier.tier.disk), lost(told, again.tier.tier.disk)
    assert not missing, f"{len(missing)} durable pages are lost"
    for _ in range(15):
        again.serve(text(dice))
    again.close()
    return found, len(durable_of(told))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lives", type=int, default=5)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--redis", action="store_true", help="a real redis-server as the store")
    args = parser.parse_args()
    import vllm.v1.kv_offload.tiering.manager  # noqa: F401  # before the forks, which take it over

    came = 0
    with redis_there(args.redis) as server:
        if args.redis and server is None:
            raise SystemExit(NO_REDIS)
        for seed in range(args.seed, args.seed + args.lives):
            with tempfile.TemporaryDirectory() as folder:
                if server is not None:
                    server.suffer("empty")
                came += live(Path(folder), seed, server)
        print(f"{args.lives} lives: every loaded row as it was computed; {came} came from a store", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            url = server.url if server is not None else ""
            seeds = range(args.seed, args.seed + args.kills)
            say_kills([killed(Path(folder), seed, url if seed % 2 else "") for seed in seeds], "pages")


if __name__ == "__main__":
    main()
