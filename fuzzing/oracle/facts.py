"""What the oracle shows of its state, in plain data: sequences, counts, dumps. Changes nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fuzzing.oracle import claims, reach
from fuzzing.oracle.admission import cost
from fuzzing.oracle.model import Model
from fuzzing.oracle.page import Page
from fuzzing.oracle.pools import Pools
from fuzzing.oracle.receipts import num_remembered
from fuzzing.oracle.state import Claim, State
from fuzzing.oracle.tree import path_of
from fuzzing.world.plain import Blocks, ClaimFacts, Outlook, Path
from quire.core.store.dumped import (
    NONE,
    Dump,
    DumpedCells,
    DumpedGhost,
    DumpedGroup,
    DumpedKinds,
    DumpedNode,
    DumpedPage,
    DumpedReuse,
    DumpedRow,
)


def claim_facts(model: Model, claim: Claim) -> ClaimFacts:
    """What a claim shows of itself."""
    groups = range(model.world.num_groups)
    cold = tuple(len(model.cold(claim, group)) for group in groups)
    slots = tuple(cold[group] + model.takes(claim, group) for group in groups)
    wants = [claims.wants(model.own, claim, group) for group in range(model.world.num_own)]
    wants += [encoder_wants(model, claim) for _ in groups[model.world.num_own :]]
    facts = (spans(model, claim), tuple(wants))
    size = model.world.block_size
    coming = (max(0, claim.coming * size - claim.start), coming_pages(model, claim))
    numbers = (claim.start, claim.blocks, onboards(model, claim), slots)
    return ClaimFacts(claim.ask.name, *numbers, *facts, claim.receipt, *coming, claim.junction)


def coming_pages(model: Model, claim: Claim) -> tuple[int, ...]:
    """Pages per group that a prefetch would bring up."""
    counts, size = [], model.world.block_size
    for stream, place in model.groups():
        mine = claim if stream is model.own else claim.across
        needed: list[Page | None] = []
        if mine is not None:
            path = path_of(mine.ask.root, mine.ask.identities, size)
            blocks = reach.needed(stream.kinds[place], mine.coming * size, size)
            blocks = [block for block in blocks if mine.ask.redo or block not in mine.pending]
            needed = [stream.tree.page(path[: block + 2], place) for block in blocks]
        counts.append(sum(page is not None and not page.is_near(model.world) for page in needed))
    return tuple(counts)


def onboards(model: Model, claim: Claim) -> tuple[int, ...]:
    """Pages per group that are read from a colder tier: whole blocks, a partial hit's block, the state it resumes."""
    counts = []
    for group in range(model.world.num_groups):
        stream, place = model.place(group)
        mine = claim if stream is model.own else claim.across
        read: list[Page] = [] if mine is None else list(mine.pages[place].values())
        if stream.kinds[place].kind == "state":
            read = read[-1:]
        read += mine.sources[place : place + 1] if mine is not None else []
        counts.append(sum(0 not in page.copies for page in read))
    return tuple(counts)


def spans(model: Model, claim: Claim) -> tuple[Blocks, ...]:
    """What there is of what the prompt's end needs, per group, in tokens."""
    own = [claims.spans(model.own, claim, group) for group in range(model.world.num_own)]
    return (*own, *(encoder_span(model, claim) for _ in range(model.world.num_groups - model.world.num_own)))


def outlook(model: Model, claim: Claim) -> Outlook:
    """What a probe tells of a claim; in worlds that forget, the way to completion is an estimate and not predicted."""
    held = sum(0 in page.copies and (page.holders > 0 or page.claims > 0) for page in claim.pages[0].values())
    slots, ask, size = cost(model, claim), claim.ask, model.world.block_size
    later: tuple[int, ...] = ()
    if model.world.is_plain:
        longest = min(ask.room + ask.max_new_tokens, max(ask.room, model.world.max_length))
        more = -(-longest // size) + (ask.room + ask.extra_tokens) // -size
        later = tuple(now + max(more, 0) * ask.beams for now in slots)
    return Outlook(claim.start, claim.blocks, held, spans(model, claim), onboards(model, claim), slots, later)


def encoder_span(model: Model, claim: Claim) -> Blocks:
    """Leading places of the encoder's input that are there."""
    if claim.across is None or claim.ask.encoder is None or not claim.across.blocks:
        return ()
    return ((0, min(claim.ask.encoder.length, claim.across.blocks * model.world.block_size)),)


def encoder_wants(model: Model, claim: Claim) -> Blocks:
    """Blocks of the encoder's input that are not."""
    if claim.across is None:
        return ()
    return reach.runs(list(range(claim.across.blocks, len(claim.ask.places) // model.world.block_size)))


def usage(model: Model) -> tuple[int, ...]:
    """Where the slots of every tier are; and how many pages that are gone are remembered, told of the first."""
    numbers: list[int] = []
    for stream, place in model.groups():
        pools = stream.pools[place]
        for tier in range(len(pools.owner)):
            numbers += (*pools.room.usage(tier), 0 if tier else num_remembered(pools))
    return tuple(numbers)


def row_facts(model: Model, name: str) -> tuple[Any, ...]:
    """Start, length, computed, committed, encoded; per group: pages, slots, the state's slot, tokens with pages."""
    row, size = model.own.rows[name], model.world.block_size
    groups = []
    for stream, place in model.groups():
        mine = stream.rows.get(name)
        pages: list[Page | None] = mine.pages[place] if mine is not None else []
        current = mine.currents[place] if mine is not None else None
        computed = mine.computed if mine is not None else 0
        tokens = [at for at in range(min(computed, len(pages) * size)) if current is None and pages[at // size]]
        numbers = tuple(-1 if page is None else page.number for page in pages)
        slots = tuple(-1 if page is None else page.copies[0] for page in pages)
        groups.append((numbers, slots, -1 if current is None else current.copies[0], reach.runs(tokens)))
    across = None if model.cross is None else model.cross.rows.get(name)
    encoded = 0 if across is None or row.ask.encoder is None else min(row.ask.encoder.length, across.computed)
    return row.start, len(row.tokens), row.computed, row.committed * size, encoded, tuple(groups)


def dump(state: State) -> Dump:
    """All facts by name, nodes numbered as a store does: sorted paths are parents first and siblings in order."""
    exists = sorted([*((root,) for root in state.roots), *state.tree.exists()])
    numbers = {path: number for number, path in enumerate(exists)}
    born = Counter(path[:-1] for path in exists)
    tips = Counter(state.tips())
    nodes = [dump_node(state, path, numbers, born[path], tips[path]) for path in exists]
    groups = [dump_group(state, group, numbers) for group in range(len(state.pools))]
    rows = {row.number: dump_row(state, name, numbers) for name, row in state.rows.items()}
    points = state.points
    kept = [kind in points.kept for kind in range(len(points.cost))]
    return Dump(nodes, groups, rows, DumpedKinds(points.cost, points.gain, kept) if points.matter else None)


def dump_node(state: State, path: Path, numbers: dict[Path, int], children: int, tips: int) -> DumpedNode:
    """A block, or a root."""
    block = path[-1] if len(path) > 1 else ()
    words = tuple(identity[1:] for identity in block)
    pages = state.tree.at.get(path, [None] * len(state.pools))
    return DumpedNode(
        parent=numbers[path[:-1]] if len(path) > 1 else NONE,
        root=path[0],
        size=len(block),
        tokens=tuple(identity[0] for identity in block),
        words=words if any(map(any, words)) else (),
        pages=tuple(page.number if page else NONE for page in pages),
        children=children,
        tips=tips,
        asked=state.tree.is_asked(path),
        kind=state.points.at.get(path, 0),
    )


def dump_group(state: State, group: int, numbers: dict[Path, int]) -> DumpedGroup:
    """Pages, orders and counts of one group."""
    pools = state.pools[group]
    orders: list[dict[int, list[int]]] = []
    for tier, stamps in enumerate(pools.stamp):
        order: dict[int, list[int]] = {}
        for slot in sorted(range(len(stamps)), key=stamps.__getitem__):
            klass = pools.klass(tier, slot)
            if klass is not None:
                order.setdefault(klass, []).append(slot)
        orders.append(order)
    pages = {}
    for page in pools.own_pages():
        node = NONE if page.path is None else numbers[page.path]
        slots = tuple(page.copies.get(tier, -1) for tier in range(len(pools.owner)))
        duration, expiry = (-1 if value is None else value for value in (page.duration, page.expiry))
        facts = (node, page.holders, page.claims, slots, page.priority, duration, expiry)
        pages[page.number] = DumpedPage(*facts, page.stays, page.copying, page.unwanted)
    return DumpedGroup(pages, orders, pools.numbers, state.free(group), pools.counts, dump_cells(pools))


def dump_cells(pools: Pools) -> DumpedCells | None:
    """What the adaptive order knows."""
    cells = pools.cells
    if cells is None:
        return None
    return DumpedCells(
        pages={page.number: DumpedReuse(page.uses, page.reuse, page.used) for page in pools.own_pages()},
        ghosts=[None if ghost is None else DumpedGhost(*ghost[2:]) for ghost in cells.ring],
        hits=cells.hits,
        lost=cells.lost,
        inserted=cells.inserted,
        made=cells.made,
        rank=cells.rank,
        recency=cells.recency,
        rival=(cells.gained, cells.missed, cells.watched, len(cells.rival)),
        clock=(cells.now, cells.asked, cells.aged),
    )


def dump_row(state: State, name: str, numbers: dict[Path, int]) -> DumpedRow:
    """Numbers of one row; private copies are not counted here."""
    row = state.rows[name]
    priority, duration = row.decode
    return DumpedRow(
        length=len(row.tokens),
        computed=row.computed,
        committed=row.committed,
        tokens=[identity[0] for identity in row.tokens],
        tip=NONE if row.tip is None else numbers[row.tip],
        keep=row.keep,
        twins=0,
        spares=[[page.number for page in pages] for pages in row.spares],
        priority=priority,
        duration=-1 if duration is None else duration,
        fronts=row.fronts,
        showns=row.showns,
        bases=row.bases,
        owns=row.owns,
        peaks=row.peaks,
        currents=[NONE if page is None else page.number for page in row.currents],
        ahead=row.ahead,
        handed=row.handed,
        reached=row.reached,
        launched=row.launched,
        prompt=row.prompt,
        fresh=row.fresh,
        followed=row.followed,
        written=row.written,
    )
