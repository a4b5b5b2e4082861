"""Calls: what an engine did to one world, as a list that needs no random numbers to be played again. Plays nothing.

In a file: {"what": the failure, "world": {...}, "calls": [{"call": "add", "asks": [...]}, ...]}, defaults left out.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Signature, signature
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from fuzzing.world import build
from fuzzing.world.plain import Ask, Budget, Encoder, Group, World

DERIVED = {
    "root", "scope_root", "identities", "places", "room", "compute_end",
    "kinds", "num_own", "has_state", "is_plain", "snug",
}  # fmt: skip
CALLS: dict[str, Callable[..., Any]] = {}  # every call that can be recorded, by name; the player comes first
SIGNATURES: dict[str, Signature] = {}


class Call(NamedTuple):
    """One call of a player."""

    name: str
    args: Mapping[str, Any]


class Notes:
    """The calls of one player so far; what a call does inside itself is not noted."""

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.inside = False

    def calls(self) -> list[Call]:
        """All of them, with their arguments by name."""
        bound = ((name, SIGNATURES[name].bind(None, *args, **named).arguments) for name, args, named in self.made)
        return [Call(name, dict(list(given.items())[1:])) for name, given in bound]


class Noted(Protocol):
    """Who makes calls."""

    notes: Notes


Who = TypeVar("Who", bound=Noted)
P = ParamSpec("P")
T = TypeVar("T")


def recorded(call: Callable[Concatenate[Who, P], T]) -> Callable[Concatenate[Who, P], T]:
    """A call of a player: it is noted, unless another one makes it."""
    name = call.__name__

    @wraps(call)
    def noting(player: Who, /, *args: P.args, **named: P.kwargs) -> T:
        notes = player.notes
        if notes.inside:
            return call(player, *args, **named)
        notes.made.append((name, args, named))
        notes.inside = True
        try:
            return call(player, *args, **named)
        finally:
            notes.inside = False

    CALLS[name], SIGNATURES[name] = noting, signature(call)
    return noting


# -- in plain data ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recording:
    """A world, what was called in it, and what came of it."""

    world: World
    calls: Sequence[Call]
    what: str = ""

    def data(self) -> dict[str, Any]:
        """As JSON takes it."""
        lines = [{"call": call.name, **_given(call)} for call in self.calls]
        return {"what": self.what, "world": plain(self.world), "calls": lines}

    def text(self) -> str:
        """One line for each call."""
        data = self.data()
        calls = ",\n  ".join(map(json.dumps, data["calls"]))
        head = "".join(f' "{key}": {json.dumps(data[key])},\n' for key in ("what", "world"))
        return f'{{\n{head} "calls": [\n  {calls}\n ]\n}}\n'

    def save(self, path: Path) -> None:
        """Into a file; gzipped where its name says so."""
        path.parent.mkdir(parents=True, exist_ok=True)
        data = self.text().encode()
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def load(path: Path) -> Recording:
    """A recording from its file."""
    data = path.read_bytes()
    return recording(json.loads(gzip.decompress(data) if path.suffix == ".gz" else data))


def recording(data: Mapping[str, Any]) -> Recording:
    """A recording from plain data."""
    given = tupled(dict(data["world"]))
    groups = tuple(Group(**group) for group in data["world"].get("groups", ()))
    world = World(**{**given, "groups": groups})
    calls = [_call(line, world.block_size) for line in data["calls"]]
    return Recording(world, calls, data.get("what", ""))


def plain(value: Any) -> Any:
    """Dataclasses as what differs from their defaults, tuples as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        told = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
        return {name: plain(own) for name, (own, usual) in told.items() if name not in DERIVED and own != usual}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def tupled(value: Any) -> Any:
    """Lists as tuples, all the way down."""
    if isinstance(value, dict):
        return {name: tupled(item) for name, item in value.items()}
    return tuple(map(tupled, value)) if isinstance(value, list | tuple) else value


def _given(call: Call) -> dict[str, Any]:
    usual = {name: item.default for name, item in SIGNATURES[call.name].parameters.items()}
    data = {name: (plain(value), plain(usual[name])) for name, value in call.args.items()}
    return {name: value for name, (value, default) in data.items() if value != default}


def _call(line: Mapping[str, Any], block_size: int) -> Call:
    args: dict[str, Any] = {}
    for name, value in line.items():
        if name == "ask":
            args[name] = ask(value, block_size)
        elif name == "asks":
            args[name] = [ask(item, block_size) for item in value]
        elif name == "budget":
            args[name] = Budget(**value)
        elif name != "call":
            args[name] = tupled(value)
    return Call(line["call"], args)


def ask(data: Mapping[str, Any], block_size: int) -> Ask:
    """A request from plain data, with all that follows from it."""
    given = tupled(dict(data))
    if given.get("encoder") is not None:
        given["encoder"] = Encoder(**given["encoder"])
    return build.named(Ask(**given), block_size)
