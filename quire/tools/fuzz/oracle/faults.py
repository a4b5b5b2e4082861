"""Failed moves by definition: which pages are spoilt, whose promises change. Knows no bytes."""

from __future__ import annotations

from quire.tools.fuzz.oracle import admission, life
from quire.tools.fuzz.oracle import pools as slots
from quire.tools.fuzz.oracle.page import DEFAULT, Page
from quire.tools.fuzz.oracle.state import Claim, Done, Row, State
from quire.tools.fuzz.plain import SetbackFacts


def spoilt_pages(state: State, failed: list[Done]) -> list[Page]:
    """Pages left without good bytes. A shadow that failed costs only itself."""
    spoilt: list[Page] = []
    for row, pages in failed:
        kind, tier, slot = row[0], row[4], row[5]
        for page in pages if kind == slots.EXCHANGE else pages[:1]:
            if page.gone or page in spoilt:
                continue
            if kind == slots.OFFLOAD:
                if page.copies.get(tier) != slot:
                    continue
                if page.hottest < tier:
                    state.pools[page.group].empty(page, tier)
                    continue
            spoilt.append(page)
    return spoilt


def finish(state: State, failed: list[Done]) -> list[SetbackFacts]:
    """Spoilt pages leave the tree; rows on them are cut, claims on them look again."""
    spoilt = spoilt_pages(state, failed)
    paths = {page.path for page in spoilt if page.path is not None}
    shaken = [claim for batch in state.batches.values() for claim in batch.claims if rests_on(claim, paths)]
    for claim in shaken:
        admission.hold(claim, -1)
    cuts = {row.number: (row, cut) for row in state.rows.values() if (cut := first_spoilt(row, spoilt)) is not None}
    for page in spoilt:
        lose(state, page)
    setbacks = shaken_holds(state, spoilt)
    setbacks += [recut(state, *cuts[number]) for number in sorted(cuts)]
    return setbacks + [look_again(state, claim) for claim in shaken]


def shaken_holds(state: State, spoilt: list[Page]) -> list[SetbackFacts]:
    """Holds on spoilt pages: what they keep counts up to the first of those."""
    size, told = state.world.block_size, list[SetbackFacts]()
    for key, (start, end, held) in state.holds.items():
        places = [start // size + nth for pages in held for nth, page in enumerate(pages) if page in spoilt]
        if places:
            told.append(("hold", key, end, max(start, min(places) * size), False))
    return told


def rests_on(claim: Claim, paths: set[tuple[object, ...]]) -> bool:
    """Whether one of these blocks is part of the hit."""
    return any(page.path in paths for page in claim.held)


def first_spoilt(row: Row, spoilt: list[Page]) -> int | None:
    """The first block of a row that is spoilt."""
    return min((block for pages in row.pages for block, page in enumerate(pages) if page in spoilt), default=None)


def lose(state: State, page: Page) -> None:
    """A spoilt page leaves the tree; its holders keep it as a private page on the device."""
    pools = state.pools[page.group]
    if page.path is not None:
        state.tree.detach(page)
    if not page.holders:
        pools.remove(page)
        return
    for tier in sorted(page.copies)[1:]:
        pools.empty(page, tier)


def recut(state: State, row: Row, cut: int) -> SetbackFacts:
    """The row goes back to block `cut` and gets pages of its own from there; without room it is released."""
    size, old = state.world.block_size, row.computed
    blocks = range(cut, row.committed)
    shared = [[block for block in blocks if not private(pages, block)] for pages in row.pages]
    if any(len(lost) > room_after(pools, lost, row) for lost, pools in zip(shared, state.pools, strict=True)):
        life.release(state, row, False)
        return "sequence", row.ask.name, old, 0, True
    for pools, lost in zip(state.pools, shared, strict=True):
        for block in reversed(lost):
            pools.let_go(row.pages[pools.group][block], state.now())
    for pools, lost in zip(state.pools, shared, strict=True):
        for block in lost:
            row.pages[pools.group][block] = pools.open_page(DEFAULT, None)
    row.computed = min(row.computed, cut * size)
    row.committed = min(row.committed, cut)
    if row.tip is not None:
        row.tip = row.tip[: cut + 1]
    row.start = min(row.start, row.computed)
    row.prompt_end = max(row.prompt_end, len(row.tokens))
    return "sequence", row.ask.name, old, row.computed, False


def room_after(pools: slots.Pools, lost: list[int], row: Row) -> int:
    """Free slots once the row has let go of these blocks: those it alone held and nobody claims become free."""
    pages = [row.pages[pools.group][block] for block in lost]
    return pools.free() + sum(page.path is not None and page.holders == 1 and not page.claims for page in pages)


def private(pages: list[Page], block: int) -> bool:
    """A page only this row has, or no page."""
    return block >= len(pages) or (pages[block].path is None and pages[block].holders == 1)


def look_again(state: State, claim: Claim) -> SetbackFacts:
    """A claim that lost part of its hit holds what is left."""
    old, found = claim.start, admission.find(state, claim.ask, claim.purpose)
    for name in ("start", "blocks", "source", "pages", "sources"):
        setattr(claim, name, getattr(found, name))
    admission.hold(claim)
    return "claim", claim.ask.name, old, claim.start, False
