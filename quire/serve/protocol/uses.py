"""Uses: what becomes of each field of a body, read from its type. Knows no endpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Raw, Struct, json

from quire.core.records.errors import say
from quire.serve.http.api_errors import ApiError
from quire.serve.protocol.parts import Use

LONGEST_NOTHING = 64  # bytes of a value that asks for nothing


@dataclass(frozen=True, slots=True)
class FieldUse:
    """One field of a body."""

    use: Use
    type: Any
    required: bool
    nothing: tuple[Any, ...] = (None,)  # of a refused one: what asks for nothing, and is let pass
    cure: str = ""  # of a refused one

    def refuse(self, name: str, value: Raw) -> None:
        """Refuse what asks for something."""
        if len(bytes(value)) <= LONGEST_NOTHING:
            given = json.decode(value)
            if any(given == one and type(given) is type(one) for one in self.nothing):
                return
        raise ApiError(400, say(name, "this server cannot do that", self.cure), param=name, code="unsupported")


@cache
def uses_of(body: type[Struct]) -> Mapping[str, FieldUse]:
    """By name, in the order of its type."""
    hints = get_type_hints(body, include_extras=True)
    required = {one.name for one in msgspec.structs.fields(body) if one.required}
    uses: dict[str, FieldUse] = {}
    for name, hint in hints.items():
        extra: dict[str, Any] = {"use": "works"}
        for meta in _metas(hint):
            extra |= meta.extra or {}
        nothing = tuple(extra.get("nothing", (None,)))
        uses[name] = FieldUse(extra["use"], hint, name in required, nothing, extra.get("cure", ""))
    return uses


@cache
def refused_by(body: type[Struct]) -> tuple[tuple[str, FieldUse], ...]:
    """The fields of a body that are refused, unless they ask for nothing."""
    return tuple((name, one) for name, one in uses_of(body).items() if one.use == "refused")


def _metas(hint: Any) -> Iterator[Meta]:
    """Those of a type and, of a union, of its options."""
    if get_origin(hint) is Annotated:
        yield from (one for one in get_args(hint)[1:] if isinstance(one, Meta))
    else:
        for option in get_args(hint):
            if get_origin(option) is Annotated:
                yield from _metas(option)
