"""OutputFile: a file that has its name only when it is whole. Until then it is called NAME.PID.part. Knows no lines."""

from __future__ import annotations

import gzip
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

from quire.core.records.errors import InputError, say

BUFFER = 1 << 18  # bytes
Pack = Callable[[BinaryIO], BinaryIO]  # a stream that packs what is written into another


def pack_gzip(inner: BinaryIO) -> BinaryIO:
    """What is written, as gzip."""
    return cast(BinaryIO, gzip.GzipFile(filename="", mode="wb", fileobj=inner, compresslevel=6, mtime=0))


class OutputFile:
    """`with OutputFile(path) as file: file.write(...)`: an error, or a `discard`, leaves nothing behind.

    What is not a plain file (a pipe, /dev/stdout) is written directly.
    """

    def __init__(self, path: str | Path, pack: Pack | None = None) -> None:
        self._path = Path(path)
        self._part: Path | None = None
        try:
            direct = self._path.exists() and not stat.S_ISREG(self._path.stat().st_mode)
            if direct and self._path.is_dir():
                raise IsADirectoryError("it is a folder")
            if not direct:
                self._path = Path(os.path.realpath(path))  # a link stays, and what it names is replaced
                self._part = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
            self._raw: BinaryIO = open(self._part or self._path, "wb", buffering=BUFFER)  # noqa: SIM115
        except OSError as error:
            fact = f"{error.strerror or error}"
            raise InputError(say(f"output {str(path)!r}", fact, "name a file that can be written")) from None
        self._packed = self._raw if pack is None else pack(self._raw)

    def write(self, data: bytes) -> None:
        """Behind what is there."""
        self._packed.write(data)

    def flush(self) -> None:
        """So that others can read what was written."""
        self._packed.flush()
        self._raw.flush()

    def finish(self) -> None:
        """It is whole: it gets its name."""
        try:
            self._close()
            if self._part is not None:
                os.replace(self._part, self._path)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """It is not: what there is goes away."""
        with suppress(OSError):  # the disk is full: what was in the buffer is lost in any case
            self._raw.close()  # not the packed one: it would write its end
        if self._part is not None:
            self._part.unlink(missing_ok=True)

    def abandon(self) -> Path:
        """It never becomes whole, but what there is may be worth having: it keeps the name it has; which."""
        with suppress(OSError):
            self._close()
        with suppress(OSError):
            self._raw.close()
        return self._part or self._path

    def _close(self) -> None:
        if self._packed is not self._raw:
            self._packed.close()
        self._raw.close()

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.discard()
