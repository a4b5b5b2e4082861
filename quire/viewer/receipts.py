"""Receipts as the page shows them: the client's view, or with the operator's key all of it. Plain values, bounded."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from quire.core.records.errors import shown
from quire.core.records.reports.receipt import Miss, Receipt
from quire.viewer.snapshot import Snapshots

MOST_MISSES = 200
MOST_TOKENS = 512  # shown of a prompt, where prompts are shown


def receipt_of(snapshots: Snapshots, number: int, operator: bool) -> dict[str, Any] | None:
    """What is body of the request with a number; None: there is none any more."""
    id = snapshots.numbers.id(number)
    if id is None:
        return None
    body: dict[str, Any] = {"number": number, "operator": operator, "receipt": None}
    receipt = snapshots.source.receipt(id)
    if receipt is not None:
        body["receipt"] = _operators(snapshots, receipt) if operator else _clients(receipt)
    if operator:
        body["id"] = shown(id)
    if snapshots.show_tokens:
        body |= _prompt(snapshots, id)
    return body


def _clients(receipt: Receipt) -> dict[str, Any]:
    seen = receipt.client()
    misses = [{"cause": miss.cause, "start": miss.start, "stop": miss.stop} for miss in seen.misses[:MOST_MISSES]]
    return {"length": seen.length, "reused": seen.reused, "misses": misses, "hits": []}


def _operators(snapshots: Snapshots, receipt: Receipt) -> dict[str, Any]:
    hits = [
        {"tier": receipt.tiers[tier], "group": receipt.groups[group], "tokens": tokens}
        for (tier, group), tokens in sorted(receipt.hits.items())
    ]
    misses = [_miss(snapshots, receipt, miss) for miss in receipt.misses[:MOST_MISSES]]
    return {"length": receipt.length, "reused": receipt.reused, "misses": misses, "hits": hits}


def _miss(snapshots: Snapshots, receipt: Receipt, miss: Miss) -> dict[str, Any]:
    body: dict[str, Any] = {"cause": miss.cause, "start": miss.start, "stop": miss.stop}
    if miss.group is not None:
        body["group"] = receipt.groups[miss.group]
    if miss.seconds is not None:
        body["seconds"] = round(miss.seconds, 1)
    if miss.request is not None:
        body["request"] = snapshots.numbers.number(miss.request)
    if miss.scope is not None:
        body["scope"] = snapshots.scopes.label(miss.scope)
    if miss.gap is not None:
        body["gap"] = miss.gap
    if miss.counterfactual is not None:
        body["cure"] = miss.counterfactual
    return body


def _prompt(snapshots: Snapshots, id: Hashable) -> dict[str, Any]:
    tokens = snapshots.source.tokens(id)
    if tokens is None:
        return {}
    first = tokens[:MOST_TOKENS]
    return {"tokens": first.tolist(), "num_tokens": len(tokens), "text": snapshots.source.text(first)}
