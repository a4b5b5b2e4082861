"""A cache's receipt in plain data, and what must be true of every one. Knows no oracle."""

from __future__ import annotations

from fuzzing.compare import Mismatch, same
from fuzzing.world.plain import TICKS, MissFacts, ReceiptFacts
from quire import Miss, Receipt
from quire.core.records.hint_words import BACKS
from quire.core.records.reports.receipt import check_receipt

CLIENT = {"policy", "short", "under_way", "gone", "new"}


def receipt_facts(receipt: Receipt) -> ReceiptFacts:
    """What it says, once it is found to account for every token."""
    check_receipt(receipt)
    client = receipt.client()
    ends = [client.reused, *(miss.stop for miss in client.misses)]
    same("the client's misses", [miss.start for miss in client.misses], ends[:-1])
    same("where they end", ends[-1], receipt.length)
    if not {miss.cause for miss in client.misses} <= CLIENT:
        raise Mismatch(f"a client is told {client}")
    misses = tuple(map(_miss_facts, receipt.misses))
    return ReceiptFacts(receipt.length, receipt.reused, tuple(sorted(receipt.hits.items())), misses)


def _miss_facts(miss: Miss) -> MissFacts:
    ticks = None if miss.seconds is None else round(miss.seconds * TICKS)
    hint = 0 if miss.back is None else 1 + BACKS.index(miss.back)
    request = None if miss.request is None else str(miss.request)
    return MissFacts(miss.cause, miss.start, miss.stop, miss.group, ticks, miss.admission, request, hint)
