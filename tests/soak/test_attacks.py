"""Attacks are found by their folder, run to their end or to the limit, and a failure comes with what repeats it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .attacks import MAIN, main, scripts

HOLDS, BREAKS, HANGS = "pass", "import sys; sys.exit(1)", "import threading; threading.Event().wait()"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three attacks, and what they share."""
    made = tmp_path / "made_up"
    made.mkdir()
    for name, what in {"a_holds": HOLDS, "b_breaks": BREAKS, "c_holds": HOLDS}.items():
        (made / f"{name}.py").write_text(f"{MAIN}\n    {what}\n", encoding="utf-8")
    for name in ("__init__", "rig"):
        (made / f"{name}.py").write_text("", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return made


def test_every_failure_is_told_and_the_rest_still_runs(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert scripts(folder) == ["a_holds", "b_breaks", "c_holds"]
    assert main([], folder, "made_up") == 1
    told = capfd.readouterr().out
    assert "-- a_holds: held" in told and "-- c_holds: held" in told and "3 attacks, 1 failures" in told
    assert "FAILURE: b_breaks ended with 1\n  again: python -m made_up.b_breaks" in told


def test_one_that_hangs_is_ended_and_is_a_failure(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "c_hangs.py").write_text(f"{MAIN}\n    {HANGS}\n", encoding="utf-8")
    assert main(["c_hangs", "--limit", "0.2"], folder, "made_up") == 1
    assert "FAILURE: c_hangs did not end within 0.2 s" in capfd.readouterr().out


def test_those_that_are_named_and_no_others(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["a_holds"], folder, "made_up") == 0
    assert "1 attacks, 0 failures" in capfd.readouterr().out
    assert main(["d"], folder, "made_up") == 2
