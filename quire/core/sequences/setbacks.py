"""Setbacks: pages are lost, and every request that relied on them learns how much of its promise is left.

The one path for moves that failed and for pages that are reported as bad. Knows neither plans nor slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.core.admission.claim import launched_only, note_facts
from quire.core.admission.promise import make_promise
from quire.core.outside.find import Found
from quire.core.outside.lose import LostPage
from quire.core.outside.writer import Writer
from quire.core.records.plan import Plan
from quire.core.records.request import Request
from quire.core.sequences.release import release_sequence
from quire.core.sequences.sharers import sharers_of
from quire.core.sequences.suspend import suspended
from quire.core.state.claim import Claim, Promise, claim_of, hit_of, let_go
from quire.core.state.held_hit import HeldHit, freeze, hits_of
from quire.core.state.hold import Hold
from quire.core.state.registry import Registry
from quire.core.state.sequence import Sequence, running_of
from quire.core.state.setup import Setup


@dataclass(frozen=True, slots=True)
class Setback:
    """A promise that lost pages have changed: bytes count up to `start` only. A lost one is released.

    A sequence is lost when there is no room to compute it again in place, when a transfer was to bring its prompt, and
    in caches with groups that forget or that read an encoder: what they need at an earlier position may be gone.
    `request` is what to claim again.
    """

    holder: Sequence | Claim | Hold | Found | Writer
    old_start: int
    start: int
    lost: bool = False
    request: Request | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """Setbacks, before their step runs, and the moves that replacing the pages took. Behind a background plan, or a bad
    page of the slow tier, those are left to the next plan of a step."""

    setbacks: tuple[Setback, ...]
    plan: Plan | None = None


NOTHING = Finished(())


def lose_pages(registry: Registry, now: int, lost: list[LostPage], late: bool = False) -> Finished:
    """Pages are lost, as of `now`: whose promises that changes, and the moves that replacing them took, which go with
    the next plan when it is `late`.

    The time comes before the pages: a caller's clock may raise, and naming them is the first change.
    """
    if not lost:
        return NOTHING
    if registry.timed:
        registry.setup.refresh(now)  # they are remembered, and when they went
    return Finished(give_up(registry, lost, now), None if late else registry.take_plan())


def give_up(registry: Registry, lost: list[LostPage], now: int) -> tuple[Setback, ...]:
    """Lose pages, and change every promise that rests on them, as of `now`."""
    setup = registry.setup
    claims, cuts = _claims_on(registry, lost), _cuts(setup, lost)
    if setup.shares_pending:
        riders, others = sharers_of(registry, cuts)
        cuts |= {row: setup.store.committed.item(row) for row in riders if row not in cuts}
        claims += [claim for claim in others if claim not in claims]
    for claim in claims:
        let_go(claim)
    finds = _finds_on(registry, lost)
    for _, kept in finds:
        freeze(setup, kept.hit, kept.cross_hit)
    for group, page, stamp in lost:
        store, place = setup.pools[group]
        store.lose(place, page, stamp)
    setbacks = _hold_setbacks(registry, lost)
    setbacks += [_shorten(found, kept, lost) for found, kept in finds]
    setbacks += _writer_setbacks(registry, lost)
    ending = registry.in_flight.ending
    for row in cuts.keys() & ending.keys():
        registry.in_flight.void(row)
        setup.store.launch(np.array([row], np.int32), np.zeros(1, np.int32))
        ending[row] = ending[row]._replace(store=False)
    shared = _leave_shared(registry, cuts)
    live = [(row, cut) for row, cut in sorted(cuts.items()) if row not in ending]
    setbacks += [_recut(registry, row, cut, shared.get(row, 0)) for row, cut in live]
    setbacks += [reclaim(registry, claim, now) for claim in claims]
    return tuple(setbacks)


def _claims_on(registry: Registry, lost: list[LostPage]) -> list[Promise]:
    """Claims on a lost page, as a whole block or as the source of a partial hit."""
    pages = [(group, page) for group, page, _ in lost]
    found = (claim for claims in registry.open_claims.values() for claim in claims)
    return [claim for claim in found if any(_rests_on(registry.setup, claim, *page) for page in pages)]


def _rests_on(setup: Setup, claim: Promise, group: int, page: int) -> bool:
    hit = hit_of(claim, group)
    if hit is None:
        return False
    place = setup.pools[group].place
    return page in hit.sources()[place : place + 1] or page in hit.pages(place)


def _finds_on(registry: Registry, lost: list[LostPage]) -> list[tuple[Found, HeldHit]]:
    """Finds that hold a lost page; what a lost handle held does not count."""
    found = [(ref(), kept) for ref, kept in registry.open_finds.items()]
    return [(one, kept) for one, kept in found if isinstance(one, Found) and _lost_of(kept, lost)]


def _lost_of(kept: HeldHit, lost: list[LostPage]) -> list[tuple[int, int]]:
    """Group and block of its pages that are lost."""
    places: list[tuple[int, int]] = []
    for group, page, _ in lost:
        hit, place = hits_of(kept, group), kept.prepared.setup.pools[group].place
        if hit is not None:
            places += [(group, block) for block in hit.held(place)[hit.pages(place) == page].tolist()]
    return places


def _shorten(found: Found, kept: HeldHit, lost: list[LostPage]) -> Setback:
    """It keeps its pages; good are those up to the last edge at which every group could still resume."""
    setup, old = kept.prepared.setup, found.end
    kept.bad |= set(_lost_of(kept, lost))
    while not all(_can_resume(setup, kept, group) for group in setup.own_groups):
        kept.blocks -= 1
    return Setback(found, old, found.end)


def _can_resume(setup: Setup, kept: HeldHit, group: int) -> bool:
    needs = setup.layers[group].needs_at(kept.blocks * setup.block_size, setup.block_size)
    needed = {block for span in needs for block in range(max(span.start, kept.first), span.end)}
    held = {block for block in kept.hit.held(group).tolist() if (group, block) not in kept.bad}
    return needed <= held


def _writer_setbacks(registry: Registry, lost: list[LostPage]) -> list[Setback]:
    """Writers keep the slots that they fill, and what they write into a bad one will not be findable."""
    setbacks: list[Setback] = []
    for ref, writing in registry.open_writers.items():
        writer, blocks = ref(), list[int]()
        for group, page, _ in lost:
            if group < len(writing.pages):
                bad = writing.blocks[group][writing.pages[group] == page].tolist()
                writing.bad.update((group, block) for block in bad)
                blocks += bad
        if blocks and isinstance(writer, Writer):
            setbacks.append(Setback(writer, writer.length, min(blocks) * registry.setup.block_size))
    return setbacks


def _hold_setbacks(registry: Registry, lost: list[LostPage]) -> list[Setback]:
    """Holds on lost pages: their bytes count only up to the first of them; of an encoder's stream all is needed."""
    setup, setbacks = registry.setup, []
    for held in registry.holds:
        places = [int(b) for g, page, _ in lost for b in held.blocks[g][held.pages[g] == page] if _is_own(setup, g)]
        places += [0 for g, page, _ in lost if not _is_own(setup, g) and page in held.pages[g]]
        if places:
            setbacks.append(Setback(held, held.span.end, max(held.span.start, min(places) * setup.block_size)))
    return setbacks


def _is_own(setup: Setup, group: int) -> bool:
    return group < setup.own_groups.stop


def _cuts(setup: Setup, lost: list[LostPage]) -> dict[int, int]:
    """First spoilt block of every row that holds a lost page; a spoilt state, or encoder, spoils all."""
    cuts: dict[int, int] = {}
    for group, page, _ in lost:
        store, place = setup.pools[group]
        for row, block in np.argwhere(store.pages[place] == page).tolist():
            cuts[row] = min(block if _is_own(setup, group) else 0, cuts.get(row, block))
        for row in np.flatnonzero(store.currents[place] == page).tolist():
            cuts[row] = 0
    return cuts


def _leave_shared(registry: Registry, cuts: dict[int, int]) -> dict[int, int]:
    """Rows that are cut share nothing any more that is being computed: they go back to what is. How far they did."""
    shared = registry.in_flight.shared_ends()
    for row in cuts.keys() & shared.keys():
        cuts[row] = min(cuts[row], registry.setup.store.committed.item(row))
    registry.in_flight.get_off(set(cuts))
    return shared


def _recut(registry: Registry, row: int, cut: int, shared: int) -> Setback:
    setup = registry.setup
    registry.in_flight.void(row)
    setup.store.launch(np.array([row], np.int32), np.zeros(1, np.int32))
    sequence = next(sequence for sequence in registry.sequences.values() if sequence.row == row)
    old = sequence.computed
    stuck = setup.cross is not None or running_of(sequence).received
    if not stuck and cut_row(registry, sequence, cut, shared):
        return Setback(sequence, old, sequence.computed)
    request = suspended(setup, sequence)
    release_sequence(registry, sequence, False)
    return Setback(sequence, old, 0, lost=True, request=request)


def cut_row(registry: Registry, sequence: Sequence, cut: int, shared: int, end: int = 0) -> bool:
    """It goes on from block `cut`, or behind `end`, which steps in flight compute; what others may read behind that,
    pending pages up to `shared` among it, it computes itself. False: no room, or windows have left what is read."""
    setup, row = registry.setup, sequence.row
    if setup.bounded:
        return False
    taken = setup.store.recut(row, cut, shared // setup.block_size) if shared else setup.store.recut(row, cut)
    if taken < 0:
        return False
    if end > sequence.computed:
        setup.store.hand_out(row, end)
    most = min(sequence.length, setup.longest(row))  # the last tokens may not have pages yet
    sequence.prompt_end = max(sequence.prompt_end, most)  # generated tokens are computed again too
    sequence.start = min(sequence.start, sequence.ran)
    running_of(sequence).granted = sequence.ran
    return True


def reclaim(registry: Registry, claim: Promise, now: int) -> Setback:
    """A claim that has given back its hit looks again."""
    old, explains = claim.hit.start, claim.noted is not None
    with launched_only(registry):
        row = make_promise(registry.setup, claim, explains)
    if explains:
        note_facts(registry, claim, row, now)
        claim.receipt = None  # of what it found before
    return Setback(claim_of(claim), old, claim.hit.start)
