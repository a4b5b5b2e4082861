"""SequenceCalls: the recorded calls in the life of sequences: growth, steps on their way, forks, holds, the end.

A part of RecordedCalls, which has what all calls have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from quire.core.records.hint_words import Back
from quire.core.records.plan import Plan
from quire.core.records.request import Int32, Request
from quire.core.records.span import Span
from quire.core.sequences.rows import Sequences
from quire.core.sequences.setbacks import Setback
from quire.core.state.hold import Hold
from quire.core.state.registry import LaunchedStep, Registry
from quire.core.state.sequence import Sequence
from quire.incidents.record.entry import copied, moved, named_rows, nothing, relisted, set_back
from quire.incidents.record.read_clock import ReadClock

USUAL = (list, np.ndarray, Sequence, LaunchedStep)  # what names sequences, and can be looked at twice


class SequenceCalls:
    """Those of sequences that were admitted."""

    _registry: Registry
    _real: dict[str, Any]
    _holds: dict[Hold, int]
    _next_handle: int
    _lock: AbstractContextManager[bool]
    _inside: bool
    _clock: ReadClock
    _grow: Callable[..., Plan | None]
    _launch: Callable[..., LaunchedStep]
    _commit: Callable[..., int]
    _broke: Callable[[str, BaseException], object]
    _raised: Callable[[str, BaseException], None]
    _keep: Callable[[str, tuple[Any, ...], Any], None]
    call: Callable[..., Any]

    def grow(self, sequences: Sequences, tokens: Int32 | None = None, *, num_tokens: int | Int32 = 1) -> Plan | None:
        """See Cache. Called in every step: nothing is done here that can be done later."""
        many = sequences if type(sequences) in USUAL else relisted(sequences)
        with self._lock:
            if self._inside:
                return self._grow(many, tokens, num_tokens=num_tokens)
            self._clock.read.clear()
            try:
                plan = self._grow(many, tokens, num_tokens=num_tokens)
            except BaseException as error:
                self._raised("grow", error)
                raise
            try:
                self._keep("grow", (named_rows(many), copied(tokens), copied(num_tokens)), moved(plan))
            except Exception as error:
                self._broke("the note of grow", error)
            return plan

    def launch(self, sequences: Sequences | None = None) -> LaunchedStep:
        """See Cache. Called in every step."""
        many = sequences if type(sequences) in USUAL else relisted(sequences)
        with self._lock:
            if self._inside:
                return self._launch(many)
            self._clock.read.clear()
            try:
                step = self._launch(many)
            except BaseException as error:
                self._raised("launch", error)
                raise
            try:
                rows = None if many is None else named_rows(many)
                self._keep("launch", (rows,), (step.number, step.rows, step.starts, step.ends))
            except Exception as error:
                self._broke("the note of launch", error)
            return step

    def commit(
        self, sequences: Sequences | LaunchedStep, computed: int | Int32 | None = None, *, tokens: Int32 | None = None
    ) -> int:
        """See Cache. Called in every step."""
        many = sequences if type(sequences) in USUAL else relisted(sequences)
        step = many if isinstance(many, LaunchedStep) else None
        with self._lock:
            if self._inside:
                return self._commit(many, computed, tokens=tokens)
            self._clock.read.clear()
            come = None if step is None else self._come(step, tokens)  # before it is closed
            try:
                count = self._commit(many, computed, tokens=tokens)
            except BaseException as error:
                self._raised("commit" if step is None else "commit_step", error)
                raise
            try:
                if isinstance(come, Exception):
                    raise come
                if step is None:
                    self._keep("commit", (named_rows(many), copied(computed), copied(tokens)), int(count))
                else:
                    self._keep("commit_step", (step.number, step.rows, copied(computed), come), int(count))
            except Exception as error:
                self._broke("the note of commit", error)
            return count

    def _come(self, step: LaunchedStep, tokens: Int32 | None) -> Int32 | Exception | None:
        """The tokens that a step brings: of rows that have lost a page meanwhile none is taken, and none is noted."""
        try:
            new = copied(tokens)
            flights = self._registry.in_flight
            if isinstance(new, np.ndarray) and np.count_nonzero(flights.since.take(step.rows) > step.number):
                new[~flights.valid(step)] = -1
        except Exception as error:  # the call itself will say what is wrong with it
            return error
        return new  # type: ignore[no-any-return]

    def fail(self, step: LaunchedStep) -> tuple[Setback, ...]:
        """See Cache."""
        real = self._real["fail"]
        return self.call("fail", lambda: (step.number,), lambda: real(step), set_back)  # type: ignore[no-any-return]

    def trim(self, sequences: Sequences, num_tokens: int | Int32) -> int:
        """See Cache."""
        many, real = sequences if type(sequences) in USUAL else relisted(sequences), self._real["trim"]
        length = self._registry.setup.store.length

        def told(given_back: int) -> Any:
            rows = named_rows(many)
            return given_back, [length.item(row) for row in ([rows] if isinstance(rows, int) else rows)]

        given = lambda: (named_rows(many), copied(num_tokens))  # noqa: E731
        return self.call("trim", given, lambda: real(many, num_tokens), told)  # type: ignore[no-any-return]

    def fork(self, sequence: Sequence, ids: Iterable[Hashable]) -> tuple[list[Sequence], Plan] | None:
        """See Cache."""
        names, real = relisted(ids), self._real["fork"]

        def told(made: Any) -> Any:
            return None if made is None else ([one.row for one in made[0]], moved(made[1]))

        return self.call("fork", lambda: (sequence.row, list(names)), lambda: real(sequence, names), told)  # type: ignore[no-any-return]

    def release(
        self, sequences: Sequence | Iterable[Sequence], *, store: bool = True, back: Back | None = None
    ) -> None:
        """See Cache."""
        many = sequences if isinstance(sequences, Sequence) else relisted(sequences)
        real = self._real["release"]
        given = lambda: (named_rows(many), store, back)  # noqa: E731
        self.call("release", given, lambda: real(many, store=store, back=back), nothing)

    def suspend(self, sequence: Sequence, tokens: Int32 | None = None) -> Request:
        """See Cache."""
        real = self._real["suspend"]
        given = lambda: (sequence.row, copied(tokens))  # noqa: E731
        return self.call("suspend", given, lambda: real(sequence, tokens), lambda made: len(made.tokens))  # type: ignore[no-any-return]

    def hold(self, sequence: Sequence, span: Span) -> Hold | None:
        """See Cache."""
        real = self._real["hold"]

        def told(held: Hold | None) -> Any:
            if held is None:
                return None
            if len(self._holds) > 2 * len(self._registry.holds) + 64:  # those of lost pages ended without a call
                self._holds = {one: number for one, number in self._holds.items() if one in self._registry.holds}
            number = self._holds[held] = self._next_handle
            self._next_handle += 1
            return number, held.slots

        return self.call("hold", lambda: (sequence.row, span.start, span.end), lambda: real(sequence, span), told)  # type: ignore[no-any-return]

    def drop(self, held: Hold) -> None:
        """See Cache."""
        real = self._real["drop"]
        self.call(
            "drop", lambda: (self._holds[held],), lambda: real(held), lambda _: self._holds.pop(held, None) and None
        )
