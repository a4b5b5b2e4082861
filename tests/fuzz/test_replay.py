"""A run as a file of calls: written, read and played again, it is the same run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuzzing.cli import main
from fuzzing.driver import Driver
from fuzzing.lists.calls import Recording, load, recording
from fuzzing.lists.replay import replay
from fuzzing.subject import available_stores
from tests.effort import cases

STORE = available_stores()[-1]


@pytest.mark.parametrize("mix", ["full", "mixed"])
@pytest.mark.long
@pytest.mark.parametrize("seed", range(cases(1, 5)))
def test_a_recording_plays_the_same_calls(seed: int, mix: str) -> None:
    driver = Driver(f"replay/{seed}", (STORE,), mix=mix)
    driver.run(150)
    made = driver.recording()
    again = recording(json.loads(made.text()))
    assert again.text() == made.text()
    player = replay(again, (STORE,), check_every=20, compare_every=5)
    assert player.trial.operations == driver.trial.operations
    assert player.trial.reached == driver.trial.reached
    assert Recording(made.world, player.notes.calls()).text() == made.text()


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_recording_is_a_file(suffix: str, tmp_path: Path) -> None:
    driver = Driver("file/1", (STORE,), mix="mixed")
    driver.run(60)
    path = tmp_path / f"calls{suffix}"
    driver.recording("nothing").save(path)
    assert load(path).text() == driver.recording("nothing").text()


def test_the_command_records_and_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--operations", "150", "--store", "twin", "--record", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()
    assert main(["--replay", str(path), "--store", "twin"]) == 0
    assert "no mismatch" in capsys.readouterr().out


def test_a_failure_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fuzzing.oracle import life

    forgetful = life.store_rest
    monkeypatch.setattr(
        life, "store_rest", lambda state, row, ahead: None if row.committed else forgetful(state, row, ahead)
    )
    options = ["--operations", "20000", "--seed", "5", "--store", "twin", "--record", str(tmp_path)]
    assert main([*options, "--json"]) == 1
    failure = json.loads(capsys.readouterr().out)["failure"]
    assert load(Path(failure["recording"])).what == failure["what"]
    assert main(["--replay", failure["recording"], "--store", "twin"]) == 1
    assert failure["what"] in capsys.readouterr().out
