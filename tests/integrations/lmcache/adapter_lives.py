"""QuireL2Adapter under LMCache's real storage manager: its plugin factory makes it, its controllers call it, its L1
gives and takes the bytes.

    make lmcache-package
    PYTHONPATH=. .venv/bin/python -m tests.integrations.lmcache.adapter_lives --package .lmcache [--redis]

What LMCache asks of an L2 adapter, in our words, of its own file adapter first: what is stored is found and loaded,
byte for byte, by the adapter alone and through the whole manager; three files to wait for; each answer once. And
restarts, flipped bits, salts, sizes, bounds, deletion, several threads, kills.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.integrations.lmcache.lmcache_package import (
    PIECE,
    Driver,
    bytes_of,
    enter,
    fs_config,
    key_of,
    layout_of,
    memory_of,
    plugin_config,
)
from tests.tiers.disk.dying import Tell, until_killed
from tests.tiers.disk.keyed.durable_keys import DurableKeys, durable_of, lost, say_kills, whole_after
from tests.tiers.shared.redis_server import NO_REDIS, RedisServer, redis_there
from tests.waits import until


def params(folder: Path, store: str = "", *, disk: bool = True, size: str = "1MB", **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"namespace": "lives", "piece": PIECE, "wait": 30.0, "waiting": 1.0}
    given |= {"folder": str(folder / "disk"), "bytes": size} if disk else {}
    return given | ({"shared": store} if store else {}) | more


def adapter_of(config: Any) -> Any:
    """By LMCache's factory, alone."""
    from lmcache.v1.distributed.internal_api import L1MemoryDesc
    from lmcache.v1.distributed.l2_adapters import create_l2_adapter

    made = create_l2_adapter(config, L1MemoryDesc(0, 1 << 20, 4096))
    made.set_backend_identity("plugin")
    return made


def object_of(key: Any, filled: bool = True) -> Any:
    """An object of L1, without L1."""
    from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

    layout = layout_of(key.object_group_id)
    size = layout.shapes[0].numel() * layout.dtypes[0].itemsize
    raw = torch.from_numpy(bytes_of(key, size) if filled else np.zeros(size, np.uint8))
    meta = MemoryObjMetadata(
        layout.shapes[0], layout.dtypes[0], 0, size, 1, fmt=MemoryFormat.UNDEFINED, shapes=layout.shapes,
        dtypes=layout.dtypes,
    )  # fmt: skip
    return TensorMemoryObj(raw, meta, None)


def wait_for(file: int) -> None:
    poller = select.poll()
    poller.register(file, select.POLLIN)
    assert poller.poll(120_000), "nothing was signalled"
    os.eventfd_read(file)


def store(adapter: Any, keys: Sequence[Any]) -> Any:
    number = adapter.submit_store_task(list(keys), [object_of(key) for key in keys])
    while True:
        wait_for(adapter.get_store_event_fd())
        if number in (done := adapter.pop_completed_store_tasks()):
            assert adapter.pop_completed_store_tasks() == {}, "an answer came twice"
            return done[number]


def answer(adapter: Any, file: int, query: Any, number: int, count: int) -> list[bool]:
    while True:
        wait_for(file)
        if (bits := query(number)) is not None:
            assert query(number) is None, "an answer came twice"
            there = set(bits.get_indices_list())
            return [nth in there for nth in range(count)]


def lookup(adapter: Any, keys: Sequence[Any]) -> list[bool]:
    layouts = {group: layout_of(group) for group in (0, 1)}
    number = adapter.submit_lookup_and_lock_task(list(keys), layouts)
    return answer(
        adapter, adapter.get_lookup_and_lock_event_fd(), adapter.query_lookup_and_lock_result, number, len(keys)
    )


def load(adapter: Any, keys: Sequence[Any]) -> list[bool]:
    objects = [object_of(key, filled=False) for key in keys]
    number = adapter.submit_load_task(list(keys), objects)
    came = answer(adapter, adapter.get_load_event_fd(), adapter.query_load_result, number, len(keys))
    for key, one, good in zip(keys, objects, came, strict=True):
        right = np.array_equal(memory_of(one), bytes_of(key, memory_of(one).nbytes))
        assert right or not good, f"WRONG BYTES under {key}"
    return came


def contract(adapter: Any, counts: bool = True) -> None:
    """Of any adapter, LMCache's own file adapter too. `counts`: what is there, which a store does not tell."""
    files = adapter.get_store_event_fd(), adapter.get_lookup_and_lock_event_fd(), adapter.get_load_event_fd()
    assert len(set(files)) == 3
    keys = [key_of("c", nth, group=nth % 2) for nth in range(6)]
    assert lookup(adapter, keys) == [False] * 6 and load(adapter, keys) == [False] * 6
    assert adapter.query_load_result(999) is None and adapter.query_lookup_and_lock_result(999) is None
    done = store(adapter, keys[:4])
    assert done.is_successful() and done.bytes_transferred() == sum(
        memory_of(object_of(key)).nbytes for key in keys[:4]
    )
    again = store(adapter, keys[:4])
    assert again.is_successful() and not (counts and again.bytes_transferred()), "what is there is not written again"
    assert lookup(adapter, keys) == [True] * 4 + [False] * 2 and lookup(adapter, keys[::-1]) == [False] * 2 + [True] * 4
    assert load(adapter, keys) == [True] * 4 + [False] * 2
    adapter.submit_unlock(keys[:4])
    adapter.submit_unlock(keys)
    others = [
        key_of("c", 0, salt="b"),
        key_of("c", 0, model="other"),
        key_of("c", 0, rank=0x02010201),
        key_of("c", 2, group=1),
    ]
    assert lookup(adapter, others) == [False] * 4, "another salt, model, rank or group is another object"
    assert store(adapter, others).is_successful() and load(adapter, [*others, keys[0]]) == [True] * 5
    usage = adapter.get_usage()
    expected = {"b": memory_of(object_of(others[0])).nbytes} if counts else {}
    assert {salt: size for salt, size in usage.bytes_by_cache_salt.items() if salt} == expected
    assert bool(usage.total_bytes_used) == counts
    adapter.submit_unlock(keys[:4])
    adapter.delete(keys[:2])
    assert adapter.report_status()["is_healthy"]


def held(folder: Path) -> None:
    """What a lookup found stays until it is unlocked, whatever comes; the bound holds, counted by LMCache too."""
    made = adapter_of(plugin_config(params(folder, size="150kB")))
    room, first = made.tier.disk.num_slots, [key_of("h", nth) for nth in range(4)]
    assert store(made, first).is_successful() and lookup(made, first) == [True] * 4
    for nth in range(60):
        store(made, [key_of("o", nth)])
    assert len(made.tier.disk) <= room and made.get_usage().usage_fraction <= 1.0
    assert load(made, first) == [True] * 4
    made.submit_unlock(first)
    for nth in range(60):
        store(made, [key_of("p", nth)])
    assert lookup(made, first) == [False] * 4, "they may go now"
    counted = sum(made.get_usage().bytes_by_cache_salt.values())
    there = sum(lookup(made, [key_of(text, nth) for text in "hop" for nth in range(60)]))
    assert counted == there * memory_of(object_of(first[0])).nbytes, "LMCache counts what is there"
    made.close()


def manager(folder: Path, config: Any) -> None:
    """Through L1 and both controllers; two groups of objects of different sizes; again after a restart."""
    driver, keys = Driver(config), [key_of("m", nth, group=group) for group in (0, 1) for nth in range(8)]
    assert driver.write(keys) == 16
    driver.settle()
    driver.forget()
    assert driver.fetch([*keys, key_of("m", 8), key_of("m", 8, group=1)]) == [True] * 16 + [False] * 2
    driver.forget()
    assert driver.fetch([key_of("m", 0, salt="x"), key_of("m", 0, group=1, salt="x")]) == [False] * 2
    driver.close()
    again = Driver(config)
    assert again.fetch(keys) == [True] * 16
    again.close()


def serde(folder: Path) -> None:
    """LMCache's own quantiser above us: other sizes than layouts say; after a restart the first store tells them."""
    from lmcache.v1.distributed.serde import SerdeConfig

    config = plugin_config(params(folder))
    config.serde_config = SerdeConfig("fp8")
    keys = [key_of("q", nth) for nth in range(4)]
    for found in (False, True):
        made = Driver(config)
        assert made.fetch(keys[:1], compared=False) == [False]
        made.write([key_of(f"first{found}", 0)])
        made.settle()
        assert made.fetch(keys[:2], compared=False) == [found] * 2, "its size is known now"
        made.write(keys)
        made.settle()
        made.forget()
        assert made.fetch(keys, compared=False) == [True] * 4
        assert len(made.adapter.inner_adapter.tier.disk) == 5 + found, "half the bytes: one piece each"
        made.close()


def damage(folder: Path, kept: str) -> None:
    """Flipped bits on the disk are objects that do not come; from a store they do."""
    keys = [key_of("bits", nth) for nth in range(16)]
    made = adapter_of(plugin_config(params(folder, kept)))
    assert store(made, keys).is_successful()
    made.close()
    dice = np.random.default_rng(0)
    for path in (folder / "disk").rglob("pages-0"):
        raw = bytearray(path.read_bytes())
        for place in dice.integers(len(keys) * 2 * PIECE, size=8):
            raw[place] ^= 1 << int(dice.integers(8))
        path.write_bytes(raw)
    again = adapter_of(plugin_config(params(folder, kept)))
    came = sum(load(again, keys))
    if kept:  # what the disk could not give is asked of the store from then on
        assert lookup(again, keys) == [True] * 16
        came = sum(load(again, keys))
    assert came == 16 if kept else 0 < came < 16, came
    assert store(again, keys).is_successful() and all(load(again, keys))
    again.close()


def threads(folder: Path, kept: str) -> None:
    """Stores, lookups, loads and unlocks of four threads over a disk that is too small."""
    made, wrong = adapter_of(plugin_config(params(folder, kept, size="200kB"))), list[BaseException]()
    done: dict[int, Any] = {}
    stop = threading.Event()

    def pops() -> None:
        while not stop.is_set():
            done.update(made.pop_completed_store_tasks())
            time.sleep(0.001)

    def serve(seed: int) -> None:
        dice = np.random.default_rng([seed, 7])
        try:
            for _ in range(60):
                keys = [key_of("t", int(one)) for one in dice.choice(60, 5, replace=False)]
                number = made.submit_store_task(keys, [object_of(key) for key in keys])
                task = made.submit_lookup_and_lock_task(keys, {0: layout_of()})
                answers: list[Any] = []
                until(lambda: answers.append(made.query_lookup_and_lock_result(task)) or answers[-1])  # type: ignore[func-returns-value]  # noqa: B023
                found = [keys[nth] for nth in answers[-1].get_indices_list()]
                objects = [object_of(key, filled=False) for key in found]
                into = made.submit_load_task(found, objects)
                until(lambda: answers.append(made.query_load_result(into)) or answers[-1] is not None)  # type: ignore[func-returns-value]  # noqa: B023
                for nth in answers[-1].get_indices_list():
                    whole = memory_of(objects[nth])
                    assert np.array_equal(whole, bytes_of(found[nth], whole.nbytes)), "WRONG BYTES"
                made.submit_unlock(found)
                until(lambda: number in done)  # noqa: B023
        except BaseException as error:
            wrong.append(error)

    popper = threading.Thread(target=pops)
    all_of_them = [threading.Thread(target=serve, args=(seed,)) for seed in range(4)]
    for one in [popper, *all_of_them]:
        one.start()
    for one in all_of_them:
        one.join()
    stop.set()
    popper.join()
    assert not wrong, wrong
    assert not made.tier._held and made.tier.num_waiting == 0
    made.close()


def killed(folder: Path, seed: int, kept: str) -> tuple[int, int]:
    """A process whose manager stores and fetches until it is killed; objects that the next one finds, each compared,
    and how many pieces were durable."""
    options = params(folder, kept, size="200kB")
    config = plugin_config(options)

    def life(tell: Tell) -> None:
        dice, driver = np.random.default_rng([seed, 1]), Driver(config)
        durable = DurableKeys(driver.adapter.tier.disk, tell)
        threading.Timer(float(dice.random()) * 0.5 + 0.02, os.kill, (os.getpid(), signal.SIGKILL)).start()
        while True:
            some = [key_of(f"k{int(dice.integers(8))}", nth) for nth in range(int(dice.integers(1, 8)))]
            driver.write(some)
            driver.settle()
            driver.forget()
            driver.fetch(some)
            if dice.random() < 0.2:
                durable.fence()

    told = until_killed(life)
    whole_after(told, Path(options["folder"]))
    pid = os.fork()  # the manager's threads in a process of their own: the next is forked too
    if pid == 0:
        again, found = Driver(config), 0
        if missing := lost(told, again.adapter.tier.disk):
            print(f"{len(missing)} durable pieces are lost", flush=True)
            os._exit(4)
        for text in range(8):
            some = [key_of(f"k{text}", nth) for nth in range(7)]
            found += sum(again.fetch(some))
        again.close()
        os._exit(10 + min(found, 100))
    status = os.waitpid(pid, 0)[1]
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) >= 10, f"the one after it failed: {status}"
    return os.WEXITSTATUS(status) - 10, len(durable_of(told))


def emptied(folder: Path, kind: str, server: RedisServer | None) -> Iterator[str]:
    """One store after the other with nothing in it, or none."""
    for nth in count():
        if server is not None and kind == "redis":
            server.suffer("empty")
        yield {"": "", "folder": str(folder / f"store-{nth}"), "redis": server.url if server else ""}[kind]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, required=True, help="folder of make lmcache-package")
    parser.add_argument("--redis", action="store_true", help="a real redis-server beside the folder, and for the kills")
    parser.add_argument("--kills", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    enter(args.package)
    with tempfile.TemporaryDirectory() as name, redis_there(args.redis) as server:
        folder = Path(name)
        if args.redis and server is None:
            raise SystemExit(NO_REDIS)
        kept = server.url if server else str(folder / "k")
        say_kills([killed(folder / "kills", seed, kept if seed % 2 else "") for seed in range(args.kills)], "objects")
        theirs = adapter_of(fs_config(folder / "theirs"))
        contract(theirs)
        theirs.close()
        manager(folder, fs_config(folder / "theirs2"))
        print("what is asked of an adapter holds for LMCache's own file adapter", flush=True)
        for nth, kind in enumerate(("", "folder", *(["redis"] if server else []))):
            stores = emptied(folder, kind, server)
            for disk in (True, False) if kind else (True,):
                place = folder / f"{nth}-{disk}"
                ours = adapter_of(plugin_config(params(place / "a", next(stores), disk=disk)))
                contract(ours, counts=disk)
                ours.close()
                manager(place / "b", plugin_config(params(place / "b", next(stores), disk=disk)))
            damage(folder / f"{nth}-bits", next(stores))
            threads(folder / f"{nth}-threads", next(stores))
        held(folder / "held")
        serde(folder / "serde")
        print("and for ours, over disk, store and both; restarts, damage, threads, bounds, fp8: every byte right")


if __name__ == "__main__":
    main()
