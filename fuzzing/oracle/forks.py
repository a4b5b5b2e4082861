"""Forks by definition: whole computed blocks are shared, the rest is copied into pages of their own."""

from __future__ import annotations

from dataclasses import replace

from fuzzing.oracle import pools as slots
from fuzzing.oracle import reach
from fuzzing.oracle.commit import commit, copy_state
from fuzzing.oracle.flights import check_landed, flies, take_back
from fuzzing.oracle.life import columns_at, paged, set_fresh
from fuzzing.oracle.model import Model
from fuzzing.oracle.page import Page
from fuzzing.oracle.state import Row, State
from fuzzing.world.plain import Misuse


def fork_needs(state: State, row: Row, group: int) -> int:
    """Pages of its own that one fork takes, spares included."""
    shared = row.computed // state.world.block_size
    columns = range(shared, columns_at(state, group, len(row.tokens)))
    if state.kinds[group].kind == "state":
        return 1 + sum(page is not None for page in row.pages[group][shared : columns.stop])
    return len(columns)


def fork_all(model: Model, name: str, names: list[str]) -> list[int] | None:
    """More rows on a row's pages; their numbers, None when there is no room for all of them."""
    row = model.own.rows[name]
    if model.world.has_state:
        check_landed(model, [row])
    forgets = any(reach.bounded(kind) for kind in model.own.kinds)
    across = None if model.cross is None else model.cross.rows.get(name)
    if across is not None and across.computed < len(across.tokens):
        raise Misuse("its encoder's pages are to be shared, and still to come")
    if (forgets or row.received or model.cross is not None) and row.computed < row.prompt_end:
        raise Misuse("pages of an unfinished prompt are to leave, or still to come")
    mine = [(stream, stream.rows[name]) for stream in model.streams if name in stream.rows]
    if len(names) > len(model.free_rows):
        return None
    for stream, source in mine:
        for some in stream.sharers:
            lacks = [fork_needs(stream, source, group) * len(names) - len(source.spares[group]) for group in some]
            missing = sum(max(0, lack) for lack in lacks)
            if missing and missing > stream.free(some[0]):
                return None
    commit(model.own, row, row.computed)
    numbers = [model.free_rows.pop() for _ in names]
    for new, number in zip(names, numbers, strict=True):
        for stream, source in mine:
            fork_once(stream, source, new, number)
        fork = model.own.rows[new]
        if row.computed < row.prompt_end:
            fork.handed = row.computed  # a prompt's step computes the source alone
            fork.prompt = max(row.prompt, paged(model.own, fork))
        elif flies(model, row):
            take_back(fork, min(fork.handed, row.computed), model.world.block_size, False)
    return numbers


def fork_once(state: State, row: Row, name: str, number: int) -> Row:
    """One fork; it has the source's retention, block by block, and its spare pages first."""
    shared = row.computed // state.world.block_size
    copy = replace(row, number=number, ask=replace(row.ask, name=name, beams=1), tokens=list(row.tokens))
    copy.launched, copy.since = 0, 0
    if row.handed > len(row.tokens):  # places have no tokens that it could share
        copy.handed, copy.reached = len(row.tokens), max(row.reached, row.handed)
    copy.spares = [[] for _ in state.pools]
    copy.pages = [pages[:shared] for pages in row.pages]
    copy.bases, copy.fronts, copy.showns = list(row.bases), list(row.fronts), list(row.showns)
    copy.owns, copy.peaks, copy.currents = [0] * len(state.pools), [0] * len(state.pools), list(row.currents)
    copy.held = list(row.held)
    copy.extras = [0] * len(state.pools)
    copy.fresh, copy.written, copy.followed = list(row.fresh), list(row.written), list(row.followed)
    for group, pools in enumerate(state.pools):
        set_fresh(pools, row)
        for page in copy.pages[group]:
            if page is not None:
                pools.hold(page)
        for block in range(len(copy.pages[group]), columns_at(state, group, len(row.tokens))):
            page = fork_page(state, pools, row, block)
            copy.pages[group].append(page)
            copy.owns[group] += page is not None
        if state.kinds[group].kind == "state":
            copy.currents[group] = current = own_page(pools, row, row.decode)
            copy_state(pools, row.currents[group], current)
    state.rows[name] = copy
    return copy


def own_page(pools: slots.Pools, row: Row, value: tuple[int, int | None]) -> Page:
    """A page for a fork: one of the source's spares, or a new one."""
    if not row.spares[pools.group]:
        return pools.open_page(*value)
    page = row.spares[pools.group].pop()
    page.priority, page.duration = value
    return page


def fork_page(state: State, pools: slots.Pools, row: Row, block: int) -> Page | None:
    """A fork's own page for a block that is not computed to its end; where states are kept nothing is copied."""
    known = row.pages[pools.group]
    model = known[block] if block < len(known) else None
    is_state = state.kinds[pools.group].kind == "state"
    if is_state and model is None:
        return None
    page = own_page(pools, row, (model.priority, model.duration) if model else row.decode)
    tokens = row.computed - block * state.world.block_size
    if model and tokens > 0 and not is_state:
        pools.move(slots.COPY, (0, model.copies[0]), (0, page.copies[0]), page, tokens=tokens)
        pools.count(slots.COPIED)
        pools.count(slots.COPIED_TOKENS, tokens)
    return page
