"""Steps in flight: those that were launched and whose tokens the host has not read. Owns their order and their ends.

    host      schedule n+1 | launch n+1 | read n | schedule n+2 | launch n+2 | read n+1
    device     ... step n ......  step n+1 ............ step n+2 ...

With `overlap` one step stays in flight while the next is prepared; without, each is read as soon as it is launched.
A row of step n+1 takes its input from the tokens of step n where these are, on the device. What the host must know
first waits in `queues.unread`, and what step n ends has one token too many in step n+1, which is dropped.
Decides no step; what tokens mean is `advance`, what becomes of answers `apply_outcomes`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, compress

import numpy as np
import torch

from quire.core.cache import Cache
from quire.core.records.request import Int32
from quire.core.state.registry import LaunchedStep
from quire.core.state.sequence import Sequence as Live
from quire.engine.model.graphs.decode_graphs import PackedRows
from quire.engine.model.packing import Packed
from quire.engine.model.pages import Pages
from quire.engine.model.step_marks import StepMarks
from quire.engine.runner.apply_outcomes import OutcomeLoop
from quire.engine.sampling.sample import BROKEN
from quire.engine.step.advance import Advance
from quire.engine.step.outcomes import Unusable
from quire.engine.step.plain_rows import Bools, PlainBatch
from quire.engine.step.read_logits import NextTokens, UnreadTokens
from quire.engine.step.runs.branch import NO_DRAFTS, Branch
from quire.engine.step.runs.step_work import Work
from quire.engine.step.schedule import Scheduler
from quire.engine.step.step_report import OverlapCounts
from quire.engine.tensors.on_device import on_device


@dataclass(slots=True, eq=False)
class _Unread:
    """A launched step and what it makes."""

    step: LaunchedStep
    batch: PlainBatch  # the first rows of the step
    works: list[Work]  # and the others
    sequences: list[Live]  # of the works
    ends: Int32  # up to where each is committed when it is read
    tokens: UnreadTokens
    mark: torch.cuda.Event | None  # its end on the device

    def valid(self) -> list[Work]:
        """Works whose branch has not ended since, and still has the pages that it had."""
        pairs = zip(self.works, self.sequences, strict=True)
        return [work for work, sequence in pairs if work.branch.sequence is sequence]

    def plain_works(self) -> list[Work]:
        """What its plain rows compute, one by one."""
        return self.batch.works(self.step.starts[: len(self.batch)].astype(np.int64))


class StepsInFlight:
    """The steps of one engine between their launch and the moment that their tokens are on the host."""

    def __init__(
        self, cache: Cache, pages: Pages, scheduler: Scheduler, advance: Advance, outcomes: OutcomeLoop,
        *, clock: Callable[[], float], overlap: bool,
    ) -> None:  # fmt: skip
        self._cache, self._scheduler, self._queues = cache, scheduler, scheduler.queues
        self._advance, self._outcomes, self._clock = advance, outcomes, clock
        self._marks = StepMarks(pages)
        self._most = 1 if overlap else 0  # steps that stay in flight while the next is prepared
        self._plain = self._queues.plain
        self._steps: deque[_Unread] = deque()
        self._places = np.zeros(cache.config.max_sequences, np.int64)  # by row: of its token among those of a step
        self._waits = False
        self.note_computed: Callable[[Iterable[Work]], None]  # called with what has filled pages, before it is findable
        self.counts = OverlapCounts()

    def __len__(self) -> int:
        return len(self._steps)

    def __repr__(self) -> str:
        return f"StepsInFlight({len(self)} of at most {self._most}, {self.counts})"

    def has(self, branch: Branch) -> bool:
        """Whether a step in flight computes some of it."""
        return any(branch in self._valid(one) for one in self._steps)

    def _valid(self, one: _Unread) -> list[Branch]:
        """Branches that a step computes and that still have the pages that they had."""
        pairs = zip(one.batch.branches, self._plain.live(one.batch).tolist(), strict=True)
        return [*(branch for branch, live in pairs if live), *(work.branch for work in one.valid())]

    # -- launching ---------------------------------------------------------------------------------------------------

    @property
    def should_read(self) -> bool:
        """More branches of the step in flight wait for their tokens than could go on without."""
        return self._waits and len(self._steps) > 0

    def launch(
        self,
        works: list[Work],
        batch: PlainBatch,
        packed: Packed | PackedRows,
        compute: Callable[..., torch.Tensor],
    ) -> None:
        """A step is on its way. If it raises, what it was to compute is as it was before it was handed out."""
        sequences = [work.branch.sequence for work in works if work.branch.sequence is not None]
        step, starts = self._cache.launch(packed.rows), packed.starts[: len(batch)]
        try:
            num_ahead = self._fill_in(works, batch, packed)
            tokens = self._advance.choose(works, compute(packed), batch.samples(starts))
        except BaseException:
            self._go_back(step, [*batch.branches, *(work.branch for work in works)])
            raise
        unread = self._queues.unread
        if self._steps:
            self.counts.num_steps += 1
            self.counts.num_ahead += num_ahead
            self.counts.num_waits += sum([branch.needs_tokens for branch in unread])
        self._steps.append(_Unread(step, batch, works, sequences, step.ends.copy(), tokens, self._marks.mark()))
        self._scheduler.rounds.spend(works, batch.tenants)
        num_full = self._queues.launch_plain(batch, starts)
        for work in works:
            if work.num_logits:
                self._queues.launch(work.branch)
        if self._most:
            self._note_places(packed.rows, self._steps[-1])
            stopped = [work.branch for work in works if work.branch in unread]
            go_on = len(works) - len(stopped) + len(batch) - num_full
            self._waits = sum([branch.needs_tokens for branch in stopped]) > go_on

    def _note_places(self, rows: Int32, one: _Unread) -> None:
        """Where the next step finds the tokens that this one makes."""
        self._places[one.batch.rows] = np.arange(len(one.batch))
        for row, work in zip(rows[len(one.batch) :].tolist(), one.works, strict=True):
            place = one.tokens.places.get(work.branch)
            if place is not None:
                self._places[row] = place.start

    def _fill_in(self, works: list[Work], batch: PlainBatch, packed: Packed | PackedRows) -> int:
        """Input tokens that the host has not read are taken from the step that makes them, on the device; how many."""
        if not self._steps:
            return 0
        late = packed.starts[: len(batch)] >= self._plain.known[batch.rows]
        others = [nth for nth, work in enumerate(works, start=len(batch)) if work.span.start >= work.branch.length]
        made = self._steps[-1]
        if made.batch is batch and not others and np.count_nonzero(late) == len(late):  # as in most steps
            packed.ids[: len(batch)].copy_(made.tokens.tokens[: len(batch)].clamp(min=0))
            return len(batch)
        segments = np.concatenate([np.flatnonzero(late), np.array(others, np.int64)])
        if len(segments):
            device = packed.ids.device
            places = on_device(packed.offsets[segments], device)
            sources = on_device(self._places[packed.rows[segments]], device)
            some = made.tokens.tokens[sources].clamp(min=0)  # negative: its run fails when that is read
            packed.ids[places] = some.to(packed.ids.dtype)
        return len(segments)

    # -- reading -----------------------------------------------------------------------------------------------------

    def read_late(self) -> None:
        """Read all but those that may stay in flight."""
        while len(self._steps) > self._most:
            self._read()

    def read_all(self) -> None:
        """Wait for every step: nothing is in flight then."""
        self.counts.num_drains += len(self._steps) > 0
        while self._steps:
            self._read()

    def _read(self) -> None:
        """The tokens of the oldest step are on the host: KV of what it computed exists, answers grow or end."""
        one = self._steps[0]
        works, live = one.valid(), self._plain.live(one.batch)
        self.counts.num_dropped += len(one.works) - len(works) + len(live) - int(np.count_nonzero(live))
        self.note_computed(chain(self._plain_works(one, live), works))
        try:
            read = one.tokens.read({work.branch for work in works if work.num_logits})
        except BaseException:
            self._fail()
            raise
        broken = live & (read.plain == BROKEN)
        if read.unusable or np.count_nonzero(broken):
            unusable = [*compress(one.batch.branches, broken.tolist()), *read.unusable]
            if read.unusable and self._is_shared():
                return self._fail_without_sharers(one, unusable)
            self._forget(unusable)
            self._outcomes.apply([Unusable(branch) for branch in unusable])
            live = self._plain.live(one.batch)
        self._note_times(one, live, read)
        self._commit(one, [work for work in works if work.branch.sequence is not None], live, read)
        self._apply_plain(one.batch, live, read.plain)
        self._outcomes.apply(self._advance.outcomes(read))

    def _plain_works(self, one: _Unread, live: Bools) -> Iterator[Work]:
        """Only made when it is asked for."""
        yield from compress(one.plain_works(), live.tolist())

    def _commit(self, one: _Unread, works: list[Work], live: Bools, read: NextTokens) -> None:
        """KV exists, as far as drafts were right. A token goes with it that a later step has computed already."""
        branches = {work.branch for work in works}
        rejected: dict[Live, int] = {}
        tokens = np.full(len(one.ends), -1, np.int32)
        tokens[: len(live)] = np.where(live & self._plain.are_ahead(one.batch.rows), read.plain, -1)
        for branch in one.batch.branches:
            branch.run.computed += 1
        for place, (work, sequence) in enumerate(zip(one.works, one.sequences, strict=True), start=len(live)):
            branch = work.branch
            branch.run.computed += len(work.span)
            if branch not in branches:
                continue
            if work.num_logits and branch.ahead > 1:
                (tokens[place],) = read.tokens[branch]
            if len(branch.drafts) and (wrong := self._advance.judge(branch, read)):
                rejected[sequence] = wrong
                one.ends[place] -= wrong
        self._cache.commit(one.step, one.ends, tokens=tokens)
        self._steps.popleft()
        self._marks.wait_for(one.mark)
        if rejected:
            self._cache.trim(list(rejected), np.array(list(rejected.values()), np.int32))

    def _apply_plain(self, batch: PlainBatch, live: Bools, tokens: Int32) -> None:
        """A token more for each plain row that still counts."""
        if np.count_nonzero(live) < len(live):
            batch, tokens = self._plain.batch(batch.rows[live]), tokens[live]
        full = self._plain.append(batch, tokens)
        self._outcomes.apply_plain(batch.branches, tokens.tolist(), self._advance.finishes(batch, tokens, full))

    def _note_times(self, one: _Unread, live: Bools, read: NextTokens) -> None:
        now = self._clock()
        for branch in compress(one.batch.branches, live.tolist()):
            branch.run.times.last_token = now  # its first one was noted when its prompt was computed
        for branch in (*read.tokens, *read.scores):
            if not branch.run.done:
                times = branch.run.times
                times.first_token, times.last_token = times.first_token or now, now

    # -- what goes wrong ---------------------------------------------------------------------------------------------

    def _forget(self, unusable: list[Branch]) -> None:
        """Nothing of their runs is committed from the first step in flight on."""
        runs = {branch.run for branch in unusable}
        starts: dict[int, int] = {}  # by row, which no other branch has as long as a step has it
        for one in self._steps:
            branches = [*one.batch.branches, *(work.branch for work in one.works)]
            for place, (branch, row) in enumerate(zip(branches, one.step.rows.tolist(), strict=True)):
                if branch.run in runs:
                    one.ends[place] = starts.setdefault(row, one.step.starts.item(place))

    def _fail(self) -> None:
        """The oldest step has raised, so none behind it counts."""
        failed = list(self._steps)
        gone = dict.fromkeys(branch for one in failed for branch in self._valid(one))
        self._steps.clear()
        self._go_back(failed[0].step, list(gone))

    def _is_shared(self) -> bool:
        """Whether a sequence uses what steps in flight compute for another: it begins behind what it has computed. Of
        one that has ended it is not known."""
        seen = set[Live]()
        for one in self._steps:
            for work, sequence in zip(one.works, one.sequences, strict=True):
                if sequence not in seen and (not sequence.live or sequence.computed < work.span.start):
                    return self._cache.config.share_pending
                seen.add(sequence)
        return False

    def _fail_without_sharers(self, one: _Unread, unusable: list[Branch]) -> None:
        """Others may have used what a broken prompt has computed: they compute it for themselves, all goes back."""
        starts = {work.branch: work.span.start for work in one.works}
        self._fail()
        alone = [one for one in unusable if one.sequence is not None and one.sequence.ran >= starts.get(one, 0)]
        self._outcomes.apply([Unusable(branch) for branch in alone])

    def _go_back(self, step: LaunchedStep, branches: list[Branch]) -> None:
        """A step that has raised was not computed; a recurrent state may have gone on, and is given up."""
        self._marks.wait_for(None)  # what it has launched may run on, in slots that are free now
        lost = {setback.holder for setback in self._cache.fail(step) if setback.lost}
        for branch in branches:
            sequence = branch.sequence
            assert sequence is not None
            if sequence in lost:
                self._queues.lose_pages(branch)
                continue
            if len(branch.drafts):
                self._cache.trim(sequence, len(branch.drafts))
                branch.drafts = NO_DRAFTS
            if sequence.ran < sequence.prompt_end:
                self._queues.compute_again(branch)
            else:
                self._queues.leave_step(branch)
                self._queues.go_on(branch)
