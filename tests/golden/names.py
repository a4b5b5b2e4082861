"""What a version gives out: names, and of each its members and the names of parameters.

    PYTHONPATH=CHECKOUT python tests/golden/names.py > tests/golden/VERSION/names.json

Left out is what no user calls: how classes are made that only the library makes, and members that no page told of.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import sys
from typing import Any

MODULES = ("quire", "quire.engine", "quire.events", "quire.tiers", "quire.transfer")
Told = dict[str, Any]


def told(thing: object) -> Told:
    """Members of a class and parameters by method, or those of a function."""
    if not inspect.isclass(thing):
        return {"parameters": parameters(thing)} if inspect.isfunction(thing) else {}
    fields = [field.name for field in dataclasses.fields(thing)] if dataclasses.is_dataclass(thing) else []
    ours = [one for kind in thing.__mro__ if kind.__module__.startswith("quire") for one in vars(kind)]
    members = sorted({*fields, *(one for one in ours if not one.startswith("_"))})
    methods = {one: parameters(getattr(thing, one)) for one in ("__init__", *members) if hasattr(thing, one)}
    return {"members": members, "methods": {name: found for name, found in methods.items() if found}}


def parameters(function: object) -> list[str]:
    """Their names, without self; nothing for what is not called."""
    try:
        names = list(inspect.signature(function).parameters) if inspect.isroutine(function) else []
    except ValueError:
        return []
    return [name for name in names if name not in ("self", "cls", "args", "kwargs")]


def main() -> None:
    """Of the checkout on the path."""
    modules = {name: importlib.import_module(name) for name in MODULES}
    found = {
        module: {name: told(getattr(modules[module], name)) for name in sorted(modules[module].__all__)}
        for module in modules
    }
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
