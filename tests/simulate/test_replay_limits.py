"""Files that nobody should have written: what a trace takes in memory is bounded, whatever it says or unpacks to."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import quire.trace.read.trace as traces
from quire import InputError
from quire.simulate.setup.replay_settings import ReplaySettings
from quire.trace.read.lines import LONGEST, LONGEST_LINE, TraceError
from quire.trace.read.trace import Trace, read_trace

from ..engine.threads import Crew
from ..trace.test_replay_trace import GOOD, OWN, written

MIB = 1 << 20


@contextmanager
def at_most(num_bytes: int) -> Iterator[None]:
    """Python's own memory, at its peak inside the block."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < num_bytes, f"{peak:,} bytes"


def bomb(path: Path, unit: bytes, num_bytes: int) -> Path:
    """A file of a few hundred kilobytes that unpacks to a good line, one of so many bytes, and a good line."""
    good = json.dumps(GOOD).encode() + b"\n"
    with gzip.open(path, "wb", 1) as file:
        file.write(good)
        for _ in range(num_bytes // MIB):
            file.write(unit * (MIB // len(unit)))
        file.write(b"\n" + good)
    return path


@pytest.mark.parametrize("unit", [b" ", b'"hash_ids": [0],'])
def test_a_line_without_end_takes_bounded_memory(tmp_path: Path, unit: bytes) -> None:
    path = bomb(tmp_path / "bomb.gz", unit, 40 * MIB)
    assert path.stat().st_size < MIB
    with at_most(8 * LONGEST_LINE):
        with pytest.raises(TraceError) as wrong:
            read_trace(path)
        trace = read_trace(path, skip_bad=True)
    assert str(wrong.value) == "bomb.gz line 2: it is longer than 4,194,304 bytes; write one request per line"
    assert [ask.line for ask in trace] == [1, 3] and [error.line for error in trace.skipped] == [2]


@pytest.mark.parametrize("zipped", [False, True])
def test_the_longest_line_is_read_and_a_longer_one_is_not(tmp_path: Path, zipped: bool) -> None:
    text = json.dumps(GOOD)
    whole, over = (text.ljust(LONGEST_LINE - 1 + more) for more in (0, 1))  # and the end of the line
    trace = read_trace(written(tmp_path, whole, over, text, zipped=zipped), skip_bad=True)
    assert [ask.line for ask in trace] == [1, 3] and [error.line for error in trace.skipped] == [2]
    path = tmp_path / "unended.jsonl"
    path.write_text(over + " ")  # the file ends inside the line
    with pytest.raises(TraceError, match="line 1: it is longer"):
        read_trace(path)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no file without an end here")
def test_a_file_without_end_is_told() -> None:
    with pytest.raises(TraceError, match="zero line 1: it is longer"):
        read_trace("/dev/zero")


def test_requests_parts_and_broken_lines_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MOST_REQUESTS", 3)
    assert len(read_trace(written(tmp_path, *[OWN] * 3))) == 3
    path = written(tmp_path, *[OWN] * 9)
    assert len(read_trace(path, limit=3)) == 3
    with pytest.raises(TraceError, match=r"line 4: 3 requests are the most that can be replayed; split the trace, or"):
        read_trace(path)
    monkeypatch.setattr(traces, "MOST_REQUESTS", 100)
    monkeypatch.setattr(traces, "MOST_PARTS", 5)
    assert len(read_trace(path, limit=2)) == 2
    with pytest.raises(TraceError, match=r"line 3: 5 parts of prompts are the most"):
        read_trace(path)
    monkeypatch.setattr(traces, "MOST_BAD", 4)
    assert len(read_trace(written(tmp_path, *["bad"] * 4, OWN), skip_bad=True).skipped) == 4
    with pytest.raises(TraceError, match=r"line 5: 4 lines before it are broken, too; pass a trace"):
        read_trace(written(tmp_path, *["bad"] * 5, OWN), skip_bad=True)


def test_a_part_without_a_name_is_like_no_other_whatever_others_are_called(tmp_path: Path) -> None:
    twins = {**OWN, "prompt": [[None, 4], ["\0private 0", 4], [None, 4]]}
    trace = read_trace(written(tmp_path, twins, twins))
    assert len({int(part) for ask in trace for part in ask.parts}) == 5


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("zipped", [False, True])
def test_a_trace_comes_through_a_pipe(tmp_path: Path, zipped: bool) -> None:
    text = written(tmp_path, GOOD, GOOD, zipped=zipped).read_bytes()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with Crew() as crew:
        crew.start(pipe.write_bytes, text)
        assert len(read_trace(pipe)) == 2


def test_tables_have_rows_for_the_requests_that_there_are(tmp_path: Path) -> None:
    """One line with a very long prompt takes one row; many of them at once are refused before anything is allocated."""
    long = {**OWN, "prompt": [["a", LONGEST - 1]]}
    one = read_trace(written(tmp_path, long))
    for settings in (ReplaySettings(), ReplaySettings(max_sequences=4)):
        assert settings.config(one).max_sequences == 1
    many = Trace("many", one.requests * 200)
    assert ReplaySettings(max_sequences=100).config(many).max_sequences == 100
    with pytest.raises(InputError, match="128 sequences of up to 16,777,220 tokens may run at once, too many"):
        ReplaySettings(max_sequences=128).config(many)
