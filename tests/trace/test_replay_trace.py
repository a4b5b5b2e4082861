"""Traces: both formats, plain and gzip; what is wrong with a line, and where; token ids of an ask."""

from __future__ import annotations

import gzip
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import InputError, Scope
from quire.trace.read.lines import TraceError
from quire.trace.read.token_ids import TokenIds
from quire.trace.read.trace import SAMPLE, SAMPLE_AGENTS, Trace, TraceRequest, read_trace, share_token, shared

GOOD = {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}
OWN = {"time_ms": 0, "prompt": [["system", 100], [None, 20]], "output_tokens": 5}


def written(folder: Path, *lines: dict[str, Any] | str, zipped: bool = False) -> Path:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    path = folder / ("t.jsonl.gz" if zipped else "t.jsonl")
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    return path


def prompts(trace: Trace, seed: int = 0) -> list[list[int]]:
    words = TokenIds(trace, seed)
    return [words.prompt(ask).tolist() for ask in trace]


@pytest.mark.parametrize("zipped", [False, True])
def test_a_mooncake_line_is_blocks_of_512_and_a_partial_last_one(tmp_path: Path, zipped: bool) -> None:
    other = {"timestamp": 1500, "input_length": 1024, "output_length": 1, "hash_ids": [0, 2], "more": "ignored"}
    trace = read_trace(written(tmp_path, GOOD, "", other, zipped=zipped))
    assert [len(trace), trace.unit, trace.num_tokens, trace.longest] == [2, 512, 1724, 1025]
    assert [ask.time for ask in trace] == [0.0, 1.5] and trace[1].line == 3
    assert trace[0].sizes.tolist() == [512, 188] and trace[1].sizes.tolist() == [512, 512]
    assert prompts(trace) == [[*range(512), *range(512, 700)], [*range(512), *range(1024, 1536)]]


def test_asks_come_in_order_of_arrival(tmp_path: Path) -> None:
    lines = [{**GOOD, "timestamp": time, "output_length": n} for n, time in enumerate((5, 3, 3.5, 3))]
    trace = read_trace(written(tmp_path, *lines))
    assert [(ask.output, ask.number) for ask in trace] == [(1, 0), (3, 1), (2, 2), (0, 3)]


def test_hash_ids_beyond_int32_are_renumbered_in_order_of_appearance(tmp_path: Path) -> None:
    far = [10**15, 7]
    trace = read_trace(written(tmp_path, {**GOOD, "hash_ids": far}, {**GOOD, "hash_ids": far[::-1]}))
    assert [ask.parts.tolist() for ask in trace] == [[0, 1], [1, 0]]
    assert all(tokens.dtype == np.int32 for tokens in (TokenIds(trace).prompt(ask) for ask in trace))


def test_parts_of_one_name_begin_alike_and_private_ones_are_like_no_other(tmp_path: Path) -> None:
    short = {**OWN, "prompt": [["system", 60], [None, 20]], "scope": {"lora": "a"}, "priority": 3}
    short |= {"retain": [[0, 60, 80], [60, None, 20, 1.5]], "reuse": False, "id": "x"}
    trace = read_trace(written(tmp_path, OWN, short, OWN))
    first, second, third = prompts(trace)
    assert trace.unit == 0 and first[:60] == second[:60] and first[:100] == third[:100]
    assert len({*first, *second, *third}) == 100 + 3 * 20
    assert trace[1].scope == Scope(lora="a") and trace[1].priority == 3 and not trace[1].reuse
    assert [(item.start, item.end, item.priority, item.seconds) for item in trace[1].retain] == [
        (0, 60, 80, None),
        (60, None, 20, 1.5),
    ]
    assert shared(trace[0], trace[2]) == 100 and shared(trace[0], trace[1]) == 0  # another scope
    assert shared(trace[0], trace[0]) == 120
    assert [share_token(trace[0], trace[2], token) for token in (0, 99, 100, 119, 120)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert not share_token(trace[0], trace[1], 0)


def test_what_two_prompts_of_hash_ids_share_ends_with_the_shorter(tmp_path: Path) -> None:
    ids = [([1, 2, 3], 1100), ([1, 2, 3, 4], 2000), ([1, 5], 600), ([6], 9), ([1], 300)]
    lines = [
        {"timestamp": nth, "input_length": length, "output_length": 1, "hash_ids": parts}
        for nth, (parts, length) in enumerate(ids)
    ]
    trace = read_trace(written(tmp_path, *lines))
    assert [shared(trace[0], other) for other in trace] == [1100, 1100, 512, 0, 300]
    assert [shared(other, trace[0]) for other in trace] == [1100, 1100, 512, 0, 300]
    for other in trace:
        for token in (0, 299, 300, 511, 512, 599, 600, 1023, 1024, 1099, 1100, 1999, 2000):
            assert share_token(trace[0], other, token) == (shared(trace[0], other) > token)


def test_a_seed_changes_token_ids_and_nothing_else(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, GOOD, {**GOOD, "hash_ids": [0, 9]}))
    one, other = prompts(trace), prompts(trace, seed=1)
    assert one != other and min(min(tokens) for tokens in other) >= 0
    equal = [[a == b for a, b in zip(*pair, strict=True)] for pair in (one, other)]
    assert equal[0] == equal[1] == [True] * 512 + [False] * 188


def test_generated_tokens_are_used_once_and_by_no_prompt() -> None:
    trace = read_trace("sample", limit=20)
    words = TokenIds(trace)
    made = [words.first_of_answer(request) - nth for request in trace for nth in range(request.output)]
    assert len(set(made)) == len(made) == sum(request.output for request in trace) and max(made) < 0


def test_the_sample_is_the_first_thousand_requests_of_the_public_trace() -> None:
    trace = read_trace("sample")
    assert len(trace) == 1000 and trace.num_tokens == 13_732_944 and trace.skipped == ()
    assert read_trace("sample", limit=7).longest == max(ask.length + ask.output for ask in trace.head(7))
    assert {"LICENSE.txt", "NOTICE.txt"} <= {path.name for path in SAMPLE.parent.iterdir()}


def test_the_sample_of_agents_has_sessions_and_reasons() -> None:
    trace = read_trace("sample-agents")
    assert len(trace) == 1000 and trace.unit == 512 and len({ask.session for ask in trace}) == 36
    assert Counter(ask.finish for ask in trace).keys() == {"tool_calls", "stop", None}
    first, again = [ask for ask in trace if ask.session == 0][:2]
    assert shared(first, again) > 0.9 * first.length, "an agent goes on from what it has said"
    other = next(ask for ask in trace if ask.session == 1)
    assert shared(first, other) == 0, "ids of a session are its own"
    notice = (SAMPLE.parent / "NOTICE.txt").read_text(encoding="utf-8")
    assert SAMPLE_AGENTS.name in notice and "kv-cache-tester" in notice
    assert SAMPLE_AGENTS.stat().st_size < 100_000


BAD = {
    "not JSON": ("{", "not JSON", "one JSON object per line"),
    "no object": ("[1]", "[1]", "one JSON object per line"),
    "deep": ("[" * 100_000, "not JSON", "one JSON object"),
    "not text": ("\udc80", "not JSON", "one JSON object"),
    "neither": ({"time": 1}, "neither 'hash_ids' nor 'prompt'", "docs/replay.md"),
    "a log": ({"model": "m", "messages": [{"content": "secret"}]}, "it is a logged request", "quire trace make LOG -o"),
    "a log, below": ({"time": 1, "body": {"messages": []}}, "it is a logged request", "quire trace make LOG -o"),
    "a log of texts": ({"prompt": "secret", "max_tokens": 3}, "it is a logged request", "quire trace make LOG -o"),
    "a log of ids": (
        {"time": 1, "prompt": [5, 6], "output_tokens": 3},
        "of token ids, and not",
        "quire trace make LOG -o",
    ),
    "a log of ids alone": ({"prompt": [5, 6]}, "of token ids, and not yet", "quire trace make LOG -o TRACE (docs"),
    "a log of many ids": ({"time": 1, "prompt": [[5, 6], [7]]}, "of token ids, and not", "quire trace make LOG -o"),
    "a log of vLLM": ({"prompt_token_ids": [5, 6]}, "of token ids, and not", "quire trace make LOG -o TRACE (docs"),
    "ids in a body": ({"body": {"prompt": [5, 6]}}, "of token ids, and not", "quire trace make LOG -o TRACE (docs"),
    "a log of lengths": ({"usage": {"prompt_tokens": 5}}, "a logged request's lengths", "quire trace make LOG -o"),
    "turns of AIPerf": ({"session_id": "a", "input_length": 9, "hash_ids": [1]}, "recorded session", "--from aiperf"),
    "rounds of TraceLab": ({"session_id": "a", "input_tokens_total": 9}, "recorded session", "--from tracelab"),
    "sessions of WEKA": ({"id": "a", "requests": []}, "recorded session", "--from weka FOLDER"),
    "a log of input": ({"input": "secret"}, "it is a logged request", "quire trace make LOG -o"),
    "an access log": ('::1 - "POST /v1/completions"', "not JSON", "for `quire trace make`"),
    "no ids": ({"timestamp": 0, "input_length": 5, "output_length": 1}, "no field 'hash_ids'", "add it"),
    "no time": ({"input_length": 5, "output_length": 1, "hash_ids": [1]}, "no field 'timestamp'", "add it"),
    "negative length": ({**GOOD, "input_length": -1}, "input_length is -1", "from 1 to"),
    "no tokens": ({**GOOD, "input_length": 0}, "input_length is 0", "from 1 to"),
    "huge": ({**GOOD, "input_length": 10**12}, "input_length is 1000000000000", "from 1 to"),
    "fraction": ({**GOOD, "input_length": 700.5}, "input_length is 700.5", "whole number"),
    "bool": ({**GOOD, "output_length": True}, "output_length is true", "whole number"),
    "negative output": ({**GOOD, "output_length": -3}, "output_length is -3", "from 0 to"),
    "negative time": ({**GOOD, "timestamp": -1}, "timestamp is -1", "0 or more"),
    "digits of time": ({**GOOD, "timestamp": 10**400}, "timestamp is 1000", "milliseconds"),
    "infinite": ({**GOOD, "timestamp": float("inf")}, "timestamp is Infinity", "milliseconds"),
    "no number": ('{"timestamp": NaN, "input_length": 1, "output_length": 1, "hash_ids": [1]}', "NaN", "milliseconds"),
    "count": ({**GOOD, "input_length": 1025}, "takes 3 blocks of 512 tokens, hash_ids has 2", "--trace-block"),
    "ids of words": ({**GOOD, "hash_ids": [0, "x"]}, "hash_ids has 'x'", "whole numbers"),
    "negative id": ({**GOOD, "hash_ids": [0, -4]}, "hash_ids has -4", "whole numbers"),
    "no list": ({**GOOD, "hash_ids": 3}, "hash_ids is 3", "list"),
    "other kind": (OWN, "quire's format in a trace of mooncake's", "split the file"),
}
BAD_OWN = {
    "unknown": ({**OWN, "prio": 1}, "field 'prio' is unknown", "the fields are"),
    "empty": ({**OWN, "prompt": []}, "prompt is []", "at least one"),
    "part": ({**OWN, "prompt": [[1, 2, 3]]}, "a part of the prompt is [1, 2, 3]", "[name, tokens]"),
    "name": ({**OWN, "prompt": [[1.5, 2]]}, "a part's name is 1.5", "null for a private part"),
    "size": ({**OWN, "prompt": [["a", 0]]}, "a part's tokens is 0", "from 1 to"),
    "sum": ({**OWN, "prompt": [["a", 2**24], ["b", 1]]}, "the prompt's tokens is", "from 1 to"),
    "scope": ({**OWN, "scope": {"model": 1}}, 'scope is {"model": 1}', "lora, salt, epoch"),
    "scope value": ({**OWN, "scope": {"lora": 1.5}}, "it is a float", "float; use an int, a str, bytes or None"),
    "priority": ({**OWN, "priority": "high"}, "priority is 'high'", "whole number"),
    "retain": ({**OWN, "retain": [[1]]}, "retain is [[1]]", "[start, end, priority]"),
    "retain range": ({**OWN, "retain": [[5, 1, 3]]}, "retain range [5, 1)", "<= end; correct them"),
    "retain overlap": ({**OWN, "retain": [[0, 50, 8], [40, 60, 2]]}, "before it ends at 50", "50; order the ranges"),
    "retain far": ({**OWN, "retain": [[0, 10**400, 80]]}, "retain is [[0, 1000", "up to"),
    "digits": ({**OWN, "time_ms": 10**400}, "time_ms is 1000", "milliseconds"),
    "reuse": ({**OWN, "reuse": 1}, "reuse is 1", "true or false"),
    "no output": ({"time_ms": 0, "prompt": [["a", 1]]}, "no field 'output_tokens'", "add it"),
}


@pytest.mark.parametrize("name", [*BAD, *BAD_OWN])
def test_a_bad_line_is_named_with_fact_and_cure_or_counted(tmp_path: Path, name: str) -> None:
    bad, fact, cure = (BAD | BAD_OWN)[name]
    good = GOOD if name in BAD else OWN
    path = tmp_path / "t.jsonl"
    lines = [line if isinstance(line, str) else json.dumps(line) for line in (good, bad, good)]
    path.write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    with pytest.raises(TraceError) as wrong:
        read_trace(path)
    assert wrong.value.line == 2 and fact in wrong.value.fact and cure in str(wrong.value)
    assert str(wrong.value).startswith("t.jsonl line 2: ") and isinstance(wrong.value, InputError)
    trace = read_trace(path, skip_bad=True)
    assert len(trace) == 2 and [error.line for error in trace.skipped] == [2]
    again = pickle.loads(pickle.dumps(wrong.value))
    assert str(again) == str(wrong.value)


def test_broken_gzip_ends_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    whole = SAMPLE.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match="the gzip data ends or breaks here") as wrong:
        read_trace(path)
    trace = read_trace(path, skip_bad=True)
    assert wrong.value.line == len(trace) + len(trace.skipped) > 400 and len(trace.skipped) <= 2
    damaged = bytearray(whole)
    damaged[len(whole) // 3 : len(whole) // 3 + 40] = bytes(40)
    path.write_bytes(damaged)
    with pytest.raises(TraceError):
        read_trace(path)
    assert 100 < len(read_trace(path, skip_bad=True)) < 1000


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="name a readable file"):
        read_trace(tmp_path)
    for text in ("", "\n\n"):
        (tmp_path / "empty.jsonl").write_text(text)
        with pytest.raises(TraceError, match=r"^empty.jsonl: it has no requests; pass JSON lines"):
            read_trace(tmp_path / "empty.jsonl")
    assert len(read_trace(written(tmp_path, {**GOOD, "hash_ids": [1] * 44}), unit=16)) == 1


def test_more_tokens_than_there_are_ids_are_refused() -> None:
    """They would go round, and different prompts would share."""
    asks = [TraceRequest(n, n, np.array([n]), 1 << 24, 1, 0, np.array([1 << 24])) for n in range(129)]
    TokenIds(Trace("x", asks[:128]))
    with pytest.raises(InputError, match="token ids have 31 bits; replay it in pieces"):
        TokenIds(Trace("x", asks))
    asks = [TraceRequest(0, 0, np.array([5]), 512, 1, 512), TraceRequest(1, 1, np.array([5 + (1 << 22)]), 512, 1, 512)]
    with pytest.raises(InputError, match="its prompts have"):
        TokenIds(Trace("x", asks, 512))
    with pytest.raises(InputError, match="its answers have"):
        TokenIds(Trace("x", [TraceRequest(n, n, np.array([n]), 512, 1 << 24, 512) for n in range(129)], 512))


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_tokens_of_prompts_are_never_those_of_answers_whatever_the_seed(seed: int) -> None:
    parts = np.array([0, 1, (1 << 22) - 1])  # the last that 31 bits have room for
    request = TraceRequest(0, 0.0, parts, 3 * 512, 1, 512)
    tokens = TokenIds(Trace("x", [request], 512), seed).prompt(request)
    assert tokens.min() >= 0 and len(set(tokens.tolist())) == 3 * 512
