"""Decode: from the bytes of a body to its typed fields, or to the first thing that is wrong, by name. Knows no HTTP.

    bytes ──large ones: counted, without building anything──► typed fields ──► refused fields, raw parts

What no field takes is refused before it is built, so a body costs what its fields may hold, and not what it holds.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, TypeVar

from msgspec import DecodeError, Raw, Struct, ValidationError, json

from quire.core.records.errors import say, shown
from quire.serve.http.api_errors import ApiError
from quire.serve.protocol.extent import MOST_DEPTH, MOST_DIGITS, PIECE, Extent, outside_strings
from quire.serve.protocol.faults import KINDS, fault_of
from quire.serve.protocol.parts import MOST_TOKENS
from quire.serve.protocol.uses import refused_by, uses_of

LARGE: Final = 64 << 10  # bytes of a body that is counted first, and decoded beside the event loop
MOST_VALUES: Final = 1 << 15  # of one field
MOST_IN: Final = {"messages": 1 << 17, "prompt": 2 * MOST_TOKENS, "tokens": MOST_TOKENS}  # of these
MOST_FIELDS: Final = 1024  # with those that come twice
BODY: Final = "the body"
_SURROGATES = re.compile(rb"\\u[dD](?:[89abAB]..(\\u[dD][c-fC-F])?|[c-fC-F]..)", re.DOTALL)
_BYTE = re.compile(r"\(byte (\d+)\)")
_WHOLE = re.compile(rb"(?<![0-9.eE+-])(-?[0-9]{1,19})\.0+(?![0-9eE])")
B = TypeVar("B", bound=Struct)


def read_body(data: bytes, kind: type[B]) -> B:
    """The fields of a body; the first fault is an ApiError that names its field."""
    if len(data) > LARGE:
        _check_extent(Extent(data), kind)
    try:
        body: B = _decoder(kind).decode(data)
    except RecursionError:
        raise _too_deep(_name_at(data, Extent(data).deepest)) from None
    except ValidationError as error:
        if "got `float`" in str(error) and (whole := with_whole_numbers(data)) != data:
            return read_body(whole, kind)
        raise _explain_fault(data, kind) from None
    except (DecodeError, UnicodeDecodeError) as error:
        raise _explain_syntax(data, error) from None
    for name, use in refused_by(kind):
        value = getattr(body, name)
        if isinstance(value, Raw):
            use.refuse(name, value)
    return body


@cache
def _decoder(kind: Any) -> json.Decoder[Any]:
    return json.Decoder(kind)


# -- bounds ----------------------------------------------------------------------------------------------------------


def check_extent(data: bytes, where: str, most: int = MOST_VALUES) -> int:
    """Refuse a text that would cost too much to build; how many values it has at most."""
    if len(data) <= min(MOST_DEPTH, most):
        return len(data)
    extent = Extent(data)
    if extent.depth > MOST_DEPTH:
        raise _too_deep(where)
    if extent.values > most:
        raise _too_many(where, extent.values, most)
    if extent.long_number is not None:
        raise _too_long(where)
    return extent.values


def _check_extent(extent: Extent, kind: type[Struct]) -> None:
    """The same for a whole body, whose fields have bounds of their own."""
    uses = uses_of(kind)
    if extent.depth > MOST_DEPTH:
        raise _too_deep(_name(extent.section_at(extent.deepest)))
    if extent.num_sections > MOST_FIELDS:
        for section in extent.sections(MOST_FIELDS):
            if (name := _name(section.name)) not in uses:
                raise _unknown(name, kind)
        raise ApiError(400, say(BODY, f"it has {extent.num_sections} fields", "give each of them once"))
    for section in extent.sections(MOST_FIELDS, min(MOST_VALUES, *MOST_IN.values())):
        name = _name(section.name)
        if name not in uses:
            raise _unknown(name, kind)
        most = MOST_IN.get(name, MOST_VALUES)
        if section.values > most:
            raise _too_many(name, section.values, most)
    if extent.long_number is not None:
        raise _too_long(_name(extent.section_at(extent.long_number)))


def _too_deep(name: str) -> ApiError:
    cure = f"nest at most {MOST_DEPTH} levels"
    return ApiError(400, say(name or BODY, "it is nested too deeply", cure), param=name or None)


def _too_many(name: str, values: int, most: int) -> ApiError:
    return ApiError(400, say(name, f"it has {values} entries", f"give at most {most}"), param=name)


def _too_long(name: str) -> ApiError:
    fact, cure = f"it has a number of {MOST_DIGITS} digits or more", "give a shorter one"
    return ApiError(400, say(name or BODY, fact, cure), param=name or None)


# -- what is wrong ---------------------------------------------------------------------------------------------------


def _explain_fault(data: bytes, kind: type[Struct]) -> ApiError:
    """The first field that is wrong."""
    uses = uses_of(kind)
    try:
        fields = json.decode(data, type=dict[str, Raw])
    except ValidationError as error:
        got = str(error).rpartition("got `")[2].rstrip("`")
        return ApiError(400, say(BODY, f"it is {KINDS.get(got, got)}", "send a JSON object"))
    except (DecodeError, UnicodeDecodeError) as error:
        return _explain_syntax(data, error)
    for name, raw in fields.items():
        if name not in uses:
            return _unknown(name, kind)
        if uses[name].use == "refused":
            uses[name].refuse(name, raw)
            continue
        try:
            if not _is_raw(uses[name].type):
                _decoder(uses[name].type).decode(raw)
        except ValidationError as error:
            return fault_of(error, uses[name].type, raw, name)
        except (DecodeError, UnicodeDecodeError) as error:
            return _explain_syntax(data, error)
    for name, use in uses.items():
        if use.required and name not in fields:
            return ApiError(400, say(name, "it is missing", "give it"), param=name)
    return ApiError(400, say(BODY, "its fields do not fit together", "see /openapi.json"))


def _is_raw(hint: Any) -> bool:
    return "Raw" in str(hint).partition("|")[0]


def _unknown(name: str, kind: type[Struct]) -> ApiError:
    named = shown(name)[1:-1]
    near = get_close_matches(name[:64], list(uses_of(kind)), n=1)
    cure = f"did you mean {near[0]}?" if near else "leave it out"
    return ApiError(400, say(named, "there is no such field", cure), param=named, code="unknown_field")


def _explain_syntax(data: bytes, error: Exception) -> ApiError:
    """A body that is not JSON, or has strings that are not Unicode: those are named."""
    lone = next((one for one in _SURROGATES.finditer(data.replace(rb"\\", b"__")) if one[1] is None), None)
    if lone is not None:
        name = _name_at(data, lone.start())
        fact = f"it has half of a character ({lone[0].decode()})"
        return ApiError(400, say(name or BODY, fact, "write whole characters"), param=name or None)
    if isinstance(error, UnicodeDecodeError):
        place = _not_utf8(data)
        name = _name_at(data, place)
        fact = f"byte {place} of the body is not UTF-8"
        return ApiError(400, say(name or BODY, fact, "encode it as UTF-8"), param=name or None)
    match = _BYTE.search(str(error))
    place = len(data) if match is None else int(match[1])
    character = len(data[:place].decode(errors="replace"))
    return ApiError(400, say(BODY, f"it is not JSON from character {character}", "send a JSON object"))


def _not_utf8(data: bytes) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return 0


def _name_at(data: bytes, place: int) -> str:
    return _name(Extent(data).section_at(place))


def _name(written: bytes) -> str:
    """The name of a field, from what is written in the body; what cannot be read is shown as it is written."""
    try:
        return str(json.decode(written, type=str))
    except (DecodeError, UnicodeDecodeError):
        return written[:64].decode("ascii", errors="replace").strip('"')


def with_whole_numbers(data: bytes) -> bytes:
    """The same JSON with 1 for 1.0, which is a whole number as well; piece by piece, so that other threads go on."""
    outside, pieces, start = outside_strings(data), [], 0
    while start < len(data):
        stop = data.find(b",", start + PIECE) + 1 or len(data)
        mask = outside[start:stop]
        whole = lambda found, mask=mask: found[1] if mask[found.start()] else found[0]  # noqa: E731
        pieces.append(_WHOLE.sub(whole, data[start:stop]))
        start = stop
    return b"".join(pieces)
