"""Names of 0.1.0 work until 0.3: everything that it gave out is there, with its members and the names of parameters."""

from __future__ import annotations

import importlib
import inspect
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from .names import MODULES

NAMES: dict[str, dict[str, dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "0.1.0" / "names.json").read_text(encoding="utf-8")
)
NEEDS = {
    "quire.engine": ("torch", "transformers"), "quire.events": ("zmq", "msgspec"), "quire.transfer": ("msgspec",),
}  # fmt: skip
# They take many now: the first argument works without its name.
BY_PLACE = {"Cache.release(sequence)", "Cache.trim(sequence)"}

INNER = {  # no page of 0.1.0 told of these: the library alone used them, or made what they make
    "Batch": "__init__(edges)",
    "CacheConfig": "blocks columns encoder_columns hopeless partial_hits",
    "Claim": "cold cross_hit hit let_go look takes __init__(state) __init__(prepared) __init__(purpose)",
    "Claims": "claims drop_from settled state __init__(state)",
    "Encoder": "places scope",
    "Hold": "state __init__(state)",
    "LayerGroup": "columns forked growth hopeless is_stop keep misplaced most_decoding next_stop peak room_at "
    "stored_at",
    "Media": "cut fingerprint",
    "Prepared": "blocks chain decode_priority decode_ticks encoder keep length marks peaks priorities "
    "reaches scope scope_key seated spare state ticks timed __init__(state) __init__(request)",
    "Retention": "bound of_blocks timed",
    "Sequence": "forked granted kept live_row received state __init__(state)",
    "TierConfig": "of_group",
    "Stream": "hear over __init__(transcripts)",
    "Index": "answered(ask)",
    "LocalHub": "post",
    "NixlLink": "tell",
    "Receiving": "__init__(told) heard(word)",
    "Sending": "all_asked complete asked(reader)",
    "TcpLink": "tell",
}


def found(module: str, name: str) -> object:
    """The name, old or new; what is renamed warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return getattr(importlib.import_module(module), name)


def members(kind: type) -> set[str]:
    """What an object of a class has: methods, fields, slots."""
    parts = [vars(part) for part in kind.__mro__]
    return {name for part in parts for name in (*part, *part.get("__slots__", ()), *part.get("__annotations__", ()))}


def lacks(module: str, name: str, told: dict[str, Any]) -> list[str]:
    """What is not there any more, of one name."""
    thing = found(module, name)
    gone = [one for one in told.get("members", ()) if one not in members(thing)] if inspect.isclass(thing) else []
    calls = {one: getattr(thing, one, None) for one in told.get("methods", ())}
    wanted = [(one, names, calls[one]) for one, names in told.get("methods", {}).items() if calls[one]]
    wanted += [("", told["parameters"], thing)] if "parameters" in told else []
    gone += [f"{one}({each})" for one, names, call in wanted for each in names if not takes(call, each)]
    return [one for one in gone if f"{name}.{one}" not in BY_PLACE and one not in INNER.get(name, "").split()]


def takes(call: object, name: str) -> bool:
    """Whether it can be called with that keyword."""
    some = inspect.signature(call).parameters.values() if inspect.isroutine(call) else []
    return any(one.name == name or one.kind == one.VAR_KEYWORD for one in some)


@pytest.mark.parametrize("module", MODULES)
def test_what_0_1_0_gave_out_is_there(module: str) -> None:
    for extra in {"quire.engine": ("torch", "transformers"), "quire.events": ("zmq", "msgspec")}.get(
        module, ("numpy",)
    ):
        pytest.importorskip(extra)
    if module == "quire.transfer":
        pytest.importorskip("msgspec")
    faults = {name: gone for name, told in NAMES[module].items() if (gone := lacks(module, name, told))}
    assert not faults


def test_the_list_is_that_of_0_1_0() -> None:
    assert {module: len(names) for module, names in NAMES.items()} == {
        "quire": 40, "quire.engine": 21, "quire.events": 12, "quire.tiers": 10, "quire.transfer": 32,
    }  # fmt: skip
    assert {"claim", "admit", "commit", "grow", "release"} <= set(NAMES["quire"]["Cache"]["members"])
    assert NAMES["quire"]["Cache"]["methods"]["admit"][0] == "claims"
