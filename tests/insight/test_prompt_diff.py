"""quire diff: what a change of how prompts are written costs, beside counting by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from quire.cli.main import main

WORDS = np.random.default_rng(3)
RULES = WORDS.integers(0, 1000, 300).tolist()
TALK = [WORDS.integers(0, 1000, 50).tolist() for _ in range(6)]


def write(path: Path, prompts: list[list[int]]) -> str:
    path.write_text(
        "".join(json.dumps({"time": 1763290000 + 1000 * n, "prompt": one}) + "\n" for n, one in enumerate(prompts))
    )
    return str(path)


def turns(front: list[list[int]], rules: list[int] = RULES) -> list[list[int]]:
    return [front[n] + rules + [word for turn in TALK[: n + 1] for word in turn] for n in range(6)]


def shared(prompts: list[list[int]], size: int = 16) -> list[int]:
    """Leading whole blocks that any earlier prompt has, in tokens, by looking."""
    found = []
    for number, one in enumerate(prompts):
        common = [sum(np.cumprod([a == b for a, b in zip(one, two, strict=False)])) for two in prompts[:number]]
        found.append(max(common, default=0) // size * size)
    return found


def run(folder: Path, old: list[list[int]], new: list[list[int]], *more: str) -> int:
    return main(["diff", write(folder / "old.jsonl", old), write(folder / "new.jsonl", new), *more])


def test_a_line_that_rotates_in_front_loses_every_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = turns([[7, 7, 7]] * 6), turns([[7, 7, n] for n in range(6)])
    assert run(tmp_path, old, new, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    lost = sum(shared(old))
    assert shared(new) == [0] * 6 and lost > 0
    assert (told["lost_tokens"], told["gained_tokens"], told["changed_at"], told["changed"]) == (lost, 0, 2, 6)
    (loss,) = told["losses"]
    assert (loss["application"], loss["token"], loss["requests"]) == (None, 2, 5)
    assert (loss["tokens"], loss["tokens_per_request"]) == (lost, round(lost / 5))
    one = loss["example"]
    assert (one["line"], one["old_line"], one["token"]) == (2, 2, 2) and one["old_token"] == 3 + 300 + 50
    assert one["blocks"] == [0, shared(old)[1] // 16] and loss["line"] == 2 and loss["message"] is None
    assert loss["tokens_per_day"] == told["lost_tokens_per_day"]
    assert told["lost_tokens_per_day"] == round(lost / 6000 * 86400)  # 6 requests, one in 1,000 seconds


def test_places_beside_each_other_are_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An id of digits: some begin as another did, by one token or two. Another place is another loss."""
    ids = [[1, 2, 3], [1, 2, 4], [1, 5, 3], [2, 2, 2], [1, 2, 5], [3, 3, 3]]
    old, new = turns([[9, 9, 9]] * 6), turns([[9, *one] for one in ids])
    assert run(tmp_path, old, new, "--json") == 1
    (loss,) = json.loads(capsys.readouterr().out)["losses"]
    assert (loss["token"], loss["last_token"], loss["requests"], loss["line"]) == (1, 3, 5, 2)
    assert loss["tokens"] == sum(shared(old)) and loss["example"]["token"] == 3
    assert run(tmp_path, old, new) == 1
    assert "- sharing ends at token 1 to 3 in 5 requests: " in capsys.readouterr().out


def test_people_read_where_and_how_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, turns([[7]] * 6), turns([[n] for n in range(6)])) == 1
    text = capsys.readouterr().out
    assert "sharing ends at token 0 in 5 requests" in text and "tokens a day are computed again" in text


def test_a_change_that_is_the_same_each_time_costs_nothing_for_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = [*RULES[:214], 5, *RULES[214:]]
    assert run(tmp_path, turns([[7]] * 6), turns([[7]] * 6, changed), "--allow", "16") == 0
    assert "6 of them written in another way" in capsys.readouterr().out


def test_what_is_mended_is_gained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = turns([[n] for n in range(6)]), turns([[]] * 6)
    assert run(tmp_path, old, new, "--json") == 0
    assert json.loads(capsys.readouterr().out)["gained_tokens"] == sum(shared(new))


def test_a_salt_for_each_request_shares_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path / "old.jsonl", turns([[7]] * 6))
    lines = [json.loads(line) | {"cache_salt": str(n)} for n, line in enumerate(Path(old).read_text().splitlines())]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["diff", old, str(tmp_path / "new.jsonl"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["changed"] == 0 and told["lost_tokens"] == sum(shared(turns([[7]] * 6)))


def test_other_bad_lines_of_one_log_are_no_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As many are left of both, and each would stand beside another."""
    old, new = (write(tmp_path / f"{name}.jsonl", turns([[7]] * 6)) for name in ("old", "new"))
    for path, bad in ((old, 2), (new, 4)):
        lines = Path(path).read_text().splitlines()
        Path(path).write_text("\n".join("oh" if number == bad else line for number, line in enumerate(lines)) + "\n")
    assert main(["diff", old, new, "--skip-bad"]) == 2
    assert "remove those lines from both" in capsys.readouterr().err
    assert main(["diff", old, old, "--skip-bad"]) == 0
    assert capsys.readouterr().err.count("skipped: old.jsonl line 3: it is not JSON") == 2


def test_logs_of_other_requests_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, turns([[7]] * 6), turns([[7]] * 6)[:4]) == 2
    assert "has 6 requests" in capsys.readouterr().err
