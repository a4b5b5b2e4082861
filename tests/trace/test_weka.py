"""Recorded agent sessions become a trace: sub-agents, whose blocks are whose, arrivals, and files that lie."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from quire.cli.main import main
from quire.trace.logs import weka
from quire.trace.read.lines import TraceError
from quire.trace.read.trace import Trace, read_trace, shared

from .logs import lines_of

Fields = dict[str, Any]


def asked(t: float, ids: list[int], rest: int = 0, **more: Any) -> Fields:
    """A request of whole blocks of 4, and so many tokens behind them."""
    return {"t": t, "type": "n", "in": 4 * len(ids) + rest, "out": 2, "hash_ids": ids, "stop": "tool_use", **more}


def file_of(path: Path, requests: list[Fields], **more: Any) -> Path:
    top = {"id": path.stem, "block_size": 4, "hash_id_scope": "local", "requests": requests, **more}
    path.write_text(json.dumps(top), encoding="utf-8")
    return path


def made(folder: Path, *words: str) -> Path:
    out = folder / "out.jsonl"
    assert main(["trace", "make", "--from", "weka", str(folder), "--rate", "60/h", "-o", str(out), *words]) == 0
    return out


def trace_of(folder: Path, *words: str) -> Trace:
    return read_trace(made(folder, *words))


def test_a_session_and_its_subagents(tmp_path: Path) -> None:
    inner = [asked(0, [9, 10], stop="end_turn"), asked(2.5, [9, 10, 11])]
    deeper = {"t": 1, "type": "subagent", "requests": [asked(0.5, [30], stop="")]}
    requests = [asked(0, [1, 2]), {"t": 4, "type": "subagent", "requests": [*inner, deeper]}, asked(9, [1, 2, 3], 1)]
    file_of(tmp_path / "a.json", requests)
    rows = [(one.time, one.session, one.finish, one.length) for one in trace_of(tmp_path)]
    assert rows == [
        (0.0, 0, "tool_calls", 8), (4.0, 1, "stop", 8), (5.5, 2, None, 4), (6.5, 1, "tool_calls", 12),
        (9.0, 0, "tool_calls", 13),
    ]  # fmt: skip
    last = lines_of(tmp_path / "out.jsonl")[-1]["quire"]["end"]
    assert last == {"requests": 5, "sessions": 3}


def test_times_of_a_subagent_may_go_on_from_its_parents(tmp_path: Path) -> None:
    inner = [asked(4.5, [9]), {"t": 5, "type": "subagent", "requests": [asked(6, [30])]}, asked(7, [9, 10])]
    file_of(tmp_path / "a.json", [asked(0, [1]), {"t": 4, "type": "subagent", "requests": inner}])
    assert [(one.time, one.session) for one in trace_of(tmp_path)] == [(0.0, 0), (4.5, 1), (6.0, 2), (7.0, 1)]


def test_blocks_of_files_are_apart_unless_the_format_says_otherwise(tmp_path: Path) -> None:
    for name in "ab":
        file_of(tmp_path / f"{name}.json", [asked(0, [1, 2], 3), asked(1, [1, 2, 5])])
    one = trace_of(tmp_path)
    by_session = [[ask for ask in one if ask.session == number] for number in (0, 1)]
    assert [shared(*both) for both in by_session] == [8, 8], "the rest is like no other: 3 tokens are not known"
    assert shared(by_session[0][0], by_session[1][0]) == 0
    for name in "ab":
        file_of(tmp_path / f"{name}.json", [asked(0, [1, 2])], hash_id_scope="global")
    assert shared(*trace_of(tmp_path)) == 8


def test_a_subagent_shares_with_its_parent(tmp_path: Path) -> None:
    file_of(tmp_path / "a.json", [asked(0, [1, 2]), {"t": 1, "type": "subagent", "requests": [asked(0, [1, 7])]}])
    assert shared(*trace_of(tmp_path)) == 4


def test_larger_blocks_are_equal_where_all_of_them_is(tmp_path: Path) -> None:
    file_of(tmp_path / "a.json", [asked(0, [1, 2, 3, 4], 1), asked(1, [1, 2, 3, 5]), asked(2, [1, 2, 3, 5, 8])])
    trace = trace_of(tmp_path, "--block-size", "8")
    assert trace.unit == 8 and [len(one.parts) for one in trace] == [3, 2, 3]
    assert [shared(trace[0], trace[1]), shared(trace[1], trace[2])] == [8, 16]
    given = ["trace", "make", "--from", "weka", str(tmp_path), "--rate", "1", "-o", str(tmp_path / "x")]
    assert main([*given, "--block-size", "6"]) == 2


def test_equal_ids_behind_other_blocks_are_other_blocks(tmp_path: Path) -> None:
    """Whether an id stands for what comes before it too is not said: it is taken so."""
    file_of(tmp_path / "a.json", [asked(0, [1, 2]), asked(1, [7, 2]), asked(2, [7, 2, 2])])
    ids = [line["hash_ids"] for line in lines_of(made(tmp_path))]
    assert ids == [[0, 1], [2, 3], [2, 3, 4]]


def test_sessions_begin_at_the_rate_and_by_the_seed(tmp_path: Path) -> None:
    for number in range(200):
        file_of(tmp_path / f"{number:03}.json", [asked(0, [number]), asked(50, [number, 7])])
    one, again, other = (made(tmp_path, "--seed", seed).read_bytes() for seed in ("5", "5", "6"))
    assert one == again != other
    stamps = [line["timestamp"] for line in lines_of(made(tmp_path))]
    assert stamps == sorted(stamps), "in the file, too"
    trace = trace_of(tmp_path)
    firsts = [ask.time for ask in trace if ask.length == 4]
    assert len(firsts) == 200 and 150 < firsts[-1] / 60 < 260, "60 an hour: about 200 minutes"
    assert [ask.time for ask in trace] == sorted(ask.time for ask in trace)
    gaps = [later - sooner for sooner, later in pairwise(firsts)]
    assert min(gaps) < 10 and max(gaps) > 200, "at random, not evenly"


WRONG: list[tuple[Any, str]] = [
    ([], r"it is \[\]"),
    ({}, "block_size is None"),
    ({"block_size": 0}, "block_size is 0"),
    ({"block_size": 4, "hash_id_scope": "mine"}, "hash_id_scope is 'mine'"),
    ({"block_size": 4}, "requests is None"),
    ({"block_size": 4, "requests": []}, "requests has none"),
    ({"block_size": 4, "requests": [7]}, r"requests\[0\] is 7"),
    ({"block_size": 4, "requests": [asked(0, [1]), asked(-1, [1])]}, r"requests\[1\].t is -1"),
    ({"block_size": 4, "requests": [asked(float("nan"), [1])]}, r"requests\[0\].t is nan"),
    ({"block_size": 4, "requests": [{**asked(0, [1]), "in": True}]}, r"requests\[0\].in is True"),
    ({"block_size": 4, "requests": [{**asked(0, [1]), "in": 1 << 30}]}, r"requests\[0\].in is 1073741824"),
    ({"block_size": 4, "requests": [{**asked(0, [1]), "out": -1}]}, r"requests\[0\].out is -1"),
    ({"block_size": 4, "requests": [asked(0, [1, -2])]}, r"requests\[0\].hash_ids\[1\] is -2"),
    (
        {"block_size": 4, "requests": [{**asked(0, [1]), "hash_ids": [1 << 63]}]},
        r"hash_ids\[0\] is 9223372036854775808",
    ),
    ({"block_size": 4, "requests": [{**asked(0, [1]), "hash_ids": [1.0]}]}, r"hash_ids\[0\] is 1.0"),
    ({"block_size": 4, "requests": [{**asked(0, [1]), "hash_ids": None}]}, r"hash_ids is None"),
    ({"block_size": 4, "requests": [{**asked(0, [1, 2]), "in": 3}]}, r"in is 3, and requests\[0\].hash_ids has 2"),
    ({"block_size": 4, "requests": [{**asked(0, [1]), "in": 9}]}, r"in is 9, and requests\[0\].hash_ids has 1"),
    ({"block_size": 4, "requests": [asked(0, [1], stop=5)]}, r"requests\[0\].stop is 5"),
    ({"block_size": 4, "requests": [{"t": 0, "type": "subagent"}]}, r"requests\[0\].requests is None"),
]


@pytest.mark.parametrize(("content", "words"), WRONG)
def test_a_wrong_file_is_named_with_its_field(tmp_path: Path, content: Any, words: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(TraceError, match=f"odd.json: .*{words}"):
        weka.read_weka(path)


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "odd.json"
    path.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(TraceError, match="it is not JSON"):
        weka.read_weka(path)
    nest: list[Fields] = [asked(0, [1])]
    for _ in range(weka.DEEPEST + 1):
        nest = [{"t": 0, "type": "subagent", "requests": nest}]
    with pytest.raises(TraceError, match=f"nested deeper than {weka.DEEPEST}"):
        weka.read_weka(file_of(path, nest))
    file_of(path, [asked(0, [1])] * 3)
    monkeypatch.setattr(weka, "MOST_REQUESTS", 2)
    with pytest.raises(TraceError, match="more than 2 requests"):
        weka.read_weka(path)
    monkeypatch.setattr(weka, "LARGEST", 100)
    with pytest.raises(TraceError, match="larger than 100 bytes"):
        weka.read_weka(path)


def test_what_cannot_be_used_ends_it_or_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file_of(tmp_path / "a.json", [asked(0, [1])])
    (tmp_path / "b.json").write_text("{}", encoding="utf-8")
    given, out = ["trace", "make", "--from", "weka", str(tmp_path), "-o", str(tmp_path / "t")], tmp_path / "t"
    assert main(given) == 2 and "pass --rate, such as 30/h" in capsys.readouterr().err
    assert main([*given, "--rate", "1"]) == 2 and "b.json: block_size is None" in capsys.readouterr().err
    assert not out.exists(), "a trace is there when it is whole"
    assert main([*given, "--rate", "1", "--skip-bad"]) == 0 and len(read_trace(out)) == 1
    told = capsys.readouterr().err
    assert "skipped: b.json" in told and "1 requests, from recorded sessions; 1 files skipped" in told
    for words in (["--rate", "much"], ["--rate", "3/day"], ["--rate", "0/h"]):
        try:
            assert main([*given, *words]) == 2
        except SystemExit as left:
            assert left.code == 2
    (tmp_path / "none").mkdir()
    assert main(["trace", "make", "--from", "weka", str(tmp_path / "none"), "--rate", "1", "-o", str(out)]) == 2
    assert main(["trace", "make", "--from", "weka", str(tmp_path / "no.json"), "--rate", "1", "-o", str(out)]) == 2
    said = capsys.readouterr().err
    assert "there is no *.json in it" in said and "No such file" in said
