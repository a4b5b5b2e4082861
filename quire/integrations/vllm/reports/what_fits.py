"""What fits: one line at start that says how many pages and tokens each tier has room for. Counts nothing later."""

from __future__ import annotations

from quire.core.records.config import CacheConfig
from quire.core.records.memory import say_bytes
from quire.integrations.vllm.common.cache_groups import DISK, HOST
from quire.integrations.vllm.common.connector_options import ConnectorOptions


def num_tokens(config: CacheConfig, tier: int, length: int) -> int:
    """Tokens that a tier holds in texts of `length` tokens each: of a window group a text needs its last pages only."""
    size = config.block_size
    pages = sum(len(span) for group in config.groups for span in group.needs_at(length, size))
    return config.tiers[tier].of_pool(0) * length // max(1, pages)


def fits_line(
    config: CacheConfig, options: ConnectorOptions, *, length: int, limit: int | None, restored: int = 0
) -> str:
    """For the log; `limit` is what this process may have, `restored` the pages that were found on disk."""
    of = "" if limit is None else f" of {say_bytes(limit)}"
    told = [f"host {say_bytes(options.host)}{of}: {_room(config, HOST, length)}"]
    if options.disk is not None:
        told.append(f"disk {say_bytes(options.disk_bytes)}: {_room(config, DISK, length)}, {restored:,} found there")
    if options.shared is not None:
        told.append("a shared store")
    groups = "" if len(config.groups) == 1 else f" of one of {len(config.groups)} groups"
    return f"Quire keeps pages of {config.block_size} tokens{groups}, texts counted at {length:,}; {'; '.join(told)}"


def _room(config: CacheConfig, tier: int, length: int) -> str:
    return f"{config.tiers[tier].of_pool(0):,} pages, {num_tokens(config, tier, length):,} tokens"
