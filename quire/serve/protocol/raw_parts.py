"""Raw parts: what a body keeps as text until it is needed: prompts, schemas, parameters of tools. Knows no endpoint.

Each is counted before it is built, so that no text up to a body's size costs more than its bounds allow.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET, DecodeError, Raw, Struct, UnsetType, ValidationError, json

from quire.core.records.errors import say, shown
from quire.serve.http.api_errors import ApiError
from quire.serve.protocol.decode import LARGE, MOST_VALUES, check_extent, with_whole_numbers
from quire.serve.protocol.extent import Extent
from quire.serve.protocol.faults import KINDS, fault_of
from quire.serve.protocol.parts import MOST_PROMPTS, MOST_TOKENS, Tokens

Prompt = str | list[int]
_BLANKS: Final = b" \t\r\n"
_FIRST = {"{": "object", "[": "array", '"': "str", "t": "bool", "f": "bool", "n": "null"}
_TOKENS: Final[json.Decoder[list[int]]] = json.Decoder(Tokens)


class Allowance:
    """How many values may still be built, of several texts together."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, data: bytes, where: str) -> None:
        """As many as a text has; refuse it when they are too many."""
        self._left -= check_extent(data, where, min(MOST_VALUES, self._left))


def check_raw_parts(body: Struct) -> None:
    """Refuse parts of another kind than their type says: of a raw one only its first character is looked at."""
    for nth, tool in enumerate(getattr(body, "tools", None) or ()):
        _check_object(tool.function.parameters, f"tools[{nth}].function.parameters")
    _check_object(getattr(body, "chat_template_kwargs", UNSET), "chat_template_kwargs")


def read_object(raw: Raw | UnsetType, where: str) -> dict[str, Any] | None:
    """A JSON object, or null; `where` is the field that has it."""
    _check_object(raw, where)
    if isinstance(raw, UnsetType) or kind_of(raw) == "null":
        return None
    made: dict[str, Any] = read_json(bytes(raw), where)
    return made


def _check_object(raw: Raw | UnsetType, where: str) -> None:
    if isinstance(raw, Raw) and kind_of(raw) not in ("object", "null"):
        raise ApiError(400, say(where, f"it is {_shown(raw)}", "give an object"), param=where)


def read_json(data: bytes, where: str, allowance: Allowance | None = None) -> Any:
    """Any JSON within the bounds."""
    (allowance or Allowance(MOST_VALUES)).take(data, where)
    try:
        return json.decode(data)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        fact = f"it is not JSON that can be read: {shown(str(error))[1:-1]}"
        raise ApiError(400, say(where, fact, "give it as JSON"), param=where) from None


def read_text(raw: Raw, where: str) -> str:
    """A string."""
    text: str = _decoded(bytes(raw), str, where)
    return text


def read_prompts(raw: Raw, where: str = "prompt") -> list[Prompt]:
    """One prompt or many, as text or token ids."""
    data = bytes(raw)
    kind, inner = kind_of(raw), data[1:64].lstrip(_BLANKS)[:1]
    if kind == "str":
        return [_decoded(data, str, where)]
    if kind != "array":
        raise ApiError(400, say(where, f"it is {_shown(raw)}", "give a string or a list"), param=where)
    if inner not in (b'"', b"["):
        return [_long_tokens(data, where)]
    if len(data) > LARGE:
        _check_number(Extent(data).num_sections, MOST_PROMPTS, where)
    prompts = _decoded(data, list[str] if inner == b'"' else list[Raw], where)
    _check_number(len(prompts), MOST_PROMPTS, where)
    return [one if isinstance(one, str) else _tokens(bytes(one), f"{where}[{nth}]") for nth, one in enumerate(prompts)]


def kind_of(raw: Raw) -> str:
    """Which kind of JSON a text is that msgspec has read over: its first character says so."""
    first = bytes(memoryview(raw)[:64]).lstrip(_BLANKS)[:1].decode("latin-1")
    return _FIRST.get(first, "float")


def read_tokens(raw: Raw, where: str) -> list[int]:
    """Token ids, or none."""
    data = bytes(raw)
    if kind_of(raw) != "array":
        raise ApiError(400, say(where, f"it is {_shown(raw)}", "give a list"), param=where)
    return [] if not data[1:-1].strip(_BLANKS) else _long_tokens(data, where)


def _long_tokens(data: bytes, where: str) -> list[int]:
    """Very many are read piece by piece: between two pieces other threads go on."""
    if len(data) <= LARGE:
        return _tokens(data, where)
    _check_number(Extent(data).num_sections, MOST_TOKENS, where)
    tokens: list[int] = []
    start, end = data.index(b"[") + 1, data.rindex(b"]")
    while start < end:
        stop = data.find(b",", start + LARGE, end)
        stop = end if stop < 0 else stop
        try:
            tokens += _tokens(b"[" + data[start:stop] + b"]", where)
        except (ApiError, DecodeError, UnicodeDecodeError):
            return _tokens(data, where)  # which says where it is wrong, in all of it
        start = stop + 1
    return tokens


def _tokens(data: bytes, where: str) -> list[int]:
    try:
        return _TOKENS.decode(data)
    except ValidationError as error:
        if "got `float`" in str(error) and (whole := with_whole_numbers(data)) != data:
            return _tokens(whole, where)
        raise fault_of(error, Tokens, data, where) from None


def _decoded(data: bytes, hint: Any, where: str) -> Any:
    try:
        return json.decode(data, type=hint)
    except ValidationError as error:
        raise fault_of(error, hint, data, where) from None
    except UnicodeDecodeError:
        raise ApiError(400, say(where, "it is not UTF-8", "encode it as UTF-8"), param=where) from None


def _check_number(number: int, most: int, where: str) -> None:
    if number > most:
        raise ApiError(400, say(where, f"it has {number} entries", f"give at most {most}"), param=where)


def _shown(raw: Raw) -> str:
    data = bytes(raw)
    if len(data) > 64:
        return KINDS.get(kind_of(raw), "a number")
    try:
        return shown(json.decode(data))
    except (DecodeError, UnicodeDecodeError):
        return KINDS.get(kind_of(raw), "a number")
