"""LoosePlayer: the requests of an incident on another cache: other sizes, another order, or without some of the calls.

Rows and plans are its own. Requests admitted then are admitted here as soon as there is room, in an order of
`WaitingLine`; what has no room to grow is preempted, and waits. A call that means nothing where it stands is skipped,
so any part of a list of calls is one too. Owns what became of the requests here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.core.cache import Cache
from quire.core.records.config import CacheConfig
from quire.core.records.errors import BrokenInvariant, ConfigWarning, QuireError
from quire.core.records.plan import Plan
from quire.core.records.request import Request
from quire.core.records.span import Span
from quire.core.state.sequence import Sequence
from quire.core.store import StoreName
from quire.incidents.files.incident_file import Plain
from quire.incidents.files.naming import in_rows, unpacked
from quire.incidents.play.given import request_of, scope_of
from quire.incidents.play.played_cache import PlayedClock
from quire.incidents.play.waiting_line import LooseRequest, Order, WaitingLine

MOST_AT_ONCE = 64  # requests that are claimed in one step


@dataclass(slots=True)
class PlayOutcome:
    """What became of the requests."""

    admitted: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    preempted: int = 0
    refused: int = 0  # never fit
    waited: float = 0.0  # seconds, of all together, behind their admission then
    longest_wait: float = 0.0
    skipped: int = 0  # calls that meant nothing here

    @property
    def hit_rate(self) -> float:
        """Share of the prompts that was reused."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class LoosePlayer:
    """Plays calls on a cache of its own."""

    def __init__(self, config: CacheConfig, *, store: StoreName = "auto", order: Order = "fcfs") -> None:
        self.clock = PlayedClock()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConfigWarning)
            self.cache = Cache(replace(config, events=False), clock=self.clock, store=store)
        self.outcome = PlayOutcome()
        self._requests: dict[int, Request] = {}
        self._rows: dict[int, tuple[int, int]] = {}  # by row of then: who was in it; a request, and which fork of it
        self._live: dict[tuple[int, int], Sequence] = {}
        self._line = WaitingLine(order)
        self._handles: dict[int, Any] = {}
        self._counted: set[int] = set()
        self._never: dict[int, float] = {}  # requests that never got in then: when they were asked for last

    def play(self, calls: Iterable[Plain]) -> PlayOutcome:
        """Make all calls; what the cache raises beside a refusal is raised.

        Requests that never got in then wait here as long as they were asked for. One that gets in is over when its
        prompt is computed: its answer is not known.
        """
        some = list(calls)
        self._never = last_asked(some)
        for call in some:
            self.step(call)
        return self.outcome

    def step(self, call: Plain) -> None:
        """Make one call, as far as it means something here."""
        verb, time, _, given, answer = call
        self.clock.times, self.clock.last = [], max(self.clock.last, float(time))
        if verb in _ACTS:
            try:
                _ACTS[verb](self, given, answer)
            except BrokenInvariant:
                raise
            except QuireError:
                self.outcome.skipped += 1

    @property
    def waiting(self) -> list[Request]:
        """Requests admitted in the recording and not here yet."""
        return [one.request for one in self._line.waiting.values()]

    @property
    def open_handles(self) -> list[Any]:
        """Holds and finds that are still open."""
        return list(self._handles.values())

    def _learn(self, asked: Plain) -> Request | None:
        """A request that the file named here or before."""
        number, _, _, fresh = asked
        if fresh is not None:
            self._requests[number] = request_of(fresh)
        return self._requests.get(number)

    def _run(self, plan: Plan | None) -> None:
        """Its moves are made at once."""
        if plan is not None:
            self.cache.finish(plan)

    def _admit(self, rows: list[Any]) -> None:
        now = self.clock.last
        self._end_unknown(now)
        for number, row, *_ in rows:
            self._rows[row] = (number, 0)
            if number in self._requests and (number, 0) not in self._live:
                self._line.enter(number, self._requests[number], now)
        going = [one for one in self._live.values() if one.live and one.ran < one.prompt_end]
        wanted = self._line.first(MOST_AT_ONCE)
        if not wanted and not going:
            return
        self._commit_all(going)
        going = [one for one in going if one.live and one.computed < one.prompt_end]
        behind = self._let_in(wanted, going, now)
        for one in behind if self._line.order == "fits" else ():
            self._let_in([one], [], now)

    def _end_unknown(self, now: float) -> None:
        """Of requests that never got in then: answers are over with their prompts; who asks no more has gone."""
        for number, last in self._never.items():
            if last < now:
                self._line.leave(number)
            sequence = self._live.get((number, 0))
            if sequence is not None and sequence.live and sequence.ran >= sequence.prompt_end:
                self._commit_all([sequence])
                self.cache.release(self._live.pop((number, 0)))

    def _let_in(self, wanted: list[LooseRequest], going: list[Sequence], now: float) -> list[LooseRequest]:
        """As many as there is room for; who was only behind one that there is none for."""
        batch = self.cache.add_sequence_batch([one.request for one in wanted], continuing=going)
        self._run(batch.plan)
        by_request = {id(one.request): one for one in wanted}
        for sequence in batch.sequences:
            self._seat(by_request[id(sequence.request)].number, sequence, now)
        for refusal in batch.refused:
            if refusal.never:
                self._line.leave(number := by_request[id(refusal.request)].number)
                self._counted.add(number)
                self.outcome.refused += 1
        return [by_request[id(refusal.request)] for refusal in batch.refused if refusal.reason == "order"]

    def _seat(self, number: int, sequence: Sequence, now: float) -> None:
        since = self._line.admitted(number)
        outcome = self.outcome
        outcome.waited, outcome.longest_wait = outcome.waited + now - since, max(outcome.longest_wait, now - since)
        if number not in self._counted:  # one that was preempted finds what it has computed itself
            self._counted.add(number)
            outcome.admitted, outcome.prompt_tokens = outcome.admitted + 1, outcome.prompt_tokens + sequence.prompt_end
            outcome.hit_tokens += sequence.start
        self._live[number, 0] = sequence

    def _commit_all(self, sequences: Iterable[Sequence]) -> None:
        behind = [one for one in sequences if one.live and one.ran > one.computed]
        if behind:
            self.cache.commit(behind)

    def _who(self, rows: Any) -> list[tuple[int, int]]:
        return [self._rows[row] for row in _numbers(rows) if row in self._rows]

    def _one(self, row: int) -> Sequence | None:
        who = self._rows.get(row)
        return None if who is None else self._live.get(who)

    def _grow(self, rows: Any, columns: list[list[int]] | None, num_tokens: int | list[int]) -> None:
        """Tokens get their slots now; without tokens those that a setback took back. Places wait for their tokens."""
        named, fixed = _numbers(rows), num_tokens if columns is None or isinstance(num_tokens, list) else len(columns)
        counts = np.array(fixed if isinstance(fixed, list) else [fixed] * len(named), np.int32)
        if columns is not None:
            self._take_on(named, in_rows(columns, counts))
            return
        there = [(one, most) for row, most in zip(named, counts.tolist(), strict=True) if (one := self._ready(row))]
        self._with_room([(one, min(most, one.length - one.ran)) for one, most in there if one.ran < one.length], None)

    def _take_on(self, rows: list[int], table: NDArray[np.int32]) -> None:
        """These tokens, negative where there is none, are behind those of these rows now."""
        there = [(one, some[some >= 0]) for row, some in zip(rows, table, strict=True) if (one := self._ready(row))]
        filled = [(one, some) for one, some in there if len(some)]
        self._with_room([(one, len(some)) for one, some in filled], [some for _, some in filled])

    def _with_room(self, wanted: list[tuple[Sequence, int]], texts: list[NDArray[np.int32]] | None) -> None:
        """Grow all of these, or as many of the first as have room when the others are preempted."""
        while wanted:
            tokens = None if texts is None else np.concatenate(texts[: len(wanted)])
            counts = np.array([count for _, count in wanted], np.int32)
            plan = self.cache.grow([one for one, _ in wanted], tokens, num_tokens=counts)
            if plan is not None:
                self._run(plan)
                return
            self._preempt(wanted.pop()[0])

    def _ready(self, row: int) -> Sequence | None:
        one = self._one(row)
        return one if one is not None and one.ran >= one.prompt_end else None

    def _preempt(self, sequence: Sequence) -> None:
        who = next(who for who, one in self._live.items() if one is sequence)
        self._commit_all([sequence])
        del self._live[who]
        request = self.cache.suspend(sequence)
        self.outcome.preempted += 1
        if who[1] == 0:
            self._line.enter(who[0], request, self.clock.last)

    def _release(self, rows: Any, store: bool, back: Any) -> None:
        for who in self._who(rows):
            self._line.leave(who[0])
            sequence = self._live.pop(who, None)
            if sequence is not None and sequence.live:
                self.cache.release(sequence, store=store, back=back)

    def _fork(self, row: int, ids: list[int], answer: Any) -> None:
        sequence = self._one(row)
        if sequence is None or answer is None:
            return
        names = [(self._rows[row][0], 1 + one) for one in ids]
        made = self.cache.fork(sequence, [f"fork {one}" for one in ids])
        if made is not None:
            self._run(made[1])
            self._live.update(zip(names, made[0], strict=True))
        self._rows.update(zip(answer[0], names, strict=True))

    def _hold(self, row: int, start: int, end: int, answer: Any) -> None:
        sequence = self._one(row)
        if sequence is not None and answer is not None:
            held = self.cache.hold(sequence, Span(start, end))
            if held is not None:
                self._handles[answer[0]] = held


def last_asked(calls: Iterable[Plain]) -> dict[int, float]:
    """When requests were asked for last that never got in."""
    last: dict[int, float] = {}
    seated: set[int] = set()
    for verb, time, _, given, answer in calls:
        if verb in ("claim", "add"):
            last |= {asked[0]: float(time) for asked in given[0]}
        if verb in ("add", "admit"):
            seated.update(row[0] for row in answer[0])
    return {number: time for number, time in last.items() if number not in seated}


def _asked(player: LoosePlayer, given: Plain, answer: Any) -> None:
    for asked in given[0]:
        request = player._learn(asked)
        if request is not None and asked[0] in player._never and asked[0] not in player._counted:
            player._line.enter(asked[0], request, player.clock.last)


def _add(player: LoosePlayer, given: Plain, answer: Any) -> None:
    _asked(player, given, answer)
    player._admit(answer[0])


def _commit(player: LoosePlayer, given: Plain, answer: Any) -> None:
    """A step is computed as soon as it is handed out; what it makes comes when it came then."""
    player._commit_all(player._live.values())
    *_, rows, _, come = given
    if come is not None:
        player._take_on(_numbers(rows), in_rows(come[1], np.array(come[0], np.int32)))


def _trim(player: LoosePlayer, given: Plain, answer: Any) -> None:
    rows = _numbers(given[0])
    for row, count in zip(rows, given[1] if isinstance(given[1], list) else [given[1]] * len(rows), strict=True):
        if (sequence := player._one(row)) is not None:
            player.cache.trim(sequence, min(count, sequence.length - max(1, sequence.committed)))


def _numbers(rows: Any) -> list[int]:
    """Rows, however they were named."""
    return [rows] if isinstance(rows, int) else [row for row in rows if row != "rows"]


def _suspend(player: LoosePlayer, given: Plain, answer: Any) -> None:
    who = player._rows.pop(given[0], None)
    sequence = None if who is None else player._live.pop(who, None)
    if sequence is not None:
        player._commit_all([sequence])
        player.cache.suspend(sequence, None if given[1] is None else unpacked(given[1]))


def _drop(player: LoosePlayer, given: Plain, answer: Any) -> None:
    if (held := player._handles.pop(given[0], None)) is not None:
        player.cache.drop(held)


def _opened(player: LoosePlayer, given: Plain, answer: Any) -> None:
    if (request := player._learn(given[0])) is not None:
        player._handles[answer[0]] = player.cache.find(request, given[1])


def _used(player: LoosePlayer, given: Plain, answer: Any) -> None:
    if given[0] in player._handles:
        player._handles[given[0]].used()


def _closed(player: LoosePlayer, given: Plain, answer: Any) -> None:
    if given[0] in player._handles:
        player._handles.pop(given[0]).close()


def _truncate(player: LoosePlayer, given: Plain, answer: Any) -> None:
    if (request := player._learn(given[0])) is not None:
        player.cache.truncate(request, given[1])


_ACTS: dict[str, Callable[[LoosePlayer, Plain, Any], Any]] = {
    "claim": _asked, "add": _add, "commit": _commit, "commit_step": _commit, "trim": _trim,
    "suspend": _suspend, "drop": _drop, "truncate": _truncate,
    "find": _opened, "use_find": _used, "close_find": _closed,
    "admit": lambda player, given, answer: player._admit(answer[0]),
    "grow": lambda player, given, answer: player._grow(*given),
    "release": lambda player, given, answer: player._release(*given),
    "fork": lambda player, given, answer: player._fork(given[0], given[1], answer),
    "hold": lambda player, given, answer: player._hold(given[0], given[1], given[2], answer),
    "hint": lambda player, given, answer: player.cache.hint(
        unpacked(given[0]), given[1], scope_of(given[2]), given[3]
    ),
    "clear": lambda player, given, answer: player.cache.clear(store_again=given[0]),
    "forget": lambda player, given, answer: player.cache.forget(scope_of(given[0])),
    "refresh": lambda player, given, answer: player.cache.refresh(),
    "offload": lambda player, given, answer: player._run(player.cache.offload(*given)),
    "lose": lambda player, given, answer: player._run(player.cache.lose(given[0], given[1], given[2]).plan),
}  # fmt: skip
