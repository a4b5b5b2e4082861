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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from quire.core.cache import Cache
from quire.core.records.request import Int32
from quire.core.state.registry import LaunchedStep
from quire.core.state.sequence import Sequence as Live
from quire.engine.model.graphs.decode_graphs import PackedRows
from quire.engine.model.packing import Packed
from quire.engine.runner.apply_outcomes import OutcomeLoop
from quire.engine.step.advance import Advance
from quire.engine.step.outcomes import Unusable
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
    works: list[Work]
    sequences: list[Live]  # of the works
    ends: Int32  # up to where each is committed when it is read
    tokens: UnreadTokens

    def valid(self) -> list[Work]:
        """Those whose branch has not ended since, and still has the pages that it had."""
        pairs = zip(self.works, self.sequences, strict=True)
        return [work for work, sequence in pairs if work.branch.sequence is sequence]


class StepsInFlight:
    """The steps of one engine between their launch and the moment that their tokens are on the host."""

    def __init__(
        self, cache: Cache, scheduler: Scheduler, advance: Advance, outcomes: OutcomeLoop, clock: Callable[[], float],
        overlap: bool,
    ) -> None:  # fmt: skip
        self._cache, self._scheduler, self._queues = cache, scheduler, scheduler.queues
        self._advance, self._outcomes, self._clock = advance, outcomes, clock
        self._most = 1 if overlap else 0  # steps that stay in flight while the next is prepared
        self._steps: deque[_Unread] = deque()
        self._waits = False
        self.note_computed: Callable[[Sequence[Work]], None]  # called with what has filled pages, before it is findable
        self.counts = OverlapCounts()

    def __len__(self) -> int:
        return len(self._steps)

    def __repr__(self) -> str:
        return f"StepsInFlight({len(self)} of at most {self._most}, {self.counts})"

    def has(self, branch: Branch) -> bool:
        """Whether a step in flight computes some of it."""
        return any(work.branch is branch for one in self._steps for work in one.valid())

    # -- launching ---------------------------------------------------------------------------------------------------

    @property
    def should_read(self) -> bool:
        """More branches of the step in flight wait for their tokens than could go on without."""
        return self._waits and len(self._steps) > 0

    def launch(self, works: list[Work], packed: Packed | PackedRows, compute: Callable[..., torch.Tensor]) -> None:
        """A step is on its way. If it raises, what it was to compute is as it was before it was handed out."""
        sequences = [work.branch.sequence for work in works if work.branch.sequence is not None]
        step = self._cache.launch(sequences)
        try:
            self._fill_in(works, packed)
            tokens = self._advance.choose(works, compute(packed))
        except BaseException:
            self._go_back(step, [(work.branch, sequence) for work, sequence in zip(works, sequences, strict=True)])
            raise
        unread = self._queues.unread
        if self._steps:
            self.counts.num_steps += 1
            self.counts.num_ahead += sum(work.branch.ahead > 0 for work in works)
            self.counts.num_waits += sum(branch.needs_tokens for branch in unread)
        self._steps.append(_Unread(step, works, sequences, step.ends.copy(), tokens))
        self._scheduler.rounds.spend(works)
        for work in works:
            if work.num_logits:
                self._queues.launch(work.branch)
        if self._most:
            stopped = [work.branch for work in works if work.branch in unread]
            self._waits = sum(branch.needs_tokens for branch in stopped) > len(works) - len(stopped)

    def _fill_in(self, works: list[Work], packed: Packed | PackedRows) -> None:
        """Input tokens that the host has not read are taken from the step that makes them, on the device."""
        ahead = [(nth, work.branch) for nth, work in enumerate(works) if work.branch.ahead]
        if not ahead:
            return
        made, device = self._steps[-1].tokens, packed.ids.device
        places = on_device(packed.offsets[[nth for nth, _ in ahead]], device)
        sources = on_device([made.places[branch].start for _, branch in ahead], device)
        packed.ids[places] = (
            made.tokens[sources].clamp(min=0).to(packed.ids.dtype)
        )  # negative: its run fails when that is read

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
        works = one.valid()
        self.counts.num_dropped += len(one.works) - len(works)
        self.note_computed(works)
        try:
            read = one.tokens.read({work.branch for work in works if work.num_logits})
        except BaseException:
            self._fail()
            raise
        if read.unusable:
            self._forget(read.unusable)
            self._outcomes.apply([Unusable(branch) for branch in read.unusable])
        self._note_times(read)
        self._commit(one, [work for work in works if work.branch.sequence is not None], read)
        self._outcomes.apply(self._advance.outcomes(read))

    def _commit(self, one: _Unread, works: list[Work], read: NextTokens) -> None:
        """KV exists, as far as drafts were right. A token goes with it that a later step has computed already."""
        live = {work.branch for work in works}
        rejected: dict[Live, int] = {}
        tokens = np.full(len(one.works), -1, np.int32)
        for place, (work, sequence) in enumerate(zip(one.works, one.sequences, strict=True)):
            branch = work.branch
            branch.run.computed += len(work.span)
            if branch not in live:
                continue
            if len(branch.drafts) and (wrong := self._advance.judge(branch, read)):
                rejected[sequence] = wrong
                one.ends[place] -= wrong
            if branch.ahead > 1:
                (tokens[place],) = read.tokens[branch]
            branch.ahead -= work.num_logits > 0
        self._cache.commit(one.step, one.ends, tokens=tokens)
        self._steps.popleft()
        if rejected:
            self._cache.trim(list(rejected), np.array(list(rejected.values()), np.int32))

    def _note_times(self, read: NextTokens) -> None:
        now = self._clock()
        for branch in (*read.tokens, *read.scores):
            if not branch.run.done:
                times = branch.run.times
                times.first_token, times.last_token = times.first_token or now, now

    # -- what goes wrong ---------------------------------------------------------------------------------------------

    def _forget(self, unusable: list[Branch]) -> None:
        """Nothing of their runs is committed from the first step in flight on."""
        runs = {branch.run for branch in unusable}
        starts: dict[Live, int] = {}
        for one in self._steps:
            for place, (work, sequence) in enumerate(zip(one.works, one.sequences, strict=True)):
                if work.branch.run in runs:
                    one.ends[place] = starts.setdefault(sequence, one.step.starts.item(place))

    def _fail(self) -> None:
        """The oldest step has raised, so none behind it counts."""
        failed, gone = list(self._steps), dict[Branch, Live]()
        self._steps.clear()
        for one in failed:
            for work, sequence in zip(one.works, one.sequences, strict=True):
                if work.branch.sequence is sequence:
                    work.branch.ahead -= work.num_logits > 0
                    gone[work.branch] = sequence
        self._go_back(failed[0].step, list(gone.items()))

    def _go_back(self, step: LaunchedStep, branches: list[tuple[Branch, Live]]) -> None:
        """A step that has raised was not computed; a recurrent state may have gone on, and is given up."""
        lost = {setback.holder for setback in self._cache.fail(step) if setback.lost}
        for branch, sequence in branches:
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
