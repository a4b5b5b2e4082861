"""A bill as rows of text, for a table, CSV or a page. Owns which columns there are; knows no markup."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Decimal, localcontext

from quire.insight.bills.bill import Bill, BillLine, Who
from quire.insight.bills.prices import EXACT, GIB, HOUR, PriceList

Cells = list[str]
CENT = Decimal("0.01")


def ordered(bill: Bill) -> list[tuple[Who, BillLine]]:
    """Lines by name; the cache's own ones last."""
    return sorted(bill.lines.items(), key=lambda one: (one[0].kind != "tenant", one[0].name))


def money(cost: Decimal, currency: str) -> str:
    """12.50 EUR; what is less than a cent in full digits."""
    with localcontext() as context:
        context.prec = EXACT
        small = cost and abs(cost) < CENT
        text = f"{cost.normalize():f}"[:12] if small else f"{cost.quantize(CENT, ROUND_HALF_EVEN):,}"
    return f"{text} {currency}".strip()


def hours(held: int) -> str:
    """Byte-nanoseconds as GiB hours."""
    return f"{float(held / GIB / HOUR):,.6g}"


def head(bill: Bill, prices: PriceList | None) -> Cells:
    """What the columns are."""
    names = ["account", "requests", "computed", "own", "shared", "received", "answers", "late"]
    names += [f"{tier} GiB h" for tier in bill.tiers] + [f"from {tier}" for tier in bill.tiers[1:]]
    return [*names, "evicted", "evicted for it", *(["cost"] if prices else [])]


def rows(bill: Bill, prices: PriceList | None, size: Callable[[int], str]) -> list[Cells]:
    """A row per line, and one with their sums; `size` says bytes."""
    costs = prices.costs(bill) if prices else {}
    made = [_row(bill, (who.name, line), bill.evicted_for(who), size) for who, line in ordered(bill)]
    total = bill.total
    made.append(_row(bill, ("all", total), total.evicted, size))
    if prices:
        each = [costs[who] for who, _ in ordered(bill)]
        with localcontext() as context:
            context.prec = EXACT
            each.append(sum(each, Decimal(0)))
        made = [[*row, money(cost, prices.currency)] for row, cost in zip(made, each, strict=True)]
    return made


def _row(bill: Bill, named: tuple[str, BillLine], evicted_for: int, size: Callable[[int], str]) -> Cells:
    name, line = named
    counts = (line.requests, line.computed, line.reused_own, line.reused_shared, line.received, line.answers, line.late)
    cells = [name, *(f"{number:,}" for number in counts)]
    cells += [hours(line.held.get(tier, 0)) for tier in bill.tiers]
    cells += [size(line.loaded.get(tier, 0)) for tier in bill.tiers[1:]]
    return [*cells, size(line.evicted), size(evicted_for)]


def as_text(bill: Bill, prices: PriceList | None, size: Callable[[int], str]) -> str:
    """A table for a terminal."""
    table = [head(bill, prices), *rows(bill, prices, size)]
    wide = [max(len(row[place]) for row in table) for place in range(len(table[0]))]
    lines = []
    for row in table:
        cells = [row[0].ljust(wide[0]), *(cell.rjust(width) for cell, width in zip(row[1:], wide[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    note = [f"Not whole: {bill.note}."] if bill.note else []
    return "\n".join([f"{bill.since} to {bill.until}", "", lines[0], *lines[1:], *note]) + "\n"


def as_csv(bill: Bill, prices: PriceList | None) -> str:
    """Every number as it is: bytes, byte-nanoseconds; costs with all digits. No sums: a sheet makes them."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    counts = ("requests", "computed", "reused_own", "reused_shared", "received", "answers", "late")
    tiers = [f"held_{tier}" for tier in bill.tiers] + [f"loaded_{tier}" for tier in bill.tiers[1:]]
    costs = prices.costs(bill) if prices else {}
    cost = ["cost"] if prices else []
    writer.writerow(["kind", "tenant", "adapter", "session", *counts, *tiers, "evicted", "evicted_for", *cost])
    for who, line in ordered(bill):
        names = [_cell(name or "") for name in (who.tenant, who.adapter, who.session)]
        held = [line.held.get(tier, 0) for tier in bill.tiers] + [line.loaded.get(tier, 0) for tier in bill.tiers[1:]]
        numbers = [getattr(line, name) for name in counts] + held + [line.evicted, bill.evicted_for(who)]
        writer.writerow([who.kind, *names, *numbers, *([f"{costs[who]:f}"] if prices else [])])
    return out.getvalue()


def _cell(text: str) -> str:
    """A name that no sheet takes for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
