"""Lines of a file, packed or not, or of standard input: of bounded length, read once. Knows nothing of what they say.

gzip and zstd are recognised by content, not by name.
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, cast

from quire.core.records.errors import InputError, MissingExtra, install_line, say

STDIN = "-"
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
BEGINNING = 4  # bytes that tell them
Passed = Callable[[int], None]


class BrokenStream(Exception):
    """Packed data that ends or breaks before its end: what was found."""


@contextmanager
def open_lines(
    path: str | Path, longest: int, *, passed: Passed | None = None, others: str = ""
) -> Iterator[Iterator[bytes]]:
    """Its lines, "-" for standard input. Of one longer than `longest` comes that much and a byte; the rest is skipped.

    `passed` hears how many more bytes of the file have been read. An error names `others` that might have been meant.
    """
    cure = f"name a readable file{others}"
    if str(path) == STDIN:
        stdin = cast(io.BufferedReader, getattr(sys.stdin, "buffer", sys.stdin))
        yield _lines(_counted(stdin, passed), longest, lambda error: _unreadable(path, error, cure))
        return
    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise _unreadable(path, error, cure) from None
    with file:
        yield _lines(_counted(file, passed), longest, lambda error: _unreadable(path, error, cure))


def _unreadable(path: str | Path, wrong: OSError, cure: str) -> InputError:
    return InputError(say(f"trace {str(path)!r}", f"{wrong.strerror or wrong}", cure))


def _counted(file: io.BufferedReader, passed: Passed | None) -> io.BufferedReader:
    return file if passed is None else io.BufferedReader(_Counted(file, passed), 1 << 16)


class _Counted(io.RawIOBase):
    """Counts how much of another stream was read."""

    def __init__(self, inner: io.BufferedReader, passed: Callable[[int], None]) -> None:
        self._inner, self._passed = inner, passed

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        count = self._inner.readinto1(room)
        self._passed(count)
        return count


def _unpacked(file: io.BufferedReader) -> BinaryIO:
    """What it says; read once from its beginning to its end, so a pipe will do."""
    beginning = file.peek(BEGINNING)[:BEGINNING]
    if beginning[: len(GZIP)] == GZIP:
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    return cast(BinaryIO, zstd().ZstdFile(file)) if beginning == ZSTD else file


def zstd() -> Any:
    """Python's own module for zstd, or the same for those before 3.14."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise MissingExtra(say("zstd", "no package for it is installed", install_line("trace")))


def _lines(file: io.BufferedReader, longest: int, wrap: Callable[[OSError], InputError]) -> Iterator[bytes]:
    kind = "packed"
    try:
        stream = _unpacked(file)
        kind = "gzip" if isinstance(stream, gzip.GzipFile) else "zstd"
        while text := stream.readline(longest + 1):
            yield text
            while len(text) > longest and not text.endswith(b"\n"):
                text = stream.readline(longest + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as broken:
        raise BrokenStream(f"the {kind} data ends or breaks here ({broken})") from None
    except OSError as error:
        raise wrap(error) from None
    except Exception as broken:
        if type(broken).__name__ != "ZstdError":  # of whichever module it was
            raise
        raise BrokenStream(f"the zstd data ends or breaks here ({broken})") from None
