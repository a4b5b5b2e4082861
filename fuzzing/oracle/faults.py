"""Failed moves by definition: which pages are spoilt, whose promises change. Knows no bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuzzing.oracle import admission, finds, flights, pending, reach, writers
from fuzzing.oracle import pools as slots
from fuzzing.oracle.cells import SPOILT
from fuzzing.oracle.model import Model
from fuzzing.oracle.page import Page
from fuzzing.oracle.recut import recut
from fuzzing.oracle.state import Claim, Done, Row, State
from fuzzing.world.plain import SetbackFacts

Spoilt = list[tuple[State, Page]]


def spoilt_pages(model: Model, failed: list[Done]) -> Spoilt:
    """Pages left without good bytes. A shadow that failed costs only itself."""
    spoilt: Spoilt = []
    for row, pages in failed:
        kind = row[0]
        stream, place = model.place(row[1])
        for nth, page in enumerate(pages):
            if page.gone or (stream, page) in spoilt:
                continue
            source = kind == slots.COPY and nth == 1  # what could not be read
            tier, slot = row[2:4] if source else row[4:6]
            if kind == slots.OFFLOAD or source:
                if page.copies.get(tier) != slot:
                    continue
                if page.hottest < tier and not is_read(page):
                    stream.pools[place].empty(page, tier)
                    continue
            spoilt.append((stream, page))
    return spoilt


def is_read(page: Page) -> bool:
    """Whether somebody may be reading a copy of it below the device."""
    return page.stays > 0 and page.claims > 0


def bad_pages(model: Model, group: int, slots: Sequence[int], tier: int) -> Spoilt:
    """Pages whose bytes in these slots are bad. A bad shadow costs only itself."""
    stream, place = model.place(group)
    pools, bad = stream.pools[place], list[tuple[State, Page]]()
    for slot in sorted(set(slots)):
        page = pools.owner[tier][slot]
        if page is not None and page.hottest < tier and not is_read(page):
            pools.empty(page, tier)
        elif page is not None:
            bad.append((stream, page))
    return bad


def spoil(model: Model, spoilt: Spoilt) -> list[SetbackFacts]:
    """Spoilt pages leave the tree; rows on them are cut or lost, claims on them look again."""
    pages = [page for _, page in spoilt]
    shaken = [claim for batch in model.batches.values() for claim in batch.claims if rests_on(claim, pages)]
    cuts = {row.number: (row, cut) for row in model.own.rows.values() if (cut := first_spoilt(model, row, pages)) >= 0}
    sharers = pending.riders(model, [row for row, _ in cuts.values()])
    cuts = {row.number: (row, row.committed) for row in sharers} | cuts
    changed = [row for row, _ in cuts.values()]
    shaken += [claim for owner, claim in pending.claims_on(model) if owner in changed and claim not in shaken]
    for claim in shaken:
        model.let_go(claim)
    for stream, page in spoilt:
        lose(stream, page)
    setbacks = shaken_holds(model, pages) + shaken_finds(model, pages) + shaken_writers(model, pages)
    for row, _ in cuts.values():
        row.since = model.next_step
        if row.ending is not None:
            row.ending, row.launched = (False, row.ending[1]), 0
    live = [cuts[number] for number in sorted(cuts) if cuts[number][0].ending is None]
    shared = pending.shared_ends(model)
    pending.get_off(model, changed)
    live = [(row, min(cut, row.committed) if row in shared else cut) for row, cut in live]
    setbacks += [set_back(model, row, cut, shared.get(row, 0)) for row, cut in live]
    return setbacks + [admission.look_again(model, claim) for claim in shaken]


def shaken_holds(model: Model, spoilt: list[Page]) -> list[SetbackFacts]:
    """Holds on spoilt pages: what they keep counts up to the first of those; of an encoder's nothing does."""
    size, told = model.world.block_size, list[SetbackFacts]()
    for key, (start, end, held) in model.own.holds.items():
        places = [block for pages in held for block, page in pages if page in spoilt]
        if model.cross is not None:
            places += [0 for pages in model.cross.holds[key][2] for _, page in pages if page in spoilt]
        if places:
            told.append(("hold", key, end, max(start, min(places) * size), False))
    return told


def shaken_finds(model: Model, spoilt: list[Page]) -> list[SetbackFacts]:
    """Finds on spoilt pages keep them, and say how much of what they hold is good."""
    told = [(key, finds.spoil(model, hit, spoilt)) for key, hit in model.finds.items()]
    return [("find", key, *ends, False) for key, ends in told if ends is not None]


def shaken_writers(model: Model, spoilt: list[Page]) -> list[SetbackFacts]:
    """Writers into spoilt pages: what they write there will not be found."""
    told = [(key, writers.spoil(one, spoilt, model.world.block_size)) for key, one in model.writers.items()]
    return [("writer", key, *ends, False) for key, ends in told if ends is not None]


def rests_on(claim: Claim, spoilt: list[Page]) -> bool:
    """Whether one of these pages is part of the hit, or of the block it would copy from."""
    if claim.across is not None and rests_on(claim.across, spoilt):
        return True
    return any(page in spoilt for page in claim.held)


def first_spoilt(model: Model, row: Row, spoilt: list[Page]) -> int:
    """The first block of a row that is spoilt, -1 for none; a spoilt state, or encoder, spoils all."""
    columns = [block for pages in row.pages for block, page in enumerate(pages) if page in spoilt]
    across = model.cross.rows.get(row.ask.name) if model.cross is not None else None
    others = [page for page in row.currents if page is not None]
    others += [page for pages in across.pages for page in pages if page] if across is not None else []
    return 0 if any(page in spoilt for page in others) else min(columns, default=-1)


def lose(state: State, page: Page) -> None:
    """A spoilt page leaves the tree; its holders keep it as a private page on the device."""
    pools = state.pools[page.group]
    if page.path is not None:
        pools.detach(page, SPOILT)
    page.expiry = None if not page.holders else page.expiry
    if (page.holders or page.claims) and not is_read(page):
        for tier in sorted(page.copies)[1:]:
            pools.empty(page, tier)
    pools.remove_unused(page)


def set_back(model: Model, row: Row, cut: int, shared: int) -> SetbackFacts:
    """The row goes back to block `cut`, and computes what it was to share; where groups forget or read an encoder, or
    without room, it is released."""
    old, row.launched = row.computed, 0
    forgets = any(reach.bounded(kind) for kind in model.own.kinds)
    if forgets or model.cross is not None or row.received or not recut(model.own, row, cut, shared):
        name, model.lost[row.ask.name] = row.ask.name, replace(row, tokens=list(row.tokens))
        flights.end(model, row, False, 0)
        return "sequence", name, old, 0, True
    return "sequence", row.ask.name, old, row.computed, False
