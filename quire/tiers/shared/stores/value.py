"""Values: a page as a store keeps it, behind a header. Owns the format; knows no store.

    magic 4 | format 2 | 0 2 | length 8 | checksum 8 | page ...        little-endian, 24 bytes

The checksum is XXH3 over the page, seeded by its name: a page under another's name is as bad as a flipped bit.
"""

from __future__ import annotations

import struct

from quire.core.records.errors import MissingExtra, install_line, say
from quire.tiers.base import Bytes
from quire.tiers.shared.stores.store import StoreMiss

try:
    import xxhash
except ImportError as missing:
    raise MissingExtra(say("quire.tiers.shared", f"it needs xxhash ({missing})", install_line("shared"))) from missing

MAGIC, FORMAT = b"QPag", 1
LAST_FORMAT = 255  # formats are counted from 1: no version writes another number
_HEADER = struct.Struct("<4sHHQQ")
HEADER_BYTES = _HEADER.size


def header(name: bytes, page: Bytes) -> bytes:
    """What stands before a page."""
    return _HEADER.pack(MAGIC, FORMAT, 0, page.nbytes, checksum(name, page))


def checksum(name: bytes, page: Bytes) -> int:
    """Of the page under this name."""
    return int(xxhash.xxh3_64_intdigest(page.data, xxhash.xxh3_64_intdigest(name)))


def verdict(name: bytes, head: bytes | bytearray | memoryview, page: Bytes) -> StoreMiss | None:
    """Whether header and page belong together and to the name; None: they do."""
    if len(head) != HEADER_BYTES:
        return StoreMiss.SIZE
    magic, form, zero, length, check = _HEADER.unpack(head)
    if magic != MAGIC or zero or not 0 < form <= LAST_FORMAT:
        return StoreMiss.DAMAGED
    if form != FORMAT:
        return StoreMiss.FORMAT
    if length != page.nbytes:
        return StoreMiss.SIZE
    return None if check == checksum(name, page) else StoreMiss.DAMAGED
