"""BillCollector: what a bill says, as counters by tenant. Labels are names of tenants, of which there are so many keys.

Adapters and sessions, whose names clients choose, are counted with their tenant. Behind the first `MOST` tenants the
others are one. A tenant's own registry has its own numbers alone. Changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from quire.insight.bills.bill import Bill, BillLine, Who
from quire.serve.metrics.families import Families

MOST = 100
SECONDS = 1.0  # a bill is at most so old: however often it is asked for, the engine goes on
TOKENS = ("computed", "reused_own", "reused_shared", "received", "answers")
NANOSECONDS = 1e9
Numbers = dict[tuple[str, ...], float]


class RecentBill:
    """A bill that all who count it share."""

    def __init__(self, bill: Callable[[], Bill]) -> None:
        self._make, self._made = bill, 0.0
        self._bill: Bill | None = None

    def __call__(self) -> Bill:
        """The last one, or one made now."""
        if self._bill is None or time.monotonic() - self._made > SECONDS:
            self._bill, self._made = self._make(), time.monotonic()
        return self._bill


class BillCollector(Collector):
    """Of all tenants, or of one. No number falls: what a lost page takes back from a request counts when it is over."""

    def __init__(self, bill: RecentBill, labels: Mapping[str, str], tenant: str | None = None) -> None:
        self._bill, self._made, self._tenant = bill, Families(labels), tenant
        self._named: set[str] = set()
        self._last: Numbers = {}

    def collect(self) -> Iterator[Metric]:
        """All of them, as they are now."""
        bill, made = self._bill(), self._made
        lines: dict[str, BillLine] = {}
        for who, line in (bill if self._tenant is None else bill.of_tenant(self._tenant)).lines.items():
            lines.setdefault(self._name(who), BillLine()).add(line)
        what = "Sequences that were admitted."
        yield made.counts("quire:bill_requests", what, ("tenant",), self._numbers("requests", lines))
        what = "Tokens: computed, reused from own pages and from others', received, and of answers."
        tokens: Numbers = {(name, kind): getattr(line, kind) for name, line in lines.items() for kind in TOKENS}
        yield made.counts("quire:bill_tokens", what, ("tenant", "kind"), self._grown("tokens", tokens))
        what = "Deadlines of first tokens that were missed."
        yield made.counts("quire:bill_late", what, ("tenant",), self._numbers("late", lines))
        what = "Bytes of its pages that were evicted with their last copy."
        yield made.counts("quire:bill_evicted_bytes", what, ("tenant",), self._numbers("evicted", lines))
        what = "Bytes read up, by the tier that they came from."
        loaded: Numbers = {
            (name, tier): float(number) for name, line in lines.items() for tier, number in line.loaded.items()
        }
        yield made.counts("quire:bill_loaded_bytes", what, ("tenant", "tier"), self._grown("loaded", loaded))
        what = "Bytes held times seconds, by tier."
        held: Numbers = {
            (name, tier): number / NANOSECONDS for name, one in lines.items() for tier, number in one.held.items()
        }
        yield made.counts("quire:bill_held_byte_seconds", what, ("tenant", "tier"), self._grown("held", held))

    def _name(self, who: Who) -> str:
        """A label: those that were there first have their own."""
        name = (who.tenant or "") if who.kind == "tenant" else f"({who.kind})"
        if name not in self._named and len(self._named) >= MOST:
            return "(others)"
        self._named.add(name)
        return name

    def _numbers(self, name: str, lines: Mapping[str, BillLine]) -> Numbers:
        return self._grown(name, {(tenant,): getattr(line, name) for tenant, line in lines.items()})

    def _grown(self, name: str, values: Numbers) -> Numbers:
        found: Numbers = {}
        for key, value in values.items():
            found[key] = self._last[name, *key] = max(float(value), self._last.get((name, *key), 0.0))
        return found
