"""Player: a trace on a virtual clock. Arrivals, queue, steps, decoding, release; every decision is the cache's.

arrive -> choose and admit (two phases, or one at a time) -> the step takes its time -> commit -> decode -> again
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from time import perf_counter
from typing import NamedTuple

from quire import Prepared, Refusal, StateError
from quire import Sequence as Live
from quire.core.records.errors import say
from quire.tools.replay.play.admission import Admission, Outcome, TwoPhase
from quire.tools.replay.play.baseline import OneAtATime
from quire.tools.replay.play.decode import Decoders, Run
from quire.tools.replay.play.queue import Queue, Waiting
from quire.tools.replay.play.tally import Result, Tally
from quire.tools.replay.play.timed_cache import Door
from quire.tools.replay.settings import Settings
from quire.tools.replay.workload.trace import Ask, Trace, shared
from quire.tools.replay.workload.words import Words

Tell = Callable[[int], None]
ROUNDING = 1e-6  # of a turn


def play(trace: Trace, settings: Settings, tell: Tell | None = None) -> Result:
    """Run a whole trace; `tell` hears how many more requests are done."""
    began = perf_counter()
    player = Player(trace, settings, tell)
    player.run()
    return player.tally.result(player.door, perf_counter() - began)


class Lack(NamedTuple):
    """What an ask lacked when it was refused: slots of a group, or (None) rows."""

    ask: Ask
    start: int  # what was found for it
    group: int | None
    need: int


class Player:
    """One replay."""

    def __init__(self, trace: Trace, settings: Settings, tell: Tell | None) -> None:
        self.trace, self.settings = trace, settings
        self.now = 0.0
        self.door = Door(trace, settings, lambda: self.now)
        self.words = Words(trace, settings.seed)
        self.times = settings.times(trace)
        self.tally = Tally(trace, settings, self.door.config, self.times)
        self.admission: Admission = TwoPhase(self.door) if settings.two_phase else OneAtATime(self.door)
        self.decoders = Decoders(self.door, self.words, settings.decode_stride, self._make_room, self._end)
        self.queue = Queue()
        self.prompts: dict[int, Run] = {}  # admitted, prompt not computed yet, by ask
        self.arrived = 0
        self.admitted = 0
        self.lack: Lack | None = None  # what the head of the queue is waiting for
        self.look = settings.batch  # under a token budget: no more than might fit, going by the last step
        self.tell = tell

    def run(self) -> None:
        """Until every ask is served or refused."""
        while self.arrived < len(self.trace) or self.queue or self.prompts or self.decoders:
            self._arrive()
            outcome = self._admit()
            if outcome.edges:
                self._compute(outcome)
            else:
                self._pass_time(outcome)
            self.decoders.catch_up()
            self.tally.look(self.now, self.door)

    def _arrive(self) -> None:
        while self.arrived < len(self.trace) and self.times[self.arrived] <= self.now:
            ask = self.trace[self.arrived]
            if self.queue.outranks(ask):
                self.lack = None
            self.queue.put(Waiting(ask))
            self.arrived += 1

    # -- a step ------------------------------------------------------------------------------------------------------

    def _admit(self) -> Outcome:
        """Choose and admit; what is left out waits where it was, or is refused for good."""
        continuing = [run.sequence for run in self.prompts.values()]
        entries = [] if self._is_full() or self._lacks() else self.queue.take(self.look)
        if not entries and not continuing:
            return Outcome()
        ready = [entry[2].ready(self.door, self.words, self.settings) for entry in entries]
        outcome = self._decide(ready, continuing)
        out = {refusal.request.id for refusal in outcome.refused if refusal.never}
        out |= self._hopeless(outcome)
        inside = {sequence.id: sequence for sequence in outcome.admitted}
        back = []
        for entry in entries:
            waiting = entry[2]
            if waiting.ask.number in inside:
                self._seat(Run(inside[waiting.ask.number], waiting, self.admitted))
            elif waiting.ask.number in out and waiting.again:
                self._start_over(waiting)
            elif waiting.ask.number in out:
                self.tally.refuse(self.now)
                self._done()
            else:
                back.append(entry)
        self.queue.put_back(back)
        if back:
            self._wait(back[0][2].ask, outcome)
        if entries and self.settings.token_budget is not None:
            self.look = min(self.settings.batch, 2 * len(inside) + 1)
        self.tally.step(self.now, outcome)
        return outcome

    def _decide(self, ready: list[Prepared], continuing: list[Live]) -> Outcome:
        """As the admission says; what was admitted before and fits no step whole is computed in parts, alone.

        That is a prompt which was preempted and has to be computed again, with its answer so far, or one that stopped
        at a snapshot: nobody can refuse them any more.
        """
        outcome = self.admission.admit(ready, continuing)
        if outcome.edges or self.settings.max_chunk is not None:
            return outcome
        never = [item for item in outcome.refused if item.never]
        first = next((item for item in outcome.refused if not item.never), None)
        again = first is not None and first.reason == "tokens" and first.request.id in self.tally.reached
        if not continuing and not again:
            return outcome
        alone = [one for one in ready if again and first is not None and one.request.id == first.request.id]
        with self.door.in_parts():
            outcome = self.admission.admit([] if continuing else alone, continuing[:1])
        outcome.refused = never + outcome.refused
        return outcome

    def _is_full(self) -> bool:
        """The prompts under way use up the whole budget: nobody else can be given a token."""
        budget, chunk = self.settings.token_budget, self.settings.max_chunk
        if budget is None or not self.prompts:
            return False
        sequences = (run.sequence for run in self.prompts.values())
        return sum(min(chunk or budget, one.prompt_end - one.computed) for one in sequences) >= budget

    def _wait(self, head: Ask, outcome: Outcome) -> None:
        """A head that found no slots is tried again when there are enough, or when it may need fewer."""
        why = next((item for item in outcome.refused if item.request.id == head.number), None)
        if why is not None and why.reason in ("slots", "sequences"):
            self.lack = Lack(head, outcome.found[head.number], why.group, why.need)

    def _lacks(self) -> bool:
        """Whether the head of the queue is still short of slots."""
        lack = self.lack
        if lack is not None and (self.prompts or self.decoders):
            if lack.group is None:
                return self.door.cache.num_sequences >= self.settings.max_sequences
            return self.door.num_free(lack.group) < lack.need
        self.lack = None
        return False

    def _hopeless(self, outcome: Outcome) -> set[object]:
        """The head of the queue, when it did not fit into an empty step or an empty cache: it never will."""
        first: Refusal | None = next((item for item in outcome.refused if not item.never), None)
        if first is None or outcome.edges:
            return set()
        if first.reason == "tokens" or not (self.prompts or self.decoders):
            return {first.request.id}
        return set()

    def _seat(self, run: Run) -> None:
        self.admitted += 1
        self.prompts[run.waiting.ask.number] = run
        self.tally.admit(self.now, run)
        run.waiting.prepared = None

    def _compute(self, outcome: Outcome) -> None:
        """The step runs: time passes, KV is there, prompts that are complete begin to decode."""
        up, down = self.door.take_moved()
        decoding = len(self.decoders)
        self.now += self.settings.pace.step(outcome.num_tokens, decoding, up, down)
        self.tally.moved(self.now, up, down)
        self.decoders.turn += 1 if decoding else 0
        ran = [sequence for sequence, _, _ in outcome.edges]
        self.door.commit(ran if len(ran) > 1 else ran[0])
        for sequence, _, end in outcome.edges:
            if end == sequence.prompt_end:
                run = self.prompts.pop(sequence.id)  # type: ignore[call-overload]
                if self.lack is not None and shared(run.waiting.ask, self.lack.ask) > self.lack.start:
                    self.lack = None
                self.tally.first_token(self.now, run)
                if self.settings.prefill_only:
                    self._end(run)
                else:
                    self.decoders.begin(run)

    def _pass_time(self, outcome: Outcome) -> None:
        """No prompt to compute: decode for a while, or wait for the next ask."""
        coming = self.times[self.arrived] if self.arrived < len(self.trace) else None
        if self.decoders:
            pace, count = self.settings.pace, len(self.decoders)
            up, down = self.door.take_moved()
            turns = self.decoders.leap()
            if coming is not None:
                rest = coming - self.now - pace.carry(up)
                turns = max(1, min(turns, ceil(rest / pace.turn(count) - ROUNDING)))
            self.decoders.turn += turns
            self.now += pace.decode(turns, count, up, down)
            self.tally.moved(self.now, up, down)
        elif coming is not None and not self.queue:
            self.now = max(self.now, coming)
        elif not outcome.refused:  # if somebody was refused for good just now, the next one is looked at
            fact = f"{len(self.queue)} requests wait, and nothing runs"
            raise StateError(say(f"replay at {self.now:.3f} s", fact, "this is a fault of the player: report it"))

    # -- leaving -----------------------------------------------------------------------------------------------------

    def _end(self, run: Run) -> None:
        self.door.release(run.sequence)
        self.tally.end(self.now, run)
        self._done()

    def _make_room(self) -> None:
        """Preempt the youngest: it goes back to the head of the queue, with what it has made."""
        run = max([*self.decoders, *self.prompts.values()], key=lambda one: one.order)
        ask, sequence = run.waiting.ask, run.sequence
        if ask.number in self.prompts:
            del self.prompts[ask.number]
            made, computed = run.waiting.made, sequence.computed
        else:
            made = self.decoders.made(sequence.row)
            self.decoders.leave(sequence.row)
            computed = ask.length + made
        request = self.door.suspend(sequence, computed)
        self.queue.put_first(run.waiting.preempted(request, made))
        self.lack = None
        self.tally.preempt(run, computed)

    def _start_over(self, waiting: Waiting) -> None:
        """With its answer so far it is too long for the cache, in one piece: its prompt alone was not."""
        if not waiting.made:
            fact = "it ran before, and fits no more"
            raise StateError(say(f"replay of request {waiting.ask.number}", fact, "report this fault of the player"))
        self.queue.put_first(waiting.preempted(None, 0))
        self.tally.restart()

    def _done(self) -> None:
        if self.tell is not None:
            self.tell(1)
