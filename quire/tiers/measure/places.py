"""Places that pages can lie in, each measured by the same four acts: write, read in order, read scattered, look up.

Knows bytes and no tokens. A place leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from quire.core.records.errors import InputError, say
from quire.tiers.base import Bytes
from quire.tiers.page_digest import DIGEST_BYTES, TAG_BYTES

PATIENCE = 60.0  # seconds for one batch


class Place(Protocol):
    """Memory for `count` pages."""

    kind: str
    name: str

    def write(self, numbers: Sequence[int], pages: Sequence[Bytes]) -> None:
        """Keep these pages."""
        ...

    def read(self, numbers: Sequence[int], into: Sequence[Bytes]) -> None:
        """Fetch them."""
        ...

    def look_up(self, numbers: Sequence[int]) -> None:
        """Ask whether they are there."""
        ...

    def room(self) -> int | None:
        """Bytes that pages could take here; None: unknown."""
        ...

    def close(self) -> None:
        """Remove what was written."""
        ...


class HostPlace:
    """Plain memory, copied to and from."""

    kind, name = "host", "host memory"

    def __init__(self, count: int, page_bytes: int) -> None:
        self._arena = np.zeros((count, page_bytes), np.uint8)

    def write(self, numbers: Sequence[int], pages: Sequence[Bytes]) -> None:
        """Copy them in."""
        for number, page in zip(numbers, pages, strict=True):
            self._arena[number] = page

    def read(self, numbers: Sequence[int], into: Sequence[Bytes]) -> None:
        """Copy them out."""
        for number, page in zip(numbers, into, strict=True):
            page[:] = self._arena[number]

    def look_up(self, numbers: Sequence[int]) -> None:
        """An index that costs nothing."""

    def room(self) -> int | None:
        """Half of what is free now."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path("/proc/meminfo").read_text().splitlines():
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024 // 2
        return None

    def close(self) -> None:
        """Nothing is kept."""
        self._arena = np.zeros((0, 1), np.uint8)


class DiskPlace:
    """Slots of one file in a folder, past the page cache as far as the system allows."""

    kind = "disk"

    def __init__(self, folder: str, count: int, page_bytes: int) -> None:
        self.name = f"folder {folder}"
        self._size = page_bytes
        free = shutil.disk_usage(folder).free
        if free < 2 * count * page_bytes:
            fact = f"it has {free} bytes free, and {count * page_bytes} would be written"
            raise InputError(say(f"folder {folder!r}", fact, "give --bytes less, or another folder"))
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  # closed by close
        self._folder = folder
        self._file.truncate(count * page_bytes)

    def write(self, numbers: Sequence[int], pages: Sequence[Bytes]) -> None:
        """Write them, and wait until the disk has them."""
        for number, page in zip(numbers, pages, strict=True):
            if os.pwrite(self._file.fileno(), page.data, number * self._size) != self._size:
                raise OSError(f"a page could not be written whole in {self._folder}")
        os.fsync(self._file.fileno())
        self._leave_page_cache()

    def read(self, numbers: Sequence[int], into: Sequence[Bytes]) -> None:
        """Read them."""
        for number, page in zip(numbers, into, strict=True):
            if os.preadv(self._file.fileno(), [page.data], number * self._size) != self._size:
                raise OSError(f"a page could not be read whole in {self._folder}")
        self._leave_page_cache()

    def _leave_page_cache(self) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def look_up(self, numbers: Sequence[int]) -> None:
        """An index that costs nothing: its owner has it in memory."""

    def room(self) -> int | None:
        """Four fifths of what is free now."""
        return shutil.disk_usage(self._folder).free * 4 // 5

    def close(self) -> None:
        """The file has no name: it goes with this."""
        self._file.close()


class StorePlace:
    """A shared store, in a scope of its own that is removed at the end."""

    kind = "store"

    def __init__(self, place: str) -> None:
        from quire.tiers.shared import SharedConfig, SharedStore, open_store

        self._store: SharedStore = open_store(SharedConfig(place))
        self.name = self._store.name
        self._tag = os.urandom(TAG_BYTES)
        self.look_up([0])  # a store that does not answer fails now

    def _names(self, numbers: Sequence[int]) -> list[bytes]:
        return [self._tag + number.to_bytes(DIGEST_BYTES, "big") + bytes(2) for number in numbers]

    def write(self, numbers: Sequence[int], pages: Sequence[Bytes]) -> None:
        """Put them."""
        self._check(self._store.put_many(self._names(numbers), pages, time.monotonic() + PATIENCE))

    def read(self, numbers: Sequence[int], into: Sequence[Bytes]) -> None:
        """Get them."""
        self._check(self._store.get_many(self._names(numbers), into, time.monotonic() + PATIENCE))

    def look_up(self, numbers: Sequence[int]) -> None:
        """Ask for them."""
        self._store.exists_many(self._names(numbers), time.monotonic() + PATIENCE)

    def _check(self, answers: Sequence[object]) -> None:
        wrong = next((answer for answer in answers if answer is not None), None)
        if wrong is not None:
            fact = f"a page that was just written is {wrong}"
            raise InputError(say(f"store {self.name}", fact, "give it more memory, or --bytes less"))

    def room(self) -> int | None:
        """What it may keep is said where it runs."""
        return None

    def close(self) -> None:
        """Take out what was written."""
        from quire.tiers.shared import StoreError

        with contextlib.suppress(StoreError):  # what is left is unreferenced, and is evicted
            self._store.remove_scope(self._tag, time.monotonic() + PATIENCE)
        self._store.close()
