"""First tokens in time: accepted with a bound that is kept, or refused at once with the bound, and nothing changed."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import InputError, check  # noqa: E402
from quire.engine import LLM, TooLate  # noqa: E402
from quire.engine.deadlines.deadline_side import PATIENCE, DeadlineSide  # noqa: E402
from quire.engine.deadlines.first_token import TokenDeadline  # noqa: E402
from quire.engine.deadlines.held_hits import SHARE  # noqa: E402
from quire.engine.loop.engine_thread import Loop  # noqa: E402
from quire.engine.setup.submission import AWAY  # noqa: E402
from quire.engine.step.runs.branch import Run  # noqa: E402

from ..steps import assert_exact, facts, finish, model_of, open_engine, plain, step, words  # noqa: E402
from .timed import BASE, TOKEN, TimedEngine  # noqa: E402


def side_of(engine: TimedEngine) -> DeadlineSide:
    assert engine.deadlines is not None
    return engine.deadlines


def timed(pages: int = 300, calibrated: int = 40, **settings: Any) -> TimedEngine:
    engine = TimedEngine(pages, **settings)
    if calibrated:
        engine.calibrate(calibrated)
    return engine


def dice_words(dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(16, 256) for _ in range(count)]


def test_deadlines_that_were_missed_are_billed(tmp_path: Path) -> None:
    """Also of those that end without a first token; and as many as the metric counts."""
    engine = timed(calibrated=0, bills=tmp_path)
    late = engine.submit(words(0, 30), plain(2), ttft=1e-6, tenant="alice")
    engine.submit(words(0, 30), plain(2), ttft=100.0, tenant="alice")
    engine.submit(words(0, 30), plain(2), tenant="carol")
    finish(engine)
    assert late.user_times.first_token > 1e-6
    in_time, gave_up = (engine.submit(words(9, 30), plain(2), ttft=t, tenant="bob") for t in (100.0, 0.5))
    engine.time.now += 1.0
    assert engine.cancel(in_time) and engine.cancel(gave_up)
    assert engine.bills is not None
    missed = {who.tenant: line.late for who, line in engine.bills.bill().lines.items()}
    assert missed == {"alice": 1, "bob": 1, "carol": 0} and side_of(engine).door.counts.late == 2
    check(engine.cache)
    engine.close()


def test_bytes_from_the_slow_tier_are_counted_apart() -> None:
    engine = timed(pages=12, host=40, calibrated=0, max_length=120, max_sequences=2)
    for first in (0, 100, 0):
        finish_one(engine, words(first, 60))
    side = side_of(engine)
    fast, slow = side._bytes_up()
    assert fast > 0 == slow
    side._slow = 1  # were host memory the slow one
    assert side._bytes_up() == (0, fast)
    engine.close()


# -- at the door -------------------------------------------------------------------------------------------------------


def test_a_cold_engine_says_nothing_and_learns() -> None:
    engine = timed(calibrated=0)
    first = engine.submit(words(0, 30), plain(2), ttft=1e-6)
    finish(engine)
    assert first.user_times.bound != first.user_times.bound, "nan"
    engine.calibrate()
    second = engine.submit(words(100, 30), plain(2), ttft=1.0)
    finish(engine)
    seen = second.user_times
    assert seen.first_token <= seen.bound <= 1.0
    counts = side_of(engine).door.counts
    assert (counts.unbounded, counts.bounded, counts.fates["kept"], counts.late) == (1, 1, 1, 1)
    engine.close()


def test_the_bound_is_that_of_what_must_be_computed() -> None:
    """A cached prompt, a new one, one behind others: each bound is its own work and theirs, times the factor."""
    engine = timed()
    finish_one(engine, words(0, 60))
    assert side_of(engine).door.margins.margin(1) == 1.0, "before anything is known"
    full = BASE + TOKEN * 64
    cached = engine.submit([*words(0, 56), 17], plain(1), ttft=10.0)
    assert cached.user_times.bound == pytest.approx(2 * (BASE + TOKEN * 1) + full, rel=0.15)
    new = engine.submit(words(100, 60), plain(1), ttft=10.0)
    assert new.user_times.bound == pytest.approx(2 * (BASE + TOKEN * 61) + full, rel=0.15)
    late = engine.submit(words(130, 60), plain(1), ttft=10.0)
    assert late.user_times.bound == pytest.approx(2 * (2 * BASE + TOKEN * 121) + full, rel=0.15)
    finish(engine)
    fates = side_of(engine).door.counts.fates
    assert sum(fates.values()) == 3, "each is settled, once"
    engine.close()


def finish_one(engine: TimedEngine, tokens: Any) -> Run:
    run = engine.submit(tokens, plain(1))
    finish(engine)
    return run


def test_too_late_is_said_at_once_and_changes_nothing() -> None:
    engine = timed()
    finish_one(engine, words(0, 60))
    others = [engine.submit(words(40 * nth, 200), plain(2), ttft=5.0) for nth in range(2)]
    before, tenants = facts(engine), set(engine.scheduler.rounds.inside)
    with pytest.raises(TooLate, match=r"within 0.01 s: it may take 0\.\d+ s.*ask again in 1 s") as refused:
        engine.submit([*words(0, 56), 19, 20], plain(2), ttft=0.01, tenant="new")
    assert refused.value.bound > 0.01 and refused.value.retry_after == 1
    assert facts(engine) == before and set(engine.scheduler.rounds.inside) == tenants
    assert len(engine.cache.open_finds()) == len(side_of(engine).holds._found)
    check(engine.cache)
    finish(engine)
    assert_exact("llama", others)
    assert side_of(engine).door.counts.refused["own"] == 1
    engine.close()


def test_seats_are_waited_for() -> None:
    """All rows decode long answers: the bound says so, and the first token comes before it."""
    engine = timed(max_sequences=4)
    for nth in range(4):
        engine.submit(words(30 * nth, 9), plain(100))
    for _ in range(6):
        step(engine)
    run = engine.submit(words(200, 9), plain(2), ttft=100.0)
    finish(engine)
    seen = run.user_times
    assert 80 * BASE < seen.first_token <= seen.bound
    engine.close()


def test_what_was_waited_before_counts() -> None:
    engine = timed()
    engine.time.now += 5.0
    with pytest.raises(TooLate):
        engine.submit(words(0, 9), plain(1), ttft=TokenDeadline(5.0, engine.time.now - 5.0))
    run = engine.submit(words(0, 9), plain(1), ttft=TokenDeadline(6.0, engine.time.now - 5.0))
    assert engine.time.now < run.times.bound < engine.time.now + 1.0
    finish(engine)
    engine.close()


@pytest.mark.parametrize("ttft", [0, -1, float("nan"), 4000, "2", True])
def test_what_is_no_time(ttft: Any) -> None:
    engine = timed(calibrated=0)
    with pytest.raises(InputError, match="ttft"):
        engine.submit(words(0, 5), plain(1), ttft=ttft)
    engine.close()


def test_where_deadlines_are_not_kept() -> None:
    with open_engine("llama", 60) as engine:
        with pytest.raises(InputError, match="keeps no deadlines"):
            engine.submit(words(0, 5), plain(1), ttft=1.0)
        assert engine.submit(words(0, 5), plain(1), ttft=None).deadline == float("inf")
        finish(engine)
    engine = timed(calibrated=0)
    for begun in (AWAY, (20,)):
        with pytest.raises(InputError, match="made elsewhere"):
            engine.submit(words(0, 5), plain(3), ttft=1.0, begun=begun)
    engine.close()


def test_from_python() -> None:
    """`llm.generate(ttft=)`, in another thread than the engine's; the line before the engine counts."""
    with LLM(model_of("llama"), config=open_engine("llama", 60, deadlines=0.9).config) as llm:
        for nth in range(40):
            (out,) = llm.generate([words(5 * nth, 9)], max_tokens=2, ttft=3000.0)
        assert out.times.bound < 3000.0 and len(out.tokens[0]) <= 2
        with pytest.raises(TooLate):
            llm.generate([words(0, 9)], max_tokens=2, ttft=1e-9)
        assert isinstance(llm.loop, Loop) and not llm.loop.engine.runs


# -- hits that are held ------------------------------------------------------------------------------------------------


def test_the_hit_of_one_that_waits_is_held() -> None:
    """Others need all pages, and evict what no request has; what was counted as cached is there when its turn comes."""
    engine = timed(60, max_sequences=2)
    finish_one(engine, words(0, 80))
    for nth in range(2):
        engine.submit(words(100 + 20 * nth, 60), plain(90), tenant=f"{nth}")
    step(engine)
    waits = engine.submit([*words(0, 80), 17, 18], plain(2), ttft=50.0, tenant="waits")
    assert len(engine.cache.open_finds()) == 1 and side_of(engine).holds.num_pages == 10
    while not waits.times.admitted:
        step(engine)
    step(engine)
    assert waits.reused >= 80 and not engine.cache.open_finds() and side_of(engine).holds.num_pages == 0
    finish(engine)
    assert_exact("llama", [waits])
    engine.close()


def test_no_more_than_a_share_is_held() -> None:
    """What is not held counts as not cached: its bound is that of the whole prompt."""
    engine = timed(80, max_sequences=1)
    for nth in range(3):
        finish_one(engine, words(85 * nth, 80))
    engine.submit(words(40, 20), plain(60))
    step(engine)
    runs = [engine.submit([*words(85 * nth, 80), 17], plain(1), ttft=60.0) for nth in range(3)]
    assert side_of(engine).holds.num_pages <= SHARE * 80
    computed = [run.expected.work.tokens for run in runs if run.expected is not None]
    assert computed == [1, 1, 81]
    engine.cancel(runs[0])
    assert side_of(engine).holds.num_pages == 10
    finish(engine)
    engine.close()
    assert not engine.cache.open_finds()


@pytest.mark.parametrize(("pages", "rows", "length"), [(20, 1, 138), (22, 2, 64)])
def test_holds_go_before_anyone_loses_its_pages(pages: int, rows: int, length: int) -> None:
    """One decodes alone and needs every page, or two do: what is held for another goes, and none is preempted."""
    engine = timed(pages, max_sequences=rows, max_length=156)
    finish_one(engine, words(0, 32))
    runs = [engine.submit(words(100 + 40 * nth, 16), plain(length)) for nth in range(rows)]
    step(engine)
    waits = engine.submit([*words(0, 32), 17], plain(1), ttft=60.0)
    assert side_of(engine).holds.num_pages == 4
    finish(engine)
    assert side_of(engine).holds.num_given_up == 1 and not any(run.num_preemptions for run in runs)
    assert_exact("llama", [*runs, waits])
    engine.close()


# -- whose turn it is --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tenants", [("a", "b", "c"), ("a", "a", "a"), (None, None, None)])
def test_deadlines_order_those_of_one_turn(tenants: tuple[str | None, ...]) -> None:
    """Of requests in one round, and of one tenant: the earliest deadline first, those without one last."""
    engine = timed(max_sequences=1)
    engine.submit(words(0, 9), plain(3), tenant="before")
    step(engine)
    asked = [None, 30.0, 20.0]
    runs = [
        engine.submit(words(40 + 9 * nth, 9), plain(2), tenant=name, ttft=ttft)
        for nth, (name, ttft) in enumerate(zip(tenants, asked, strict=True))
    ]
    finish(engine)
    assert sorted(range(3), key=lambda nth: runs[nth].times.first_token) == [2, 1, 0]
    engine.close()


def test_a_deadline_buys_no_turns() -> None:
    """What the operator grants, and rounds of tokens, come before it."""
    engine = timed(max_sequences=1, max_num_tokens=16, granted={"gold": -1})
    engine.submit(words(0, 40), plain(3), tenant="much")
    step(engine)
    next(iter(engine.runs.values())).tenant.time += 3 * 16
    much = engine.submit(words(90, 9), plain(2), tenant="much", ttft=50.0)
    other = engine.submit(words(40, 9), plain(2), tenant="other")
    gold = engine.submit(words(60, 9), plain(2), tenant="gold")
    finish(engine)
    assert gold.times.first_token < other.times.first_token < much.times.first_token
    engine.close()


def test_one_without_a_deadline_is_not_passed_for_ever() -> None:
    """More requests with deadlines than it can serve, of the same tenant: behind its patience its turn comes."""
    engine = timed(max_sequences=1, calibrated=20)
    waits = engine.submit(words(0, 9), plain(2), tenant="a")
    began, nth = engine.time.now, 0
    while not waits.times.first_token:
        for _ in range(2):
            if len(engine.scheduler.waiting) < 6:
                with suppress(TooLate):
                    engine.submit(words(nth, 9), plain(2), tenant="a", ttft=30.0)
                nth += 1
        engine.time.now += 1.0
        step(engine)
        assert engine.time.now - began < 2 * PATIENCE, "it starves"
    assert nth > 20 and waits.times.first_token - began > PATIENCE / 2, "those with earlier deadlines went first"
    finish(engine)
    engine.close()


def test_a_newcomer_breaks_no_bound_behind_it() -> None:
    """It goes first only where those behind it keep their time; else it goes behind them, or is refused."""
    engine = timed()
    alone = engine.submit(words(0, 200), plain(1), ttft=10.0)
    engine.cancel(alone)
    slow = engine.submit(words(0, 200), plain(1), ttft=1.05 * alone.user_times.bound)
    with pytest.raises(TooLate):
        engine.submit(words(100, 200), plain(1), ttft=1.02 * alone.user_times.bound)
    assert side_of(engine).door.counts.refused["others"] == 1
    behind = engine.submit(words(100, 200), plain(1), ttft=10.0)
    finish(engine)
    assert slow.times.first_token <= behind.times.first_token and slow.times.first_token <= slow.times.bound
    engine.close()


# -- what becomes of bounds --------------------------------------------------------------------------------------------


def test_broken_bounds_have_a_cause() -> None:
    engine = timed()
    counts = side_of(engine).door.counts
    engine.timed.pace = 20.0  # as if another program had the machine
    engine.submit(words(0, 30), plain(1), ttft=5.0)
    finish(engine)
    assert counts.fates["slow"] == 1 and counts.late == 0
    engine.timed.pace = 1.0
    gone = engine.submit(words(50, 30), plain(1), ttft=5.0)
    engine.cancel(gone)
    assert counts.fates["left"] == 1 and counts.broken == 1 and not side_of(engine)._open
    engine.close()


def test_an_urgent_tenant_may_overtake() -> None:
    """The operator grants it that: whose bound is broken by it is counted as overtaken."""
    engine = timed(granted={"gold": -1}, max_num_tokens=16)
    run = engine.submit(words(0, 30), plain(1), ttft=60.0, tenant="plain")
    gold = [engine.submit(words(40 * nth, 100), plain(1), tenant="gold") for nth in range(6)]
    finish(engine)
    assert run.times.first_token >= max(one.times.first_token for one in gold)
    assert side_of(engine).door.counts.fates["overtaken"] == 1
    engine.close()


@pytest.mark.parametrize("settings", [{}, {"overlap": True, "scheduling": "fcfs"}])
def test_the_share_of_bounds_is_kept(settings: dict[str, Any]) -> None:
    """A random load about as large as the engine, cached and new prompts, on a machine whose steps vary."""
    engine, dice = timed(240, deadlines=0.9, max_sequences=8, **settings), random.Random(7)
    systems = [dice_words(dice, 48) for _ in range(3)]
    coming, refused, runs = engine.time.now, 0, list[Run]()
    for _ in range(220):
        coming = max(coming, engine.time.now - 0.2) + dice.expovariate(1 / 0.02)
        while engine.runs and engine.time.now < coming:
            engine.timed.pace = dice.lognormvariate(0, 0.3)
            engine.step()
        engine.time.now = max(engine.time.now, coming)
        shared = dice.choice(systems) if dice.random() < 0.5 else []
        tokens = [*shared, *dice_words(dice, dice.randint(4, 100))]
        try:
            wanted = TokenDeadline(dice.choice([0.1, 0.3, 1.0]), coming)
            runs.append(engine.submit(tokens, plain(dice.randint(1, 12)), ttft=wanted))
        except TooLate:
            refused += 1
    finish(engine)
    bounded = [run for run in runs if run.times.bound]
    kept = sum(run.times.first_token <= run.times.bound for run in bounded)
    assert refused > 5 and len(bounded) > 120 and kept / len(bounded) >= 0.9
    counts = side_of(engine).door.counts
    assert counts.fates["kept"] == kept and counts.bounded == len(bounded) and counts.num_refused >= 1
    assert not side_of(engine)._open and not engine.cache.open_finds()
    engine.close()
