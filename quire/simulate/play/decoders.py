"""Decoders: sequences that generate. Tokens are appended and committed in strides, not one by one.

One *turn* gives every decoding sequence one token. Turns are counted; a sequence that began at turn b has made
min(now - b, output - 1) tokens (the last one of an answer is never run, so it needs no slot). Every `stride` turns
sequences get the slots of their tokens up to the next stride, rounded up to a block edge, and the blocks that have
become full are committed. So slots are taken at most one stride early, blocks can be found at most one stride late, and
sequences end in the very turn in which they are done. A stride of 1 is an engine that goes token by token.

Blocks of generated tokens alone are in no prompt. Where nothing leaves a running sequence and the eviction order does
not learn from them, they are committed when the sequence ends: it makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

import numpy as np

from quire import Sequence
from quire.simulate.play.timed_cache import TimedCache
from quire.simulate.play.waiting import WaitingRequest
from quire.trace.read.token_ids import TokenIds
from quire.trace.units import Int32

NEVER = 1 << 62


class RunningRequest:
    """An admitted request. The numbers are of one that decodes; turns are those of `Decoders`."""

    __slots__ = (
        "began", "committed", "decodes", "done", "left", "length", "order", "row", "sequence", "token", "until",
        "waiting",
    )  # fmt: skip

    began: int  # turn before its first decoded token
    done: int  # turn in which its last one has run
    until: int  # turn up to which it has slots
    token: int  # of those it gets next, the first
    committed: int  # tokens committed, those of the prompt included

    def __init__(self, sequence: Sequence, waiting: WaitingRequest, order: int) -> None:
        self.sequence = sequence
        self.row = sequence.row
        self.decodes = False
        self.waiting = waiting
        self.order = order  # of admission: the youngest is preempted first
        self.length = waiting.request.length
        self.left = sequence.prompt_end - sequence.start  # of its prompt, to be computed


class Decoders:
    """Sequences that decode. `make_room` frees slots by preempting a sequence; `end` takes back a run that is done."""

    def __init__(
        self, cache: TimedCache, token_ids: TokenIds, stride: int, make_room: Callable[[], None],
        end: Callable[[RunningRequest], None],
    ) -> None:  # fmt: skip
        config = cache.config
        self._size = config.block_size
        self._cache, self._token_ids = cache, token_ids
        self._states = any(group.current for group in config.groups)
        self._lazy = config.order != "adaptive" and not any(group.bounded for group in config.groups)
        self._stride = min(stride, self._size) if self._states else stride  # a snapshot is taken where a commit ends
        self._make_room, self._end = make_room, end
        self.turn = 0
        self._next = 0  # turn of the next stride
        self._ramp = np.arange(2 * self._size + self._stride, dtype=np.int32)
        self._fresh: list[RunningRequest] = []  # that have begun since
        self._ends: list[tuple[int, int, int, RunningRequest]] = []  # a heap: turn it is done in, row, order, who
        self.running: dict[int, RunningRequest] = {}  # by row
        self._tails: list[tuple[int, int, RunningRequest]] = []  # turn in which the prompt's last block is full, tokens

    def __len__(self) -> int:
        return len(self.running)

    def __iter__(self) -> Iterator[RunningRequest]:
        return iter(self.running.values())

    def begin(self, run: RunningRequest) -> None:
        """Its prompt is computed: the first token is there, and is run in the next turn."""
        turn, made, request = self.turn, run.waiting.made, run.waiting.request
        computed = request.length + made
        run.decodes, run.began, run.until, run.committed = True, turn - made, turn, computed
        run.done = turn - made + request.output - 1
        run.token = self._token_ids.first_of_answer(request) - made
        self.running[run.row] = run
        self._fresh.append(run)
        heappush(self._ends, (run.done, run.row, run.order, run))
        rest = -computed % self._size
        if rest and self._lazy:
            self._tails.append((turn + rest, computed + rest, run))

    def leap(self) -> int:
        """Turns that may pass at once: until a sequence is done, or until the next stride."""
        return max(1, min(self._first_done(), self._next) - self.turn)

    def _first_done(self) -> int:
        ends = self._ends
        while ends and not ends[0][3].decodes:
            heappop(ends)  # it was preempted
        return ends[0][0] if ends else NEVER

    def catch_up(self) -> None:
        """End who is done; at a stride commit full blocks; give slots to those who have too few."""
        turn, running = self.turn, self.running
        while self._first_done() <= turn:
            self._finish(heappop(self._ends)[3])
        if running and turn >= self._next:
            self._commit_full()
            self._next = turn + self._stride
            self._give([running[row] for row in sorted(running)])
        elif self._fresh:
            self._give(self._fresh)
        self._fresh.clear()

    def _commit_full(self) -> None:
        """Blocks that are full by now; those of answers alone are not waited for: it makes no difference."""
        if not self._lazy:
            self._commit([(self.running[row], self._full(self.running[row])) for row in sorted(self.running)])
            return
        coming = []
        full: list[tuple[RunningRequest, int]] = []  # with its tokens
        for tail in self._tails:
            turn, tokens, run = tail
            if not run.decodes:
                continue
            if turn > self.turn:
                coming.append(tail)
            else:
                full.append((run, tokens))  # those done by now have ended
        self._tails = coming
        if full:
            self._commit(full)

    def _full(self, run: RunningRequest) -> int:
        """Tokens in blocks that are full."""
        return (run.length + min(self.turn, run.done) - run.began) // self._size * self._size

    def _commit(self, runs: list[tuple[RunningRequest, int]]) -> None:
        """KV exists up to so many tokens; those for whom that is not news are left out."""
        news = [one for one in runs if one[1] > one[0].committed]
        if len(news) == 1 and not self._states:
            ((run, computed),) = news
            self._cache.commit(run.sequence, computed)
        elif news:
            rows = np.array([run.row for run, _ in news], np.int32)
            numbers = np.array([computed for _, computed in news], np.int32)
            (self._cache.commit_states if self._states else self._cache.commit)(rows, numbers)
        for run, computed in news:
            run.committed = computed

    def _finish(self, run: RunningRequest) -> None:
        computed = run.length + run.done - run.began
        if self._states:
            self._commit([(run, self._full(run))])  # where a snapshot may be
            self._commit([(run, computed)])
        elif computed > run.committed:
            self._cache.commit(run.sequence, computed)
        self._end(self.leave(run.row))

    def _give(self, runs: list[RunningRequest]) -> None:
        """Slots up to the next stride, and on to a block edge; those that get equally many in one call."""
        size, coming = self._size, self._next
        wanting: dict[int, list[RunningRequest]] = {}  # by number of tokens
        for run in runs:
            until = run.until
            last = run.done if run.done < coming else coming
            if until < last:
                used = run.length - run.began
                count = -(-(used + last) // size) * size - used - until
                if count in wanting:
                    wanting[count].append(run)
                else:
                    wanting[count] = [run]
        for count in sorted(wanting):
            some = wanting[count]
            if len(wanting) > 1:
                some = [run for run in some if run.decodes]  # making room for others may have preempted it
            while some and not self._cache.grow(
                np.array([one.row for one in some], np.int32), self._tokens(some, count)
            ):
                self._make_room()
                some = [run for run in some if run.decodes]
            for run in some:
                run.until += count
                run.token -= count

    def _tokens(self, runs: list[RunningRequest], count: int) -> Int32:
        if len(runs) == 1:
            return runs[0].token - self._ramp[:count]
        firsts = np.array([run.token for run in runs], np.int32)
        tokens: Int32 = (firsts[:, None] - self._ramp[:count]).reshape(-1)
        return tokens

    def made(self, row: int) -> int:
        """Tokens of the answer that have run."""
        run = self.running[row]
        return min(self.turn, run.until, run.done) - run.began

    def leave(self, row: int) -> RunningRequest:
        """It decodes no more."""
        run = self.running.pop(row)
        run.decodes = False
        return run
