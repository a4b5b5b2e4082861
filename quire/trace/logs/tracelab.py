"""TraceLabRounds: coding agents as TraceLab publishes them, a line for each answer of a model. Opens no files.

    {"session_id": "claude:...", "input_tokens_total": n, "prefix_tokens": n, "output_tokens": n,
     "timing_events": [{"event_type": "user_message", "timestamp": "2026-06-01T05:40:20.151Z"}, ...]}

There are no ids of blocks. What is known is how much of a prompt the provider's cache had (`prefix_tokens`): so many
tokens are taken for the beginning of the session's prompt before, the rest for new. That is the least that was equal:
what that cache had forgotten counts as new, and so does what sessions have in common. A prompt is sent with the last
of its inputs; what calls a tool ends with `tool_calls`, other text with `stop`. A sub-agent has no link to the one that
began it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from quire.trace.logs.session_lines import Fields, LineSession, SessionRoom, count_in, session_in
from quire.trace.logs.weka import WekaFile, WekaRequest
from quire.trace.read.lines import Wrong
from quire.trace.units import shown

BLOCK = 64  # tokens, by default
INPUTS = ("user_message", "tool_result")


class _Round(NamedTuple):
    """One answer."""

    time: float
    length: int
    prefix: int
    output: int
    finish: str | None


class TraceLabRounds:
    """A LineFormat."""

    notes = (
        "what prompts share is what the provider's cache reported: text that it had forgotten, and text that sessions "
        "have in common, counts as new",
    )

    def __init__(self, block_size: int | None) -> None:
        self._size = block_size or BLOCK
        self._rounds: dict[str, list[_Round]] = {}
        self._rooms: dict[str, SessionRoom] = {}

    def add(self, fields: Fields) -> None:
        """One answer."""
        session = session_in(fields)
        if session is None:
            raise Wrong("it has no session_id", "name a file of TraceLab's rounds")
        length = count_in(fields, "input_tokens_total", 1)
        prefix = count_in(fields, "prefix_tokens", 0, length, usual=0)
        output = count_in(fields, "output_tokens", 0, usual=0)
        time, finish = _end_of(fields.get("timing_events"))
        self._rooms.setdefault(session, SessionRoom()).take(length // self._size)
        self._rounds.setdefault(session, []).append(_Round(time, length, prefix, output, finish))

    def sessions(self) -> list[LineSession]:
        """In the order of their first lines."""
        made = []
        for name, rounds in self._rounds.items():
            rounds.sort(key=lambda one: one.time)  # stable
            made.append(LineSession(rounds[0].time, partial(_file, name, rounds, self._size)))
        return made


def _end_of(events: Any) -> tuple[float, str | None]:
    """When a prompt was sent, and how its answer ended."""
    if not isinstance(events, list):
        raise Wrong(f"timing_events is {shown(events, 40)}", "give a list of events")
    known = [event for event in events if isinstance(event, dict) and event.get("timestamp") is not None]
    inputs = [_seconds(event["timestamp"]) for event in known if event.get("event_type") in INPUTS]
    others = [_seconds(event["timestamp"]) for event in known if event.get("event_type") not in INPUTS]
    if not known:
        raise Wrong("timing_events has no times", "leave the line out")
    kinds = {event.get("event_type") for event in known if isinstance(event.get("event_type"), str)}
    finish = "tool_calls" if "tool_call" in kinds else "stop" if "text" in kinds else None
    return max(inputs) if inputs else min(others), finish


def _seconds(stamp: Any) -> float:
    """Since the epoch, in UTC unless it says otherwise."""
    try:
        time = datetime.fromisoformat(stamp)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        raise Wrong(f"a timestamp is {shown(stamp, 40)}", "write it as 2026-01-31T12:00:00.000Z") from None


def _file(name: str, rounds: list[_Round], size: int) -> WekaFile:
    return WekaFile(name, size, False, list(_requests(rounds, size)))


def _requests(rounds: Iterable[_Round], size: int) -> Iterator[WekaRequest]:
    """With numbers of blocks: as many as were found are those of the prompt before."""
    fresh, before, began = count(), list[int](), None
    for one in rounds:
        began = one.time if began is None else began
        whole = one.length // size
        kept = before[: min(one.prefix // size, whole)]
        before = kept + [next(fresh) for _ in range(whole - len(kept))]
        yield WekaRequest(one.time - began, one.length, one.output, np.array(before, np.int64), one.finish, 0)
