"""The fuzzer as a test: seeded runs on each store and on both in lockstep, and the command itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest

from fuzzing.cli import main
from fuzzing.session import Limits, Report, run_session
from fuzzing.subject import StoreName, available_stores
from fuzzing.world.worlds import LONG, random_world
from tests.effort import cases

needs_compiled = pytest.mark.skipif("compiled" not in available_stores(), reason="the compiled store is not built here")


def fuzz(seed: int, stores: tuple[StoreName, ...], operations: int, mix: str = "any") -> Report:
    report = run_session(seed, stores, Limits(operations=operations, mix=mix))
    assert report.failure is None, json.dumps(report.facts(), indent=2)
    assert report.operations >= operations
    return report


def reach(seed: int, stores: tuple[StoreName, ...], operations: int, mix: str, rare: Iterable[str], more: int) -> None:
    """Sessions of some operations each, one seed after the other, until each of these was reached more often than that.

    What a seed makes changes with every change of the fuzzer or of the store: no single one has to see everything.
    """
    reached = Counter[str]()
    for nth in range(5):
        reached += fuzz(seed + nth, stores, operations, mix).reached
        if all(reached[what] > more for what in rare):
            return
    missing = {what: reached[what] for what in rare if reached[what] <= more}
    raise AssertionError(f"too seldom: {missing}; reached: {reached}")


@needs_compiled
@pytest.mark.long
@pytest.mark.parametrize(("mix", "seed"), [("full", 14), ("mixed", 18)])
def test_many_operations(mix: str, seed: int) -> None:
    setback = "sequence set back" if mix == "full" else "sequence lost"
    rare = ["copy", "onboard", "offload", "exchange", "failed move", setback, "claim set back", "refused for slots"]
    rare += ["state written inside a step", "page of another group evicted"] if mix == "mixed" else []
    reach(seed, ("compiled",), cases(2_500, 50_000), mix, rare, cases(3, 15))


@pytest.mark.long
def test_cold_worlds_reach_what_is_rare() -> None:
    rare = ("onboard", "exchange", "failed move", "claim set back", "admitted 30 calls after its claim")
    learned = ("ghost met", "order learned", "page aged", "released by a child", "compared in a colder tier")
    early = ("worth most copied early", "used too seldom to be copied")
    reach(23, available_stores(), cases(2_500, 20_000), "cold", (*rare, *learned, *early), cases(2, 10))


def test_slow_worlds_reach_what_is_rare() -> None:
    late = ("background onboard", "background offload", "background plan finished", "background move failed")
    rare = ("prefetch refused", "prefetch cancelled", "prefetched pages")
    reach(19, available_stores(), 2_500, "slow", (*late, *rare, "pages restored"), 0)


def test_talks_reach_hints_sessions_and_resume_points() -> None:
    hints = ("hinted page", "hinted page reused", "page hinted at a request's end", "superseded page")
    sessions = ("session that goes on", "session that leaves text")
    points = ("point guessed", "point named", "point would have served", "kind of point counts no more")
    reach(7, available_stores(), cases(2_000, 20_000), "talks", (*hints, *sessions, *points), cases(2, 20))


@pytest.mark.long
def test_long_worlds_evict_in_runs() -> None:
    """Longer than what the compiled store takes at a time, and than that twice; in all others they are shorter."""
    report = fuzz(25, available_stores(), cases(400, 8_000), "long")
    runs = {length: report.reached[f"run of {length:3} pages and more"] for length in (16, 32, 64, 128, 256)}
    assert runs[16] and runs[32] and sum(runs[length] for length in (64, 128, 256)) > cases(2, 40), runs
    assert report.reached["offload"] and report.reached["with a hit"], report.reached


def test_only_a_long_world_is_large() -> None:
    for seed in range(40):
        world = random_world(Random(seed), LONG)
        assert world.scale > 1 and sum(map(max, world.tiers)) > world.blocks(world.max_length) >= 27
        assert random_world(Random(seed)).scale == 1


@pytest.mark.long
@pytest.mark.parametrize("mix", ["full", "mixed"])
def test_both_stores_in_lockstep(mix: str) -> None:
    """Where the compiled store is not built, the reference store alone."""
    report = fuzz(14, available_stores(), cases(500, 15_000), mix)
    assert report.reached["admitted"] and report.reached["with a hit"]


def test_the_command_prints_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--operations", "500", "--seed", "3", "--store", "twin", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["mismatches"] == 0 and facts["seed"] == 3 and facts["operations"] >= 500


def test_the_same_seed_makes_the_same_calls() -> None:
    one, other = (fuzz(4, available_stores()[-1:], 250) for _ in range(2))
    assert (one.operations, one.worlds, one.reached) == (other.operations, other.worlds, other.reached)


def test_a_mismatch_is_reported_with_its_calls(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fuzzing.oracle import life

    forgetful = life.store_rest
    monkeypatch.setattr(
        life, "store_rest", lambda state, row, ahead: None if row.committed else forgetful(state, row, ahead)
    )
    assert main(["--operations", "20000", "--seed", "5", "--store", "twin", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["mismatches"] == 1 and facts["failure"]["trace"][-1].startswith(("release", "suspend"))


WITHOUT_ASSERTS = """
from quire import Removed
from fuzzing.driver import Driver
driver = Driver("O/4", ("twin",), mix="mixed")
driver.run(400)
subject = driver.trial.subjects[0]
print(len(driver.trial.known.meaning), len(subject.keys), len(subject.mirror.groups[0]))
subject.mirror.replay([Removed(0, (7,))])
"""


def test_it_compares_the_same_without_asserts() -> None:
    """Under python -O identities and keys are learned, and a removal of what was never told is found."""
    done = subprocess.run([sys.executable, "-O", "-c", WITHOUT_ASSERTS], capture_output=True, text=True)
    assert all(int(number) > 0 for number in done.stdout.split()), done.stdout
    assert "it was not there" in done.stderr, done.stderr
