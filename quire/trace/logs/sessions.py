"""Recorded sessions side by side: which begins when, whose blocks are whose, and all requests in order of time.

Sessions begin as a Poisson process of a stated rate and seed, in an order drawn from it, or when they did; inside a
session requests come as they were recorded. So the same files, rate and seed give the same trace. Only the blocks of
sessions that are open are in memory, and so many that it suffices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import NamedTuple

import numpy as np

from quire.core.records.errors import InputError, say
from quire.trace.logs.session_lines import LineSession
from quire.trace.logs.weka import WekaFile, WekaRequest
from quire.trace.read.lines import LATEST, TraceError
from quire.trace.record.trace_writer import TraceRecord
from quire.trace.units import Int64

SESSIONS = WEKA, AIPERF, TRACELAB = "weka", "aiperf", "tracelab"  # what a trace says it is from
MOST_SESSIONS = 1 << 20
MOST_WAITING = 1 << 27  # hash ids of requests that are read and not handed on; 8 bytes each
MOST_KNOWN = 1 << 24  # blocks that have a number; each takes some 250 bytes

Read = Callable[[], WekaFile]  # a session: raises a TraceError if it cannot be used


class Begin(NamedTuple):
    """A session, and when it begins, in seconds."""

    time: float
    read: Read


def begins(sessions: list[Read], rate: float, seed: int) -> list[Begin]:
    """Sessions in the order they begin, `rate` of them per second on average."""
    _check_number(len(sessions))
    rng = Random(seed)
    order = list(sessions)
    rng.shuffle(order)
    found, now = [], 0.0
    for read in order:
        found.append(Begin(now, read))
        now += rng.expovariate(rate)
    return found


def as_recorded(sessions: list[LineSession]) -> list[Begin] | None:
    """Sessions in the order they began, the first at 0; None if that is not known of all."""
    _check_number(len(sessions))
    times = [one.began for one in sessions if one.began is not None]
    if len(times) < len(sessions) or not times:
        return None
    found = [Begin(time - min(times), one.read) for time, one in zip(times, sessions, strict=True)]
    return sorted(found, key=lambda one: one.time)


def _check_number(count: int) -> None:
    if count > MOST_SESSIONS:
        fact = f"there are {count:,} of them, and {MOST_SESSIONS:,} is the most"
        raise InputError(say("sessions", fact, "name fewer files"))


class SessionMix:
    """Reads session after session, and hands their requests on in order of time."""

    def __init__(self, block_size: int | None, skipped: Callable[[TraceError], None]) -> None:
        self._blocks = BlockNumbers(block_size)
        self._skipped = skipped
        self._sessions = count()
        self._room = MOST_WAITING
        self.num_sessions = 0

    @property
    def block_size(self) -> int:
        """Tokens per hash id."""
        return self._blocks.size

    def records(self, sessions: list[Begin]) -> Iterator[TraceRecord]:
        """All of them; `skipped` hears of a session that cannot be used, and may raise."""
        waiting: list[tuple[float, int, int, TraceRecord]] = []
        order = count()
        for begin in sessions:
            while waiting and waiting[0][0] <= begin.time:
                yield self._handed_on(heappop(waiting)[-1])
            try:
                file = begin.read()
                _check_end(file, begin.time)
                self._blocks.begin(file)
            except TraceError as error:
                self._skipped(error)
                continue
            names: dict[int, int] = {}  # of the session, and of each of its sub-agents
            for request in file.requests:
                session = names.setdefault(request.agent, -1)
                if session < 0:
                    session = names[request.agent] = next(self._sessions)
                time = begin.time + request.time
                ids = self._blocks.numbered(request)
                record = TraceRecord(
                    time * 1000, request.length, request.output, ids, session=session, finish=request.finish
                )
                self._wait(record)
                heappush(waiting, (time, next(order), session, record))
            self.num_sessions += len(names)
        while waiting:
            yield self._handed_on(heappop(waiting)[-1])

    def _wait(self, record: TraceRecord) -> None:
        self._room -= len(record.hash_ids)
        if self._room < 0:
            fact = f"the requests of those that are open at once have more than {MOST_WAITING:,} hash ids"
            raise InputError(say("sessions", fact, "give a larger --block-size or a lower --rate, or name fewer files"))

    def _handed_on(self, record: TraceRecord) -> TraceRecord:
        self._room += len(record.hash_ids)
        return record


def _check_end(file: WekaFile, begin: float) -> None:
    """A trace has no times that its readers refuse."""
    end = (begin + file.requests[-1].time) * 1000
    if not end <= LATEST:
        fact = f"its last request comes {end:g} ms after the trace begins, and {LATEST:g} is the latest"
        raise TraceError(file.name, 0, fact, "give a higher --rate, or leave it out")


class BlockNumbers:
    """Numbers for blocks, from 0 on: of larger blocks than the files have, if that is wanted.

    A block is known by those before it. A rest that fills no block is like no other.
    """

    def __init__(self, size: int | None) -> None:
        self._wanted = size
        self._next = 0
        self._global: dict[tuple[int, bytes], int] = {}
        self._known = self._global  # of the file in hand
        self._step = 1  # the file's blocks in one of ours
        self._last: dict[int, tuple[Int64, list[int]]] = {}  # by agent: the ids and numbers of its last prompt
        self.size = size or 0  # 0: that of the first file

    def begin(self, file: WekaFile) -> None:
        """The next file."""
        size = self.size or file.block_size
        if size % file.block_size:
            fact = f"block_size is {file.block_size}, and the trace's is {size}"
            raise TraceError(file.name, 0, fact, f"give a --block-size that is a multiple of {file.block_size}")
        self.size, self._step = size, size // file.block_size
        self._known = self._global if file.shares else {}
        self._last = {}

    def numbered(self, request: WekaRequest) -> list[int]:
        """The numbers of a prompt's blocks, the rest included."""
        step, ids = self._step, request.ids
        whole = len(ids) // step if step > 1 else len(ids)
        before, numbers = self._last.get(request.agent, (ids[:0], []))
        shared = _equal(before, ids) // step
        prefix = numbers[: min(shared, whole)]
        last = prefix[-1] if prefix else -1
        for nth in range(len(prefix), whole):
            key = last, ids[nth * step : (nth + 1) * step].tobytes()
            number = self._known.get(key)
            if number is None:
                _check_known(len(self._known))
                number = self._known[key] = self._next
                self._next += 1
            prefix.append(number)
            last = number
        self._last[request.agent] = ids, prefix
        if len(prefix) * self.size >= request.length:
            return prefix
        self._next += 1
        return [*prefix, self._next - 1]


def _check_known(count: int) -> None:
    if count >= MOST_KNOWN:
        fact = f"they have more than {MOST_KNOWN:,} different blocks"
        raise InputError(say("sessions", fact, "give a larger --block-size, or make several traces"))


def _equal(one: Int64, other: Int64) -> int:
    """Ids that both begin with."""
    size = min(len(one), len(other))
    same = one[:size] == other[:size]
    return size if same.all() else int(np.argmin(same))
