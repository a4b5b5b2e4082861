"""quire bill: a table, CSV, JSON, a page; from a folder and from a server, to those who may see it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from quire.cli.main import main
from quire.insight.bills import Bill, BillLine, Who, load_bill, save_bill
from quire.insight.bills.bill import OTHERS, bill_of
from quire.serve import ApiKeys
from tests.insight.bills.test_bill_file import some
from tests.serve.rig import Serving, serving
from tests.serve.test_auth import ALICE, BOB, LINES, ask, bearer

OPERATOR = "sk-operator-0123456789"


@pytest.fixture(scope="module")
def billed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    sizes = {"bills": str(tmp_path_factory.mktemp("bills"))}
    with serving(keys=ApiKeys(LINES), viewer_key=OPERATOR, sizes=sizes) as made:
        yield made


def test_a_folder_as_a_table_and_as_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_bill(some(), tmp_path / "bills.json")
    prices = tmp_path / "prices.toml"
    prices.write_text('currency = "EUR"\n[tokens]\ncomputed = 1000000\n')
    assert main(["bill", str(tmp_path), "--prices", str(prices)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[2].split()[:3] == ["account", "requests", "computed"] and out[2].endswith("cost")
    assert [line.split()[0] for line in out[3:]] == ["alice", "bob", "all"] and out[3].endswith("10.00 EUR")
    assert main(["bill", str(tmp_path / "bills.json"), "--prices", str(prices), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["tenant"] for row in rows] == ["alice", "bob"] and Decimal(rows[0]["cost"]) == 10
    assert sum(int(row["held_device"]) for row in rows) == some().total.held["device"]
    assert [int(row["evicted_for"]) for row in rows] == [1, 11]


def test_json_with_costs_is_a_bill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_bill(some(), tmp_path / "bills.json")
    (tmp_path / "prices.toml").write_text("requests = 0.1\n")
    assert main(["bill", str(tmp_path), "--prices", str(tmp_path / "prices.toml"), "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert bill_of(data) == some() and [line["cost"] for line in data["lines"]] == ["0.3", "0.1"]


def test_a_page_where_names_are_no_markup_and_no_formulas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bill = some()
    bill.lines[Who("<script>alert(1)</script>")] = BillLine(1)
    bill.lines[Who("=HYPERLINK(1)")] = BillLine(1)
    bill.note = "the clock broke"
    save_bill(bill, tmp_path / "bills.json")
    page = tmp_path / "bill.html"
    assert main(["bill", str(tmp_path), "--html", str(page), "--format", "csv"]) == 0
    assert "\n" + "tenant,'=HYPERLINK(1)," in capsys.readouterr().out
    text = page.read_text()
    assert "<script" not in text and "&lt;script&gt;" in text
    assert "the clock broke" in text and "Evicted by whom" in text and "alice" in text


@pytest.mark.parametrize(("words", "told"), [
    (["/nowhere"], "No such file"), (["{folder}", "--html", "/nowhere/x.html"], "no such folder"),
    (["http://127.0.0.1:1"], "cannot be reached"), (["{folder}", "--prices", "/nowhere"], "No such file"),
])  # fmt: skip
def test_what_cannot_be_shown(words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_bill(Bill((), "", ""), tmp_path / "bills.json")
    assert main(["bill", *(word.format(folder=tmp_path) for word in words)]) == 2
    got = capsys.readouterr()
    assert got.out == "" and got.err.startswith("quire bill: ") and told in got.err


def test_a_server_tells_each_its_own_and_the_operator_all(
    billed: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for key in (ALICE, ALICE, BOB):
        ask(billed, key)
    key_file = tmp_path / "key"

    def shown(key: str) -> Bill:
        key_file.write_text(f"{key}\n")
        assert main(["bill", billed.url, "--key-file", str(key_file), "--format", "json"]) == 0
        return bill_of(json.loads(capsys.readouterr().out))

    whole, hers, his = shown(OPERATOR), shown(ALICE), shown(BOB)
    assert {"alice", "bob"} <= {who.tenant for who in whole.lines}
    assert [who for who in hers.lines if who != OTHERS] == [Who("alice")] and list(his.lines) == [Who("bob")]
    line = hers.lines[Who("alice")]
    assert line.requests == 2 and line.reused_own > 64 and line.reused_shared == 0 and line.held["device"] > 0
    assert his.total.computed == line.computed + line.reused_own - his.total.computed - his.total.reused_own
    assert billed.get("/bills").status == 401
    key_file.write_text("sk-nobody-0123456789\n")
    assert main(["bill", billed.url, "--key-file", str(key_file)]) == 2
    assert "does not know this key" in capsys.readouterr().err
    asked = billed.get("/bills", **bearer(BOB))
    assert "alice" not in asked.data.decode()


def test_a_server_without_bills_and_one_that_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as plain:
        assert plain.get("/bills").status == 404 and main(["bill", plain.url]) == 2
        assert "it keeps none" in capsys.readouterr().err
    with serving(sizes={"bills": str(tmp_path)}) as made:
        assert made.chat().status == 200
        assert made.get("/bills").json["total"]["requests"] == 1
    assert load_bill(tmp_path).lines[Who()].answers > 0


def test_columns_add_up_as_printed_and_empty_ones_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Thirds of a unit: rounded each by itself they would be 0.1 short."""
    bill = Bill(("device", "host"), "2026-11-19T20:50:34+00:00", "2026-11-19T22:50:34+02:00")
    for name in ("alice", "bob", "carol"):
        bill.lines[Who(name)] = BillLine(1, held={"device": 10**22}, loaded={"host": 1_333_333_333})
    save_bill(bill, tmp_path / "bills.json")
    assert main(["bill", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2026-11-19 20:50 to 20:50 UTC"
    assert lines[2].split() == ["account", "requests", "computed", "own", "device", "GiB·h", "from", "host", "GB"]
    rows = [line.split() for line in lines[3:]]
    for column, whole in ((4, "7.761"), (5, "4.0")):
        *parts, said = (Decimal(row[column]) for row in rows)
        assert sum(parts) == said == Decimal(whole)
