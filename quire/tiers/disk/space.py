"""What a folder of pages may take: slots and manifest on the disk, an index in memory. Owns the numbers and what is
refused for want of room, before any of it is taken. Keeps nothing open.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quire.core.records.config import CacheConfig
from quire.core.records.errors import InputError, StateError, say
from quire.core.records.reports.index_size import index_size
from quire.tiers.disk.calls.files import Files
from quire.tiers.disk.log.frames import ManifestHead
from quire.tiers.disk.log.read_manifest import NAME
from quire.tiers.disk.pages.slots import page_file, slot_bytes
from quire.tiers.disk.ranks.rank import rank_folders

INDEX_BYTES = 200  # of memory per page on disk: its block, its tokens, its place; with blocks of 16 tokens
CHECKSUM_BYTES = 9 + 4  # of memory per page: its sum, and its block's number after the log was compacted
MANIFEST_BYTES = 256  # of disk per page, at most, with a block of 16 tokens: twice, while it is compacted


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """What a folder may take; None: as much as the slots ask for, or half of the memory that is free.

    `page_index`: memory that one page takes in the cache (`index_size(config).page`), and here. `pool_of`: by group the
    number of its pool (`CacheConfig.pool_of`), as groups of one pool have their slots together; (): none have.
    """

    disk_bytes: int | None = None
    index_bytes: int | None = None
    page_index: int = INDEX_BYTES
    pool_of: tuple[int, ...] = ()


def slots_for(disk_bytes: int, page_bytes: Sequence[int]) -> int:
    """How many slots per layer group fit into so many bytes, manifest included."""
    each = sum(slot_bytes(size) for size in page_bytes) + MANIFEST_BYTES * len(page_bytes)
    return max(0, disk_bytes // each)


def page_index(config: CacheConfig) -> int:
    """Memory that a page on disk takes, in such a cache and here, at most."""
    return index_size(config).page + CHECKSUM_BYTES


def check_index(config: CacheConfig) -> None:
    """Refuse a slow tier whose index may not fit into half of the free memory. Call it before the cache is made."""
    slots = [config.tiers[-1].of_pool(pool) for pool in range(config.num_pools)]
    check_slots_index(slots, DiskLimits(page_index=page_index(config)))


def check_slots_index(num_slots: Sequence[int], limits: DiskLimits) -> None:
    need = limits.page_index * sum(num_slots)
    have = limits.index_bytes if limits.index_bytes is not None else _free_memory() // 2
    if need > have:
        fact = f"their index may take {_size(need)} of memory, and {_size(have)} may be used for it"
        raise InputError(say(f"{sum(num_slots)} pages on disk", fact, "use less disk, or longer blocks"))


def slots_once(num_slots: Sequence[int], pool_of: Sequence[int]) -> list[int]:
    """By group, those of a pool with its first group alone."""
    return [slots if pool_of[group] == group else 0 for group, slots in enumerate(num_slots)]


def check_space(files: Files, folder: Path, head: ManifestHead, num_slots: Sequence[int], limits: DiskLimits) -> None:
    num_slots = slots_once(num_slots, head.pool_of)
    sizes = [slots * slot_bytes(size) for slots, size in zip(num_slots, head.page_bytes, strict=True)]
    total = sum(sizes) + MANIFEST_BYTES * sum(num_slots)
    if limits.disk_bytes is not None and total > limits.disk_bytes:
        fact = f"slots and manifest take {_size(total)}, and {_size(limits.disk_bytes)} is the limit"
        raise InputError(say(f"{sum(num_slots)} pages on disk", fact, "give it fewer slots or more disk"))
    places = [folder, *rank_folders(folder)]
    here = [sum(_size_of(files, place / page_file(group)) for place in places) for group in range(len(sizes))]
    there = sum(map(min, here, sizes))
    if there == sum(sizes):  # nothing is added: where there is no room for records, copying down stalls
        return
    there += min(_size_of(files, folder / NAME), total - sum(sizes))
    free = files.free_bytes(folder)
    if total - there > free:
        fact = f"{_size(total - there)} more would be needed, and {_size(free)} are free"
        cure = "use less, or delete what other models left there: `quire fsck` lists it"
        raise StateError(say(f"folder {str(folder.parent)!r}", fact, cure))


def _size_of(files: Files, path: Path) -> int:
    try:
        file = files.open(path)
    except FileNotFoundError:
        return 0
    try:
        return file.size()
    finally:
        file.close()


def _free_memory() -> int:
    """Bytes that this machine could still use, as far as it says."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.3g} GB" if num_bytes >= 10**8 else f"{num_bytes / 1e6:.3g} MB"
