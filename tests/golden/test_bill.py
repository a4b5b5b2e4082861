"""A bill that an earlier version wrote, read and gone on with by today's code."""

from __future__ import annotations

import json
from pathlib import Path

from quire.insight.bills import Bill, Bills, Who, load_bill
from quire.insight.bills.bill import OTHERS
from tests.insight.bills.test_bills import Billed

FILE = Path(__file__).parent / "bill-1.json"


def test_it_is_read_whole_and_written_as_it_was() -> None:
    bill = load_bill(FILE)
    assert bill.to_json() == json.loads(FILE.read_text())
    assert {Who("alice"), Who("alice", None, "s"), Who("bob", "sql"), Who(), OTHERS} <= bill.lines.keys()
    total = bill.total
    assert total.requests == 8 and total.prompt == sum(range(17, 25)) and total.evicted and total.loaded["host"]
    assert min(total.reused_own, total.reused_shared, total.held["host"]) > 0


def test_todays_cache_goes_on_with_it(tmp_path: Path) -> None:
    path = tmp_path / "bills.json"
    path.write_bytes(FILE.read_bytes())
    one = Billed("twin", options={"path": path, "every": 0})
    one.serve("alice")
    before, now = load_bill(FILE), one.bill()
    assert now.lines[Who("alice")].requests == before.lines[Who("alice")].requests + 1
    assert now.total.prompt == before.total.prompt + 16 and now.since == before.since
    assert isinstance(now, Bill) and isinstance(one.bills, Bills)
