"""Values as people write and read them: amounts of memory, and whatever stands in an error. Knows nothing else."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from quire import InputError
from quire.core.records.errors import say

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_MOST = 2.0**63
_BYTES = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """'40GB', '1.5 GiB', '4096': bytes."""
    found = _BYTES.fullmatch(text)
    if found is None:
        raise InputError(say(f"{text!r} bytes", "it is no amount of memory", "write 40GB, 512MiB or a number"))
    number = float(found[1]) * _FACTORS[(found[2] or "").lower()]
    if number >= _MOST:
        raise InputError(say(f"{text[:20]!r}... bytes", "no machine has so many", "write 40GB, 512MiB or a number"))
    return round(number)


def say_bytes(number: float) -> str:
    """The same, for people: 40.0 GB."""
    for word, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(number) >= factor:
            return f"{number / factor:.1f} {word}"
    return f"{number:.0f} B"


def shown(value: object, most: int = 60) -> str:
    """Any value in an error: short, on one line, whatever somebody put there."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # too many digits, too deep
        text = f"a {type(value).__name__} too large to be shown"
    return cut(text, most)


def cut(text: str, most: int) -> str:
    """The beginning of a long text."""
    return text if len(text) <= most else text[: most - 3] + "..."
