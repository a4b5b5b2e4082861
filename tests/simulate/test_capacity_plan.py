"""Plans: nothing cheaper would do, what is assumed is said, and a model that is off recommends nothing."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire import InputError
from quire.cli.simulate import fleet_command, plan_command, sweep_command
from quire.cli.trace import trace_command as trace_command
from quire.simulate.capacity.capacity_plan import (
    CapacityPlan,
    Objective,
    PredictionCheck,
    Prices,
    Search,
    Tried,
    find_plan,
    memories,
    try_fleet,
)
from quire.simulate.capacity.fleet import Fleet, played
from quire.simulate.capacity.plan_page import ShownPlan, money_text, outcome
from quire.simulate.play.sweep import LocalExecutor, TraceSource
from quire.simulate.setup.engine_pace import Pace
from quire.simulate.setup.replay_settings import ReplaySettings
from quire.simulate.setup.slow_pace import DISK, SlowPace
from quire.trace.read.trace import read_trace

GB = 10**9
SMALL = ReplaySettings(block_size=64)
CHEAP = Prices(worker=1.0, device=0.01, host=0.001, disk=0.0)


def talks(folder: Path, count: int = 32, num_talks: int = 8) -> TraceSource:
    """Several talks in turn, each prompt with all before it, ten a second."""
    lines = []
    for at in range(count):
        turn, nth = divmod(at, num_talks)
        parts = [[f"talk {nth}", 2000], *([f"turn {nth}.{one}", 100] for one in range(turn))]
        lines.append(json.dumps({"time_ms": 100 * at, "prompt": parts, "output_tokens": 2}))
    path = folder / "talks.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return TraceSource(str(path))


def search(source: TraceSource, seconds: float, **options: Any) -> Search:
    pace = Pace(prefill_tokens_per_second=8000, decode_ms=1)
    workers = memories(replace(SMALL, pace=pace), [GB, 4 * GB], [0, 4 * GB], [0])
    return Search(source, workers, Objective(seconds, 90), CHEAP, **options)


@pytest.mark.parametrize("jobs", [1, 3])
def test_nothing_cheaper_would_do(tmp_path: Path, jobs: int) -> None:
    asked = search(talks(tmp_path), 0.5, most_workers=4)
    plan = find_plan(asked, executor=LocalExecutor(), jobs=jobs)
    assert plan.chosen is not None and plan.chosen.keeps(asked.objective)
    every = [Fleet(count, "exact", memory) for memory in asked.memories for count in range(1, 5)]
    doing = [one for one in (try_fleet(asked, fleet) for fleet in every) if one.keeps(asked.objective)]
    assert plan.chosen.price == pytest.approx(min(one.price for one in doing))
    assert len({one.price for one in doing}) > 1, "there was a choice"
    prices = [one.price for one in plan.tried]
    assert prices == sorted(prices) and plan.chosen in plan.tried
    again = played(read_trace(asked.source.path), plan.chosen.fleet, (90,))
    assert plan.chosen.result is not None and again.ttft(90) == plan.chosen.result.ttft_ms["objective"] / 1000 <= 0.5


def test_more_workers_with_less_memory_may_be_cheaper_than_what_was_tried_beside(tmp_path: Path) -> None:
    asked = replace(search(talks(tmp_path), 2.0), prices=Prices(worker=1.0, device=1.0, host=0.0, disk=0.0))
    asked = replace(asked, memories=[asked.memories[0], asked.memories[2]])
    plan = find_plan(asked, executor=LocalExecutor(), jobs=2)
    assert plan.chosen is not None and (plan.chosen.fleet.workers, plan.chosen.price) == (2, 4.0)
    assert [one.price for one in plan.tried if one.keeps(asked.objective)] == [4.0, 5.0]


def test_many_workers_are_found_in_few_tries(tmp_path: Path) -> None:
    asked = search(talks(tmp_path, 30, 30), 0.45, most_workers=64)
    slow = replace(asked.memories[3], pace=Pace(prefill_tokens_per_second=4600, decode_ms=1), speed=3.0)
    asked = replace(asked, memories=[slow], router="round_robin")
    plan = find_plan(asked, executor=LocalExecutor())
    assert plan.chosen is not None
    count = plan.chosen.fleet.workers
    assert count > 8 and try_fleet(asked, plan.chosen.fleet).keeps(asked.objective)
    assert not try_fleet(asked, replace(plan.chosen.fleet, workers=count - 1)).keeps(asked.objective)


def test_memory_that_fits_nothing_is_tried_once(tmp_path: Path) -> None:
    asked = replace(search(talks(tmp_path), 0.5), memories=memories(SMALL, [1000], [0], [0]))
    plan = find_plan(asked, executor=LocalExecutor())
    assert plan.chosen is None and len(plan.tried) == 1 and "holds no page" in plan.tried[0].error


def test_memory_that_some_request_does_not_fit_into_is_not_tried_with_more_workers(tmp_path: Path) -> None:
    lines = [{"time_ms": 100 * at, "prompt": [[at, 2000 if at != 5 else 9000]], "output_tokens": 2} for at in range(40)]
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    asked = replace(search(TraceSource(str(path)), 30), memories=memories(SMALL, [GB, 4 * GB], [0], [0]))
    asked = replace(asked, prices=Prices(worker=0.1, device=1.0))  # two workers with less would be cheaper
    plan = find_plan(asked, executor=LocalExecutor())
    assert [(one.fleet.workers, one.num_refused) for one in plan.tried] == [(1, 1), (1, 0)]
    assert plan.chosen is plan.tried[1], "one of 40 is less than may be late, and is served all the same"


def test_prices_and_memories() -> None:
    (one, two) = memories(SMALL, [10 * GB], [20 * GB], [0, 100 * GB])
    assert [tier.name for tier in two.tiers] == ["device", "host", "disk"] and len(one.tiers) == 2
    assert two.tiers[2].slow and two.slow == DISK and one.slow is None, "no step waits for a disk"
    assert memories(replace(two, slow=SlowPace(read=1e9)), [GB], [GB], [0, GB])[1].slow == SlowPace(read=1e9)
    prices = Prices(worker=1.0, device=0.1, host=0.01, disk=0.001)
    assert prices.per_hour(Fleet(3, "exact", one)) == pytest.approx(3 * (1 + 1 + 0.2))
    assert prices.per_hour(Fleet(1, "exact", two)) == pytest.approx(1 + 1 + 0.2 + 0.1)
    assert Objective(2, 95).limit(1000) == (2, 50)


@pytest.mark.parametrize("more", [("--shared", "1GB"), ("--tier", "cxl=1GB")])
def test_memory_without_a_price_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    assert plan_command.main(words(talks(tmp_path), *more)) == 2
    told = capsys.readouterr().err
    assert "a plan chooses among device, host and disk" in told and told.count("\n") == 1


def words(source: TraceSource, *more: str) -> list[str]:
    rates = ["--prefill-rate", "8000", "--decode-ms", "1", "--device-sizes", "1GB,4GB", "--host-sizes", "0"]
    return [source.path, "--ttft", "500ms", "--p", "90", "--jobs", "1", "--most-workers", "4", *rates, *more]


def test_the_command_says_what_it_found_and_assumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = talks(tmp_path)
    assert plan_command.main(words(source)) == 0
    shown = capsys.readouterr()
    assert "Cheapest for a p90 first token within 0.5 s: " in shown.out and "an hour" in shown.out
    assert "rates as given: not measured here" in shown.out and "1 worker with 1 GB device: " in shown.err
    assert plan_command.main(words(source, "--json", "--model", "llama-3-70b")) in (0, 1)
    found = json.loads(capsys.readouterr().out)
    assert found["assumed"]["model"] == "llama-3-70b" and found["assumed"]["prefill_tokens_per_second"] == 8000
    assert found["objective"] == {"seconds": 0.5, "percent": 90.0} and found["tried"]


def test_a_disk_is_tried_with_the_rates_that_were_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Talks that come again when device and host have forgotten them: a quick disk saves them, a slow one does not."""
    lines = [{"time_ms": 700 * at, "prompt": [[f"talk {at % 8}", 4000]], "output_tokens": 2} for at in range(32)]
    path = tmp_path / "again.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    given = [str(path), "--jobs", "1", "--ttft", "10s", "--device-sizes", "1GB", "--host-sizes", "2GB", "--json"]
    given += ["--eviction", "lru"]  # the default order would keep half of them in device and host
    rates = []
    for disk in (["0"], ["8GB"], ["8GB", "--disk-read", "1MB/s"]):
        assert plan_command.main([*given, "--disk-sizes", *disk, "--prefetch-wait", "0.5"]) == 0
        rates.append(json.loads(capsys.readouterr().out)["chosen"]["result"]["hit_rate"])
    assert rates[1] > 0.7 > 0.1 > rates[0] == rates[2]


@pytest.mark.parametrize("name", ["device", "host", "disk"])
def test_one_size_of_a_memory_is_what_is_chosen_from(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [talks(tmp_path).path, "--jobs", "1", "--ttft", "30s", "--prefill-rate", "8000"]
    sizes = {"device": "30GB", "host": "10GB", "disk": "5GB"}
    assert plan_command.main([*given, f"--{name}", sizes[name], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["memory"].get(name) for one in found["tried"]} == {int(sizes[name][:-2]) * GB}
    assert plan_command.main([*given, f"--{name}", "1GB", f"--{name}-sizes", "2GB"]) == 2
    assert f"--{name} and --{name}-sizes: both say how large it is" in capsys.readouterr().err
    assert plan_command.main([*given, f"--{name}-blocks", "100"]) == 2
    assert f"give --{name}-sizes" in capsys.readouterr().err


def test_measured_rates_leave_the_links_as_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = plan_command._parser().parse_args(words(talks(tmp_path), "--link", "host=3GB"))
    engine = plan_command.read_measured(measured(tmp_path, (1.0, 1.0)))
    (pace, *_) = (memory.pace for memory in plan_command._search(options, engine).memories)
    assert pace.links == (3 * GB,) and pace.decode_ms_per_sequence == 0.01


def measured(folder: Path, *pairs: tuple[float, float]) -> str:
    pace = {"prefill_tokens_per_second": 8000, "decode_ms": 1, "decode_ms_per_sequence": 0.01}
    checks = [{"predicted": one, "measured": other} for one, other in pairs]
    path = folder / "measured.json"
    path.write_text(json.dumps({"pace": pace, "checks": checks}), encoding="utf-8")
    return str(path)


def test_a_model_that_is_off_recommends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = talks(tmp_path)
    good, bad = ((1.0, 1.2), (1.0, 0.85), (2.0, 1.9)), ((1.0, 1.2), (1.0, 1.5))
    assert plan_command.main(words(source, "--measured", measured(tmp_path, *good))) == 0
    assert "Cheapest for" in capsys.readouterr().out
    for json_wanted in ([], ["--json"]):
        assert plan_command.main(words(source, "--measured", measured(tmp_path, *bad), *json_wanted)) == 1
        shown = capsys.readouterr().out
        assert (
            "No recommendation: " in shown and "off by 33 %" in shown if not json_wanted else '"chosen": null' in shown
        )
        assert "Cheapest" not in shown
    assert plan_command.main(words(source, "--measured", measured(tmp_path))) == 1, "nothing was checked"
    assert PredictionCheck(1.0, 1.25).off == pytest.approx(0.2) and PredictionCheck(1.5, 1.0).off == pytest.approx(0.5)


def test_prices_have_a_currency(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, page = talks(tmp_path), tmp_path / "plan.html"
    assert plan_command.main(words(source, "--currency", "EUR", "--html", str(page))) == 0
    shown, text = capsys.readouterr().out, page.read_text(encoding="utf-8")
    assert " EUR an hour. Predicted" in shown.splitlines()[0] and "EUR an hour " in shown.splitlines()[4]
    assert "by the price an hour in EUR" in text and " EUR</p>" in text
    assert money_text(1234.5, "$") == "$1,234.50" and money_text(2.0, "") == "2.00"
    for name in ("E" * 13, " EUR", "a\nb"):
        assert plan_command.main(words(source, "--currency", name)) == 2
        assert "it is not the name of one" in capsys.readouterr().err


def test_the_page_says_what_the_screen_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, page = talks(tmp_path), tmp_path / "plan.html"
    assert plan_command.main(words(source, "--html", str(page))) == 0
    shown, text = capsys.readouterr().out, page.read_text(encoding="utf-8")
    assert shown.splitlines()[0] in re.sub("<.*?>", "", text) and f"page: {page}" in shown
    assert text.count('class="dot cgood"') == 1 and "not measured here" in text and "<script" not in text
    assert plan_command.main(words(source, "--html", str(page), "--measured", measured(tmp_path, (1.0, 2.0)))) == 1
    text = page.read_text(encoding="utf-8")
    assert "No recommendation: " in text and "Cheapest" not in text and "dot cgood" not in text


def test_lengths_alone_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, trace, page = tmp_path / "log.csv", tmp_path / "trace.jsonl", tmp_path / "page.html"
    rows = [f"2023-11-16 18:00:{nth:02}.000,{900 + nth},{5}" for nth in range(8)]
    log.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]), encoding="utf-8")
    assert trace_command.main(["make", str(log), "-o", str(trace)]) == 0
    source = TraceSource(str(trace))
    for main, given in (
        (plan_command.main, words(source)),
        (fleet_command.main, [str(trace), "--workers", "2", "--jobs", "1"]),
        (sweep_command.main, [str(trace), "--device", "1GB,2GB", "--workers", "1"]),
    ):
        capsys.readouterr()
        assert main([*given, "--html", str(page)]) == 0
        assert "The trace has lengths only" in capsys.readouterr().out
        assert 'role="alert">The trace has lengths only' in page.read_text(encoding="utf-8")
    assert plan_command.main(words(source, "--json")) == 0
    assert len(json.loads(capsys.readouterr().out)["warnings"]) == 1


def test_what_is_late_by_little_is_called_late(tmp_path: Path) -> None:
    asked = search(talks(tmp_path), 0.5)
    found = try_fleet(asked, Fleet(1, "exact", asked.memories[0]))
    result = played(read_trace(asked.source.path), Fleet(1, "exact", asked.memories[0]), (90,))
    late, kept = (replace(result, ttft_ms={"objective": ms}) for ms in (500.1, 500.0))
    assert outcome(replace(found, result=late), asked.objective) == "0.5 s, too late"
    assert outcome(replace(found, result=kept), asked.objective) == "0.5 s"
    assert outcome(replace(found, result=replace(kept, refused=2)), asked.objective) == "0.5 s, 2 fit nowhere"
    assert outcome(replace(found, result=None), asked.objective) == "too late, given up"


def test_the_screen_shows_the_fleets_around_the_chosen_one(tmp_path: Path) -> None:
    asked = search(talks(tmp_path), 0.5)
    tried = tuple(Tried(Fleet(1 + nth, "exact", asked.memories[0]), float(nth), None) for nth in range(30))
    shown = ShownPlan(CapacityPlan(asked.objective, tried[20], tried), asked, None)
    assert [one.price for one in shown.near()] == [float(nth) for nth in range(12, 24)]
    none = ShownPlan(CapacityPlan(asked.objective, None, tried), asked, None)
    assert [one.price for one in none.near()] == [float(nth) for nth in range(22, 30)]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--html", "nowhere/page.html"], "there is no such folder"),
        (["--ttft", "soon"], "write 2s or 500ms"),
        (["--ttft", "0s"], "not an objective"),
        (["--p", "100"], "below 100"),
        (["--most-workers", "0"], "not a number of workers"),
        (["--device-sizes", "much"], "not an amount of memory"),
        (["--disk-sizes", ""], "not an amount of memory"),
        (["--measured", "nowhere.json"], "make them with benchmarks/plan.py"),
    ],
)
def test_what_cannot_be_asked_ends_in_a_line(
    more: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan_command.main(words(talks(tmp_path, 4), *more)) == 2
    assert why in capsys.readouterr().err


def test_times_as_people_write_them() -> None:
    assert [plan_command.seconds_of(text) for text in ("2s", "500ms", "1.5")] == [2.0, 0.5, 1.5]
    with pytest.raises(InputError):
        plan_command.seconds_of("")


# -- in time -----------------------------------------------------------------------------------------------------------


def crowd(tmp_path: Path, router: Any, percent: float) -> Search:
    """Long prompts that nothing shares, several of them a second, each with half a second."""
    lines = [
        {"time_ms": 60 * at, "prompt": [[at, 400 if at % 3 else 1600]], "output_tokens": 2} for at in range(400)
    ]  # fmt: skip
    path = tmp_path / "crowd.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    pace = Pace(prefill_tokens_per_second=4000, decode_ms=1)
    workers = memories(replace(SMALL, pace=pace, token_budget=400), [4 * GB], [0], [0])
    return Search(TraceSource(str(path)), workers, Objective(1.5, percent, 0.95), CHEAP, router, most_workers=9)


def test_the_least_fleet_that_serves_a_share_in_time(tmp_path: Path) -> None:
    """One worker fewer would not do; and taking all needs more of them than a door, which refuses the rest."""
    plans = {router: find_plan(crowd(tmp_path, router, 70), executor=LocalExecutor())
             for router in ("deadline", "exact")}  # fmt: skip
    for plan in plans.values():
        chosen = plan.chosen
        assert chosen is not None and chosen.result is not None and chosen.result.in_time >= 0.7
        assert chosen.fleet.deadlines == plan.objective.deadlines and chosen.fleet.workers > 1
        asked = crowd(tmp_path, chosen.fleet.router, 70)
        again = played(read_trace(asked.source.path), replace(chosen.fleet, workers=chosen.fleet.workers - 1))
        assert again.in_time < 0.7 and again.deadlines is not None
        whole = again.deadlines.refused + again.deadlines.left + again.requests + again.refused
        assert whole == 400 and again.deadlines.in_time == round(400 * again.in_time)
    doors, without = plans["deadline"].chosen, plans["exact"].chosen
    assert doors is not None and without is not None and doors.price < without.price


def test_the_command_plans_for_deadlines(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["sample", "--limit", "60", "--device-sizes", "20GB", "--host-sizes", "0", "--jobs", "1", "--ttft", "8s"]
    assert plan_command.main([*sizes, "--in-time", "0.5"]) == 0
    printed = capsys.readouterr().out
    assert "first token within 8 s of 50 % of all requests" in printed and "in time" in printed
    assert "router deadline" in printed and "bounds 0.95" in printed
    assert plan_command.main([*sizes, "--in-time", "0.5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["objective"]["bounds_kept"] == 0.95 and found["chosen"]["result"]["deadlines"]["in_time"] >= 30
    for wrong in (["--router", "deadline"], ["--in-time", "1.5"], ["--in-time", "0.9", "--deadlines", "2"]):
        assert plan_command.main([*sizes, *wrong]) == 2
