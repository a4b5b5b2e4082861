"""Admit by definition: who fits. Knows nothing of life after admission."""

from __future__ import annotations

from dataclasses import fields
from typing import NamedTuple

from fuzzing.oracle import claims as claiming
from fuzzing.oracle import life, receipts
from fuzzing.oracle.budget import Purse
from fuzzing.oracle.charge import Charge
from fuzzing.oracle.model import Model
from fuzzing.oracle.page import Page
from fuzzing.oracle.seating import alone, in_use, promiser, takes_over
from fuzzing.oracle.state import Batch, Claim, Row
from fuzzing.world.plain import Ask, Budget, Misuse, RefusalFacts, SetbackFacts, World

Spans = list[tuple[str, int, int]]
NO_GROUP = -1


class Lack(NamedTuple):
    """The first claim that runs out of slots: its place, what it needs and what there is of a group."""

    place: int
    need: int
    have: int
    group: int


def open_batch(model: Model, asks: list[Ask], purpose: str) -> Batch:
    """Hold what every request of a batch can reuse; what could never fit is refused at once."""
    if not any(model.world.tiers[0]):
        raise Misuse("there is no device")
    for ask in asks:
        check(model, ask)
    batch = Batch([], [])
    for ask in asks:
        refusal = never_fits(model, ask, purpose)
        if refusal is not None:
            batch.refused.append(refusal)
            continue
        claim = model.find(ask, purpose)
        claiming.hold(claim)
        batch.claims.append(claim)
    return batch


def check(model: Model, ask: Ask) -> None:
    """What must not be asked of this cache at all."""
    if not any(model.world.tiers[0]):
        raise Misuse("there is no device")
    check_ask(model, ask)


def check_ask(model: Model, ask: Ask) -> None:
    """What must not be asked at all, even of a cache that only keeps pages for others."""
    if model.world.has_state and ask.room != len(ask.tokens):
        raise Misuse("a state is only known where all tokens were computed")
    if ask.encoder is not None and model.cross is None:
        raise Misuse("no group reads an encoder")
    if any(stop > ask.compute_end for _, stop in ask.uncut):
        raise Misuse("an uncut span is parted by the length")


def never_fits(model: Model, ask: Ask, purpose: str) -> RefusalFacts | None:
    """A request larger than the cache itself."""
    world = model.world
    least = ask.room + ask.extra_tokens
    if least > world.max_length:
        return ask.name, "tokens", least, world.max_length, True, NO_GROUP
    together = max((stop - start for start, stop in ask.uncut), default=0)
    if world.max_chunk is not None and together > world.max_chunk:
        return ask.name, "tokens", together, world.max_chunk, True, NO_GROUP
    if ask.encoder is not None and len(ask.places) > (most := world.blocks(world.max_encoder) * world.block_size):
        return ask.name, "tokens", ask.encoder.length, most, True, world.num_own
    for groups in model.sharers:
        need, have = sum(most_of(world, ask, group, purpose) for group in groups), world.tiers[0][groups[0]]
        if need > have:
            return ask.name, "slots", need, have, True, groups[0]
    return None


def most_of(world: World, ask: Ask, group: int, purpose: str) -> int:
    """Pages of a group that a request may ever hold at once."""
    kind = world.kinds[group]
    return len(ask.places) // world.block_size if kind.kind == "cross" else Charge(world, ask, kind).worst(purpose)


def go_on(model: Model, continuing: list[Row], purse: Purse) -> Spans:
    """Prompts under way have the first of the step's tokens, in order."""
    going_on: Spans = []
    for row in continuing:
        if any(row in ride[:2] for ride in model.coming):
            raise Misuse("it shares what is yet to be launched")
        start = max(row.computed, row.launched)
        if start >= row.prompt_end:
            raise Misuse("steps in flight compute its prompt")
        span = purse.grant(row.ask, start, max(row.prompt_end, life.paged(model.own, row)), row.junction)
        if span is None:
            purse.left = 0  # it waits, and everybody behind it
            break
        going_on.append((row.ask.name, *span))
    return going_on


def fit(
    model: Model, batch: Batch, budget: Budget, purse: Purse
) -> tuple[Spans, tuple[list[Claim], Lack | None], list[RefusalFacts]]:
    """Spend what is left of them in order; then leave out claims, from the end, until the slots are enough."""
    spans: Spans = []
    refused: list[RefusalFacts] = []
    for place, claim in enumerate(batch.claims):
        had = purse.left
        if place == len(model.free_rows):
            refused = refuse(model, batch, place, "sequences", place + 1, place)
            break
        span = purse.grant(claim.ask, claim.start, claim.start + claim.num_tokens, claim.junction)
        if span is None:
            refused = refuse(model, batch, place, "tokens", *purse.lack(claim.ask, claim.start, claim.num_tokens, had))
            break
        spans.append((claim.ask.name, *span))
    out, refused = fit_slots(model, batch, budget, ([], None), refused)
    return spans, out, refused


def fit_slots(
    model: Model, batch: Batch, budget: Budget, out: tuple[list[Claim], Lack | None], refused: list[RefusalFacts]
) -> tuple[tuple[list[Claim], Lack | None], list[RefusalFacts]]:
    """Leave out claims until the slots are enough: before parts of prompts are handed out, and once more behind."""
    if budget.all_or_nothing:
        refused = in_order(all_or_none(model, batch, refused), refused)
    claims, lacked = out
    while (short := shortage(model, batch.claims)) is not None:
        lacked, last = short, batch.behind or batch.claims
        claims.insert(0, last[-1])
        model.let_go(last.pop())
    return (claims, lacked), refused


def all_or_none(model: Model, batch: Batch, refused: list[RefusalFacts]) -> list[RefusalFacts]:
    """When one does not fit all others are refused for the order, with its numbers."""
    short, lacking = shortage(model, batch.claims), (refused or batch.refused)[:1]
    if short is None and not lacking:
        return []
    short = short or Lack(-1, *lacking[0][2:4], NO_GROUP)
    gone = refuse(model, batch, 0, "order", short.need, short.have)
    return [lacking_slots(fact, short) if nth == short.place else fact for nth, fact in enumerate(gone)]


def lacking_slots(fact: RefusalFacts, short: Lack) -> RefusalFacts:
    """The refusal of the one that lacks slots."""
    return fact[0], "slots", short.need, short.have, False, short.group


def in_order(front: list[RefusalFacts], behind: list[RefusalFacts]) -> list[RefusalFacts]:
    """Who is behind one that lacks slots waits for it, and lacks nothing else that can be told."""
    for _, reason, need, have, *_ in front:
        if reason == "slots":
            return front + [(name, "order", need, have, False, NO_GROUP) for name, *_ in behind]
    return front + behind


def refuse(model: Model, batch: Batch, place: int, reason: str, need: int, have: int) -> list[RefusalFacts]:
    """Give back the claims from a place on; those behind it are refused for the order."""
    gone = batch.claims[place:] + batch.behind
    del batch.claims[place:], batch.behind[:]
    for claim in reversed(gone):
        model.let_go(claim)
    reasons = [reason] + ["order"] * len(gone)
    return [(claim.ask.name, why, need, have, False, NO_GROUP) for claim, why in zip(gone, reasons, strict=False)]


def left_out(model: Model, out: list[Claim], lacked: Lack | None) -> list[RefusalFacts]:
    """Refusals for want of slots: what the first would cost now that the others are in; those behind wait for it."""
    if not out or lacked is None:
        return []
    costs = cost(model, model.find(out[0].ask, out[0].purpose))
    lacks = [Lack(0, sum(costs[group] for group in some), model.free(some[0]), some[0]) for some in model.sharers]
    short = max(lacks, key=lambda lack: lack.need - lack.have)
    if short.need <= short.have:  # only the block it would copy from is in its way
        short = lacked
    facts = [(claim.ask.name, "order", short.need, short.have, False, NO_GROUP) for claim in out]
    return [lacking_slots(facts[0], short), *facts[1:]]


def shortage(model: Model, claims: list[Claim]) -> Lack | None:
    """Count the slots a batch takes, one after the other: the first claim that lacks some."""
    for groups in model.sharers:
        have = model.free(groups[0])
        here: set[object] = set()  # onboarded by one before
        left = {group: {page: page.claims for claim in claims for page in claim.sources} for group in groups}
        kept: set[Page] = set()  # that rows were to give up
        for place, claim in enumerate(claims):
            total, there = 0, have
            for group in groups:
                cold = model.cold(claim, group) - here
                here |= cold
                takes, gives = source_role(model, claims, claim, left[group], group)
                new = model.takes(claim, group) - (claim.source is not None and group < model.world.num_own)
                if lends(model, claim, group):
                    takes, gives, new = 1, 1, new - 1  # its own state first; then what that is copied from is room
                keeps = promised(model, claim, group) - kept
                kept |= keeps
                takes += len(cold) + len(keeps)
                new -= spared(model, claim, group)
                total += takes + new
                if takes > have or new > have - takes + gives:
                    return Lack(place, total, there, group)
                have += gives - takes - new
    return None


def promised(model: Model, claim: Claim, group: int) -> set[Page]:
    """Pages of a window that it will keep from a row that was to give them up for a later part of its prompt."""
    stream, place = model.place(group)
    pages = claim.pages[place].items() if stream is model.own else ()
    return {page for block, page in pages if promiser(stream, place, block, page) is not None}


def spared(model: Model, claim: Claim, group: int, claims: int = 1) -> int:
    """Slots fewer because nobody else has pages of its hit; it has so many claims on them."""
    stream, place = model.place(group)
    if stream is not model.own or claim.purpose != "compute":
        return 0
    charge = Charge(model.world, claim.ask, stream.kinds[place], claim.junction)
    return charge.takes(claim.start) - charge.takes(claim.start, len(alone(stream, claim, place, 0, claims)))


def lends(model: Model, claim: Claim, group: int) -> bool:
    """Whether a snapshot is room again once it is copied: a claim for computing alone has it, on the device."""
    stream, place = model.place(group)
    if stream is not model.own or stream.kinds[place].kind != "state" or claim.purpose != "compute":
        return False
    return any(not page.holders and 0 in page.copies and page.claims == 1 for page in claim.pages[place].values())


def source_role(model: Model, claims: list[Claim], claim: Claim, left: dict[Page, int], group: int) -> tuple[int, int]:
    """Slots a partial hit takes of a group for its own page, and slots its source gives back after the copy."""
    if claim.source is None or group >= model.world.num_own:
        return 0, 0
    page = claim.sources[group]
    if takes_over(model.own, claims, claim, left):
        return int(0 not in page.copies), 0
    for source in claim.sources:
        left[source] -= 1
    return 1, int(left[page] == 0 and 0 in page.copies and not in_use(claims, page))


def cost(model: Model, claim: Claim) -> tuple[int, ...]:
    """By how much the free count of each group goes down when this claim alone is admitted, at its peak."""
    totals = []
    for group in range(model.world.num_groups):
        stream, place = model.place(group)
        hit = claim if stream is model.own else claim.across
        pages = [] if hit is None or stream.kinds[place].kind == "state" else list(hit.pages[place].values())
        idle = sum(0 in page.copies and page.idle and not page.claims for page in pages)
        total = idle + len(model.cold(claim, group)) + model.takes(claim, group)
        total += len(promised(model, claim, group)) - spared(model, claim, group, 0)
        if claim.source is not None and stream is model.own:
            left = {page: page.claims + 1 for page in claim.sources}
            source = claim.sources[place]
            in_place = takes_over(stream, [claim], claim, left) and 0 in source.copies
            total += 0 if not in_place else int(source.idle and not source.claims) - 1
        totals.append(total)
    return tuple(totals)


def look_again(model: Model, claim: Claim) -> SetbackFacts:
    """A claim that lost part of its hit holds what is left."""
    old, found = claim.start, model.find(claim.ask, claim.purpose)
    kept = ("ask", "purpose", "receipt", "first", "good", "told", "lost", "places")
    for name in [item.name for item in fields(found) if item.name not in kept]:
        setattr(claim, name, getattr(found, name))
    claiming.hold(claim)
    if model.world.receipts:
        claim.receipt = receipts.explain(model.own, claim)
    return "claim", claim.ask.name, old, claim.start, False
