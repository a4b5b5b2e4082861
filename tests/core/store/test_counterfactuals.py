"""What each cause says would have helped does help: random histories, run again with that one thing otherwise."""

from __future__ import annotations

from collections import Counter
from random import Random

from quire.core.records.reports.receipt import COUNTERFACTUALS

from .counterfactuals import Failures, try_one

HISTORIES = 60


def test_with_the_counterfactual_a_missed_token_is_reused() -> None:
    tried, saved, failures = Counter[str](), Counter[str](), Failures()
    for number in range(HISTORIES):
        try_one(Random(f"0/{number}"), tried, saved, failures)
    untried = {"interrupted"}  # it takes another prompt, and receipt_chunks: tests/scenarios/test_receipts.py
    assert set(tried) == {cause for cause, text in COUNTERFACTUALS.items() if text is not None} - untried
    shares = {cause: saved[cause] / tried[cause] for cause in tried}
    assert shares.pop("under_way") >= 0.94  # who has waited may find a state gone that its own text has overtaken
    assert saved.total() / tried.total() >= 0.99 and min(shares.values()) >= 0.98, (shares, failures[:3])
