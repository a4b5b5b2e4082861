"""Fitting: how many pages of each pool fit into an amount of memory, as a config. Knows no cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from quire.core.records.config import MOST_SLOTS, CacheConfig
from quire.core.records.errors import InputError, say
from quire.core.records.groups import LayerGroup, pools_of
from quire.core.records.memory import parse_bytes, say_bytes
from quire.engine.model.layers import Model
from quire.engine.setup.engine_config import EngineConfig

SECTORS, MANIFEST = 4096, 256  # of a disk tier: a page takes a multiple of the one, and at most the other besides


class Load(NamedTuple):
    """What an engine has under way at most: it decides how much windows and states take."""

    block_size: int
    sequences: int
    chunk: int  # tokens of a prompt in one step


def fitting(
    model: Model, device_bytes: int | str, host_bytes: int | str = 0, disk_bytes: int | str = 0, **settings: Any
) -> EngineConfig:
    """A config whose pages fill so much memory ("40GB", "512MiB", bytes); `settings`: other fields of EngineConfig."""
    settings.setdefault("max_length", min(model.max_length, 8192))
    settings.setdefault("max_sequences", 32)
    plain = EngineConfig(1, **settings)
    groups = model.groups(plain.block_size, plain.snapshot_every)
    load = Load(plain.block_size, plain.max_sequences, plain.longest_chunk)
    nothing_yet = (0,) * (max(pools_of(groups)) + 1)
    device = _tier_pages(("device memory", device_bytes), groups, load, nothing_yet)
    has_host = parse_bytes(host_bytes, "host memory") > 0
    settings["host_pages"] = _tier_pages(("host memory", host_bytes), groups, load, device) if has_host else 0
    if parse_bytes(disk_bytes, "disk") > 0:
        others = device if not has_host else tuple(map(sum, zip(device, settings["host_pages"], strict=True)))
        settings["disk_pages"] = _tier_pages(("disk", _for_pages(disk_bytes, groups)), groups, load, others)
    return EngineConfig(device, **settings)


def check_room(model: Model, device: str, device_bytes: int | str) -> None:
    """Refuse what a GPU cannot hold: the weights of a model (which need not be read yet) and so much for pages."""
    where = torch.device(device)
    if where.type != "cuda":
        return
    total = torch.cuda.get_device_properties(where).total_memory
    check_total(sum(one.numel() * one.element_size() for one in model.module.parameters()), device_bytes, total)


def check_total(weights: int, device_bytes: int | str, total: int) -> None:
    """Refuse pages that do not fit beside the weights into so much memory."""
    pages = parse_bytes(device_bytes, "device memory")
    if weights + pages > total:
        fact = f"with {say_bytes(weights)} of weights that is more than the {say_bytes(total)} of the device"
        left = f"give at most {say_bytes(max(0, total - weights))}"
        raise InputError(say(f"device memory of {say_bytes(pages)}", fact, left))


def _for_pages(disk_bytes: int | str, groups: tuple[LayerGroup, ...]) -> int:
    """What is left for pages where each takes whole sectors and a place in the manifest."""
    share = min(group.page_bytes / (-(-group.page_bytes // SECTORS) * SECTORS + MANIFEST) for group in groups)
    return int(parse_bytes(disk_bytes, "disk") * share)


def _tier_pages(
    asked: tuple[str, int | str], groups: tuple[LayerGroup, ...], load: Load, others: tuple[int, ...]
) -> tuple[int, ...]:
    """Pages per pool for a kind of memory and its amount, beside those of other tiers; errors speak of that amount."""
    what, amount = asked
    num_bytes = parse_bytes(amount, what)
    ask = f"{what} of {amount.strip() if isinstance(amount, str) else f'{num_bytes} bytes'}"
    pages = pages_in(num_bytes, groups, load, ask)
    left = tuple(MOST_SLOTS - other for other in others)  # the store counts the pages of all tiers together
    if any(count > most for count, most in zip(pages, left, strict=True)):
        blocks = _largest(_most_blocks(num_bytes, groups), lambda blocks: _countable(blocks, groups, load, left))
        most = _bytes(blocks, groups, load) if blocks >= 2 else 0
        fact = f"this model's pages can fill at most {most} bytes ({say_bytes(most)})"
        raise InputError(say(ask, fact, "give less"))
    return pages


def pages_in(num_bytes: int, groups: tuple[LayerGroup, ...], load: Load, ask: str = "") -> tuple[int, ...]:
    """Pages per pool, so that all groups hold about equally many tokens of context, and as many as fit.

    A window group holds what the sequences read at once, and the same again for reuse; a state group a current state
    and a snapshot for each sequence, and then the regular ones. A pool has the pages of all its groups together; which
    of them has how many is not decided here.
    """
    blocks = _largest(_most_blocks(num_bytes, groups), lambda blocks: _bytes(blocks, groups, load) <= num_bytes)
    if blocks < 2:
        least = _bytes(2, groups, load)
        ask = ask or f"a cache of {num_bytes} bytes"
        raise InputError(say(ask, f"two blocks take {least} bytes", "give more memory"))
    return _pool_pages(blocks, groups, load)


def _most_blocks(num_bytes: int, groups: tuple[LayerGroup, ...]) -> int:
    return num_bytes // min(group.page_bytes for group in groups)


def _largest(high: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `high` that fits; 0 if none does."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _countable(blocks: int, groups: tuple[LayerGroup, ...], load: Load, left: tuple[int, ...]) -> bool:
    return all(pages <= most for pages, most in zip(_pool_pages(blocks, groups, load), left, strict=True))


def _bytes(blocks: int, groups: tuple[LayerGroup, ...], load: Load) -> int:
    return sum(_pages(blocks, group, load) * group.page_bytes for group in groups)


def _pool_pages(blocks: int, groups: tuple[LayerGroup, ...], load: Load) -> tuple[int, ...]:
    pools = pools_of(groups)
    pages = [0] * (max(pools) + 1)
    for pool, group in zip(pools, groups, strict=True):
        pages[pool] += _pages(blocks, group, load)
    return tuple(pages)


def _pages(blocks: int, group: LayerGroup, load: Load) -> int:
    size = load.block_size
    if group.current:
        regular = blocks * size // group.snapshot_every if group.snapshot_every else 0
        return 2 * load.sequences + 2 + regular
    if group.window is None:
        return blocks
    return min(blocks, 2 * load.sequences * group.running(size) + group.tail(size) + 2 * -(-load.chunk // size))


def _groups_of_pools(config: CacheConfig) -> list[str]:
    """Who lives in each pool."""
    homes = list(zip(config.pool_of, config.groups, strict=True))
    pools = range(config.num_pools)
    names = [[repr(group.name) for home, group in homes if home == pool] for pool in pools]
    return [" or ".join(filter(None, (", ".join(some[:-1]), some[-1]))) for some in names]


def memory_in_words(config: CacheConfig) -> str:
    """Pages per tier and pool."""
    tiers = []
    for tier in config.tiers:
        pages = [f"{tier.of_pool(pool):,} of {names}" for pool, names in enumerate(_groups_of_pools(config))]
        tiers.append(f"{' and '.join(pages)} in {tier.name} memory")
    return f"pages: {', '.join(tiers)}; {config.block_size} tokens each"
