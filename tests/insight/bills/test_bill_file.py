"""A bill as a file: whole after any end, added to by the next process, refused when it is damaged."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quire import InputError, StateError
from quire.insight.bills import Bill, BillLine, Bills, Who, load_bill, save_bill
from quire.insight.bills.bill import OTHERS, bill_of
from tests.insight.bills.test_bills import ALICE, BOB, TEXT, Billed
from tests.waits import until

WRITER = """
import sys, numpy as np
from pathlib import Path
from quire import Cache, CacheConfig, LayerGroup, Request, TierConfig
from quire.insight.bills import Bills
bills = Bills(Path(sys.argv[1]), every=0)
cache = Cache(CacheConfig([TierConfig("device", 64)], 4, [LayerGroup(page_bytes=8)]), watchers=[bills])
number = 0
while True:
    request = Request(number, np.arange(40, dtype=np.int32) + number, tenant=f"t{number % 50}")
    batch = cache.add_sequence_batch([request])
    cache.commit(batch.sequences)
    cache.release(batch.sequences)
    number += 1
    bills.save()
"""


def some() -> Bill:
    bill = Bill(("device", "host"), "2026-01-02T03:04:05+00:00", "2026-01-03T03:04:05+00:00")
    bill.lines[ALICE] = BillLine(
        3, 10, 20, 30, 4, 5, 1, {"host": 7}, {"device": 1 << 70, "host": 9}, {BOB: 11, OTHERS: 2}
    )
    bill.lines[BOB] = BillLine(1, held={"device": 5}, evicted_by={ALICE: 1})
    return bill


def test_it_is_read_as_it_was_written_and_by_its_owner_alone(tmp_path: Path) -> None:
    path = save_bill(some(), tmp_path / "new" / "bills.json")
    assert load_bill(path) == load_bill(path.parent) == some()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and os.listdir(path.parent) == ["bills.json"]


@pytest.mark.parametrize("change", [
    lambda data: data["lines"][0].update(computed=11),
    lambda data: data["lines"][0]["held"].update(device=1),
    lambda data: data["lines"][1]["evicted_by"][0].update(bytes=2),
    lambda data: data["lines"].pop(),
    lambda data: data["lines"][0].update(kind="king"),
    lambda data: data["lines"][0].update(computed=-1),
    lambda data: data["lines"][0].update(computed=1.5),
    lambda data: data.update(tiers=[1]),
    lambda data: data.update(lines={"a": 1}),
    lambda data: data.update(version=2),
    lambda data: data.update(format="x"),
    lambda data: data.pop("total"),
])  # fmt: skip
def test_what_does_not_add_up_is_refused(change: Any) -> None:
    data = json.loads(json.dumps(some().to_json()))
    change(data)
    with pytest.raises(InputError):
        bill_of(data)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bills.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        Bills(tmp_path / "bills.json", every=0)
    with pytest.raises(InputError, match="No such file"):
        load_bill(tmp_path / "nothing.json")
    with pytest.raises(StateError, match="no file"):
        Bills().save()


def test_a_process_that_is_killed_leaves_a_whole_bill(tmp_path: Path) -> None:
    path, last = tmp_path / "bills.json", 0

    def has_more() -> bool:
        return path.exists() and load_bill(path).total.requests > last + 5

    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)]) as process:
            until(has_more)
            process.send_signal(signal.SIGKILL)
        found = load_bill(path).total
        assert found.requests > last and found.computed + found.reused_own + found.reused_shared == 40 * found.requests
        last = found.requests


def test_the_next_process_adds_to_it(tmp_path: Path) -> None:
    path = tmp_path / "bills.json"
    for _ in range(2):
        one = Billed("twin", options={"path": path, "every": 0})
        one.serve("alice")
        one.time += 10
        one.bills.close()
    line = load_bill(path).lines[ALICE]
    assert (line.requests, line.computed, line.held) == (2, 32, {"device": 2 * 10 * 400})


def test_it_is_written_by_itself_and_no_more_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "bills.json"
    one = Billed("twin", options={"path": path, "every": 0.01})
    one.serve("alice")
    until(lambda: path.exists() and load_bill(path).total.requests == 1)
    one.bills.close()
    path.unlink()
    one.serve("bob", TEXT + 50)
    assert one.bills._saver is not None and not one.bills._saver._thread.is_alive() and not path.exists()


def test_a_tenant_sees_its_own_lines_and_nobody_elses_name() -> None:
    mine = some().of_tenant("alice")
    assert list(mine.lines) == [ALICE] and mine.lines[ALICE].evicted_by == {OTHERS: 13}
    assert "bob" not in json.dumps(mine.to_json())
    forged = Bill(("device",), "", "", {Who("(others)"): BillLine(1), OTHERS: BillLine(2)})
    assert forged.of_tenant("(others)").total.requests == 1 and forged.of_tenant("x").lines == {}


def test_two_processes_do_not_write_one_bill(tmp_path: Path) -> None:
    path = tmp_path / "bills.json"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)]) as writer:
        until(path.exists)
        with pytest.raises(StateError, match=f"process {writer.pid} .* has it open; .* its own folder"):
            Bills(path, every=0)
        other = Bills(tmp_path / "other.json", every=0)
        other.close()
        writer.kill()
    again = Bills(path, every=0)
    assert load_bill(path).total.requests > 0
    again.close()
    with pytest.raises(StateError, match="these bills are closed"):
        again.save()
    Bills(path, every=0).close()
