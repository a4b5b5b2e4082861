"""Names that are not there: old ones work for one more version, with a warning that says the new one; of wrong ones the
nearest is named. Knows no config."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Any, TypeVar

from quire.core.records.errors import UnknownField, say

T = TypeVar("T")
LONGEST = 64  # characters of a wrong name that are compared


def renamed(package: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """A `__getattr__` for a package: old name -> what is called so now."""

    def find(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        fact = f"{package}.{name} is called {names[name]} since 0.2; the old name goes with 0.3"
        warnings.warn(fact, DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[package], names[name])

    return find


def nearest(name: str, names: Iterable[str]) -> str:
    """The cure for a name that does not exist: the one that was probably meant, else all there are."""
    from difflib import get_close_matches

    known = list(names)
    close = get_close_matches(name[:LONGEST], known, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"


def names_fields(cls: type[T]) -> type[T]:
    """Of a dataclass: a keyword that is not a field is refused with the one that was probably meant."""
    construct: Any = cls.__init__
    names = [field.name for field in fields(cls) if field.init]  # type: ignore[arg-type]

    @wraps(construct)
    def __init__(self: T, *given: Any, **named: Any) -> None:
        if not named.keys() <= known:
            wrong = next(name for name in named if name not in known)
            raise UnknownField(say(f"{cls.__name__}({wrong}=...)", "it has no such field", nearest(wrong, names)))
        construct(self, *given, **named)

    known = frozenset(names)
    setattr(cls, "__init__", __init__)  # noqa: B010  # mypy holds the name to object's own
    return cls
