"""Traces of hash ids: text that was here behind something else is called interrupted, by the marks of their maker."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import Cache, CacheConfig, Miss, Receipt, Request, TierConfig
from quire.cli.main import main
from quire.core.records.reports.receipt import Cause, check_receipt
from quire.simulate.play.misses import with_mark
from quire.trace.record.trace_writer import Interruption

from ..trace.logs import made_of, of_tokens

HEAD, STAMP, RULES, QUESTION = 40, 6, 900, 20


def stamped(count: int) -> list[list[int]]:
    """Prompts that begin alike, then a time, then the same rules, then a question."""
    draw = np.random.default_rng(7).integers
    head, rules = draw(0, 90_000, HEAD).tolist(), draw(0, 90_000, RULES).tolist()
    return [head + draw(0, 90_000, STAMP).tolist() + rules + draw(0, 90_000, QUESTION).tolist() for _ in range(count)]


def recorded(path: Path, prompts: list[list[int]]) -> Path:
    """By a cache that serves them."""
    cache = Cache(CacheConfig((TierConfig("device", 4096),), block_size=16), record=path)
    for ids in prompts:
        batch = cache.add_sequence_batch([Request("r", np.array(ids, np.int32))])
        cache.finish(batch.plan)
        cache.commit(batch.sequences)
        cache.release(batch.sequences[0])
    assert cache.recorder is not None
    cache.recorder.close()
    return path


def played(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["replay", str(path), "--json", *options]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.parametrize("by", ["recorder", "make"])
def test_a_replay_calls_interrupted_what_its_maker_had_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    """The fault that a stranger's log had: 97.9 % of it was called new text."""
    prompts = stamped(30)
    path = recorded(tmp_path / "t.jsonl", prompts) if by == "recorder" else made_of(tmp_path, of_tokens(prompts))[0]
    result = played(path, capsys)
    causes, at = result["misses"]["causes"], result["misses"]["interrupted_at"]
    assert sum(causes.values()) == result["prompt_tokens"] - result["tokens_saved"]
    assert {name: sum(row) for name, row in result["series"]["computed_by_cause"].items()} == causes
    assert 0.9 * RULES * 29 < causes["interrupted"] <= RULES * 29
    assert HEAD - 24 <= at["token"] <= HEAD and HEAD + STAMP <= at["again"] <= HEAD + 70
    assert at["requests"] >= 28 and at["of"] == 30
    page = tmp_path / "page.html"
    assert main(["replay", str(path)]) == 0
    screen = capsys.readouterr().out
    assert main(["replay", str(path), "--explain", "9", "--html", str(page)]) == 0
    assert "interrupted: equal again at" in capsys.readouterr().out, "the receipt of line 9, too"
    share = f"{100 * causes['interrupted'] / result['prompt_tokens']:.1f} %"
    for text in (screen, re.sub("<[^>]*>", "", page.read_text(encoding="utf-8"))):
        words = " ".join(text.split())
        assert f"interrupted (here before, behind other text) {share}" in words
        assert f"At least {share} stood in earlier prompts word for word" in words
        assert f"part near token {at['token']}" in words


def test_all_pieces_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two times in each prompt: what stands between them, and behind the second; and pieces in another order."""
    draw = np.random.default_rng(2)

    def words(count: int) -> list[int]:
        return [int(word) for word in draw.integers(0, 90_000, count)]

    one, two, three, tools = words(100), words(400), words(500), [words(90) for _ in range(6)]
    asked = [one + words(5) + two + words(5) + three for _ in range(20)]
    shuffled = [one + [word for at in draw.permutation(6) for word in tools[at]] for _ in range(20)]
    for name, prompts, least, most in (("times", asked, 850, 900), ("orders", shuffled, 200, 540)):
        (folder := tmp_path / name).mkdir()
        path = made_of(folder, of_tokens(prompts))[0]
        result = played(path, capsys)
        assert 19 * least < result["misses"]["causes"]["interrupted"] <= 19 * most
        for command in (["replay"], ["trace", "stats"]):
            assert main([*command, str(path)]) == 0
            assert "a time, a date or an id, or pieces in another order?" in capsys.readouterr().out
        assert main(["trace", "stats", str(path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["interrupted"]["tokens"] >= 19 * least


def test_stats_say_it_and_are_silent_of_clean_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / "t.jsonl", stamped(30))
    assert main(["trace", "stats", str(path), "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    found = numbers["interrupted"]
    assert found["requests"] == 29 and 0.9 * RULES * 29 < found["tokens"] <= RULES * 29
    assert found["most_at"]["requests"] >= 28 and HEAD - 24 <= found["most_at"]["token"] <= HEAD
    remark = next(one["text"] for one in numbers["remarks"] if one["kind"] == "interrupted")
    assert f"At least {100 * found['share']:.1f} % of the prompt tokens" in remark
    assert main(["trace", "stats", str(path)]) == 0
    assert "interrupted: here before, behind other text" in capsys.readouterr().out
    clean = recorded(tmp_path / "c.jsonl", [prompt[:HEAD] for prompt in stamped(5)])
    assert main(["trace", "stats", str(clean), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["interrupted"] is None
    result = played(clean, capsys)
    assert "interrupted" not in result["misses"]["causes"] and "marked_interrupted" not in result["misses"]


def test_marks_move_new_tokens_and_no_others() -> None:
    """Random receipts and marks, each token by itself."""
    draw = random.Random(5)
    names: tuple[Cause, ...] = ("new", "evicted", "short", "new", "forgotten")
    for _ in range(500):
        edges = sorted(draw.sample(range(1, 200), 6))
        misses = tuple(Miss(draw.choice(names), start, stop) for start, stop in itertools.pairwise(edges))
        receipt = Receipt(edges[-1], edges[0], {}, misses)
        more = tuple(draw.randrange(1, 40) for _ in range(2 * draw.randrange(4)))
        mark = Interruption(draw.randrange(150), draw.randrange(60), draw.randrange(1, 60), more)
        found = with_mark(receipt, mark)
        check_receipt(found)
        again = {token for start, stop in mark.pieces for token in range(start, stop)}
        assert sum(mark.numbers) == mark.pieces[-1][1] and len(mark.pieces) == 1 + len(more) // 2
        wanted = ["interrupted" if cause == "new" and at in again else cause for at, cause in causes_of(receipt)]
        assert [cause for _, cause in causes_of(found)] == wanted, (receipt, mark)
        assert all(0 <= miss.parted <= miss.start for miss in found.misses)


def causes_of(receipt: Receipt) -> list[tuple[int, Cause]]:
    return [(at, miss.cause) for miss in receipt.misses for at in range(miss.start, miss.stop)]
