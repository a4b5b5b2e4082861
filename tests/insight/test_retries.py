"""Prompts that are sent again: what that costs, which is no hit rate."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from quire.cli.main import main

EVERY, COUNT, LENGTH = 8, 200, 400
LATE = (4, 5, 6, 7, 9)  # seconds between a try and the next


def write_log(path: Path) -> list[list[int]]:
    """Requests of other prompts every 3 s; of each eighth one more try. The tries, by their ids."""
    draw = np.random.default_rng(1).integers
    prompts = [draw(10, 90_000, LENGTH).tolist() for _ in range(COUNT)]
    sent = [(3 * n, prompt) for n, prompt in enumerate(prompts)]
    tries = [(3 * n + LATE[n // EVERY % 5], prompts[n]) for n in range(0, COUNT, EVERY)]
    lines = sorted(sent + tries, key=lambda one: one[0])
    path.write_text("".join(json.dumps({"time": 1763290000 + at, "prompt": ids}) + "\n" for at, ids in lines))
    return [prompt for _, prompt in tries]


def finding_of(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[dict[str, Any], list[str]]:
    """The one of retries, and the kinds of all in order."""
    assert main(["findings", str(path), "--json", *options]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    (one,) = [one for one in found if one["kind"] == "retries"]
    return one, [one["kind"] for one in found]


def test_retries_have_no_hit_rate_and_say_what_they_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tries = write_log(path := tmp_path / "log.jsonl")
    one, _ = finding_of(path, capsys)
    assert (one["before"], one["after"]) == (None, None), "0.0 would be read as a hit rate"
    assert one["prompt_tokens_saved"] == sum(map(len, tries)) and one["computed_tokens_saved"] == 0
    middle = median(LATE[n % 5] for n in range(len(tries)))
    assert (
        one["seconds_between"] == middle and f"half of them at most {middle:.3g} s after the try before" in one["text"]
    )
    assert "the cache still had these prompts" in one["text"]
    page = tmp_path / "page.html"
    assert main(["findings", str(path), "--html", str(page)]) == 0
    for text in (capsys.readouterr().out, re.sub("<.*?>", "", page.read_text(encoding="utf-8"))):
        assert "11.1 % of the requests, with their answers; their prompts are cached." in text
        assert "0.0 % -> 0.0 %" not in text


def test_retries_of_a_small_cache_are_computed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It holds one prompt and a half, and another comes before each try."""
    tries = write_log(path := tmp_path / "log.jsonl")
    one, kinds = finding_of(path, capsys, "--memory", str(3 * LENGTH // 2))
    assert one["computed_tokens_saved"] == sum(map(len, tries)) and "computed again" in one["text"]
    assert kinds.index("retries") < kinds.index("memory"), "they save the computing, and the answers too"
    large, _ = finding_of(path, capsys, "--memory", str(6 * LENGTH))
    assert large["computed_tokens_saved"] < one["computed_tokens_saved"] / 4
    assert main(["findings", str(path), "--memory", str(3 * LENGTH // 2)]) == 0
    assert "11.1 % of the requests, with their answers, and 11.1 % of all prompt tokens need not be computed." in (
        capsys.readouterr().out
    )
