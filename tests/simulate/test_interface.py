"""quire.simulate as a Python user calls it: the same numbers as the commands, typed, and misuse refused by name."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire import CacheConfig, InputError, TierConfig, simulate
from quire.cli.main import main
from quire.simulate import Fleet, ReplaySettings

SMALL = ReplaySettings(block_size=64).with_memory("device", "4GB").with_memory("host", "8GB")
OPTIONS = ("--block-size=64", "--device=4GB", "--host=8GB")
UNTYPED: Any = simulate  # for calls that mypy refuses, too
TIMED = ("requests_per_second", "wall_requests_per_second", "cache_seconds", "wall_seconds")


@pytest.fixture(scope="module")
def trace() -> simulate.Trace:
    return simulate.read_trace("sample", limit=150)


@pytest.fixture(scope="module")
def report(trace: simulate.Trace) -> simulate.Report:
    return simulate.replay(trace, SMALL)


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in TIMED}


def test_a_report_has_what_the_command_prints(report: simulate.Report, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "sample", "--limit=150", "--json", *OPTIONS]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert without_times(json.loads(json.dumps(report.to_json()))) == without_times(printed)
    ttft = printed["model"]["ttft_ms"]
    first = report.first_token
    assert [first.mean, first.p50, first.p90, first.p99] == [ttft[one] / 1000 for one in ("mean", "p50", "p90", "p99")]
    assert report.misses == printed["misses"]["causes"] and report.load == printed["load"]["load"]
    for name in ("requests", "refused", "prompt_tokens", "tokens_saved", "tokens_computed", "hit_rate", "evictions",
                 "dropped", "preemptions", "hit_rate_by_tier", "trace"):  # fmt: skip
        assert getattr(report, name) == printed[name], name
    assert report.seconds == printed["model"]["seconds"]


def test_its_numbers_add_up(report: simulate.Report, trace: simulate.Trace) -> None:
    assert report.requests + report.refused == len(trace) and report.refused and report.evictions and report.dropped
    assert report.hit_rate == report.tokens_saved / report.prompt_tokens
    assert sum(report.hit_rate_by_tier.values()) == pytest.approx(report.hit_rate)
    assert sum(report.misses.values()) == report.prompt_tokens - report.tokens_saved
    assert 0 < report.first_token.p50 <= report.first_token.p90 <= report.first_token.p99 <= report.seconds


def test_a_trace_may_be_named(report: simulate.Report, trace: simulate.Trace, tmp_path: Path) -> None:
    lines = [{"time_ms": 10 * n, "prompt": [["system", 300], [n % 2, 20]], "output_tokens": 2} for n in range(4)]
    path = tmp_path / "four.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in (path, str(path), simulate.read_trace(path)):
        four = simulate.replay(name, SMALL)
        assert (four.trace, four.requests, four.prompt_tokens) == ("four.jsonl", 4, 4 * 320)
        assert four.tokens_saved >= 3 * 256


def test_the_default_is_that_of_the_command(trace: simulate.Trace) -> None:
    plain = simulate.replay(trace.head(20), causes=False)
    assert plain.config == ReplaySettings() and plain.misses == {} and plain.requests == 20
    assert simulate.replay(trace.head(20)).config == replace(ReplaySettings(), receipts=True)


def test_a_report_is_a_page(report: simulate.Report) -> None:
    page = report.html()
    assert page.lower().startswith("<!doctype html>") and "<svg" in page and "<script" not in page


def test_no_policy_is_better_than_the_best(trace: simulate.Trace, report: simulate.Report, tmp_path: Path) -> None:
    roomy = replace(SMALL, tiers=ReplaySettings().tiers)
    most, best = simulate.best_hit_rate(trace, roomy), simulate.best_hit_rate(trace, SMALL)
    assert most is not None and best is not None and report.result.hit_rate_of_trace <= best <= most < 1
    whole = replace(SMALL, partial_reuse=False)
    (point,) = simulate.sweep(simulate.TraceSource("sample", limit=150), [whole], workers=1).points
    assert simulate.best_hit_rate(trace, whole) == point.optimum
    windows = tmp_path / "windows.toml"
    windows.write_text('[[group]]\nname = "local"\nbytes_per_token = 1024\nwindow = 128\n')
    assert simulate.best_hit_rate(trace, replace(SMALL, shape=str(windows))) is None


def test_a_fleet_and_a_plan(trace: simulate.Trace) -> None:
    roomy = ReplaySettings(block_size=64)
    found = simulate.replay_fleet(trace, Fleet(2, "exact", roomy))
    assert (found.workers, found.router, found.requests) == (2, "exact", len(trace)) and found.hit_rate > 0
    search = simulate.Search(simulate.TraceSource("sample", limit=50), [roomy], simulate.Objective(1000.0, 95.0))
    plan = simulate.find_plan(search)
    assert plan.chosen is not None and plan.chosen.fleet.workers >= 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda trace: UNTYPED.replay(7, SMALL), "a replay of 7: it is not a trace; pass a path"),
        (lambda trace: UNTYPED.replay(trace, CacheConfig((TierConfig("device", 4),))), "pass a ReplaySettings"),
        (lambda trace: UNTYPED.best_hit_rate(trace, "small"), "a replay with 'small': it is not a ReplaySettings"),
        (lambda trace: UNTYPED.replay_fleet(trace, SMALL), r"it is not a Fleet; pass Fleet\(workers"),
        (lambda trace: UNTYPED.replay("no such file.jsonl"), "no such file.jsonl"),
    ],
)
def test_misuse_is_refused_by_name(call: Any, words: str, trace: simulate.Trace) -> None:
    with pytest.raises(InputError, match=words):
        call(trace)


def test_what_is_exported_is_there_and_no_module_hides_it() -> None:
    assert [name for name in simulate.__all__ if not hasattr(simulate, name)] == []
    modules = {name.rpartition(".")[2] for name in sys.modules if name.rpartition(".")[0] == "quire.simulate"}
    assert "replay_report" in modules and not modules & set(simulate.__all__)
