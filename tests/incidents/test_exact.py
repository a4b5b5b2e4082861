"""An incident plays exactly: random lives are recorded, saved in the middle, and lived again on either store."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from fuzzing.lists.incidents import failure_of
from fuzzing.subject import available_stores
from quire import BrokenInvariant, StateError, check
from quire.incidents import Incident, IncidentPlayer, load
from tests.effort import cases
from tests.incidents.lives import Life, state_of

FLYING = (6, 20, 28, 29)  # lives that see everything


@pytest.mark.parametrize("number", range(cases(4, 400)))
def test_a_life_is_lived_again(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(f"incident/{number}", available_stores()[number % 2 :][:1], tmp_path, monkeypatch)
    live_again(life.live(160, middle=90))


@pytest.mark.parametrize("number", cases(FLYING, range(400)))
def test_a_life_with_steps_in_flight_is_lived_again(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(f"flying/{number}", available_stores()[number % 2 :][:1], tmp_path, monkeypatch)
    life.flies(1 + number % 4)
    lives = life.live(160, middle=90)
    live_again(lives)
    some_are_played(number, lives[-1][0])
    assert number not in FLYING or kinds_of(lives[-1][0]) >= {"launch", "fail", "come", "unequal", "trims"}


def live_again(lives: list[tuple[Incident, object]]) -> None:
    for incident, state in lives:
        for store in available_stores():
            player = IncidentPlayer(incident, store=store)
            assert player.run() == len(incident.calls) > 0
            assert state_of(player.cache) == state
            check(player.cache)


def some_are_played(number: int, incident: Incident) -> None:
    """Any part of the calls is a list, for `--what-if` and for what the fuzzer makes shorter."""
    dice = Random(number)
    for share in (1.0, 0.6):
        failure = failure_of(incident.config, [call for call in incident.calls if dice.random() < share], "twin")
        assert failure is None or failure.startswith(("left open", "never admitted"))


def kinds_of(incident: Incident) -> set[str]:
    """Which of the calls that are seldom made were made."""
    calls = [(call[0], call[3]) for call in incident.calls]
    come = {"come" for verb, given in calls if verb == "commit_step" and given[-1] is not None and any(given[-1][0])}
    unequal = {"unequal" for verb, given in calls if verb == "grow" and isinstance(given[2], list)}
    trims = {"trims" for verb, given in calls if verb == "trim" and isinstance(given[1], list)}
    return {verb for verb, _ in calls} | come | unequal | trims


@pytest.fixture
def incident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Incident:
    life = Life("incident/fixed", ("twin",), tmp_path, monkeypatch)
    life.driver.run(120)
    return life.saved()[0][0]


def test_a_changed_answer_is_noticed(incident: Incident) -> None:
    calls = [list(call) for call in incident.calls]
    place = next(nth for nth, call in enumerate(calls) if call[0] == "add" and call[4][0])
    calls[place][4][0][0][1] += 1
    player = IncidentPlayer(Incident("", "", incident.config, calls), store="twin")
    with pytest.raises(BrokenInvariant, match=rf"call {place + 1} of an incident \(add\): it answered"):
        player.run()


def test_a_clock_that_is_read_otherwise_is_noticed(incident: Incident) -> None:
    calls = [list(call) for call in incident.calls]
    place = next(nth for nth, call in enumerate(calls) if call[2])
    calls[place][2] = calls[place][2] * 2
    player = IncidentPlayer(Incident("", "", incident.config, calls), store="twin")
    with pytest.raises(BrokenInvariant, match="less often"):
        player.run()


def test_without_its_beginning_it_is_not_played_exactly(incident: Incident) -> None:
    with pytest.raises(StateError, match="its first calls were dropped"):
        IncidentPlayer(Incident("", "", incident.config, incident.calls, "cut"))


def test_a_file_is_read_as_it_was_written(incident: Incident, tmp_path: Path) -> None:
    path = tmp_path / "again.incident.gz"
    incident.save(path)
    found = load(path)
    assert found == incident
    assert path.stat().st_mode & 0o777 == 0o600
