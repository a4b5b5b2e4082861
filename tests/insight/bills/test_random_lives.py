"""The parts of a bill add up to what the cache itself counts, whatever it lives through, and on either store."""

from __future__ import annotations

from collections import Counter

import pytest

from fuzzing.subject import available_stores
from quire import check
from tests.effort import cases
from tests.insight.bills.lives import BilledLife, bytes_held, counted


@pytest.mark.long
@pytest.mark.parametrize("number", range(cases(4, 400)))
def test_a_life_adds_up(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    life = BilledLife(f"billed/{number}", available_stores(), monkeypatch)
    bills = life.live(160)
    assert all(bill == bills[0] for bill in bills) and len(bills) == len(available_stores())
    for cache, bill, held, seen in zip(life.caches, bills, life.held, life.seen, strict=True):
        check(cache)
        assert bill.note == ""
        total = bill.total
        assert Counter(total.held) == +held
        assert (Counter(total.loaded), total.evicted) == counted(cache)
        assert total.reused_own + total.reused_shared == sum(one.start for one in seen.sequences)
        assert total.requests == len(seen.sequences)


def test_many_names_and_many_sets_of_users_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for three accounts beside the two that are always there, all sums stay what they are."""
    life = BilledLife("billed/few", available_stores()[-1:], monkeypatch, most_accounts=4, sessions=True)
    bill = life.live(200)[0]
    assert len(bill.lines) <= 4
    assert Counter(bill.total.held) == +life.held[0]
    assert bytes_held(life.caches[0]).total() >= 0
    assert bill.total.requests == len(life.seen[0].sequences)
