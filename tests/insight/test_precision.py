"""Findings on logs of text: none where nothing is wrong, what was planted at its place, with the gain that it has.

The whole table is made by `python -m tests.insight.precision`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.effort import cases, slow

from .precision import drawn, found_in, gain_of, is_at_its_place, judge

SMALL = 200  # requests
REQUESTS = {2000: SMALL, 2003: 90}  # by the seed
WITHIN = {"blanks at line ends": 0.02, "two versions of the client": 0.02}  # what is seldom spelled so is not learned


@pytest.mark.long
@pytest.mark.parametrize("number", range(cases(3, 20)))
def test_nothing_is_wrong_with_a_clean_log(number: int) -> None:
    judged = judge(drawn((), number, SMALL))
    assert judged.wrong == [], judged.world


@pytest.mark.parametrize(
    ("fault", "number"),
    [
        ("clock", 2000), ("examples in any order", 2000), ("blanks at line ends", 2000), slow("batch", 2000),
        ("summary for history", 2000), slow("hash in front", 2001), slow("id in tools", 2000),
        slow("tools in any order", 2000), slow("two versions of the client", 2000), slow("sliding history", 2007),
        slow("salt", 2000), slow("adapter", 2000), ("crawler", 2003), slow("blocks", 2000),
    ],
)  # fmt: skip
def test_a_fault_has_its_place_and_the_gain_that_a_cache_has_without_it(fault: str, number: int) -> None:
    judged, one, before, after = gain_of(fault, number, REQUESTS.get(number, 300))
    assert one is not None and judged.named == [fault] and judged.wrong == []
    assert one.before == pytest.approx(before, abs=0.01)
    assert one.after == pytest.approx(after, abs=WITHIN.get(fault, 0.01))


def test_a_fault_at_another_place_is_not_named() -> None:
    world = drawn(("examples in any order",), 2000, SMALL)
    (one,) = found_in(world).findings
    (fault,) = world.faults
    assert one.token is not None and is_at_its_place(one, world, fault)
    assert not is_at_its_place(replace(one, token=one.token - 1), world, fault)
    assert not is_at_its_place(replace(one, token=one.token + 5), world, fault)
