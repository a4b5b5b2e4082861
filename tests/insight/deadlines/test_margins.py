"""The factor: over time the share is kept, whatever the distribution is and while it changes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from quire import InputError
from quire.insight.deadlines.margins import CLASSES, FIRST, KEPT, MOST_AGE, Margins, quantile


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def ratio(dice: random.Random, nth: int, count: int) -> float:
    """How much longer than expected: with a heavy tail, and twice as long in the second half."""
    drift = 2.0 if nth > count // 2 else 1.0
    return drift * dice.lognormvariate(0, 0.5) * (6 if dice.random() < 0.01 else 1)


@pytest.mark.parametrize("share", [0.9, 0.95, 0.99])
def test_the_share_is_kept(share: float) -> None:
    clock, dice, count, kept = Clock(), random.Random(int(share * 100)), 6000, 0
    margins = Margins(share, clock)
    for nth in range(count):
        steps = dice.choice([1, 2, 5, 30])
        late = ratio(dice, nth, count) - 1
        in_time = late <= margins.margin(steps)
        kept += in_time
        margins.note(steps, late, kept=in_time)
        clock.now += 0.2
    assert share <= kept / count <= share + (1 - share), "the factor is not so large that it says nothing"
    assert margins.margin(1) < 2 * 6 * 5
    assert sum(map(len, margins._late)) <= 2 * CLASSES * KEPT


def test_bounds_that_break_together_widen_all() -> None:
    """It takes longer and longer: what was seen is always less than what comes, and the share is kept all the same."""
    margins, kept = Margins(0.9, Clock()), 0
    for nth in range(2000):
        late = 0.5 + nth / 200
        in_time = late <= margins.margin(1)
        kept += in_time
        margins.note(1, late, kept=in_time)
    assert kept / 2000 >= 0.9


def test_few_say_nothing_of_what_is_rare() -> None:
    """One in a hundred may lie beyond all of eighty: until it may have been seen, the first margin counts."""
    for share, enough in ((0.95, 48), (0.99, 117)):
        margins = Margins(share, Clock())
        first = margins.margin(1)
        for nth in range(enough):
            assert margins.margin(1) >= first, nth
            margins.note(1, 0.0, kept=True)
        assert margins.margin(1) < first


def test_before_anything_is_known() -> None:
    margins = Margins(0.95, Clock())
    assert margins.margin(1) == FIRST
    margins.note(1, 5.0, kept=False)
    assert margins.margin(1) > 5.0, "what was seen counts at once"


def test_few_are_taken_for_the_beginning_of_a_tail() -> None:
    """The largest of 60 is passed once in 60 times: too often for 0.99. Of many, what was seen is the answer."""
    dice = random.Random(3)
    passed = []
    for _ in range(2000):
        found = [dice.expovariate(1.0) for _ in range(60)]
        passed.append(dice.expovariate(1.0) > quantile(found, 0.99))
    assert 0.004 < sum(passed) / 2000 < 0.0145 < 1 / 60
    assert quantile([float(nth) for nth in range(1000)], 0.9) == 900.0
    assert quantile([float(nth) for nth in range(100)], 0.99) > 100.0, "the largest alone is too little to go by"
    assert Margins(0.99, Clock()).margin(1) == pytest.approx(FIRST * 1.54, rel=0.01)


def test_old_ratios_count_no_more() -> None:
    """Else an engine that refuses all it is asked after a bad hour would go on to."""
    clock = Clock()
    margins = Margins(0.95, clock)
    for _ in range(100):
        margins.note(1, 50.0, kept=False)
    assert margins.margin(1) >= 50.0
    clock.now += MOST_AGE + 1
    assert margins.margin(1) == FIRST


@pytest.mark.parametrize("share", [0.2, 1.0, 95, True, "0.95", float("nan")])
def test_what_is_no_share(share: Any) -> None:
    with pytest.raises(InputError, match="share of bounds"):
        Margins(share, Clock())
