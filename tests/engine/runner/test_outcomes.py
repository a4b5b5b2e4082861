"""Outcomes: what the logits of a step mean, and what one loop makes of them, whoever is cancelled on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from quire.engine import Engine, Run, Sampling  # noqa: E402
from quire.engine.step.draft import lookup  # noqa: E402
from quire.engine.step.outcomes import Emitted, Outcome, Scored, Split, Unusable, emitted, ends_with  # noqa: E402

from ..steps import assert_exact, finish, open_engine, plain, step, tokens_of, words  # noqa: E402
from .test_engine import POISON, poisoned  # noqa: E402

EOS = frozenset({2})


@pytest.mark.parametrize(
    ("fields", "tokens", "kept", "finish"),
    [
        ({}, [5, 6], [5, 6], None),
        ({}, [5, 2, 6], [5, 2], "eos"),
        ({"ignore_eos": True}, [5, 2, 6], [5, 2, 6], None),
        ({"stop_ids": (6,)}, [5, 6, 7], [5, 6], "stop"),
        ({"stop_ids": (2,)}, [2], [2], "eos"),
        ({"stop_ids": (2,), "ignore_eos": True}, [2], [2], "stop"),
        ({"max_tokens": 3}, [5, 6], [5, 6], None),
        ({"max_tokens": 3}, [5, 6, 7, 8], [5, 6, 7], "length"),
        ({"max_tokens": 3}, [5, 6, 2], [5, 6, 2], "eos"),
    ],
)
def test_where_an_answer_ends(fields: dict[str, object], tokens: list[int], kept: list[int], finish: str) -> None:
    engine = open_engine("llama", 20)
    run = engine.submit(words(0, 9), Sampling(**fields))  # type: ignore[arg-type]
    found = emitted(run.branches[0], tokens, EOS)
    assert (found.tokens, found.finish) == (kept, finish)
    if finish is not None:
        assert ends_with(run, kept[-1], EOS) == finish
    if len(tokens) > 1:  # the tokens that its answer has already count
        run.branches[0].append(tokens[:1])
        assert emitted(run.branches[0], tokens[1:], EOS).finish == finish


def outcomes_of(engine: Engine) -> list[Outcome]:
    """One step, with what its logits meant."""
    seen: list[Outcome] = []
    apply = engine.outcomes.apply

    def note(outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            scheduled = (*engine.scheduler.ready, *engine.scheduler.unread)
            assert isinstance(outcome, Unusable) or outcome.branch in scheduled
        seen.extend(outcomes)
        apply(outcomes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.outcomes, "apply", note)
        step(engine)
    return seen


def test_a_step_returns_an_outcome_for_each_branch_that_has_logits() -> None:
    """Until they are applied, every branch waits for its token, or could go on ahead of it."""
    engine = open_engine(poisoned("llama"), 60, max_num_tokens=64)
    samplings = [plain(4), plain(4, n=2), plain(4, beams=2)]
    runs = [engine.submit(words(20 * nth, 12), sampling) for nth, sampling in enumerate(samplings)]
    bad = engine.submit((*words(90, 5), POISON), plain(4))
    found = outcomes_of(engine)
    assert [type(outcome) for outcome in found] == [Unusable, Emitted, Split, Scored]
    assert [outcome.branch.run for outcome in found] == [bad, *runs]
    assert isinstance(found[2], Split) and len(found[2].tokens) == 2
    assert [type(outcome) for outcome in outcomes_of(engine)] == [Scored] * 2  # the others are plain rows now
    assert [len(tokens) for run in runs[:2] for tokens in tokens_of(run)] == [2] * 3
    finish(engine)
    assert bad.error is not None
    assert_exact("llama", runs)


def test_what_an_answer_begins_with_elsewhere() -> None:
    """Its first token, its first tokens, or the logits of its prompt."""
    engine = open_engine("llama", 20)
    (branch,) = engine.submit(words(0, 9), plain(4)).branches
    logits = torch.zeros(1, engine.vocabulary)
    logits[0, 7] = 1.0
    for first, tokens in ((7, [7]), ([7, 8], [7, 8]), (logits, [7])):
        (outcome,) = engine.advance.begin(branch, first)
        assert isinstance(outcome, Emitted) and outcome.tokens == tokens
    assert engine.advance.begin(branch, torch.full_like(logits, float("nan"))) == [Unusable(branch)]


def test_a_prompt_that_is_cut_has_no_outcome_yet() -> None:
    engine = open_engine("llama", 40, max_num_tokens=16)
    run = engine.submit(words(0, 40), plain(2))
    assert outcomes_of(engine) == [] and list(engine.scheduler.prompts) == run.branches
    finish(engine)
    assert_exact("llama", [run])


class Acts:
    """A listener that does something at its run's nth token, or when it is over."""

    def __init__(self, at: int, act: Callable[[], object]) -> None:
        self.at, self.act = at, act
        self.heard = self.overs = 0

    def hear(self, run: Run, branch: int, tokens: list[int]) -> bool:
        self.heard += 1
        if self.heard == self.at:
            self.act()
        return False

    def over(self, run: Run) -> None:
        self.overs += 1
        if not self.at:
            self.act()


@pytest.mark.parametrize("which", [0, 2])
def test_a_listener_cancels_another_run_of_the_same_step(which: int) -> None:
    """One whose outcome was applied before, or comes later: it ends there, and the others go on."""
    engine = open_engine("llama", 60)
    runs: list[Run] = []
    listener = Acts(3, lambda: engine.cancel(runs[which]))
    for nth in range(3):
        runs.append(engine.submit(words(30 * nth, 12), plain(8), listener=listener if nth == 1 else None))
    finish(engine)
    gone = runs.pop(which)
    assert gone.answers[0].finish == "cancelled" and len(gone.answers[0].tokens) == (3 if which == 0 else 2)
    assert_exact("llama", runs)


@pytest.mark.parametrize(("fields", "at"), [({}, 3), ({"n": 3}, 1), ({"n": 3}, 2), ({"beams": 2, "n": 2}, 1)])
def test_a_listener_cancels_its_own_run(fields: dict[str, int], at: int) -> None:
    """It hears no more of any answer, and once that it is over."""
    engine = open_engine("llama", 60)
    runs: list[Run] = []
    listener = Acts(at, lambda: engine.cancel(runs[0]))
    runs.append(engine.submit(words(0, 12), plain(8, **fields), listener=listener))
    other = engine.submit(words(30, 12), plain(8))
    finish(engine)
    assert (listener.heard, listener.overs) == (at, 1) and runs[0].error is None
    assert_exact("llama", [other])


def test_log_probabilities_stay_with_their_tokens() -> None:
    """Of several answers, and of drafts that were right: each token has its own."""
    engine = open_engine("llama", 60)
    wanted = plain(12, logprobs=1)
    kinds = [wanted, replace(wanted, n=3, temperature=2.0, seed=1), replace(wanted, drafts=4)]
    runs = [engine.submit(words(0, 4) * 6, sampling) for sampling in kinds]
    while step(engine) is not None:  # drafts of a step are judged in it
        assert not any(len(branch.drafts) for run in runs for branch in run.branches)
    for answer in [answer for run in runs for answer in run.answers]:
        assert [one.token for one in answer.logprobs] == answer.tokens
    assert engine.advance.num_accepted


def test_a_run_that_fails_takes_another_with_it_that_had_drafts() -> None:
    """What was guessed for that one is neither judged nor committed: its pages are gone."""
    engine = open_engine(poisoned("llama"), 60)
    good = engine.submit(words(0, 4) * 6, plain(60, drafts=4))
    others = engine.submit(words(60, 12), plain(6))
    step(engine)
    while not len(lookup(good.branches[0].tokens, 4, 2)):
        step(engine)
    engine.submit((*words(90, 5), POISON), plain(4), listener=Acts(0, lambda: engine.cancel(good)))
    before, drafts = list(good.answers[0].tokens), engine.scheduler.num_drafts
    last = good.times.last_token
    step(engine)
    assert engine.scheduler.num_drafts > drafts  # it had some in this very step
    assert good.answers[0].finish == "cancelled" and good.answers[0].tokens == before
    assert good.times.last_token == last
    finish(engine)
    assert_exact("llama", [others])
