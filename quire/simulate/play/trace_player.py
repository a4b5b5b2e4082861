"""Player: a trace on a virtual clock. Arrivals, queue, steps, decoding, release; every decision is the cache's.

arrive -> choose and admit (two phases, or one at a time) -> the step takes its time -> commit -> decode -> again
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf
from time import perf_counter
from typing import NamedTuple

import numpy as np

from quire import Prepared, Receipt, Refusal, StateError
from quire import Sequence as Live
from quire.core.records.errors import say
from quire.simulate.play.admission import Admission, AdmissionResult, TwoPhase
from quire.simulate.play.baseline import OneAtATime
from quire.simulate.play.decoders import Decoders, RunningRequest
from quire.simulate.play.hints import ReplayHints
from quire.simulate.play.slow_tier import SlowTier
from quire.simulate.play.tally import ReplayResult, Tally
from quire.simulate.play.timed_cache import TimedCache
from quire.simulate.play.waiting import Forecast, LastLook, QueueEntry, WaitingQueue, WaitingRequest
from quire.simulate.setup.engine_pace import check_clock
from quire.simulate.setup.replay_settings import ReplaySettings
from quire.trace.read.token_ids import TokenIds
from quire.trace.read.trace import Trace, TraceRequest, part_at, share_token
from quire.trace.units import Int32

Tell = Callable[[int], None]
ROUNDING = 1e-6  # of a turn
NOTHING_TO_DO = AdmissionResult()
MANY = 256  # waiting requests whose prompts are kept in memory ahead


def play(
    trace: Trace, settings: ReplaySettings, tell: Tell | None = None, *, explain: int | None = None
) -> ReplayResult:
    """Run a whole trace; `tell` hears how many more requests are done. Of request `explain` the receipt is kept."""
    began = perf_counter()
    player = Player(trace, settings, tell, explain)
    player.run()
    return player.result(perf_counter() - began)


class HeadShortage(NamedTuple):
    """What a request lacked when it was refused: slots of a group, or (None) rows."""

    request: TraceRequest
    start: int  # what was found for it
    group: int | None
    need: int

    def is_helped_by(self, other: TraceRequest) -> bool:
        """Whether it may need less, now that another prompt is computed."""
        return share_token(self.request, other, self.start)


class PlayedTrace(NamedTuple):
    """What players of one trace share: it never changes."""

    trace: Trace
    token_ids: TokenIds
    times: list[float]  # arrivals
    hints: ReplayHints

    @classmethod
    def from_trace(cls, trace: Trace, settings: ReplaySettings) -> PlayedTrace:
        """With the settings' seed, and their arrivals."""
        times = settings.times(trace)
        return cls(trace, TokenIds(trace, settings.seed), times, ReplayHints(trace, settings.hints, times))


class Player:
    """One replay."""

    def __init__(
        self, trace: Trace | PlayedTrace, settings: ReplaySettings, tell: Tell | None, explain: int | None = None
    ) -> None:
        shared = PlayedTrace.from_trace(trace, settings) if isinstance(trace, Trace) else trace
        trace, self._token_ids, self._times, self._hints = shared
        self._trace, self._settings = trace, settings
        self._now = 0.0
        self.cache = TimedCache(trace, settings, lambda: self._now)
        self.tally = Tally(trace, settings, self.cache.config, self._times, explain)
        self._admission: Admission = TwoPhase(self.cache) if settings.two_phase else OneAtATime(self.cache)
        self._decoders = Decoders(self.cache, self._token_ids, settings.decode_stride, self._make_room, self._end)
        self._decoding = self._decoders.running
        self._queue = WaitingQueue()
        self._prompts: dict[int, RunningRequest] = {}  # admitted, prompt not computed yet, by request
        self._arrived = 0
        self._admitted = 0
        self._shortage: HeadShortage | None = None  # what the head of the queue is waiting for
        self._look = settings.batch  # under a token budget: no more than might fit, going by the last step
        self._slow = None if settings.slow is None else SlowTier(self.cache, settings.slow, self.tally.measure)
        self._gave = True  # pages were given back since the head was found short
        self._forgets = any(group.bounded for group in self.cache.config.groups)  # then running sequences do, too
        self._num_steps = 0
        # by part of a prompt: the last step that computed a prompt with it; 0: none, as for what no prompt has (-1)
        self._computed: Int32 = np.zeros(self._token_ids.num_parts + 1, np.int32)
        self._tell = tell

    def run(self) -> None:
        """Until every request is served or refused."""
        last, series = len(self._trace), self.tally.series
        while self._arrived < last or self._queue or self._prompts or self._decoding:
            self._go_on()
            if self._now >= series.next_look:
                series.look(self._now, self.cache.inner)
        if self._slow is not None:
            self._slow.close()

    def _go_on(self) -> None:
        """A step, or some time without one."""
        if self._slow is not None:
            self._slow.pass_time(self._now)
        self._arrive()
        result = self._admit()
        if result.spans:
            self._compute(result)
        else:
            self._pass_time(result)
        self._decoders.catch_up()

    def result(self, wall: float) -> ReplayResult:
        """Everything counted."""
        return self.tally.result(self.cache, wall, {} if self._slow is None else self._slow.to_json())

    def _arrive(self) -> None:
        while self._arrived < len(self._trace) and self._times[self._arrived] <= self._now:
            self._enqueue(self._trace[self._arrived])
            self._arrived += 1

    def _enqueue(self, request: TraceRequest) -> None:
        """A request has come: it waits, and what a slow tier has of it begins its way up."""
        if self._queue.outranks(request):
            self._shortage = None
        waiting = WaitingRequest(request)
        if self._slow is not None:
            self._slow.prefetch(waiting, waiting.ready(self.cache, self._token_ids, self._settings), self._now)
            if len(self._queue) > MANY:
                waiting.set_aside()
        self._queue.put(waiting)

    # -- a step ------------------------------------------------------------------------------------------------------

    def _admit(self) -> AdmissionResult:
        """Choose and admit; what is left out waits where it was, or is refused permanently."""
        if not self._prompts and (not self._queue or (self._shortage is not None and self._is_short())):
            return NOTHING_TO_DO
        continuing = [run.sequence for run in self._prompts.values()]
        left = self._left()
        looks = bool(self._queue) and (left is None or left > 0)
        if looks and continuing and self._shortage is not None:
            looks = not self._is_short()  # without continuing prompts it was asked before
        entries = self._queue.take(self._look, self._now, self._forecast(left)) if looks else []
        if not entries and not continuing:
            return NOTHING_TO_DO
        ready = [entry.waiting.ready(self.cache, self._token_ids, self._settings) for entry in entries]
        result = self._decide(ready, continuing)
        if entries:
            self._sort_out(entries, result)
        if looks and left is not None:
            self._look = min(self._settings.batch, 2 * len(result.admitted) + 1)
        if result.spans:
            self.tally.step(self._now, result)
        return result

    def _sort_out(self, entries: list[QueueEntry], result: AdmissionResult) -> None:
        """Who was looked at runs now, is refused permanently, or waits on."""
        out = self._refused_for_good(result) if result.refused else ()
        inside = {sequence.id: sequence for sequence in result.admitted}
        back = []
        for entry in entries:
            waiting, number = entry.waiting, entry.waiting.request.number
            if number in inside:
                run = RunningRequest(inside[number], waiting, self._admitted)
                self._seat(run, result.receipts.get(number))
            elif number not in out:
                back.append(entry)
            elif waiting.again:
                self._start_over(waiting)
            else:
                self.tally.refuse(self._now)
                if waiting.prefetch is not None:
                    waiting.prefetch.close()
                self._done()
        if back:
            self._put_back(back, result)
            self._wait(back[0].waiting.request, result)

    def _decide(self, ready: list[Prepared], continuing: list[Live]) -> AdmissionResult:
        """As the admission says; what was admitted before and fits no step whole is computed in parts, alone.

        That is a prompt which was preempted and has to be computed again, with its answer so far, or one that stopped
        at a snapshot: they cannot be refused any more.
        """
        result = self._admission.admit(ready, continuing)
        if result.spans or self._settings.max_chunk is not None:
            return result
        never = [item for item in result.refused if item.never]
        first = next((item for item in result.refused if not item.never), None)
        again = first is not None and first.reason == "tokens" and self.tally.has_run(first.request.id)
        if not continuing and not again:
            return result
        alone = [one for one in ready if again and first is not None and one.request.id == first.request.id]
        with self.cache.in_parts():
            result = self._admission.admit([] if continuing else alone, continuing[:1])
        result.refused = never + result.refused
        return result

    def _left(self) -> int | None:
        """What the prompts under way leave of the token budget."""
        budget, chunk = self._settings.token_budget, self._settings.max_chunk
        if budget is None:
            return None
        return budget - sum([min(chunk or budget, run.left) for run in self._prompts.values()])

    def _forecast(self, left: int | None) -> Forecast | None:
        """Whom the budget will reach, where that can be known: with states a step may end at a snapshot."""
        if left is None or self._forgets:
            return None
        return Forecast(left, self.cache.budgets, self._computed)

    def _put_back(self, entries: list[QueueEntry], result: AdmissionResult) -> None:
        """They go on waiting; what was found for them is remembered."""
        for entry in entries:
            waiting, start = entry.waiting, result.found.get(entry.waiting.request.number)
            if start is not None:
                length = waiting.request.length + waiting.made
                waiting.found = LastLook(start, length, part_at(waiting.request, start), self._num_steps)
        self._queue.put_back(entries)

    def _wait(self, head: TraceRequest, result: AdmissionResult) -> None:
        """A head that found no slots is tried again when there are enough, or when it may need fewer."""
        why = next((item for item in result.refused if item.request.id == head.number), None)
        if why is not None and why.reason in ("slots", "sequences"):
            self._shortage = HeadShortage(head, result.found[head.number], why.group, why.need)
            self._gave = True

    def _is_short(self) -> bool:
        """Whether the head of the queue is still short of slots."""
        shortage = self._shortage
        if shortage is not None and (self._prompts or self._decoding):
            if shortage.group is None:
                return self.cache.inner.num_sequences >= self._settings.max_sequences
            if self._gave or self._forgets:
                short = self.cache.num_free(shortage.group) < shortage.need
                self._gave = not short
                return short
            return True  # nothing was given back since it was found short
        self._shortage = None
        return False

    def _refused_for_good(self, result: AdmissionResult) -> set[object]:
        """Those that fit no cache like this, and the head of the queue when it did not fit into an empty step or an
        empty cache: it never will."""
        out: set[object] = {refusal.request.id for refusal in result.refused if refusal.never}
        first: Refusal | None = next((item for item in result.refused if not item.never), None)
        if first is None or result.spans:
            return out
        if first.reason == "tokens" or not (self._prompts or self._decoding or self._waits_for_disk()):
            out.add(first.request.id)
        return out

    def _seat(self, run: RunningRequest, receipt: Receipt | None) -> None:
        self._admitted += 1
        self._prompts[run.waiting.request.number] = run
        self.tally.admit(self._now, run, receipt)
        run.waiting.admitted()

    def _compute(self, result: AdmissionResult) -> None:
        """The step runs: time passes, KV is there, prompts that are complete begin to decode."""
        moved = self.cache.take_moved()
        decoding = len(self._decoding)
        seconds = self._settings.pace.step(result.num_tokens, decoding, moved.up, moved.down)
        self._spend(seconds)
        self.tally.moved(self._now, moved)
        self._decoders.turn += 1 if decoding else 0
        ran = [sequence for sequence, _, _ in result.spans]
        self.cache.commit(ran if len(ran) > 1 else ran[0])
        self._num_steps += 1
        for sequence, _, end in result.spans:
            run = self._prompts[sequence.id]  # type: ignore[index]
            run.left = sequence.prompt_end - end
            if self._queue:
                self._computed[run.waiting.request.parts] = self._num_steps
            if not run.left:
                del self._prompts[sequence.id]  # type: ignore[arg-type]
                if self._shortage is not None and self._shortage.is_helped_by(run.waiting.request):
                    self._shortage = None
                self.tally.first_token(self._now, run)
                if self._settings.prefill_only:
                    self._end(run)
                else:
                    self._decoders.begin(run)

    def _spend(self, seconds: float) -> None:
        """Time in which it works."""
        self._now += seconds
        check_clock(self._now)
        self.tally.busy += seconds

    def _pass_time(self, result: AdmissionResult) -> None:
        """No prompt to compute: decode for a while, or wait for the next request."""
        coming = self._next_event()
        if self._decoding:
            pace, count = self._settings.pace, len(self._decoding)
            moved = self.cache.take_moved()
            turns = self._decoders.leap()
            if coming is not None:
                rest = coming - self._now - pace.carry(moved.up)
                turns = max(1, min(turns, ceil(rest / pace.turn(count) - ROUNDING)))
            self._decoders.turn += turns
            seconds = pace.decode(turns, count, moved.up, moved.down)
            self._spend(seconds)
            self.tally.moved(self._now, moved)
        elif coming is not None and (not self._queue or self._waits_for_disk()):
            self._now = max(self._now, coming)
        elif not result.refused:  # if a request was refused permanently just now, the next one is looked at
            fact = f"{len(self._queue)} requests wait, and nothing runs"
            raise StateError(say(f"replay at {self._now:.3f} s", fact, "this is a fault of the player: report it"))

    def _next_event(self) -> float | None:
        """When the next request comes, or the slow tier is done with something."""
        coming = self._times[self._arrived] if self._arrived < len(self._trace) else inf
        if self._slow is not None:
            coming = min(coming, self._slow.next_event(self._now))
        return None if coming == inf else coming

    def _waits_for_disk(self) -> bool:
        """Whether a request may be waiting for something under way: pages, or the slots they are copied from."""
        return self._slow is not None and self._slow.next_event(self._now) < inf

    # -- leaving -----------------------------------------------------------------------------------------------------

    def _end(self, run: RunningRequest) -> None:
        back = self._hints.back(run.waiting.request, self._now)
        self.cache.release(run.sequence, back)
        self.tally.hints.add(back)
        self._gave = True
        self.tally.end(self._now, run)
        self._done()

    def _make_room(self) -> None:
        """Preempt the youngest: it goes back to the head of the queue, with what it has made."""
        run = max([*self._decoders, *self._prompts.values()], key=lambda one: one.order)
        request, sequence = run.waiting.request, run.sequence
        if request.number in self._prompts:
            del self._prompts[request.number]
            num_generated, computed = run.waiting.made, sequence.computed
        else:
            num_generated = self._decoders.made(sequence.row)
            self._decoders.leave(sequence.row)
            computed = request.length + num_generated
        resumed = self.cache.suspend(sequence, computed)
        self._queue.put_first(run.waiting.preempted(resumed, num_generated))
        self._shortage = None
        self.tally.preempt(run, computed)

    def _start_over(self, waiting: WaitingRequest) -> None:
        """With its answer so far it is too long for the cache, in one piece: its prompt alone was not."""
        if not waiting.made:
            fact = "it ran before, and fits no more"
            which = f"replay of request {waiting.request.number}"
            raise StateError(say(which, fact, "report this fault of the player"))
        self._queue.put_first(waiting.preempted(None, 0))
        self.tally.restart()

    def _done(self) -> None:
        if self._tell is not None:
            self._tell(1)
