"""The soak itself: it counts, it says what repeats a failure, and it leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fuzzing.cli import main as fuzz
from fuzzing.oracle import life
from fuzzing.subject import available_stores

from . import pieces
from .__main__ import shares

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif("compiled" not in available_stores(), reason="the compiled store is not built here")
WITHOUT = "import sys, runpy; sys.modules['msgspec'] = sys.modules['zmq'] = None; runpy.run_module('tests.soak', run_name='__main__')"  # noqa: E501


def start(*options: str, code: str = "") -> subprocess.Popen[str]:
    how = ["-c", code] if code else ["-m", "tests.soak"]
    return subprocess.Popen(
        [sys.executable, *how, "--jobs", "1", *options],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def test_it_runs_without_what_cannot_be_installed() -> None:
    soak = start("--calls", "1", code=WITHOUT)
    told, _ = soak.communicate(timeout=240)
    assert soak.returncode == 0, told
    assert "transfer is left out: " in told and "events is left out: " in told
    assert "calls compiled" in told.splitlines()[-1] and "0 failures" in told.splitlines()[-1]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_all_its_processes(how: signal.Signals) -> None:
    with start("--every", "0.1", "--shares", "compiled=1") as soak:
        assert soak.stdout is not None and "calls compiled" in soak.stdout.readline()
        os.kill(soak.pid, how)
        rest = soak.stdout.read()  # ends when the last process that can write has ended
    assert ("in all" in rest) == (how is signal.SIGTERM)
    assert soak.returncode == (0 if how is signal.SIGTERM else -signal.SIGKILL)


def test_a_failure_comes_with_what_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(life, "store_rest", lambda state, row, ahead: None)
    failed = next(one for seed in range(99) if (one := pieces.run("compiled", seed, tmp_path)).failure)
    assert failed.recording is not None
    for again in (failed.again.split()[3:], ["--replay", str(failed.recording)]):
        assert fuzz(again) == 1
        assert str(failed.failure) in capsys.readouterr().out


def test_what_breaks_a_piece_is_its_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pieces.RUN, "events", lambda kind, seed, folder: 1 // 0)
    result = pieces.run("events", 7, tmp_path)
    assert result.failure == "ZeroDivisionError: integer division or modulo by zero"
    assert result.again == "python -m tests.soak --again events:7"


def test_shares_are_of_known_kinds() -> None:
    assert shares("compiled=2,events=0.5,lockstep=0") == {"compiled": 2.0, "events": 0.5}
    with pytest.raises(Exception, match="KIND=SHARE"):
        shares("cache=1")
