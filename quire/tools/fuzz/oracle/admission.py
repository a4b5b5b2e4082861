"""Claim and admit by definition: what is there, who fits, what is taken. Knows nothing of life after admission."""

from __future__ import annotations

from quire.tools.fuzz.oracle import pools as slots
from quire.tools.fuzz.oracle.budget import grant
from quire.tools.fuzz.oracle.page import DEFAULT, Page
from quire.tools.fuzz.oracle.state import Batch, Claim, Row, State, decode_value, retention
from quire.tools.fuzz.oracle.tree import path_of
from quire.tools.fuzz.plain import Ask, Budget, RefusalFacts

Spans = list[tuple[str, int, int]]


def find(state: State, ask: Ask, purpose: str) -> Claim:
    """The longest run of whole blocks every group has, then the best block for what is left; holds nothing yet."""
    size, tree = state.world.block_size, state.tree
    claim = Claim(ask, purpose, pages=[[] for _ in state.pools])
    if not (state.world.reuse and ask.reuse):
        return claim
    usable = ask.compute_end - (purpose == "compute")
    path = path_of(ask.root, ask.identities[:usable], size)
    while (claim.blocks + 1) * size <= usable:
        found = tree.whole(path[: claim.blocks + 2])
        if found is None:
            break
        for group, page in enumerate(found):
            claim.pages[group].append(page)
        claim.blocks += 1
    claim.start = claim.blocks * size
    if state.world.partial and claim.start < usable:
        query = ask.identities[claim.start : min(claim.start + size, usable)]
        claim.source, matched = tree.partial_source(path[: claim.blocks + 1], query, not state.world.copy_on)
        claim.start += matched
        if claim.source is not None:
            claim.sources = tree.whole(claim.source) or []
    return claim


def open_batch(state: State, asks: list[Ask], purpose: str) -> Batch:
    """Hold what every request of a batch can reuse; what could never fit is refused at once."""
    batch = Batch([], [])
    for ask in asks:
        refusal = never_fits(state, ask)
        if refusal is not None:
            batch.refused.append(refusal)
            continue
        claim = find(state, ask, purpose)
        hold(claim)
        batch.claims.append(claim)
    return batch


def hold(claim: Claim, change: int = 1) -> None:
    """Claim its pages, or give them back."""
    for page in claim.held:
        page.claims += change


def never_fits(state: State, ask: Ask) -> RefusalFacts | None:
    """A request larger than the cache itself."""
    world = state.world
    longest = ask.room + max(ask.extra_tokens, ask.max_new_tokens)
    if longest > world.max_length:
        return ask.name, "tokens", longest, world.max_length, True
    shared = ask.room // world.block_size
    need = shared + (world.blocks(longest) - shared) * ask.beams if ask.beams > 1 else world.blocks(longest)
    at_once = prompt_blocks(state, ask) + num_spares(state, ask)
    need, have = max(need, at_once), min(world.tiers[0])
    return (ask.name, "slots", need, have, True) if need > have else None


def prompt_blocks(state: State, ask: Ask) -> int:
    """Pages a row gets at admission."""
    return state.world.blocks(ask.room + ask.extra_tokens)


def num_spares(state: State, ask: Ask) -> int:
    """Pages set aside so that every beam can have the last prompt block to itself."""
    return ask.beams - 1 if ask.room % state.world.block_size else 0


# -- who fits ----------------------------------------------------------------------------------------------------------


def fit(
    state: State, batch: Batch, budget: Budget, continuing: list[Row]
) -> tuple[Spans, tuple[list[Claim], tuple[int, int]], list[RefusalFacts]]:
    """Spend the step's tokens in order; then leave out claims, from the end, until the slots are enough."""
    left = [budget.token_budget]
    spans: Spans = []
    for row in continuing:
        span = grant(state, budget, left, row.computed, min(row.prompt_end, len(row.tokens)))
        if span is None:
            left[0] = 0  # it waits, and everybody behind it
            break
        spans.append((row.ask.name, *span))
    refused: list[RefusalFacts] = []
    for place, claim in enumerate(batch.claims):
        had = left[0]
        if place == len(state.free_rows):
            refused = refuse(batch, place, "sequences", place + 1, place)
            break
        span = grant(state, budget, left, claim.start, claim.start + claim.num_tokens)
        if span is None:
            refused = refuse(batch, place, "tokens", claim.num_tokens, had or 0)
            break
        spans.append((claim.ask.name, *span))
    if budget.all_or_nothing:
        refused = all_or_none(state, batch, refused) + refused
    out: list[Claim] = []
    lacked = (0, 0)
    while (short := shortage(state, batch.claims)) is not None:
        lacked = short[1:]
        out.insert(0, batch.claims[-1])
        hold(batch.claims.pop(), -1)
    admitted = {claim.ask.name for claim in batch.claims} | {row.ask.name for row in continuing}
    return [span for span in spans if span[0] in admitted], (out, lacked), refused + batch.refused


def all_or_none(state: State, batch: Batch, refused: list[RefusalFacts]) -> list[RefusalFacts]:
    """When one does not fit all others are refused for the order, with its numbers."""
    short, lacking = shortage(state, batch.claims), (refused or batch.refused)[:1]
    if short is None and not lacking:
        return []
    place, need, have = short or (-1, *lacking[0][2:4])
    gone = refuse(batch, 0, "order", need, have)
    return [(fact[0], "slots" if nth == place else fact[1], need, have, False) for nth, fact in enumerate(gone)]


def refuse(batch: Batch, place: int, reason: str, need: int, have: int) -> list[RefusalFacts]:
    """Give back the claims from a place on; those behind it are refused for the order."""
    gone = batch.claims[place:]
    del batch.claims[place:]
    for claim in gone:
        hold(claim, -1)
    reasons = [reason] + ["order"] * len(gone)
    return [(claim.ask.name, why, need, have, False) for claim, why in zip(gone, reasons, strict=False)]


def left_out(state: State, out: list[Claim], lacked: tuple[int, int]) -> list[RefusalFacts]:
    """Refusals for want of slots: what the first would cost now that the others are in; those behind wait for it."""
    if not out:
        return []
    costs = cost(state, find(state, out[0].ask, out[0].purpose))
    lacks = [(need, pools.free()) for need, pools in zip(costs, state.pools, strict=True)]
    need, have = max(lacks, key=lambda lack: lack[0] - lack[1])
    if need <= have:  # only the block it would copy from is in its way
        need, have = lacked
    return [(claim.ask.name, "order" if place else "slots", need, have, False) for place, claim in enumerate(out)]


def shortage(state: State, claims: list[Claim]) -> tuple[int, int, int] | None:
    """Count the slots a batch takes, one after the other: the first claim that lacks some, its need, what is left."""
    for group, pools in enumerate(state.pools):
        have = pools.free()
        here: set[Page] = set()  # onboarded by one before
        left = {page: page.claims for claim in claims for page in claim.sources}
        for place, claim in enumerate(claims):
            cold = [page for page in claim.cold(group) if page not in here]
            here.update(cold)
            takes, gives = len(cold), 0
            if claim.source is not None:
                page = claim.sources[group]
                if takes_over(state, claims, claim, left):
                    takes += 0 not in page.copies
                else:
                    takes += 1
                    for source in claim.sources:
                        left[source] -= 1
                    gives = int(left[page] == 0 and 0 in page.copies and not in_use(claims, page))
            new = prompt_blocks(state, claim.ask) - claim.blocks - len(claim.sources[:1]) + num_spares(state, claim.ask)
            if takes > have or new > have - takes + gives:
                return place, takes + new, have
            have += gives - takes - new
    return None


def in_use(claims: list[Claim], page: Page) -> bool:
    """Held already, or hit as a whole block by one of the batch."""
    return page.holders > 0 or any(page in claim.pages[page.group] for claim in claims)


def takes_over(state: State, claims: list[Claim], claim: Claim, left: dict[Page, int]) -> bool:
    """A partial hit has its source to itself when it is a leaf, nobody uses it and nobody else claims it (any more)."""
    assert claim.source is not None
    free = all(left[page] == 1 and not in_use(claims, page) for page in claim.sources)
    return free and state.tree.is_leaf(claim.source)


# -- what is taken -----------------------------------------------------------------------------------------------------


def seat(state: State, claim: Claim) -> Row:
    """A row for the claim: its whole blocks are held now."""
    ask, keep = claim.ask, state.world.reuse and claim.ask.reuse
    tokens = list(ask.identities[: ask.compute_end])
    if keep:
        state.make_root(ask.root)
    tip = path_of(ask.root, ask.identities, state.world.block_size)[: claim.blocks + 1] if keep else None
    spares: list[list[Page]] = [[] for _ in state.pools]
    row = Row(
        ask, state.free_rows.pop(), tokens, claim.start, claim.start, claim.blocks, ask.compute_end, tip,
        [list(pages) for pages in claim.pages], spares, ask.compute_end,
    )  # fmt: skip
    for pools, pages in zip(state.pools, claim.pages, strict=True):
        for page in pages:
            page.claims -= 1
            pools.hold(page)
    state.rows[ask.name] = row
    return row


def settle(state: State, claim: Claim, row: Row) -> tuple[tuple[int, ...], ...]:
    """All the row lacks: priorities, onboards, the partial block, new pages, spares. What that counted, per group."""
    left = {page: page.claims for page in claim.sources}
    over = claim.source is not None and takes_over(state, [], claim, left)
    counted = []
    for pools in state.pools:
        before = list(pools.counts)
        reuse_whole(state, claim, pools)
        if claim.source is not None:
            row.pages[pools.group].append(reuse_part(state, claim, pools, over))
        pages = row.pages[pools.group]
        while len(pages) < prompt_blocks(state, claim.ask):
            value = retention(claim.ask, len(pages), state.world.block_size) or (DEFAULT, None)
            pages.append(pools.open_page(*value))
            pools.count(slots.MISSED)
        for _ in range(num_spares(state, claim.ask)):
            row.spares[pools.group].append(pools.open_page(*decode_value(claim.ask)))
        counted.append(tuple(now - then for now, then in zip(pools.counts, before, strict=True)))
    return tuple(counted)


def reuse_whole(state: State, claim: Claim, pools: slots.Pools) -> None:
    """Whole blocks take the request's priorities and come to the device."""
    for block, page in enumerate(claim.pages[pools.group]):
        pools.count(slots.FULL)
        pools.count(slots.FROM_TIER + page.hottest)
        value = retention(claim.ask, block, state.world.block_size)
        if value is not None:
            page.priority, page.duration = value
    for page in claim.pages[pools.group]:
        if 0 not in page.copies:
            pools.onboard(page)


def reuse_part(state: State, claim: Claim, pools: slots.Pools, over: bool) -> Page:
    """The page of a partial hit: the source itself, out of the tree, or a new page with the shared tokens copied in."""
    source = claim.sources[pools.group]
    pools.count(slots.PARTIAL)
    pools.count(slots.FROM_TIER + source.hottest)
    pools.count(slots.PARTIAL_FROM + source.hottest)
    if over:
        source.claims -= 1
        pools.hold(source)
        if 0 not in source.copies:
            pools.onboard(source)
        state.tree.detach(source)
        for tier in sorted(source.copies)[1:]:
            pools.empty(source, tier)
        value = retention(claim.ask, claim.blocks, state.world.block_size)
        source.priority, source.duration = value or (DEFAULT, None)
        return source
    page = pools.open_page(source.priority, source.duration)
    tier, matched = source.hottest, claim.start - claim.blocks * state.world.block_size
    pools.move(slots.COPY, (tier, source.copies[tier]), (0, page.copies[0]), page, tokens=matched)
    pools.count(slots.ONBOARDED if tier else slots.COPIED)
    pools.count(slots.COPIED_TOKENS, matched)
    source.claims -= 1
    return page


def cost(state: State, claim: Claim) -> tuple[int, ...]:
    """By how much the free count of each group goes down when this claim alone is admitted."""
    totals = []
    for group in range(state.world.num_groups):
        pages = claim.pages[group]
        idle = sum(0 in page.copies and page.idle and not page.claims for page in pages)
        new = prompt_blocks(state, claim.ask) - claim.blocks - len(claim.sources[:1]) + num_spares(state, claim.ask)
        total = idle + len(claim.cold(group)) + new
        if claim.source is not None:
            left = {page: page.claims + 1 for page in claim.sources}
            source = claim.sources[group]
            in_place = takes_over(state, [claim], claim, left) and 0 in source.copies
            total += 1 if not in_place else int(source.idle and not source.claims)
        totals.append(total)
    return tuple(totals)
