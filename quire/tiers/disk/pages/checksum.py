"""The checksum of pages and of the manifest's records: xxh3, 64 bits, from a library. Owns the choice of it and nothing
else; it finds damage, and does not defend against a process that may write the files.
"""

from __future__ import annotations

from typing import Protocol

from quire.core.records.errors import MissingExtra, install_line, say
from quire.tiers.base import Bytes

try:
    import xxhash
except ImportError as missing:
    raise MissingExtra(say("a disk tier", f"it needs xxhash ({missing})", install_line("disk"))) from missing


def checksum(data: Bytes | bytes, seed: int = 0) -> int:
    """The checksum of one stretch of bytes; other threads run meanwhile."""
    return xxhash.xxh3_64_intdigest(data if isinstance(data, bytes) else data.data, seed)


class RunningSum(Protocol):
    """A checksum in the making; as the library has it, since a page takes several calls."""

    def update(self, data: memoryview, /) -> None:
        """More bytes."""
        ...

    def intdigest(self) -> int:
        """The checksum of all bytes so far."""
        ...


def running() -> RunningSum:
    """A new one, of nothing yet."""
    return xxhash.xxh3_64()
