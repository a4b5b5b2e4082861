"""The rush: while more is asked for than can be done the dearest are refused, and no more of them than must be."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest

from quire.insight.deadlines.door import DeadlineDoor, QueuePlace
from quire.insight.deadlines.rush import FEWEST, KEPT, LEAST, Rush
from quire.insight.deadlines.step_costs import StepWork, prompt_work

from .test_door import EMPTY, door


def served(load: float, cost: Callable[[random.Random], float], *, count: int = 6000) -> tuple[Rush, list[float]]:
    """A place that does a second's work in a second and lets nobody wait for longer than three; who came in."""
    rush, dice, backlog, taken = Rush(), random.Random(5), 0.0, list[float]()
    mean = sum(cost(random.Random(nth)) for nth in range(2000)) / 2000
    for _ in range(count):
        backlog = max(0.0, backlog - dice.expovariate(load / mean))
        own = cost(dice)
        if backlog and own > rush.limit:
            rush.note(own, late=False)
        elif backlog + own > 3.0:
            rush.note(own, late=True)
        else:
            rush.note(own, late=False, idle=not backlog)
            backlog += own
            taken.append(own)
    return rush, taken


def uneven(dice: random.Random) -> float:
    return dice.choice([0.05, 0.1, 1.0])


def test_in_a_rush_the_dearest_are_refused() -> None:
    """Of three kinds, the dear third: nearly all of the others come in, and as many of the dear as fit beside them."""
    _, taken = served(1.6, uneven)
    shares = {cost: taken.count(cost) / 2000 for cost in (0.05, 0.1, 1.0)}
    assert min(shares[0.05], shares[0.1]) > 0.9 and 0.3 < shares[1.0] < 0.65, shares


def test_without_a_rush_none_is_too_dear() -> None:
    rush, taken = served(0.5, uneven)
    assert rush.level > 0.9 and len(taken) > 0.98 * 6000


def test_where_all_cost_the_same_none_is_too_dear() -> None:
    rush, taken = served(3.0, lambda dice: 0.2)
    assert rush.level == pytest.approx(LEAST, abs=0.05) and rush.limit == 0.2
    assert len(taken) > 0.95 * 6000 / 3


def test_the_limit_rises_again_behind_a_rush() -> None:
    rush = Rush()
    for nth in range(FEWEST):
        assert rush.limit == inf, "not known yet"
        rush.note(float(nth % 10), late=True)
    assert rush.limit < 9
    before = rush.limit
    for nth in range(3 * KEPT):
        rush.note(float(nth % 10), late=False, idle=nth % 4 == 0)
    assert before < rush.limit == inf and rush.level == 1.0
    assert len(rush._sorted) == KEPT == len(rush._order) and rush._sorted == sorted(rush._order)


def test_what_is_too_dear_does_not_move_the_limit() -> None:
    rush = Rush()
    for nth in range(2 * FEWEST):
        rush.note(1.0 + nth % 2, late=True)
    level = rush.level
    rush.note(50.0, late=True)
    assert rush.limit < 50.0 and rush.level == level


# -- at the door -------------------------------------------------------------------------------------------------------

BEHIND = replace(EMPTY, ahead=StepWork(tokens=100))


def rushed() -> DeadlineDoor:
    """One that was asked for too much: its limit lies between 20 and 80 tokens."""
    made = door()
    for nth in range(4 * FEWEST):
        own = prompt_work(0, 80 if nth % 2 else 20)
        verdict = made.verdict(own, 1, QueuePlace(BEHIND, ()), 0.0, 0.35)
        assert verdict.bound is not None and not verdict.accepted and not verdict.hopeless
        made.refuse(verdict)
    return made


def test_a_dear_request_is_refused_though_it_would_be_in_time() -> None:
    made = rushed()
    cheap, dear = (made.verdict(prompt_work(0, size), 1, QueuePlace(BEHIND, ()), 0.0, 9.0) for size in (20, 80))
    assert cheap.accepted and not cheap.dear
    assert not dear.accepted and dear.dear and dear.bound is not None and dear.bound <= 9.0 and dear.cost > cheap.cost
    before, level = made.counts.num_refused, made.rush.level
    made.refuse(dear)
    assert made.counts.refused["dear"] == 1 and made.counts.num_refused == before + 1
    assert made.rush.level == level


def test_an_engine_without_work_takes_all() -> None:
    made = rushed()
    beside = QueuePlace(replace(EMPTY, rows=1), ())
    assert made.verdict(prompt_work(0, 80), 1, beside, 0.0, 9.0).dear, "it would delay the cheaper ones that come now"
    verdict = made.verdict(prompt_work(0, 80), 1, QueuePlace(EMPTY, ()), 0.0, 9.0)
    assert verdict.accepted and verdict.idle and verdict.cost > made.rush.limit


def test_what_is_cached_costs_nothing_and_an_answer_does() -> None:
    made = rushed()
    place = QueuePlace(BEHIND, ())
    assert made.verdict(prompt_work(790, 800), 1, place, 0.0, 9.0).accepted
    longer = QueuePlace(replace(BEHIND, longest=2000), ())
    assert made.verdict(prompt_work(790, 800), 1, longer, 0.0, 90.0).dear


def test_who_asks_for_the_impossible_makes_no_rush() -> None:
    """A client that wants first tokens sooner than any step takes shall not make others dear."""
    made = door()
    for _ in range(4 * FEWEST):
        verdict = made.verdict(prompt_work(0, 50), 1, QueuePlace(BEHIND, ()), 0.0, 1e-4)
        assert not verdict.accepted and verdict.hopeless
        made.refuse(verdict)
    assert made.rush.level == 1.0 and made.rush.limit == inf
