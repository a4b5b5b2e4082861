"""Amounts of memory as people write and read them: "40GB", "512MiB", or a number of bytes. Knows nothing else."""

from __future__ import annotations

import re

from quire.core.records.errors import InputError, say, shown

_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_MOST = 1 << 63
_BYTES = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)
_CURE = "write 40GB, 512MiB or a number of bytes"


def parse_bytes(amount: str | int, what: str = "memory") -> int:
    """Bytes of '40GB' (10**9), '1.5 GiB' (2**30), '4096' or 4096; `what` it is for, in errors."""
    found = _BYTES.fullmatch(amount) if isinstance(amount, str) else None
    number: object = amount if found is None else float(found[1]) * _FACTORS[(found[2] or "").lower()]
    if isinstance(number, bool) or not isinstance(number, int | float) or number < 0 or (not found and number % 1):
        raise InputError(say(f"{what} of {shown(amount)}", "it is not an amount of memory", _CURE))
    if number >= _MOST:
        raise InputError(say(f"{what} of {shown(amount)}", "no machine has so many bytes", "give less"))
    return round(number)


def say_bytes(number: float) -> str:
    """The same, for people: 40.0 GB."""
    for word, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(number) >= factor:
            return f"{number / factor:.1f} {word}"
    return f"{number:.0f} B"
