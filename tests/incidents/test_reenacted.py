"""The museum's reports as incidents: the file says what was wrong, and what would have helped."""

from __future__ import annotations

import io
import json
import re
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from fuzzing.cli import main as fuzz
from fuzzing.lists.incidents import failure_of
from quire.cli.main import main
from quire.incidents import IncidentPlayer, LoosePlayer, load
from quire.incidents.play.findings import find_out
from tests.incidents.reenacted import leaked_holds, lost_hits, starved

HELD = 2  # a state of slots on the live page


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["incident", *words]) == 0
    return capsys.readouterr().out


def test_holds_that_were_never_given_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = leaked_holds(tmp_path)
    found = find_out(load(path))
    assert [what for what, _, _ in found.left_open] == ["hold"] * 4
    assert found.waiting[0].why[:3] == ["slots", 25, 4] and found.waiting[0].asked == 20
    assert "hold 1 is open since 0.0 s" in told(capsys, "show", str(path))


def test_the_leak_becomes_the_shortest_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = leaked_holds(tmp_path)
    assert fuzz(["--replay", str(path), "--shrink", "--store", "twin"]) == 1
    printed = capsys.readouterr().out
    assert "left open: Hold" in printed and "def test_" in printed
    short = load(next(tmp_path.glob("*-short.incident.gz")))
    assert [call[0] for call in short.calls] == ["claim", "admit", "hold"]
    names: dict[str, object] = {}
    exec(printed[printed.index('"""left open') :], names)  # the test that was printed is one
    assert failure_of(names["CONFIG"], names["CALLS"], "twin") == "left open: Hold"  # type: ignore[arg-type]


def test_small_requests_that_starve_behind_a_large_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = starved(tmp_path)
    found = find_out(load(path))
    assert len(found.waiting) == 5 and found.waiting[0].asked == 30
    head = next(who for who in found.waiting if who.behind)
    assert head.why[:3] == ["slots", 57, 24] and head.behind == 4 * 30
    assert "it needs 57 slots, 24 are there, and held back those behind it 120 times" in told(capsys, "show", str(path))
    outcomes = json.loads(told(capsys, "play", str(path), "--what-if", "device=x2", "--json"))["outcomes"]
    assert outcomes["then"]["admitted"] == 1 and outcomes["device=x2"]["admitted"] == 1  # then nobody else got in


def test_hits_that_a_change_has_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = lost_hits(tmp_path / "new")
    before, now = load(lost_hits(tmp_path / "old", host=200)), load(path)
    rates = [sum(one.hit_tokens for one in find_out(incident).stretches) for incident in (before, now)]
    assert rates[1] == 0 < rates[0]
    words = ["--what-if", "device=x4", "--what-if", "eviction=adaptive", "--json"]
    outcomes = json.loads(told(capsys, "play", str(path), *words))["outcomes"]
    assert outcomes["then"]["hit_tokens"] == 0
    assert outcomes["device=x4"]["hit_tokens"] == rates[0]
    assert outcomes["eviction=adaptive"]["hit_tokens"] > 0


def test_on_the_same_cache_a_loose_replay_does_the_same(tmp_path: Path) -> None:
    incident = load(lost_hits(tmp_path, host=200))
    outcome = LoosePlayer(incident.config).play(incident.calls)
    player = IncidentPlayer(incident)
    player.run()
    assert outcome.hit_tokens == sum(one.hit_tokens for one in find_out(incident).stretches)
    assert outcome.skipped == outcome.preempted == 0 and outcome.waited == 0


def test_what_has_no_room_to_grow_is_preempted_and_comes_back(tmp_path: Path) -> None:
    incident = load(starved(tmp_path))
    small = replace(incident.config, tiers=(replace(incident.config.tiers[0], slots=20),))
    player = LoosePlayer(small)
    assert player.play(incident.calls).refused == 1 and not player.waiting


@pytest.mark.parametrize(
    ("change", "why"), [("disk=x2", "it is none of"), ("device=many", "it is not a number"), ("eviction=best", "order")]
)
def test_changes_that_are_none_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, why: str
) -> None:
    assert main(["incident", "play", str(lost_hits(tmp_path)), "--what-if", change]) == 2
    assert why in capsys.readouterr().err


def test_the_live_page_is_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incident", "play", str(lost_hits(tmp_path)), "--page", "--check", "40", "--speed", "1000000"]) == 0
    printed = capsys.readouterr()
    assert "open http://127.0.0.1:" in printed.err and "every row, slot and answer as it was" in printed.out


def test_step_by_step_the_page_shows_what_was_there_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enter after each step; the live page beside it is of the cache that is played, at that moment."""
    path, told, pages = leaked_holds(tmp_path), dict.fromkeys(("out", "err"), ""), list[int]()

    class Enter(io.StringIO):
        def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
            new = capsys.readouterr()
            told["out"], told["err"] = told["out"] + new.out, told["err"] + new.err
            (url,) = re.findall(r"open (\S+)", told["err"])
            with urllib.request.urlopen(f"{url.rstrip('/')}/viewer/snapshot?colour=state", timeout=60) as reply:
                pages.append(json.load(reply)["pools"][0]["counts"][HELD])
            return "\n"

    monkeypatch.setattr(sys, "stdin", Enter())
    assert main(["incident", "play", str(path), "--page", "--step", "--from", "2"]) == 0
    told["out"] += capsys.readouterr().out
    steps = re.findall(r" +([0-9.]+) s  call +([0-9]+)  admit", told["out"])
    assert len(steps) == len(pages) >= 3 and float(steps[0][0]) >= 2 and "every row, slot and answer" in told["out"]
    assert pages == sorted(pages) and pages[0] < pages[-1], "holds that nobody gives up"
