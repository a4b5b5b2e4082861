"""Fleets: one worker is a replay, a router that knows what is cached is worth something, nothing depends on luck."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire import InputError
from quire.cli.simulate import fleet_command
from quire.core.records.config import Eviction
from quire.insight.deadlines.step_costs import StepWork
from quire.simulate.capacity.deadline_worker import DeadlineWorker, FleetDeadlines
from quire.simulate.capacity.fleet import Fleet, FleetResult, LateLimit, play_fleet, play_fleets, played
from quire.simulate.capacity.fleet_page import answer, answer_lines, warning_lines
from quire.simulate.capacity.routers import ROUTERS, ExactRouter, LeastLoaded, open_router
from quire.simulate.capacity.simulated_worker import SimulatedWorker
from quire.simulate.play.sweep import LocalExecutor, TraceSource
from quire.simulate.play.trace_player import play
from quire.simulate.setup.engine_pace import Pace
from quire.simulate.setup.replay_settings import Memory, ReplaySettings
from quire.simulate.setup.slow_pace import SlowPace
from quire.trace.read.trace import Trace, read_trace

SMALL = ReplaySettings(block_size=64).with_memory("device", "20GB").with_memory("host", "20GB")


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read_trace("sample", limit=100)


def talks(tmp_path: Path, prompts: list[tuple[int, list[Any]]]) -> Trace:
    """A trace of named parts, at these milliseconds."""
    path = tmp_path / "talks.jsonl"
    lines = [json.dumps({"time_ms": at, "prompt": parts, "output_tokens": 4}) for at, parts in prompts]
    path.write_text("\n".join(lines), encoding="utf-8")
    return read_trace(path)


@pytest.mark.parametrize("router", ROUTERS)
def test_a_fleet_of_one_is_a_replay(trace: Trace, router: Any) -> None:
    same(trace, router, SMALL)


def test_a_fleet_of_one_with_a_disk_is_a_replay(tmp_path: Path) -> None:
    again = talks(tmp_path, [(700 * at, [[f"talk {at % 8}", 4000]]) for at in range(32)])
    tiers = (Memory("device", "1GB"), Memory("host", "2GB"), Memory("disk", "8GB", slow=True))
    settings = replace(SMALL, tiers=tiers, slow=SlowPace())
    orders: list[tuple[Eviction, float]] = [("lru", 0.7), ("adaptive", 0.2)]  # the second keeps more in device and host
    for eviction, least in orders:
        found = same(again, "exact", replace(settings, eviction=eviction))
        assert found["hit_rate_by_tier"]["disk"] > least and found["hit_rate"] > 0.7


@pytest.mark.parametrize(("gap", "topics", "host", "write"), [(300, 8, "2GB", 1e9), (3000, 3, "1GB", 1e8)])
def test_a_worker_at_rest_goes_on_writing_to_its_disk(
    tmp_path: Path, gap: int, topics: int, host: str, write: float
) -> None:
    again = talks(tmp_path, [(gap * at, [[f"talk {at % topics}", 4000]]) for at in range(24)])
    tiers = (Memory("device", "700MB"), Memory("host", host), Memory("disk", "8GB", slow=True))
    same(again, "exact", replace(SMALL, tiers=tiers, slow=SlowPace(write=write)))


def same(trace: Trace, router: Any, settings: ReplaySettings) -> dict[str, Any]:
    alone, one = played(trace, Fleet(1, router, settings), (50, 90, 99)), play(trace, settings).to_json()
    assert (alone.requests, alone.refused, alone.prompt_tokens) == (one["requests"], 0, one["prompt_tokens"])
    assert alone.hit_rate == one["hit_rate"] > 0 and alone.imbalance == 1
    assert alone.ttft_ms == one["model"]["ttft_ms"] and alone.seconds == pytest.approx(
        one["model"]["seconds"], abs=0.001
    )
    return one


def test_who_knows_what_is_cached_hits_more(tmp_path: Path) -> None:
    turns = [(nth, turn) for turn in range(6) for nth in range(7)]  # seven long talks, a turn of each in turn
    asks = [
        (300 * at, [[f"talk {nth}", 3000], *([f"turn {nth}.{one}", 200] for one in range(turn))])
        for at, (nth, turn) in enumerate(turns)
    ]
    trace = talks(tmp_path, asks)
    found = {router: played(trace, Fleet(4, router, SMALL)) for router in ROUTERS}
    blind = max(found["round_robin"].hit_rate, found["least_loaded"].hit_rate)
    assert found["exact"].hit_rate > blind + 0.1 and found["exact"].hit_rate > 0.75
    assert found["exact"].ttft(95) < found["round_robin"].ttft(95)
    assert {one.requests for one in found.values()} == {42}
    assert found["exact"] == played(trace, Fleet(4, "exact", SMALL)), "the same every time"
    assert found["exact"].offered_load < found["round_robin"].offered_load


def test_a_follow_up_goes_where_its_beginning_is_unless_that_takes_longer(tmp_path: Path) -> None:
    first, second = ["a", 4000], ["b", 4000]
    asks = [(0, [first]), (1, [second]), (900, [second, ["c", 100]]), (901, [first, ["d", 100]])]
    asks += [(2000 + nth, [second, [f"e{nth}", 30000]]) for nth in range(3)]
    trace = talks(tmp_path, asks)
    workers = [SimulatedWorker(trace, SMALL) for _ in range(2)]
    route = open_router("exact", workers, SMALL)
    assert isinstance(route, ExactRouter)
    chosen = []
    for request in trace:
        for worker in workers:
            worker.run_until(request.number)
        choice = route(request)
        workers[choice.worker].give(request, choice.tokens)
        chosen.append(tuple(choice))
    (a, _), (b, _) = chosen[:2]
    assert a != b, "nobody holds anything: the one without work"
    assert chosen[2:4] == [(b, 4100 - 4000), (a, 4100 - 4000)]
    assert [worker for worker, _ in chosen[4:]] == [b, a, b], "4,000 tokens held, against 30,000 that wait"
    for worker in workers:
        worker.run_to_end()
    assert sum(len(worker.first_tokens) for worker in workers) == 7 and not any(one.is_busy for one in workers)


def test_loads_are_what_waits_and_what_decodes(tmp_path: Path) -> None:
    trace = talks(tmp_path, [(0, [["a", 20000]]), (0, [["b", 9000]]), (1, [["c", 100]])])
    workers = [SimulatedWorker(trace, SMALL) for _ in range(2)]
    route = LeastLoaded(workers, SMALL)
    for request in [trace[0], trace[1]]:
        choice = route(request)
        workers[choice.worker].give(request, choice.tokens)
    assert [worker.pending_tokens() for worker in workers] == [20000, 9000]
    workers[0].run_until(2)
    workers[1].run_until(2)
    assert workers[0].pending_tokens() == 20000 - 8192 and workers[1].pending_tokens() == 9000 - 8192
    assert route(trace[2]).worker == 1
    workers[1].run_to_end()
    assert workers[1].pending_tokens() == 0 and workers[1].num_decoding == 0


def test_a_request_that_fits_nowhere_is_no_load(tmp_path: Path) -> None:
    trace = talks(tmp_path, [(0, [["a", 200000]]), (5, [["b", 100]])])
    result = played(trace, Fleet(2, "least_loaded", SMALL))
    assert (result.requests, result.refused) == (1, 1)
    worker = SimulatedWorker(trace, SMALL)
    worker.give(trace[0], 200_000)
    assert worker.pending_tokens() == 200_000
    worker.run_to_end()
    assert worker.pending_tokens() == 0


def test_turns_that_are_put_off_change_nothing(trace: Trace) -> None:
    lazy = played(trace, Fleet(3, "exact", SMALL), (50,))
    workers = [SimulatedWorker(trace, SMALL) for _ in range(3)]
    route = open_router("exact", workers, SMALL)
    for request in trace:
        for worker in workers:  # each up to the arrival, whoever gets the request
            worker._arrived = request.number
            while worker.is_busy and worker.now < worker._times[request.number]:
                worker._go_on()
            worker.at_rest = not worker.is_busy
        choice = route(request)
        workers[choice.worker].give(request, choice.tokens)
    for worker in workers:
        worker.run_to_end()
    assert lazy.hit_rate == sum(one.saved_tokens for one in workers) / lazy.prompt_tokens
    assert lazy.ttft_ms["mean"] == pytest.approx(
        sum(sum(one.first_tokens.values()) for one in workers) / len(trace) * 1000, abs=0.001
    )


def test_a_fleet_that_is_too_late_is_given_up(trace: Trace) -> None:
    slow = replace(SMALL, pace=Pace(prefill_tokens_per_second=2000))
    assert play_fleet(trace, Fleet(1, "exact", slow), late=LateLimit(2.0, 5)) is None
    whole = played(trace, Fleet(1, "exact", SMALL))
    assert play_fleet(trace, Fleet(1, "exact", SMALL), late=LateLimit(whole.ttft(99) * 2, 5)) == whole


def test_fleets_run_beside_each_other_and_one_that_cannot_says_why() -> None:
    source = TraceSource("sample", limit=20)
    fleets = [Fleet(2, "exact", SMALL), Fleet(2, "exact", SMALL.with_memory("device", "1MB"))]
    told: list[object] = []
    good, bad = play_fleets(source, fleets, executor=LocalExecutor(), tell=told.append)
    assert isinstance(good, FleetResult) and isinstance(bad, str) and "it holds no page" in bad
    assert told == [good, bad]
    with pytest.raises(InputError, match="give at least one number"):
        play_fleets(source, [])
    with pytest.raises(InputError, match="a fleet has 1 to 1024"):
        Fleet(0, "exact", SMALL)


def test_the_command_answers_in_a_sentence_and_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sample", "--limit", "60", "--workers", "2", "--jobs", "1", "--device", "20GB", "--host", "20GB"]
    assert fleet_command.main(words) == 0
    shown = capsys.readouterr()
    assert "2 workers: a cache-aware router hits as much as least_loaded" in shown.out
    assert "2 workers, exact: " in shown.err
    assert fleet_command.main([*words, "--router", "exact", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["router"] for one in found["fleets"]] == ["exact"] and found["worker"]["block_size"] == 64
    assert set(found["fleets"][0]["ttft_ms"]) == {"mean", "p50", "p90", "p95", "p99"}


def result_of(workers: int, router: str, hit_rate: float, load: float = 0.5) -> FleetResult:
    times = {"p50": 500.0, "p95": 2000.0 - 1000 * hit_rate}
    return FleetResult(workers, router, 10, 0, 1000, hit_rate, times, 10.0, load, 1.0)


def test_the_answer_is_one_sentence_over_all_sizes() -> None:
    rates = {"round_robin": 0.1, "least_loaded": 0.2, "exact": 0.25}
    found = [
        result_of(count, router, rate + (router == "exact") * count / 100)
        for count in (2, 8)
        for router, rate in rates.items()
    ]
    said = answer(found)
    assert said == ("With 2 to 8 workers a cache-aware router hits 7.0 to 13.0 points more than least_loaded.")
    assert answer(found[:3]) == answer_lines(found)[0]
    assert answer_lines(found)[1].endswith("with a p95 first token of 1.67 s instead of 1.8 s.")
    equal = [result_of(1, "exact", 0.25), result_of(1, "least_loaded", 0.25)]
    assert answer_lines(equal) == [answer(equal)] and answer(equal).startswith("1 worker, whatever the router: 25.0 %")
    blind = [result_of(2, "round_robin", 0.25), result_of(2, "least_loaded", 0.25), result_of(2, "affinity", 0.3)]
    assert [one.split(":")[0] for one in answer_lines(blind)] == [
        "2 workers, round_robin, least_loaded",
        "2 workers, affinity",
    ]
    assert answer(equal[:1]).startswith("1 worker, exact: 25.0 %")
    pair = [result_of(2, "exact", 0.3), result_of(2, "least_loaded", 0.25)]
    assert answer([*equal, *pair]).startswith("2 workers: a cache-aware router hits 5.0 points more")
    same = [replace(one, hit_rate=0.2, ttft_ms={"p50": 1.0, "p95": 2000.0}) for one in found]
    assert answer(same).startswith("No difference: with 2 to 8 workers") and "0.0" not in answer(same)
    assert answer_lines(same)[0].startswith("2 workers: no difference between")
    less = [replace(one, hit_rate=0.1) if one.router == "exact" else one for one in found[:3]]
    assert "hits 10.0 points less than least_loaded" in answer_lines(less)[0]
    assert "hits -10.0 to +13.0 points more" in answer([*less, *found[3:]])
    assert answer([]) == "No fleet could run."


def test_only_fleets_with_too_much_to_do_are_warned_of() -> None:
    found = [result_of(2, "exact", 0.2, 1.4), result_of(2, "least_loaded", 0.1, 1.6), result_of(4, "exact", 0.2, 0.7)]
    (line,) = warning_lines(found)
    assert line.startswith("More comes than 2 workers can compute (up to 160 % of it, with least_loaded)")
    assert warning_lines(found[2:]) == []


def test_the_page_has_the_answer_a_plot_and_every_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "fleet.html"
    words = ["sample", "--limit", "40", "--workers", "2,3", "--jobs", "1", "--html", str(page)]
    assert fleet_command.main(words) == 0
    text = page.read_text(encoding="utf-8")
    first = text.index('class="answer">No difference: with 2 to 3 workers a cache-aware router')
    assert first < text.index('id="hits"') < text.index("<details><summary>First tokens") and "<script" not in text
    assert text.count("<td>least_loaded</td>") == 3 and f"page: {page}" in capsys.readouterr().out


def test_a_shared_store_of_each_workers_own_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sample", "--limit", "20", "--workers", "2", "--router", "round_robin", "--jobs", "1"]
    assert fleet_command.main([*words, "--shared", "1GB"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Each worker has a shared store of 1 GB to itself here")
    assert fleet_command.main([*words, "--shared", "1GB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == [told.splitlines()[0]]
    assert fleet_command.main([*words, "--disk", "1GB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []


def test_an_overload_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sample", "--limit", "40", "--workers", "1", "--jobs", "1", "--prefill-rate", "100"]
    assert fleet_command.main(words) == 0
    assert "More comes than 1 worker can compute" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["sample", "--workers", "two"], "not whole numbers"),
        (["sample", "--workers", "2000"], "1 to 1024"),
        (["-"], "standard input"),
        (["sample", "--html", "nowhere/page.html"], "there is no such folder"),
        (["sample", "--device", "1MB", "--jobs", "1", "--limit", "5"], "it holds no page"),
    ],
)
def test_what_cannot_be_run_ends_in_a_line(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet_command.main(words) == 2
    assert why in capsys.readouterr().err


# -- first tokens in time ----------------------------------------------------------------------------------------------


def test_in_time_or_refused_at_once() -> None:
    """Overload: a fleet with a door serves more in time than one that takes all, whose clients leave; bounds hold."""
    whole = read_trace("sample")
    wanted, crowded = FleetDeadlines((2.0, 8.0)), ReplaySettings(block_size=64, speed=6.3)
    routers: tuple[Any, ...] = ("round_robin", "exact", "deadline")
    found = {router: played(whole, Fleet(4, router, crowded, wanted)) for router in routers}
    in_time = {router: one.deadlines for router, one in found.items() if one.deadlines is not None}
    ours, others = in_time["deadline"], [in_time["round_robin"], in_time["exact"]]
    assert ours.goodput > 1.3 * max(one.goodput for one in others) and min(one.left for one in others) > 100
    assert ours.refused > 50 and not ours.left and ours.kept / ours.bounds >= 0.95
    assert ours.in_time + ours.refused <= len(whole) and found["deadline"].refused == 0
    assert (
        "deadlines" in found["exact"].to_json() and "deadlines" not in played(whole, Fleet(2, "exact", SMALL)).to_json()
    )


def test_few_wait_where_there_is_room(trace: Trace) -> None:
    """Far below its capacity a door refuses nothing that is asked with time enough."""
    found = played(trace, Fleet(4, "deadline", SMALL, FleetDeadlines((600.0,))))
    assert found.deadlines is not None and found.deadlines.refused == 0 and found.deadlines.in_time == len(trace)
    assert found.requests == len(trace)


def test_a_door_knows_what_a_turn_of_decoding_takes(trace: Trace) -> None:
    """Turns without a prompt teach it, too: those who wait for memory wait for them."""
    worker = DeadlineWorker(trace, SMALL, FleetDeadlines((600.0,)), has_door=True)
    route = open_router("deadline", [worker], SMALL)
    for request in trace:
        assert route(request).worker == 0
        worker.give(request, request.length)
    worker.run_to_end()
    costs, turn = worker.door.costs, SMALL.pace.turn
    assert costs.seconds(StepWork(rows=24)) - costs.seconds(StepWork(rows=8)) == pytest.approx(
        turn(24) - turn(8), rel=0.2
    )
    assert costs.seconds(StepWork(rows=8)) == pytest.approx(turn(8), rel=0.2)
    assert costs.num_steps >= max(request.output for request in trace)


def test_the_last_clients_may_leave(tmp_path: Path) -> None:
    """While their prompts are computed, and nothing comes behind them."""
    whole = talks(tmp_path, [(at, [[at, 3000]]) for at in range(8)])
    slow = replace(SMALL, pace=Pace(prefill_tokens_per_second=4000, decode_ms=1), token_budget=400)
    found = played(whole, Fleet(1, "exact", slow, FleetDeadlines((2.0,))))
    assert found.deadlines is not None and (found.deadlines.in_time, found.deadlines.left) == (2, 6)


def test_the_command_knows_deadlines(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--device", "20GB", "--limit", "60", "--workers", "2"]
    assert fleet_command.main(["sample", *sizes, "--ttft-ms", "1000,5000", "--router", "deadline"]) == 0
    assert "First tokens in time" in capsys.readouterr().out
    for wrong in (["--ttft-ms", "soon"], ["--ttft-ms", "0"], ["--router", "deadline"]):
        assert fleet_command.main(["sample", *sizes, *wrong]) == 2
    with pytest.raises(InputError, match="share of bounds"):
        Fleet(1, "deadline", SMALL, FleetDeadlines((1.0,), 95))
