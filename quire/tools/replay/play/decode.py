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
from quire.tools.replay.play.queue import Waiting
from quire.tools.replay.play.timed_cache import Door
from quire.tools.replay.units import Int32, Int64
from quire.tools.replay.workload.words import Words

NEVER = 1 << 62


class Run:
    """An admitted ask."""

    __slots__ = ("order", "sequence", "waiting")

    def __init__(self, sequence: Sequence, waiting: Waiting, order: int) -> None:
        self.sequence = sequence
        self.waiting = waiting
        self.order = order  # of admission: the youngest is preempted first


class Decoders:
    """Rows that decode. `make_room` frees slots by preempting somebody; `end` takes back a run that is done."""

    def __init__(
        self, door: Door, words: Words, stride: int, make_room: Callable[[], None], end: Callable[[Run], None]
    ) -> None:
        rows, self.size = door.config.max_sequences, door.config.block_size
        self.door, self.words = door, words
        self.states = any(group.current for group in door.config.groups)
        self.stride = min(stride, self.size) if self.states else stride  # a snapshot is taken where a commit ends
        self.make_room, self.end = make_room, end
        self.turn = 0
        self.next = 0  # turn of the next stride
        self.first_done = NEVER  # turn in which the first of them is done
        self.fresh: list[int] = []  # rows that have begun since
        self.runs: dict[int, Run] = {}  # by row
        self.active = np.zeros(rows, bool)
        self.number: Int64 = np.zeros(rows, np.int64)  # of the ask
        self.began: Int64 = np.zeros(rows, np.int64)  # turn before its first decoded token
        self.given: Int64 = np.zeros(rows, np.int64)  # generated tokens appended
        self.target: Int64 = np.zeros(rows, np.int64)
        self.prompt: Int64 = np.zeros(rows, np.int64)
        self.told: Int64 = np.zeros(rows, np.int64)  # tokens committed, those of the prompt included

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs.values())

    def begin(self, run: Run) -> None:
        """Its prompt is computed: the first token is there, and is run in the next turn."""
        row, made, ask = run.sequence.row, run.waiting.made, run.waiting.ask
        self.runs[row] = run
        self.active[row] = True
        self.fresh.append(row)
        self.number[row] = ask.number
        self.began[row] = self.turn - made
        self.given[row] = made
        self.target[row] = ask.output - 1
        self.prompt[row] = ask.length
        self.told[row] = ask.length + made
        self.first_done = min(self.first_done, self.turn - made + ask.output - 1)

    def leap(self) -> int:
        """Turns that may pass at once: until somebody is done, or until the next stride."""
        return max(1, min(self.first_done, self.next) - self.turn)

    def catch_up(self) -> None:
        """End who is done; at a stride commit full blocks; give slots to those who have too few."""
        if not self.runs or not (self.fresh or self.turn >= min(self.first_done, self.next)):
            return
        rows = self.active.nonzero()[0]
        if self.turn >= self.first_done:
            done = self.turn - self.began[rows] >= self.target[rows]
            self._finish(rows[done].astype(np.int32))
            rows = rows[~done]
            self.first_done = int((self.began[rows] + self.target[rows]).min()) if len(rows) else NEVER
        strides = self.turn >= self.next
        if strides:
            self._commit(rows.astype(np.int32), self._full(rows))
            self.next = self.turn + self.stride
            self._give(rows.astype(np.int32))
        elif self.fresh:
            fresh = np.array(self.fresh, np.int32)
            self._give(fresh[self.active[fresh]])
        self.fresh = []

    def _full(self, rows: NDArray[np.integer[Any]]) -> Int64:
        """Tokens in blocks that are full."""
        made = np.minimum(self.turn - self.began[rows], self.target[rows])
        full: Int64 = (self.prompt[rows] + made) // self.size * self.size
        return full

    def _commit(self, rows: Int32, computed: Int64) -> None:
        """KV exists up to `computed`; those for whom that is no news are left out."""
        news = computed > self.told[rows]
        if news.any():
            rows, computed = rows[news], computed[news]
            if self.states:
                self.door.commit_states(rows, computed.astype(np.int32))
            elif len(rows) == 1:
                self.door.commit(self.runs[int(rows[0])].sequence, int(computed[0]))
            else:
                self.door.commit(rows, computed.astype(np.int32))
            self.told[rows] = computed

    def _finish(self, rows: Int32) -> None:
        if self.states:
            self._commit(rows, self._full(rows))  # where a snapshot may be
        self._commit(rows, self.prompt[rows] + self.target[rows])
        for row in rows.tolist():
            self.end(self.leave(row))

    def _give(self, rows: Int32) -> None:
        """Tokens up to the next stride, and on to a block edge; those that get equally many in one call."""
        given, target, prompt = self.given[rows], self.target[rows], self.prompt[rows]
        ahead = np.minimum(self.next - self.began[rows], target) + prompt
        counts = np.minimum(-(-ahead // self.size) * self.size - prompt, target) - given
        for count in sorted(set(counts[counts > 0].tolist())):
            some = rows[counts == count]
            some = some[self.active[some]]  # making room may have preempted it
            while len(some) and not self.door.grow(some, self._tokens(some, count)):
                self.make_room()
                some = some[self.active[some]]
            self.given[some] += count

    def _tokens(self, rows: Int32, count: int) -> Int32:
        return self.words.answer(self.number[rows], self.given[rows], count)

    def made(self, row: int) -> int:
        """Tokens of the answer that have run."""
        return int(min(self.turn - self.began[row], self.given[row]))

    def leave(self, row: int) -> Run:
        """It decodes no more."""
        self.active[row] = False
        return self.runs.pop(row)
