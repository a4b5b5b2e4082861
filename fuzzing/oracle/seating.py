"""What an admission takes by definition: holds, onboards, copies, new pages, reserves. Decides nothing."""

from __future__ import annotations

from fuzzing.oracle import hints, pending, reach
from fuzzing.oracle import pools as slots
from fuzzing.oracle.cells import CONTINUED, ONCE
from fuzzing.oracle.charge import Charge, Fill
from fuzzing.oracle.commit import copy_state
from fuzzing.oracle.life import keep_ahead, paged, set_fresh
from fuzzing.oracle.onboard import onboard
from fuzzing.oracle.page import DEFAULT, Page
from fuzzing.oracle.points import NAMED
from fuzzing.oracle.state import Claim, Row, State, decode_value, retention
from fuzzing.oracle.tree import path_of

Counted = tuple[tuple[int, ...], ...]  # by group


def seat(state: State, claim: Claim, number: int) -> Row:
    """A row for the claim: its whole blocks are held now."""
    ask, groups = claim.ask, len(state.pools)
    keep = state.world.reuse and ask.keeps and not claim.cut
    tokens = list(ask.identities[: ask.compute_end])
    if keep:
        state.make_root(ask.root)
    landed, size = pending.landed(state, claim), state.world.block_size
    tip = path_of(ask.root, ask.identities, size)[: landed + 1] if keep else None
    row = Row(
        ask, number, tokens, claim.start, claim.start - (claim.blocks - landed) * size, landed, ask.compute_end, tip,
        [columns(claim, group) for group in range(groups)], [[] for _ in state.pools], ask.compute_end, keep,
        bases=[claim.blocks] * groups, fronts=[front(state, claim, group) for group in range(groups)],
        showns=[landed] * groups, edge=(len(tokens) - 1) // size, launched=claim.start * (landed < claim.blocks),
        owns=[0] * groups, peaks=[0] * groups, extras=[0] * groups,
        held=[0] * groups, currents=[None] * groups, fresh=[0] * groups, followed=[False] * groups, begun=claim.blocks,
        written=[0] * groups, granted=claim.start, handed=claim.start, prompt=len(tokens),
        ahead=claim.purpose == "decode" and state.apart, junction=claim.junction,
    )  # fmt: skip
    if claim.purpose == "decode":
        row.granted, row.decodes = row.prompt_end, True
        row.received = state.apart
    if state.groups.start:
        row.handed = len(tokens)  # the encoder brings all of it at once
    for pools, pages in zip(state.pools, claim.pages, strict=True):
        for block, page in sorted(pages.items()):
            other = promiser(state, pools.group, block, page)
            if other is not None:
                other.peaks[pools.group] += 1
                other.extras[pools.group] += 1
            page.claims -= 1
            pools.hold(page)
        if claim.purpose == "compute":
            for block in alone(state, claim, pools.group, 1, 0):
                row.bases[pools.group] = block
                row.owns[pools.group] += 1
        row.held[pools.group] = row.owns[pools.group]
    state.rows[ask.name] = row
    see_points(state, row)
    return row


def see_points(state: State, row: Row) -> None:
    """Where its prompt ends in a text that goes on, others are expected; and where its request says that they are."""
    if row.tip is not None and row.committed == row.edge > 0 and state.asks:
        state.tree.ask_again(row.tip, state.world.block_size)
    if row.tip is None or not state.points.matter or state.groups.start:
        return
    row.named = row.ask.named(state.world.block_size)
    for depth in row.named:
        if depth <= row.committed:
            state.points.put(row.tip[: depth + 1], NAMED)


def promiser(state: State, group: int, block: int, page: Page) -> Row | None:
    """The row that alone holds a page of a window and has promised its room to a later part of its prompt."""
    if state.kinds[group].kind != "window" or page.holders != 1:
        return None
    for row in state.rows.values():
        pages = row.pages[group]
        if row.peaks[group] and block >= row.bases[group] and block < len(pages) and pages[block] is page:
            return row
    return None


def alone(state: State, claim: Claim, group: int, holders: int, claims: int) -> list[int]:
    """The last blocks of a window's hit whose pages nobody else has, the last first; it holds or claims them itself."""
    kind, found = state.kinds[group], list[int]()
    for block, page in sorted(claim.pages[group].items(), reverse=True) if kind.kind == "window" else ():
        if block < reach.sink(kind, state.world.block_size) or (page.holders, page.claims) != (holders, claims):
            break
        found.append(block)
    return found


def columns(claim: Claim, group: int) -> list[Page | None]:
    """The row's columns as far as the hit goes."""
    held = claim.pages[group]
    return [held.get(block) for block in range(max(claim.blocks, max(held, default=-1) + 1))]


def front(state: State, claim: Claim, group: int) -> int:
    """The first column that may still leave."""
    kind, size = state.kinds[group], state.world.block_size
    if not reach.bounded(kind):
        return 0
    if kind.kind == "state":
        return claim.blocks
    if claim.purpose == "decode":
        runs = reach.runs(reach.needed(kind, claim.ask.compute_end, size))
        return runs[-1][0] if runs else 0
    return max(reach.sink(kind, size), claim.blocks - reach.keeps(kind, size))


def settle(state: State, claim: Claim, row: Row, end: int) -> Counted:
    """All the row lacks: priorities, onboards, a state, the partial block, new pages. What that counted, per group."""
    if not state.groups.start:
        hints.supersede(state, row)
    left = {page: page.claims for page in claim.sources}
    over = claim.source is not None and takes_over(state, [], claim, left)
    for pools in state.pools:
        pools.admissions += 1
    for cells in {id(pools.cells): pools.cells for pools in state.pools}.values():
        if cells is not None:
            cells.admit()
    before = [list(pools.counts) for pools in state.pools]
    tight = [is_tight(state, row, group, claim.start, 1) for group in range(len(state.pools))]
    for group, pools in enumerate(state.pools):
        charge = Charge(state.world, claim.ask, state.kinds[group], claim.junction)
        asked = (
            charge.room()
            if row.ahead
            else charge.fill(claim.start, max(end, claim.start), claim.start, row.held[group], tight[group])
        )
        sinks = min(reach.sink(state.kinds[group], state.world.block_size), asked.first)
        met = meet_prompt(state, claim, row, pools, [*range(sinks), *range(asked.first, asked.stop)])
        reuse_whole(state, claim, pools)
        pools.count(slots.PENDING, sum(row.committed <= block < claim.blocks for block in claim.pages[group]))
        if charge.is_state and claim.source is not None:
            row.currents[group] = reuse_part(state, claim, pools, over)
        elif charge.is_state:
            start_state(state, claim, row, pools)
        elif claim.source is not None:
            stretch(row, group, claim.blocks)
            row.pages[group][claim.blocks :] = [reuse_part(state, claim, pools, over)]
            row.owns[group] += 1
        fill(state, row, pools, asked, sinks, met)
        for _ in range(asked.spare):
            row.spares[group].append(pools.open_page(*row.decode))
    return counted_since(state, before)


def is_tight(state: State, row: Row, group: int, start: int, taken: int) -> bool:
    """A state at the prompt's end would push out the one before, which the same prompt needs."""
    charge = Charge(state.world, row.ask, state.kinds[group], row.junction)
    if not charge.is_state:
        return False
    beside = charge.beside_end(start, has_colder(state, group))
    return beside >= 0 and state.free(group) < taken + beside


def has_colder(state: State, group: int) -> bool:
    """What leaves the device may go on elsewhere."""
    return any(tier[state.groups[group]] for tier in state.world.tiers[1:])


def counted_since(state: State, before: list[list[int]]) -> Counted:
    """What happened to the pages of every group; in a shared pool also to those that nothing was asked of."""
    pairs = zip(state.pools, before, strict=True)
    return tuple(tuple(now - then for now, then in zip(pools.counts, old, strict=True)) for pools, old in pairs)


def stretch(row: Row, group: int, stop: int) -> None:
    """So many columns at least; new ones are holes."""
    row.pages[group] += [None] * (stop - len(row.pages[group]))


def meet_prompt(state: State, claim: Claim, row: Row, pools: slots.Pools, columns: list[int]) -> dict[int, int]:
    """Blocks behind the hit that were there before, and how often used; new pages are of another class after many."""
    if pools.cells is None:
        return {}
    its_own = claim.source is not None and state.kinds[pools.group].kind != "state"  # a column has the source's tokens
    met = meet(state, row, pools, [column for column in columns if not its_own or column != claim.blocks])
    known, blocks = max(claim.blocks, *(column + 1 for column in met), 0), len(row.tokens) // state.world.block_size
    deepest = row.pages[pools.group][claim.blocks - 1] if claim.blocks else None
    last = pools.cells.met_class if max(met, default=-1) >= claim.blocks else deepest.reuse if deepest else ONCE
    row.followed[pools.group] = last - hints.CLASS in (hints.SOON, hints.LATER)
    row.fresh[pools.group] = pools.cells.fresh = CONTINUED if 0 < blocks <= 2 * known else ONCE
    return met


def meet(state: State, row: Row, pools: slots.Pools, columns: list[int]) -> dict[int, int]:
    """The first of the columns to be filled, as far as their blocks are ghosts -> uses."""
    size, met = state.world.block_size, dict[int, int]()
    set_fresh(pools, row)
    for column in columns:
        if column < len(row.pages[pools.group]) and row.pages[pools.group][column] is not None:
            continue
        whole = (column + 1) * size <= len(row.tokens)
        path = path_of(row.ask.root, row.tokens, size)[: column + 2]
        uses = pools.cells.meet(path, pools.group) if pools.cells is not None and whole and row.tip is not None else 0
        if not uses:
            break
        met[column] = uses
    return met


def fill(state: State, row: Row, pools: slots.Pools, asked: Fill, sinks: int, met: dict[int, int]) -> None:
    """New pages for sinks and asked columns that have none; what else is reserved."""
    group = pools.group
    stretch(row, group, asked.stop)
    fill_columns(state, row, pools, [*range(sinks), *range(asked.first, asked.stop)], met)
    row.extras[group] = row.extras[group] if asked.peak else 0
    row.peaks[group] = asked.peak + row.extras[group]


def fill_columns(state: State, row: Row, pools: slots.Pools, columns: list[int], met: dict[int, int]) -> None:
    """New pages for columns that have none."""
    group, size = pools.group, state.world.block_size
    for column in columns:
        if row.pages[group][column] is None:
            page = row.pages[group][column] = pools.open_page(*(retention(row.ask, column, size) or (DEFAULT, None)))
            if pools.cells is not None and column in met:
                pools.cells.begin(page, met[column])
            row.owns[group] += 1
            pools.count(slots.MISSED)


def extend(state: State, row: Row, end: int) -> bool:
    """Pages for the next part of a prompt, as reserved; False when claims are in the way."""
    if paged(state, row) > row.prompt_end:  # what was generated meanwhile is computed again too
        row.granted = row.prompt_end = paged(state, row)
    if end <= row.granted or not any(map(reach.bounded, state.kinds)):
        return True
    begin = max(row.computed, row.launched)
    asks = [Charge(state.world, row.ask, kind, row.junction).fill(begin, end, row.start, row.held[group],
                                                                  is_tight(state, row, group, begin, 0))
            if reach.bounded(kind) else Fill(0, 0) for group, kind in enumerate(state.kinds)]  # fmt: skip
    for groups in state.sharers:
        wanted: list[tuple[int, int]] = []
        for group in groups:
            have, asked = row.pages[group], asks[group]
            need = sum(column >= len(have) or have[column] is None for column in range(asked.first, asked.stop))
            wanted += [(need, row.reserve(group))] if need else []
        beyond = sum(max(0, need - own) for need, own in wanted)  # what one group has reserved is not another's
        if wanted and (beyond or sum(need - own for need, own in wanted)) > state.free(groups[0]):
            return False
    for pools, asked in zip(state.pools, asks, strict=True):
        fill(state, row, pools, asked, 0, meet(state, row, pools, list(range(asked.first, asked.stop))))
    return True


def hand_out(state: State, row: Row, end: int) -> bool:
    """The next part of a prompt, if there are pages for it."""
    if not extend(state, row, end):
        return False
    keep_ahead(state, row)
    return True


def open_inside(state: State, row: Row, start: int, end: int) -> tuple[list[tuple[int, int, int]], Counted]:
    """Pages for what a step writes itself, the last ones as far as there is room: where to, and what that counted."""
    told, size = list[tuple[int, int, int]](), state.world.block_size
    before = [list(pools.counts) for pools in state.pools]
    for group, pools in enumerate(state.pools):
        charge = Charge(state.world, row.ask, state.kinds[group], row.junction)
        columns = charge.inside(start, end)
        if charge.group.inside and row.peaks[group]:
            room = max(0, state.free(group) + row.reserve(group))
            stretch(row, group, max([column + 1 for column in columns], default=0))
            fresh = [column for column in columns if column >= row.written[group]]  # a step may have run without others
            holes = [column for column in fresh if row.pages[group][column] is None]
            if columns and (columns[-1] + 1) * size == row.ask.compute_end and columns[-1] in holes:
                beside = charge.beside_end(start, has_colder(state, group))
                holes = holes[:-1] if beside >= 0 and len(holes) + beside > room else holes
            opened = holes[max(0, len(holes) - room) :]
            fill_columns(state, row, pools, opened, meet(state, row, pools, opened))
            row.written[group] = max(row.written[group], *(column + 1 for column in columns), 0)
            row.peaks[group] = charge.peak(row.start) if end < row.ask.compute_end else 0
        told += [(group, (column + 1) * size, page.copies[0]) for column in range(start // size, end // size)
                 if charge.group.inside and (page := row.pages[group][column]) is not None]  # fmt: skip
    return told, counted_since(state, before)


def reuse_whole(state: State, claim: Claim, pools: slots.Pools) -> None:
    """Whole blocks take the request's priorities and come to the device; states stay where they are."""
    held = sorted(claim.pages[pools.group].items())
    for block, page in held:
        pools.count(slots.FULL)
        pools.count(slots.FROM_TIER + page.hottest)
        hints.use(pools, page)
        value = retention(claim.ask, block, state.world.block_size)
        if value is not None:
            page.priority, page.duration = value
    for _, page in held:
        if 0 not in page.copies and state.kinds[pools.group].kind != "state":
            onboard(pools, page)


def start_state(state: State, claim: Claim, row: Row, pools: slots.Pools) -> None:
    """A state of the row's own, copied from the snapshot it found; that is let go at once."""
    current = row.currents[pools.group] = pools.open_page(*row.decode)
    held = sorted(claim.pages[pools.group].items())
    if held:
        copy_state(pools, held[-1][1], current)
    for block, page in held:
        row.pages[pools.group][block] = None
        pools.let_go(page, state.now())


def reuse_part(state: State, claim: Claim, pools: slots.Pools, over: bool) -> Page:
    """The page of a partial hit: the source itself, out of the tree, or a new page with the shared tokens copied in."""
    source, is_state = claim.sources[pools.group], state.kinds[pools.group].kind == "state"
    pools.count(slots.PARTIAL)
    pools.count(slots.FROM_TIER + source.hottest)
    pools.count(slots.PARTIAL_FROM + source.hottest)
    if over:
        source.claims -= 1
        pools.hold(source)
        hints.use(pools, source)
        if 0 not in source.copies:
            onboard(pools, source)
        pools.detach(source)
        for tier in sorted(source.copies)[1:]:
            pools.empty(source, tier)
        value = retention(claim.ask, claim.blocks, state.world.block_size) or (DEFAULT, None)
        source.priority, source.duration = decode_value(claim.ask) if is_state else value
        return source
    page = pools.open_page(*(decode_value(claim.ask) if is_state else (source.priority, source.duration)))
    size = state.world.block_size
    tier, matched = source.hottest, size if is_state else claim.start - claim.blocks * size
    pages = (page, source) if tier else (page,)
    pools.move(slots.COPY, (tier, source.copies[tier]), (0, page.copies[0]), *pages, tokens=matched)
    pools.count(slots.ONBOARDED if tier else slots.COPIED)
    pools.count(slots.COPIED_TOKENS, matched)
    hints.use(pools, source)
    if pools.cells is not None and source.idle:
        pools.restamp(source.hottest, source.copies[source.hottest])
    pools.unclaim(source)
    return page


def in_use(claims: list[Claim], page: Page) -> bool:
    """Held already, or hit as a whole block by one of the batch."""
    return page.holders > 0 or any(page in claim.pages[page.group].values() for claim in claims)


def takes_over(state: State, claims: list[Claim], claim: Claim, left: dict[Page, int]) -> bool:
    """A partial hit has its source to itself when it is a leaf, nobody uses it and nobody else claims it (any more)."""
    assert claim.source is not None
    free = all(left[page] == 1 and not in_use(claims, page) and page.path and not page.stays for page in claim.sources)
    return free and state.tree.is_leaf(claim.source)
