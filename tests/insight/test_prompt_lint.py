"""quire lint: a few prompts, each fault at its place, with the tokens that counting by hand says are lost."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from quire.cli.main import main
from quire.insight.prompt_changes.prompt_lint import lint_prompts
from quire.trace.prompts.logged_prompts import LoggedPrompt
from tests.effort import cases

QUIET = settings(
    deadline=None, database=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


def words(seed: object, count: int) -> list[int]:
    dice = random.Random(repr(seed))
    return [dice.randrange(1000, 60_000) for _ in range(count)]


def turns(front: list[list[int]], rules: list[int]) -> list[list[int]]:
    """A coding agent's: rules, then turn after turn of one session."""
    talk = [words(("turn", n), 60) for n in range(len(front))]
    return [one + rules + sum(talk[: n + 1], []) for n, one in enumerate(front)]  # noqa: RUF017


def write(path: Path, prompts: list[list[int]], **more: Any) -> str:
    path.write_text("".join(json.dumps({"prompt": one, **more}) + "\n" for one in prompts))
    return str(path)


def lint(path: str, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    code = main(["lint", path, "--json", *more])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, told


RULES = words("rules", 400)


def test_a_first_line_that_rotates_loses_every_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in coding agents that wrote a hash of the request there: all but the hash would be found again."""
    log = write(tmp_path / "log.jsonl", turns([[7, 7, *words(("hash", n), 6)] for n in range(8)], RULES))
    code, told = lint(log, capsys)
    (one,) = told["faults"]
    assert code == 1 and (one["kind"], one["token"], one["tokens"]) == ("changed", 2, 6)
    by_hand = sum(400 + 60 * n for n in range(1, 8)) / 8  # of each turn but the first, all that stood before
    assert one["lost_tokens_per_request"] == pytest.approx(by_hand, rel=0.05)
    assert one["lost_tokens_per_day"] is None and told["reuse"] < 0.02, "there are no times, and nothing is shared"
    assert main(["lint", log]) == 1
    text = capsys.readouterr().out
    assert "1. What stands at token 2 is another each time (6 tokens" in text and "tokens per request are lost" in text
    assert lint(log, capsys, "--allow", str(by_hand + 50))[0] == 0


def test_tokens_a_day_are_told_at_the_recorded_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = turns([[n] for n in range(8)], RULES)
    lines = [{"prompt": one, "time": 1_790_000_000 + 30 * n} for n, one in enumerate(prompts)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, told = lint(str(tmp_path / "log.jsonl"), capsys)
    (one,) = told["faults"]
    assert one["lost_tokens_per_day"] == pytest.approx(one["lost_tokens"] / 240 * 86400, rel=0.001)


def test_two_prompts_are_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = [[*RULES[:50], n, *RULES[50:], *words(n, 20)] for n in (1, 2)]
    code, told = lint(write(tmp_path / "log.jsonl", pair), capsys)
    assert code == 1 and [one["token"] for one in told["faults"]] == [50]
    assert main(["lint", write(tmp_path / "one.jsonl", pair[:1])]) == 2
    assert "nothing to compare it with; give at least two" in capsys.readouterr().err


def test_a_salt_for_each_prompt_is_a_fault_and_one_for_all_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = [RULES + words(n, 30) for n in range(5)]
    lines = [{"prompt": one, "cache_salt": f"request {n}"} for n, one in enumerate(prompts)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, told = lint(str(tmp_path / "log.jsonl"), capsys)
    assert code == 1 and [one["kind"] for one in told["faults"]] == ["salt"]
    assert lint(write(tmp_path / "same.jsonl", prompts, cache_salt="tenant"), capsys)[0] == 0


@st.composite
def clean(draw: st.DrawFn) -> list[list[int]]:
    """A few prompts as they should be: rules of one or two applications, then talks, questions or documents."""
    seed = draw(st.integers(0, 1 << 30))
    prompts = []
    for app in range(draw(st.integers(1, 2))):
        rules = words((seed, app), draw(st.integers(40, 500)))
        kind = draw(st.sampled_from(["talk", "questions", "document"]))
        talk: list[int] = []
        for number in range(draw(st.integers(2, 9))):
            own = words((seed, app, number), draw(st.integers(5, 150)))
            talk = talk + own if kind == "talk" else own
            document = words((seed, app, "document", draw(st.integers(0, 2))), 200) if kind == "document" else []
            prompts.append(rules + document + talk)
    return draw(st.permutations(prompts)) if draw(st.booleans()) else prompts


@settings(QUIET, max_examples=cases(25, 400))
@given(clean())
def test_clean_prompts_have_no_fault(tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int]]) -> None:
    assert main(["lint", write(tmp_path_factory.mktemp("clean") / "log.jsonl", prompts)]) == 0


@settings(QUIET, max_examples=cases(25, 400))
@given(st.integers(0, 1 << 30), st.integers(2, 7), st.integers(0, 200), st.integers(1, 9), st.integers(120, 400))
def test_what_changes_in_the_rules_is_named_at_its_place(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, place: int, width: int, behind: int
) -> None:
    """Two prompts or more whose rules differ in a few tokens: the rest of the rules would be found again."""
    rules = words((seed, "rules"), place + behind)
    prompts = [
        [*rules[:place], *words((seed, n, "stamp"), width), *rules[place:], *words((seed, n), 40)] for n in range(count)
    ]
    found = lint_prompts(
        [LoggedPrompt(np.array(one, np.int32), float(n), line=n + 1) for n, one in enumerate(prompts)], False,
        lambda *_: None,
    )  # fmt: skip
    (one,) = found.faults
    assert (one.finding.kind, one.finding.token, one.finding.facts["tokens"]) == ("changed", place, width)
    assert one.requests == count and one.tokens == pytest.approx((count - 1) * behind, rel=0.2)
