"""Five workloads of which little is reused: the one command that docs/mysteries.md names says why, in its words."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from quire.cli.simulate.replay_command import main as replay
from quire.cli.simulate.sweep_command import main as sweep

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs/mysteries.md").read_text(encoding="utf-8")
TOLD = re.findall(r"\$ quire replay (.*?)\n```\n\n> (.*?)\n", PAGE)


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_there_are_five() -> None:
    assert len(TOLD) == 5 == len(list((ROOT / "examples/mysteries").glob("*.jsonl")))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("command", "words"), TOLD)
def test_one_command_explains_it(command: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(shlex.split(command)) == 0
    assert words in capsys.readouterr().out


def test_what_the_page_says_would_help_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path("examples/mysteries/hybrid.toml").read_text(encoding="utf-8")
    better = tmp_path / "better.toml"
    better.write_text(text.replace("snapshot_at_end = false", "snapshot_at_end = true"))
    assert replay(["examples/mysteries/hybrid.jsonl", "--shape", str(better)]) == 0
    rate = re.search("`snapshot_at_end = true` in the shape brings it to (.*?)\\.\n", PAGE)
    assert rate is not None and capsys.readouterr().out.startswith(f"{rate[1]} of the prompt tokens were reused")
    command = re.search("`quire sweep (.*?)`", PAGE)
    assert command is not None and sweep([*shlex.split(command[1]), "--workers", "1"]) == 0
    assert "points of hit rate" in capsys.readouterr().out.splitlines()[0]


def test_a_single_request_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    command = re.findall(r"\$ quire replay (.*--explain .*)\n", PAGE)
    assert replay(shlex.split(command[0])) == 0
    told = capsys.readouterr().out
    assert told.startswith("Line 10, admitted at 45.0 s:") and "evicted" in told and "more slots for the group" in told


def gain_told(out: str) -> tuple[float, float]:
    found = re.search(r"hit rate ([\d.]+) % -> ([\d.]+) % at most", out)
    assert found is not None, out
    return float(found[1]), float(found[2])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "options", "fault", "mended"),
    [
        ("hybrid", "--shape FILE", "snapshot_at_end = false", "snapshot_at_end = true"),
        ("rare-snapshots", "--shape FILE", "snapshot_every = 4096", "snapshot_every = 128"),
        ("salt", "", "", ""),
        ("small-pool", "--device-blocks 340", "340", "6000"),
    ],
)
def test_the_gain_is_the_one_that_a_replay_without_the_fault_has(
    name: str, options: str, fault: str, mended: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, shape = Path(f"examples/mysteries/{name}.jsonl"), Path(f"examples/mysteries/{name}.toml")
    assert replay([str(trace), *options.replace("FILE", str(shape)).split()]) == 0
    before, after = gain_told(capsys.readouterr().out)
    if shape.exists():
        text = shape.read_text(encoding="utf-8")
        assert fault in text
        shape = tmp_path / "mended.toml"
        shape.write_text(text.replace(fault, mended), encoding="utf-8")
    elif not fault:
        lines = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
        trace = tmp_path / "mended.jsonl"
        trace.write_text("".join(json.dumps({**line, "scope": {}}) + "\n" for line in lines), encoding="utf-8")
    assert replay([str(trace), *options.replace("FILE", str(shape)).replace(fault or " ", mended).split()]) == 0
    rate = float(capsys.readouterr().out.split(" %")[0])
    assert before + 10 < rate == pytest.approx(after, abs=1.0)
