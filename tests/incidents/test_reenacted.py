"""The museum's reports as incidents: the file says what was wrong, and what would have helped."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuzzing.cli import main as fuzz
from fuzzing.lists.incidents import failure_of
from quire import Request
from quire.cli.main import main
from quire.incidents import IncidentPlayer, LoosePlayer, load
from quire.incidents.play.findings import find_out
from quire.incidents.play.waiting_line import Order, WaitingLine
from tests.incidents.reenacted import EXAMPLE, leaked_holds, lost_hits, starved
from tests.waits import until

PAGE = EXAMPLE.parents[1] / "docs" / "incidents.md"
HELD = 2  # a state of slots on the live page


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["incident", *words]) == 0
    return capsys.readouterr().out


def test_a_reader_of_the_docs_makes_the_files_and_is_shown_what_they_show(tmp_path: Path) -> None:
    """The commands of docs/incidents.md, as they stand there, and what it says that they print."""
    made = subprocess.run([sys.executable, str(EXAMPLE)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert made.stdout.split() == [f"build/incidents/{name}.incident.gz" for name in ("leak", "starved", "fewer-hits")]
    page = PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"```console\n\$ (quire incident .*)\n([^`]*)```", page)
    assert len(shown) == 3 and "python examples/incidents.py" in page
    for command, told in shown:
        words = [sys.executable, "-m", "quire.cli", *command.split()[1:]]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert told in done.stdout, command


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
    words = ["--what-if", "device=x2", "--what-if", "order=fits", "--what-if", "order=fair", "--json"]
    outcomes = json.loads(told(capsys, "play", str(path), *words))["outcomes"]
    assert {name: one["admitted"] for name, one in outcomes.items()} == {
        "then": 1, "device=x2": 6, "order=fits": 5, "order=fair": 1,
    }  # fmt: skip
    assert outcomes["device=x2"]["longest_wait"] == 0 and outcomes["order=fits"]["longest_wait"] == 0


def test_hits_that_a_change_has_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = lost_hits(tmp_path / "new")
    before, now = load(lost_hits(tmp_path / "old", host=200)), load(path)
    rates = [sum(one.hit_tokens for one in find_out(incident).stretches) for incident in (before, now)]
    assert rates[1] == 0 < rates[0]
    words = ["--what-if", "device=x4", "--what-if", "eviction=adaptive", "--what-if", "host=200", "--json"]
    outcomes = json.loads(told(capsys, "play", str(path), *words))["outcomes"]
    assert outcomes["then"]["hit_tokens"] == 0
    assert outcomes["device=x4"]["hit_tokens"] == outcomes["host=200"]["hit_tokens"] == rates[0]
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
    assert player.play(incident.calls).refused == 2 and not player.waiting, "the large one that never got in, too"


def line(order: Order, *waiting: tuple[int, str | None, int]) -> WaitingLine:
    """Requests that came one after the other, of tenants and lengths."""
    made = WaitingLine(order)
    for number, tenant, length in waiting:
        made.enter(number, Request(number, np.arange(length, dtype=np.int32), tenant=tenant), float(number))
    return made


def test_whose_turn_it_is() -> None:
    came = ((0, "a", 50), (1, "a", 50), (2, "a", 50), (3, "b", 90), (4, "b", 10), (5, None, 10), (6, None, 10))
    assert [one.number for one in line("fcfs", *came).first(4)] == [0, 1, 2, 3]
    fair = line("fair", *came)
    assert [one.number for one in fair.first(9)] == [0, 3, 5, 6, 1, 4, 2]
    assert [one.number for one in fair.first(2)] == [0, 3]
    assert fair.admitted(0) == 0.0 and fair.admitted(3) == 3.0
    assert [one.number for one in fair.first(9)] == [5, 6, 1, 4, 2]
    fair.leave(5)
    fair.leave(6)
    fair.enter(7, Request(7, np.arange(5, dtype=np.int32), tenant="c"), 7.0)
    assert [one.number for one in fair.first(9)] == [1, 7, 4, 2], "who comes now begins beside those that wait"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("disk=x2", "it is none of"),
        ("device=many", "it is not a number"),
        ("eviction=best", "order"),
        ("host=x2", "there was none: write host=500"),
        ("order=luck", "it is not an order"),
    ],
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
    path, told, held, steps = leaked_holds(tmp_path), dict.fromkeys(("out", "err"), ""), list[int](), list[int]()

    class Enter(io.StringIO):
        def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
            new = capsys.readouterr()
            told["out"], told["err"] = told["out"] + new.out, told["err"] + new.err
            (url,) = re.findall(r"open (\S+)", told["err"])
            if len(steps) in (0, 5):  # the page is made anew now and then
                before = page(url)["time"]
                until(lambda: page(url)["time"] > before)
                held.append(page(url)["pools"][0]["counts"][HELD])
            steps.append(told["out"].count("call "))
            return "\n"

    monkeypatch.setattr(sys, "stdin", Enter())
    assert main(["incident", "play", str(path), "--page", "--step", "--from", "2"]) == 0
    told["out"] += capsys.readouterr().out
    first = re.findall(r" +([0-9.]+) s  call +[0-9]+  admit", told["out"])[0]
    assert len(steps) > 5 and float(first) >= 2 and "every row, slot and answer" in told["out"]
    assert held[0] < held[1], "holds that nobody gives up"


def page(url: str) -> Any:
    with urllib.request.urlopen(f"{url.rstrip('/')}/viewer/snapshot?colour=state", timeout=60) as reply:
        return json.load(reply)
