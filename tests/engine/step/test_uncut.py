"""Budgets to the token and spans that are not cut, on real models: steps as told, answers as ever."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import InputError, Span  # noqa: E402
from quire.engine import TokenPrompt  # noqa: E402

from ..families import NAMES  # noqa: E402
from ..steps import assert_exact, open_engine, plain, step, words  # noqa: E402


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", [1, 3, 13])
def test_a_budget_is_used_to_the_token(name: str, budget: int) -> None:
    """Blocks of 8, a budget below one or between two: every step but the last of a prompt computes all of it."""
    engine = open_engine(name, 24, max_num_tokens=budget, max_sequences=1, snapshot_every=64)
    run = engine.submit(words(3, 30), plain(3))
    steps = []
    while not run.done:
        report = step(engine)
        assert report is not None
        steps.append(report.num_tokens)
    assert steps == [budget] * (30 // budget) + [30 % budget] * (30 % budget > 0) + [1, 1]
    assert_exact(name, [run])
    engine.close()


@pytest.mark.parametrize("name", NAMES)
def test_no_step_ends_inside_an_uncut_span(name: str) -> None:
    """Others decode, guess and fill the steps; the span goes in whole, and nobody waits for ever."""
    engine = open_engine(name, 40, max_num_tokens=20, max_sequences=4, snapshot_every=16)
    drafts = 0 if name == "qwen3_next" else 4
    others = [engine.submit(words(7 * n, 19 + n), plain(20, drafts=drafts)) for n in range(3)]
    spans = [Span(5, 22), Span(30, 37)]
    run = engine.submit(TokenPrompt(words(100, 50), spans), plain(4))
    ends = set[int]()
    while engine.runs:
        assert step(engine) is not None
        branch = next(iter(run.branches), None)
        if branch is not None and branch.sequence is not None:
            ends.add(branch.sequence.ran)
    inside = [end for end in ends for span in spans if span.start < end < span.end]
    assert not inside and min(ends) <= 5 and len(ends) > 4
    assert_exact(name, [*others, run])
    engine.close()


def test_a_span_that_may_never_have_room_is_refused() -> None:
    engine = open_engine("llama", 24, max_num_tokens=20, max_sequences=4)
    assert engine.config.longest_uncut == 17
    with pytest.raises(InputError, match="an uncut span of 18 tokens: a step has room for 17"):
        engine.submit(TokenPrompt(words(0, 30), [Span(2, 20)]))
    with pytest.raises(InputError, match="it has 30 tokens"):
        engine.submit(TokenPrompt(words(0, 30), [Span(29, 31)]))
    assert not engine.runs
    run = engine.submit(TokenPrompt(words(0, 30), [Span(2, 19)]), plain(2))
    while not run.done:
        step(engine)
    assert_exact("llama", [run])
    engine.close()
