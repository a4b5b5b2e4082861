"""Recorded handles: what a cache has returned (claims, finds, writers, prefetches), with its calls noted too.

A handle that is returned becomes one of these: it is still what it was, and its own calls go through the recorder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from quire.core.outside.find import Found
from quire.core.outside.prefetch import Prefetch
from quire.core.outside.writer import NOTHING, Skip, Writer
from quire.core.records.request import Int32
from quire.core.state.claim import Claim, Refusal, promise_of
from quire.core.state.claims import Claims, promises_in
from quire.incidents.record.entry import kept_skip, lack_of, plain_skip


class CallNotes(Protocol):
    """Who notes calls (RecordedCalls)."""

    def call(
        self, verb: str, given: Callable[[], tuple[Any, ...]], real: Callable[[], Any], facts: Callable[[Any], Any]
    ) -> Any:
        """Make a call and note it."""

    def number(self, handle: Claims | Found | Writer | Prefetch) -> int:
        """Of a handle."""

    def written(self, writer: Writer) -> Any:
        """What a writer has taken."""


def handle_classes(notes: CallNotes) -> dict[type, type]:
    """By class the one that a handle of one recorded cache becomes."""
    makers = {Claims: _claims, Found: _found, Writer: _writer, Prefetch: _prefetch}
    return {kind: make(notes) for kind, make in makers.items()}


def _claims(notes: CallNotes) -> type:
    class RecordedClaims(Claims):
        __slots__ = ()

        def drop(self) -> None:
            if not self._settled:
                notes.call("drop_claims", lambda: (notes.number(self),), super().drop, _nothing)

        def leave_out(self, claim: Claim) -> None:
            def given() -> tuple[Any, ...]:
                return notes.number(self), promises_in(self).index(promise_of(claim))

            notes.call("leave_out", given, lambda: super(RecordedClaims, self).leave_out(claim), _nothing)

    return RecordedClaims


def _found(notes: CallNotes) -> type:
    class RecordedFound(Found):
        __slots__ = ()

        def used(self) -> None:
            notes.call("use_find", lambda: (notes.number(self),), super().used, _nothing)

        def close(self) -> None:
            if not self.closed:
                notes.call("close_find", lambda: (notes.number(self),), super().close, _nothing)

    return RecordedFound


def _writer(notes: CallNotes) -> type:
    class RecordedWriter(Writer):
        __slots__ = ()

        def extend(
            self, tokens: Int32 | None = None, *, end: int | None = None, skip: Skip = NOTHING, also: Skip = NOTHING
        ) -> Refusal | None:
            left_out, taken_too = kept_skip(skip), kept_skip(also)

            def given() -> tuple[Any, ...]:
                more = None if tokens is None else tokens.copy()
                return notes.number(self), more, end, plain_skip(left_out), plain_skip(taken_too)

            def real() -> Refusal | None:
                return super(RecordedWriter, self).extend(tokens, end=end, skip=left_out, also=taken_too)

            def facts(lack: Refusal | None) -> Any:
                return notes.written(self) if lack is None else lack_of(lack)

            return notes.call("extend_writer", given, real, facts)  # type: ignore[no-any-return]

        def written(self, end: int, skip: Skip = NOTHING) -> int:
            left_out = kept_skip(skip)
            given = lambda: (notes.number(self), end, plain_skip(left_out))  # noqa: E731
            return notes.call("written", given, lambda: super(RecordedWriter, self).written(end, left_out), int)  # type: ignore[no-any-return]

        def close(self) -> None:
            if not self.closed:
                notes.call("close_writer", lambda: (notes.number(self),), super().close, _nothing)

    return RecordedWriter


def _prefetch(notes: CallNotes) -> type:
    class RecordedPrefetch(Prefetch):
        __slots__ = ()

        def close(self) -> None:
            if not self.closed:
                notes.call("close_prefetch", lambda: (notes.number(self),), super().close, _nothing)

    return RecordedPrefetch


def _nothing(_: object) -> None:
    return None
