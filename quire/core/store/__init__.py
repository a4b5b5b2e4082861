"""The store: everything that works per block, compiled, with a pure-Python twin of the same interface (`interface.py`).

`open_store("auto")` gives the compiled module and falls back to the twin; QUIRE_STORE=twin or =compiled picks one.
"""

from __future__ import annotations

import importlib
import os
from typing import Literal, cast

from quire.core.records.errors import InputError, StateError, say, shown
from quire.core.store.interface import StoreModule

StoreName = Literal["auto", "compiled", "twin"]
_MODULES = {"compiled": "quire.core.store._compiled", "twin": "quire.core.store.twin"}


def open_store(name: StoreName = "auto") -> StoreModule:
    """The module that provides Chain, Ledger and Store."""
    if not isinstance(name, str):
        raise InputError(say(f"store {shown(name)}", "it is no name", "use 'auto', 'compiled' or 'twin'"))
    wanted = os.environ.get("QUIRE_STORE", "auto") if name == "auto" else name
    if wanted not in ("auto", *_MODULES):
        raise InputError(say(f"store {shown(wanted)}", "there is no such module", "use 'auto', 'compiled' or 'twin'"))
    if wanted != "twin":
        try:
            return cast(StoreModule, importlib.import_module(_MODULES["compiled"]))
        except ImportError as missing:
            if wanted == "compiled":
                fact, cure = (
                    f"it does not import ({missing})",
                    "install a C compiler and reinstall Quire, or use 'twin'",
                )
                raise StateError(say("store 'compiled'", fact, cure)) from missing
    return cast(StoreModule, importlib.import_module(_MODULES["twin"]))
