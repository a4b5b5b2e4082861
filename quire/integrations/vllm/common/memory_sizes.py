"""Memory sizes: bytes of an option that says "40GB" or "20%". Owns what a percentage is taken of; knows no vLLM."""

from __future__ import annotations

import re
from pathlib import Path
from shutil import disk_usage

from quire.core.records.errors import InputError, say, shown
from quire.core.records.memory import parse_bytes
from quire.tiers.host_limit import ROOT, memory_limit

_PERCENT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%\s*")


def host_bytes(given: object, root: Path = ROOT) -> int:
    """Of host memory; a percentage is of what this process, or its container, may have."""
    share = _share(given, "host memory")
    if share is None:
        return parse_bytes(given, "host memory")  # type: ignore[arg-type]  # it looks at what it is given
    most = memory_limit(root)
    if most is None:
        fact = "how much memory there is cannot be read here"
        raise InputError(say(f"host memory of {shown(given)}", fact, "write 40GB, or a number of bytes"))
    return int(most * share)


def disk_bytes(given: object, folder: object) -> int:
    """On disk; a percentage is of the file system that the folder is on, or will be."""
    share = _share(given, "a disk")
    if share is None:
        return parse_bytes(given, "a disk")  # type: ignore[arg-type]  # the same
    if not isinstance(folder, str) or not folder:
        raise InputError(say(f"a disk of {shown(given)}", "it has no folder", "write disk=/folder too"))
    there = Path(folder).absolute()
    try:
        while not there.exists():
            there = there.parent
        return int(disk_usage(there).total * share)
    except OSError as wrong:
        fact = f"the file system of {shown(folder)} cannot be asked ({wrong.strerror or wrong})"
        cure = "name a folder that can be opened, or write disk_bytes=500GB"
        raise InputError(say(f"a disk of {shown(given)}", fact, cure)) from None


def is_percent(given: object) -> bool:
    """Whether it is taken of a machine, and may differ between machines."""
    return isinstance(given, str) and _PERCENT.fullmatch(given) is not None


def _share(given: object, what: str) -> float | None:
    found = _PERCENT.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        return None
    if not 0 < float(found[1]) <= 100:
        raise InputError(say(f"{what} of {shown(given)}", "it is not a part of a whole", "write 1% to 100%"))
    return float(found[1]) / 100
