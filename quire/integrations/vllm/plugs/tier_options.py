"""Options of QuireTier: what an operator writes beside "type" in `secondary_tiers`, checked by name; and whose pages
they are. Reads vLLM's offloading config by the names of its fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from typing import Any, Literal, get_args

from quire.core.records.errors import InputError, say, shown
from quire.core.records.memory import parse_bytes
from quire.integrations.vllm.common.memory_sizes import disk_bytes
from quire.integrations.vllm.outer.model_print import local_weights

Order = Literal["adaptive", "lru"]
LATEST_DEADLINE = 600.0
MODEL_FACTS = ("tokens_per_hash", "blocks_per_chunk", "tp_size", "pp_size", "pcp_size", "dcp_size", "world_size")


@dataclass(frozen=True, slots=True)
class TierOptions:
    """Where the pages lie, and how much of them there may be: on a disk, in a shared store, or in both."""

    folder: str = ""  # of the disk
    bytes: int = 0  # on the disk, manifest included; written "500GB", or "50%" of its file system
    shared: str = field(default="", repr=False)  # a store: a folder, or redis://user:password@host:6379/0
    shared_bytes: int | str | None = None  # that may lie in a shared folder; other stores bound themselves
    wait: float = 2.0  # seconds that the store has to say what it has, and to give a batch of pages
    eviction: Order = "adaptive"
    namespace: str = ""  # what you know of the model and its config does not say
    deadline: float = 10.0  # seconds without any answer after which a read or write is given up
    waiting: float = 0.25  # share of the host cache that stores under way may pin

    def __post_init__(self) -> None:
        for name in ("folder", "shared", "namespace"):
            if not isinstance(getattr(self, name), str):
                fact = f"it is a {type(getattr(self, name)).__name__}, not text"
                raise InputError(say(f"{name} of QuireTier", fact, f'write "{name}": "...", or leave it out'))
        self._check_places()
        if self.eviction not in get_args(Order):
            cure = f"use one of {', '.join(get_args(Order))}"
            raise InputError(say(f"eviction {shown(self.eviction)}", "it is not a known order", cure))
        for name, most in (("deadline", LATEST_DEADLINE), ("wait", LATEST_DEADLINE), ("waiting", 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
                raise InputError(say(f"{name} {shown(value)}", f"it must be above 0, at most {most:g}", "leave it out"))

    def _check_places(self) -> None:
        cure = 'write "folder": "/mnt/nvme/quire", "bytes": "500GB", or "shared": "redis://host:6379/0", or all three'
        if not self.folder and not self.shared:
            raise InputError(say("QuireTier without 'folder' and 'shared'", "pages have no place to lie in", cure))
        if bool(self.folder) != bool(self.bytes):
            missing = "bytes" if self.folder else "folder"
            raise InputError(say(f"QuireTier without {missing!r}", "a disk has a folder and a size", cure))
        if self.shared_bytes is None:
            return
        if not self.shared or "://" in self.shared:
            fact = "only a shared folder is bounded from here; a server has its own limit"
            raise InputError(say("shared_bytes of QuireTier", fact, "leave it out"))
        parse_bytes(self.shared_bytes, "a shared folder")


def read_tier_options(given: Mapping[str, Any]) -> TierOptions:
    """The options of a tier's config; what is unknown is refused by name."""
    known = [one.name for one in fields(TierOptions)]
    for name in given:
        if name not in known:
            raise InputError(say(f"option {shown(name)} of QuireTier", "there is none of that name", f"use {known}"))
    sized = (
        {**given, "bytes": disk_bytes(given["bytes"], given["folder"])}
        if {"bytes", "folder"} <= given.keys()
        else given
    )
    return TierOptions(**sized)


def tier_print(config: Any, page_bytes: int, version: str, namespace: str) -> bytes:
    """32 bytes for the model, its weights and the form of a row: pages of another print are never found.

    vLLM's keys say which tokens, adapter and images a row is of, and nothing of this.
    """
    model, cache, parallel = config.model, config.cache, config.parallel
    weights = local_weights(model.name)
    if weights is None and not namespace:
        fact = "no files say which weights these are, and vLLM does not tell a tier which revision it loads"
        cure = 'write "namespace": "...", and another one whenever the weights change'
        raise InputError(say(f"pages of {shown(model.name)}", fact, cure))
    facts = {
        "vllm": ".".join(version.split(".")[:2]), "weights": weights or model.name, "dtype": str(model.dtype),
        "row": page_bytes, "groups": [[group.tokens_per_block, *group.layer_names] for group in config.groups],
        "layout": [config.replicated_layout, config.canonical_layout, config.kv_cache_layout], "namespace": namespace,
        **{name: getattr(cache if hasattr(cache, name) else parallel, name) for name in MODEL_FACTS},
    }  # fmt: skip
    return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=32, person=b"quire-vllm-tier").digest()
