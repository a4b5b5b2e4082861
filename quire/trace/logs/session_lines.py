"""Sessions that lie as lines in files, a request in each: read, checked and grouped. Knows no clock.

What a line says depends on its format (`tracelab.py`, `aiperf.py`). A session's blocks are made when it begins, not
before: all that is kept of a line until then is a few numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from quire.trace.logs.weka import LATEST, MOST_REQUESTS, WekaFile
from quire.trace.read.lines import LONGEST, LONGEST_ID, LONGEST_LINE, MOST_BLOCKS, TraceError, Wrong
from quire.trace.read.streams import BrokenStream, open_lines
from quire.trace.units import shown

MOST_ROWS = 1 << 22  # of all files together
MOST_IDS = 1 << 25  # of all prompts of a session; each takes 8 bytes when it begins
LARGER = "use a larger --block-size, or leave the line out"

Fields = dict[str, Any]


class LineSession(NamedTuple):
    """One of them."""

    began: float | None  # seconds, by the clock of its file; None: nothing says
    read: Callable[[], WekaFile]


class SessionRoom:
    """What one session may still have: its lines say how long prompts are, and few lines may say very much."""

    __slots__ = ("_ids", "_requests")

    def __init__(self) -> None:
        self._requests, self._ids = MOST_REQUESTS, MOST_IDS

    def take(self, blocks: int) -> None:
        """One more prompt, of so many blocks; raises Wrong."""
        if blocks > MOST_BLOCKS:
            raise Wrong(f"its prompt has {blocks:,} blocks, and {MOST_BLOCKS:,} fit into a line of a trace", LARGER)
        if not self._requests:
            raise Wrong(f"its session has {MOST_REQUESTS:,} requests before it", "leave the line out")
        if blocks > self._ids:
            raise Wrong(f"the prompts of its session have more than {MOST_IDS:,} blocks", LARGER)
        self._requests, self._ids = self._requests - 1, self._ids - blocks


class LineFormat(Protocol):
    """What lines mean; it keeps them until all are read."""

    def add(self, fields: Fields) -> None:
        """One line; raises Wrong for one that cannot be used."""

    def sessions(self) -> list[LineSession]:
        """In the order of their first lines."""

    @property
    def notes(self) -> Sequence[str]:
        """What a reader should know of traces made from it."""


def read_lines(
    inputs: Sequence[str], form: LineFormat, skipped: Callable[[TraceError], None],
    passed: Callable[[int], None] | None = None,
) -> None:  # fmt: skip
    """All lines of all files; `skipped` hears of those that cannot be used, and may raise."""
    room = MOST_ROWS
    for path in inputs:
        name = Path(path).name
        with open_lines(path, LONGEST_LINE, passed=passed) as texts:
            number = 0
            try:
                for number, text in enumerate(texts, 1):
                    room -= 1
                    if room < 0:
                        raise TraceError(name, number, f"{MOST_ROWS:,} lines are before it", "make several traces")
                    try:
                        _add(form, text)
                    except Wrong as error:
                        skipped(TraceError(name, number, *error.args))
            except BrokenStream as broken:
                skipped(TraceError(name, number + 1, str(broken), "fetch the file again"))


def _add(form: LineFormat, text: bytes) -> None:
    if len(text) > LONGEST_LINE:
        raise Wrong(f"it is longer than {LONGEST_LINE:,} bytes", "leave it out")
    if not text.strip():
        return
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Wrong(f"it is not JSON ({type(error).__name__})", "fetch the file again") from None
    if not isinstance(fields, dict):
        raise Wrong(f"it is {shown(fields, 40)}", "give an object in each line")
    form.add(fields)


def count_in(fields: Fields, name: str, least: int, most: int = LONGEST, usual: int | None = None) -> int:
    """A whole number; `usual` where there is none."""
    value = fields.get(name)
    if value is None and usual is not None:
        return usual
    if type(value) is not int or not least <= value <= most:
        raise Wrong(f"{name} is {shown(value, 40)}", f"give a whole number from {least} to {most}")
    return value


def milliseconds_in(fields: Fields, name: str) -> float | None:
    """A time or a pause, in seconds; None where there is none."""
    value = fields.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= LATEST * 1e6:
        raise Wrong(f"{name} is {shown(value, 40)}", "give milliseconds, 0 or more")
    return float(value) / 1000


def session_in(fields: Fields) -> str | None:
    """The name of its session."""
    value = fields.get("session_id")
    if value is None:
        return None
    if type(value) not in (str, int) or not 0 < len(str(value)) <= LONGEST_ID:
        raise Wrong(f"session_id is {shown(value, 40)}", f"give a name of up to {LONGEST_ID} characters")
    return str(value)
