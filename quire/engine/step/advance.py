"""Advance: what a step's logits mean: tokens sampled, drafts judged, KV committed, answers grown, forked and ended.

    logits -> tokens -> trim rejected drafts -> commit -> append, end, fork, or wait for the other beams

Knows the cache and the scheduler's places; runs no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from quire.core.cache import Cache
from quire.core.records.errors import InputError
from quire.core.records.plan import Plan
from quire.core.records.span import Span
from quire.engine.choose.logprobs import TokenLogprobs
from quire.engine.choose.sample import NO_TOKEN, broken
from quire.engine.step.fork_beams import Forks, LetGo
from quire.engine.step.read_logits import LogitRows, NextTokens, read_logits, splits
from quire.engine.step.runs.branch import NO_DRAFTS, Answer, Branch, Finish, Run
from quire.engine.step.runs.work import Work
from quire.engine.step.schedule import Scheduler

BROKEN = "the model's logits have a NaN, or no finite maximum: check its weights and its precision"
NONE_LEFT = "its fields leave no token to go on with: allow more, or forbid less"


class Advance:
    """Moves branches on after each step. `finish` is called with every run that is done."""

    def __init__(
        self, cache: Cache, scheduler: Scheduler, eos_ids: frozenset[int], *, carry: Callable[[Plan], None],
        let_go: LetGo, finish: Callable[[Run], None], fail: Callable[[Run, str], None], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._cache, self._scheduler, self._eos_ids = cache, scheduler, eos_ids
        self._let_go, self._finish, self._fail, self._clock = let_go, finish, fail, clock
        self.forks = Forks(cache, scheduler, carry=carry, let_go=let_go)
        self.num_accepted = 0

    def after(self, works: Sequence[Work], logits: torch.Tensor) -> None:
        """The step has run; `logits` are those its works wanted, in order."""
        ends = np.cumsum([work.num_logits for work in works])
        rows = {work.branch: Span(int(end) - work.num_logits, int(end)) for work, end in zip(works, ends, strict=True)}
        read = self._read([work.branch for work in works if work.num_logits], rows, logits)
        now = self._clock()  # the tokens are on the host: a device may have been computing until just now
        for branch in [*read.tokens, *read.scores]:
            times = branch.run.times
            times.first_token, times.last_token = times.first_token or now, now
        for branch in read.tokens:
            if len(branch.drafts):
                self._judge(branch, read.tokens)
        self._scheduler.rounds.spend(works)
        self._commit([work for work in works if work.branch.sequence is not None])
        for branch in [*read.tokens, *read.scores]:
            self._scheduler.prompts.pop(branch, None)
            self._scheduler.ready.pop(branch, None)
            self._go_on(branch, read)

    def begin(self, branch: Branch, first: int | Sequence[int] | torch.Tensor) -> None:
        """It began elsewhere: with its first token, or first tokens, or the logits [1, vocabulary] of its prompt."""
        if isinstance(first, torch.Tensor):
            self._go_on(branch, self._read([branch], {branch: Span(0, 1)}, first))
        else:
            self._append(branch, [first] if isinstance(first, int) else list(first))

    def _go_on(self, branch: Branch, read: NextTokens) -> None:
        if branch.run.done:
            return  # another branch of it has ended the run, or its logits were no numbers
        if branch in read.scores:
            if self.forks.hold_beam(branch, read.scores[branch]) and not self.forks.advance_beams(branch.run):
                self._end_beams(branch.run)
        elif splits(branch):
            self._split_answers(branch, read)
        else:
            self._append(branch, read.tokens[branch], read.logprobs.get(branch, ()))

    # -- tokens ------------------------------------------------------------------------------------------------------

    def _read(self, branches: list[Branch], rows: LogitRows, logits: torch.Tensor) -> NextTokens:
        """What the logits say. A branch whose logits are no numbers is left out, and has failed."""
        try:
            return read_logits(branches, rows, logits)
        except InputError:
            return read_logits(self._fail_broken(branches, rows, logits), rows, logits)

    def _fail_broken(self, branches: list[Branch], rows: LogitRows, logits: torch.Tensor) -> list[Branch]:
        """Runs whose logits are no numbers end with an error, and nothing of theirs is kept; the others go on."""
        bad = set(broken(logits))
        for branch in branches:
            if bad.intersection(range(rows[branch].start, rows[branch].end)) and not branch.run.done:
                self._fail(branch.run, BROKEN)
                self._cache.truncate(branch.run.request)  # or the next request would reuse the same pages
        return [branch for branch in branches if not branch.run.done]

    def _judge(self, branch: Branch, found: dict[Branch, list[int]]) -> None:
        """A draft stands when it is what would have been sampled there; the rest is taken back."""
        assert branch.sequence is not None
        drafts, tokens = branch.drafts.tolist(), found[branch]
        good = 0
        while good < len(drafts) and drafts[good] == tokens[good]:
            good += 1
        if good < len(drafts):
            self._cache.trim(branch.sequence, len(drafts) - good)
        found[branch] = tokens[: good + 1]
        branch.drafts = NO_DRAFTS
        self.num_accepted += good

    def _commit(self, works: Sequence[Work]) -> None:
        """KV of everything that ran exists; decoding rows in one call."""
        ready, sequences = [], []
        for work in works:
            assert work.branch.sequence is not None
            work.branch.run.computed += len(work.span)
            if work.branch in self._scheduler.ready:
                ready.append(work.branch.sequence.row)
            else:
                sequences.append(work.branch.sequence)
        if ready:
            self._cache.commit(np.array(ready, np.int32))
        if sequences:
            self._cache.commit(sequences)

    def _append(self, branch: Branch, tokens: list[int], logprobs: Sequence[TokenLogprobs] = ()) -> None:
        """New tokens of an answer: told, kept, and the next one is due, unless the answer ends with them."""
        run = branch.run
        tokens, finish = self._cut(branch, tokens)
        answer = run.answers[branch.index]
        for place, token in enumerate(tokens, start=1):  # one at a time: drafts must not change where an answer ends
            if token == NO_TOKEN:
                self._fail(run, (branch.mask and branch.mask.error) or NONE_LEFT)
                return
            branch.append([token])
            answer.tokens.append(token)
            if logprobs:
                answer.logprobs.append(logprobs[place - 1])
            if finish is None and branch.mask is not None and branch.mask.complete:
                finish = "stop"  # whatever came next would be wrong
            answer.finish = finish if place == len(tokens) else None
            stops = self._tell(run, branch.index, [token])
            if run.done:
                return  # the listener has cancelled it
            if stops and answer.finish is None:
                answer.finish = "stop"
                break
        if answer.finish is None:
            if branch.sequence is not None:
                self._scheduler.ready[branch] = None
            else:
                self._scheduler.put(branch)
            return
        self.end(branch)
        if not run.branches:
            self._finish(run)

    def _tell(self, run: Run, answer: int, tokens: list[int]) -> bool:
        """Whether its listener wants no more; one that fails costs its own run only."""
        if run.listener is None:
            return False
        try:
            return run.listener.hear(run, answer, tokens)
        except Exception as error:
            run.answers[answer].finish = None  # nobody has heard its end
            self._fail(run, f"its listener failed: {type(error).__name__}: {error}")
            return False

    def _cut(self, branch: Branch, tokens: list[int]) -> tuple[list[int], Finish | None]:
        """The tokens that still belong to the answer, and why it ends with them."""
        sampling = branch.run.sampling
        for place, token in enumerate(tokens, start=1):
            if token in self._eos_ids and not sampling.ignore_eos:
                return tokens[:place], "eos"
            if token in sampling.stop_ids:
                return tokens[:place], "stop"
            if len(branch.answer) + place >= sampling.max_tokens:
                return tokens[:place], "length"
        return tokens, None

    def end(self, branch: Branch, store: bool = True) -> None:
        """It generates no more."""
        self._scheduler.remove(branch)
        branch.run.branches.remove(branch)
        if branch.sequence is not None:
            self._let_go(branch, store)

    # -- several answers -----------------------------------------------------------------------------------------------

    def _split_answers(self, branch: Branch, read: NextTokens) -> None:
        """The prompt is computed: every answer goes its own way from here."""
        run, tokens, logprobs = branch.run, read.tokens[branch], read.logprobs.get(branch, ())
        others = self.forks.fork(branch, list(range(1, len(tokens))))
        run.branches.extend(others)
        for nth, one in enumerate([branch, *others]):
            if not run.done:  # by a listener that has cancelled it
                self._append(one, [tokens[nth]], logprobs[nth : nth + 1])

    def _end_beams(self, run: Run) -> None:
        assert run.beams is not None
        for beam in list(run.branches):
            self.end(beam)
        for nth, best in enumerate(run.beams.best(run.sampling.n)):
            run.answers[nth] = Answer(list(best.tokens), self._why(run, best.tokens[-1]), best.score)
            if not run.done:
                self._tell(run, nth, list(best.tokens))
        if not run.done:  # by a listener that has cancelled it
            self._finish(run)

    def _why(self, run: Run, last: int) -> Finish:
        if last in self._eos_ids and not run.sampling.ignore_eos:
            return "eos"
        return "stop" if last in run.sampling.stop_ids else "length"
