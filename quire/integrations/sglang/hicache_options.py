"""Options of QuireHiCacheStorage: "quire" in HiCache's extra config, checked by name; and whose pages they are.

Reads SGLang's storage config and host pools by the names of their fields; needs no SGLang.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

from quire.core.records.errors import InputError, StateError, say, shown
from quire.integrations.places.place_options import PlaceOptions
from quire.integrations.vllm.outer.model_print import local_config, local_weights

TESTED = "0.5.23"
ANY = "QUIRE_ANY_SGLANG"
# of SGLang's server arguments: what says how the weights are used, and what names a file whose bytes do
SAID = ("json_model_override_args", "model_impl", "model_config_parser", "load_format", "model_loader_extra_config",
        "dtype", "quantization", "modelopt_quant", "rl_quant_profile", "kv_cache_dtype", "speculative_algorithm",
        "speculative_draft_load_format", "speculative_draft_model_quantization")  # fmt: skip
FILES = ("quantization_param_path", "modelopt_checkpoint_restore_path", "decrypted_config_file",
         "decrypted_draft_config_file", "uno_lora_path")  # fmt: skip
DRAFT = ("speculative_draft_model_path", "speculative_draft_model_revision")
SHARDED = "mamba"  # a pool that is a rank's own, although the model's KV is the same on all


@dataclass(frozen=True, slots=True)
class HiCacheOptions(PlaceOptions):
    """Where the pages of one rank lie, and how much of them there may be: `bytes` of each rank, which all have their
    own part of the folder."""

    plug: ClassVar[str] = "QuireHiCacheStorage"


def read_hicache_options(extra: Mapping[str, Any] | None) -> HiCacheOptions:
    """Those under "quire": the rest of the extra config is SGLang's own."""
    given = (extra or {}).get("quire")
    if not isinstance(given, Mapping):
        fact, cure = "its options are under 'quire'", 'write "quire": {"folder": "/mnt/nvme/quire", "bytes": "500GB"}'
        raise InputError(say("the extra config of QuireHiCacheStorage", fact, cure))
    return HiCacheOptions.read(given)


def check_sglang_version(found: str) -> None:
    """Refuse an SGLang with which this was never tried."""
    if os.environ.get(ANY, "") != "1" and ".".join(found.split(".")[:3]) != TESTED:
        fact = f"it was run with the storage classes of {TESTED} only"
        raise StateError(say(f"QuireHiCacheStorage under SGLang {shown(found)}", fact, f"use that, or set {ANY}=1"))


def check_ranks(config: Any, options: HiCacheOptions) -> None:
    """Refuse what would find nothing, or mix pages."""
    if config.dcp_size > 1:
        fact = "SGLang's decode context parallelism is for its file and Mooncake backends"
        raise StateError(say("QuireHiCacheStorage with DCP", fact, "run without DCP"))
    if config.is_mla_model and config.tp_size > 1 and options.folder:
        fact = "one rank writes the pages that all read, and a disk folder belongs to one process"
        raise StateError(say("a disk for an MLA model on several ranks", fact, 'write "shared" instead of "folder"'))


def model_facts(config: Any, args: Any, namespace: str) -> dict[str, Any]:
    """Whose pages they are, by all that SGLang says of its model: `args` are its server arguments, None if it has none.

    SGLang's keys say which tokens, adapter (`extra_key`) and salt a page is of, and nothing of this.
    """
    said: dict[str, Any] = {name: getattr(args, name, None) for name in (*SAID, *FILES, *DRAFT, "revision")}
    if args is None and not namespace:
        raise _unnamed(config.model_name or "", "SGLang does not say how it uses its weights")
    model = getattr(args, "model_path", None) or config.model_name or ""
    weights = [_weights(model, said["revision"], namespace)]
    if path := said[DRAFT[0]]:
        weights.append(_weights(path, said[DRAFT[1]], namespace))
    return {
        "namespace": namespace, "weights": weights, "said": {name: str(said[name]) for name in SAID},
        "files": {name: local_weights(said[name]) or said[name] for name in FILES if said[name]},
    }  # fmt: skip


def _weights(model: str, revision: str | None, namespace: str) -> list[str | None]:
    """A digest of a model's files and of its config's, or its commit on the hub."""
    if model and (weights := local_weights(model)) is not None:
        return [weights, local_config(model)]
    is_commit = not Path(model).exists() and re.fullmatch(r"[0-9a-f]{40}", revision or "")
    if not is_commit and not namespace:
        raise _unnamed(model, "neither files nor a commit say which weights these are")
    return [model, revision]


def _unnamed(model: str, fact: str) -> InputError:
    cure = 'write "namespace": "...", and another one whenever the weights or how they are used change'
    return InputError(say(f"pages of {shown(model)}", fact, cure))


def pool_print(config: Any, name: str, pool: Any, part_bytes: int, model: Mapping[str, Any], replica: int = 0) -> bytes:
    """32 bytes for the model, a pool's form and the rank's share: pages of another print are not found.
    Replicas (data parallelism) share a store, and have a disk folder each."""
    replicated = config.is_mla_model and name != SHARDED
    facts = {
        "model": model, "pool": name, "kind": type(pool).__name__,
        "bytes": part_bytes, "page": getattr(pool, "page_size", 1), "dtype": str(getattr(pool, "dtype", "")),
        "layout": str(getattr(pool, "layout", "")), "form": str(getattr(pool, "storage_format_tag", None)),
        "layers": [getattr(pool, "start_layer", None), getattr(pool, "end_layer", None)],
        "tp": [0 if replicated else config.tp_rank, config.tp_size], "pp": [config.pp_rank, config.pp_size],
        "cp": [config.attn_cp_rank, config.attn_cp_size], "replica": replica,
    }  # fmt: skip
    return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=32, person=b"quire-hicache").digest()
