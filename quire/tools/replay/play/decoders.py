"""Decoders: sequences that generate, as arrays by row. Tokens are appended and committed in strides, not one by one.

One *turn* gives every decoding sequence one token. Turns are counted; a sequence that began at turn b has made
min(now - b, output - 1) tokens (the last one of an answer is never run, so it needs no slot). Every `stride` turns
sequences get the slots of their tokens up to the next stride, rounded up to a block edge, and the blocks that have
become full are committed. So slots are taken at most one stride early, blocks can be found at most one stride late, and
sequences end in the very turn in which they are done. A stride of 1 is an engine that goes token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire import Sequence
from quire.tools.replay.play.timed_cache import TimedCache
from quire.tools.replay.play.waiting import WaitingRequest
from quire.tools.replay.units import Int32, Int64
from quire.tools.replay.workload.token_ids import TokenIds

NEVER = 1 << 62


class RunningRequest:
    """An admitted request."""

    __slots__ = ("order", "sequence", "waiting")

    def __init__(self, sequence: Sequence, waiting: WaitingRequest, order: int) -> None:
        self.sequence = sequence
        self.waiting = waiting
        self.order = order  # of admission: the youngest is preempted first


class Decoders:
    """Rows that decode. `make_room` frees slots by preempting somebody; `end` takes back a run that is done."""

    def __init__(
        self, cache: TimedCache, token_ids: TokenIds, stride: int, make_room: Callable[[], None],
        end: Callable[[RunningRequest], None],
    ) -> None:  # fmt: skip
        rows, self._size = cache.config.max_sequences, cache.config.block_size
        self._cache, self._token_ids = cache, token_ids
        self._states = any(group.current for group in cache.config.groups)
        self._stride = min(stride, self._size) if self._states else stride  # a snapshot is taken where a commit ends
        self._make_room, self._end = make_room, end
        self.turn = 0
        self._next = 0  # turn of the next stride
        self._first_done = NEVER  # turn in which the first of them is done
        self._fresh: list[int] = []  # rows that have begun since
        self._running: dict[int, RunningRequest] = {}  # by row
        self._active = np.zeros(rows, bool)
        self._number: Int64 = np.zeros(rows, np.int64)  # of the request
        self._began: Int64 = np.zeros(rows, np.int64)  # turn before its first decoded token
        self._given: Int64 = np.zeros(rows, np.int64)  # generated tokens appended
        self._target: Int64 = np.zeros(rows, np.int64)
        self._prompt: Int64 = np.zeros(rows, np.int64)
        self._told: Int64 = np.zeros(rows, np.int64)  # tokens committed, those of the prompt included

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[RunningRequest]:
        return iter(self._running.values())

    def begin(self, run: RunningRequest) -> None:
        """Its prompt is computed: the first token is there, and is run in the next turn."""
        row, made, request = run.sequence.row, run.waiting.made, run.waiting.request
        self._running[row] = run
        self._active[row] = True
        self._fresh.append(row)
        self._number[row] = request.number
        self._began[row] = self.turn - made
        self._given[row] = made
        self._target[row] = request.output - 1
        self._prompt[row] = request.length
        self._told[row] = request.length + made
        self._first_done = min(self._first_done, self.turn - made + request.output - 1)

    def leap(self) -> int:
        """Turns that may pass at once: until somebody is done, or until the next stride."""
        return max(1, min(self._first_done, self._next) - self.turn)

    def catch_up(self) -> None:
        """End who is done; at a stride commit full blocks; give slots to those who have too few."""
        if not self._running or not (self._fresh or self.turn >= min(self._first_done, self._next)):
            return
        rows = self._active.nonzero()[0]
        if self.turn >= self._first_done:
            done = self.turn - self._began[rows] >= self._target[rows]
            self._finish(rows[done].astype(np.int32))
            rows = rows[~done]
            self._first_done = int((self._began[rows] + self._target[rows]).min()) if len(rows) else NEVER
        strides = self.turn >= self._next
        if strides:
            self._commit(rows.astype(np.int32), self._full(rows))
            self._next = self.turn + self._stride
            self._give(rows.astype(np.int32))
        elif self._fresh:
            fresh = np.array(self._fresh, np.int32)
            self._give(fresh[self._active[fresh]])
        self._fresh = []

    def _full(self, rows: NDArray[np.integer[Any]]) -> Int64:
        """Tokens in blocks that are full."""
        made = np.minimum(self.turn - self._began[rows], self._target[rows])
        full: Int64 = (self._prompt[rows] + made) // self._size * self._size
        return full

    def _commit(self, rows: Int32, computed: Int64) -> None:
        """KV exists up to `computed`; those for whom that is no news are left out."""
        news = computed > self._told[rows]
        if news.any():
            rows, computed = rows[news], computed[news]
            if self._states:
                self._cache.commit_states(rows, computed.astype(np.int32))
            elif len(rows) == 1:
                self._cache.commit(self._running[int(rows[0])].sequence, int(computed[0]))
            else:
                self._cache.commit(rows, computed.astype(np.int32))
            self._told[rows] = computed

    def _finish(self, rows: Int32) -> None:
        if self._states:
            self._commit(rows, self._full(rows))  # where a snapshot may be
        self._commit(rows, self._prompt[rows] + self._target[rows])
        for row in rows.tolist():
            self._end(self.leave(row))

    def _give(self, rows: Int32) -> None:
        """Tokens up to the next stride, and on to a block edge; those that get equally many in one call."""
        given, target, prompt = self._given[rows], self._target[rows], self._prompt[rows]
        ahead = np.minimum(self._next - self._began[rows], target) + prompt
        counts = np.minimum(-(-ahead // self._size) * self._size - prompt, target) - given
        for count in sorted(set(counts[counts > 0].tolist())):
            some = rows[counts == count]
            some = some[self._active[some]]  # making room may have preempted it
            while len(some) and not self._cache.grow(some, self._tokens(some, count)):
                self._make_room()
                some = some[self._active[some]]
            self._given[some] += count

    def _tokens(self, rows: Int32, count: int) -> Int32:
        return self._token_ids.answer(self._number[rows], self._given[rows], count)

    def made(self, row: int) -> int:
        """Tokens of the answer that have run."""
        return int(min(self.turn - self._began[row], self._given[row]))

    def leave(self, row: int) -> RunningRequest:
        """It decodes no more."""
        self._active[row] = False
        return self._running.pop(row)
