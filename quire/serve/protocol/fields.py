"""Fields: what a client may write into a request. Owns the record of one and the reading of a body; knows no endpoint.

A field works, or says nothing about the answer, or is refused by its name: none is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from quire.core.records.errors import say, shown
from quire.serve.errors import ApiError
from quire.serve.protocol.fits import Fits, fits
from quire.serve.protocol.schema import Schema, fault_of

Use = Literal["works", "neutral", "refused"]
NOTHING: tuple[Any, ...] = (None,)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a request. Null is as good as leaving it out, unless it is `required`."""

    use: Use
    schema: Schema
    default: Any = None
    required: bool = False
    nothing: tuple[Any, ...] = NOTHING  # of a refused one: what asks for nothing, and is let pass
    cure: str = ""  # of a refused one

    @property
    def told(self) -> Schema:
        """Its schema for OpenAPI: of a refused one what is let pass."""
        if self.use == "refused":
            return {"enum": list(self.nothing)}
        return self.schema if self.required else {"anyOf": [self.schema, {"type": "null"}]}


class Fields(dict[str, Field]):
    """The fields of one endpoint, by name. Nothing is added later."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        super().__init__(fields)
        self.required = tuple(name for name, field in self.items() if field.required)
        self.defaults = {name: field.default for name, field in self.items() if field.use == "works"}
        self.fits: dict[str, Fits] = {name: fits(one.schema) for name, one in self.items() if one.use != "refused"}


def works(schema: Schema, default: Any = None) -> Field:
    """One that does what its name says."""
    return Field("works", schema, default)


def needed(schema: Schema) -> Field:
    """One that must be there."""
    return Field("works", schema, required=True)


def neutral(schema: Schema) -> Field:
    """One that says nothing about the answer: it is let pass."""
    return Field("neutral", schema)


def refused(cure: str, *nothing: Any) -> Field:
    """One that we cannot do; `nothing` besides null asks for nothing."""
    return Field("refused", {}, nothing=(None, *nothing), cure=cure)


def read_fields(body: Any, fields: Fields) -> dict[str, Any]:
    """The value of every field that works, its default where nothing was given. The first fault is an ApiError."""
    if not isinstance(body, dict):
        raise ApiError(400, say("the body", f"it is {shown(body)[:40]}", "send a JSON object"))
    for name, value in body.items():
        field = fields.get(name)
        if field is None:
            raise _unknown(name, fields)
        if value is None and not field.required:
            continue
        if name in fields.fits and fields.fits[name](value):
            continue
        _check(name, value, field)
    required, defaults = fields.required, fields.defaults
    for name in required:
        if name not in body:
            raise ApiError(400, say(name, "it is missing", "give it"), param=name)
    read = dict(defaults)
    for name, value in body.items():
        if value is not None and name in defaults:
            read[name] = value
    return read


def _check(name: str, value: Any, field: Field) -> None:
    if field.use == "refused":
        if not any(value == one and type(value) is type(one) for one in field.nothing):
            raise ApiError(400, say(name, "this server cannot do that", field.cure), param=name, code="unsupported")
        return
    fault = fault_of(value, field.schema, name)
    if fault is not None:
        raise ApiError(400, say(fault.path, fault.fact, fault.cure), param=fault.path)


def _unknown(name: str, fields: Fields) -> ApiError:
    named = shown(name)[1:-1]
    near = get_close_matches(name[:64], fields, n=1)
    cure = f"did you mean {near[0]}?" if near else "leave it out"
    return ApiError(400, say(named, "there is no such field", cure), param=named, code="unknown_field")
