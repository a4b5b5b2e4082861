"""The store: everything that works per block, compiled, and once more in plain Python as the reference store, with
one interface (`interface.py`).

`open_store("auto")` gives the compiled module. Without one it falls back to the reference store and warns, since that
is far slower. QUIRE_STORE=twin (the reference store) or =compiled picks one.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable
from typing import Literal, cast

from quire.core.records.errors import InputError, SlowStoreWarning, StateError, say, shown
from quire.core.store.interface import StoreModule

StoreName = Literal["auto", "compiled", "twin"]
_MODULES = {"compiled": "quire.core.store._compiled", "twin": "quire.core.store.reference"}
SLOWER = "20 to 800 times slower"  # calls for prompts of 1,000 to 8,000 tokens, and steps that decode
_is_told = False  # this process has reported that the reference store stands in


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
            _tell(
                missing, lambda words: warnings.warn(words, SlowStoreWarning, stacklevel=6)
            )  # the caller that makes the Cache
    return cast(StoreModule, importlib.import_module(_MODULES["twin"]))


def tell_slow_store(tell: Callable[[str], None]) -> None:
    """Report now, through `tell` and not as a warning, that the reference store would stand in for the compiled one."""
    if os.environ.get("QUIRE_STORE", "auto") == "auto":
        try:
            importlib.import_module(_MODULES["compiled"])
        except ImportError as missing:
            _tell(missing, tell)


def _tell(missing: ImportError, tell: Callable[[str], None]) -> None:
    global _is_told
    if not _is_told:
        fact = f"it does not import ({missing}), and one in plain Python stands in: the same answers, {SLOWER}"
        cure = "install a C compiler and reinstall Quire, or set QUIRE_STORE=twin if you mean it"
        tell(say("the compiled store", fact, cure))
        _is_told = True
