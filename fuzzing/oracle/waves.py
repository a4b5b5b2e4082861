"""Waves by definition: who of a batch shares what an earlier one computes, and so comes behind. Knows no slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from fuzzing.oracle import claims as claiming
from fuzzing.oracle import pending, receipts
from fuzzing.oracle.model import Model
from fuzzing.oracle.state import Batch, Claim, Row
from fuzzing.world.plain import Budget, Identity

Text = tuple[int, tuple[Identity, ...]]  # a scope, and all tokens up to the end of a block
Spans = Sequence[tuple[str, int, int]]  # parts of prompts under way, from and to
KEPT = ("ask", "purpose", "first", "good", "told", "lost", "places")


def part(model: Model, batch: Batch, budget: Budget, going_on: Spans) -> None:
    """The first wave stays among the claims, the others are behind."""
    if pending.shares(model.own) and not budget.all_or_nothing:
        batch.behind = batch.claims
        batch.claims = take(model, batch, going_on)


def take(model: Model, batch: Batch, going_on: Spans) -> list[Claim]:
    """All behind, up to the first that lacks a block which one of them computes, or a prompt that goes on."""
    wave: list[Claim] = []
    while batch.behind and not gains(model, batch.behind[0], wave, going_on):
        wave.append(batch.behind.pop(0))
    return wave


def gains(model: Model, claim: Claim, others: list[Claim], going_on: Spans) -> bool:
    """Whether one of them computes the first whole block that a claim has not found, and has not found it either; or
    some prompt computes a block at that place."""
    last, limit = claim.ask.compute_end - 1, claim.ask.reuse_limit
    last = last if limit is None else min(last, limit)
    mine = missing(model, claim, last)
    alike = mine is not None and any(mine == missing(model, other, other.ask.compute_end) for other in others)
    return alike or any(is_in(model, claim, last, start, end) for _, start, end in going_on)


def is_in(model: Model, claim: Claim, last: int, start: int, end: int) -> bool:
    """Whether some tokens have in them the whole block behind all that a claim could have had."""
    size, found = model.world.block_size, claim.full or claim
    if claim.purpose != "compute" or not (model.world.reuse and claim.ask.keeps):
        return False
    return start // size <= found.blocks and (found.blocks + 1) * size <= min(end, last)


def missing(model: Model, claim: Claim, end: int) -> Text | None:
    """The text up to the first whole block before `end` that it has not found, if it may be shared."""
    stop = (claim.blocks + 1) * model.world.block_size
    if claim.purpose != "compute" or not (model.world.reuse and claim.ask.keeps) or stop > end:
        return None
    return claim.ask.root, claim.ask.identities[:stop]


def next_wave(model: Model, batch: Batch, rows: list[Row], before: dict[Row, int], going_on: Spans) -> None:
    """What these rows were handed out is there for claims that have waited for the last wave; `before` the offer."""
    for row in rows:
        if row not in before:
            before[row], row.launched = row.launched, row.handed
    for claim in batch.behind:
        if gains(model, claim, batch.claims, going_on):
            look_again(model, claim)
    batch.claims = take(model, batch, ())


def look_again(model: Model, claim: Claim) -> None:
    """It may start later than it thought."""
    found = model.find_offered(claim.ask, claim.purpose)
    if found.start <= claim.start:
        return
    if model.world.receipts:
        found.receipt = receipts.explain(model.own, found)
    claiming.hold(found)
    model.let_go(claim)
    for name in [item.name for item in fields(found) if item.name not in KEPT]:
        setattr(claim, name, getattr(found, name))
