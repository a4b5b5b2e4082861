"""Engine: a model and a cache, step by step. One thread drives it; `Loop` lets many submit.

submit -> waiting | schedule -> moves run -> pack -> launch -> read -> commit -> apply outcomes | answers
                  '--------------------------- step, again and again --------------------------'
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import torch

from quire.core.cache import Cache
from quire.core.records.config import CacheConfig
from quire.core.records.errors import InputError, StateError, say
from quire.core.records.identity import Scope
from quire.core.records.request import PLAIN, Int32
from quire.core.records.span import Span
from quire.core.sequences.setbacks import Setback
from quire.core.state.prepared import Prepared
from quire.engine.deadlines.deadline_side import open_deadlines
from quire.engine.deadlines.first_token import SubmitOptions
from quire.engine.memory.connector import Connector, StepParticipant
from quire.engine.memory.connector_side import ConnectorSide
from quire.engine.memory.disk_side import check_disk_index
from quire.engine.memory.outer_memory import OuterMemory
from quire.engine.model.attention import AttentionStep
from quire.engine.model.graphs.decode_graphs import PackedRows, graphs_for
from quire.engine.model.layers import KvShape, Model
from quire.engine.model.packing import NO_DECODES, Packed, Segment, pack
from quire.engine.model.pages import Pages
from quire.engine.runner.apply_outcomes import OutcomeLoop
from quire.engine.runner.cache_watchers import bills_of, connect, incidents_of
from quire.engine.runner.live_runs import LiveRuns
from quire.engine.runner.run_maker import Asker, RunMaker
from quire.engine.runner.run_recorder import RunRecorder
from quire.engine.runner.steps_in_flight import StepsInFlight
from quire.engine.runner.warmup import WarmUp
from quire.engine.sampling.params import Sampling
from quire.engine.setup.engine_config import EngineConfig
from quire.engine.setup.fitting import memory_in_words
from quire.engine.setup.submission import LESS, Away, EngineBusy, TokenPrompt, in_words
from quire.engine.setup.token_cost import cost_doubles_at
from quire.engine.step.advance import Advance
from quire.engine.step.fork_beams import Forks
from quire.engine.step.plain_rows import PlainBatch
from quire.engine.step.plan_runner import PlanRunner
from quire.engine.step.runs.branch import Branch, Listener, Run
from quire.engine.step.runs.step_work import Turn
from quire.engine.step.runs.tenant import Together
from quire.engine.step.schedule import Scheduler
from quire.engine.step.step_report import Stats, StepReport, Stopwatch
from quire.engine.step.step_slots import slots_of
from quire.engine.structured_outputs.grammar import Grammars
from quire.engine.structured_outputs.token_mask import TokenMask
from quire.insight.deadlines.door import DoorVerdict
from quire.tiers.base import Tier
from quire.trace.record.block_ids import read_key
from quire.trace.record.recorder import TraceRecorder

if TYPE_CHECKING:
    from quire.engine.memory.disk_side import DiskConfig
    from quire.tiers.shared import SharedConfig

PLAIN_SAMPLING = Sampling()
_log = logging.getLogger("quire.engine")


def _cache_config(model: Model, config: EngineConfig, connector: Connector | None) -> CacheConfig:
    groups = model.groups(config.block_size, config.snapshot_every)
    if config.eviction_cost != "compute":  # else no shape is asked, of models that are not transformers' either
        return config.cache_config(groups, connector is None)
    return config.cache_config(groups, connector is None, cost_doubles_at(model))


class Engine:
    """Continuous batching over a Quire cache. Its numbers are the cache's promises: no step exceeds its budget."""

    def __init__(
        self, model: Model, config: EngineConfig, *, connector: Connector | None = None,
        colder: Sequence[Tier] | None = None, clock: Callable[[], float] = time.monotonic,
        record: str | Path | None = None, shared: SharedConfig | str | Path | None = None,
        disk: DiskConfig | str | Path | None = None,
    ) -> None:  # fmt: skip
        self.model, self.config, self.clock = model, config, clock
        cache = _cache_config(model, config, connector)
        if disk is not None:
            check_disk_index(cache)
        self.incidents, self.bills = watchers = incidents_of(config), bills_of(config)
        self.cache = Cache(cache, clock=clock, watchers=[one for one in watchers if one])
        self.pages = Pages(model, self.cache.config, colder)
        self.graphs = graphs_for(model, self.cache, self.pages, config.graphs)
        self.plans = PlanRunner(self.cache, self.pages.mover)
        self.connector_side = ConnectorSide(self.cache, connector, model.recurrent)
        self.scheduler, self.advance = Scheduler(self.cache, config, self.plans), Advance(model.eos_ids)
        self.forks, self._live = Forks(self.cache, self.plans), LiveRuns(self.scheduler, self.connector_side, clock)
        self.deadlines = open_deadlines(self.cache, config, self.scheduler, self.pages.mover, clock)
        self.runs, self._live.deadlines = self._live.inside, self.deadlines
        connect(watchers, self.runs, self.deadlines)
        self.outcomes = OutcomeLoop(self.cache, self.scheduler.queues, self._live, self.forks, model.eos_ids)
        parts, overlap = (self.scheduler, self.advance, self.outcomes), config.overlaps_on(model.device.type)
        self.in_flight = StepsInFlight(self.cache, self.pages, *parts, clock=clock, overlap=overlap)
        self._windows = [(shape.window or 0) if isinstance(shape, KvShape) else None for shape in model.shapes]
        self.vocabulary = int(model.module.config.get_text_config().vocab_size)
        self.grammars = Grammars(model.tokenizer, model.eos_ids)
        self._maker, self.stats, self.closed = RunMaker(self.cache, config, model, self.grammars, clock), Stats(), False
        self.participants: list[StepParticipant] = []  # they take part in every step: a peer, a publisher
        try:
            self.outer = OuterMemory((model, self.cache, self.pages), shared, disk, self.plans.carry)
        except BaseException:
            self.close()
            raise
        self.shared_side, self.disk_side = self.outer.shared, self.outer.disk
        self._live.shared_side, self.in_flight.note_computed = self.shared_side, self.outer.note_computed
        self.participants += self.outer.sides()
        if record is not None:
            self.record(record)
        _log.info("an engine for %r: %s", model, memory_in_words(self.cache.config))

    # -- asking ------------------------------------------------------------------------------------------------------

    def submit(
        self, tokens: Int32 | Sequence[int] | TokenPrompt, sampling: Sampling = PLAIN_SAMPLING, *, scope: Scope = PLAIN,
        listener: Listener | None = None, tenant: str | Together | None = None, mask: TokenMask | None = None,
        begun: Sequence[int] | Away = (), **hints: Unpack[SubmitOptions],
    ) -> Run:  # fmt: skip
        """Queue a prompt; what can never be served is refused here. `tenant`: whose turns it takes; None: its own.

        `mask` says which tokens may come next, the first one first; that of `structured_outputs` is made here without.
        `begun`: tokens of its one answer that another engine has made. It goes on behind them; its listener hears all.
        `AWAY`: its KV comes from a peer (see `adopt`). `retention`, `session`, `back`, `resume_points`: of its pages.
        `ttft`: seconds within which its first token is wanted; where that cannot be, `TooLate` says when it would come.
        """
        self._check_place()
        made = self._maker.make(tokens, sampling, Asker(scope, tenant, listener), hints, mask=mask, begun=begun)
        run = made.run
        if self.deadlines is not None and not isinstance(begun, Away):
            self.deadlines.enter(run, made.prepared, tenant, made.wanted)
        self._live.enter(run, tenant)
        self._begin(made.branch, begun, made.prepared)
        return run

    def quote(
        self, tokens: Int32 | Sequence[int] | TokenPrompt, sampling: Sampling = PLAIN_SAMPLING, *, scope: Scope = PLAIN,
        tenant: str | Together | None = None, **hints: Unpack[SubmitOptions],
    ) -> DoorVerdict:  # fmt: skip
        """What `submit` would say to it now: whether it is taken, and when its first token comes. Changes nothing."""
        self._check_place()
        run, _, prepared, wanted = self._maker.make(tokens, sampling, Asker(scope, tenant), hints)
        if self.deadlines is None or wanted is None:
            raise InputError(say("a quote", "no first token is wanted in time", "give ttft, in seconds"))
        return self.deadlines.quote(run, prepared, tenant, wanted)

    def _begin(self, branch: Branch, begun: Sequence[int] | Away, prepared: Prepared) -> None:
        if isinstance(begun, Away):
            self.scheduler.queues.expect(branch)
        elif len(begun):
            self.outcomes.apply(self.advance.begin(branch, [int(token) for token in begun]))
        else:
            self.scheduler.queues.wait(branch)
            branch.prepared = prepared
            branch.prefetch = self.outer.prefetch(branch.run.request, self.clock)

    def _check_place(self) -> None:
        """Refuse a request when the engine is closed or full."""
        if self.closed:
            raise StateError(say("submit", "the engine is closed", "make a new one"))
        if len(self.runs) >= self.config.max_waiting:
            fact = f"{len(self.runs)} runs are in the engine, max_waiting is {self.config.max_waiting}"
            raise EngineBusy(say("submit", fact, "submit again when some are done"))

    @property
    def recorder(self) -> TraceRecorder | None:
        """The last one that `record` has made."""
        return None if self._live.recording is None else self._live.recording.recorder

    def record(self, path: str | Path, *, key_file: str | Path | None = None) -> TraceRecorder:
        """Write a trace of what is served from now on: when it came, how long it was, keyed ids of its blocks.

        `path`: JSON lines, plain or gzip, complete when the engine, or what this returns, is closed. No step waits for
        it or fails by it. Recordings with one `key_file` can be joined.
        """
        if self.recorder is not None and self.recorder.is_open:
            fact = f"{self.recorder!r} is open"
            raise StateError(say(f"a recording in {str(path)!r}", fact, "close that one first"))
        key = None if key_file is None else read_key(key_file)
        recorder = TraceRecorder(path, self.config.block_size, key=key, clock=self.clock)
        self._live.recording = RunRecorder(recorder)
        return recorder

    def adopt(self, branch: Branch, first: int | torch.Tensor, reused: int) -> None:
        """A prompt's KV has come from a peer, with its first token, or its last logits: it decodes from here on."""
        branch.sequence = self.cache.sequence(branch.id)
        branch.run.reused = reused
        times, now = branch.run.times, self.clock()
        times.admitted, times.first_token, times.last_token = times.admitted or now, now, now
        self.outcomes.apply(self.advance.begin(branch, first))

    def cancel(self, run: Run) -> bool:
        """Stop it where it is; False when it is done already. What its answers have so far stays readable."""
        if run.done or self.runs.get(run.id) is not run:
            return False
        self._live.stop(run, "cancelled")
        return True

    def fail(self, run: Run, why: str) -> None:
        """End it with an error; nothing that it has not committed is kept."""
        self._live.fail(run, why)

    def give_up(self, run: Run, why: str) -> None:
        """End it with an error after a fault: its pages are left as they are."""
        self._live.give_up(run, why)

    # -- one step ----------------------------------------------------------------------------------------------------

    def step(self) -> StepReport | None:
        """Compute one batch; None when there is nothing to do."""
        watch = Stopwatch()
        if self.deadlines is not None:
            self.deadlines.begin_step()
        self.connector_side.free()
        for one in self.participants:
            one.step()
        if not self.runs:
            self.in_flight.read_all()  # what it still computes is dropped
            self.plans.settle()
            return None
        turn = self._schedule()
        watch.mark("schedule")
        self._settle(turn)
        watch.mark("moves")
        if not (self.runs or turn.num_tokens or turn.refused):
            return None  # the last step was read, and all has ended with it
        works, batch, num_tokens = list(turn.works.values()), self._batch(turn), turn.num_tokens
        if num_tokens > self.config.max_num_tokens:
            fact = f"{num_tokens} tokens are due, max_num_tokens is {self.config.max_num_tokens}"
            raise StateError(say("a step", fact, "this is a fault of the scheduler: report it"))
        if num_tokens:
            packed = self._pack([work.segment() for work in works], batch)
            watch.mark("pack")
            if self.deadlines is not None:
                self.deadlines.note(turn, self.scheduler.prompts)
            self.in_flight.launch(works, batch, packed, self._run)
            watch.mark("model")
            self.in_flight.read_late()
            watch.mark("advance")
        if turn.must_read:
            self.in_flight.read_all()
        report = StepReport(
            num_tokens, len(works) + len(batch), len(turn.admitted), len(self.scheduler.waiting), watch.seconds
        )
        self.stats.add(report)
        return report

    def _schedule(self) -> Turn:
        """A turn in which something is computed or refused. Branches that hold pages they cannot use give them back."""
        while True:
            if self.in_flight.should_read:
                self.in_flight.read_all()
            mark = self.outer.hold_mark
            turn = self.scheduler.next_turn(in_flight=len(self.in_flight) > 0)
            for branch, refusal in turn.refused:
                if not branch.run.done:
                    self.fail(branch.run, f"{in_words(refusal, self.cache.config)}; {LESS}")
            for branch in [one for one in turn.works if one.run.done]:
                del turn.works[branch]
            turn.rows = self.scheduler.queues.plain.still_ready(turn.rows)
            if turn.num_tokens or turn.refused or not self.runs:
                return turn
            if len(self.in_flight):
                self.in_flight.read_all()
                continue
            if self.scheduler.give_way(turn) or (not turn.passed_over and self.scheduler.end_prefetches()):
                continue
            held = mark is None or mark != self.outer.hold_mark  # by a thread that copies pages: a moment only
            if not self.num_lingering and not turn.passed_over and not held:
                oldest = min(self.runs.values(), key=lambda run: run.order)
                self.fail(oldest, f"it fits no step, although nothing else runs; {LESS}")
            return turn

    def _settle(self, turn: Turn) -> None:
        """Pages are where they belong; branches that lost some compute them again, or wait for new ones."""
        if self.connector_side.connector is not None or not self.runs:  # it reads and fills pages when it likes; or
            self.set_back(self.plans.settle(), turn)  # no later step may come: others wait until plans are finished
        else:
            touched = partial(slots_of, self.cache, turn, self.scheduler.queues.plain.still_ready(turn.rows))
            self.set_back(self.plans.settle_for(touched), turn)
        for branch in turn.admitted:
            branch.run.times.admitted = branch.run.times.admitted or self.clock()
            if branch.sequence is not None and branch.run.fresh:
                branch.run.reused = branch.sequence.start
        if self.connector_side.brings:
            for branch in [one for one in turn.works if one in self.scheduler.prompts]:
                self._bring(branch, turn)

    def set_back(self, setbacks: Iterable[Setback], turn: Turn) -> None:
        """Promises that failed moves have changed, before their step runs."""
        for setback in setbacks:
            self.stats.num_setbacks += 1
            self.scheduler.set_back(setback, turn, self.in_flight.has)

    def settle(self) -> None:
        """Every step is read, and every page is where the cache says: for those who act between two steps."""
        self.in_flight.read_all()
        self.set_back(self.plans.settle(), Turn())

    def _bring(self, branch: Branch, turn: Turn) -> None:
        """Do not compute what the connector can bring."""
        work, run = turn.works[branch], branch.run
        assert branch.sequence is not None
        if branch.sequence.computed < work.span.start:
            return  # a step in flight computes what comes before
        came = self.connector_side.bring(branch.sequence, work.span)
        if run.fresh:
            run.reused += came
        rest = Span(work.span.start + came, work.span.end)
        if rest:
            turn.works[branch] = work._replace(span=rest)
        else:
            del turn.works[branch]

    def _batch(self, turn: Turn) -> PlainBatch:
        """Its plain rows: those that have kept their pages."""
        plain = self.scheduler.queues.plain
        turn.rows = plain.still_ready(turn.rows)
        return plain.batch(turn.rows)

    def _pack(self, segments: list[Segment], batch: PlainBatch | None = None) -> Packed | PackedRows:
        decodes = NO_DECODES if batch is None else self.scheduler.queues.plain.decodes(batch)
        if self.graphs is not None and self.graphs.takes(decodes, segments):
            return self.graphs.pack(decodes, segments)
        return pack(self.cache, self._windows, segments, self.pages.device, decodes)

    def _run(self, packed: Packed | PackedRows) -> torch.Tensor:
        """Logits of the wanted tokens, [wanted, vocabulary]."""
        with torch.inference_mode():
            if isinstance(packed, PackedRows):
                assert self.graphs is not None
                return self.graphs.run(packed)
            return self.model.forward(AttentionStep(packed, self.pages, self.model.places))

    @property
    def num_lingering(self) -> int:
        """Sequences whose pages a connector or a peer still reads or fills: the engine is not done before they are."""
        return self.connector_side.num_lingering + sum(one.num_open for one in self.participants)

    # -- leaving -----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Step until every run is done."""
        while (report := self.step()) is not None:
            if not report.num_tokens:
                self.outer.rest()

    def warm_up(self) -> int:
        """Run dummy requests through every part once; they leave nothing behind. Returns tokens computed."""
        if self.runs or self.stats.num_steps:
            fact = f"it has computed {self.stats.num_steps} steps, and {len(self.runs)} runs are inside"
            raise StateError(say("warm-up", fact, "warm up before the first: dummies would push out what is cached"))
        total = WarmUp(self.cache, self.plans, self.config, lambda segments: self._run(self._pack(segments))).run()
        if self.graphs is not None:
            self.graphs.capture()
        return total

    def close(self) -> None:
        """Cancel what is left and give the memory back; closing again does nothing."""
        try:
            for run in list(self.runs.values()):
                self.cancel(run)
            if not self.closed:
                self.in_flight.read_all()
                self.plans.settle()
        finally:
            if self.recorder is not None:
                self.recorder.close()
            if self.incidents is not None:
                self.incidents.close()
            if self.bills is not None and not self.closed:
                self.bills.close()
            if not self.closed:
                self.closed = True
                untouched = [one.close() for one in self.participants]
                if all(untouched):  # else pages may still be written: they stay
                    self.pages.close()

    def __repr__(self) -> str:
        return f"Engine({self.model!r}, {len(self.runs)} runs inside, {self.stats.num_steps} steps)"

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
