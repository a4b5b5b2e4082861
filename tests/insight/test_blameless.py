"""Prompts that look as if they had a fault and have none: nobody is accused. Beside each, what the fault looks like."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire.cli.main import main
from quire.insight.findings.finding import span_text

Prompts = list[list[int]]


def words(seed: object, count: int) -> list[int]:
    dice = random.Random(repr(seed))
    return [dice.randrange(1000, 60_000) for _ in range(count)]


def edited(at_one_place: bool) -> Prompts:
    """An editor asks after each change of a line, and the file is in the prompt."""
    dice, prompts = random.Random(3), Prompts()
    for session in range(12):
        file = [words(("line", session, n), 14) for n in range(60)]
        for step in range(8):
            line = 5 if at_one_place else dice.randrange(5, 55)
            file[line] = words(("edit", session, step), 14)
            prompts.append([*words("rules", 200), *sum(file, []), *words(("asked", session, step), 12)])  # noqa: RUF017
    return prompts


def documents(history: bool) -> Prompts:
    """Pages of a book, two at a time, and what is asked of them. `history`: all of a talk but its oldest part."""
    pages = [words(("page", n), 200) for n in range(40)]
    asked = [words(("asked", n), 25) for n in range(40)]
    if history:
        talk = [[*page, *one] for page, one in zip(pages, asked, strict=True)]
        return [words("rules", 150) + sum(talk[max(n - 4, 0) : n], []) for n in range(1, 40)]  # noqa: RUF017
    return [[*words("rules", 150), *pages[n], *pages[n + 1], *asked[n]] for n in range(39)]


def kinds(tool: str, prompts: Prompts, path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = [{"time": 1763290000 + 7 * n, "prompt": one} for n, one in enumerate(prompts)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    main([tool, str(path), "--json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return [one["kind"] for one in told["findings" if tool == "findings" else "faults"]]


@pytest.mark.parametrize("tool", ["findings", "lint"])
@pytest.mark.parametrize(("make", "kind"), [(edited, "changed"), (documents, "cut")])
def test_only_the_fault_is_named(
    tool: str, make: Callable[[bool], Prompts], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kinds(tool, make(True), tmp_path / "fault.jsonl", capsys) == [kind]
    assert kinds(tool, make(False), tmp_path / "clean.jsonl", capsys) == []


def test_a_talk_before_a_manual_is_no_edit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another place each time, and nothing that stands before it: but what follows is one text in all prompts."""
    talks = [[sum((words((n, turn), 90) for turn in range(1 + m)), list[int]()) for m in range(8)] for n in range(12)]
    prompts = [talk + words("manual", 700) for session in talks for talk in session]
    assert kinds("findings", prompts, tmp_path / "log.jsonl", capsys) == ["changed"]


def test_a_talk_before_notes_of_its_own_is_no_edit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Something is put in, nothing is replaced."""
    prompts = Prompts()
    for n in range(12):
        notes = words(("notes", n), 300)
        for turn in range(8):
            talk = sum((words((n, one), 90) for one in range(turn)), list[int]())
            prompts.append([*words("rules", 100), *talk, *notes, 1000 + 8 * n + turn])
    assert kinds("findings", prompts, tmp_path / "log.jsonl", capsys) == ["changed"]


def test_a_time_behind_texts_of_other_lengths_is_no_edit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each session has a place of its own, and it stays there."""
    prompts = Prompts()
    for n in range(12):
        notes = words(("notes", n), 300)
        for turn in range(8):
            prompts.append([*words("rules", 100), *words(("who", n), 30 * n), *words((n, turn), 6), *notes, 5])
    assert kinds("findings", prompts, tmp_path / "log.jsonl", capsys) == ["changed"]


@pytest.mark.parametrize("ends", [5, 100_000])
def test_white_space_at_all_line_ends_is_no_time(ends: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No two prompts are equal for long, and the lines are. An id at two places is another each time."""
    dice, lines = random.Random(5), [words(("line", n), 12) for n in range(60)]
    prompts = Prompts()
    for n in range(500):
        drawn = [
            [*line, dice.randrange(ends)] if ends == 5 or number < 2 else line for number, line in enumerate(lines)
        ]
        prompts.append([*sum(drawn, list[int]()), *words(("asked", n), 40)])
    (kind,) = kinds("findings", prompts, path := tmp_path / "log.jsonl", capsys)
    assert kind == ("drift" if ends == 5 else "changed")
    main(["findings", str(path), "--json"])
    assert json.loads(capsys.readouterr().out)["findings"][0]["after"] > 0.5


def test_times_are_told_as_people_read_them() -> None:
    assert span_text(10.4, 90) == "from 10 to 90 s"
    assert span_text(1793621401, 1793623799) == "from 2026-11-02 12:10:01 to 12:49:59 UTC"
    assert span_text(1793621401, 1793723799).endswith("to 2026-11-03 16:36:39 UTC")
