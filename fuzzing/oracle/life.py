"""Life after admission by definition: grow, trim, hold, release, truncate, clear. Knows no claims."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzing.oracle import hints, reach
from fuzzing.oracle import pools as slots
from fuzzing.oracle.commit import commit, copy_state, look_beside
from fuzzing.oracle.page import Page
from fuzzing.oracle.state import Row, State
from fuzzing.oracle.tree import path_of
from fuzzing.world.plain import Ask, Identity, Misuse, Path


def columns_at(state: State, group: int, length: int) -> int:
    """Columns a row has when it is that long."""
    kind, size = state.kinds[group], state.world.block_size
    return length // size if kind.kind == "state" else reach.num_blocks(length + (kind.extra or 0), size)


def paged(state: State, row: Row) -> int:
    """Leading tokens of a row that have pages, or did: a step may have made more than that."""
    length, have = len(row.tokens), [len(pages) for pages in row.pages]
    fits = [n for n in range(length + 1) if all(columns_at(state, g, n) <= had for g, had in enumerate(have))]
    return max(fits, default=0)


def new_columns(state: State, row: Row, group: int, length: int) -> list[bool]:
    """For each column still missing at that length: whether it gets a page."""
    kind, size = state.kinds[group], state.world.block_size
    columns = range(len(row.pages[group]), columns_at(state, group, length))
    if kind.kind != "state":
        return [True for _ in columns]
    every = kind.every if kind.decoding is None else kind.decoding
    regular = row.keep and every > 0
    return [regular and column >= row.fronts[group] and (column + 1) * size % every == 0 for column in columns]


def new_snapshots(state: State, row: Row, group: int, length: int, owed: int) -> list[bool]:
    """The same of a state group as far as there is room, less what is owed to others: nobody waits for a snapshot."""
    left, got = state.free(group) - owed, list[bool]()
    for wanted in new_columns(state, row, group, length):
        got.append(wanted and left > 0)
        left -= got[-1]
    return got


def grow(state: State, rows: list[Row], tokens: list[list[Identity]] | None, num_tokens: int) -> bool:
    """Places for coming tokens, known or not, for all rows or for none."""
    if any(any(row.peaks) or row.handed < row.prompt for row in rows):
        raise Misuse("an unfinished prompt has tokens to come before these, and perhaps pages reserved")
    ends = [
        row.handed + num_tokens if tokens is None else max(row.handed, len(row.tokens) + len(tokens[nth]))
        for nth, row in enumerate(rows)
    ]
    wanted = [sum(sum(new_columns(state, row, group, end)) for row, end in zip(rows, ends, strict=True))
              if kind.kind != "state" else 0 for group, kind in enumerate(state.kinds)]  # fmt: skip
    owed = {id(state.pools[some[0]].room): sum(wanted[group] for group in some) for some in state.sharers}
    for some in state.sharers:
        missing = owed[id(state.pools[some[0]].room)]
        if missing and missing > state.free(some[0]):
            return False
    for row in rows:
        keep_ahead(state, row)
    for place, (row, length) in enumerate(zip(rows, ends, strict=True)):
        row.tokens += [] if tokens is None else tokens[place]
        row.handed = length
        for group, pools in enumerate(state.pools):
            set_fresh(pools, row)
            home = id(pools.room)
            if state.kinds[group].kind == "state":
                new = new_snapshots(state, row, group, length, owed[home])
            else:
                new = new_columns(state, row, group, length)
                owed[home] -= sum(new)
            for taken in new:
                row.pages[group].append(pools.open_page(*row.decode) if taken else None)
                row.owns[group] += taken
                pools.count(slots.GROWN, int(taken))
    return True


def keep_ahead(state: State, row: Row) -> None:
    """The state that the last step in flight leaves at a block's end is copied into the snapshot there, before the
    next one; snapshots that steps went past are given up."""
    size, end = state.world.block_size, row.launched
    if not end == row.handed > row.computed or end % size or row.tip is None:
        return
    column = end // size - 1
    for group, pools in enumerate(state.pools):
        pages = row.pages[group]
        page = pages[column] if column < len(pages) else None
        if state.kinds[group].kind != "state" or page is None or column < row.written[group]:
            continue
        for past in reversed(range(max(row.fronts[group], row.written[group]), column)):
            other = pages[past]
            if other is not None:
                pages[past] = None
                row.owns[group] -= past >= row.bases[group]
                pools.let_go(other, state.now())
        copy_state(pools, row.currents[group], page)
        row.written[group] = column + 1


def set_fresh(pools: slots.Pools, row: Row) -> None:
    """New pages are for this row from now on."""
    if pools.cells is not None:
        pools.cells.fresh = row.fresh[pools.group]


def check_commit(state: State, rows: list[Row], marks: Sequence[int]) -> None:
    """A transfer brings all or nothing; of a prompt whose pages come step by step only what was handed out counts."""
    for row, mark in zip(rows, marks, strict=True):
        if row.received and row.computed < row.prompt_end and mark < row.prompt_end:
            raise Misuse("a part of a transfer")
        if any(map(reach.bounded, state.kinds)) and row.granted < row.prompt_end and mark > row.granted:
            raise Misuse("more than was handed out")


def trim(state: State, row: Row, num_tokens: int) -> int:
    """Tail tokens go, and the pages behind them; how many."""
    length = len(row.tokens) - num_tokens
    check_trim(state, row, length)
    del row.tokens[length:]
    row.kept, row.prompt_end = min(row.kept, length), min(row.prompt_end, length)
    row.reached, row.prompt = max(row.reached, row.handed), min(row.prompt, length)
    row.computed, row.handed = min(row.computed, length), min(row.handed, length)
    given = 0
    for group, pools in enumerate(state.pools):
        pages, columns = row.pages[group], columns_at(state, group, length)
        row.written[group] = min(row.written[group], columns)
        while len(pages) > columns:
            page = pages.pop()
            if page is not None:
                row.owns[group] -= len(pages) >= row.bases[group]
                pools.let_go(page, state.now())
                given += 1
    return given


def final(state: State, row: Row) -> int:
    """Tokens that cannot be taken back: what was received fits only the prompt's end."""
    least = row.prompt_end if row.received else 0
    return max(least, row.computed if state.world.has_state else row.committed * state.world.block_size)


def check_trim(state: State, row: Row, length: int) -> None:
    """Tokens that were handed on stay: committed ones, those a fork shares, those a hold keeps for a reader."""
    block, inside = divmod(length, state.world.block_size)
    if row.granted < row.prompt_end and any(map(reach.bounded, state.kinds)):
        raise Misuse("pages of an unfinished prompt are to leave")
    if length < final(state, row):
        raise Misuse("what is final cannot be taken back, nor a state")
    for group in range(len(state.pools)):
        mine = [page for page in row.pages[group][block : block + 1] if page]
        others = [other.pages[group][block : block + 1] for other in state.rows.values() if other is not row]
        if inside and mine and mine in others:
            raise Misuse("a fork shares that page: nothing may be written into it")
    for _, end, held in state.holds.values():
        if length < len(row.tokens) and length < min(end, row.computed) and holds_block(row, held, block):
            raise Misuse("a hold keeps those tokens for a reader")


def holds_block(row: Row, held: list[list[tuple[int, Page]]], block: int) -> bool:
    """Whether a hold keeps a page of that block."""
    mine = [page for pages in row.pages for page in pages[block : block + 1]]
    return any(page in mine for kept in held for _, page in kept)


def hold(state: State, key: str, row: Row | None, start: int, end: int) -> tuple[tuple[int, ...], ...]:
    """Keep the pages of a span for a reader, of an encoder's stream all of them; which."""
    held = [[] if row is None else held_pages(state, row, group, start, end) for group in range(len(state.pools))]
    state.holds[key] = (start, end, held)
    for group, pages in enumerate(held):
        for block, page in pages:
            state.pools[group].hold(page)
            if row is not None and row.peaks[group] and page is not row.currents[group]:
                row.peaks[group] += block >= row.bases[group]
                row.extras[group] += block >= row.bases[group]
    return tuple(tuple(page.number for _, page in pages) for pages in held)


def held_pages(state: State, row: Row, group: int, start: int, end: int) -> list[tuple[int, Page]]:
    """The pages of a span, with their blocks; a state when it stands in its last block."""
    size, current = state.world.block_size, row.currents[group]
    first, last = start // size, reach.num_blocks(end, size) if end > start else start // size
    if current is not None:
        inside = first * size < row.computed <= last * size
        return [((row.computed - 1) // size, current)] if inside and not row.is_past else []
    columns = range(first, last) if state.groups.start == 0 else range(len(row.pages[group]))
    return [(column, page) for column in columns if (page := row.pages[group][column]) is not None]


def keeps_leaving(state: State, row: Row, start: int, end: int) -> bool:
    """Whether a hold would keep more pages that are to leave than there are slots to spare."""
    for some in state.sharers:
        needed = 0
        for group in some:
            if row.peaks[group] and state.kinds[group].kind == "window":
                pages = held_pages(state, row, group, start, end)
                needed += sum(block >= row.bases[group] for block, _ in pages)
        if needed and needed > state.free(some[0]):
            return True
    return False


def drop(state: State, key: str) -> None:
    """Give up such a hold."""
    for pools in state.pools:
        pools.tell_time(state.now())
    for pools, pages in zip(state.pools, state.holds.pop(key)[2], strict=True):
        for _, page in reversed(pages):
            pools.let_go(page, state.now())


def release(state: State, row: Row, store: bool, back: int = 0) -> None:
    """Everything computed becomes findable, and comes back then; pages are given up, the deepest first."""
    row.peaks = [0] * len(state.pools)
    for pools in state.pools:
        pools.tell_time(state.now())
    was_ahead = row.ahead
    if store:
        commit(state, row, row.computed)
        store_rest(state, row, was_ahead)
    for group in range(len(state.pools)):
        look_beside(state, row, group, range(row.committed))
    hints.end_row(state, row, 0 if state.groups.start else back)
    del state.rows[row.ask.name]
    state.tree.forget_gone()
    for group, pools in enumerate(state.pools):
        columns = [page for page in reversed(row.pages[group]) if page is not None]
        last = [page for page in row.currents[group : group + 1] if page is not None]
        for page in [*reversed(row.spares[group]), *columns, *last]:
            pools.let_go(page, state.now())


def store_rest(state: State, row: Row, was_ahead: bool) -> None:
    """Private pages whose place has become free, the deepest first; the state; the computed part of the last block."""
    if row.tip is None:
        return
    for block in range(row.committed - 1, -1, -1):
        for group in range(len(state.pools)):
            here = row.pages[group][block] if block < len(row.pages[group]) else None
            path = row.tip[: block + 2]
            if here and here.path is None and state.tree.page(path, group) is None:
                state.pools[group].attach(here, path)
    at_edge = 0 < row.computed == row.committed * state.world.block_size
    for group, current in enumerate(row.currents):
        if current and at_edge and not was_ahead and state.tree.page(row.tip, group) is None:
            if row.is_past:
                state.pools[group].count(slots.SKIPPED)
            else:
                state.pools[group].attach(current, row.tip)
    if state.world.has_state and state.world.partial and not was_ahead and state.groups.start == 0:
        store_whole_tail(state, row, row.tip)
    elif not state.world.has_state and state.world.partial:
        store_tail(state, row, row.tip)


def store_tail(state: State, row: Row, tip: Path) -> None:
    """The computed tokens after the last whole block become a partial one, unless a block begins with them."""
    size = state.world.block_size
    tail = tuple(row.tokens[row.committed * size : row.computed])
    if not 0 < len(tail) < size:
        return
    for group in range(len(state.pools)):
        page = row.pages[group][row.committed]
        covered = any(pages[group] and path[-1][: len(tail)] == tail for path, pages in state.tree.children(tip))
        if page and page.path is None and page.holders == 1 and not covered:
            state.pools[group].attach(page, (*tip, tail))


def store_whole_tail(state: State, row: Row, tip: Path) -> None:
    """The same where there are states: all pages of it and the state after it, or nothing."""
    size = state.world.block_size
    tail = tuple(row.tokens[row.committed * size : row.computed])
    if not 0 < len(tail) < size:
        return
    pages = [row.currents[group] or row.pages[group][row.committed] for group in range(len(state.pools))]
    if not all(page and page.path is None and page.holders == 1 for page in pages):
        return
    for pools, page in zip(state.pools, pages, strict=True):
        if page is None or state.tree.page((*tip, tail), pools.group) is not None:
            continue
        if not row.is_past:
            pools.attach(page, (*tip, tail))
        elif row.currents[pools.group] is page:
            pools.count(slots.SKIPPED)


def truncate(state: State, ask: Ask, keep: int) -> int:
    """Forget the blocks along the request's tokens that start at `keep` or later, and all below; how many pages."""
    size, tops = state.world.block_size, list[Path]()
    identities = ask.identities[: ask.compute_end]
    for path in state.tree.exists():
        start = (len(path) - 2) * size
        tokens = [identity for block in path[1:] for identity in block]
        along = path[0] == ask.root and tokens == list(identities[: len(tokens)])
        if along and start >= keep:
            tops.append(path)
    first = min((len(path) for path in tops), default=0)
    return sum(forget(state, path) for path in sorted(path for path in tops if len(path) == first))


def clear(state: State, again: bool) -> int:
    """Forget everything; how many pages. `again`: rows that stored their blocks go on to, from the first one."""
    gone, storing = 0, [row for row in state.rows.values() if again and row.tip is not None]
    for root in state.roots:
        gone += forget(state, (root,))
    for row in state.rows.values():
        row.tip = None
    state.roots.clear()
    forget_ghosts(state)
    for row in storing:
        state.make_root(row.ask.root)
        row.tip = path_of(row.ask.root, row.tokens, state.world.block_size)[: row.committed + 1]
        row.showns = [shown if kind.kind == "state" else 0 for shown, kind in zip(row.showns, state.kinds, strict=True)]
    return gone


def forget_scope(state: State, root: int) -> int:
    """Forget all of a scope; how many pages. Nobody tells whose ghosts are whose: all go."""
    gone = forget(state, (root,))
    forget_ghosts(state)
    return gone


def forget_ghosts(state: State) -> None:
    """What is remembered of pages that are gone."""
    for pools in state.pools:
        if pools.cells is not None:
            pools.cells.forget()
        pools.gone.forget()


def forget(state: State, top: Path) -> int:
    """A subtree goes: idle pages are no more, held ones stay private; rows that go on there store no more."""
    for row in state.rows.values():
        if row.tip is not None and row.tip[: len(top)] == top:
            row.tip = None
    state.tree.forget_gone()
    gone = 0
    for path in state.tree.below(top):
        for page in list(state.tree.at[path]):
            if page is None:
                continue
            state.pools[page.group].detach(page)
            gone += 1
            page.expiry = None
            state.pools[page.group].remove_unused(page)
    return gone
