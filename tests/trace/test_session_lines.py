"""Sessions as lines of files: TraceLab's rounds and AIPerf's turns become a trace; what prompts share, and when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.cli.main import main
from quire.trace.logs import aiperf, session_lines, sessions
from quire.trace.read.trace import Trace, read_trace, shared

Fields = dict[str, Any]


def event(kind: str, second: float) -> Fields:
    return {"event_type": kind, "timestamp": f"2026-06-01T05:40:{second:06.3f}Z", "source": "x"}


def a_round(session: str, second: float, total: int, prefix: int | None, *outputs: str, **more: Any) -> Fields:
    """One answer as TraceLab tells it: a question and a late result come in, then its outputs."""
    events = [event("tool_result", second), event("user_message", 0.5)]  # it waited for the last of them
    return {
        "provider": "claude", "session_id": session, "round_index": 0, "model": "m", "input_tokens_total": total,
        "prefix_tokens": prefix, "newly_append_tokens": total - (prefix or 0), "output_tokens": 9,
        "timing_events": [*events, *(event(kind, second + 5) for kind in outputs)], "tools": [], **more,
    }  # fmt: skip


def file_of(path: Path, *lines: Any) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def made(source: str, path: str, *words: str) -> Trace:
    out = Path(path).with_name("out.jsonl")
    assert main(["trace", "make", "--from", source, path, "-o", str(out), *words]) == 0
    return read_trace(out)


def rows(trace: Trace) -> list[tuple[float, Any, int, str | None]]:
    return [(round(one.time, 3), one.session, one.length, one.finish) for one in trace]


def test_rounds_of_tracelab_share_what_their_cache_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file_of(
        tmp_path / "rounds.jsonl",
        a_round("b", 10, 300, 250, "text"),  # what it found was another session's, and that is not known
        a_round("a", 3, 200, None, "reasoning", "tool_call"),
        a_round("a", 9, 260, 199, "text", "tool_call"),
        a_round("a", 30, 100, 80, "text"),  # less than before: the talk was shortened
        a_round("a", 50, 400, 400, "reasoning"),
    )
    trace = made("tracelab", path)
    assert rows(trace) == [
        (0.0, 0, 200, "tool_calls"), (6.0, 0, 260, "tool_calls"), (7.0, 1, 300, "stop"), (27.0, 0, 100, "stop"),
        (47.0, 0, 400, None),
    ]  # fmt: skip
    first, second, other, shorter, last = trace
    assert trace.unit == 64 and [one.output for one in trace] == [9] * 5
    assert shared(first, second) == 192 and shared(second, shorter) == 64, "whole blocks of what was found"
    assert shared(shorter, last) == 64 == shared(second, last), "no more than the prompt before had"
    assert shared(first, other) == 0
    told = capsys.readouterr().err
    assert "times: as they were recorded" in told and "what the provider's cache reported" in told
    fine = made("tracelab", path, "--block-size", "8")
    assert shared(fine[0], fine[1]) == 192


def test_a_rate_replaces_when_sessions_began(tmp_path: Path) -> None:
    path = file_of(tmp_path / "r", *(a_round(name, 5 + nth, 64, 0) for nth, name in enumerate("aabb")))
    assert [one.time for one in made("tracelab", path)] == [0, 1, 2, 3]
    again = made("tracelab", path, "--rate", "1/h", "--seed", "3")
    assert again[2].time > 60 and again[3].time == again[2].time + 1


def turn(session: str | None, length: int, output: int = 4, **more: Any) -> Fields:
    named = {} if session is None else {"session_id": session}
    return {**named, "input_length": length, "output_length": output, **more}


def test_turns_of_aiperf_stand_behind_their_talk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file_of(
        tmp_path / "turns.jsonl",
        turn("a", 1024, 100, timestamp=2000, hash_ids=[1, 2]),
        turn("b", 700, timestamp=1000, hash_ids=[1, 3]),
        turn("a", 600, 8, delay=1500, hash_ids=[3, 9]),
        turn("a", 10, 0, delay=500),
        turn(None, 30, timestamp=4000),
    )
    trace = made("aiperf", path, "--block-size", "4")
    assert rows(trace) == [(0.0, 0, 700, None), (1.0, 1, 1024, None), (2.5, 1, 1724, None), (3.0, 1, 1742, None),
                           (3.0, 2, 30, None)]  # fmt: skip
    other, first, second, third, alone = trace
    assert shared(first, second) == 1024 and shared(second, third) == 1724, "the talk, its answers, what is new"
    assert shared(other, first) == 512, "an id is the same text in every session"
    assert shared(alone, third) == 0
    assert "a delay counts from when the turn before it came" in capsys.readouterr().err
    assert made("aiperf", path).unit == 512


def test_modes_of_aiperf_say_what_a_line_has(tmp_path: Path) -> None:
    for mode, lengths in (("deltas_with_responses", [100, 150]), ("message_array_with_responses", [100, 50])):
        lines = [turn("a", 100, 20, timestamp=0, context_mode=mode), turn("a", 50, context_mode=mode, delay=1)]
        assert [one.length for one in made("aiperf", file_of(tmp_path / "t", *lines))] == lengths


@pytest.mark.parametrize(
    ("source", "line", "fact"),
    [
        ("tracelab", "[1]", "it is [1]"), ("tracelab", "{", "it is not JSON"),
        ("tracelab", a_round("", 1, 5, 0), "session_id is"),
        ("tracelab", a_round("a", 1, 0, 0), "input_tokens_total is 0"),
        ("tracelab", a_round("a", 1, 5, 6), "prefix_tokens is 6"),
        ("tracelab", {**a_round("a", 1, 5, 0), "session_id": None}, "it has no session_id"),
        ("tracelab", a_round("a", 1, 5, 0, timing_events=None), "timing_events is None"),
        ("tracelab", a_round("a", 1, 5, 0, timing_events=[1, {}]), "timing_events has no times"),
        ("tracelab", a_round("a", 1, 5, 0, timing_events=[{"timestamp": "noon"}]), "a timestamp is 'noon'"),
        ("tracelab", a_round("a", 1, 5, 0, timing_events=[{"timestamp": 5, "event_type": []}]), "a timestamp is 5"),
        ("aiperf", {"session_id": "a", "messages": []}, "its prompt is text, in 'messages'; leave out --from"),
        ("aiperf", turn("a", 0), "input_length is 0"), ("aiperf", turn("a", 5, True), "output_length is True"),
        ("aiperf", turn("a", 5, delay=-1), "delay is -1"), ("aiperf", turn("a", 5, timestamp="1"), "timestamp is '1'"),
        ("aiperf", turn("a", 5, context_mode="x"), "context_mode is 'x'"),
        ("aiperf", turn("a", 513, hash_ids=[1]), "hash_ids has 1 blocks of 512"),
        ("aiperf", turn("a", 5, hash_ids=[-1]), "hash_ids has -1"),
        ("aiperf", turn("a", 5, hash_ids=7), "hash_ids is 7"),
        ("aiperf", turn("a", 1 << 24), "longer than"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_named_and_may_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, line: Any, fact: str
) -> None:
    good = a_round("a", 2, 70, 0) if source == "tracelab" else turn("a", 70, timestamp=1)
    path, out = file_of(tmp_path / "t.jsonl", good, line), tmp_path / "o"
    words = ["trace", "make", "--from", source, path, "-o", str(out)]
    assert main(words) == 2 and not out.exists()
    told = capsys.readouterr().err
    assert "t.jsonl line 2: " in told and fact in told
    assert main([*words, "--skip-bad"]) == 0 and len(read_trace(out)) == 1
    assert "1 requests, from recorded sessions; 1 lines skipped" in capsys.readouterr().err


def test_turns_without_times_need_a_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file_of(tmp_path / "t.jsonl", turn("a", 5), turn("b", 5, timestamp=3))
    assert main(["trace", "make", "--from", "aiperf", path, "-o", str(tmp_path / "o")]) == 2
    assert "pass --rate, such as 30/h" in capsys.readouterr().err
    assert len(made("aiperf", path, "--rate", "30/h")) == 2
    for lines in ([], [""]):
        assert main(["trace", "make", "--from", "aiperf", file_of(tmp_path / "e", *lines), "-o", "-"]) == 2
    assert "there are no requests" in capsys.readouterr().err


# -- few lines may say very much -------------------------------------------------------------------------------------

MOST = 1 << 24  # tokens of a prompt


@pytest.mark.parametrize(
    ("source", "lines", "fact"),
    [
        ("tracelab", [a_round("a", 1, MOST, 0)], "its prompt has 16,777,216 blocks, and 199,728 fit into a line"),
        ("aiperf", [turn("a", MOST, 0, timestamp=0)], "its prompt has 16,777,216 blocks"),
        ("tracelab", [a_round("a", 1, 400, 0)] * 3, "the prompts of its session have more than 1,000 blocks"),
        ("aiperf", [turn("a", 400, 0, timestamp=0)] * 2, "the prompts of its session have more than 1,000 blocks"),
        ("tracelab", [a_round("a", 1, 5, 0)] * 4, "its session has 3 requests before it"),
        ("aiperf", [turn("a", 5, 0, timestamp=0)] * 4, "its session has 3 requests before it"),
        ("aiperf", [turn(None, 512 * 9, 0, timestamp=0, hash_ids=[*range(9)])] * 2, "the lines before it have 9 hash"),
    ],
)  # fmt: skip
def test_a_line_that_says_more_than_a_trace_can_hold_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, source: str,
    lines: list[Fields], fact: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(session_lines, "MOST_IDS", 1000)
    monkeypatch.setattr(session_lines, "MOST_REQUESTS", 3)
    monkeypatch.setattr(aiperf, "MOST_IDS", 17)
    path, size = file_of(tmp_path / "t.jsonl", *lines), "1" if "hash" not in fact else "512"
    words = ["trace", "make", "--from", source, path, "-o", str(tmp_path / "o"), "--block-size", size]
    assert main(words) == 2
    told = capsys.readouterr().err
    assert f"t.jsonl line {len(lines)}: " in told and fact in told
    assert main([*words, "--skip-bad"]) == (2 if len(lines) == 1 else 0)


def test_what_sessions_keep_in_memory_is_bounded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [a_round(name, second, 640, 0) for name in "abc" for second in (1, 9)]
    talks = [turn("a", 1024, timestamp=0, hash_ids=[1, 2]), turn("b", 1024, timestamp=0, hash_ids=[1, 3])]
    for source, lines, module, name, most, fact in (
        ("tracelab", many, sessions, "MOST_WAITING", 39, "that are open at once have more than 39 hash ids"),
        ("tracelab", many, sessions, "MOST_KNOWN", 19, "they have more than 19 different blocks"),
        ("aiperf", talks, aiperf, "MOST_NAMES", 2, "their hash ids stand for more than 2 blocks"),
    ):
        path, out = file_of(tmp_path / "t.jsonl", *lines), tmp_path / "o"
        with monkeypatch.context() as patch:
            patch.setattr(module, name, most)
            assert main(["trace", "make", "--from", source, path, "-o", str(out)]) == 2 and not out.exists()
            assert fact in capsys.readouterr().err
            patch.setattr(module, name, 60)
            assert len(made(source, path)) == len(lines)
        out.unlink(missing_ok=True)


def test_a_turn_is_looked_at_once_however_many_come_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, number = [0], aiperf.IdBlocks.number

    def counted(names: aiperf.IdBlocks, parts: list[tuple[int, int, int]]) -> int:
        asked[0] += 1
        return number(names, parts)

    monkeypatch.setattr(aiperf.IdBlocks, "number", counted)
    trace = made("aiperf", file_of(tmp_path / "t.jsonl", *(turn("a", 512, 0, timestamp=nth) for nth in range(300))))
    assert asked == [300] and trace[299].length == 300 * 512 and shared(trace[298], trace[299]) == 299 * 512


@pytest.mark.parametrize(
    ("source", "lines", "words"),
    [
        ("tracelab", [a_round("a", 1, 5, 0), a_round("b", 1, 5, 0)], ["--rate", "1e-300"]),
        ("tracelab", [a_round("a", 1, 5, 0), a_round("b", 1, 5, 0)], ["--rate", "1e-320/h"]),
        ("aiperf", [turn("a", 5, delay=1e15)] * 3, ["--rate", "1"]),
    ],
)
def test_times_that_no_reader_takes_are_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, lines: list[Fields], words: list[str]
) -> None:
    path = file_of(tmp_path / "t.jsonl", *lines)
    assert main(["trace", "make", "--from", source, path, "-o", str(tmp_path / "o"), *words]) == 2
    assert "ms after the trace begins, and 1e+15 is the latest; give a higher --rate" in capsys.readouterr().err
