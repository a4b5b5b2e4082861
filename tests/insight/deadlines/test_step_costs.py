"""What a step takes: learned, never negative, from bounded samples, and not thrown off by a few slow steps."""

from __future__ import annotations

import random

import pytest

from quire.insight.deadlines.step_costs import KEPT, SIZES, StepCosts, StepWork, prompt_work

TRUE = (0.004, 2e-4, 3e-8, 3e-4, 1e-6, 2e-10, 0.0)  # base, tokens, attended, rows, context, bytes, slow bytes


def seconds_of(work: StepWork, steps: float = 1.0) -> float:
    return TRUE[0] * steps + sum(weight * one for weight, one in zip(TRUE[1:], work, strict=True))


def any_step(dice: random.Random) -> StepWork:
    rows = dice.randint(0, 64)
    decoding = StepWork(rows=rows, context=rows * dice.randint(50, 4000))
    if dice.random() < 0.4:
        return decoding
    start = dice.randint(0, 6000)
    return decoding.plus(prompt_work(start, start + dice.randint(1, 512), dice.choice([0.0, 1e6, 4e7])))


def learned(noise: float, slow: float = 0.0, steps: int = 1200) -> StepCosts:
    dice, costs = random.Random(2), StepCosts()
    for _ in range(steps):
        work = any_step(dice)
        costs.note(work, seconds_of(work) * dice.lognormvariate(0, noise) * (10 if dice.random() < slow else 1))
    return costs


@pytest.mark.parametrize(("noise", "slow", "within"), [(0.0, 0.0, 0.01), (0.1, 0.0, 0.1), (0.05, 0.02, 0.15)])
def test_costs_are_learned(noise: float, slow: float, within: float) -> None:
    """Each part of them, and a whole prompt of many steps behind others; one step in fifty takes ten times as long."""
    costs = learned(noise, slow)
    whole = prompt_work(0, 20_000, 5e7).plus(StepWork(rows=40 * 30, context=40 * 60_000))
    for work, steps in ((StepWork(rows=50, context=100_000), 1), (prompt_work(3000, 3500), 1), (whole, 40)):
        assert costs.seconds(work, steps) == pytest.approx(seconds_of(work, steps), rel=within)


def test_bytes_of_a_slow_tier_have_a_price_of_their_own() -> None:
    """They come beside steps: were they counted with the others, those would seem to cost little."""
    dice, costs = random.Random(3), StepCosts()
    for _ in range(1200):
        slow = dice.choice([0.0, 5e7, 4e8])
        work = any_step(dice)._replace(slow_bytes=slow)
        costs.note(work, seconds_of(work))
    loading = prompt_work(3000, 3500, 4e7)
    assert costs.seconds(loading) - costs.seconds(loading._replace(bytes=0.0)) == pytest.approx(4e7 * 2e-10, rel=0.01)
    assert costs.seconds(loading._replace(slow_bytes=4e8)) == pytest.approx(costs.seconds(loading), rel=0.001)
    assert loading._replace(slow_bytes=3.0).plus(StepWork(slow_bytes=4.0)).slow_bytes == 7.0


def test_nothing_is_said_before_enough_was_seen() -> None:
    costs = StepCosts()
    for _ in range(100):
        costs.note(StepWork(rows=3), 0.01)
    assert not costs.ready, "no prompt was seen"
    for nth in range(8):
        assert not costs.ready
        costs.note(StepWork(tokens=10 + nth), 0.02)
    assert costs.ready and costs.seconds(StepWork(tokens=10)) > 0


def test_decoding_does_not_push_out_what_prompts_cost() -> None:
    """Hours of decoding: the samples of prompts stay, and there are never more than so many."""
    costs = learned(0.0)
    for nth in range(5000):
        work = StepWork(rows=8, context=8 * (100 + nth % 50))
        costs.note(work, seconds_of(work))
    assert costs.seconds(prompt_work(0, 400)) == pytest.approx(seconds_of(prompt_work(0, 400)), rel=0.15)
    assert sum(map(len, costs._samples)) <= KEPT * SIZES


def test_a_machine_that_became_slower_is_noticed() -> None:
    costs, dice = learned(0.02), random.Random(4)
    for _ in range(1500):
        work = any_step(dice)
        costs.note(work, 3 * seconds_of(work))
    work = prompt_work(0, 300)
    assert costs.seconds(work) == pytest.approx(3 * seconds_of(work), rel=0.1)


def test_weights_are_never_negative() -> None:
    """Longer contexts that happen to be faster do not make long prompts free."""
    costs, dice = StepCosts(), random.Random(1)
    for _ in range(400):
        tokens = dice.randint(1, 200)
        costs.note(StepWork(tokens=tokens, attended=1e6 / tokens), 0.01 + 1e-4 * tokens)
    assert costs.seconds(StepWork(tokens=10, attended=1e12)) >= costs.seconds(StepWork(tokens=10))


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_times_that_no_step_takes_are_left_out(seconds: float) -> None:
    costs = learned(0.0)
    before, modelled = costs.num_steps, costs.modelled
    costs.note(StepWork(tokens=5), seconds)
    assert (costs.num_steps, costs.modelled) == (before, modelled)
