"""What callers write, made fit for frozen records: lists are kept as tuples, which cannot change later; old names work
for one more version, with a warning that says the new one; of wrong names the nearest is named. Records that are made
for every request get their fields in one go. Knows no config."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypeVar

from quire.core.records.errors import UnknownField, say

P = ParamSpec("P")
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


def renamed_keyword(old: str, new: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Of a function: a keyword by its old name works, and warns. Not for what every step calls: it costs a call."""

    def accept(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*given: P.args, **named: P.kwargs) -> T:
            if old in named and new not in named:
                fact = f"{function.__name__}({old}=...) is called {new} since 0.2; the old name goes with 0.3"
                warnings.warn(fact, DeprecationWarning, stacklevel=2)
                named[new] = named.pop(old)
            return function(*given, **named)

        return call

    return accept


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


def keep_tuples(record: object, *names: str) -> None:
    """Turn these fields of a frozen dataclass into tuples where they are lists; what is neither is left for checks."""
    for name in names:
        value = getattr(record, name)
        if isinstance(value, list):
            object.__setattr__(record, name, tuple(value))


def quick_init(record: type[T]) -> type[T]:
    """The same frozen dataclass, with its fields set at once: it has no slots; callers see no difference.

    The `__init__` that `dataclass(frozen=True)` writes calls `object.__setattr__` once per field: for the 17 of a
    request that is more time than all its checks take. This one, written the same way, fills the instance's dict.
    """
    made, told = record.__init__, signature(record.__init__)
    names = [one.name for one in fields(record)]  # type: ignore[arg-type]
    defaults = {name: one.default for name, one in told.parameters.items() if one.default is not Parameter.empty}
    given = [f"{name}=defaults[{name!r}]" if name in defaults else name for name in told.parameters]
    others = [name for name in list(told.parameters)[1:] if name not in names]  # for __post_init__ only
    source = f"""def __init__({", ".join(given)}):
    self.__dict__.update({", ".join(f"{name}={name}" for name in names)})
    self.__post_init__({", ".join(others)})
"""
    space: dict[str, Any] = {"defaults": defaults}
    exec(source, space)
    record.__init__ = wraps(made)(space["__init__"])  # type: ignore[method-assign]
    return record
