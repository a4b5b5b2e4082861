"""Faults: what is wrong with a value, from what msgspec says of it, as ask, fact and cure. Knows types, no endpoint.

"Expected `int` >= 1 - at `$.ranges[0].end`"  ──►  retention.ranges[0].end: it is 0; give at least 1
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, get_args, get_origin

from msgspec import DecodeError, Raw, inspect, json

from quire.core.records.errors import say, shown
from quire.serve.http.api_errors import ApiError

LONGEST_SHOWN = 1 << 16  # bytes of a field that is looked into for the value that is wrong
KINDS = {
    "str": "a string", "int": "a whole number", "float": "a number", "bool": "true or false", "null": "null",
    "array": "a list", "object": "an object",
}  # fmt: skip
_AT = re.compile(r"^(.*?)(?: - at (`key` in )?`\$(.*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_KIND = re.compile(r"Expected `([^`]+)`(?:, got `(\w+)`)?$")
_BOUND = re.compile(r"Expected `\w+` (>=|<=|>|<) (\S+)$")
_SIZE = re.compile(r"Expected `(\w+)` of length (>=|<=) (\d+)$")
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`$", re.DOTALL)
_CURES = {">=": "give at least", "<=": "give at most", ">": "give more than", "<": "give less than"}
_PATHS = 120  # characters of a path that are shown


def fault_of(error: DecodeError, hint: Any, raw: Raw | bytes, where: str) -> ApiError:
    """Why a value does not fit its type: `raw` is the value's text, `where` the field that has it."""
    matched = _AT.match(str(error))
    assert matched is not None
    message, of_key, path = matched[1], matched[2], matched[3] or ""
    data = bytes(raw)
    steps: list[str | int] = []
    for name, number in _STEP.findall(path):
        if number == "...":
            key = _wrong_key(_at(data, steps), _hint_of_values(hint))
            steps.append("" if key is None else key)
        else:
            steps.append(int(number) if number else name)
    value = _at(data, steps)
    kind = _kind_at(inspect.type_info(hint), steps)
    more, fact, cure = _words(message, value, kind)
    if of_key:
        fact = "one of its names is too long"
    where = f"{where}{''.join(_shown_step(step) for step in steps)}{more}"[:_PATHS]
    return ApiError(400, say(where, fact, cure), param=where)


def listed(values: Iterable[Any]) -> str:
    """Some values in a row."""
    return ", ".join(one if isinstance(one, str) else shown(one) for one in values)


def _words(message: str, value: Raw | None, kind: Any) -> tuple[str, str, str]:
    """What is added to the path, the fact and the cure."""
    if match := _FIELD.match(message):
        name = f".{shown(match[2])[1:-1]}"
        if match[1] == "missing required":
            return name, "it is missing", "give it"
        return name, "there is no such field", f"there are {listed(_names(kind))}"
    if match := _SIZE.match(message):
        what = "characters" if match[1] == "str" else "entries"
        return "", f"it has {_size(value)} {what}", f"{_CURES[match[2]]} {match[3]}"
    if match := _BOUND.match(message):
        return "", f"it is {_shown(value, 'a number')}", f"{_CURES[match[1]]} {_plain(match[2])}"
    if message.startswith("Invalid "):
        return "", f"it is {_shown(value, 'another value')}", f"give one of {listed(_options(kind))}"
    if match := _KIND.match(message):
        wanted = " or ".join(KINDS.get(one, one) for one in match[1].split(" | ") if one != "null")
        if match[2] == "float" and wanted == KINDS["int"]:
            wanted = f"{wanted}, without a fraction"
        fact = f"it is {_shown(value, KINDS.get(match[2], 'of another kind'))}"
        return "", fact, f"give {wanted}" if wanted else "this server cannot do that: leave it out"
    if message.endswith("out of range"):
        return "", "it is a number beyond all bounds", "give a smaller one"
    return "", message[:1].lower() + message[1:], "change it"


def _at(data: bytes, steps: list[str | int]) -> Raw | None:
    """The text of the value at a place; None: it is not looked for in so long a text."""
    if len(data) > LONGEST_SHOWN and steps:
        return None
    value = Raw(data)
    try:
        for step in steps:
            value = json.decode(value, type=list[Raw])[step] if isinstance(step, int) else _entries(value)[step]
    except (DecodeError, LookupError):
        return None
    return value


def _entries(value: Raw) -> dict[str, Raw]:
    return json.decode(value, type=dict[str, Raw])


def _wrong_key(value: Raw | None, hint: Any) -> str | None:
    """The name of the entry that does not fit: msgspec does not say it."""
    if value is None or hint is None:
        return None
    for name, entry in _entries(value).items():
        try:
            json.decode(entry, type=hint)
        except DecodeError:
            return name
    return None


def _hint_of_values(hint: Any) -> Any:
    """The type of a dict's values, in a field's type."""
    if get_origin(hint) is dict:
        return get_args(hint)[1]
    return next((inner for one in get_args(hint) if (inner := _hint_of_values(one)) is not None), None)


def _shown(value: Raw | None, kind: str) -> str:
    if value is None or len(bytes(value)) > LONGEST_SHOWN:
        return kind
    try:
        return shown(json.decode(value))
    except (DecodeError, RecursionError):  # a number of too many digits
        return kind


def _size(value: Raw | None) -> str:
    if value is None:
        return "another number of"
    given = json.decode(value, type=str | list[Raw] | dict[str, Raw])
    return str(len(given))


def _plain(number: str) -> str:
    return number.removesuffix(".0")


def _shown_step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{shown(step)[1:-1]}" if step else ""


# -- types -----------------------------------------------------------------------------------------------------------


def _kind_at(kind: Any, steps: list[str | int]) -> list[Any]:
    """The types that a value at a place may have."""
    kinds = list(_flat(kind))
    for step in steps:
        inner: list[Any] = []
        for one in kinds:
            if isinstance(one, inspect.ListType) and isinstance(step, int):
                inner += _flat(one.item_type)
            elif isinstance(one, inspect.StructType) and isinstance(step, str):
                inner += [kind for field in one.fields if field.encode_name == step for kind in _flat(field.type)]
                if one.tag_field == step:
                    inner.append(inspect.LiteralType((one.tag,)))
        kinds = inner
    return kinds


def _flat(kind: Any) -> Iterator[Any]:
    """The options of a union, or the type itself; what Metadata wraps is taken out."""
    if isinstance(kind, inspect.Metadata):
        yield from _flat(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _flat(one)
    else:
        yield kind


def _names(kinds: list[Any]) -> list[str]:
    structs = [one for one in kinds if isinstance(one, inspect.StructType)]
    names = [name for one in structs for name in (one.tag_field, *(field.encode_name for field in one.fields)) if name]
    return list(dict.fromkeys(names))


def _options(kinds: list[Any]) -> list[Any]:
    return [value for one in kinds if isinstance(one, inspect.LiteralType) for value in one.values]
