"""Old public names: they work for one more version, with a warning that says the new one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping


def renamed(package: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """A `__getattr__` for a package: old name -> what is called so now."""

    def find(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        fact = f"{package}.{name} is called {names[name]} since 0.2; the old name goes with 0.3"
        warnings.warn(fact, DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[package], names[name])

    return find
