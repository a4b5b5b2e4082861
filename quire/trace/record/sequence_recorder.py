"""SequenceRecorder: what a cache serves, told to a TraceRecorder: admission is arrival, release is the end.

A sequence that is suspended and comes back is one request. Forks and dummies are none. A cache hears when text comes
back, and not why an answer ended.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from pathlib import Path

from quire.core.records.identity import Scope
from quire.core.state.sequence import Sequence, shared_scope
from quire.trace.record.recorder import ArrivedRequest, TraceRecorder

MOST_OPEN = 1 << 16  # sequences, suspended ones included


def watched_scope(sequence: Sequence, number: int) -> Scope:
    """What a sequence shares its blocks under: with an encoder's input, if it reads one; alone, if it may not."""
    scope = shared_scope(sequence)
    return Scope(space=number) if scope is None else scope


class SequenceRecorder:
    """Keeps an ArrivedRequest for every sequence that was admitted and not released."""

    def __init__(self, recorder: TraceRecorder) -> None:
        self._recorder = recorder
        self._open: dict[Hashable, tuple[ArrivedRequest, int]] = {}  # and the length of its prompt

    def admitted(self, sequences: Iterable[Sequence]) -> None:
        """New ones; those that come back are known."""
        for sequence in sequences:
            if sequence.request.scope.space is None and sequence.id not in self._open:
                self._open[sequence.id] = self._recorder.arrive(), sequence.prompt_end
        while len(self._open) > MOST_OPEN:  # suspended, and never resumed
            arrived, _ = self._open.pop(next(iter(self._open)))
            self._recorder.forget(arrived)

    def ending(self, sequence: Sequence, store: bool) -> None:
        """It is about to be released permanently."""
        if not sequence.live or (known := self._open.pop(sequence.id, None)) is None:
            return
        arrived, prompt = known
        request = sequence.request
        words = request.words()
        scope = watched_scope(sequence, arrived.number)
        self._recorder.add(
            arrived, request.tokens[:prompt].copy(), max(sequence.length - prompt, 0), scope,
            None if words is None else words[:prompt], session=request.session, back=sequence.back,
        )  # fmt: skip


def record_sequences(
    path: str | Path, block_size: int, clock: Callable[[], float]
) -> tuple[TraceRecorder, SequenceRecorder]:
    """What records a cache from now on: the trace, and the watcher that hears of sequences."""
    recorder = TraceRecorder(path, block_size, clock=clock)
    return recorder, SequenceRecorder(recorder)
