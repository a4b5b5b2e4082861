"""Memory: no more than configured, however long it runs; a full host tier does not stop the engine.

The others took nearly twice as much, grew until the kernel killed them, or failed an assertion once the host was full.
"""

from __future__ import annotations

import gc
import mmap
import os
import random
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire import InputError
from quire.integrations.vllm.common.cache_groups import num_slots, slot_bytes
from quire.integrations.vllm.outer.page_memory import MemoryShape, PageMemory
from quire.integrations.vllm.worker.host_pages import HostPages
from quire.tiers.host_limit import check_host_memory, memory_limit
from tests.integrations.toy_engine import ToyEngine
from tests.integrations.toy_parts import requests
from tests.museum.stand_ins import Region, Role, under_vllm, vllm_config
from tests.museum.test_wrong_bytes import model_of, side_tensors

HOST = 64 << 20


def test_vllm_54914_an_engine_with_a_full_host_ended_itself() -> None:
    """After hours, with every page in use by some copy. Here the store is cut short and all requests finish."""
    engine = ToyEngine(2, ranks=2, ahead=True, late=0.7, host=2, blocks=24)
    engine.run(requests(random.Random(2), 20), abort=0.05)
    assert engine.seen["done"] + engine.seen["aborts"] >= 20 and engine.seen["preemptions"]
    counted = engine.side.counts.take()["counters"]
    assert counted["refused_stores"] > 0 and counted["evicted_pages"] > 0 and counted["stored_pages"] > 0
    engine.pages_are_right()


def group_files(root: Path, own: str, files: dict[str, str], total: int = 1 << 34) -> Path:
    """A machine with so much memory, whose process is in control group `own`."""
    told = {"proc/meminfo": f"MemFree: 1 kB\nMemTotal: {total >> 10} kB\n", "proc/self/cgroup": own} | files
    for name, text in told.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/\n", {}, 1 << 34),
        ("0::/\n", {"memory.max": "max\n"}, 1 << 34),
        ("0::/\n", {"memory.max": f"{1 << 30}\n"}, 1 << 30),
        ("0::/pod/box\n", {"pod/box/memory.max": "max\n", "pod/memory.max": f"{1 << 31}\n"}, 1 << 31),
        ("0::/gone\n", {"memory.max": f"{1 << 32}\n"}, 1 << 32),
        ("5:cpu:/a\n4:memory:/a/b\n0::/\n", {"memory/a/memory.limit_in_bytes": f"{1 << 29}\n"}, 1 << 29),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 1 << 34),
        ("garbage", {"memory.max": "1\n"}, 1 << 34),
    ],
)
def test_vllm_53042_the_kernel_ended_what_asked_for_more_than_its_container_may_have(
    tmp_path: Path, own: str, files: dict[str, str], limit: int
) -> None:
    """Hours later, when the memory was first written. Here it is refused at start."""
    root = group_files(tmp_path, own, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert memory_limit(root) == limit
    check_host_memory(limit, "host memory", root)
    with pytest.raises(InputError, match=r"^host memory of .*: it cannot be had here .*; give less$"):
        check_host_memory(limit + 1, "host memory", root)


def test_vllm_53042_the_connector_asks_before_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than this machine has is refused in both roles. Where no limit can be read, nothing is refused."""
    module = under_vllm(monkeypatch)
    for role in Role:
        with pytest.raises(InputError, match=r"host memory of 1000\.0 TB: it cannot be had here"):
            module.QuireConnector(vllm_config({"host": "1000TB"}), role, model_of(ToyEngine(0, hybrid=False)))
    assert memory_limit(Path("/nowhere")) is None
    check_host_memory(1 << 62, "host memory", Path("/nowhere"))


@pytest.mark.parametrize("block", [4096, 4097, 70_000])
@pytest.mark.parametrize("ranks", [1, 2])
def test_vllm_53042_twice_the_host_memory_that_was_asked_for(tmp_path: Path, block: int, ranks: int) -> None:
    """Pages and their checksums take no more than `host`, in one process and in a shared file."""
    model: Any = SimpleNamespace(kv_cache_tensors=[SimpleNamespace(size=7 * block)], num_blocks=7)
    slots, shape = num_slots(model, HOST, ranks), MemoryShape(0, ranks, block, 1, "toy")
    assert slots > HOST // (ranks * block + mmap.PAGESIZE) - 1
    layer = SimpleNamespace(shape=(7, block))
    own = [HostPages([[layer]], slots, checksums=True) for _ in range(ranks)]
    assert sum(one.memory.nbytes for one in own) <= HOST
    few = MemoryShape(min(slots, 40), ranks, block, shape.groups, shape.form)  # of so many a disk is not full
    PageMemory.make("pages", few, tmp_path)
    taken = os.stat(tmp_path / "pages").st_blocks * 512
    assert taken <= few.slots * slot_bytes(model, ranks) + 3 * 4096


def test_vllm_53042_a_region_whose_places_are_larger_than_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM rounds up to the machine's page size, 64 KiB on some. So do we; a region that is still larger is refused."""
    model: Any = SimpleNamespace(kv_cache_tensors=[SimpleNamespace(size=5 * 70_000)], num_blocks=5)
    monkeypatch.setattr(mmap, "PAGESIZE", 65536)
    assert slot_bytes(model, 1) == 131_072 and num_slots(model, HOST, 1) == HOST // 131_072
    monkeypatch.setattr(mmap, "PAGESIZE", 4096)
    module = under_vllm(monkeypatch)
    monkeypatch.setattr(module.current_platform, "is_cpu", lambda: False)
    groups, kv = side_tensors(index=1)
    model.kv_cache_groups = groups
    worker = module.QuireConnector(vllm_config({"host": HOST}), Role.WORKER, model)
    monkeypatch.setattr(Region, "chunk", 131_072)
    with pytest.raises(InputError, match="vLLM's region takes 131072 bytes for a block, and 'host' was divided by"):
        worker.register_kv_caches(kv)
    monkeypatch.setattr(Region, "chunk", slot_bytes(model, 1))
    worker.register_kv_caches(kv)
    assert worker.worker_side.mover.mover._worker.spec.asked <= HOST


def entries(things: Iterable[object]) -> int:
    """Entries of all containers reachable from our objects: a leak shows up here."""
    seen: set[int] = set()
    left, count = list(things), 0
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type):
            continue
        seen.add(id(one))
        if isinstance(one, dict | list | set):
            count += len(one)
        if isinstance(one, dict | list | set | tuple) or type(one).__module__.startswith("quire"):
            left += gc.get_referents(one)
    return count


def test_sglang_28902_host_memory_grew_until_the_kernel_ended_it() -> None:
    """What is kept of finished requests does not grow, however they ended. Pages are allocated once."""
    engine = ToyEngine(5, host=6, blocks=40, failing=0.2, late=0.3)
    sizes: list[int] = []
    for round_ in range(4):
        some = requests(random.Random(5), 10)
        for nth, one in enumerate(some):
            one.request_id = f"{round_}.{nth}"
            one.all_token_ids = [token + 100 * round_ for token in one.all_token_ids]  # texts that nobody had
        engine.run(some, abort=0.1)
        engine.side.counts.take()
        engine.texts.clear()
        sizes.append(entries([engine.side, *engine.workers]))
    assert sizes[3] < sizes[1] + 10  # there were 20 more requests: not even one entry is left of each
