"""A bill as rows of text, for a table, CSV or a page. Owns which columns there are; knows no markup."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from fractions import Fraction
from math import floor

from quire.insight.bills.bill import Bill, BillLine, Who
from quire.insight.bills.prices import EXACT, GIB, HOUR, PriceList

Cells = list[str]
Units = Sequence[tuple[str, int]]  # the largest first
CENT = Decimal("0.01")
HELD: Units = (("GiB·h", int(GIB * HOUR)), ("GiB·s", int(GIB) * 10**9), ("MiB·s", 2**20 * 10**9))
HELD_DIGITS, BYTES_DIGITS = 3, 1
BYTES: Units = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
COUNTS: tuple[tuple[str, Callable[[BillLine], int]], ...] = (
    ("requests", lambda line: line.requests), ("computed", lambda line: line.computed),
    ("own", lambda line: line.reused_own), ("shared", lambda line: line.reused_shared),
    ("received", lambda line: line.received), ("answers", lambda line: line.answers), ("late", lambda line: line.late),
)  # fmt: skip
ALWAYS = ("requests", "computed", "own")


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


def table(bill: Bill, prices: PriceList | None) -> list[Cells]:
    """What the columns are, a row per line, and one with their sums. Columns of nothing but zeros are left out."""
    made = [line for _, line in ordered(bill)]
    columns: list[tuple[str, list[str]]] = [("account", [*(who.name for who, _ in ordered(bill)), "all"])]
    for name, count in COUNTS:
        numbers = [count(line) for line in (*made, bill.total)]
        if any(numbers) or name in ALWAYS:
            columns.append((name, [f"{number:,}" for number in numbers]))
    for tier in bill.tiers:
        columns += _in_one_unit(tier, [line.held.get(tier, 0) for line in (*made, bill.total)], HELD, HELD_DIGITS)
    for tier in bill.tiers[1:]:
        columns += _in_one_unit(f"from {tier}", [line.loaded.get(tier, 0) for line in (*made, bill.total)], BYTES)
    columns += _in_one_unit("evicted", [line.evicted for line in (*made, bill.total)], BYTES)
    caused = [bill.evicted_for(who) for who, _ in ordered(bill)]
    columns += _in_one_unit("evicted for it", [*caused, bill.total.evicted], BYTES)
    if prices:
        columns.append(("cost", _costs(bill, prices)))
    return [[name for name, _ in columns], *map(list, zip(*(cells for _, cells in columns), strict=True))]


def _costs(bill: Bill, prices: PriceList) -> list[str]:
    costs = prices.costs(bill)
    each = [costs[who] for who, _ in ordered(bill)]
    with localcontext() as context:
        context.prec = EXACT
        each.append(sum(each, Decimal(0)))
    return [money(cost, prices.currency) for cost in each]


def _in_one_unit(
    name: str, numbers: list[int], units: Units, digits: int = BYTES_DIGITS
) -> list[tuple[str, list[str]]]:
    """A column of parts and their sum in the unit of the sum, rounded so that what is printed adds up."""
    if not any(numbers):
        return []
    *parts, whole = numbers
    unit, size = next(((unit, size) for unit, size in units if whole >= size), units[-1])
    exact = [Fraction(10**digits * number, size) for number in numbers]
    counts, sum_of_all = [floor(one) for one in exact[:-1]], round(exact[-1])
    if sum(parts) == whole:
        for at in sorted(range(len(parts)), key=lambda at: counts[at] - exact[at])[: sum_of_all - sum(counts)]:
            counts[at] += 1
    else:  # some of it is of no account here
        counts = [round(one) for one in exact[:-1]]
    return [(f"{name} {unit}", [f"{count / 10**digits:,.{digits}f}" for count in (*counts, sum_of_all)])]


def period(bill: Bill) -> str:
    """2026-11-19 20:50 to 21:50 UTC."""
    try:
        since, until = (datetime.fromisoformat(text).astimezone(UTC) for text in (bill.since, bill.until))
    except ValueError:
        return f"{bill.since} to {bill.until}"
    end = until.strftime("%H:%M" if since.date() == until.date() else "%Y-%m-%d %H:%M")
    return f"{since:%Y-%m-%d %H:%M} to {end} UTC"


def as_text(bill: Bill, prices: PriceList | None) -> str:
    """A table for a terminal."""
    cells = table(bill, prices)
    wide = [max(len(row[place]) for row in cells) for place in range(len(cells[0]))]
    lines = []
    for row in cells:
        rest = (cell.rjust(width) for cell, width in zip(row[1:], wide[1:], strict=True))
        lines.append("  ".join([row[0].ljust(wide[0]), *rest]).rstrip())
    note = [f"Not whole: {bill.note}."] if bill.note else []
    return "\n".join([period(bill), "", *lines, *note]) + "\n"


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
