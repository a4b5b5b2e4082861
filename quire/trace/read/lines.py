"""One line of a trace, checked: what it says, or which line is wrong, why, and what helps. Opens no files.

mooncake   {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [id, ...]}
quire      {"time_ms": ms, "prompt": [[part, tokens], ...], "output_tokens": n, "scope": {...}, "priority": n,
            "retain": [[start, end, priority, seconds], ...], "reuse": true}
both       {"session": id, "finish": "tool_calls", "back": "soon", "interrupted": [token, tokens, equal ones after it]}

A line may carry what `quire trace` says of the whole file: {"quire": {"trace": version, "block_size": n, ...}}.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from quire.core.records.errors import InputError, QuireError, say
from quire.core.records.hint_words import BACKS, Back
from quire.core.records.identity import Scope
from quire.core.records.retain import RetainRange, Retention
from quire.trace.read.not_a_trace import PLAIN as PLAIN_LOG
from quire.trace.read.not_a_trace import TABLE, is_table, other_kind
from quire.trace.record.trace_writer import FIELD, MOST_PIECES, VERSION, Interruption, is_reason
from quire.trace.units import cut, shown

LONGEST = 1 << 24  # tokens of one prompt or answer
LONGEST_LINE = 1 << 22  # bytes
MOST_BLOCKS = LONGEST_LINE // 21  # hash ids of one line, each of up to 19 digits
LATEST = 1e15  # ms: when a request may come
MOONCAKE_BLOCK = 512  # tokens per hash id, unless the trace or the caller says
LONGEST_ID = 200  # characters
PLAIN = Scope()
_SCOPE = ("lora", "salt", "epoch")
_FIELDS = {
    "time_ms", "prompt", "output_tokens", "scope", "priority", "retain", "reuse", "id", "session", "finish",
    "back", "interrupted", FIELD,
}  # fmt: skip


class TraceError(InputError):
    """A trace that cannot be read: where, what is wrong, what helps."""

    def __init__(self, name: str, line: int, fact: str, cure: str) -> None:
        super().__init__(say(f"{name} line {line}" if line else name, fact, cure))  # 0: the whole file
        self.name, self.line, self.fact, self.cure = name, line, fact, cure

    def __reduce__(self) -> tuple[type[TraceError], tuple[str, int, str, str]]:
        return TraceError, (self.name, self.line, self.fact, self.cure)


@dataclass(slots=True)
class TraceLine:
    """What one line says."""

    number: int
    time: float  # s
    names: list[int | str | None]  # of the prompt's parts; None: shared with no other
    sizes: list[int]  # their tokens; empty: all of the trace's block, the last one cut to length
    length: int
    output: int
    scope: Scope = PLAIN
    priority: int = 0
    retain: tuple[RetainRange, ...] = ()
    reuse: bool = True
    id: str | None = None
    scope_id: int | None = None  # of a trace of hash ids: which scope its ids are of
    session: int | str | None = None  # which conversation or agent
    finish: str | None = None  # why its answer ended
    interrupted: Interruption | None = None
    back: Back | None = None  # when its text comes back, as was said


class Wrong(Exception):
    """A fact and a cure, before the line is known."""


class LineReader:
    """Reads line after line of one file; the first good one decides which kind it is."""

    def __init__(self, name: str, unit: int | None = None) -> None:
        self.name = name
        self.unit = unit  # None: not known yet
        self.lengths_only = False
        self.said: dict[str, Any] = {}  # by the trace of itself: the newest
        self.number = 0
        self.version = VERSION  # of the trace; where it says none, as one that is written today
        self.kind: Literal["mooncake", "quire"] | None = None

    def wrong(self, fact: str, cure: str, ahead: int = 0) -> TraceError:
        """An error at this line, or some lines ahead."""
        return TraceError(self.name, self.number + ahead, fact, cure)

    def read(self, text: bytes) -> TraceLine | None:
        """The line, or None for an empty one."""
        self.number += 1
        if len(text) > LONGEST_LINE:
            raise self.wrong(f"it is longer than {LONGEST_LINE:,} bytes", "write one request per line")
        if not text.strip():
            return None
        try:
            fields = _object(text)
            kind = _kind(fields)
            if self.kind not in (None, kind):
                raise Wrong(f"it is a line of {kind}'s format in a trace of {self.kind}'s", "split the file")
            if FIELD in fields:
                self._hear(fields[FIELD], kind)
            line = self._mooncake(fields) if kind == "mooncake" else self._quire(fields)
            if self.version > 1:
                line.session, line.finish = _session(fields), _finish(fields)
                line.interrupted, line.back = _interrupted(fields), _back(fields)
        except Wrong as error:
            raise self.wrong(*error.args) from None
        except QuireError as error:
            fact, _, cure = str(error).rpartition("; ")  # as `say` puts them together
            raise self.wrong(cut(fact, 200), cut(cure, 200)) from None
        self.kind = kind
        return line

    def _mooncake(self, fields: dict[str, Any]) -> TraceLine:
        unit = self.unit or MOONCAKE_BLOCK
        time = _time(fields, "timestamp")
        length = _whole(fields, "input_length", 1)
        output = _whole(fields, "output_length", 0)
        ids = _list(fields, "hash_ids")
        for name in ids:
            if type(name) is not int or name < 0:
                raise Wrong(f"hash_ids has {_short(name)}", "hash ids are whole numbers from 0 on")
        blocks = -(-length // unit)
        if len(ids) != blocks:
            fact = f"input_length {length} takes {blocks} blocks of {unit} tokens, hash_ids has {len(ids)}"
            raise Wrong(fact, "correct one of them, or give the trace's block size (--trace-block)")
        self.unit = unit
        scope = fields.get("scope")
        return TraceLine(self.number, time, ids, [], length, output, scope_id=scope if type(scope) is int else None)

    def _hear(self, said: Any, kind: str) -> None:
        """What the trace says of itself, at its first line or its last."""
        if not isinstance(said, dict):
            raise Wrong(f"{FIELD} is {_short(said)}", "give an object, or leave it out")
        if "trace" in said:
            self.version = _version(said["trace"])
        if "block_size" in said and kind == "mooncake":
            size = _whole(said, "block_size", 1)
            if self.unit not in (None, size):
                fact = f"the trace's block size is {size} here, and {self.unit} was given or is that of lines before"
                raise Wrong(fact, "leave out --trace-block, and do not join traces of different block sizes")
            self.unit = size
        self.lengths_only = self.lengths_only or said.get("sharing") == "unknown"
        self.said = said

    def _quire(self, fields: dict[str, Any]) -> TraceLine:
        for name in fields.keys() - _FIELDS:
            raise Wrong(f"field {shown(name)} is unknown", f"the fields are {', '.join(sorted(_FIELDS))}")
        names: list[int | str | None] = []
        sizes: list[int] = []
        for part in _list(fields, "prompt"):
            if not isinstance(part, list) or len(part) != 2:
                raise Wrong(f"a part of the prompt is {_short(part)}", "write [name, tokens]")
            name, size = part
            if name is not None and type(name) not in (int, str):
                raise Wrong(f"a part's name is {_short(name)}", "use a number, a string, or null for a private part")
            sizes.append(_count("a part's tokens", size, 1))
            names.append(name)
        length = _count("the prompt's tokens", sum(sizes), 1)
        output = _whole(fields, "output_tokens", 0)
        reuse = fields.get("reuse", True)
        if type(reuse) is not bool:
            raise Wrong(f"reuse is {_short(reuse)}", "write true or false")
        return TraceLine(
            self.number, _time(fields, "time_ms"), names, sizes, length, output, _scope(fields.get("scope")),
            _priority(fields), _retain(fields), reuse, _id(fields),
        )  # fmt: skip


def _version(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise Wrong(f"its version is {_short(value)}", f"versions are whole numbers; this Quire reads up to {VERSION}")
    if value > VERSION:
        fact = f"it is a trace of version {value}, and this Quire reads up to {VERSION}"
        raise Wrong(fact, "upgrade Quire, or make the trace with the version that reads it")
    return value


def _object(text: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        if is_table(text):
            raise Wrong(TABLE, PLAIN_LOG) from None
        cure = "write one JSON object per line: a request of a trace, or one with its text for `quire trace make`"
        raise Wrong(f"it is not JSON ({str(error)[:80]})", f"{cure}; logs of plain text are not read") from None
    if not isinstance(fields, dict):
        raise Wrong(f"it is {_short(fields)}", "write one JSON object per line")
    return fields


def _kind(fields: dict[str, Any]) -> Literal["mooncake", "quire"]:
    if (other := other_kind(fields)) is not None:
        raise Wrong(*other)
    if "prompt" not in fields and ("hash_ids" in fields or "input_length" in fields):
        return "mooncake"
    if "prompt" in fields:
        return "quire"
    raise Wrong("it has neither 'hash_ids' nor 'prompt'", "see the two formats in docs/replay.md")


def _field(fields: dict[str, Any], name: str) -> Any:
    if name not in fields:
        raise Wrong(f"it has no field {name!r}", "add it")
    return fields[name]


def _time(fields: dict[str, Any], name: str) -> float:
    value = _field(fields, name)
    if type(value) not in (int, float) or not 0 <= value <= LATEST:
        raise Wrong(f"{name} is {_short(value)}", "give milliseconds since the trace began, 0 or more")
    return float(value) / 1000


def _whole(fields: dict[str, Any], name: str, least: int) -> int:
    return _count(name, _field(fields, name), least)


def _count(what: str, value: Any, least: int) -> int:
    if type(value) is not int or not least <= value <= LONGEST:
        raise Wrong(f"{what} is {_short(value)}", f"give a whole number from {least} to {LONGEST}")
    return value


def _list(fields: dict[str, Any], name: str) -> list[Any]:
    value = _field(fields, name)
    if not isinstance(value, list) or not value:
        raise Wrong(f"{name} is {_short(value)}", "give a list with at least one item")
    return value


def _scope(value: Any) -> Scope:
    if value is None or value == {}:
        return PLAIN
    if not isinstance(value, dict) or not value.keys() <= set(_SCOPE):
        raise Wrong(f"scope is {_short(value)}", f"give an object with some of {', '.join(_SCOPE)}")
    return Scope(**value)


def _id(fields: dict[str, Any]) -> str | None:
    value = fields.get("id")
    return cut(str(value), LONGEST_ID) if type(value) in (int, str) else None


def _session(fields: dict[str, Any]) -> int | str | None:
    value = fields.get("session")
    if value is None:
        return None
    if type(value) is int and 0 <= value < 1 << 64:
        return value
    whole = isinstance(value, str) and not any("\ud800" <= one <= "\udfff" for one in value)  # as caches want it
    if whole and 0 < len(value) <= LONGEST_ID:
        return str(value)
    raise Wrong(f"session is {_short(value)}", f"give a whole number, or a name of up to {LONGEST_ID} characters")


def _finish(fields: dict[str, Any]) -> str | None:
    value = fields.get("finish")
    if value is None:
        return None
    if not is_reason(value):
        raise Wrong(f"finish is {_short(value)}", "give a word such as stop, tool_calls or length")
    return str(value)


def _back(fields: dict[str, Any]) -> Back | None:
    value = fields.get("back")
    if value is None or (isinstance(value, str) and value in BACKS):
        return value
    raise Wrong(f"back is {_short(value)}", f"give {', '.join(BACKS)}, or leave it out")


def _interrupted(fields: dict[str, Any]) -> Interruption | None:
    value = fields.get("interrupted")
    if value is None:
        return None
    if not isinstance(value, list) or not 3 <= len(value) <= 1 + 2 * MOST_PIECES or len(value) % 2 == 0:
        raise Wrong(f"interrupted is {_short(value)}", "give [token, tokens, equal tokens after it, tokens, equal ...]")
    position, width, equal, *more = (_count("a number of interrupted", number, 0) for number in value)
    return Interruption(position, width, equal, tuple(more))


def _priority(fields: dict[str, Any]) -> int:
    value = fields.get("priority", 0)
    if type(value) is not int or abs(value) >= 1 << 31:
        raise Wrong(f"priority is {_short(value)}", "give a whole number; larger ones are served first")
    return value


def _retain(fields: dict[str, Any]) -> tuple[RetainRange, ...]:
    value = fields.get("retain", [])
    if not isinstance(value, list) or not all(isinstance(item, list) and 3 <= len(item) <= 4 for item in value):
        raise Wrong(f"retain is {_short(value)}", "give a list of [start, end, priority] or [..., seconds]")
    ranges = tuple(RetainRange(*item) for item in value)
    for item in ranges:
        if max(item.start, item.end or 0) > LONGEST:
            raise Wrong(f"retain is {_short(value)}", f"give tokens up to {LONGEST}")
    return tuple(Retention(ranges).ranges)  # in order, without overlap


def _short(value: Any) -> str:
    """As it stands in the file, or about so."""
    try:
        return cut(json.dumps(value) if not isinstance(value, str) else repr(value), 40)
    except RecursionError:
        return shown(value)
