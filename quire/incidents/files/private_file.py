"""A gzipped file that only its owner may read, and that has its name when it is whole."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable
from pathlib import Path


def write_private(path: Path, parts: Iterable[bytes]) -> None:
    """Write some parts; an error leaves nothing behind."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with (
            open(part, "wb", opener=_private) as raw,
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as file,
        ):
            for one in parts:
                file.write(one)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
