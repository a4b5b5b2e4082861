"""AIPerfTurns: sessions as AIPerf's `mooncake_trace` has them, a line for each turn. Opens no files.

    {"session_id": "a", "timestamp": 0, "input_length": 1200, "output_length": 50, "hash_ids": [0, 1, 2]}
    {"session_id": "a", "delay": 2000, "input_length": 300, "output_length": 40, "hash_ids": [7]}

A turn has what is new: before it stand all turns of its session and their answers. With a `context_mode` of
"deltas_with_responses" answers are among what is new, with "message_array_with_responses" a line is the whole prompt.
A hash id stands for 512 tokens wherever it is; without ids a turn's text is like no other. `delay` and `timestamp` are
milliseconds; a delay counts from the turn before.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from quire.core.records.errors import InputError, say
from quire.trace.logs.session_lines import (
    Fields,
    LineSession,
    SessionRoom,
    count_in,
    milliseconds_in,
    session_in,
)  # fmt: skip
from quire.trace.logs.weka import LARGEST_ID, WekaFile, WekaRequest
from quire.trace.read.lines import LONGEST, MOONCAKE_BLOCK, MOST_BLOCKS, Wrong
from quire.trace.units import Int64, shown

WHOLE, WITH_ANSWERS, ALONE = "message_array_with_responses", "deltas_with_responses", "deltas_without_responses"
MODES = (ALONE, WITH_ANSWERS, WHOLE)
TEXT = ("messages", "text_input", "payload")
MOST_IDS = 1 << 26  # of all lines together; each takes 8 bytes
MOST_NAMES = 1 << 23  # blocks that have a number; each takes some 300 bytes
OWN = -1  # the id of text that is like no other

Part = tuple[int, int]  # an id and its tokens: equal ids begin with equal tokens


class _Turn(NamedTuple):
    """One line."""

    stamp: float | None
    delay: float
    length: int
    output: int
    ids: Int64 | None  # None: its text is like no other
    mode: str


class _Session:
    """The turns of one."""

    __slots__ = ("before", "room", "turns")

    def __init__(self) -> None:
        self.turns: list[_Turn] = []
        self.before = 0  # tokens that the next turn goes on from
        self.room = SessionRoom()


class AIPerfTurns:
    """A LineFormat."""

    notes = ("a delay counts from when the turn before it came: how long answers took is not in the file",)

    def __init__(self, block_size: int | None) -> None:
        self._size = block_size or MOONCAKE_BLOCK
        self._sessions: dict[object, _Session] = {}
        self._room = MOST_IDS
        self._numbers = IdBlocks()

    def add(self, fields: Fields) -> None:
        """One turn; a line without a session is a session."""
        for name in TEXT:
            if fields.get(name) is not None:
                cure = "leave out --from: it is a log of prompts (--time-unit ms)"
                raise Wrong(f"its prompt is text, in {name!r}", cure)
        session = session_in(fields)
        length = count_in(fields, "input_length", 1)
        output = count_in(fields, "output_length", 0, usual=0)
        stamp, delay = milliseconds_in(fields, "timestamp"), milliseconds_in(fields, "delay")
        mode = fields.get("context_mode") or ALONE
        if mode not in MODES:
            raise Wrong(f"context_mode is {shown(mode, 40)}", f"give one of {', '.join(MODES)}")
        turn = _Turn(stamp, delay or 0.0, length, output, _ids(fields.get("hash_ids"), length), mode)
        self._take(self._sessions.setdefault(object() if session is None else session, _Session()), turn)

    def _take(self, session: _Session, turn: _Turn) -> None:
        """Into its session, if there is room."""
        prompt = turn.length + (session.before if turn.mode != WHOLE else 0)
        if prompt > LONGEST:
            raise Wrong(f"its session is longer than {LONGEST:,} tokens", "leave the line out")
        ids = 0 if turn.ids is None else len(turn.ids)
        if ids > self._room:
            raise Wrong(f"the lines before it have {MOST_IDS - self._room:,} hash ids", "make several traces")
        session.room.take(prompt // self._size)
        self._room -= ids
        session.turns.append(turn)
        session.before = prompt + (turn.output if turn.mode == ALONE else 0)

    def sessions(self) -> list[LineSession]:
        """In the order of their first lines."""
        with_turns = [one.turns for one in self._sessions.values() if one.turns]
        return [LineSession(turns[0].stamp, partial(self._file, nth, turns)) for nth, turns in enumerate(with_turns)]

    def _file(self, nth: int, turns: list[_Turn]) -> WekaFile:
        return WekaFile(f"session {nth}", self._size, True, list(self._requests(turns)))

    def _requests(self, turns: list[_Turn]) -> Iterator[WekaRequest]:
        time, began, prompt = 0.0, turns[0].stamp, _Prompt(self._size, self._numbers)
        for number, turn in enumerate(turns):
            known = turn.stamp is not None and began is not None
            time = max(turn.stamp - began, time) if known else time + turn.delay if number else 0.0  # type: ignore[operator]
            if turn.mode == WHOLE:
                prompt = _Prompt(self._size, self._numbers)
            for part in _parts(turn):
                prompt.add(*part)
            yield WekaRequest(time, prompt.length, turn.output, np.array(prompt.blocks, np.int64), None, 0)
            if turn.output and turn.mode == ALONE:
                prompt.add(OWN, turn.output)


class IdBlocks:
    """Numbers for blocks of all sessions: equal ones have the same parts of the same ids."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, int, int], ...], int] = {}
        self._next = count()

    def number(self, parts: list[tuple[int, int, int]]) -> int:
        """Of a block of such parts: id, first token, tokens."""
        if any(name == OWN for name, _, _ in parts):
            return next(self._next)
        known = self._known.get(tuple(parts))
        if known is None:
            if len(self._known) >= MOST_NAMES:
                fact = f"their hash ids stand for more than {MOST_NAMES:,} blocks"
                raise InputError(say("sessions", fact, "give a larger --block-size, or make several traces"))
            known = self._known[tuple(parts)] = next(self._next)
        return known


class _Prompt:
    """A prompt as it grows, turn by turn, with the numbers of its whole blocks."""

    __slots__ = ("_names", "_open", "_room", "_size", "blocks", "length")

    def __init__(self, size: int, names: IdBlocks) -> None:
        self._size = self._room = size
        self._names = names
        self._open: list[tuple[int, int, int]] = []  # of the block that is not whole yet
        self.blocks: list[int] = []
        self.length = 0

    def add(self, name: int, size: int) -> None:
        """So many tokens more, of an id."""
        start = 0
        self.length += size
        while start < size:
            taken = min(self._room, size - start)
            self._open.append((name, start, taken))
            start, self._room = start + taken, self._room - taken
            if not self._room:
                self.blocks.append(self._names.number(self._open))
                self._open, self._room = [], self._size


def _parts(turn: _Turn) -> Iterator[Part]:
    """What a line says."""
    if turn.ids is None:
        yield OWN, turn.length
        return
    ids = turn.ids.tolist()
    yield from ((one, MOONCAKE_BLOCK) for one in ids[:-1])
    yield ids[-1], turn.length - MOONCAKE_BLOCK * (len(ids) - 1)


def _ids(given: Any, length: int) -> Int64 | None:
    if given is None or given == []:
        return None
    if not isinstance(given, list) or len(given) > MOST_BLOCKS:
        raise Wrong(f"hash_ids is {shown(given, 40)}", "give a list of ids")
    for one in given:
        if type(one) is not int or not 0 <= one <= LARGEST_ID:
            raise Wrong(f"hash_ids has {shown(one, 40)}", "hash ids are whole numbers from 0 on")
    if len(given) != -(-length // MOONCAKE_BLOCK):
        fact = f"input_length is {length:,}, and hash_ids has {len(given):,} blocks of {MOONCAKE_BLOCK}"
        raise Wrong(fact, "correct one of them")
    return np.array(given, np.int64)
