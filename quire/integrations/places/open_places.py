"""Opens the disk and the shared store that a plug's options name. Knows no engine."""

from __future__ import annotations

from typing import Any

from quire.core.records.memory import parse_bytes
from quire.integrations.places.place_options import PlaceOptions
from quire.tiers.disk import DiskIO, slots_for
from quire.tiers.disk.keyed import KeyDisk
from quire.tiers.shared import SharedConfig, open_store
from quire.tiers.shared.keyed import KeyStore


def disk_of(options: PlaceOptions, which: bytes, page_bytes: int, share: float = 1.0, **more: Any) -> KeyDisk:
    """Their disk, or a share of it, with pages of that print and size. `more` goes to the disk."""
    slots = int(slots_for(int(parse_bytes(options.bytes, "a disk") * share), (page_bytes,)))
    io = DiskIO(deadline=options.deadline)
    return KeyDisk(options.folder, which, page_bytes, slots, eviction=options.eviction, io=io, **more)


def store_of(options: PlaceOptions, which: bytes, page_bytes: int) -> KeyStore:
    """Their store."""
    config = SharedConfig(options.shared, folder_bytes=options.shared_bytes)
    return KeyStore(open_store(config), which, page_bytes, wait=options.wait)


def both_of(
    options: PlaceOptions, which: bytes, page_bytes: int, **more: Any
) -> tuple[KeyDisk | None, KeyStore | None]:
    """Whichever are named; none stays open where one cannot be opened."""
    store = store_of(options, which, page_bytes) if options.shared else None
    try:
        return disk_of(options, which, page_bytes, **more) if options.folder else None, store
    except BaseException:
        if store is not None:
            store.close()
        raise
