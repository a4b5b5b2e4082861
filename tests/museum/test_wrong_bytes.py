"""Wrong bytes: what is read back is exactly what was computed for that text; otherwise it is recomputed.

With the others a copy was late, failed or incomplete, and its page was used.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from quire import InputError, Kind, Request
from quire.core.store import StoreName
from quire.integrations.vllm.common.cache_groups import layer_group
from quire.integrations.vllm.common.worker_orders import Copy, Part
from quire.integrations.vllm.scheduler_side import SchedulerSide
from quire.integrations.vllm.worker.host_pages import HostPages, check_named, check_sizes, group_layers
from quire.tiers import ArenaTier, Mover, PageLayout
from quire.tiers.shared import SharedStore
from tests.integrations.test_vllm_options import full, group
from tests.integrations.toy_engine import ToyEngine, frozen
from tests.museum.stand_ins import Role, install, under_vllm, vllm_config
from tests.museum.toys import PROMPT, ask, begin, carry_out, load, placed, right, serve
from tests.scenarios.conftest import build, tokens
from tests.scenarios.test_tiers import PAGE, Machine, step
from tests.tiers.disk.rig import Kept
from tests.tiers.shared.machine import Machine as Sharer
from tests.tiers.shared.machine import text
from tests.tiers.stand_ins import FlakyTier

SLOT = 4096  # bytes of a small page on disk


def test_vllm_52470_blocks_of_a_preempted_request_were_stored_under_its_old_key() -> None:
    """A store still read the blocks when another request wrote them: its KV was kept under the wrong text."""
    engine = ToyEngine(0, hybrid=False, blocks=60)
    (mover,) = engine.movers
    mover.late = 1.1  # the copy runs some steps later, unless somebody waits for it
    old, new = ask("old"), ask("new", [40] * 21)
    carry_out(engine, begin(engine, old))
    assert mover.stores
    engine.side.order({}, {"old"}, lambda _: None)  # preempted
    mover.late = 0.0
    carry_out(engine, begin(engine, new))  # in the same blocks
    mover.flush([copy.job for copy in mover.stores])
    for worker in engine.workers:
        worker.received()
        engine.side.hear(worker.report())
    assert engine.pages_are_right() == 10
    again = ask("again")
    assert engine.side.look(again, 0) == 20 and load(engine, again, 20) == set() and right(engine, again, 20)


def test_vllm_49250_computing_after_a_rejected_load_gave_other_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A synchronous load was rejected, and the state of its step stayed ahead of the KV.

    Ours are asynchronous only: the request waits outside every step, and restarts at token 0.
    """
    module = under_vllm(monkeypatch)
    engine = ToyEngine(0, hybrid=False, blocks=60)
    config = vllm_config({"host": 1 << 20})
    connector = module.QuireConnector(config, Role.SCHEDULER, model_of(engine))
    assert config.kv_transfer_config.kv_load_failure_policy == "recompute"
    connector.scheduler_side = engine.side
    serve(engine, ask("first"))
    request = ask("again", [*PROMPT, *range(30, 45)])
    assert connector.get_num_new_matched_tokens(request, 0) == (20, True)  # asynchronously
    engine.texts.append(request)
    engine.movers[0].failing_loads = 1.1
    assert load(engine, request, 20) == {"again"}
    assert engine.side.order({"again": 16}, (), lambda _: frozen(request)).stores == []  # nothing rests on it
    assert connector.get_num_new_matched_tokens(request, 0) == (0, False)
    placed(engine, request, 40, 0)
    orders = engine.side.order({"again": 36}, (), lambda _: frozen(request))
    engine.fill(request, request.tables, 0, 36)
    assert carry_out(engine, orders) == set() and engine.pages_are_right() == 5 + 9
    engine.side.finish(request)
    engine.nothing_is_held()


def model_of(engine: ToyEngine) -> Any:
    """vLLM's KVCacheConfig of a toy."""
    tensors = [SimpleNamespace(size=engine.num_blocks * 32)]
    return SimpleNamespace(kv_cache_groups=engine.kv_groups, kv_cache_tensors=tensors, num_blocks=engine.num_blocks)


def flip_all(path: Path, place: int, every: int) -> None:
    """Flip one bit in each part of a file that is not empty."""
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), every):
        if any(data[at : at + every]):
            data[at + place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("place", [0, 9, 63])
def test_vllm_57912_a_file_whose_bits_have_flipped_was_loaded(tmp_path: Path, place: int) -> None:
    """Only short files were detected. Here every page on disk has a checksum."""
    first = Kept(tmp_path)
    first.compute(1)
    assert first.keeper.flush(30.0)
    first.close()
    (pages,) = tmp_path.glob("*/pages-0")
    flip_all(pages, place, SLOT)
    second = Kept(tmp_path)
    assert second.fetched(1) == 0  # and had it come, its bytes would be looked at
    second.close()


def test_vllm_57912_the_same_in_a_store_that_machines_share(tmp_path: Path) -> None:
    """No other machine loads such a page either."""
    with ExitStack() as closing:
        one, other = Sharer(str(tmp_path / "pages")), Sharer(str(tmp_path / "pages"))
        closing.callback(one.close)
        closing.callback(other.close)
        one.serve(text(1))
        one.settle()
        files = [path for path in (tmp_path / "pages").rglob("*") if path.is_file() and path.stat().st_size >= 96]
        assert len(files) == 6
        for path in files:
            flip_all(path, path.stat().st_size - 5, path.stat().st_size)
        assert other.serve(text(1), publish=False) == 0 and not other.wrong


def side_tensors(index: int) -> tuple[list[Any], dict[str, Any]]:
    """A layer of 16 bytes per block, with an index of 4 beside it, under `index` groups."""
    kv = {"layer": torch.zeros((5, 16), dtype=torch.uint8), "layer.index": torch.zeros((5, 4), dtype=torch.uint8)}
    both = SimpleNamespace(block_size=4, kv_cache_specs={"layer": full(4, 16), "layer.index": full(4, 4)})
    return [group(both, "layer", "layer.index")] if index else [group(full(4, 16), "layer")], kv


def test_sglang_38031_a_layers_side_tensor_was_lost_on_the_way_through_host_memory() -> None:
    """A sparse index beside the layer's KV came back empty. Here it travels with the layer."""
    groups, kv = side_tensors(index=1)
    check_named(groups, kv)
    check_sizes(groups, kv, 5)
    pages = HostPages(group_layers(groups, kv, 5), 2, checksums=True)
    for tensor in kv.values():
        tensor[3] = 7
    pages.store(Copy(1, "r", [Part(0, [3], [1])]))
    for tensor in kv.values():
        tensor[:] = 0
    pages.load(Copy(2, "r", [Part(0, [2], [1])]))
    assert [one.bad for one in pages.take_ended()] == [[], []]
    assert all(tensor.sum(1).tolist() == [0, 0, 7 * tensor.shape[1], 0, 0] for tensor in kv.values())


def test_sglang_38031_a_side_tensor_that_would_not_travel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In no group, in a pool of its own, or beyond the bytes of the layer's tensor."""
    groups, kv = side_tensors(index=0)
    module = under_vllm(monkeypatch)
    model = SimpleNamespace(kv_cache_groups=groups, kv_cache_tensors=[SimpleNamespace(size=100)], num_blocks=5)
    worker = module.QuireConnector(vllm_config({"host": 1 << 20}), Role.WORKER, model)
    with pytest.raises(InputError, match=r"layer 'layer\.index': it has KV of its own.*without QuireConnector"):
        worker.register_kv_caches(kv)
    worker.register_kv_caches({"layer": kv["layer"], "shares": kv["layer"]})  # another layer reads the same KV
    with pytest.raises(InputError, match="its tensor has 12 bytes for a block, and its spec says 16"):
        worker.register_kv_caches({"layer": torch.zeros((5, 12), dtype=torch.uint8)})
    for apart in ({"host_resident": True}, {"enable_kv_transfer": False}):
        with pytest.raises(InputError, match="outside the device's blocks"):
            layer_group(0, group(full(), "index", **apart))


def test_lmcache_4463_another_layout_under_a_new_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine packed its KV differently; all sizes matched, and the loaded KV was noise.

    An untested version is refused; with `any_version`, tensors whose blocks are not contiguous are.
    """
    groups, kv = side_tensors(index=0)
    model = SimpleNamespace(kv_cache_groups=groups, kv_cache_tensors=[SimpleNamespace(size=80)], num_blocks=5)
    module = under_vllm(monkeypatch, version="0.34.0")
    with pytest.raises(InputError, match="any_version"):
        module.QuireConnector(vllm_config({"host": 1 << 20}), Role.WORKER, model)
    tries = module.QuireConnector(vllm_config({"host": 1 << 20, "any_version": True}), Role.WORKER, model)
    raw = torch.zeros(80, dtype=torch.uint8)
    for strange in (raw.view(2, 5, 8), raw.view(16, 5).T, raw.view(5, 4, 4).transpose(1, 2), raw.view(4, 5, 4)):
        with pytest.raises(InputError, match=r"layer 'layer'.*needs whole blocks"):
            tries.register_kv_caches({"layer": strange})
    tries.register_kv_caches({"layer": kv["layer"]})


class Reclaimed:
    """A Mooncake client whose batch reads come too late: the memory holds another key's value by then."""

    kept: dict[str, bytes] = {}  # noqa: RUF012  # one store for all clients

    def setup(self, *_: Any) -> int:
        return 0

    def put_batch(self, keys: list[str], values: list[bytes]) -> int:
        self.kept.update(zip(keys, values, strict=True))
        return 0

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        return [int(key in self.kept) for key in keys]

    def get_batch(self, keys: list[str]) -> list[bytes]:
        others = list(self.kept.values())
        return [others[(list(self.kept).index(key) + 1) % len(others)] for key in keys]

    def close(self) -> None: ...


def test_mooncake_4239_a_batch_that_was_read_after_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client skipped the lease check and returned the bytes of another page."""
    install(monkeypatch, {"mooncake.store": {"MooncakeDistributedStore": Reclaimed}})
    monkeypatch.delitem(sys.modules, "quire.tiers.shared.stores.mooncake_store", raising=False)
    from quire.tiers.shared.stores.mooncake_store import MooncakeStore

    monkeypatch.setattr(Reclaimed, "kept", {})
    store: SharedStore = MooncakeStore("mooncake://somewhere:50051")
    monkeypatch.delitem(sys.modules, "quire.tiers.shared.stores.mooncake_store")
    with ExitStack() as closing:
        one, other = Sharer(store), Sharer(store)
        closing.callback(one.close)
        closing.callback(other.close)
        one.serve(text(1))
        one.settle()
        assert len(Reclaimed.kept) == 6  # pages of one size, each with a sound header of its own
        assert other.serve(text(1), publish=False) == 0 and not other.wrong


@pytest.mark.parametrize("nth", range(4))
def test_dynamo_15079_a_transfer_that_failed_counted_as_loaded(store: StoreName, nth: int) -> None:
    """The answer used another request's KV, with status 200. Here any move may fail, and costs a recompute."""
    cache = build(store, 5, 8, block_size=8, groups=(PAGE,))
    machine, prompt = Machine(cache), tokens(range(32))
    cache.release(step(cache, machine, Request("first", prompt)))
    cache.release(step(cache, machine, Request("other", tokens(range(100, 140)))))
    host = FlakyTier("host", [8], [PAGE.page_bytes])
    host.arena.view(0)[:] = machine.tiers[1].view(0)
    mover = Mover([machine.tiers[0], host], [PageLayout(PAGE.page_bytes, PAGE.planes)], 8)
    batch = cache.add_sequence_batch([Request("again", tokens(prompt, 7))])
    (sequence,) = batch.sequences
    ups = [move.src[1] for move in batch.plan if move.kind in (Kind.ONBOARD, Kind.EXCHANGE)]
    assert sequence.start == 32 and len(ups) == 4
    host.lost = {(0, ups[nth])}
    failed = mover.run(batch.plan)
    assert failed
    cache.finish(batch.plan, failed)
    assert sequence.start == 8 * nth and machine.read(sequence, 8 * nth) == prompt[: 8 * nth].tolist()
    assert cache.probe([Request("look", prompt)])[0].start <= 8 * nth  # nor is it offered to others
    for one in (mover, machine.mover):
        one.close()


def test_lmcache_5151_beyond_114_chunks_another_text_came_back(store: StoreName) -> None:
    """131,072 tokens in 8,192 blocks, from the host to the device, byte for byte."""
    blocks, size = (8192, 16) if store == "compiled" else (160, 16)  # the reference store is slow
    cache = build(store, blocks + 1, blocks, block_size=size, groups=(PAGE,), max_length=1 << 18, max_chunk=1 << 18)
    pages = np.random.default_rng(1).integers(0, 256, (blocks, PAGE.page_bytes), np.uint8)
    tiers = [ArenaTier("device", [blocks + 1], [PAGE.page_bytes]), ArenaTier("host", [blocks], [PAGE.page_bytes])]
    prompt = np.arange(blocks * size, dtype=np.int32)
    with cache.writer(Request("first", prompt), tier=1) as writer:  # type: ignore[union-attr]
        tiers[1].view(0)[writer.slots()] = pages[writer.blocks()]
        assert writer.written(len(prompt)) == blocks
    mover = Mover(tiers, [PageLayout(PAGE.page_bytes, PAGE.planes)], size)
    batch = cache.add_sequence_batch([Request("again", tokens(prompt, 7))])
    (sequence,) = batch.sequences
    cache.finish(batch.plan, mover.run(batch.plan))
    assert sequence.start == len(prompt)
    assert np.array_equal(tiers[0].view(0)[sequence.slots()[:blocks]], pages)
    mover.close()


class LongEngine(ToyEngine):
    """For prompts of many blocks; without events, whose hashes are slow to compute in the toy."""

    longest = 1 << 16

    def open_side(self, model: Any, slots: int) -> SchedulerSide:
        side = super().open_side(model, slots)
        side.events = None
        return side


def test_lmcache_5151_the_same_through_the_connector() -> None:
    """4,096 blocks: stored in parts by many steps, loaded by one, from and into scattered blocks."""
    blocks, dice = 4096, np.random.default_rng(5)
    engine = LongEngine(0, hybrid=False, host=blocks + 1, blocks=blocks + 2)
    request, again = (ask(name, list(range(4 * blocks + 1))) for name in ("long", "again"))
    pages = [torch.from_numpy(dice.integers(0, 256, (blocks + 1, 16), np.uint8)) for _ in engine.kv[0][0]]
    source, target = ((1 + dice.permutation(blocks + 1)).tolist() for _ in range(2))
    for layer, page in zip(engine.kv[0][0], pages, strict=True):
        layer[source] = page
    assert engine.side.look(request, 0) == 0
    engine.side.place(request, [source], 0)
    orders, steps = engine.side.order({"long": 4 * blocks + 1}, (), lambda _: [source]), 0
    while carry_out(engine, orders) == set() and engine.side.is_pending and steps < 200:
        orders, steps = engine.side.order({}, (), lambda _: None), steps + 1
        for worker in engine.workers:
            worker.flush(orders)
    engine.side.finish(request)
    assert 60 < steps < 200 and engine.side.look(again, 0) == 4 * blocks
    for layer in engine.kv[0][0]:
        layer[:] = 0
    engine.side.place(again, [target], 4 * blocks)
    assert carry_out(engine, engine.side.order({}, (), lambda _: None)) == set()
    for layer, page in zip(engine.kv[0][0], pages, strict=True):
        assert torch.equal(layer[target[:-1]], page[:-1])
    engine.side.finish(again)
    engine.nothing_is_held()
