"""WekaFile: one agent session as WEKA's kv-cache-tester records it, checked, with its sub-agents. Knows no clock.

    {"id": ..., "block_size": 64, "hash_id_scope": "local", "requests": [REQUEST or SUBAGENT, ...]}
    REQUEST   {"t": seconds, "type": "s" or "n", "in": tokens, "out": tokens, "hash_ids": [...], "stop": "tool_use"}
    SUBAGENT  {"t": seconds, "type": "subagent", "requests": [...]}       its times count from its own `t`, from 0 on;
                                                                          or as its parent's: then none is before it

Hash ids are of whole blocks: what a prompt has behind its last whole block has none. "local" ids mean something inside
one file, sub-agents included; "global" ones in all files. Whatever a file says, it takes bounded memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from quire.core.records.errors import InputError, say
from quire.trace.read.lines import LONGEST, MOST_BLOCKS, TraceError
from quire.trace.record.trace_writer import is_reason
from quire.trace.units import Int64, shown

LARGEST = 1 << 26  # bytes of a file
MOST_REQUESTS = 1 << 16  # of a file
DEEPEST = 8  # sub-agents of sub-agents
LATEST = 1e9  # seconds
LARGEST_ID = (1 << 63) - 1
REASONS = {"tool_use": "tool_calls", "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}


class WekaRequest(NamedTuple):
    """One request of a session."""

    time: float  # seconds since the session of the file began
    length: int
    output: int
    ids: Int64  # of whole blocks, and of the rest if there is one more
    finish: str | None
    agent: int  # 0: the session itself; then its sub-agents, in order of appearance


@dataclass(frozen=True, slots=True)
class WekaFile:
    """All of one file, in order of time."""

    name: str
    block_size: int
    shares: bool  # its ids mean the same in other files
    requests: list[WekaRequest]


def files_of(inputs: list[str]) -> list[Path]:
    """The files that were named, and those of folders, by name."""
    files: list[Path] = []
    for given in map(Path, inputs):
        if not given.is_dir():
            files.append(given)
            continue
        inside = sorted(given.glob("*.json"))
        if not inside:
            raise InputError(say(f"folder {str(given)!r}", "there is no *.json in it", "name the folder of the traces"))
        files += inside
    return files


def read_weka(path: Path, passed: Callable[[int], None] | None = None) -> WekaFile:
    """One file; raises a TraceError that names it and the field. `passed` hears how many bytes were read."""
    checks = _Checks(path.name)
    top = checks.object(_parsed(path, checks, passed), "it")
    size = checks.count(top.get("block_size"), "block_size", 1, LONGEST)
    scope = top.get("hash_id_scope", "local")
    if scope not in ("local", "global"):
        raise checks.wrong(f"hash_id_scope is {shown(scope)}", 'give "local" or "global"')
    reader = _Reader(checks, size)
    reader.read(top.get("requests"), "requests", 0.0, 0)
    if not reader.found:
        raise checks.wrong("requests has none", "leave the file out")
    reader.found.sort(key=lambda one: one.time)  # stable
    return WekaFile(path.name, size, scope == "global", reader.found)


def _parsed(path: Path, checks: _Checks, passed: Callable[[int], None] | None) -> Any:
    try:
        with path.open("rb") as file:
            text = file.read(min(LARGEST, path.stat().st_size) + 1)  # so much memory is taken at once
    except OSError as error:
        fact = f"{error.strerror or error}"
        raise InputError(say(f"trace {str(path)!r}", fact, "name a readable file or folder")) from None
    if passed is not None:
        passed(len(text))
    if len(text) > LARGEST:
        raise checks.wrong(f"it is larger than {LARGEST:,} bytes", "leave the file out")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise checks.wrong(f"it is not JSON ({type(error).__name__})", "fetch the file again") from None


class _Reader:
    """Walks through a session and its sub-agents."""

    def __init__(self, checks: _Checks, block_size: int) -> None:
        self._checks, self._size = checks, block_size
        self._agents = 0
        self._room = MOST_REQUESTS
        self.found: list[WekaRequest] = []

    def read(self, given: Any, place: str, began: float, depth: int) -> None:
        """The requests of one session; those of its sub-agents are sessions of their own."""
        checks, agent = self._checks, self._agents
        self._agents += 1
        for nth, entry in enumerate(checks.list(given, place)):
            here = f"{place}[{nth}]"
            fields = checks.object(entry, here)
            time = began + checks.seconds(fields.get("t"), f"{here}.t")
            self._room -= 1
            if self._room < 0:
                raise checks.wrong(f"it has more than {MOST_REQUESTS:,} requests", "leave the file out")
            if fields.get("type") == "subagent":
                if depth >= DEEPEST:
                    raise checks.wrong(f"{here} is nested deeper than {DEEPEST}", "leave the file out")
                inner = fields.get("requests")
                own = began if _counts_on(inner, time - began) else time
                self.read(inner, f"{here}.requests", own, depth + 1)
            else:
                self.found.append(self._request(fields, here, time, agent))

    def _request(self, fields: dict[str, Any], here: str, time: float, agent: int) -> WekaRequest:
        checks = self._checks
        length = checks.count(fields.get("in"), f"{here}.in", 1, LONGEST)
        output = checks.count(fields.get("out"), f"{here}.out", 0, LONGEST)
        ids = checks.ids(fields.get("hash_ids"), f"{here}.hash_ids")
        if not length // self._size <= len(ids) <= -(-length // self._size):
            fact = f"{here}.in is {length:,}, and {here}.hash_ids has {len(ids):,} blocks of {self._size}"
            raise checks.wrong(fact, "correct one of them")
        stop = fields.get("stop") or None
        finish = REASONS.get(stop, stop) if isinstance(stop, str) else stop
        if finish is not None and not is_reason(finish):
            raise checks.wrong(f"{here}.stop is {shown(stop, 40)}", 'give a word such as "end_turn"')
        return WekaRequest(time, length, output, ids, finish, agent)


def _counts_on(requests: Any, begin: float) -> bool:
    """Whether a sub-agent's times go on from its parent's, as in some published sets: the first is not before it."""
    first = requests[0].get("t") if isinstance(requests, list) and requests and isinstance(requests[0], dict) else None
    return type(first) in (int, float) and 0 < begin <= first  # type: ignore[operator]


class _Checks:
    """Says what is wrong with one file."""

    def __init__(self, name: str) -> None:
        self._name = name

    def wrong(self, fact: str, cure: str) -> TraceError:
        return TraceError(self._name, 0, fact, cure)

    def object(self, value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.wrong(f"{place} is {shown(value, 40)}", "give an object, as WEKA's traces have it")
        return value

    def list(self, value: Any, place: str) -> Iterator[Any]:
        if not isinstance(value, list):
            raise self.wrong(f"{place} is {shown(value, 40)}", "give a list, as WEKA's traces have it")
        return iter(value)

    def count(self, value: Any, place: str, least: int, most: int) -> int:
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(f"{place} is {shown(value, 40)}", f"give a whole number from {least} to {most}")
        return value

    def seconds(self, value: Any, place: str) -> float:
        if type(value) not in (int, float) or not 0 <= value <= LATEST:
            raise self.wrong(f"{place} is {shown(value, 40)}", f"give seconds, from 0 to {LATEST:g}")
        return float(value)

    def ids(self, value: Any, place: str) -> Int64:
        if not isinstance(value, list) or len(value) > MOST_BLOCKS:
            raise self.wrong(f"{place} is {shown(value, 40)}", f"give a list of up to {MOST_BLOCKS:,} ids")
        for nth, one in enumerate(value):
            if type(one) is not int or not 0 <= one <= LARGEST_ID:
                raise self.wrong(f"{place}[{nth}] is {shown(one, 40)}", "hash ids are whole numbers from 0 on")
        return np.array(value, np.int64)
