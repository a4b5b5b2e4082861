"""Fits: the same question as `fault_of`, yes or no, for the many values that are as they should be.

A schema is read once and becomes a function. What is wrong with a value, `schema.py` says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quire.serve.protocol.schema import Schema, fault_of, kinds_of

INFINITE = float("inf")
Fits = Callable[[Any], bool]


def fits(schema: Schema) -> Fits:
    """Whether a value is as a schema says: true exactly where `fault_of` finds no fault."""
    if "anyOf" in schema:
        options = tuple(fits(option) for option in schema["anyOf"])
        return lambda value: any(option(value) for option in options)
    if "enum" in schema:
        known = {(type(one), one) for one in schema["enum"] if not isinstance(one, list | dict)}
        if len(known) == len(schema["enum"]):
            return lambda value: value.__hash__ is not None and (type(value), value) in known
        return lambda value: fault_of(value, schema, "") is None
    kinds = kinds_of(schema)
    if kinds == ("string",):
        return _string(schema)
    if kinds == ("array",):
        return _list(schema)
    if kinds == ("object",):
        return _object(schema)
    if kinds == ("boolean",):
        return lambda value: value is True or value is False
    if kinds == ("null",):
        return lambda value: value is None
    if kinds in (("integer",), ("number",)):
        return _number(schema, (int,) if kinds == ("integer",) else (int, float))
    return lambda value: fault_of(value, schema, "") is None


def _string(schema: Schema) -> Fits:
    least, most = schema.get("minLength", 0), schema.get("maxLength", float("inf"))
    return lambda value: isinstance(value, str) and least <= len(value) <= most


def _number(schema: Schema, types: tuple[type, ...]) -> Fits:
    """The usual ones; whatever else is a number to JSON, 1.0 for instance, `fault_of` knows."""
    least, most = schema.get("minimum", float("-inf")), schema.get("maximum", float("inf"))
    above = schema.get("exclusiveMinimum", float("-inf"))

    def check(value: Any) -> bool:
        if type(value) in types and least <= value <= most and above < value < INFINITE:
            return True
        return fault_of(value, schema, "") is None

    return check


def _list(schema: Schema) -> Fits:
    least, most = schema.get("minItems", 0), schema.get("maxItems", float("inf"))
    if (items := schema.get("items")) is None:
        return lambda value: isinstance(value, list) and least <= len(value) <= most
    one = fits(items)
    return lambda value: isinstance(value, list) and least <= len(value) <= most and all(map(one, value))


def _object(schema: Schema) -> Fits:
    least, most = schema.get("minProperties", 0), schema.get("maxProperties", float("inf"))
    known = {name: fits(one) for name, one in schema.get("properties", {}).items()}
    rest: Any = schema.get("additionalProperties", True)
    other: Fits = (lambda _: bool(rest)) if isinstance(rest, bool) else fits(rest)
    required = frozenset(schema.get("required", ()))

    def check(value: Any) -> bool:
        if not isinstance(value, dict) or not least <= len(value) <= most or not required <= value.keys():
            return False
        return all(known.get(name, other)(one) for name, one in value.items())

    return check
