"""Waves by definition: who of a batch shares what an earlier one computes, and so comes behind. Knows no slots."""

from __future__ import annotations

from dataclasses import fields

from fuzzing.oracle import claims as claiming
from fuzzing.oracle import pending, receipts
from fuzzing.oracle.model import Model
from fuzzing.oracle.state import Batch, Claim, Row
from fuzzing.world.plain import Budget, Identity

Text = tuple[int, tuple[Identity, ...]]  # a scope, and all tokens up to the end of a block
KEPT = ("ask", "purpose", "first", "good", "told", "lost", "places")


def part(model: Model, batch: Batch, budget: Budget) -> None:
    """The first wave stays among the claims, the others are behind."""
    if pending.shares(model.own) and not budget.all_or_nothing:
        batch.behind = batch.claims
        batch.claims = take(model, batch)


def take(model: Model, batch: Batch) -> list[Claim]:
    """All behind, up to the first that lacks a block which one of them computes."""
    wave: list[Claim] = []
    while batch.behind and not gains(model, batch.behind[0], wave):
        wave.append(batch.behind.pop(0))
    return wave


def gains(model: Model, claim: Claim, others: list[Claim]) -> bool:
    """Whether one of them computes the first whole block that a claim has not found, and has not found it either."""
    last, limit = claim.ask.compute_end - 1, claim.ask.reuse_limit
    mine = missing(model, claim, last if limit is None else min(last, limit))
    return mine is not None and any(mine == missing(model, other, other.ask.compute_end) for other in others)


def missing(model: Model, claim: Claim, end: int) -> Text | None:
    """The text up to the first whole block before `end` that it has not found, if it may be shared."""
    stop = (claim.blocks + 1) * model.world.block_size
    if claim.purpose != "compute" or not (model.world.reuse and claim.ask.keeps) or stop > end:
        return None
    return claim.ask.root, claim.ask.identities[:stop]


def next_wave(model: Model, batch: Batch, rows: list[Row], before: dict[Row, int]) -> None:
    """What these rows were handed out is there for claims that have waited for the last wave; `before` the offer."""
    for row in rows:
        if row not in before:
            before[row], row.launched = row.launched, row.handed
    for claim in batch.behind:
        if gains(model, claim, batch.claims):
            look_again(model, claim)
    batch.claims = take(model, batch)


def look_again(model: Model, claim: Claim) -> None:
    """It may start later than it thought."""
    found = model.find(claim.ask, claim.purpose)
    if found.start <= claim.start:
        return
    if model.world.receipts:
        found.receipt = receipts.explain(model.own, found)
    claiming.hold(found)
    model.let_go(claim)
    for name in [item.name for item in fields(found) if item.name not in KEPT]:
        setattr(claim, name, getattr(found, name))
