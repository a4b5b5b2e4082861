"""FolderStore: pages as files of a folder, on this machine or on a file system that machines share.

    folder/<tag of the scope>/<first byte of the digest>/<digest>-<group>      one file per page, 0600

A page is written under another name and renamed, so no reader sees half of one. Several processes write, read and sweep
at the same time. Knows no cache.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path

from quire.core.records.errors import InputError, StateError, say, shown
from quire.tiers.base import Bytes
from quire.tiers.page_digest import TAG_BYTES
from quire.tiers.shared.stores.file_calls import FileCalls
from quire.tiers.shared.stores.folder_sweep import TEMPORARY, AbandonedFiles, remove_tree, sweep
from quire.tiers.shared.stores.store import StoreError, StoreMiss
from quire.tiers.shared.stores.value import HEADER_BYTES, header, verdict

TOUCH_AFTER = 60.0  # seconds: a page that is read is young again, and at most so often
SWEEPS = 16  # a process looks at the folder after it has written this part of the quota
_FULL = (errno.ENOSPC, errno.EDQUOT)
_GONE = (errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN, errno.ETIMEDOUT)  # of the whole file system


class FolderStore:
    """Pages as files. With a `quota` in bytes the oldest go when there are more; age counts from the last read."""

    def __init__(self, folder: str | Path, *, quota: int | None = None, files: FileCalls | None = None) -> None:
        if quota is not None and (type(quota) is not int or quota < 1):
            raise InputError(
                say(f"a quota of {shown(quota)}", "that is not a number of bytes", "give 1 or more, or None")
            )
        self.folder, self.quota = Path(folder), quota
        self._files = FileCalls() if files is None else files
        self._fresh = 0 if quota is None else quota  # bytes written since the last sweep: the first put looks
        self._abandoned = AbandonedFiles(self.folder)
        self._numbers, self._closed = 0, False
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            cure = "name a folder that can be written"
            raise InputError(say(f"a shared folder {str(folder)!r}", str(error), cure)) from error

    @property
    def name(self) -> str:
        """For messages."""
        return f"folder {str(self.folder)!r}"

    def __repr__(self) -> str:
        return f"FolderStore({str(self.folder)!r})"

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        """Which are there."""
        self._check_open()
        there: list[bool] = []
        for name in names:
            if time.monotonic() >= deadline:
                raise StoreError(
                    self.name, StoreMiss.LATE, f"{len(there)} of {len(names)} pages were looked up in time"
                )
            try:
                there.append(self._files.size(self._path(name)) > HEADER_BYTES)
            except OSError as error:
                self._refuse_gone(error)
                there.append(False)
        return there

    def get_many(self, names: Sequence[bytes], into: Sequence[Bytes], deadline: float) -> list[StoreMiss | None]:
        """Fill the buffers."""
        self._check_open()
        return [
            StoreMiss.LATE if time.monotonic() >= deadline else self._get(name, page)
            for name, page in zip(names, into, strict=True)
        ]

    def _get(self, name: bytes, page: Bytes) -> StoreMiss | None:
        head = bytearray(HEADER_BYTES)
        try:
            number = self._files.open_read(self._path(name))
            try:
                came = self._files.read(number, [memoryview(head), page.data])
                miss = StoreMiss.SIZE if came != HEADER_BYTES + page.nbytes else verdict(name, head, page)
                if miss is None and self._files.age(number) > TOUCH_AFTER:  # an unusable page ages
                    self._files.touch(number)
            finally:
                self._files.close(number)
        except FileNotFoundError:
            return StoreMiss.ABSENT
        except OSError as error:
            self._refuse_gone(error)
            return StoreMiss.FAILED
        return miss

    def put_many(self, names: Sequence[bytes], pages: Sequence[Bytes], deadline: float) -> list[StoreMiss | None]:
        """Keep the pages."""
        self._check_open()
        if self.quota is not None and self._fresh * SWEEPS >= self.quota:
            self._fresh = 0
            sweep(self.folder, self.quota, deadline)
        if self.quota is None:  # else sweeping does it
            self._abandoned.clean(deadline)
        return [
            StoreMiss.LATE if time.monotonic() >= deadline else self._put(name, page)
            for name, page in zip(names, pages, strict=True)
        ]

    def _put(self, name: bytes, page: Bytes) -> StoreMiss | None:
        size = HEADER_BYTES + page.nbytes
        if self.quota is not None and size > self.quota:
            return StoreMiss.FULL
        path = self._path(name)
        self._numbers += 1
        made = path.parent / f"{TEMPORARY}{os.getpid()}-{self._numbers}-{os.urandom(4).hex()}"
        try:
            number = self._create(made)
            try:
                self._files.write(number, [header(name, page), page.data])
            finally:
                self._files.close(number)
            self._files.rename(made, path)
        except OSError as error:
            self._files.discard(made)
            if error.errno in _FULL:
                return StoreMiss.FULL
            self._refuse_gone(error)
            return StoreMiss.FAILED
        self._fresh += size
        return None

    def _create(self, path: Path) -> int:
        """A new file; its folder is made when it is the first in there, or when a sweep has just removed it."""
        try:
            return self._files.create(path)
        except FileNotFoundError:
            for folder in (path.parent.parent, path.parent):  # the root is not: an unmounted one must not be filled
                self._files.make_folder(folder)
            return self._files.create(path)

    def remove_scope(self, tag: bytes, deadline: float) -> int:
        """Take out every page of a scope."""
        self._check_open()
        return remove_tree(self.folder / tag.hex(), deadline, self.name)

    def close(self) -> None:
        """Nothing is open."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StateError(say(f"shared store {self.name}", "it is closed", "open a new one"))

    def _refuse_gone(self, wrong: OSError) -> None:
        """What is wrong with the whole folder is not the fault of one page."""
        if wrong.errno in _GONE or not self.folder.is_dir():
            raise StoreError(self.name, StoreMiss.UNREACHABLE, str(wrong)) from wrong

    def _path(self, name: bytes) -> Path:
        digest = name[TAG_BYTES:-2]
        group = int.from_bytes(name[-2:], "little")
        return self.folder / name[:TAG_BYTES].hex() / digest[:1].hex() / f"{digest.hex()}-{group}"
