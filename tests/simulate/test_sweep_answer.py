"""What a sweep answers in a sentence, what a replay says about causes and load, and a receipt that was asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.cli.simulate.replay_command import main as replay
from quire.cli.simulate.sweep_command import USUAL, spread
from quire.cli.simulate.sweep_command import main as sweep_main
from quire.simulate.play.sweep import LocalExecutor, Point, Sweep, TraceSource, sweep
from quire.simulate.setup.replay_settings import ReplaySettings
from quire.simulate.show.causes import overload, reasons
from quire.simulate.show.sweep_answer import answers
from tests.trace.test_replay_trace import written

CALM = {"load": 0.5, "offered_tokens_per_second": 100.0, "capacity_tokens_per_second": 200.0}
HEAVY = {"load": 2.5, "offered_tokens_per_second": 500.0, "capacity_tokens_per_second": 200.0}


def point(host: str, rate: float, first: float, load: dict[str, float] = CALM, **settings: Any) -> Point:
    made = replace(ReplaySettings().with_memory("host", host), **settings)
    model = {"ttft_ms": {"p50": first * 1000}, "throughput_tokens_per_second": 10.0}
    result = {"hit_rate_of_trace": rate, "model": model, "load": load, "refused": 0, "broken_promises": 0}
    return Point(made, result, 0.5)


def test_a_sentence_says_what_the_host_brings() -> None:
    found = Sweep("t", (point("0", 0.1, 2.0), point("200GB", 0.133, 1.6)), 0.5)
    assert answers(found) == [
        "200 GB of host memory beside 40 GB of device adds 3.3 points of hit rate and takes 0.4 s off the median "
        "first token."
    ]
    worse = Sweep("t", (point("1GB", 0.2, 2.0), point("2GB", 0.1, 2.5)), 0.5)
    assert answers(worse) == [
        "2 GB of host memory instead of 1 GB beside 40 GB of device costs 10.0 points of hit rate and adds 0.5 s to "
        "the median first token."
    ]
    same = Sweep("t", (point("1GB", 0.2, 2.0), point("2GB", 0.2, 2.0)), 0.5)
    assert "changes no hit rate." in answers(same)[0]


def test_times_of_an_overloaded_engine_are_not_told() -> None:
    found = Sweep("t", (point("0", 0.1, 900.0, HEAVY), point("200GB", 0.2, 400.0, HEAVY)), 0.5)
    assert answers(found) == ["200 GB of host memory beside 40 GB of device adds 10.0 points of hit rate."]


def test_orders_are_compared_all_else_equal() -> None:
    pairs = [point(host, rate, 1.0, eviction=order) for host, order, rate in
             (("0", "lru", 0.1), ("0", "adaptive", 0.12), ("9GB", "lru", 0.2), ("9GB", "adaptive", 0.25))]  # fmt: skip
    host, order = answers(Sweep("t", tuple(pairs), 0.5))
    assert "adds 13.0 points of hit rate in the adaptive order" in host
    worse = [replace(one, result={**one.result, "hit_rate_of_trace": 0.9}) for one in pairs[2:3]]
    host, _ = answers(Sweep("t", (*pairs[:2], *worse, pairs[3]), 0.5))
    assert "adds 13.0 points of hit rate in the adaptive order, the default" in host, "and not lru, which gains more"
    assert order.startswith("The adaptive order instead of lru adds 5.0 points of hit rate, at most")
    equal = [replace(one, result={**one.result, "hit_rate_of_trace": 0.1}) for one in pairs]
    assert "The adaptive order instead of lru changes no hit rate." in answers(Sweep("t", tuple(equal), 0.5))
    (one,) = answers(Sweep("t", tuple(pairs[:2]), 0.5))
    assert "at most" not in one and one.endswith("adds 2.0 points of hit rate (with device 40 GB, host 0 B).")
    alone = answers(Sweep("t", (pairs[0],), 0.5))
    assert alone == ["At best 10.0 % of the prompt tokens are reused, 20 % of what is possible."]
    assert answers(Sweep("t", (Point(pairs[0].settings, {}, None, "why"),), None)) == ["No combination could run."]


def test_without_axes_the_host_and_the_orders_vary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(spread(USUAL)) == 8
    path = written(tmp_path, {"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]})
    assert sweep_main([str(path), "--block-size", "512", "--workers", "1"]) == 0
    told = capsys.readouterr()
    assert "changes no hit rate" in told.out.splitlines()[0] and told.err.count("hit rate 0.0 %") == 8


def test_an_overload_is_told_with_what_to_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"timestamp": n, "input_length": 4000, "output_length": 2, "hash_ids": list(range(8 * n, 8 * n + 8))}
             for n in range(0, 40, 2)]  # fmt: skip
    path = str(written(tmp_path, *lines))
    assert replay([path, "--block-size", "512"]) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first == "0.0 % of the prompt tokens were reused." and second.startswith("Overload: ")
    assert replay([path, "--block-size", "512", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    speed = float(second.partition("--speed ")[2].partition(")")[0])
    assert result["load"]["load"] > 1 and 0 < speed < 1
    assert replay([path, "--block-size", "512", "--speed", str(speed), "--json"]) == 0
    calm = json.loads(capsys.readouterr().out)
    assert calm["load"]["load"] < 1 and overload(calm) == "", "what it says to change is enough"
    assert sweep_main([path, "--block-size", "512", "--host", "0,1GB", "--workers", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("Overload: ")


def test_every_missed_token_has_a_cause_and_a_request_can_be_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[dict[str, Any]] = [
        {"time_ms": 1000 * n, "prompt": [[name, 64], [None, 10]], "output_tokens": 1, "id": f"request {n}"}
        for n, name in enumerate("abcab")
    ]
    path = str(written(tmp_path, *lines))
    small = [path, "--device-blocks", "10", "--host-blocks", "0"]
    assert replay([*small, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    misses = result["misses"]
    assert misses["tokens"] == sum(misses["causes"].values()) == result["prompt_tokens"] - result["tokens_saved"]
    assert misses["causes"]["evicted"] == 128 and misses["causes"]["last_token"] == 5
    assert "evicted before 34.6 %" in reasons(result)[0]
    for name in ("request 3", "4"):
        assert replay([*small, "--explain", name]) == 0
        told = capsys.readouterr().out
        assert told.startswith("Line 4, admitted at 3.0 s:\n0 of 74 tokens reused") and "64 evicted" in told
        assert "64 would have been reused with more slots for the group" in told
    assert replay([*small, "--explain", "nobody"]) == 2
    assert "no request of t.jsonl has that id" in capsys.readouterr().err
    assert replay([*small, "--no-causes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["misses"] == {}
    assert replay([*small, "--one-phase", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["misses"]["causes"] == misses["causes"]


def test_sweeps_do_without_receipts() -> None:
    source = TraceSource("sample", limit=50)
    found = sweep(source, [replace(ReplaySettings(), block_size=512)], executor=LocalExecutor())
    assert found.points[0].result["misses"] == {}
