"""Apply outcomes: answers grow, are reported, fork and end; their branches go on in the queues. Computes nothing.

Emitted  -> append, tell -> go on, or end     Split  -> fork -> as emitted, each
Unusable -> fail, forget                      Scored -> hold; with the last of its search: fork and go on, or end
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from quire.core.cache import Cache
from quire.engine.runner.live_runs import LiveRuns
from quire.engine.sampling.sample import NO_TOKEN
from quire.engine.step.fork_beams import Forks, choose_beams, given_up
from quire.engine.step.outcomes import Emitted, Outcome, Scored, Split, Unusable, emitted, ends_with
from quire.engine.step.queues import Queues
from quire.engine.step.runs.branch import Answer, Branch, Finish, Run

BROKEN = "the model's logits have a NaN, or no finite maximum: check its weights and its precision"
NONE_LEFT = "its fields leave no token to go on with: allow more, or forbid less"


class OutcomeLoop:
    """Applies outcomes one after the other. A listener may cancel any run meanwhile: what is left of it is passed."""

    def __init__(self, cache: Cache, queues: Queues, runs: LiveRuns, forks: Forks, eos_ids: frozenset[int]) -> None:
        self._cache, self._queues, self._runs, self._forks, self._eos_ids = cache, queues, runs, forks, eos_ids

    def apply(self, outcomes: Iterable[Outcome]) -> None:
        """All of them, in their order: pages that one gives back may serve a fork of the next."""
        for outcome in outcomes:
            self._queues.leave_step(outcome.branch)
            if outcome.branch.run.done:
                continue  # another branch of it has ended the run, or a listener has
            match outcome:
                case Emitted():
                    self._emit(outcome)
                case Split():
                    self._split(outcome)
                case Scored():
                    self._score(outcome)
                case Unusable():
                    self._runs.fail(outcome.branch.run, BROKEN)
                    self._cache.truncate(outcome.branch.run.request)  # or the next request would reuse the same pages

    def _emit(self, outcome: Emitted) -> None:
        """New tokens of an answer: told, kept, and the next one is due, unless the answer ends with them."""
        branch, tokens, logprobs, finish = outcome
        run = branch.run
        answer = run.answers[branch.index]
        for place, token in enumerate(tokens, start=1):  # one at a time: drafts must not change where an answer ends
            if token == NO_TOKEN:
                self._runs.fail(run, (branch.mask and branch.mask.error) or NONE_LEFT)
                return
            branch.append([token])
            if logprobs:
                answer.logprobs.append(logprobs[place - 1])
            if finish is None and branch.mask is not None and branch.mask.complete:
                finish = "stop"  # whatever came next would be wrong
            answer.finish = finish if place == len(tokens) else None
            stops = self._runs.tell(run, branch.index, [token])
            if run.done:
                return  # the listener has cancelled it
            if stops and answer.finish is None:
                answer.finish = "stop"
                break
        if answer.finish is None:
            self._queues.go_on(branch)
            return
        self._end(branch)

    def apply_plain(self, branches: Sequence[Branch], tokens: list[int], finishes: Mapping[int, Finish]) -> None:
        """A token more of each answer, and why some end with it, by place. The others stay in their queues."""
        for place, (branch, token) in enumerate(zip(branches, tokens, strict=True)):
            run = branch.run
            if run.done:
                continue  # as above
            branch.made.append(token)
            finish = finishes.get(place)
            if finish is None and run.listener is None:
                continue
            answer = run.answers[branch.index]
            answer.finish = finish
            stops = self._runs.tell(run, branch.index, [token])
            if finish is None and not stops:
                continue
            if not run.done:  # by the listener
                answer.finish = finish or "stop"
                self._end(branch)

    def _end(self, branch: Branch) -> None:
        """Its answer is complete."""
        self._runs.end(branch)
        if not branch.run.branches:
            self._runs.finish(branch.run)

    def _split(self, split: Split) -> None:
        """The prompt is computed: every answer goes its own way from here."""
        branch, run = split.branch, split.branch.run
        others = self._forks.fork(branch, list(range(1, len(split.tokens))))
        run.branches.extend(others)
        for nth, one in enumerate([branch, *others]):
            if not run.done:  # by a listener that has cancelled it
                self._emit(emitted(one, split.tokens[nth : nth + 1], self._eos_ids, split.logprobs[nth : nth + 1]))

    def _score(self, scored: Scored) -> None:
        """A beam waits for those of its search; with the last of them all go on by a token, or the search ends."""
        beam, run = scored.branch, scored.branch.run
        beam.log_probs = scored.log_probs
        self._queues.hold(beam)
        if any(other.log_probs is None for other in run.branches):
            return
        for other in run.branches:
            self._queues.end_hold(other)
        chosen = choose_beams(run)
        assert run.beams is not None
        if run.beams.done:
            self._end_beams(run)
            return
        for other in given_up(run, chosen):
            self._runs.let_go(other, store=True)  # first of all: a fork needs its row and its pages
        self._forks.fork_beams(run, chosen)
        for other in run.branches:
            self._queues.go_on(other)

    def _end_beams(self, run: Run) -> None:
        assert run.beams is not None
        for beam in list(run.branches):
            self._runs.end(beam)
        for nth, best in enumerate(run.beams.best(run.sampling.n)):
            run.answers[nth] = Answer(list(best.tokens), ends_with(run, best.tokens[-1], self._eos_ids), best.score)
            if not run.done:
                self._runs.tell(run, nth, list(best.tokens))
        if not run.done:  # by a listener that has cancelled it
            self._runs.finish(run)
