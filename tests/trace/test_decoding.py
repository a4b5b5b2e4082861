"""Mutated traces and shapes: thousands of seeded cases here, as many as you like by hand (`tests.trace.decoding`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire import InputError
from quire.simulate.setup.shape import LONGEST_FILE, MOST, find_shape
from quire.trace.read.lines import TraceError
from quire.trace.read.trace import read_trace

from ..effort import cases
from .decoding import SHAPE, run


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "count"), [("traces", cases(1000, 2500)), ("logs", 300), ("shapes", cases(1000, 2500)), ("sessions", 150)]
)
def test_a_mutated_file_is_refused_with_the_documented_error_or_read_soundly(what: str, count: int) -> None:
    ends = run(what, count, seed=7)
    assert sum(ends.values()) == count and ends["refused"] > count // 10 and ends["read"] > count // 10


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("a = " + "[" * 5000, "it is nested too deep"),
        ("#" * (LONGEST_FILE + 1), "it is longer than 65,536 bytes"),
        ("[[group]]\nbytes_per_token = 0x" + "f" * 9000, "its bytes_per_token is a int too large to be shown"),
        (f"[[group]]\nbytes_per_token = {MOST + 1}", f"give a whole number from 1 to {MOST}"),
        (f"typical_tokens = {MOST + 1}\n[[group]]\nbytes_per_token = 1", "typical_tokens is 2814"),
        ("[[group]]\nbytes_per_token = 1\nwindow = 0", "its window is 0"),
        ("[[group]]\nbytes_per_token = 1\nshare = 1e-300", "its share is 1e-300"),
        ("[[group]]\nbytes_per_token = 1\nname = 3", "its name is 3"),
        ("name = []\n[[group]]\nbytes_per_token = 1", "its name is []"),
        (f"{'k' * 5000} = 1\n[[group]]\nbytes_per_token = 1", "it has the key 'kkk"),
    ],
)
def test_a_shape_beyond_a_limit_is_told_in_a_line(tmp_path: Path, text: str, fact: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(InputError) as wrong:
        find_shape(str(path)).slots(1 << 40, 16)
    assert fact in str(wrong.value) and len(str(wrong.value)) < 500


def test_numbers_at_the_limit_are_good(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    groups = f"[[group]]\nbytes_per_token = {MOST}\n[[group]]\nbytes_per_token = 1\nname = 'b'\n"
    path.write_text(f"typical_tokens = {MOST}\n{groups}")
    assert find_shape(str(path)).slots(1 << 62, 1) == (16383, 16383)  # by share: the second takes next to nothing
    path.write_bytes(SHAPE)
    assert len(find_shape(str(path)).layers) == 3


@pytest.mark.parametrize("depth", [100, 900, 960, 990, 1000, 50_000])
def test_nesting_that_can_be_read_can_be_told(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"prompt": [["a", ' + "[" * depth + "]" * depth + ']], "time_ms": 0, "output_tokens": 1}')
    with pytest.raises(TraceError) as wrong:
        read_trace(path)
    assert wrong.value.line == 1 and len(str(wrong.value)) < 300


def test_a_long_name_of_a_field_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"prompt": [["a", 1]], "time_ms": 0, "output_tokens": 1, "' + "x" * 10_000 + '": 1}')
    with pytest.raises(TraceError, match=r"field 'x+\.\.\. is unknown") as wrong:
        read_trace(path)
    assert len(str(wrong.value)) < 300
