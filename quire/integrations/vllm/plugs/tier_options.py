"""Options of QuireTier: what an operator writes beside "type" in `secondary_tiers`, checked by name; and whose pages
they are. Reads vLLM's offloading config by the names of its fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar

from quire.core.records.errors import InputError, say, shown
from quire.integrations.places.place_options import PlaceOptions
from quire.integrations.vllm.common.memory_sizes import disk_bytes
from quire.integrations.vllm.outer.model_print import local_config, local_weights

MODEL_FACTS = ("tokens_per_hash", "blocks_per_chunk", "tp_size", "pp_size", "pcp_size", "dcp_size", "world_size")


@dataclass(frozen=True, slots=True)
class TierOptions(PlaceOptions):
    """Where the rows lie, and how many of them may wait."""

    plug: ClassVar[str] = "QuireTier"
    up_to: ClassVar[tuple[tuple[str, float], ...]] = (*PlaceOptions.up_to, ("waiting", 1.0))

    waiting: float = 0.25  # share of the host cache that stores under way may pin


def read_tier_options(given: Mapping[str, Any]) -> TierOptions:
    """The options of a tier's config; its disk may be a percentage of a file system."""
    if not {"bytes", "folder"} <= given.keys():
        return TierOptions.read(given)
    return TierOptions.read({**given, "bytes": disk_bytes(given["bytes"], given["folder"])})


def tier_print(config: Any, page_bytes: int, version: str, namespace: str) -> bytes:
    """32 bytes for the model, its weights, its config and the form of a row: pages of another print are never found.

    vLLM's keys say which tokens, adapter and images a row is of, and nothing of this. It tells a tier nothing of
    --hf-overrides, of weights that are quantised when loaded, nor of a drafter's: they need a namespace.
    """
    model, cache, parallel = config.model, config.cache, config.parallel
    weights = local_weights(model.name)
    if weights is None and not namespace:
        fact = "no files say which weights these are, and vLLM does not tell a tier which revision it loads"
        cure = 'write "namespace": "...", and another one whenever the weights or how they are used change'
        raise InputError(say(f"pages of {shown(model.name)}", fact, cure))
    facts = {
        "vllm": ".".join(version.split(".")[:2]), "weights": weights or model.name,
        "config": local_config(model.name), "dtype": str(model.dtype),
        "row": page_bytes, "groups": [[group.tokens_per_block, *group.layer_names] for group in config.groups],
        "layout": [config.replicated_layout, config.canonical_layout, config.kv_cache_layout], "namespace": namespace,
        **{name: getattr(cache if hasattr(cache, name) else parallel, name) for name in MODEL_FACTS},
    }  # fmt: skip
    return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=32, person=b"quire-vllm-tier").digest()
