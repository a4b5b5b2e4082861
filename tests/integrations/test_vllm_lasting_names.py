"""What pages of the vLLM connector are called where they outlive the process; recordings; what is refused there."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quire import CacheConfig, InputError, LayerGroup, TierConfig
from quire.integrations.vllm.common.cache_groups import check_outer
from quire.integrations.vllm.common.connector_options import ConnectorOptions
from quire.integrations.vllm.outer.model_print import model_print
from quire.integrations.vllm.outer.page_memory import MemoryShape
from quire.integrations.vllm.reports.request_recording import RequestRecording
from quire.integrations.vllm.worker.host_pages import layer_form
from tests.integrations.test_vllm_contract import PROMPT, ask, image, run, stored
from tests.integrations.toy_engine import ToyEngine
from tests.integrations.toy_parts import SIZE

CONFIG = CacheConfig((TierConfig("device", 0), TierConfig("host", 4)), 16, (LayerGroup("all", page_bytes=64),))
SHAPE = MemoryShape(4, 2, 32, 1, "float32 layers")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests are kept in a folder of the test."""
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "kept"))


def engine_config(model: str, **more: Any) -> Any:
    """vLLM's config, as far as it is read."""
    facts: dict[str, Any] = {
        "layers": 2, "revision": None, "quantization": None, "dtype": "float32", "seed": 0, "load_format": "auto",
        "kv_dtype": "auto", "drafter": None,
    }  # fmt: skip
    facts |= more
    config = SimpleNamespace(to_dict=lambda: {"num_hidden_layers": facts["layers"], "transformers_version": "5"})
    told = {name: facts[name] for name in ("revision", "quantization", "dtype", "seed")}
    return SimpleNamespace(
        model_config=SimpleNamespace(model=model, hf_config=config, **told),
        load_config=SimpleNamespace(load_format=facts["load_format"]),
        cache_config=SimpleNamespace(cache_dtype=facts["kv_dtype"]), speculative_config=facts["drafter"],
    )  # fmt: skip


def drafts(method: str, commit: str = "89" * 20) -> Any:
    """A drafter whose layers have pages."""
    model = SimpleNamespace(model="a/drafter", revision=commit, hf_config=SimpleNamespace(to_dict=dict))
    return SimpleNamespace(method=method, draft_model_config=model)


def printed(model: str, shape: MemoryShape = SHAPE, version: str = "0.32.0", namespace: str = "", **more: Any) -> bytes:
    return model_print(engine_config(model, **more), CONFIG, shape, version, namespace)


def test_every_fact_that_a_page_depends_on_makes_another_print() -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    same, later = printed("some/model", revision=commit), drafts("eagle", commit[::-1])
    assert same == printed("some/model", revision=commit) and len(same) == 32
    others = [
        printed("other/model", revision=commit),
        printed("some/model", revision=commit[::-1]),
        printed("some/model", revision=commit, layers=3),
        printed("some/model", revision=commit, quantization="fp8"),
        printed("some/model", revision=commit, dtype="bfloat16"),
        printed("some/model", revision=commit, kv_dtype="fp8"),
        printed("some/model", revision=commit, version="0.32.1"),
        printed("some/model", revision=commit, namespace="mine"),
        printed("some/model", MemoryShape(4, 1, 64, 1, SHAPE.form), revision=commit),
        printed("some/model", MemoryShape(4, 2, 32, 1, "other layers"), revision=commit),
        printed("some/model", MemoryShape(4, 2, 32, 2, SHAPE.form), revision=commit),  # in one pool
        *(printed("some/model", revision=commit, drafter=one) for one in (drafts("eagle"), drafts("mtp"), later)),
    ]
    assert len({same, *others}) == 1 + len(others)
    assert printed("some/model", revision=commit, drafter=SimpleNamespace(method="ngram")) == same  # has no pages
    assert printed("some/model", MemoryShape(9, 2, 32, 1, SHAPE.form), revision=commit) == same  # of more memory


def test_weights_in_a_folder_are_known_by_their_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "a.safetensors").write_bytes(b"weights")
    first = printed(str(folder))
    assert printed(str(folder)) == first and len(list((tmp_path / "kept" / "digests").iterdir())) == 1
    (folder / "config.json").write_text("{}")
    assert printed(str(folder)) == first
    (folder / "a.safetensors").write_bytes(b"Weights")
    assert printed(str(folder)) != first
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "a.safetensors").write_bytes(b"weights")
    assert printed(str(tmp_path / "moved")) == first  # bytes count, folders do not
    for kept in (tmp_path / "kept" / "digests").iterdir():
        kept.write_text("not a digest")
    assert printed(str(tmp_path / "moved")) == first


def test_weights_that_nobody_can_tell_need_a_namespace(tmp_path: Path) -> None:
    for model in ("some/model", str(tmp_path)):
        with pytest.raises(InputError, match="which weights they are; write namespace="):
            printed(model, revision="main")
        assert printed(model, namespace="night of the 3rd") != printed(model, namespace="night of the 4th")
    assert printed("some/model", load_format="dummy") != printed("some/model", load_format="dummy", seed=1)


def test_the_form_of_a_page_is_names_shapes_and_types_of_its_layers() -> None:
    spec = SimpleNamespace()
    groups = [SimpleNamespace(layer_names=["a", "b"], kv_cache_spec=spec)]
    kv = {name: np.zeros((5, 2, 8), np.float32) for name in "ab"}
    same = layer_form(groups, kv)
    assert layer_form(groups, {name: np.zeros((9, 2, 8), np.float32) for name in "ab"}) == same  # of more blocks
    assert layer_form(groups, kv | {"b": np.zeros((5, 4, 4), np.float32)}) != same
    assert layer_form(groups, kv | {"b": np.zeros((5, 2, 8), np.int32)}) != same
    assert layer_form([SimpleNamespace(layer_names=["b", "a"], kv_cache_spec=spec)], kv) != same


def test_what_is_refused_below_host_memory() -> None:
    disk, store = ConnectorOptions(1, disk="/d", disk_bytes=9), ConnectorOptions(1, shared="/s")
    one, two = SimpleNamespace(nnodes=1), SimpleNamespace(nnodes=2)
    for options in (disk, store, ConnectorOptions(1)):
        check_outer(options, one)
    check_outer(ConnectorOptions(1), two)
    for options in (disk, store):
        with pytest.raises(InputError, match="with 2 nodes"):
            check_outer(options, two)


def test_requests_are_recorded_without_their_tokens(tmp_path: Path) -> None:
    engine = ToyEngine(0, hybrid=False)
    engine.side.recording = RequestRecording(str(tmp_path / "trace.jsonl"), SIZE)
    plain, salted, seen, embeds = (
        ask("plain"), ask("salted", cache_salt="tenant 4"), ask("image", mm_features=[image(6, 3, "a cat")]),
        ask("embeds", prompt_embeds=object()),
    )  # fmt: skip
    aborted = ask("aborted in the queue")
    for request in (plain, salted, seen, aborted, embeds):
        engine.side.arrive(request)
    for request in (salted, plain, seen):  # they end in another order than they came
        engine.side.hear(run(engine, stored_once(engine, request)))
    for request in (salted, plain, seen, embeds):
        request.all_token_ids += [1, 2, 3]
        engine.side.finish(request)
    engine.side.finish(aborted)
    engine.side.close()
    text = (tmp_path / "trace.jsonl").read_text()
    requests = [json.loads(line) for line in text.splitlines()]
    assert [(line["input_length"], line["output_length"]) for line in requests] == [(21, 3)] * 4
    ids = [line["hash_ids"] for line in requests]
    assert ids[0][0] not in ids[1] and ids[0][0] not in ids[3]  # salts keep apart, and embeddings share nothing
    assert ids[2][0] == ids[0][0] and ids[2][1] != ids[0][1]  # the image is in the second block
    assert "tenant" not in text and "cat" not in text and str(PROMPT)[1:-1] not in text


def stored_once(engine: ToyEngine, request: Any) -> Any:
    if request.cache_salt is None and not request.mm_features:
        return stored(engine, request)
    engine.side.look(request, 0)
    request.tables = [list(range(11, 17))]
    engine.side.place(request, request.tables, 0)
    return engine.side.order({request.request_id: 21}, (), lambda _: request.tables)


def test_a_recording_replaces_none(tmp_path: Path) -> None:
    for name in ("trace.jsonl", "trace.jsonl.gz"):
        (tmp_path / name).write_text("of an engine before")
        again = RequestRecording(str(tmp_path / name), SIZE)
        assert again.recorder.path.name.startswith("trace-") and again.recorder.path.name.endswith(name[5:])
        again.close()
        assert (tmp_path / name).read_text() == "of an engine before"
