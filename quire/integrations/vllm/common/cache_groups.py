"""KV cache groups of vLLM as layer groups of ours, and how many pages fit. Refuses by name what cannot be kept.

Looks at the classes of vLLM's specs by their names, so that it runs, and is tested, without vLLM.
"""

from __future__ import annotations

import mmap
from dataclasses import replace
from typing import Any

from quire.core.records.config import CacheConfig, TierConfig
from quire.core.records.errors import InputError, say
from quire.core.records.groups import LayerGroup
from quire.integrations.vllm.common.connector_options import ConnectorOptions

DEVICE, HOST, DISK = 0, 1, 2  # tiers; the device's pages are vLLM's, and there are none of ours
FULL = {"FullAttentionSpec", "MLAAttentionSpec"}
WINDOW = {"SlidingWindowSpec"}
STATE = {"MambaSpec"}
REFUSED = {  # the others' names, with what is in the way
    "ChunkedLocalAttentionSpec": "chunked local attention: no group of Quire reads that way",
    "SinkFullAttentionSpec": "attention sinks in a pool of their own",
    "CrossAttentionSpec": "cross attention: vLLM does not give its connectors an encoder's pages",
    "RSWASpec": "a ring of window blocks, which vLLM overwrites in place",
    "CircularBufferSpec": "a ring of blocks, which vLLM overwrites in place",
    "SlidingWindowMLASpec": "windows that vLLM computes again behind every hit",
}
POOL = "host"  # all groups have their pages in one: a group that needs few, a window, leaves the memory to the others
NO_DRAFT_LAYERS = {"ngram", "ngram_gpu", "suffix"}  # ways to draft that keep no KV of their own
DRAFT_LAYERS = {"draft_model", "eagle", "eagle3", "mtp"}  # their layers' pages travel with the model's


def layer_specs(group: Any) -> list[Any]:
    """The spec of each layer of a group, in the order of its layers."""
    spec = group.kv_cache_spec
    by_layer = getattr(spec, "kv_cache_specs", None)
    return [spec if by_layer is None else by_layer[name] for name in group.layer_names]


def page_bytes(group: Any) -> int:
    """Bytes that a block takes in all layers of a group, on one rank."""
    return sum(int(spec.page_size_bytes) for spec in layer_specs(group))


def layer_group(nth: int, group: Any) -> LayerGroup:
    """What one group reads."""
    specs = layer_specs(group)
    kinds = {type(spec).__name__ for spec in specs}
    for kind in sorted(kinds - FULL - WINDOW - STATE):
        fact = REFUSED.get(kind, "Quire does not know how its layers read")
        raise InputError(say(f"KV cache group {nth} ({kind})", fact, "run this model without QuireConnector"))
    if getattr(group, "host_resident", False) or not getattr(group, "enable_kv_transfer", True):
        fact = "vLLM keeps its pages outside the device's blocks, or rebuilds them from another group"
        raise InputError(say(f"KV cache group {nth}", fact, "run this model without QuireConnector"))
    if kinds <= STATE:
        return _state_group(nth, group, specs)
    windows = {spec.sliding_window + getattr(spec, "extra_retained_tokens", 0) if kinds <= WINDOW else None
               for spec in specs}  # fmt: skip
    if len(windows) > 1 or not (kinds <= FULL or kinds <= WINDOW):
        fact = "its layers do not read alike"
        raise InputError(say(f"KV cache group {nth}", fact, "run this model without QuireConnector"))
    return LayerGroup(f"group {nth}", page_bytes=page_bytes(group), window=windows.pop())


def _state_group(nth: int, group: Any, specs: list[Any]) -> LayerGroup:
    """Recurrent states: vLLM keeps one at the end of a block, and only of some blocks, which it names."""
    if any(spec.mamba_cache_mode != "align" for spec in specs):
        fact = "vLLM keeps recurrent states at the ends of blocks only where its prefix cache is on"
        raise InputError(say(f"KV cache group {nth}", fact, "write --enable-prefix-caching --mamba-cache-mode align"))
    if any(getattr(spec, "num_speculative_blocks", 0) for spec in specs):
        fact = "with drafts vLLM moves recurrent states between blocks while they are stored"
        raise InputError(say(f"KV cache group {nth}", fact, "leave speculative decoding out with this model"))
    return LayerGroup(f"group {nth}", page_bytes=page_bytes(group), snapshot_every=0)


def cache_config(
    model: Any, options: ConnectorOptions, *, world_size: int, max_length: int, events: bool,
    page_bytes: int = 0,
) -> CacheConfig:  # fmt: skip
    """A cache without a device, for vLLM's KVCacheConfig: pages come from vLLM's blocks and go back there.

    `page_bytes` are those of a page with the parts of all ranks, where pages go further than host memory. Blocks of all
    groups are of one size in vLLM, so are pages here.
    """
    groups = model.kv_cache_groups
    sizes = {int(group.kv_cache_spec.block_size) for group in groups}
    if len(sizes) != 1:
        fact = "its KV cache groups have blocks of different sizes"
        raise InputError(say(f"a model with blocks of {sorted(sizes)} tokens", fact, "run it without QuireConnector"))
    layers = tuple(layer_group(nth, group) for nth, group in enumerate(groups))
    slots = num_slots(model, options.host, world_size)
    if slots < len(groups):
        fact = f"one block takes {len(groups) * slot_bytes(model, world_size)} bytes in all layers and ranks"
        raise InputError(say(f"host memory of {options.host} bytes", fact, "give 'host' more"))
    size = page_bytes or max(layer.page_bytes for layer in layers)
    layers = tuple(replace(layer, page_bytes=size, pool=POOL if len(layers) > 1 else None) for layer in layers)
    tiers = [TierConfig("device", 0), TierConfig("host", slots)]
    if options.disk is not None:
        tiers.append(TierConfig("disk", disk_slots(options.disk_bytes, page_bytes), slow=True))
    return CacheConfig(
        tuple(tiers), sizes.pop(), layers, max_length=max_length, partial_reuse=False, eviction=options.eviction,
        eviction_cost=options.eviction_cost, compute_doubles_at=options.compute_doubles_at,
        receipts=options.receipts, receipt_chunks=options.receipt_chunks,
        events=events, lasting=options.disk is not None,
    )  # fmt: skip


def disk_slots(disk_bytes: int, page_bytes: int) -> int:
    """Slots on disk, each for a page of any group."""
    from quire.tiers.disk import slots_for  # needs xxhash, which host memory alone does without

    slots = slots_for(disk_bytes, [page_bytes])
    if slots < 1:
        fact = f"one page takes {page_bytes} bytes in all ranks"
        raise InputError(say(f"a disk of {disk_bytes} bytes", fact, "give 'disk_bytes' more"))
    return slots


def slot_bytes(model: Any, world_size: int) -> int:
    """Host memory of one slot, in all ranks: a page of any group.

    From vLLM's allocation, which its scheduler and its workers know alike; of the specs they have different forms.
    Rounded up to the machine's page size (4 or 64 KiB), as vLLM's region is.
    """
    of_rank = int(model.kv_cache_tensors[0].size) // int(model.num_blocks)
    return -(-of_rank * world_size // mmap.PAGESIZE) * mmap.PAGESIZE


def num_slots(model: Any, host: int, world_size: int) -> int:
    """Slots in all: scheduler and workers come to the same number, each on its own."""
    return host // slot_bytes(model, world_size)


def check_outer(options: ConnectorOptions, parallel: Any) -> None:
    """Refuse what pages below host memory were not built for, by name."""
    if not options.outer:
        return
    ask = f"option {'disk' if options.disk is not None else 'shared'} of QuireConnector"
    if getattr(parallel, "nnodes", 1) > 1:
        fact = "the scheduler moves the pages of all ranks, and some of them are on other machines"
        raise InputError(say(f"{ask} with {parallel.nnodes} nodes", fact, "use one node for each engine"))


def redo_blocks(speculative: Any) -> int:
    """Blocks at the end of what is found that vLLM must compute all the same.

    A drafter that reads the model's hidden states (EAGLE, MTP) keeps at each place what it made of the next token. At
    the end of what a request shares with another, that is the other's next token.
    """
    return int(speculative is not None and speculative.use_eagle_block_drop())


def check_engine(parallel: Any, speculative: Any, role: str) -> None:
    """Refuse what was not built for, by name."""
    for name in ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            fact = "pages are kept per rank, and all ranks must have the same blocks"
            raise InputError(say(f"{name} {getattr(parallel, name)}", fact, "use tensor_parallel_size"))
    known = sorted(NO_DRAFT_LAYERS | DRAFT_LAYERS)
    if speculative is not None and speculative.method not in known:
        fact = f"nobody has looked at what its layers keep; known are {', '.join(known)}"
        raise InputError(say(f"speculative decoding by {speculative.method}", fact, "draft by one of these"))
    if role != "kv_both":
        fact = "it stores what it will load itself"
        raise InputError(say(f"kv_role {role} for QuireConnector", fact, "write kv_role: kv_both"))
