"""Options of QuireHiCacheStorage: "quire" in HiCache's extra config, checked by name; and whose pages they are.

Reads SGLang's storage config and host pools by the names of their fields; needs no SGLang.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from typing import Any, Literal, get_args

from quire.core.records.errors import InputError, StateError, say, shown
from quire.core.records.memory import parse_bytes
from quire.integrations.vllm.outer.model_print import local_weights

Order = Literal["adaptive", "lru"]
TESTED = "0.5.23"
ANY = "QUIRE_ANY_SGLANG"
LONGEST = 600.0  # seconds
SHARDED = "mamba"  # a pool that is a rank's own, although the model's KV is the same on all


@dataclass(frozen=True, slots=True)
class HiCacheOptions:
    """Where the pages of one rank lie, and how much of them there may be."""

    folder: str = ""  # of the disk; every rank has its own part of it
    bytes: int | str = 0  # on the disk, of each rank; written "500GB"
    shared: str = field(default="", repr=False)  # a store: a folder, or redis://user:password@host:6379/0
    shared_bytes: int | str | None = None  # that may lie in a shared folder
    eviction: Order = "adaptive"
    namespace: str = ""  # what you know of the model, and its files do not say
    deadline: float = 10.0  # seconds without any answer after which the disk is given up
    wait: float = 2.0  # seconds that the store has to say what it has, and to give a batch of pages

    def __post_init__(self) -> None:
        for name in ("folder", "shared", "namespace"):
            if not isinstance(getattr(self, name), str):
                fact = f"it is a {type(getattr(self, name)).__name__}, not text"
                raise InputError(say(f"{name} of QuireHiCacheStorage", fact, "write text, or leave it out"))
        cure = 'write "folder": "/mnt/nvme/quire", "bytes": "500GB", or "shared": "redis://host:6379/0", or all three'
        if not self.folder and not self.shared:
            raise InputError(say("QuireHiCacheStorage without 'folder' and 'shared'", "pages have no place", cure))
        if bool(self.folder) != bool(self.bytes):
            raise InputError(say("the disk of QuireHiCacheStorage", "it has a folder and a size", cure))
        if self.folder:
            parse_bytes(self.bytes, "a disk")
        if self.shared_bytes is not None:
            if not self.shared or "://" in self.shared:
                raise InputError(say("shared_bytes", "only a shared folder is bounded from here", "leave it out"))
            parse_bytes(self.shared_bytes, "a shared folder")
        if self.eviction not in get_args(Order):
            cure = f"use one of {', '.join(get_args(Order))}"
            raise InputError(say(f"eviction {shown(self.eviction)}", "it is not a known order", cure))
        for name in ("deadline", "wait"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST:
                raise InputError(say(f"{name} {shown(value)}", f"give seconds, at most {LONGEST:g}", "leave it out"))


def read_hicache_options(extra: Mapping[str, Any] | None) -> HiCacheOptions:
    """Those under "quire": the rest of the extra config is SGLang's own."""
    given = (extra or {}).get("quire")
    if not isinstance(given, Mapping):
        fact, cure = "its options are under 'quire'", 'write "quire": {"folder": "/mnt/nvme/quire", "bytes": "500GB"}'
        raise InputError(say("the extra config of QuireHiCacheStorage", fact, cure))
    known = [one.name for one in fields(HiCacheOptions)]
    for name in given:
        if name not in known:
            fact = "there is none of that name"
            raise InputError(say(f"option {shown(name)} of QuireHiCacheStorage", fact, f"use {known}"))
    return HiCacheOptions(**given)


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


def pool_print(config: Any, name: str, pool: Any, part_bytes: int, options: HiCacheOptions, replica: int = 0) -> bytes:
    """32 bytes for the model, its weights, a pool's form and the rank's share: pages of another print are not found.
    Replicas (data parallelism) share a store, and have a disk folder each.

    SGLang's keys say which tokens, adapter (`extra_key`) and salt a page is of, and nothing of this.
    """
    model = config.model_name or ""
    weights = local_weights(model) if model else None
    if weights is None and not options.namespace:
        fact = "no files say which weights these are"
        cure = 'write "namespace": "...", and another one whenever the weights change'
        raise InputError(say(f"pages of {shown(model)}", fact, cure))
    replicated = config.is_mla_model and name != SHARDED
    facts = {
        "weights": weights or model, "namespace": options.namespace, "pool": name, "kind": type(pool).__name__,
        "bytes": part_bytes, "page": getattr(pool, "page_size", 1), "dtype": str(getattr(pool, "dtype", "")),
        "layout": str(getattr(pool, "layout", "")), "form": str(getattr(pool, "storage_format_tag", None)),
        "layers": [getattr(pool, "start_layer", None), getattr(pool, "end_layer", None)],
        "tp": [0 if replicated else config.tp_rank, config.tp_size], "pp": [config.pp_rank, config.pp_size],
        "cp": [config.attn_cp_rank, config.attn_cp_size], "replica": replica,
    }  # fmt: skip
    return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=32, person=b"quire-hicache").digest()
