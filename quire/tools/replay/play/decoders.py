"""Decoders: sequences that generate, as arrays by row. Tokens are appended and committed in strides, not one by one.

One *turn* gives every decoding sequence one token. Turns are counted; a sequence that began at turn b has made
min(now - b, output - 1) tokens (the last one of an answer is never run, so it needs no slot). Every `stride` turns
sequences get the slots of their tokens up to the next stride, rounded up to a block edge, and the blocks that have
become full are committed. So slots are taken at most one stride early, blocks can be found at most one stride late, and
sequences end in the very turn in which they are done. A stride of 1 is an engine that goes token by token.

Blocks of generated tokens alone are in no prompt. Where nothing leaves a running sequence and the eviction order does
not learn from them, they are committed when the sequence ends: nobody could tell the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
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
        config = cache.config
        rows, self._size = config.max_sequences, config.block_size
        self._cache, self._token_ids = cache, token_ids
        self._states = any(group.current for group in config.groups)
        self._lazy = config.eviction != "adaptive" and not any(group.bounded for group in config.groups)
        self._stride = min(stride, self._size) if self._states else stride  # a snapshot is taken where a commit ends
        self._make_room, self._end = make_room, end
        self.turn = 0
        self._next = 0  # turn of the next stride
        self._ramp = np.arange(2 * self._size + self._stride)
        self._fresh: list[int] = []  # rows that have begun since
        self._ends: list[tuple[int, int, int, RunningRequest]] = []  # a heap: turn it is done in, row, order, who
        self._running: dict[int, RunningRequest] = {}  # by row
        self._tails: list[tuple[int, int, RunningRequest]] = []  # turn in which the prompt's last block is full, tokens
        self._began: Int64 = np.zeros(rows, np.int64)  # turn before its first decoded token
        self._done: Int64 = np.full(rows, -1, np.int64)  # turn in which its last one has run; -1: it does not decode
        self._until: Int64 = np.zeros(rows, np.int64)  # turn up to which it has slots
        self._token: Int64 = np.zeros(rows, np.int64)  # of those it gets next, the first
        self._prompt: Int64 = np.zeros(rows, np.int64)
        self._told: Int64 = np.zeros(rows, np.int64)  # tokens committed, those of the prompt included

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[RunningRequest]:
        return iter(self._running.values())

    def begin(self, run: RunningRequest) -> None:
        """Its prompt is computed: the first token is there, and is run in the next turn."""
        row, made, request = run.sequence.row, run.waiting.made, run.waiting.request
        began = self.turn - made
        self._running[row] = run
        self._fresh.append(row)
        self._began[row], self._done[row], self._until[row] = began, began + request.output - 1, self.turn
        self._token[row] = self._token_ids.first_of_answer(request) - made
        self._prompt[row], self._told[row] = request.length, request.length + made
        heappush(self._ends, (began + request.output - 1, row, run.order, run))
        rest = -(request.length + made) % self._size
        if rest and self._lazy:
            self._tails.append((self.turn + rest, request.length + made + rest, run))

    def leap(self) -> int:
        """Turns that may pass at once: until somebody is done, or until the next stride."""
        return max(1, min(self._first_done(), self._next) - self.turn)

    def _first_done(self) -> int:
        ends = self._ends
        while ends and not self._is_here(ends[0][3]):
            heappop(ends)  # it was preempted
        return ends[0][0] if ends else NEVER

    def _is_here(self, run: RunningRequest) -> bool:
        return self._running.get(run.sequence.row) is run

    def catch_up(self) -> None:
        """End who is done; at a stride commit full blocks; give slots to those who have too few."""
        while self._first_done() <= self.turn:
            self._finish(heappop(self._ends)[3])
        if self._running and self.turn >= self._next:
            self._commit_full()
            self._next = self.turn + self._stride
            self._give(np.flatnonzero(self._until < np.minimum(self._done, self._next)))
        elif len(self._fresh) == 1:
            self._give_one(self._fresh[0])
        elif self._fresh:
            rows = np.array(self._fresh)
            self._give(rows[self._until[rows] < np.minimum(self._done[rows], self._next)])
        self._fresh.clear()

    def _commit_full(self) -> None:
        """What has become full."""
        if not self._lazy:
            rows = np.flatnonzero(self._done >= 0)
            self._commit(rows.astype(np.int32), self._full(rows))
            return
        coming = []
        full: list[tuple[int, int]] = []  # row, tokens
        for tail in self._tails:
            turn, tokens, run = tail
            if self._is_here(run):
                if turn > self.turn:
                    coming.append(tail)
                elif turn <= self._done[run.sequence.row]:
                    full.append((run.sequence.row, tokens))
        self._tails = coming
        if full:
            rows, computed = (np.array(column) for column in zip(*full, strict=True))
            self._commit(rows.astype(np.int32), computed)

    def _full(self, rows: NDArray[np.integer[Any]]) -> Int64:
        """Tokens in blocks that are full."""
        made = np.minimum(self.turn, self._done[rows]) - self._began[rows]
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

    def _finish(self, run: RunningRequest) -> None:
        row = run.sequence.row
        if self._states:
            rows = np.array([row], np.int32)
            self._commit(rows, self._full(rows))  # where a snapshot may be
            self._commit(rows, self._prompt[rows] + self._done[rows] - self._began[rows])
        else:
            computed = int(self._prompt[row] + self._done[row] - self._began[row])
            if computed > self._told[row]:
                self._cache.commit(run.sequence, computed)
        self._end(self.leave(row))

    def _give(self, rows: NDArray[np.integer[Any]]) -> None:
        """Slots up to the next stride, and on to a block edge; those that get equally many in one call."""
        if len(rows) < 2:
            for row in rows.tolist():
                self._give_one(row)
            return
        size, until = self._size, self._until[rows]
        used = self._prompt[rows] + until - self._began[rows]
        wanted = used + np.minimum(self._done[rows], self._next) - until
        counts = -(-wanted // size) * size - used
        for count in sorted(set(counts.tolist())):
            some = rows[counts == count]
            some = some[self._done[some] >= 0]  # making room may have preempted it
            while len(some) and not self._cache.grow(some.astype(np.int32), self._tokens(some, count)):
                self._make_room()
                some = some[self._done[some] >= 0]
            self._until[some] += count
            self._token[some] -= count

    def _give_one(self, row: int) -> None:
        """The same for one."""
        until = int(self._until[row])
        last = min(int(self._done[row]), self._next)
        if until >= last:
            return
        used = int(self._prompt[row]) + until - int(self._began[row])
        count = -(-(used + last - until) // self._size) * self._size - used
        token = int(self._token[row])
        some, tokens = np.array([row], np.int32), np.arange(token, token - count, -1, dtype=np.int32)
        while not self._cache.grow(some, tokens):
            self._make_room()
            if self._done[row] < 0:
                return  # it was preempted
        self._until[row] += count
        self._token[row] -= count

    def _tokens(self, rows: NDArray[np.integer[Any]], count: int) -> Int32:
        tokens: Int32 = (self._token[rows][:, None] - self._ramp[:count]).astype(np.int32).reshape(-1)
        return tokens

    def made(self, row: int) -> int:
        """Tokens of the answer that have run."""
        return int(min(self.turn, self._until[row], self._done[row]) - self._began[row])

    def leave(self, row: int) -> RunningRequest:
        """It decodes no more."""
        self._done[row] = -1
        return self._running.pop(row)
