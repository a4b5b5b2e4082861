"""Fitting: how many pages of each layer group fit into an amount of memory, as a config. Knows no cache."""

from __future__ import annotations

from typing import Any, NamedTuple

from quire.core.records.config import CacheConfig
from quire.core.records.errors import InputError, say
from quire.core.records.groups import LayerGroup
from quire.core.records.memory import parse_bytes
from quire.engine.model.layers import Model
from quire.engine.settings import EngineConfig


class Load(NamedTuple):
    """What an engine has under way at most: it decides how much windows and states take."""

    block_size: int
    sequences: int
    chunk: int  # tokens of a prompt in one step


def fitting(model: Model, device_bytes: int | str, host_bytes: int | str = 0, **settings: Any) -> EngineConfig:
    """A config whose pages fill so much memory ("40GB", "512MiB", bytes); `settings`: other fields of EngineConfig."""
    settings.setdefault("max_length", min(model.max_length, 8192))
    settings.setdefault("max_sequences", 32)
    plain = EngineConfig(1, **settings)
    groups = model.groups(plain.block_size, plain.snapshot_every)
    load = Load(plain.block_size, plain.max_sequences, plain.longest_chunk)
    device, host = parse_bytes(device_bytes), parse_bytes(host_bytes)
    settings["host_pages"] = pages_in(host, groups, load) if host else 0
    return EngineConfig(pages_in(device, groups, load), **settings)


def pages_in(num_bytes: int, groups: tuple[LayerGroup, ...], load: Load) -> tuple[int, ...]:
    """Pages per group, so that all hold about equally many tokens of context, and as many as fit.

    A window group holds what the sequences read at once, and the same again for reuse; a state group a current state
    and a snapshot for each sequence, and then the regular ones.
    """
    low, high = 0, num_bytes // min(group.page_bytes for group in groups)
    while low < high:
        blocks = (low + high + 1) // 2
        fits = _bytes(blocks, groups, load) <= num_bytes
        low, high = (blocks, high) if fits else (low, blocks - 1)
    if low < 2:
        least = _bytes(2, groups, load)
        raise InputError(say(f"a cache of {num_bytes} bytes", f"two blocks take {least}", "give more memory"))
    return tuple(_pages(low, group, load) for group in groups)


def _bytes(blocks: int, groups: tuple[LayerGroup, ...], load: Load) -> int:
    return sum(_pages(blocks, group, load) * group.page_bytes for group in groups)


def _pages(blocks: int, group: LayerGroup, load: Load) -> int:
    size = load.block_size
    if group.current:
        regular = blocks * size // group.snapshot_every if group.snapshot_every else 0
        return 2 * load.sequences + 2 + regular
    if group.window is None:
        return blocks
    return min(blocks, 2 * load.sequences * group.running(size) + group.tail(size) + 2 * -(-load.chunk // size))


def memory_in_words(config: CacheConfig) -> str:
    """Pages per tier and layer group."""
    tiers = []
    for tier in config.tiers:
        pages = [f"{tier.of_group(nth):,} of {group.name!r}" for nth, group in enumerate(config.groups)]
        tiers.append(f"{' and '.join(pages)} in {tier.name} memory")
    return f"pages: {', '.join(tiers)}; {config.block_size} tokens each"
