"""PriceList: exact sums out of a TOML file, and refusals of what is not understood."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from quire import InputError
from quire.insight.bills import Bill, BillLine, Who, load_prices
from quire.insight.bills.bill import OTHERS

GIB, HOUR = 1 << 30, 3600 * 10**9
TOML = """
currency = "EUR"
requests = 0.001
evicted = 2
late = -1
[tokens]
computed = 0.4
reused_own = 0.04
[held]
device = 0.5
host = 0.05
[loaded]
host = 0.001
[per_tenant.alice]
tokens.computed = 0.3
"""
ALICE, BOB = Who("alice"), Who("bob")


def test_what_a_line_comes_to(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(TOML)
    line = BillLine(
        10, 2_000_000, 500_000, late=1, loaded={"host": 3 * GIB}, held={"device": 4 * GIB * HOUR, "host": GIB * HOUR}
    )
    bill = Bill(("device", "host"), "", "", {ALICE: line, BOB: BillLine(computed=1, evicted_by={ALICE: GIB // 2})})
    bill.lines[OTHERS] = BillLine(computed=1_000_000)
    costs = load_prices(path).costs(bill)
    parts = ("0.01", "0.6", "0.02", "-1", "0.003", "2", "0.05", "1")  # the last: half of a GiB of his pages
    assert costs[ALICE] == sum(map(Decimal, parts))
    assert costs[BOB] == Decimal("0.0000004") and costs[OTHERS] == Decimal("0.4")


@pytest.mark.parametrize("text", [
    "tokens = 1", "[tokens]\nthought = 1", "prize = 1", "[held]\ndevice = 'much'", "[held]\ndevice = true",
    "late = nan",
    "per_tenant = 1", "[per_tenant]\nalice = 1", "currency = 1", "= 1", "[per_tenant.a]\nper_tenant = {}",
])  # fmt: skip
def test_what_is_not_understood_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(InputError, match="the prices"):
        load_prices(path)


def test_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_prices(tmp_path / "none.toml")
