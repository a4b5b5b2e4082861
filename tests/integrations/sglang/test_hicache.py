"""SGLang's storage without SGLang: the table of its calls, what an operator may write, pages in place and copied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quire import InputError, StateError
from quire.core.records.errors import MissingExtra
from quire.integrations.sglang.hicache_options import (
    check_ranks,
    check_sglang_version,
    model_facts,
    pool_print,
    read_hicache_options,
)
from quire.integrations.sglang.pool_place import PoolPlace
from quire.tiers.disk.keyed import KeyDisk
from quire.tiers.shared import SharedConfig, open_store
from quire.tiers.shared.keyed import KeyStore
from tests.integrations.operating.vllm_base import signatures
from tests.waits import until

ROOT = Path(__file__).resolve().parents[3]
PRINT, SIZE = bytes(range(32)), 1000
GIVEN = {"folder": "/tmp/x", "bytes": "1GB"}
CALLS = {  # of HiCacheStorage in 0.5.23, all that its controllers call
    "register_mem_pool_host": "mem_pool_host",
    "register_mem_host_pool_v2": "host_pool host_pool_name",
    "on_host_pools_registered": "",
    "batch_exists_v2": "keys pool_transfers= extra_info=",
    "batch_get_v2": "transfers extra_info=",
    "batch_set_v2": "transfers extra_info=",
    "batch_get_v1": "keys host_indices extra_info=",
    "batch_set_v1": "keys host_indices extra_info=",
    "get": "key target_location= target_sizes=",
    "batch_get": "keys target_locations= target_sizes=",
    "set": "key value= target_location= target_sizes=",
    "batch_set": "keys values= target_locations= target_sizes=",
    "exists": "key",
    "batch_exists": "keys extra_info=",
    "clear": "",
}


def test_every_call_takes_what_sglang_gives_it() -> None:
    source = (ROOT / "quire/integrations/sglang/hicache_storage.py").read_text()
    ours = signatures(source, ("QuireHiCacheStorage",))
    assert {name: ours.get(name) for name in CALLS} == CALLS
    assert ours["__init__"] == "storage_config kwargs=" and ours["close"] == ""


def test_without_sglang_it_says_where_to_run() -> None:
    with pytest.raises(MissingExtra, match=r"needs SGLang.*quire-kv\[disk\]"):
        __import__("quire.integrations.sglang.hicache_storage")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "under 'quire'"),
        ({}, "pages have no place"),
        ({"folder": "/x"}, "a folder and a size"),
        ({"bytes": "1GB", "shared": "/s"}, "a folder and a size"),
        (GIVEN | {"path": 1}, "option 'path'.*use \\['folder'"),
        (GIVEN | {"bytes": "many"}, "many"),
        (GIVEN | {"eviction": "best"}, "not a known order"),
        (GIVEN | {"shared": 1}, "shared of QuireHiCacheStorage"),
        (GIVEN | {"shared_bytes": "1GB"}, "only a shared folder"),
        (GIVEN | {"wait": 0}, "wait 0"),
    ],
)
def test_what_an_operator_writes_is_checked_by_name(given: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_hicache_options({"prefetch_threshold": 1, "quire": given})
    assert "hidden" not in repr(read_hicache_options({"quire": {"shared": "redis://u:hidden@h:1"}}))


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_sglang_version("0.5.23.post1")
    with pytest.raises(StateError, match="QUIRE_ANY_SGLANG=1"):
        check_sglang_version("0.6.0")
    monkeypatch.setenv("QUIRE_ANY_SGLANG", "1")
    check_sglang_version("0.6.0")


def config(**more: Any) -> Any:
    ranks = dict.fromkeys(("tp_rank", "pp_rank", "attn_cp_rank"), 0)
    ranks |= dict.fromkeys(("tp_size", "pp_size", "attn_cp_size", "dcp_size"), 1)
    return SimpleNamespace(**({"model_name": "toy", "is_mla_model": False} | ranks | more))


def test_pages_of_another_model_form_or_rank_have_another_print() -> None:
    pool = SimpleNamespace(dtype="bf16", layout="page_first", page_size=4)
    act: Callable[..., bytes] = lambda one=pool, size=8, name="kv", space="mine", replica=0, **more: pool_print(  # noqa: E731
        config(**more), name, one, size, model_facts(config(**more), None, space), replica
    )
    others = [
        act(model_name="b"), act(size=9), act(name="draft"), act(space="b"),
        act(replica=1), act(tp_rank=1, tp_size=2), act(tp_size=2), act(pp_rank=1), act(attn_cp_rank=1),
        act(SimpleNamespace(dtype="fp8", layout="page_first", page_size=4)),
        act(SimpleNamespace(dtype="bf16", layout="layer_first", page_size=4)),
    ]  # fmt: skip
    assert len({act(), *others}) == 1 + len(others)
    latent = {"is_mla_model": True, "tp_size": 2}
    assert act(tp_rank=1, **latent) == act(tp_rank=0, **latent), "one rank writes what all read"
    assert act(name="mamba", tp_rank=1, **latent) != act(name="mamba", tp_rank=0, **latent)
    with pytest.raises(InputError, match='"namespace"'):
        act(space="")


def arguments(model: Path | str, **more: Any) -> Any:
    """SGLang's server arguments, as far as they are read."""
    return SimpleNamespace(**({"model_path": str(model), "revision": None, "json_model_override_args": "{}"} | more))


def test_the_same_weights_used_in_another_way_have_another_print(tmp_path: Path) -> None:
    pool = SimpleNamespace(dtype="bf16", layout="page_first", page_size=4)

    def act(args: Any) -> bytes:
        return pool_print(config(), "kv", pool, 8, model_facts(config(), args, ""))

    model, draft, scales = tmp_path / "model", tmp_path / "draft", tmp_path / "scales.json"
    for folder in (model, draft):
        folder.mkdir()
        (folder / "w.safetensors").write_bytes(b"one")
    scales.write_text("1.0")
    prints = [act(arguments(model))]
    assert prints[0] == act(arguments(model, served_model_name="an alias"))
    for more in ({"json_model_override_args": '{"rope_scaling": 4}'}, {"quantization": "fp8"}, {"load_format": "dummy"},
                 {"quantization_param_path": str(scales)}, {"speculative_draft_model_path": str(draft)}):  # fmt: skip
        prints.append(act(arguments(model, **more)))
    rope = model / "config.json"
    for file, text in ((scales, "2.0"), (draft / "config.json", "{}"), (draft / "w.safetensors", "two"),
                       (rope, '{"rope_theta": 1e4}'), (rope, '{"rope_theta": 1e6}')):  # fmt: skip
        file.write_text(text)
        more = {"quantization_param_path": str(scales), "speculative_draft_model_path": str(draft)}
        prints.append(act(arguments(model, **more)))
    assert len(set(prints)) == len(prints)


def test_a_drafter_or_a_model_that_nothing_names_needs_a_namespace(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"one")
    commit = "0123456789abcdef0123456789abcdef01234567"
    known = arguments("some/model", revision=commit)
    assert model_facts(config(), known, "") != model_facts(config(), arguments("some/model", revision=commit[::-1]), "")
    for args in (None, arguments("some/model", revision="main"), arguments("some/model"),
                 arguments(tmp_path, speculative_draft_model_path="some/draft")):  # fmt: skip
        with pytest.raises(InputError, match='write "namespace"'):
            model_facts(config(model_name=str(tmp_path)), args, "")
        assert model_facts(config(), args, "night of the 3rd")["namespace"] == "night of the 3rd"


def test_ranks_that_would_find_nothing_are_refused() -> None:
    disk = read_hicache_options({"quire": GIVEN})
    with pytest.raises(StateError, match='write "shared"'):
        check_ranks(config(is_mla_model=True, tp_size=2), disk)
    with pytest.raises(StateError, match="without DCP"):
        check_ranks(config(dcp_size=2), disk)
    check_ranks(config(tp_size=2), disk)


def page(key: bytes) -> Any:
    return np.random.default_rng(list(key)).integers(0, 256, SIZE, np.uint8)


def place_of(folder: Path, store: bool = True) -> PoolPlace:
    disk = KeyDisk(folder / "d", PRINT, SIZE, 8, fence_seconds=0.0)
    shared = KeyStore(open_store(SharedConfig(str(folder / "s"))), PRINT, SIZE, wait=30.0) if store else None
    return PoolPlace(disk, shared)


def test_a_page_comes_from_the_disk_or_else_from_the_store_and_goes_to_both(tmp_path: Path) -> None:
    place, keys = place_of(tmp_path), [b"a", b"b", b"c"]
    assert place.write(keys, [page(key) for key in keys]) == [True] * 3
    assert place.disk is not None and place.store is not None
    assert place.disk.clear() and not any(map(place.on_disk, keys)) and len(place.disk) == 0
    place.disk.write([b"a"], [page(b"a")])
    into = [np.zeros(SIZE, np.uint8) for _ in range(4)]
    assert place.read([*keys, b"d"], into) == [True] * 3 + [False]
    assert all(np.array_equal(got, page(key)) for got, key in zip(into, keys, strict=False))
    assert (place.disk.counts().pages_read, place.store.counts().hits) == (1, 2)
    place.clear()
    assert place.read(keys, into[:3]) == [False] * 3
    place.close()


def test_what_was_cleared_stays_away_after_a_restart_and_what_was_written_is_fenced(tmp_path: Path) -> None:
    place = place_of(tmp_path, store=False)
    place.write([b"a", b"b"], [page(b"a"), page(b"b")])
    assert place.disk is not None
    until(lambda: not place.disk._unfenced, "a fence, with nobody writing")  # type: ignore[union-attr]
    place.clear()
    place.write([b"c"], [page(b"c")])
    place.close()
    again = place_of(tmp_path, store=False)
    assert [again.on_disk(key) for key in (b"a", b"b", b"c")] == [False, False, True]
    again.close()


def test_forms_of_one_store_keep_apart_and_are_asked_for_at_once(tmp_path: Path) -> None:
    first = KeyStore(open_store(SharedConfig(str(tmp_path))), PRINT, SIZE, wait=30.0)
    second = first.beside(PRINT[::-1], 7)
    first.write([b"a"], [page(b"a")])
    second.write([b"b"], [np.arange(7, dtype=np.uint8)])
    names = [one.name_of(key) for one in (first, second) for key in (b"a", b"b")]
    asked = first.client.tally.calls["exists"]
    assert first.names_there(names) == [True, False, False, True]
    assert first.client.tally.calls["exists"] == asked + 1 and first.names_there([]) == []
    second.clear()
    second.close()
    assert first.names_there(names) == [True, False, False, False], "the other form is gone, and the store still open"
    first.close()
