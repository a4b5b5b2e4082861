"""TraceWriter: requests as lines of Mooncake's format, for every reader of that. Opens no files, makes no ids.

    {"timestamp": 0, "input_length": 40, "output_length": 9, "hash_ids": [...], "quire": {"trace": 2, "block_size": 16}}
    {"timestamp": 310, "input_length": 52, "output_length": 7, "hash_ids": [...], "session": 5, "finish": "stop"}
    {"timestamp": 355, "input_length": 31, "output_length": 2, "hash_ids": [...], "quire": {"end": {"requests": 3}}}

What the trace is rides on its first line, what became of it on its last: no line is anything but a request. Without an
end mark the trace was cut. Version 2 brought `session`, `finish`, `back` and `interrupted`, each where
it is known.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, NamedTuple

from quire.core.records.hint_words import Back

VERSION = 2  # of the field "quire"
FIELD = "quire"
LONGEST_REASON = 40  # characters
MOST_PIECES = 64  # of a prompt, that were here behind something else


class Interruption(NamedTuple):
    """Where a prompt stops being equal to any before it, how many tokens follow, and how many that were here after all.

    `more` goes on from there: again tokens that were not here, and tokens that were.
    """

    position: int
    width: int
    equal_after: int
    more: tuple[int, ...] = ()

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """[start, stop) of each piece that was here."""
        ends = list(accumulate((self.position, self.width, self.equal_after, *self.more)))
        return list(zip(ends[1::2], ends[2::2], strict=True))

    @property
    def numbers(self) -> list[int]:
        """As a line has it."""
        return [self.position, self.width, self.equal_after, *self.more]


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One request of a trace."""

    time_ms: float  # since the epoch, or by whatever clock the trace has
    input_length: int
    output_length: int
    hash_ids: Sequence[int]
    scope: int | None = None  # requests of different scopes share nothing; None: there is but one
    session: int | None = None  # requests of one conversation or agent have the same
    finish: str | None = None  # why its answer ended: "stop", "tool_calls", "length", ...
    interrupted: Interruption | None = None  # among the prompts that were compared
    back: Back | None = None  # when its text comes back, by its hint

    def line(self, began_ms: float) -> dict[str, Any]:
        """As it is written; times count from `began_ms`."""
        fields: dict[str, Any] = {
            "timestamp": max(0, round(self.time_ms - began_ms)),
            "input_length": self.input_length,
            "output_length": self.output_length,
            "hash_ids": self.hash_ids,
        }
        known = ((name, getattr(self, name)) for name in ("scope", "session", "finish", "back"))
        fields |= {name: value for name, value in known if value is not None}
        return fields if self.interrupted is None else fields | {"interrupted": self.interrupted.numbers}


def is_reason(finish: object) -> bool:
    """Whether it is a word that can stand for why an answer ended: what a log has there may be anything."""
    return isinstance(finish, str) and len(finish) <= LONGEST_REASON and finish.replace("_", "").isalnum()


def iso_text(time_ms: float) -> str | None:
    """A time since the epoch as others write it; None for one that is not."""
    if not 1e11 <= time_ms < 1e14:  # 1973 to 5138
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TraceWriter:
    """Lines, one behind the other. The last one is held back until the next comes, or the end."""

    def __init__(self, write: Callable[[bytes], object], header: dict[str, Any]) -> None:
        self._write = write
        self._extra: dict[str, Any] | None = {"trace": VERSION, **header}  # of the line that is held back
        self._held: dict[str, Any] | None = None
        self.num_requests = 0

    def add(self, line: dict[str, Any]) -> None:
        """One more."""
        if self._held is not None:
            self._put(self._extra)
            self._extra = None
        self._held = line
        self.num_requests += 1

    def end(self, summary: dict[str, Any]) -> None:
        """The last line and the end mark; a trace of no requests has neither."""
        if self._held is not None:
            self._put({**(self._extra or {}), "end": {"requests": self.num_requests, **summary}})
            self._held = None

    def _put(self, extra: dict[str, Any] | None) -> None:
        assert self._held is not None
        line = self._held if extra is None else {**self._held, FIELD: extra}
        self._write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
