"""What version 2 of the format brought: sessions, why answers ended, where prompts were interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import Cache, CacheConfig, Request, Scope, TierConfig
from quire.cli.main import main
from quire.core.records.hint_words import Back
from quire.trace.read.lines import TraceError
from quire.trace.read.trace import read_trace
from quire.trace.record.block_ids import TraceKey
from quire.trace.record.interruptions import PromptInterruptions
from quire.trace.record.recorder import TraceRecorder
from quire.trace.record.trace_writer import Interruption

from .logs import KEY, lines_of, made_of, of_tokens, trace_of

HASHED: dict[str, Any] = {"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}
OWN: dict[str, Any] = {"time_ms": 0, "prompt": [["a", 5]], "output_tokens": 1}


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("line", [HASHED, OWN])
def test_both_formats_say_whose_a_request_is_and_how_it_ended(tmp_path: Path, line: dict[str, Any]) -> None:
    more = {"session": "agent 7", "finish": "tool_calls", "back": "never", "interrupted": [20, 3, 900]}
    trace = read_trace(write(tmp_path / "t", {**line, **more}, line, {**line, "session": 0}))
    first, second, third = trace
    assert (first.session, first.finish, first.back) == ("agent 7", "tool_calls", "never")
    assert first.interrupted == Interruption(20, 3, 900)
    longer = read_trace(write(tmp_path / "u", line | {"interrupted": [20, 3, 90, 5, 40]}))[0].interrupted
    assert longer is not None and longer.pieces == [(23, 113), (118, 158)]
    assert (second.session, second.finish, second.back, second.interrupted) == (None, None, None, None)
    assert third.session == 0


@pytest.mark.parametrize("line", [HASHED, OWN])
@pytest.mark.parametrize(
    ("name", "value"),
    [("session", True), ("session", -1), ("session", ""), ("session", "x" * 201), ("session", [1]), ("finish", 1),
     ("session", "half \ud800"), ("finish", ""), ("finish", "a sentence. Or two"), ("finish", "x" * 41),
     ("interrupted", [1, 2]), ("interrupted", [1, 2, 3, 4]), ("interrupted", [1] * 131),
     ("interrupted", 5), ("interrupted", [1, 2, -1]), ("interrupted", [1, True, 3]), ("back", "maybe"),
     ("back", 1), ("back", ["soon"])],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_line(tmp_path: Path, line: dict[str, Any], name: str, value: object) -> None:
    with pytest.raises(TraceError, match=f"line 2: .*{name} is|line 2: a number of {name} is"):
        read_trace(write(tmp_path / "t", line, {**line, name: value}))


def test_a_trace_of_version_1_has_none_of_it(tmp_path: Path) -> None:
    """Somebody else's field of that name meant nothing then."""
    head = {**HASHED, "quire": {"trace": 1, "block_size": 512}, "session": ["theirs"], "back": "soon"}
    found = read_trace(write(tmp_path / "t", head, {**HASHED, "session": 5}))
    assert [(one.session, one.back) for one in found] == [(None, None)] * 2


def test_a_joined_trace_of_our_own_format_can_be_read(tmp_path: Path) -> None:
    """Its first line says what it is; that used to be a field nobody knew."""
    one, two, both = write(tmp_path / "a", OWN), write(tmp_path / "b", {**OWN, "session": "s"}), tmp_path / "both"
    assert main(["trace", "make", str(one), str(two), "-o", str(both)]) == 0
    assert [request.session for request in read_trace(both)] == [None, "s"]


def test_a_log_says_sessions_and_ends_in_many_places(tmp_path: Path) -> None:
    ways: list[dict[str, Any]] = [
        {"session_id": "ann", "finish_reason": "stop"},
        {"metadata": {"session_id": "ann"}, "response": {"choices": [{"finish_reason": "tool_calls"}]}},
        {"prompt_cache_key": "bob", "choices": [{"finish_reason": None}]},
        {"chat": {"number": 3}, "finish_reason": "Ms Alder was rude"},
    ]
    log = [{**line, **way} for line, way in zip(of_tokens([[1, 2]] * 4), ways, strict=True)]
    path, _ = made_of(tmp_path, log)
    found = lines_of(path)
    assert found[0]["session"] == found[1]["session"] != found[2]["session"] and "session" not in found[3]
    assert [line.get("finish") for line in found] == ["stop", "tool_calls", None, None]
    text = path.read_text(encoding="utf-8")
    assert "ann" not in text and "Alder" not in text, "names stay behind"
    named = trace_of(tmp_path, log, session_field="chat.number")
    assert [one.session for one in named] == [None, None, None, KEY.session_id("3")]


def test_every_prompt_says_where_it_was_interrupted(tmp_path: Path) -> None:
    """However long ago the text was, wherever in the prompt, and in its scope only; places are those of chunks."""
    draw = np.random.default_rng(3).integers
    head, rules = draw(0, 9999, 3000).tolist(), draw(0, 9999, 400).tolist()
    others = [draw(0, 9999, 40).tolist() for _ in range(300)]
    log = of_tokens([[*head, 1, *rules], *others, [*head, 2, *rules], [*head, 3, *rules]])
    path, _ = made_of(tmp_path, [*log[:-1], {**log[-1], "cache_salt": "theirs"}])
    marks = [line.get("interrupted") for line in lines_of(path)]
    assert [place for place, mark in enumerate(marks) if mark is not None] == [301]
    token, width, after, *_ = marks[301] or (0, 0, 0)
    assert 2940 < token <= 3000 < token + width <= 3061 and token + width + after == 3401


def test_a_cache_records_whose_its_requests_were_and_when_they_come_back(tmp_path: Path) -> None:
    cache = Cache(CacheConfig((TierConfig("device", 64),)), record=tmp_path / "t.jsonl")
    asked: list[tuple[str | None, Back | None, Scope]] = [
        ("ann", "soon", Scope()), (None, "never", Scope()), ("ann", None, Scope()), ("ann", "later", Scope(salt="x"))
    ]  # fmt: skip
    for session, back, scope in asked:
        batch = cache.add_sequence_batch([Request("r", np.arange(9, dtype=np.int32), scope, session=session)])
        cache.finish(batch.plan)
        cache.commit(batch.sequences)
        cache.release(batch.sequences, back=back)
    assert cache.recorder is not None
    cache.recorder.close()
    trace = read_trace(tmp_path / "t.jsonl")
    one, two, three, elsewhere = trace
    assert one.session == three.session is not None and two.session is None
    assert elsewhere.session not in (None, one.session), "no scope's session is another's"
    assert [ask.back for ask in trace] == [back for _, back, _ in asked]
    assert "ann" not in (tmp_path / "t.jsonl").read_text(encoding="utf-8")


def test_a_recorder_keys_sessions_and_drops_what_is_no_reason(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "t.jsonl", 4, key=KEY)
    tokens = np.arange(9, dtype=np.int32)
    recorder.add(recorder.arrive(), tokens, 1, session="ann", finish="stop")
    recorder.add(recorder.arrive(), tokens, 1, session="ann", finish="no reason at all")
    recorder.add(recorder.arrive(), tokens, 1)
    recorder.close()
    rows = [(one.session, one.finish) for one in read_trace(tmp_path / "t.jsonl")]
    assert KEY.session_id("ann") != TraceKey(b"another secret, of 32 bytes or so").session_id("ann")
    assert rows == [(KEY.session_id("ann"), "stop"), (KEY.session_id("ann"), None), (None, None)]


def test_marks_do_not_change_while_more_is_kept() -> None:
    """It begins small, and is made larger twice: what was seen before that is still known."""
    draw = np.random.default_rng(11)
    rules = [draw.integers(0, 9999, 120) for _ in range(350)]
    asked = [np.concatenate([draw.integers(0, 9999, 60), one]).astype(np.int32) for one in [*rules, *rules]]
    marks = PromptInterruptions()
    found = [marks.add(tokens, Scope()) for tokens in asked]
    assert found[:350] == [None] * 350
    whole = [
        mark for mark in found[350:] if mark is not None and mark.width + mark.equal_after == 180 and not mark.more
    ]
    assert len(whole) > 345, "but for a chunk that fell on others"
    assert all(mark.position == 0 and 60 <= mark.width <= 148 for mark in whole)
    assert marks.add(asked[0], Scope()) is None, "it is known from its beginning"
