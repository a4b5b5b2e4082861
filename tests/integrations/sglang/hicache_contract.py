"""What SGLang's own tests of storage backends ask, in our words, of its file backend and of ours; and calls of threads.

The tests lie in SGLang's package under `srt/mem_cache/storage`. What each asks of any backend is here:

    simm, mooncake_store: test_single_operation     one page: absent, set, there, got; `one_page`
    simm, mooncake_store: test_batch_operation      a batch, then a longer one: a prefix is there; `batches`
    aibrix_kvcache: test_with_page_size             tensors, all and a part of them; `batches`
    eic: test_set, test_get, test_exists            `one_page`, `batches`
    tensorcast_store: test_exists_*                 the leading pages of what is asked, 0 for an empty call; `batches`
    tensorcast_store: test_batch_*_v1_empty_calls_* calls with no keys; `batches`
    tensorcast_store: test_failure_ordinary_item_*  a miss is no failure: the others come; `misses`
    tensorcast_store: test_*_concurrent_*           several threads at once; `threads`

The others ask what only their backend has: sessions, registered memory, fragments, masters, shared memory (hf3fs).
HiCacheFile has no v1 calls in place: there the v2 calls stand for them, as its controller makes them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.integrations.sglang.sglang_package import PAGE, PAGES, config_of, mha_pool, module

Page = Callable[[Any, str], Any]


def keys_of(name: str, count: int) -> list[str]:
    return [f"{name}{nth}".encode().hex().ljust(64, "0") for nth in range(count)]


def page_of(pool: Any, key: str) -> Any:
    """What lies under a key, in the pool's form."""
    sample = pool.get_dummy_flat_data_page()
    size = sample.numel() * sample.element_size()
    raw = np.random.default_rng([*key.encode()]).integers(0, 256, size, np.uint8)
    return torch.from_numpy(raw).view(sample.dtype)


def fill(pool: Any, keys: list[str], at: int = 0) -> Any:
    """Pages into the pool; where they are."""
    size = getattr(pool, "page_size", 1)
    for nth, key in enumerate(keys):
        pool.set_from_flat_data_page((at + nth) * size, page_of(pool, key))
    return torch.arange(at * size, (at + len(keys)) * size)


def check(pool: Any, keys: list[str], at: int, good: list[bool]) -> int:
    """Every page that came is that of its key; how many came."""
    size = getattr(pool, "page_size", 1)
    for nth, key in enumerate(keys):
        if good[nth]:
            got = pool.get_data_page((at + nth) * size, flat=True).contiguous().view(torch.uint8)
            assert torch.equal(got, page_of(pool, key).view(torch.uint8)), f"WRONG BYTES under {key}"
    return sum(good)


def file_backend(folder: Path, pool: Any) -> Any:
    """SGLang's own."""
    made = module("hicache_storage").HiCacheFile(config_of(), str(folder))
    made.register_mem_pool_host(pool)
    made.register_mem_host_pool_v2(pool, module("hicache_storage").PoolName.KV)
    return made


class Moves:
    """One backend's pages between its pool and where they are kept, by the calls of SGLang's controller."""

    def __init__(self, made: Any, pool: Any) -> None:
        self.made, self.pool, self.base = made, pool, module("hicache_storage")

    def _transfer(self, keys: list[str], places: Any) -> Any:
        return self.base.PoolTransfer(self.base.PoolName.KV, host_indices=places, keys=keys)

    def set(self, keys: list[str], at: int = 0) -> list[bool]:
        (done,) = self.made.batch_set_v2([self._transfer(keys, fill(self.pool, keys, at))]).values()
        return list(done)

    def get(self, keys: list[str], at: int = 8) -> list[bool]:
        places = torch.arange(at * PAGE, (at + len(keys)) * PAGE)
        (done,) = self.made.batch_get_v2([self._transfer(keys, places)]).values()
        check(self.pool, keys, at, list(done))
        return list(done)


def one_page(made: Any, pool: Any) -> None:
    (key,) = keys_of("one", 1)
    empty = pool.get_dummy_flat_data_page
    assert not made.exists(key) and made.get(key, empty()) is None
    assert made.set(key, page_of(pool, key)) and made.exists(key)
    assert made.set(key, page_of(pool, key)), "again: it is there"
    assert torch.equal(made.get(key, empty()).view(torch.uint8), page_of(pool, key).view(torch.uint8))


def batches(made: Any, pool: Any) -> None:
    keys = keys_of("batch", 8)
    pages = [page_of(pool, key) for key in keys]
    assert made.batch_exists(keys) == 0 and made.batch_exists([]) == 0
    assert made.batch_set(keys[:4], pages[:4]) and made.batch_exists(keys[:4]) == 4
    assert made.batch_exists(keys) == 4, "a longer text: its prefix"
    assert made.batch_exists(keys[2:]) == 2 and made.batch_exists(keys[4:]) == 0
    assert made.batch_set(keys, pages) and made.batch_exists(keys) == 8, "half of it is there already"
    got = made.batch_get(keys[::-1], [pool.get_dummy_flat_data_page() for _ in keys])
    for one, page in zip(got, pages[::-1], strict=True):
        assert torch.equal(one.view(torch.uint8), page.view(torch.uint8)), "WRONG BYTES"
    moves = Moves(made, pool)
    assert moves.set([]) == [] and moves.get([]) == []
    found = made.batch_exists_v2([*keys, *keys_of("no", 1)], [])
    assert (found.kv_hit_pages, found.restorable_prefix_pages[-1]) == (8, 8)


def misses(made: Any, pool: Any) -> None:
    """What is not there fails by itself."""
    keys, moves = keys_of("miss", 6), Moves(made, pool)
    there = [0, 1, 3, 5]
    assert moves.set([keys[nth] for nth in there]) == [True] * 4
    assert moves.get(keys) == [nth in there for nth in range(6)] and made.batch_exists(keys) == 2
    got = made.batch_get(keys[1:4], [pool.get_dummy_flat_data_page() for _ in range(3)])
    assert [one is not None for one in got] == [True, False, True]
    base, places = module("hicache_storage"), torch.arange(PAGE)
    short = base.PoolTransfer(base.PoolName.KV, host_indices=places, keys=keys)
    assert list(made.batch_get_v2([short]).values()) == [[False] * 6], "places that do not fit"


def contract(made: Any, pool: Any) -> None:
    """Of any backend over an empty folder or store."""
    for promise in (one_page, batches, misses):
        promise(made, pool)
    made.clear()
    assert made.batch_exists(keys_of("batch", 8)) == 0


def threads(made: Any, ours: Callable[[], Any] = lambda: mha_pool("page_first")) -> int:
    """Four threads set, get and ask for the same pages, each over a part of the pool of its own, in a place that is too
    small for all: what comes is right, and what is there when all is over is whole. How many pages came."""
    wrong, came, text = list[BaseException](), [0] * 4, keys_of("thread", 40)

    def serve(seed: int) -> None:
        dice, moves = np.random.default_rng([seed, 7]), Moves(made, made.mem_pool_host)
        at = seed * PAGES // 4
        try:
            for _ in range(80):
                some = [text[nth] for nth in dice.choice(len(text), 4, replace=False)]
                moves.set(some, at)
                came[seed] += sum(moves.get(some[::-1], at))
                assert 0 <= made.batch_exists(some) <= 4
        except BaseException as error:
            wrong.append(error)

    all_of_them = [threading.Thread(target=serve, args=(seed,)) for seed in range(4)]
    for one in all_of_them:
        one.start()
    for one in all_of_them:
        one.join()
    assert not wrong, wrong
    moves = Moves(made, made.mem_pool_host)
    there = [key for key in text if made.exists(key)]
    assert there and all(moves.get([key]) == [True] for key in there), "found, and it does not come"
    return sum(came)
