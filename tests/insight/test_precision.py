"""Findings on logs of text: none where nothing is wrong, what was planted at its place, with the gain that it has.

The whole table is made by `python -m tests.insight.precision`.
"""

from __future__ import annotations

import pytest

from tests.effort import cases, slow

from .precision import drawn, gain_of, judge

SMALL = 200  # requests


@pytest.mark.long
@pytest.mark.parametrize("number", range(cases(3, 20)))
def test_nothing_is_wrong_with_a_clean_log(number: int) -> None:
    judged = judge(drawn((), number, SMALL))
    assert judged.wrong == [], judged.world


@pytest.mark.parametrize("fault", ["clock", slow("hash in front"), "examples in any order"])
def test_a_fault_has_its_place_and_the_gain_that_a_comparison_has(fault: str) -> None:
    judged, one, before, after = gain_of(fault, 2000, SMALL)
    assert one is not None and judged.named == [fault] and judged.wrong == []
    assert one.before == pytest.approx(before, abs=0.05) and one.after == pytest.approx(after, abs=0.08)
