"""Schemas: whether a JSON value is as a JSON schema says. Owns the few words of it that our fields need.

The same schemas stand in the OpenAPI document, so what is told there and what is checked here cannot differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from quire.core.records.errors import shown

Schema = Mapping[str, Any]
_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),),
    "array": (list,), "object": (dict,),
}  # fmt: skip
_WORDS = {
    "string": "a string", "integer": "a whole number", "number": "a number", "boolean": "true or false",
    "null": "null", "array": "a list", "object": "an object",
}  # fmt: skip


class Fault(NamedTuple):
    """Where a value is not as it should be, and how it should be."""

    path: str  # messages[0].role
    fact: str
    cure: str
    closeness: int = 2  # 0: it is of another kind, 1: it has another name, 2: all but its bounds


def fault_of(value: Any, schema: Schema, path: str) -> Fault | None:
    """The first thing that is wrong with a value; None: nothing."""
    if "anyOf" in schema:
        return _none_of(value, schema["anyOf"], path)
    if "enum" in schema:
        known = any(value == one and type(value) is type(one) for one in schema["enum"])
        return None if known else Fault(path, f"it is {shown(value)}", f"give one of {_listed(schema['enum'])}", 1)
    kinds = kinds_of(schema)
    if kinds and not any(is_kind(value, kind) for kind in kinds):
        return Fault(path, f"it is {shown(value)}", f"give {_listed_kinds(kinds)}", 0)
    if isinstance(value, str):
        return _between(len(value), schema, ("minLength", "maxLength"), path, "characters")
    if isinstance(value, list):
        return _fault_of_list(value, schema, path)
    if isinstance(value, dict):
        return _fault_of_object(value, schema, path)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _fault_of_number(value, schema, path)
    return None


def is_kind(value: Any, kind: str) -> bool:
    """Whether it is of a kind of JSON; true is no number, and a number has an end."""
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()  # 1.0 is a whole number to JSON
    return isinstance(value, _KINDS[kind]) and not (isinstance(value, float) and not math.isfinite(value))


def kinds_of(schema: Schema) -> tuple[str, ...]:
    """Kinds of JSON that it allows; none: all."""
    kinds = schema.get("type", ())
    return (kinds,) if isinstance(kinds, str) else tuple(kinds)


def _none_of(value: Any, options: list[Schema], path: str) -> Fault | None:
    """What is wrong with the option that it comes closest to; of equally close ones, what each would have."""
    faults = []
    for option in options:
        fault = fault_of(value, option, path)
        if fault is None:
            return None
        faults.append(fault)
    best = max((fault.closeness, len(fault.path)) for fault in faults)
    near = [fault for fault in faults if (fault.closeness, len(fault.path)) == best]
    return near[0]._replace(cure="; or ".join(dict.fromkeys(fault.cure for fault in near)))


def _fault_of_list(value: list[Any], schema: Schema, path: str) -> Fault | None:
    if fault := _between(len(value), schema, ("minItems", "maxItems"), path, "entries"):
        return fault
    items = schema.get("items")
    if items is None:
        return None
    if items.get("type") == "integer":
        return _fault_of_integers(value, items, path)
    return next((fault for nth, one in enumerate(value) if (fault := fault_of(one, items, f"{path}[{nth}]"))), None)


def _fault_of_integers(value: list[Any], items: Schema, path: str) -> Fault | None:
    """Of a million tokens each is looked at shortly."""
    least, most = items.get("minimum", -math.inf), items.get("maximum", math.inf)
    for nth, one in enumerate(value):
        is_whole = type(one) is int or (type(one) is float and one.is_integer())
        if not (is_whole and least <= one <= most) and (fault := fault_of(one, items, f"{path}[{nth}]")):
            return fault
    return None


def _fault_of_object(value: dict[str, Any], schema: Schema, path: str) -> Fault | None:
    if fault := _between(len(value), schema, ("minProperties", "maxProperties"), path, "entries"):
        return fault
    known = schema.get("properties", {})
    rest = schema.get("additionalProperties", True)
    for name, one in value.items():
        if name in known:
            fault = fault_of(one, known[name], f"{path}.{name}")
        elif rest is False:
            fault = Fault(f"{path}.{shown(name)[1:-1]}", "there is no such field", f"there are {_listed(known)}")
        else:
            fault = None if rest is True else fault_of(one, rest, f"{path}.{shown(name)[1:-1]}")
        if fault:
            return fault
    missing = [name for name in schema.get("required", ()) if name not in value]
    return Fault(f"{path}.{missing[0]}", "it is missing", "give it") if missing else None


def _fault_of_number(value: float, schema: Schema, path: str) -> Fault | None:
    least, most, above = (schema.get(name) for name in ("minimum", "maximum", "exclusiveMinimum"))
    if least is not None and value < least:
        return Fault(path, f"it is {shown(value)}", f"give at least {least}")
    if above is not None and value <= above:
        return Fault(path, f"it is {shown(value)}", f"give more than {above}")
    if most is not None and value > most:
        return Fault(path, f"it is {shown(value)}", f"give at most {most}")
    return None


def _between(size: int, schema: Schema, bounds: tuple[str, str], path: str, what: str) -> Fault | None:
    least, most = schema.get(bounds[0]), schema.get(bounds[1])
    if least is not None and size < least:
        return Fault(path, f"it has {size} {what}", f"give at least {least}")
    if most is not None and size > most:
        return Fault(path, f"it has {size} {what}", f"give at most {most}")
    return None


def _listed(values: Any) -> str:
    return ", ".join(one if isinstance(one, str) else shown(one) for one in values)


def _listed_kinds(kinds: tuple[str, ...]) -> str:
    return " or ".join(_WORDS[kind] for kind in kinds)
