"""`quire trace stats`: numbers that can be counted by hand, a sample beside all blocks, and remarks."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from quire.cli.main import main
from quire.cli.trace.trace_remarks import remarks
from quire.simulate.optimum.belady import Reuse
from quire.simulate.optimum.optimum_prompts import in_blocks
from quire.trace.read.lines import TraceError
from quire.trace.read.trace import read_trace
from quire.trace.stats import seen_blocks
from quire.trace.stats.histogram import Histogram
from quire.trace.stats.trace_stats import read_stats

from .logs import EPOCH, lines_of, made_of, of_tokens, sample_stats, write_log

DRAW = random.Random(5)


def fresh(many: int) -> list[int]:
    """Tokens that nothing else has."""
    return [DRAW.randrange(1 << 30) for _ in range(many)]


def kinds_of(path: Path) -> list[str]:
    return [one.kind for one in remarks(read_stats(path).to_json())]


def test_numbers_that_can_be_counted_by_hand(tmp_path: Path) -> None:
    system, talk = fresh(32), fresh(16)
    prompts = [system + fresh(10), system + talk, system + talk + fresh(30), system + talk, fresh(20), fresh(7)]
    path, _ = made_of(tmp_path, of_tokens(prompts), block_size=16)
    told = read_stats(path).to_json()
    assert told["arrivals"] == {
        "requests": 6, "seconds": 5.0, "per_second": 1.0, "burstiness": 0.0,
        "most_per_second": {"1_s": 1.0, "10_s": 0.6, "60_s": 0.1},
    }  # fmt: skip
    assert told["input_tokens"] == {"count": 6, "mean": 40.5, "least": 7, "p50": 42, "p90": 78, "p99": 78, "most": 78}
    reused = 0 + 32 + 48 + 48
    assert told["reuse"]["ceiling"] == round(reused / sum(map(len, prompts)), 5) and told["whole"] is True
    assert told["reuse"]["different_tokens"] == sum(map(len, prompts)) - reused
    assert told["reuse"]["share_within_seconds"]["1"] == 1.0
    shared = told["sharing"]
    assert [shared[f"requests_that_share{more}"] for more in ("", "_25%", "_50%", "_90%")] == [0.5, 0.5, 0.5, 0.1667]
    assert shared["repeated_prompts"] == round(1 / 6, 4) and shared["shorter_than_a_block"] == round(1 / 6, 4)
    assert shared["different_first_blocks"] == 3 and shared["most_common_first_block"] == round(4 / 6, 4)
    assert told["turns"]["requests"] == 2 and told["turns"]["seconds_between"]["most"] == 1  # 1 continues 0's 32, 2 1


def test_a_beginning_that_many_share_is_no_conversation(tmp_path: Path) -> None:
    system = fresh(32)
    prompts = [system, *(system + fresh(20) for _ in range(5))]
    told = read_stats(made_of(tmp_path, of_tokens(prompts))[0]).to_json()
    assert told["turns"]["requests"] == 1 and told["sharing"]["requests_that_share"] == round(5 / 6, 4)


def test_arrivals_come_in_bursts_or_evenly(tmp_path: Path) -> None:
    lines = of_tokens([[n] for n in range(40)])
    for n, line in enumerate(lines):
        line["time"] = EPOCH + n // 10 * 30 + n % 10 * 0.001
    told = read_stats(made_of(tmp_path, lines)[0]).to_json()["arrivals"]
    assert told["burstiness"] > 3 and told["most_per_second"] == {"1_s": 10.0, "10_s": 1.0, "60_s": 0.333}
    behind = [{**line, "timestamp": 1000 - n} for n, line in enumerate(lines_of(tmp_path / "trace.jsonl"))]
    assert read_stats(write_log(tmp_path / "t.jsonl", behind)).to_json()["arrivals"]["out_of_order"] == 39


def test_the_ceiling_is_that_of_the_offline_optimum_with_memory_for_everything() -> None:
    trace = read_trace("sample")
    best = Reuse(in_blocks(trace, 512), 512).most()
    told = sample_stats()["reuse"]
    sizes = {int(name): int(size) for ask in trace for name, size in zip(ask.parts, ask.sizes, strict=True)}
    assert told["different_tokens"] == sum(sizes.values()) and told["sampled_one_block_in"] == 1
    assert abs(told["ceiling"] - best.hit_rate) < 0.01  # it never reuses the last token of a prompt


@pytest.mark.parametrize("most", [4096, 256])
def test_a_sample_tells_the_same_ceiling(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Although its first block is in every request: 1 in 4 blocks, and 1 in 64."""
    whole = sample_stats()
    monkeypatch.setattr(seen_blocks, "MOST", most)
    stats = read_stats("sample")
    told = stats.to_json()
    assert told["reuse"]["sampled_one_block_in"] >= 8192 // most and len(stats.seen._places) <= most
    assert abs(told["reuse"]["ceiling"] - whole["reuse"]["ceiling"]) < (0.01 if most > 1000 else 0.05)
    assert abs(told["turns"]["requests"] / whole["turns"]["requests"] - 1) < 0.05


def test_quires_own_traces_share_by_parts(tmp_path: Path) -> None:
    own: dict[str, Any] = {"time_ms": 0, "prompt": [["system", 100], [None, 20]], "output_tokens": 5}
    lines = [own, own, {**own, "scope": {"lora": "a"}}, {**own, "prompt": [["other", 100], ["system", 100]]}]
    told = read_stats(write_log(tmp_path / "t.jsonl", lines)).to_json()
    assert told["reuse"]["different_tokens"] == 120 + 20 + 120 + 200 and told["block_size"] is None


def test_percentiles_are_right_to_a_per_cent() -> None:
    draw, histogram = random.Random(1), Histogram()
    values = sorted(int(draw.lognormvariate(7, 2)) for _ in range(5000))
    for value in values:
        histogram.add(value)
    for percent in (1, 50, 90, 99, 100):
        exact = values[max(0, -(-len(values) * percent // 100) - 1)]
        assert abs(histogram.percentile(percent) - exact) <= exact / 100
    assert len(histogram._counts) < 128 * 64 and Histogram().to_json() == {"count": 0}


# -- what a reader should know ---------------------------------------------------------------------------------------


def chats(many: int, system: list[int]) -> list[list[int]]:
    return [system + fresh(12) for _ in range(many)]


def test_reuse_takes_memory_and_coarse_ids_hide_some(tmp_path: Path) -> None:
    assert kinds_of(made_of(tmp_path, of_tokens(chats(60, fresh(400))))[0]) == ["memory"]
    assert kinds_of(made_of(tmp_path, of_tokens(chats(60, fresh(400))), block_size=128)[0]) == ["coarse_ids", "memory"]
    mooncake = [
        {"timestamp": n, "input_length": 700, "output_length": 5, "hash_ids": [2 * n, 2 * n + 1]} for n in range(30)
    ]
    assert kinds_of(write_log(tmp_path / "t.jsonl", mooncake)) == ["coarse_ids"]


def test_what_keeps_prompts_apart_is_left_to_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A time in front, a salt for each request, prompts shorter than a block: `stats` only counts."""
    stamped = [[*fresh(3), *range(300), *fresh(12)] for _ in range(60)]
    salted = [line | {"cache_salt": str(n)} for n, line in enumerate(of_tokens(chats(60, fresh(200))))]
    for lines, row, kinds in (
        (of_tokens(stamped), "60; the most common: 1.7 %", ["interrupted"]),  # its maker saw that
        (salted, "scopes                                  60", []),
        (of_tokens([fresh(9) for _ in range(30)]), "prompts shorter than a block", []),
    ):
        path, _ = made_of(tmp_path, lines)
        assert kinds_of(path) == kinds
        assert main(["trace", "stats", str(path)]) == 0
        told = capsys.readouterr().out
        assert "`quire findings`, of the log" in told and re.sub(" +", " ", row) in re.sub(" +", " ", told)


def test_a_trace_that_was_cut_says_so(tmp_path: Path) -> None:
    path, _ = made_of(tmp_path, of_tokens(chats(40, fresh(100))))
    write_log(path, lines_of(path)[:-1])
    assert kinds_of(path)[-1] == "cut_off" and read_stats(path).to_json()["whole"] is False
    assert sample_stats()["whole"] is None


HOSTILE: list[Any] = [
    3,
    {"requests": "many", "compared": []},
    {"lost": 10**400, "scopes": float("nan")},
]


@pytest.mark.parametrize("said", HOSTILE)
def test_whatever_a_trace_says_of_itself_does_no_harm(tmp_path: Path, said: Any) -> None:
    line = {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1], "quire": {"end": said}}
    assert kinds_of(write_log(tmp_path / "t.jsonl", [line] * 30)) == ["coarse_ids", "memory"]


def test_the_command_tells_in_words_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "stats", "sample"]) == 0
    told = capsys.readouterr().out
    assert (
        told.startswith("1,000 requests in 5.5 min: at most 21.6 % of")
        and "What keeps prompts from sharing more: `quire findings`" in told
        and "burstiness" in told
    )
    assert main(["trace", "stats", "sample", "--json", "--limit", "10"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["arrivals"]["requests"] == 10 and numbers["remarks"][0]["kind"] == "coarse_ids"
    table = tmp_path / "t.csv"
    table.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,4808,10\n")
    assert main(["trace", "make", str(table), "-o", str(tmp_path / "t.jsonl")]) == 0
    assert main(["trace", "stats", str(tmp_path / "t.jsonl")]) == 0
    told = capsys.readouterr().out
    assert "lengths only: how much could be reused cannot be known" in told and "ceiling" not in told
    for words in (["none.jsonl"], ["sample", "--limit", "0"], [str(table)]):
        assert main(["trace", "stats", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_bad_lines_are_told_or_counted(tmp_path: Path) -> None:
    path = write_log(tmp_path / "t.jsonl", [*lines_of(made_of(tmp_path, of_tokens([fresh(40)] * 3))[0]), "bad"])
    with pytest.raises(TraceError, match=r"t\.jsonl line 4: it is not JSON"):
        read_stats(path)
    assert read_stats(path, skip_bad=True).to_json()["skipped_lines"] == 1
    with pytest.raises(TraceError, match="it has no requests"):
        read_stats(write_log(path, ["bad"]), skip_bad=True)


def test_what_is_no_trace_is_told_the_command_that_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, text = tmp_path / "azure.csv", tmp_path / "engine.log"
    for head in ("\ufeffTIMESTAMP,ContextTokens,GeneratedTokens", '"Timestamp", "Request tokens", "Response tokens"'):
        table.write_text(f"{head}\n2023-11-16 18:01:51.16,4808,10\n", encoding="utf-8")
        for command in (["trace", "stats"], ["replay"], ["findings"]):
            assert main([*command, str(table)]) == 2
            told = capsys.readouterr().err
            assert "line 1: it is a table of lengths (CSV)" in told and "quire trace make" in told
    text.write_text("2025-01-01 10:00:00,123 INFO engine: request, prompt: hi\n")
    for command in (["replay"], ["findings"], ["trace", "make", "-o", str(tmp_path / "made")]):
        assert main([*command, str(text)]) == 2
        told = capsys.readouterr().err
        assert "JSON object" in told and "plain text" in told and "read" in told
    for line, source in (
        ({"session_id": "a", "hash_ids": [1], "input_length": 5}, "aiperf"), ({"requests": []}, "weka"),
        ({"session_id": "a", "input_tokens_total": 5}, "tracelab"),
    ):  # fmt: skip
        log = write_log(tmp_path / "sessions.jsonl", [line])
        for command in (["replay"], ["plan"], ["trace", "stats"], ["trace", "make", "-o", str(tmp_path / "made")]):
            assert main([*command, str(log)]) == 2
            assert f"quire trace make --from {source} " in capsys.readouterr().err
