"""The benchmark of the engine on a GPU runs, far smaller, on a processor: every row prints its line."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks import gpu_engine  # noqa: E402

ROWS = [
    "decode    1:",
    "decode    3:",
    "3 at 64 in common:",
    "3 at 64 of their own:",
    "first token of 160:",
    "mix,",
    "mix,",
]
MORE = ["first token of 640 from host memory:", "sample, no reuse:", "sample, reuse:", "sample, reuse, host memory:"]


@pytest.mark.slow
def test_every_row_at_a_tiny_size(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu_engine, "VOCABULARY", 10_001)
    monkeypatch.setattr(sys, "argv", ["gpu_engine", "--tiny"])
    gpu_engine.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line for line, row in zip(lines, ROWS + MORE, strict=True) if not line.startswith(row)] == []
    assert " 0 pages brought up" not in lines[7]
    shares = [float(line.split()[-10].rstrip("%")) for line in lines[8:]]
    assert all(0 < share < 100 for share in shares), lines[8:]
