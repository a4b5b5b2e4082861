"""Traces of every version of the format mean today what they meant when they were written; newer ones are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.simulate import read_trace
from quire.trace.read.lines import TraceError
from quire.trace.record.trace_writer import VERSION

from .traces import FILES, meaning, write

HERE = Path(__file__).resolve().parent
VERSIONS = range(1, VERSION + 1)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_trace_means_what_it_meant(version: int, name: str) -> None:
    folder = HERE / f"trace-{version}"
    told = json.loads((folder / "read.json").read_text(encoding="utf-8"))[name]
    assert json.loads(json.dumps(meaning(folder / f"{name}.jsonl"))) == told


def test_what_is_written_today_says_all_that_the_newest_one_says(tmp_path: Path) -> None:
    """Ids are keyed afresh, so only what is no id can be compared."""
    write(tmp_path / "now")
    for name in FILES:
        now = [set(json.loads(line)) for line in (tmp_path / "now" / f"{name}.jsonl").read_text().splitlines()]
        kept = (HERE / f"trace-{VERSION}" / f"{name}.jsonl").read_text(encoding="utf-8")
        assert now == [set(json.loads(line)) for line in kept.splitlines()]


def test_a_newer_trace_is_refused_with_the_cure(tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    for line in ({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]},
                 {"time_ms": 0, "prompt": [["a", 1]], "output_tokens": 1}):  # fmt: skip
        path.write_text(json.dumps({**line, "quire": {"trace": VERSION + 1}}), encoding="utf-8")
        with pytest.raises(TraceError, match=f"version {VERSION + 1}, and this Quire reads up to {VERSION}; upgrade"):
            read_trace(path)
        for odd in (0, True, "2", None):
            path.write_text(json.dumps({**line, "quire": {"trace": odd}}), encoding="utf-8")
            with pytest.raises(TraceError, match="its version is"):
                read_trace(path)
