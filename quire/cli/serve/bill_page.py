"""A bill as one HTML page, in the look of the other reports. Knows no prices but through the rows."""

from __future__ import annotations

import quire.simulate.show.html as html
from quire.cli.serve.bill_rows import ordered, period, table
from quire.insight.bills.bill import Bill, BillLine
from quire.insight.bills.prices import PriceList
from quire.simulate.show.number_format import bytes_text, count_text, share_text


def page(bill: Bill, prices: PriceList | None) -> str:
    """The whole page."""
    (head, *rows), total = table(bill, prices), bill.total
    cost = f" They come to {rows[-1][-1]}." if prices else ""
    parts = [html.answer(f"{_accounts(bill)} used this cache from {period(bill)}.{cost}")]
    if bill.note:
        parts.append(html.warning(f"Not whole: {bill.note}."))
    parts.append(html.tiles(_tiles(total)))
    parts.append(html.card([html.table(head, rows)], "Who used what"))
    evictors = [[who.name, other.name, bytes_text(number)] for who, line in ordered(bill)
                for other, number in sorted(line.evicted_by.items(), key=lambda one: one[0].name)]  # fmt: skip
    if evictors:
        parts.append(
            html.card([html.table(["whose pages", "for whom", "bytes"], evictors, words=2)], "Evicted by whom")
        )
    parts.append(html.folded("How it adds up", [html.bullets(SAID)]))
    return html.whole_page("Bill", parts)


SAID = (
    "Every number is a whole one inside: the lines add up to the cache's own sums, exactly.",
    "A page that several accounts have used is held by all of them in equal parts, from when each first used it.",
    "(nobody) is the cache itself: pages that came back from disk and that no request has used since.",
    "(others) are accounts that came when all places were taken.",
)


def _accounts(bill: Bill) -> str:
    number = sum(who.kind == "tenant" for who in bill.lines)
    return f"{count_text(number)} account{'' if number == 1 else 's'}"


def _tiles(total: BillLine) -> list[tuple[str, str, str]]:
    prompt = max(1, total.prompt)
    reused = total.reused_own + total.reused_shared
    return [
        ("Prompt tokens", count_text(total.prompt), f"{count_text(total.requests)} requests"),
        ("Reused", share_text(reused / prompt), f"{share_text(total.reused_shared / prompt)} from others' pages"),
        ("Computed", count_text(total.computed), "prompt tokens"),
        ("Late", count_text(total.late), "answers behind their deadline"),
    ]
