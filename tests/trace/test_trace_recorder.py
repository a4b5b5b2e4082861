"""Recordings: a trace of what a cache serves; who serves never waits for it, and never fails because of it."""

from __future__ import annotations

import gzip
import json
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import Cache, CacheConfig, InputError, Request, Scope, StateError, TierConfig, check
from quire.core.store import StoreName
from quire.trace.read.trace import read_trace, shared
from quire.trace.record import recorder as module
from quire.trace.record.block_ids import TraceKey
from quire.trace.record.recorder import TraceRecorder

from ..core.conftest import seq, serve
from ..full_disk import full_disk

KEY = TraceKey(b"one secret of the tests, 32 bytes")


def lines_of(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    return [json.loads(line) for line in data.splitlines()]


def recorded(store: StoreName, path: Path, **options: Any) -> tuple[Cache, TraceRecorder]:
    config = CacheConfig((TierConfig("device", 64),), block_size=4, max_sequences=8, max_length=256)
    cache = Cache(config, store=store, record=path, **options)
    assert isinstance(cache.recorder, TraceRecorder)
    return cache, cache.recorder


def test_a_trace_of_what_a_cache_served(store: StoreName, tmp_path: Path) -> None:
    now = [100.0]
    cache, recorder = recorded(store, tmp_path / "t.jsonl", clock=lambda: now[0])
    asked = [Request("a", seq(0, 10)), Request("b", seq(0, 14)), Request("c", seq(0, 9), Scope(salt="x")),
             Request("d", seq(0, 10), reuse=False)]  # fmt: skip
    batch = cache.add_sequence_batch(asked[:2])
    cache.finish(batch.plan)
    now[0] += 1.5
    with cache.claim(asked[2:]) as claims:
        later = cache.admit(claims)
    cache.finish(later.plan)
    cache.commit([*batch.sequences, *later.sequences])
    for _ in range(3):
        assert cache.grow(batch.sequences[0], seq(90, 1)) is not None
    for sequence in reversed([*batch.sequences, *later.sequences]):  # who came first leaves last
        cache.release(sequence)
    assert next(iter(tmp_path.glob("t.jsonl*"))).name.endswith(".part"), "it has its name when it is whole"
    recorder.close()
    recorder.close()
    trace = read_trace(tmp_path / "t.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"] and trace.unit == 4
    assert [(ask.time, ask.length, ask.output) for ask in trace] == [(0, 10, 3), (0, 14, 0), (1.5, 9, 0), (1.5, 10, 0)]
    assert [shared(trace[0], other) for other in trace] == [10, 8, 0, 0]
    first, last = lines_of(tmp_path / "t.jsonl")[0]["quire"], lines_of(tmp_path / "t.jsonl")[-1]["quire"]
    assert first["from"] == "recording" and first["began"].startswith("20") and last == {"end": {"requests": 4}}
    serve(cache, Request("e", seq(0, 10)))  # nobody listens any more
    assert recorder.num_recorded == 4 and "closed" in repr(recorder)
    check(cache)


def test_a_sequence_that_comes_back_is_one_request_and_forks_and_dummies_are_none(
    store: StoreName, tmp_path: Path
) -> None:
    cache, recorder = recorded(store, tmp_path / "t.jsonl.gz")
    batch = cache.add_sequence_batch([Request("a", seq(0, 8)), Request.dummy("warm", 9)])
    cache.finish(batch.plan)
    sequence, dummy = batch.sequences
    cache.commit(sequence)
    cache.grow(sequence, seq(50, 1))
    resumed = cache.suspend(sequence, seq(60, 2))
    batch = cache.add_sequence_batch([resumed])
    cache.finish(batch.plan)
    cache.commit(batch.sequences[0])
    forked = cache.fork(batch.sequences[0], ["beam"])
    assert forked is not None
    cache.finish(forked[1])
    for one in (*forked[0], *batch.sequences, dummy):
        cache.release(one)
    with pytest.raises(StateError):
        cache.release(dummy)
    recorder.close()
    (line,) = lines_of(tmp_path / "t.jsonl.gz")
    assert (line["input_length"], line["output_length"], len(line["hash_ids"])) == (8, 3, 2)


def test_ids_are_those_of_the_key(tmp_path: Path) -> None:
    with_key = TraceRecorder(tmp_path / "t.jsonl", 4, key=KEY)
    tokens = np.arange(11, dtype=np.int32)
    with_key.add(with_key.arrive(), tokens, 5, Scope(lora="x"))
    with_key.close()
    (line,) = lines_of(tmp_path / "t.jsonl")
    assert line["hash_ids"] == KEY.hash_ids(tokens, 4, Scope(lora="x")) and line["scope"] == KEY.scope_id(
        Scope(lora="x")
    )
    assert line["quire"]["key"] == KEY.fingerprint


def test_what_finds_no_room_is_lost_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TOKENS", 100)
    recorder = TraceRecorder(tmp_path / "t.jsonl", 4)
    many = [recorder.arrive() for _ in range(4)]
    recorder.add(many[2], seq(0, 101), 1)
    recorder.forget(many[0])
    recorder.add(many[3], seq(0, 9), 1)
    recorder.add(many[1], seq(0, 7), 1)
    recorder.close()
    recorder.add(many[0], seq(0, 5), 1)
    lines = lines_of(tmp_path / "t.jsonl")
    assert [line["input_length"] for line in lines] == [7, 9] and recorder.num_lost == 2
    assert lines[-1]["quire"]["end"] == {"requests": 2, "lost": 1}


def test_few_are_held_for_one_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_HELD", 3)
    recorder = TraceRecorder(tmp_path / "t.jsonl", 4)
    tickets = [recorder.arrive() for _ in range(9)]
    for number in (1, 3, 2, 5, 4, 0, 7, 6, 8):
        recorder.add(tickets[number], seq(0, number + 1), 1)
    recorder.close()
    lengths = [line["input_length"] - 1 for line in lines_of(tmp_path / "t.jsonl")]
    assert sorted(lengths) == list(range(9)) and lengths == [1, 2, 3, 4, 5, 0, 6, 7, 8]


def test_names_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_text("precious")
    for name, fact in (
        ("old.jsonl", "there is such a file"),
        ("t.jsonl.zst", "plain or gzip"),
        ("no/t.jsonl", "No such"),
    ):
        with pytest.raises(InputError, match=fact):
            TraceRecorder(tmp_path / name, 4)
    TraceRecorder(tmp_path / "none.jsonl", 4).close()
    assert [path.name for path in tmp_path.iterdir()] == ["old.jsonl"], "a recording of nothing leaves nothing"
    assert (tmp_path / "old.jsonl").read_text() == "precious"


def test_a_full_disk_ends_the_recording_and_nothing_else(
    store: StoreName, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.trace.record.output_file.BUFFER", 1024)
    cache, recorder = recorded(store, tmp_path / "t.jsonl")
    with full_disk(4096), caplog.at_level(logging.WARNING, "quire.trace"):
        for number in range(300):
            serve(cache, Request(number, seq(0, 200)))
        recorder.close()
    assert recorder.error == "File too large" and 0 < recorder.num_recorded < 300
    assert recorder.num_lost + recorder.num_recorded == 300 and not recorder.is_open
    assert [message.split(":")[0] for message in caplog.messages] == [
        f"{tmp_path / 't.jsonl'} is not recorded any more"
    ]
    (part,) = tmp_path.iterdir()
    assert part.name.endswith(".part") and lines_of_whole(part)[0]["input_length"] == 200
    check(cache)


def lines_of_whole(path: Path) -> list[dict[str, Any]]:
    """Of a file that breaks off."""
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def test_many_threads_record_at_once(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "t.jsonl", 4)

    def work(first: int) -> None:
        for number in range(first, first + 100):
            recorder.add(recorder.arrive(), seq(number, 8), 1)

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    lines = lines_of(tmp_path / "t.jsonl")
    assert len(lines) == 400 == len({tuple(line["hash_ids"]) for line in lines}) and not recorder.num_lost


def test_a_recording_says_where_prompts_were_interrupted(tmp_path: Path) -> None:
    """Of its own tokens only, to a chunk; the scope of another, or words of media, are another text."""
    path = tmp_path / "t.jsonl"
    recorder = TraceRecorder(path, 16)
    rules = np.arange(1000, 1600, dtype=np.int32)
    for head, scope in (([1] * 9, Scope()), ([2] * 9, Scope()), ([3] * 9, Scope(salt="other")), ([4] * 9, Scope())):
        recorder.add(recorder.arrive(), np.concatenate([np.array(head, np.int32), rules]), 1, scope)
    recorder.close()
    marks = [request.interrupted for request in read_trace(path)]
    assert marks[0] is None and marks[2] is None
    for mark in (marks[1], marks[3]):
        assert mark is not None
        token, width, after, more = mark
        assert not more
        assert token == 0 and 9 <= width <= 60 and width + after == 609
