"""An engine that records: arrivals, lengths and ids of what it served, for replay."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import Scope, StateError  # noqa: E402
from quire.engine import LLM  # noqa: E402
from quire.engine.runner.engine import Engine  # noqa: E402
from quire.engine.sampling.params import Sampling  # noqa: E402
from quire.trace.read.trace import read_trace, shared  # noqa: E402
from quire.trace.record.block_ids import read_key  # noqa: E402

from ..steps import assert_clean, model_of, open_engine, words  # noqa: E402


def test_runs_are_recorded_as_they_came_and_ended(tmp_path: Path) -> None:
    with open_engine("llama", 24) as plain:
        config, model = plain.config, plain.model
    engine = Engine(model, config, record=tmp_path / "t.jsonl")
    size = config.block_size
    prompts = [words(1, 3 * size + 1), words(1, 3 * size + 1)[: 2 * size + 3], words(9, size)]
    for prompt, made in zip(prompts, (5, 3, 4), strict=True):
        engine.submit(prompt, Sampling(max_tokens=made, ignore_eos=True), scope=Scope(lora="a"))
    gone = engine.submit(words(17, size), Sampling(max_tokens=9, ignore_eos=True))
    engine.step()
    engine.cancel(gone)
    with pytest.raises(StateError, match="is open; close that one first"):
        engine.record(tmp_path / "u.jsonl")
    engine.drain()
    assert_clean(engine)
    engine.close()
    trace = read_trace(tmp_path / "t.jsonl")
    assert trace.unit == size and [ask.length for ask in trace] == [3 * size + 1, 2 * size + 3, size, size]
    assert [ask.output for ask in trace][:3] == [5, 3, 4] and trace[3].output < 9
    assert [shared(trace[0], ask) for ask in trace] == [3 * size + 1, 2 * size, 0, 0]


def test_a_recording_says_whose_runs_were_and_how_they_ended(tmp_path: Path) -> None:
    """Of several answers the first one counts; what a caller says counts before how it ended."""
    with open_engine("llama", 24) as engine:
        engine.record(tmp_path / "t.jsonl")
        ends = Sampling(max_tokens=4, allowed_token_ids=[5], stop_ids=[5])
        on = Sampling(max_tokens=2, ignore_eos=True)
        engine.submit(words(1, 9), ends, session="ann")
        engine.submit(words(2, 9), on, session="ann")
        engine.submit(words(3, 9), on, back="never")
        engine.submit(words(4, 9), replace(ends, n=2))
        gone = engine.submit(words(5, 9), on, back="soon")
        engine.step()
        engine.cancel(gone)
        engine.drain()
    trace = read_trace(tmp_path / "t.jsonl")
    assert [(ask.finish, ask.back) for ask in trace] == [
        ("stop", "later"), ("length", None), ("length", "never"), ("stop", "later"), ("cancelled", "soon")
    ]  # fmt: skip
    assert trace[0].session == trace[1].session is not None and trace[2].session is None
    assert "ann" not in (tmp_path / "t.jsonl").read_text(encoding="utf-8")


def test_an_llm_records_from_when_it_is_told_to(tmp_path: Path) -> None:
    with LLM(model_of("llama"), device_bytes=1 << 20) as llm:
        sampling = Sampling(max_tokens=2, ignore_eos=True)
        llm.generate([[1, 2, 3]], sampling)
        recorder = llm.record(tmp_path / "t.jsonl.gz", key_file=tmp_path / "key")
        llm.generate([[4] * 40, [4] * 50], sampling)
        recorder.close()
        llm.generate([[5, 6]], sampling)
        again = llm.record(tmp_path / "u.jsonl", key_file=tmp_path / "key")
        llm.generate([[4] * 40], sampling)
        size = llm.loop.engine.config.block_size
    trace = read_trace(tmp_path / "t.jsonl.gz")
    assert [(ask.length, ask.output) for ask in trace] == [(40, 2), (50, 2)] and again.num_recorded == 1
    (line,) = [json.loads(text) for text in (tmp_path / "u.jsonl").read_text().splitlines()]
    tokens = torch.full((40,), 4, dtype=torch.int32).numpy()
    assert line["hash_ids"] == read_key(tmp_path / "key").hash_ids(tokens, size), "days can be joined"
