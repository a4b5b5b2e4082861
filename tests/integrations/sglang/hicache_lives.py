"""QuireHiCacheStorage under SGLang's real classes: its factory makes it, its host pools give and take the bytes.

    pip download --no-deps sglang==0.5.23 && unzip -d FOLDER sglang-*.whl
    PYTHONPATH=. python -m tests.integrations.sglang.hicache_lives --package FOLDER [--redis] [--kills 50]

What SGLang asks of a backend, in our words (which of its tests, and of its own file backend too: `hicache_contract`):
what is set is got, byte for byte, by v1, v2 and tensors; existence is a prefix; a pool's rule cuts it. And restarts,
flipped bits, threads, kills. What of SGLang is stubbed says `sglang_package`.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.integrations.sglang.hicache_contract import check, contract, file_backend, fill, keys_of, page_of, threads
from tests.integrations.sglang.sglang_package import (
    PAGE,
    PAGES,
    config_of,
    enter,
    mha_pool,
    mla_pool,
    module,
    state_pool,
)
from tests.tiers.disk.dying import Tell, until_killed
from tests.tiers.disk.keyed.durable_keys import DurableKeys, durable_of, lost, say_kills, whole_after
from tests.tiers.shared.redis_server import NO_REDIS, redis_there

KINDS = [("mha", "page_first"), ("mha", "page_first_direct"), ("mha", "layer_first"), ("mla", "page_first"),
         ("mla", "layer_first")]  # fmt: skip


def pool_of(kind: str, layout: str) -> Any:
    return mha_pool(layout) if kind == "mha" else mla_pool(layout)


def backend(folder: Path, pool: Any, *, disk: bool = True, store: str = "", v1: bool = True, **more: Any) -> Any:
    """By SGLang's factory, as its controller calls it."""
    options: dict[str, Any] = {"namespace": "lives", "wait": 30.0}
    options |= {"folder": str(folder / "disk"), "bytes": more.pop("bytes", "8MiB")} if disk else {}
    options |= {"shared": store} if store else {}
    extra = {"backend_name": "quire", "module_path": "quire.integrations.sglang.hicache_storage",
             "class_name": "QuireHiCacheStorage", "interface_v1": int(v1), "quire": options}  # fmt: skip
    factory = module("storage.backend_factory").StorageBackendFactory
    made = factory.create_backend("dynamic", config_of(extra_config=extra, **more), pool)
    made.register_mem_pool_host(pool)
    return made


def v1_and_tensors(folder: Path, store: str) -> None:
    """Set and get by places and by tensors, over every layout; then again after a restart."""
    for kind, layout in KINDS:
        for v1 in (True, False):
            place, pool = folder / f"{kind}-{layout}-{v1}", pool_of(kind, layout)
            made, keys = backend(place, pool, store=store, v1=v1), keys_of(f"{kind}{layout}", 6)
            in_place = v1 and layout != "layer_first"
            assert made.batch_exists(keys) == 0 and not made.exists(keys[0])
            assert made.batch_set_v1(keys[:4], fill(pool, keys[:4])) == [True] * 4
            assert made._open["kv"][0].in_place == in_place, "zero copy where the pool allows"
            assert made.batch_exists(keys) == 4 and made.batch_exists(keys[1:3]) == 2 and made.exists(keys[3])
            good = made.batch_get_v1(keys, torch.arange(8 * PAGE, 14 * PAGE))
            assert good == [True] * 4 + [False] * 2 and check(pool, keys, 8, good) == 4
            assert made.set(keys[4], page_of(pool, keys[4])) and made.batch_set([keys[5]], [page_of(pool, keys[5])])
            got = made.batch_get([*keys, "f" * 64], [pool.get_dummy_flat_data_page() for _ in range(7)])
            assert got[6] is None and all(torch.equal(one.view(torch.uint8), page_of(pool, key).view(torch.uint8))
                                          for one, key in zip(got, keys, strict=False))  # fmt: skip
            assert made.batch_get_v1(keys, torch.arange(PAGE)) == [False] * 6, "places that do not fit"
            assert made.get(keys[0], torch.zeros(3)) is None and not made.set(keys[0], torch.zeros(3))
            made.close()
            again = backend(place, pool, store=store, v1=v1)
            assert again.batch_exists(keys) == 6 and all(again.batch_get_v1(keys, torch.arange(6 * PAGE)))
            assert check(pool, keys, 0, [True] * 6) == 6
            again.clear()
            assert again.batch_exists(keys) == 0
            again.close()


def pools(folder: Path, store: str) -> None:
    """v2: several pools; each rule cuts the prefix; one question to the store for all."""
    base = module("hicache_storage")
    kv, states, indexer = mha_pool("page_first"), state_pool(), mla_pool("page_first")
    made = backend(folder, kv, store=store, disk=not store)
    for name, pool in ((base.PoolName.KV, kv), (base.PoolName.MAMBA, states), (base.PoolName.INDEXER, indexer)):
        made.register_mem_host_pool_v2(pool, name)
    made.on_host_pools_registered()
    keys, rule = keys_of("v2", 8), base.PoolHitPolicy

    def transfer(name: Any, pool: Any, some: list[str], policy: Any = rule.ALL_PAGES, write: bool = True) -> Any:
        size = getattr(pool, "page_size", 1)
        places = fill(pool, some) if write else torch.arange(len(some) * size) + 8 * size
        return base.PoolTransfer(name, host_indices=places, keys=some, hit_policy=policy)

    done = made.batch_set_v2([
        transfer(base.PoolName.KV, kv, keys[:6]), transfer(base.PoolName.INDEXER, indexer, keys[:5]),
        transfer(base.PoolName.MAMBA, states, [keys[2], keys[4]]),
    ])  # fmt: skip
    assert {name: sum(good) for name, good in done.items()} == {"kv": 6, "indexer": 5, "mamba": 2}
    asked = made._store.client.tally.calls["exists"] if store else 0
    tail = base.PoolTransfer(base.PoolName.MAMBA, keys=[keys[0]], hit_policy=rule.TRAILING_PAGES)
    whole = base.PoolTransfer(base.PoolName.INDEXER, keys=keys)
    found = made.batch_exists_v2(keys, [tail, whole])
    assert not store or made._store.client.tally.calls["exists"] == asked + 1, "more than one question"
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (5, [3, 5])
    assert found.extra_pool_hit_pages == {"kv": 6, "mamba": 5, "indexer": 5}
    assert (
        made.batch_exists_v2(keys).kv_hit_pages == 6
        and made.batch_exists_v2(keys_of("no", 2), [tail]).kv_hit_pages == 0
    )
    got = made.batch_get_v2([transfer(base.PoolName.KV, kv, keys[:7], write=False),
                             transfer(base.PoolName.MAMBA, states, [keys[4], keys[5]], write=False)])  # fmt: skip
    assert check(kv, keys[:7], 8, got["kv"]) == 6 and check(states, [keys[4], keys[5]], 8, got["mamba"]) == 1
    assert made.batch_get_v2([base.PoolTransfer(base.PoolName.SWA, host_indices=torch.arange(1), keys=keys[:1])]) == {
        "swa": [False]
    }
    made.close()


def damage(folder: Path, store: str) -> None:
    """Flipped bits on the disk are pages that do not come; from the store they do."""
    pool, keys = mha_pool("page_first"), keys_of("bits", 8)
    made = backend(folder, pool, store=store)
    assert all(made.batch_set_v1(keys, fill(pool, keys)))
    made.close()
    dice = np.random.default_rng(0)
    for path in (folder / "disk").rglob("pages-0"):
        raw = bytearray(path.read_bytes())
        for place in dice.integers(len(raw) // 2, size=40):
            raw[place] ^= 1 << int(dice.integers(8))
        path.write_bytes(raw)
    again = backend(folder, pool, store=store)
    good = again.batch_get_v1(keys, torch.arange(8 * PAGE))
    came = check(pool, keys, 0, good)
    assert came == 8 if store else 0 <= came < 8, came
    assert all(again.batch_set_v1(keys, fill(pool, keys))) and all(again.batch_get_v1(keys, torch.arange(8 * PAGE)))
    again.close()


def ranks(folder: Path) -> None:
    """Each rank has its pages, replicas share a store, and what could mix or never be found is refused."""
    store, keys = str(folder / "store"), keys_of("rank", 2)
    pool, latent = mha_pool("page_first"), mla_pool("page_first")
    first = backend(folder, pool, disk=False, store=store, tp_size=2)
    assert all(first.batch_set_v1(keys, fill(pool, keys)))
    two = {"tp_size": 2}
    others: list[tuple[int, dict[str, Any]]] = [
        (0, two | {"tp_rank": 1}), (2, two | {"dp_rank": 1}), (0, two | {"pp_size": 2}), (0, two | {"attn_cp_size": 2}),
        (0, {"model_name": "other"}),
    ]  # fmt: skip
    for there, more in others:
        other = backend(folder, pool, disk=False, store=store, **more)
        assert other.batch_exists(keys) == there, more
        other.close()
    first.close()
    mla: dict[str, Any] = {"is_mla_model": True, "tp_size": 2}
    writer, reader = (backend(folder, latent, disk=False, store=store, tp_rank=rank, **mla) for rank in range(2))
    assert all(writer.batch_set_v1(keys, fill(latent, keys))) and reader.batch_exists(keys) == 2
    writer.close()
    reader.close()
    both = [backend(folder, pool, dp_rank=rank) for rank in range(2)]
    assert [all(one.batch_set_v1(keys, fill(pool, keys))) for one in both] == [True, True]
    for one in both:
        one.close()
    refusals: tuple[dict[str, Any], ...] = (
        mla,
        {"is_mla_model": True, "tp_size": 2, "dcp_size": 2, "logical_page_size": 4},
    )
    for more in refusals:
        try:
            backend(folder, latent, **more)
        except Exception as refused:
            assert "MLA" in str(refused) or "DCP" in str(refused)
        else:
            raise AssertionError("it was not refused")


def killed(folder: Path, seed: int, store: str) -> tuple[int, int]:
    """A process that sets and gets until it is killed; pages that the next one finds, every byte right, and how many
    parts of pages were durable."""

    def life(tell: Tell) -> None:
        dice, pool = np.random.default_rng([seed, 1]), mha_pool("page_first")
        made = backend(folder, pool, store=store, bytes="200kB")
        durable = DurableKeys(disk_of(made), tell)
        threading.Timer(float(dice.random()) * 0.5 + 0.02, os.kill, (os.getpid(), signal.SIGKILL)).start()
        while True:
            some = keys_of(f"k{int(dice.integers(8))}.", int(dice.integers(1, 8)))
            made.batch_set_v1(some, fill(pool, some))
            good = made.batch_get_v1(some, torch.arange(8 * PAGE, (8 + len(some)) * PAGE))
            check(pool, some, 8, good)
            if dice.random() < 0.2:
                durable.fence()

    told = until_killed(life)
    whole_after(told, folder / "disk")
    pool, found = mha_pool("page_first"), 0
    again = backend(folder, pool, store=store, bytes="200kB")
    missing = lost(told, disk_of(again))
    assert not missing, f"{len(missing)} durable parts of pages are lost"
    for text in range(8):
        some = keys_of(f"k{text}.", 7)
        there = again.batch_exists(some)
        assert not there or all(again.batch_get_v1(some[:there], torch.arange(there * PAGE))), "found, and not there"
        found += check(pool, some[:there], 0, [True] * there)
    again.close()
    return found, len(durable_of(told))


def disk_of(made: Any) -> Any:
    """The disk of a storage of one pool, which it opens when that is needed."""
    made.on_host_pools_registered()
    return made._open["kv"][1].disk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, required=True, help="folder with the unpacked wheel of sglang")
    parser.add_argument("--redis", action="store_true", help="a real redis-server beside the folder, and for the kills")
    parser.add_argument("--kills", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    enter(args.package)
    assert PAGES >= 16
    with tempfile.TemporaryDirectory() as name, redis_there(args.redis) as server:
        folder = Path(name)
        if args.redis and server is None:
            raise SystemExit(NO_REDIS)
        pool = mha_pool("page_first")
        contract(theirs := file_backend(folder / "theirs", pool), pool)
        came = threads(theirs)
        print(f"what SGLang's tests ask of a backend holds for its own file backend, {came} pages by four threads")
        for nth, store in enumerate(("", str(folder / "store"), *([server.url] if server else []))):
            v1_and_tensors(folder / f"v1-{nth}", store)
            pools(folder / f"v2-{nth}", store)
            damage(folder / f"bits-{nth}", store)
            for disk in (True, False) if store else (True,):
                pool = mha_pool("page_first")
                contract(ours := backend(folder / f"contract-{nth}-{disk}", pool, disk=disk, store=store), pool)
                ours.close()
            ours = backend(folder / f"threads-{nth}", pool, store=store, bytes="200kB")
            came = threads(ours)
            ours.close()
            print(f"and for ours over {store.partition(':')[0] or 'a disk'}, {came} pages by four threads", flush=True)
        ranks(folder / "ranks")
        print("set and got, restarted, cleared, damaged, by v1, v2 and tensors, over all layouts: every byte right")
        kept = server.url if server else str(folder / "k")
        ends = [killed(folder / "kills", seed, kept if seed % 2 else "") for seed in range(args.kills)]
        say_kills(ends, "pages")


if __name__ == "__main__":
    main()
