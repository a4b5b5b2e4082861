"""Compare: equal, or a mismatch that says where. Knows only what values look like."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any


class Mismatch(Exception):
    """A cache did not do what the oracle says."""

    def __init__(self, what: str, difference: str = "") -> None:
        super().__init__(f"{what}: {difference}" if difference else what)
        self.what = what


def kind_of(error: Exception) -> str:
    """What went wrong, without the numbers and names of this one time: equal for failures of one kind."""
    what = error.what if isinstance(error, Mismatch) else f"{type(error).__name__}: {error}"
    return re.sub(r"'[^']*'|\[.*?\]|\b[a-z]?\d+\b", "#", what)


def same(what: str, found: Any, expected: Any) -> None:
    """Equal, or a mismatch that says where."""
    if found != expected:
        raise Mismatch(what, _difference(found, expected))


def _difference(found: Any, expected: Any) -> str:
    if is_dataclass(found) and type(found) is type(expected):
        found, expected = (
            {field.name: getattr(item, field.name) for field in fields(found)} for item in (found, expected)
        )
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in [*found, *(set(expected) - set(found))]:
            if key not in found or key not in expected or found[key] != expected[key]:
                return f"[{key!r}] {_difference(found.get(key, 'absent'), expected.get(key, 'absent'))}"
    if isinstance(found, list | tuple) and type(found) is type(expected) and len(found) == len(expected) > 0:
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            if one != other:
                return f"[{place}] {_difference(one, other)}"
    return f"it is {found!r}, expected {expected!r}"
