"""What the vLLM connector accepts: options, versions, models and memory; everything else is refused by name."""

from __future__ import annotations

import mmap
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import quire.integrations.vllm as package
from quire import InputError, MissingExtra
from quire.integrations.vllm.common.cache_groups import cache_config, check_engine, num_slots, redo_blocks
from quire.integrations.vllm.common.connector_options import ConnectorOptions, check_version, read_options
from quire.integrations.vllm.common.worker_orders import BadPage, Copy, Part, StepOrders, WorkerReport
from quire.integrations.vllm.worker.host_pages import HostPages, group_layers, layer_blocks
from tests.integrations.toy_parts import FullAttentionSpec, SlidingWindowSpec

PLACE = mmap.PAGESIZE  # bytes: what a place in host memory takes at least


def group(spec: Any, *names: str, **more: Any) -> Any:
    return SimpleNamespace(kv_cache_spec=spec, layer_names=names or ("layer",), **more)


def full(size: int = 16, page: int = 100) -> Any:
    return FullAttentionSpec(block_size=size, page_size_bytes=page)


def model(*groups: Any, size: int = PLACE) -> Any:
    return SimpleNamespace(kv_cache_groups=groups, kv_cache_tensors=[SimpleNamespace(size=7 * size)], num_blocks=7)


def config(*groups: Any, host: int = 10**6, world_size: int = 1) -> Any:
    return cache_config(model(*groups), ConnectorOptions(host), world_size=world_size, max_length=100, events=False)


def test_options_are_read_by_name() -> None:
    assert read_options({"host": "40GB"}) == ConnectorOptions(40 * 10**9)
    given = {"host": 4096, "eviction": "adaptive", "checksums": False, "min_load_tokens": 64}
    assert read_options(given) == ConnectorOptions(4096, "adaptive", checksums=False, min_load_tokens=64)
    below = {"host": 4096, "disk": "/data", "disk_bytes": "2GB", "shared": "redis://store", "wait": 0.5, "record": "r"}
    told = ConnectorOptions(4096, disk="/data", disk_bytes=2 * 10**9, shared="redis://store", wait=0.5, record="r")
    assert read_options(below) == told and told.outer and not ConnectorOptions(4096).outer
    assert "redis" not in repr(told)  # a password may be in it


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({}, "without 'host'"),
        ({"host": "40GB", "disk": "/data"}, "disk '/data'.*its size is not given"),
        ({"host": "40GB", "disk_bytes": "1GB"}, "disk None.*a folder and a size"),
        ({"host": "40GB", "disk": "/data", "disk_bytes": "much"}, "a disk of 'much'"),
        ({"host": "40GB", "disk": 4, "disk_bytes": "1GB"}, "disk 4.*not text"),
        ({"host": "40GB", "disk": "x" * 300, "disk_bytes": "50%"}, "a disk of '50%': .*cannot be asked .File name too"),
        ({"host": "40GB", "disk": "/", "disk_bytes": "0.00000000000001%"}, "disk '/': .*less than a byte"),
        ({"host": "40GB", "shared": ""}, "shared ''.*not text"),
        ({"host": "40GB", "record": True}, "record True.*not text"),
        ({"host": "40GB", "wait": "long"}, "a wait of 'long'"),
        ({"host": "40GB", "prefetch": True}, "option 'prefetch'.*none of that name"),
        ({"host": "40GB", "hots": 3}, "option 'hots'.*none of that name"),
        ({"host": "plenty"}, "host memory of 'plenty'"),
        ({"host": 0}, "host memory of 0 bytes"),
        ({"host": 4096, "eviction": "fifo"}, "eviction 'fifo'"),
        ({"host": 4096, "checksums": "yes"}, "checksums 'yes'"),
        ({"host": 4096, "keep_over_sleep": 1}, "keep_over_sleep 1"),
        ({"host": 4096, "min_load_tokens": 0}, "min_load_tokens 0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(extra: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_options(extra)


def test_a_vllm_that_was_not_tested_is_refused() -> None:
    check_version("0.32.0", False)
    check_version("0.32.1+cpu", False)
    check_version("0.33.0", False)
    check_version("0.34.0", True)
    for other in ("0.31.9", "0.34.0", "0.3", "1.0"):
        with pytest.raises(InputError, match=r"any_version=true"):
            check_version(other, False)


def test_groups_become_layer_groups() -> None:
    window = SlidingWindowSpec(block_size=16, page_size_bytes=50, sliding_window=96, extra_retained_tokens=4)
    made = config(group(full(), "a", "b"), group(window, "c"))
    assert [(layer.page_bytes, layer.window) for layer in made.groups] == [(200, None), (200, 100)]  # one size for both
    assert made.num_pools == 1
    assert (
        made.tiers[0].slots == 0
        and made.tiers[1].slots == 10**6 // PLACE
        and made.block_size == 16
        and not made.partial_reuse
    )
    both = SimpleNamespace(block_size=16, kv_cache_specs={"a": full(page=30), "b": full(page=12)})
    assert config(group(both, "a", "b")).groups[0].page_bytes == 42


def test_memory_is_shared_by_ranks_and_groups() -> None:
    groups = [group(full(page=100), "a"), group(full(page=20), "b")]
    host = 20 * PLACE
    assert num_slots(model(*groups), host, 1) == 20 and num_slots(model(*groups), host, 2) == 10
    assert num_slots(model(groups[0], size=PLACE + 4), host, 1) == 10  # aligned
    config(*groups, host=4 * PLACE, world_size=2)
    with pytest.raises(InputError, match=rf"one block takes {4 * PLACE} bytes.*give 'host' more"):
        config(*groups, host=4 * PLACE - 1, world_size=2)


class NovelSpec(SimpleNamespace):
    """Not known by its name."""


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([group(full()), group(NovelSpec(block_size=16, page_size_bytes=1))], r"group 1 \(NovelSpec\): Quire does not"),
        ([group(full(16)), group(full(32))], r"blocks of \[16, 32\] tokens"),
        (
            [group(SimpleNamespace(block_size=16, kv_cache_specs={
                "a": full(), "b": SlidingWindowSpec(block_size=16, page_size_bytes=1, sliding_window=9)}), "a", "b")],
            "do not read alike",
        ),
    ],
)  # fmt: skip
def test_models_that_cannot_be_kept_are_refused_by_name(groups: list[Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        config(*groups)


def test_engines_that_were_not_built_for_are_refused_by_name() -> None:
    check_engine(SimpleNamespace(tensor_parallel_size=4, pipeline_parallel_size=1), None, "kv_both")
    check_engine(SimpleNamespace(), SimpleNamespace(method="ngram"), "kv_both")
    with pytest.raises(InputError, match="pipeline_parallel_size 2"):
        check_engine(SimpleNamespace(pipeline_parallel_size=2), None, "kv_both")
    with pytest.raises(InputError, match=r"speculative decoding by medusa.*known are draft_model, eagle, eagle3, mtp"):
        check_engine(SimpleNamespace(), SimpleNamespace(method="medusa"), "kv_both")
    with pytest.raises(InputError, match="kv_role kv_producer"):
        check_engine(SimpleNamespace(), None, "kv_producer")


def drafts(method: str, drop: bool = False) -> Any:
    return SimpleNamespace(method=method, use_eagle_block_drop=lambda: drop)


def test_drafters_of_layers_of_their_own_are_served_and_those_that_look_ahead_leave_a_block_out() -> None:
    for method in ("ngram", "draft_model", "eagle", "eagle3", "mtp"):
        check_engine(SimpleNamespace(), drafts(method), "kv_both")
    config(group(full(), "a"), group(full(), "draft", is_eagle_group=True))
    assert [redo_blocks(one) for one in (None, drafts("draft_model"), drafts("mtp", drop=True))] == [0, 0, 1]


def test_without_vllm_the_connector_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.delitem(sys.modules, "quire.integrations.vllm.connector", raising=False)
    with pytest.raises(MissingExtra, match="needs vLLM"):
        _ = package.QuireConnector
    with pytest.raises(AttributeError, match="no attribute 'Connector'"):
        _ = package.Connector


def pages(checksums: bool = True) -> tuple[HostPages, list[torch.Tensor]]:
    layers = [torch.randint(0, 255, (6, 8), dtype=torch.uint8) for _ in range(2)]
    return HostPages([layers], 4, checksums=checksums), layers


def test_pages_come_back_as_they_were_stored() -> None:
    host, layers = pages()
    before = [layer.clone() for layer in layers]
    host.store(Copy(1, "r", [Part(0, [2, 5], [3, 0])]))
    host.load(Copy(2, "r", [Part(0, [0, 1], [0, 3])]))
    for layer, old in zip(layers, before, strict=True):
        assert torch.equal(layer[:2], old[[5, 2]]) and torch.equal(layer[2:], old[2:])
    ended = host.take_ended()
    assert [(one.copy.job, one.is_load, one.num_bytes, one.bad) for one in ended] == [
        (1, False, 32, []),
        (2, True, 32, []),
    ]
    assert host.take_ended() == []


def test_a_slot_holds_a_page_of_any_group_whatever_was_in_it() -> None:
    layers = [torch.randint(0, 255, (6, 8), dtype=torch.uint8) for _ in range(3)]
    host = HostPages([layers[:1], layers[1:]], 2, checksums=True)  # the first group has the smaller pages
    before = [layer.clone() for layer in layers]
    host.store(Copy(1, "r", [Part(1, [4], [0])]))
    host.store(Copy(2, "r", [Part(0, [5], [0]), Part(1, [3], [1])]))
    host.load(Copy(3, "r", [Part(0, [0], [0]), Part(1, [1], [1])]))
    assert torch.equal(layers[0][0], before[0][5])
    assert torch.equal(layers[1][1], before[1][3]) and torch.equal(layers[2][1], before[2][3])
    assert [one.bad for one in host.take_ended()] == [[], [], []]


def test_of_a_load_with_a_bad_page_nothing_is_copied() -> None:
    host, layers = pages()
    host.store(Copy(1, "r", [Part(0, [2, 5], [3, 0])]))
    host.memory[0, 15] ^= 1
    before = [layer.clone() for layer in layers]
    host.load(Copy(2, "r", [Part(0, [0, 1], [3, 0])]))
    assert all(torch.equal(layer, old) for layer, old in zip(layers, before, strict=True))
    assert host.take_ended()[1].bad == [BadPage(0, 0)]
    host.load(Copy(3, "r", [Part(0, [0], [2])]))  # never stored
    assert host.take_ended()[0].bad == [BadPage(0, 2)]


def test_without_checksums_nobody_looks() -> None:
    host, _ = pages(checksums=False)
    host.store(Copy(1, "r", [Part(0, [2], [3])]))
    host.memory[3, 0] ^= 1
    host.load(Copy(2, "r", [Part(0, [1], [3])]))
    assert [one.bad for one in host.take_ended()] == [[], []]


def test_layers_are_seen_as_bytes_of_blocks_or_refused() -> None:
    kv = torch.arange(48, dtype=torch.float32).view(6, 2, 4)
    seen = layer_blocks("layer", kv, 3)
    assert seen.shape == (3, 64) and seen.data_ptr() == kv.data_ptr()
    with pytest.raises(InputError, match="one after the other"):
        layer_blocks("layer", kv.transpose(0, 1), 2)
    with pytest.raises(InputError, match="for 4 blocks"):
        layer_blocks("layer", kv, 4)
    with pytest.raises(InputError, match="on meta"):
        layer_blocks("layer", torch.empty((6, 2), device="meta"), 3)
    layers = group_layers([group(full(), "a")], {"a": kv, "shared": kv}, 6)
    assert HostPages(layers, 5, checksums=True).memory.shape == (5, 32)


def test_orders_and_reports_travel() -> None:
    orders = StepOrders([Copy(1, "r", [Part(0, [1], [2])])], [], ["other"])
    assert pickle.loads(pickle.dumps(orders)) == orders
    one = WorkerReport({1: 1, 2: 1}, {1: [BadPage(0, 3)]})
    both = one.aggregate(WorkerReport({1: 1}, {1: [BadPage(0, 4)], 2: [BadPage(1, 0)]}))
    assert both == WorkerReport({1: 2, 2: 1}, {1: [BadPage(0, 3), BadPage(0, 4)], 2: [BadPage(1, 0)]})
    assert one == WorkerReport({1: 1, 2: 1}, {1: [BadPage(0, 3)]})
