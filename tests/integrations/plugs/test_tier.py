"""The tier beside vLLM's interface: rows to the disk and back, and what its operator may write. Needs no vLLM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quire import InputError
from quire.core.records.errors import MissingExtra
from quire.integrations.places import joined_jobs
from quire.integrations.vllm.plugs.key_tier import KeyTier
from quire.integrations.vllm.plugs.tier_options import TierOptions, read_tier_options, tier_print
from quire.tiers.disk import DiskIO
from quire.tiers.disk.keyed import KeyJobsDone
from quire.tiers.disk.pages.tier import DiskTier
from tests.integrations.operating.vllm_base import changes, signatures
from tests.integrations.plugs.offload_base import TIER, TIER_FILE, known_tier, tier_of
from tests.integrations.plugs.test_policy import Context, keys_of
from tests.tiers.disk.stand_ins import Faults, FaultyFiles

ROOT = Path(__file__).resolve().parents[3]
ROWS, ROW = 8, 4096
GIVEN = {"folder": "/tmp/x", "bytes": "1GB"}


class Rig:
    """A host cache of some rows, and the tier below it."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.memory = bytearray(ROWS * ROW)
        self.view = memoryview(self.memory).cast("B", (ROWS, ROW))
        options = TierOptions(str(folder), 40 * (ROW + 256), waiting=1.0, deadline=60.0)
        self.tier = KeyTier(self.view, options, lambda size: size.to_bytes(32, "big"), **more)
        self.rows = np.frombuffer(self.memory, np.uint8).reshape(ROWS, ROW)
        self.number = 0

    def job(self, keys: list[bytes], rows: list[int], is_load: bool, context: Context | None = None) -> KeyJobsDone:
        self.number += 1
        ours = context or Context()
        self.tier.submit(self.number, keys, np.array(rows), is_load, ours)  # type: ignore[arg-type]  # as vLLM gives them
        self.tier.jobs.drain()
        (done,) = self.tier.finished()
        assert done.number == self.number
        return done


def test_every_call_takes_what_vllm_gives_it_and_none_that_it_must_have_is_missing() -> None:
    ours = signatures((ROOT / "quire/integrations/vllm/tier.py").read_text(), ("QuireTier",))
    assert {name: given for name, given in ours.items() if name != "__init__"} == {
        name: TIER[name] for name in ours if name != "__init__"
    }
    assert ours["__init__"] == f"{TIER['__init__']} **options"
    must = {"lookup", "submit_store", "submit_load", "get_finished_jobs", "on_new_request", "drain_jobs"}
    assert must | {"shutdown", "on_request_finished"} <= ours.keys()
    assert known_tier("0.33.0").keys() - known_tier("0.32.1") == {"config_info", "config_info_keys"}


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".vllm-env").exists(), reason="no vLLM: make vllm-env")
def test_the_table_is_what_the_installed_vllm_has() -> None:
    (base,) = (ROOT / ".vllm-env").glob(f"lib/python3*/site-packages/{TIER_FILE}")
    assert changes(tier_of(base.read_text()), known_tier("0.32")) == []


def test_rows_go_down_and_come_up_in_a_later_process_too(tmp_path: Path) -> None:
    keys = keys_of("a", 3)
    rig = Rig(tmp_path)
    rig.rows[:3] = np.arange(1, 4)[:, None]
    assert rig.job(keys, [0, 1, 2], False).good == tuple(keys)
    assert [rig.tier.has(key) for key in [*keys, keys_of("b", 1)[0]]] == [True, True, True, False]
    assert rig.tier.close()
    again = Rig(tmp_path)
    done = again.job(keys[::-1], [5, 6, 7], True)
    assert (done.bad, done.num_bytes, again.rows[5:, 0].tolist()) == ((), 3 * ROW, [3, 2, 1])
    assert again.tier.close()


@pytest.mark.parametrize("row", [ROWS, -1, 1 << 40])
def test_a_row_that_there_is_not_fails_its_job_and_raises_nothing(tmp_path: Path, row: int) -> None:
    rig, keys = Rig(tmp_path), keys_of("a", 2)
    rig.rows[:] = 7
    assert rig.job(keys, [0, row], False).bad == tuple(keys) and not rig.tier.has(keys[0])
    assert rig.job(keys, [0, 1], False).good == tuple(keys)
    rig.rows[:] = 9
    assert rig.job(keys, [0, row], True).bad == tuple(keys) and (rig.rows == 9).all()
    assert rig.job(keys, [0, 1], True).good == tuple(keys) and (rig.rows[:2] == 7).all()
    assert rig.tier.close()


def test_a_row_that_cannot_be_loaded_is_a_miss_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else vLLM would ask for it at every step, and its request wait for ever."""
    faults = Faults()
    rig = Rig(tmp_path, files=FaultyFiles(faults))
    keys = keys_of("a", 2)
    rig.job(keys, [0, 1], False)
    faults.read_errors = {("pages-0", 1): 5, ("pages-0", ROW + 1): 5}
    assert set(rig.job(keys, [2, 3], True).bad) == set(keys)
    assert not any(map(rig.tier.has, keys))
    faults.read_errors = {}
    assert rig.job(keys[:1], [0], False).good == (keys[0],)
    assert rig.tier.has(keys[0]), "it was written again"
    rig.tier.jobs.parts[0].unwell[keys[0]] = 0.0
    monkeypatch.setattr(joined_jobs, "AGAIN_AFTER", -1.0)
    assert rig.tier.close()


def test_a_disk_that_does_not_answer_is_a_miss_for_a_while_and_loses_nothing(tmp_path: Path) -> None:
    faults = Faults()
    rig = Rig(tmp_path, files=FaultyFiles(faults))
    assert rig.tier.disk is not None
    keys, pages = keys_of("a", 1), rig.tier.disk._folder.tier
    assert rig.job(keys, [0], False).good and rig.tier.has(keys[0])
    assert isinstance(pages, DiskTier)
    patient, pages._io = pages._io, DiskIO(deadline=0.1)  # only now: a busy machine is as slow as a disk that hangs
    faults.gate = Event()
    assert rig.job(keys, [1], True).bad == tuple(keys)
    assert keys[0] in rig.tier.disk and not rig.tier.has(keys[0])
    pages._io = patient
    faults.gate.set()
    rig.tier.close()


def test_what_a_request_used_is_kept_before_what_it_did_not(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.tier.disk is not None
    slots = rig.tier.disk._room
    used, context = keys_of("u", 2), Context()
    rig.job(used, [0, 1], False, context)
    rig.job(used, [0, 1], True, context)
    for nth in range(slots - 2):
        rig.job(keys_of(f"o{nth}.", 1), [3], False, asked := Context())
        rig.tier.end_request(asked)
    context.ends = {key: (nth + 1) * 16 for nth, key in enumerate(used)}
    rig.tier.end_request(context)
    rig.job(keys_of("x", 4), [0, 1, 2, 3], False)
    assert all(map(rig.tier.has, used)) and not rig.tier.has(keys_of("o0.", 1)[0])
    assert rig.tier.close()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "without 'folder' and 'shared'"),
        ({"bytes": "1GB", "shared": "/s"}, "without 'folder'"),
        ({"folder": "/tmp/x"}, "without 'bytes'"),
        (GIVEN | {"path": 1}, "option 'path'.*use \\['folder'"),
        (GIVEN | {"eviction": "best"}, "not a known order"),
        (GIVEN | {"folder": ""}, "without 'folder'"),
        (GIVEN | {"folder": 1}, "folder of QuireTier: it is a int"),
        (GIVEN | {"shared": 1}, "shared of QuireTier: it is a int"),
        (GIVEN | {"shared_bytes": "1GB"}, "only a shared folder"),
        (GIVEN | {"shared": "redis://h:1", "shared_bytes": "1GB"}, "only a shared folder"),
        (GIVEN | {"shared": "/s", "shared_bytes": "some"}, "some"),
        (GIVEN | {"wait": 0}, "wait 0"),
        (GIVEN | {"deadline": 0}, "deadline 0"),
        (GIVEN | {"waiting": 1.5}, "waiting 1.5"),
        (GIVEN | {"namespace": 1}, "namespace of QuireTier"),
        (GIVEN | {"bytes": "many"}, "many"),
    ],
)
def test_what_an_operator_writes_is_checked_by_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_tier_options(given)
    assert read_tier_options(GIVEN | {"eviction": "lru"}).bytes == 10**9
    secret = read_tier_options({"shared": "redis://u:hidden@h:1"})
    assert (secret.bytes, secret.folder) == (0, "") and "hidden" not in repr(secret)


def config(model: Path) -> Any:
    parallel = dict.fromkeys(("tp_size", "pp_size", "pcp_size", "dcp_size", "world_size"), 1)
    return SimpleNamespace(
        model=SimpleNamespace(name=str(model), dtype="bfloat16"),
        cache=SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1), parallel=SimpleNamespace(**parallel),
        groups=[SimpleNamespace(tokens_per_block=16, layer_names=("a", "b"))],
        replicated_layout=False, canonical_layout=False, kv_cache_layout="NHD",
    )  # fmt: skip


CONFIG_FILES = (  # the same weights, used in other ways
    ("config.json", '{"rope_theta": 1e4}'), ("config.json", '{"rope_theta": 1e6}'), ("params.json", "{}"),
    ("hf_quant_config.json", "{}"), ("modeling_own.py", "# code that comes with the weights"),
)  # fmt: skip


def _edit(place: str, value: Any) -> Callable[[Any], None]:
    def act(one: Any) -> None:
        *above, last = place.split(".")
        for name in above:
            one = getattr(one, name)
        setattr(one, last, value)

    return act


def test_another_model_form_or_name_has_other_pages(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"one")
    first = tier_print(config(tmp_path), ROW, "0.32.0", "")
    assert first == tier_print(config(tmp_path), ROW, "0.32.1+cpu", "")
    others = [tier_print(config(tmp_path), ROW + 1, "0.32.0", ""), tier_print(config(tmp_path), ROW, "0.33.0", ""),
              tier_print(config(tmp_path), ROW, "0.32.0", "mine")]  # fmt: skip
    for edit in (_edit("model.dtype", "float16"), _edit("parallel.tp_size", 2), _edit("kv_cache_layout", "HND"),
                 _edit("cache.blocks_per_chunk", 2), _edit("groups", [])):  # fmt: skip
        changed = config(tmp_path)
        edit(changed)
        others.append(tier_print(changed, ROW, "0.32.0", ""))
    (tmp_path / "w.safetensors").write_bytes(b"two")
    others.append(tier_print(config(tmp_path), ROW, "0.32.0", ""))
    for file, text in CONFIG_FILES:
        (tmp_path / file).write_text(text)
        others.append(tier_print(config(tmp_path), ROW, "0.32.0", ""))
    assert len({first, *others}) == 1 + len(others)
    last = tier_print(config(tmp_path), ROW, "0.32.0", "")
    for file in ("tokenizer.json", "generation_config.json"):
        (tmp_path / file).write_text("{}")
    assert tier_print(config(tmp_path), ROW, "0.32.0", "") == last, "what says nothing of the KV"


def test_weights_that_nobody_can_name_need_a_namespace() -> None:
    with pytest.raises(InputError, match='"namespace"'):
        tier_print(config(Path("meta-llama/Llama-3.1-8B")), ROW, "0.32.0", "")
    assert len(tier_print(config(Path("meta-llama/Llama-3.1-8B")), ROW, "0.32.0", "release 7")) == 32


def test_without_vllm_it_says_where_to_run() -> None:
    with pytest.raises(MissingExtra, match=r"needs vLLM.*quire-kv\[disk\]"):
        __import__("quire.integrations.vllm.tier")
