"""Counters of bills: by tenant, so many at most, never falling, and each key sees its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from quire.insight.bills import Bill, BillLine, Who
from quire.insight.bills.bill import NOBODY
from quire.serve import ApiKeys
from quire.serve.metrics.bill_collector import MOST, BillCollector, RecentBill
from tests.serve.rig import Serving, serving

LABELS = {"model_name": "m", "engine": "0"}
ALICE, BOB, OPERATOR = (f"sk-{name}-with-enough-characters" for name in ("alice", "bob", "operator"))


def sums(collector: BillCollector, name: str) -> dict[tuple[str, ...], float]:
    """A counter by its own labels."""
    found = next(family for family in collector.collect() if family.name == name)
    totals = [one for one in found.samples if one.name.endswith("_total")]
    return {tuple(v for k, v in one.labels.items() if k not in LABELS): one.value for one in totals}


def collector_of(bill: Bill, tenant: str | None = None) -> BillCollector:
    recent = RecentBill(lambda: bill)
    return BillCollector(recent, LABELS, tenant)


def test_labels_are_tenants_and_bounded() -> None:
    bill = Bill(("device",), "", "")
    for number in range(MOST + 30):
        bill.lines[Who(f"t{number}")] = BillLine(1, computed=10)
        bill.lines[Who(f"t{number}", "an adapter", f"session {number}")] = BillLine(1, answers=2)
    found = collector_of(bill)
    requests = sums(found, "quire:bill_requests")
    assert len(requests) == MOST + 1 and requests["t0",] == 2 and requests["(others)",] == 60
    assert sums(found, "quire:bill_tokens")["t5", "answers"] == 2
    bill.lines = dict(reversed(bill.lines.items()))
    assert sums(found, "quire:bill_requests") == requests, "who had a label keeps it"


def test_no_counter_falls() -> None:
    bill = Bill(("device",), "", "")
    bill.lines[NOBODY] = BillLine(reused_own=5, held={"device": 3 * 10**9}, loaded={"host": 7})
    found = collector_of(bill)
    assert sums(found, "quire:bill_tokens")["(nobody)", "reused_own"] == 5
    assert sums(found, "quire:bill_held_byte_seconds") == {("(nobody)", "device"): 3}
    assert sums(found, "quire:bill_loaded_bytes") == {("(nobody)", "host"): 7}
    bill.lines[NOBODY] = BillLine(reused_own=3)
    assert sums(found, "quire:bill_tokens")["(nobody)", "reused_own"] == 5


def test_a_tenant_sees_its_own_alone() -> None:
    bill = Bill(("device",), "", "")
    bill.lines = {Who("alice"): BillLine(3, evicted_by={Who("bob"): 9}), Who("bob"): BillLine(4, late=1)}
    assert sums(collector_of(bill, "alice"), "quire:bill_requests") == {("alice",): 3}
    assert sums(collector_of(bill, "alice"), "quire:bill_evicted_bytes") == {("alice",): 9}
    assert sums(collector_of(bill, "bob"), "quire:bill_late") == {("bob",): 1}
    assert sums(collector_of(bill, "carol"), "quire:bill_requests") == {}


def seen(server: Serving, key: str) -> tuple[str, dict[str, float]]:
    """What a key is shown, and the requests on it by tenant."""
    text = server.get("/metrics", authorization=f"Bearer {key}").data.decode()
    families: list[Any] = list(text_string_to_metric_families(text))
    found = [one for family in families for one in family.samples if one.name == "quire:bill_requests_total"]
    return text, {one.labels["tenant"]: one.value for one in found}


def test_of_a_server(tmp_path: Path) -> None:
    keys = ApiKeys([f"alice {ALICE}", f"bob {BOB}"])
    with serving(keys=keys, viewer_key=OPERATOR, sizes={"bills": str(tmp_path)}) as server:
        for key in (ALICE, BOB, BOB):
            body = {"prompt": "Once upon a time", "max_tokens": 2}
            assert server.post("/v1/completions", body, authorization=f"Bearer {key}").status == 200
        server.until_idle()
        (_, whole), (hers, her_own), (_, his_own) = (seen(server, key) for key in (OPERATOR, ALICE, BOB))
        assert whole == {"alice": 1, "bob": 2} and her_own == {"alice": 1} and his_own == {"bob": 2}
        assert "bob" not in hers
    with serving() as server:
        assert "quire:bill" not in server.get("/metrics").data.decode()
