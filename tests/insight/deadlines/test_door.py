"""The door: accepts what can come in time, refuses the rest, and lets no newcomer break what was said to others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.insight.deadlines.answer_lengths import FEWEST, KEPT, AnswerLengths, RunningAnswer
from quire.insight.deadlines.door import DeadlineDoor, OpenBound, QueuePlace, Standing
from quire.insight.deadlines.margins import FIRST
from quire.insight.deadlines.step_costs import StepWork, prompt_work

EMPTY = Standing(100, StepWork(), 0.0, 0, 0, 0.0, 8, 1000, ())
BASE, TOKEN, ROW = 0.01, 0.001, 0.002
ALONE = (1 + FIRST) * (BASE + 50 * TOKEN) + FIRST * (BASE + 100 * TOKEN)  # the bound of 50 tokens, and a full step


def door() -> DeadlineDoor:
    """One whose costs are known: a step takes 10 ms, a token 1, a decoding row 2."""
    made = DeadlineDoor(0.95, lambda: 0.0)
    for nth in range(300):
        work = StepWork(tokens=nth % 90, rows=nth % 7)
        made.costs.note(work, BASE + TOKEN * work.tokens + ROW * work.rows)
    return made


def expected_of(made: DeadlineDoor, own: StepWork, standing: Standing, pages: int = 1) -> float:
    found = made.verdict(own, pages, QueuePlace(standing, ()), 0.0, 1e9)
    assert found.bound is not None and found.bound > found.expected
    return found.expected


def test_what_is_computed_before_it_counts() -> None:
    """Alone; behind others; with prompts that fill up its last step; beside answers that decode."""
    made, own = door(), prompt_work(400, 450)
    assert expected_of(made, own, EMPTY) == pytest.approx(BASE + 50 * TOKEN, rel=0.01)
    behind = replace(EMPTY, ahead=StepWork(tokens=350))
    assert expected_of(made, own, behind) == pytest.approx(4 * BASE + 400 * TOKEN, rel=0.01)
    assert expected_of(made, own, replace(EMPTY, behind=1000)) == pytest.approx(BASE + 100 * TOKEN, rel=0.01)
    decoding = replace(EMPTY, rows=20, ahead=StepWork(tokens=110))
    assert expected_of(made, own, decoding) == pytest.approx(2 * (BASE + 20 * ROW) + 160 * TOKEN, rel=0.01)
    assert expected_of(made, prompt_work(0, 450), EMPTY) == pytest.approx(5 * BASE + 450 * TOKEN, rel=0.01)


def test_it_waits_for_seats_and_pages() -> None:
    """All rows are taken, or pages are short: so many answers must end first, by how long answers were lately."""
    made, own = door(), prompt_work(0, 50)
    answers = [RunningAnswer(made=10 * nth, most=100, pages=5) for nth in range(4)]
    full = replace(EMPTY, free_seats=0, rows=4, answers=answers)
    each = BASE + 4 * ROW
    assert expected_of(made, own, full) == pytest.approx((70 + 1) * each + 50 * TOKEN, rel=0.01), (
        "as long as they may be"
    )
    for _ in range(FEWEST):
        made.lengths.note(40)
    assert expected_of(made, own, full) == pytest.approx((10 + 1) * each + 50 * TOKEN, rel=0.01)
    second = replace(full, seats_ahead=1)
    assert expected_of(made, own, second) == pytest.approx((20 + 1) * each + 50 * TOKEN, rel=0.01)
    tight = replace(full, free_seats=4, free_pages=3)
    assert expected_of(made, own, tight, pages=11) == pytest.approx((20 + 1) * each + 50 * TOKEN, rel=0.01)
    assert expected_of(made, own, replace(full, seats_ahead=40)) > 5 * expected_of(made, own, second)


def test_in_time_or_not() -> None:
    made, own = door(), prompt_work(0, 50)
    bound = ALONE
    for waited, limit, accepted in ((0.0, bound * 1.02, True), (0.0, bound * 0.98, False), (bound / 2, bound, False)):
        verdict = made.verdict(own, 1, QueuePlace(EMPTY, ()), waited, limit)
        assert verdict.accepted is accepted and verdict.bound == pytest.approx(waited + bound, rel=0.01)


def test_before_costs_are_known_all_come_in_without_a_bound() -> None:
    made = DeadlineDoor(0.95, lambda: 0.0)
    verdict = made.verdict(prompt_work(0, 50), 1, QueuePlace(EMPTY, ()), 0.0, 1e-6)
    assert verdict.accepted and verdict.bound is None
    one = made.enter(verdict, 0.0, 0.0, 1e-6)
    assert made.came(one, 1.0) == "unbounded" and made.counts.unbounded == 1 and made.counts.late == 1
    assert made.counts.bounded == 0 == made.counts.broken


def entered(made: DeadlineDoor, limit: float) -> OpenBound:
    verdict = made.verdict(prompt_work(0, 50), 1, QueuePlace(EMPTY, ()), 0.0, limit)
    assert verdict.accepted
    return made.enter(verdict, 0.0, 0.0, limit)


def test_no_newcomer_breaks_what_others_were_told() -> None:
    """One goes before it that leaves it time; the next would not, and is refused for its sake."""
    made, own = door(), prompt_work(0, 50)
    first = entered(made, ALONE + 1.5 * 50 * (TOKEN + BASE / 100))
    place = QueuePlace(EMPTY, [first])
    verdict = made.verdict(own, 1, place, 0.0, 100.0)
    assert verdict.accepted
    made.push_back(own, 1, place)
    assert first.slack >= 0 and first.delayed == pytest.approx(50 * (TOKEN + BASE / 100), rel=0.01)
    again = made.verdict(own, 1, place, 0.0, 100.0)
    assert not again.accepted and again.others and again.bound == verdict.bound
    made.refuse(again)
    assert made.counts.refused == {"own": 0, "others": 1, "dear": 0}
    first.slack = -1.0
    assert made.verdict(own, 1, place, 0.0, 100.0).accepted, "it is late whatever comes"


@pytest.mark.parametrize(
    ("took", "more_work", "flags", "fate"),
    [
        (0.9, 0.0, {}, "kept"), (2.0, 0.0, {}, "slow"), (2.0, 1.0, {}, "overtaken"),
        (2.0, 1.0, {"preempted": True}, "preempted"), (2.0, 1.0, {"recomputed": True}, "recomputed"),
        (0.9, 1.0, {"preempted": True}, "kept"),
    ],
)  # fmt: skip
def test_why_a_bound_was_broken(took: float, more_work: float, flags: dict[str, bool], fate: str) -> None:
    made = door()
    one = entered(made, 10.0)
    assert one.latest is not None
    made.costs.note(StepWork(tokens=50 + more_work * 200), 0.06)
    assert made.came(one, took * one.latest, **flags) == fate
    assert made.counts.fates[fate] == 1 and made.counts.broken == (fate != "kept")


def test_delays_by_those_that_came_later_do_not_make_it_refuse_more() -> None:
    """They were let in since it could wait: they widen what is said, not what is needed."""
    made = door()
    for _ in range(60):
        one = entered(made, 10.0)
        delay = made.delay(prompt_work(0, 900), 1, EMPTY)
        made.push_back(prompt_work(0, 900), 1, QueuePlace(EMPTY, [one]))
        assert made.came(one, one.accepted + one.expected + delay) in ("kept", "slow")
    verdict = made.verdict(prompt_work(0, 50), 1, QueuePlace(EMPTY, ()), 0.0, 10.0)
    assert verdict.soonest < ALONE and verdict.bound is not None and verdict.bound > 3 * verdict.soonest
    tight = made.verdict(prompt_work(0, 50), 1, QueuePlace(EMPTY, ()), 0.0, 1.01 * verdict.soonest)
    assert tight.accepted and tight.bound == pytest.approx(1.01 * verdict.soonest), "no bound behind its deadline"


def test_one_that_takes_the_seat_or_the_pages_they_wait_for_delays_them_by_it() -> None:
    made = door()
    answers = [RunningAnswer(made=10 * nth, most=100, pages=5) for nth in range(4)]
    full = replace(EMPTY, free_seats=0, rows=4, answers=answers)
    each = BASE + 4 * ROW
    assert made.delay(prompt_work(0, 1), 1, full) == pytest.approx(10 * each, rel=0.05)
    assert made.delay(prompt_work(0, 1), 1, EMPTY) < 0.01
    tight = replace(full, free_seats=4, free_pages=4)
    assert made.delay(prompt_work(0, 1), 4, tight) < each
    assert made.delay(prompt_work(0, 1), 9, tight) == pytest.approx(20 * each, rel=0.05), "two more answers must end"


def test_one_that_leaves_is_neither_kept_nor_broken() -> None:
    made = door()
    made.left(entered(made, 10.0), 0.0)
    assert made.counts.fates["left"] == 1 and made.counts.broken == 0 == made.counts.fates["kept"]
    assert made.margins.margin(1) == FIRST


def test_how_long_answers_are() -> None:
    lengths = AnswerLengths()
    assert lengths.left(3, 100) == 97, "as long as it may be"
    for length in [10] * FEWEST + [50] * FEWEST:
        lengths.note(length)
    found = [lengths.left(made, most) for made, most in ((0, 100), (10, 100), (0, 20), (0, 10), (20, 40))]
    assert found == pytest.approx([30, 40, 15, 10, 20])
    assert lengths.left(50, 100) == 50, "longer than any"
    for _ in range(KEPT):
        lengths.note(7)
    assert lengths.left(0, 100) == pytest.approx(7) and len(lengths._kept) == KEPT
    for _ in range(KEPT):
        lengths.note(4, cut=True)
    assert lengths.left(0, 4) == 4 and lengths.left(0, 100) == 100, "nobody knows how long they would have been"
    for _ in range(KEPT // 2):
        lengths.note(20)
    assert lengths.left(0, 100) == pytest.approx(20), "those that were cut at 4 say nothing about what comes behind"
    for _ in range(KEPT // 4):
        lengths.note(2)
    assert lengths.left(0, 100) == pytest.approx(2 / 4 + 20 * 3 / 4)
    assert lengths.turns([], 3, 0) == 0.0 and lengths.turns([RunningAnswer(0, 9, 1)], 0, 0) == 0.0
