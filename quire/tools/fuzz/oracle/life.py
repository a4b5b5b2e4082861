"""Life after admission by definition: commit, grow, trim, fork, release, truncate, clear. Knows no claims."""

from __future__ import annotations

from dataclasses import replace

from quire.tools.fuzz.oracle import pools as slots
from quire.tools.fuzz.oracle.page import Page
from quire.tools.fuzz.oracle.state import Row, State
from quire.tools.fuzz.oracle.tree import path_of
from quire.tools.fuzz.plain import Ask, Identity, Misuse, Path


def commit(state: State, row: Row, computed: int) -> int:
    """Whole computed blocks become findable; how many pages are new in the tree."""
    row.computed = max(row.computed, computed)
    blocks = computed // state.world.block_size
    if row.tip is None or blocks <= row.committed:
        return 0
    path = path_of(row.ask.root, row.tokens, state.world.block_size)
    fresh = 0
    for pools in state.pools:
        for block in range(row.committed, min(blocks, len(row.pages[pools.group]))):
            fresh += commit_page(state, pools, row.pages[pools.group][block], path[: block + 2])
    row.committed, row.tip = blocks, path[: blocks + 1]
    return fresh


def commit_page(state: State, pools: slots.Pools, page: Page, path: Path) -> bool:
    """A page takes its place in the tree if it is free, or its page idle and off the device; else it stays private."""
    other = state.tree.page(path, pools.group)
    if page.path is not None or other is page:
        return False
    if other is None:
        state.tree.attach(page, path)
        return True
    if other.idle and not other.claims and 0 not in other.copies:
        state.tree.detach(other)
        for tier in sorted(other.copies):
            if state.world.shadows and not state.plans:  # a copy that may still fail is not trusted
                pools.put(page, tier, pools.lift(other, tier))
            else:
                pools.empty(other, tier)
        pools.remove_number(other)
        state.tree.attach(page, path)
    return False


def grow(state: State, rows: list[Row], tokens: list[list[Identity]] | None, num_tokens: int) -> bool:
    """Slots for coming tokens, for all rows or for none."""
    columns = [state.world.blocks(len(row.tokens) + num_tokens) for row in rows]
    for pools in state.pools:
        missing = (max(0, need - len(row.pages[pools.group])) for row, need in zip(rows, columns, strict=True))
        if sum(missing) > pools.free():
            return False
    for place, (row, need) in enumerate(zip(rows, columns, strict=True)):
        if tokens is not None:
            row.tokens += tokens[place]
        for pools in state.pools:
            while len(row.pages[pools.group]) < need:
                row.pages[pools.group].append(pools.open_page(*row.decode))
                pools.count(slots.GROWN)
    return True


def trim(state: State, row: Row, num_tokens: int) -> int:
    """Tail tokens go, and the pages behind them; how many."""
    length = len(row.tokens) - num_tokens
    block, inside = divmod(length, state.world.block_size)
    for group in range(state.world.num_groups):
        others = [other.pages[group][block:][:1] for other in state.rows.values() if other is not row]
        if inside and row.pages[group][block:][:1] in others:
            raise Misuse("a fork shares that page: nothing may be written into it")
    for _, end, held in state.holds.values():
        if num_tokens and length < min(end, row.computed) and any(p in held[0] for p in row.pages[0][block:][:1]):
            raise Misuse("a hold keeps those tokens for a reader")
    del row.tokens[length:]
    row.kept = min(row.kept, length)
    row.computed = min(row.computed, length)
    given = 0
    for pools in state.pools:
        pages = row.pages[pools.group]
        while len(pages) > state.world.blocks(length):
            pools.let_go(pages.pop(), state.now())
            given += 1
    return given


def fork(state: State, row: Row, names: list[str]) -> list[Row] | None:
    """More rows: whole computed blocks are shared, the rest is copied into pages of their own."""
    shared = row.computed // state.world.block_size
    own = state.world.blocks(len(row.tokens)) - shared
    if len(names) > len(state.free_rows):
        return None
    if any(own * len(names) > pools.free() + len(row.spares[pools.group]) for pools in state.pools):
        return None
    commit(state, row, row.computed)
    forks = [fork_once(state, row, name, shared) for name in names]
    return forks


def fork_once(state: State, row: Row, name: str, shared: int) -> Row:
    """One fork; it has the source's retention, block by block, and its spare pages first."""
    copy = replace(row, number=state.free_rows.pop(), ask=replace(row.ask, name=name, beams=1), tokens=list(row.tokens))
    copy.spares = [[] for _ in state.pools]
    copy.pages = [pages[:shared] for pages in row.pages]
    for pools, pages in zip(state.pools, copy.pages, strict=True):
        for page in pages:
            pools.hold(page)
        for block in range(shared, state.world.blocks(len(row.tokens))):
            pages.append(fork_page(state, pools, row, block))
    state.rows[name] = copy
    return copy


def fork_page(state: State, pools: slots.Pools, row: Row, block: int) -> Page:
    """A fork's own page for a block that is not computed to its end."""
    known = row.pages[pools.group]
    model = known[block] if block < len(known) else None
    value = (model.priority, model.duration) if model else row.decode
    if row.spares[pools.group]:
        page = row.spares[pools.group].pop()
        page.priority, page.duration = value
    else:
        page = pools.open_page(*value)
    tokens = row.computed - block * state.world.block_size
    if model and tokens > 0:
        pools.move(slots.COPY, (0, model.copies[0]), (0, page.copies[0]), page, tokens=tokens)
        pools.count(slots.COPIED)
        pools.count(slots.COPIED_TOKENS, tokens)
    return page


def release(state: State, row: Row, store: bool) -> None:
    """Everything computed becomes findable; then pages are given up, the deepest first."""
    if store:
        commit(state, row, row.computed)
        store_rest(state, row)
    del state.rows[row.ask.name]
    for pools in state.pools:
        for page in [*reversed(row.spares[pools.group]), *reversed(row.pages[pools.group])]:
            pools.let_go(page, state.now())
    state.free_rows.append(row.number)


def store_rest(state: State, row: Row) -> None:
    """Private pages whose place has become free, the deepest first; then the computed part of the last block."""
    if row.tip is None:
        return
    size = state.world.block_size
    for block in range(row.committed - 1, -1, -1):
        for pools in state.pools:
            here = row.pages[pools.group][block : block + 1]
            if here and here[0].path is None and state.tree.page(row.tip[: block + 2], pools.group) is None:
                state.tree.attach(here[0], row.tip[: block + 2])
    tail = tuple(row.tokens[row.committed * size : row.computed])
    if not 0 < len(tail) < size:
        return
    for pools in state.pools:
        page = row.pages[pools.group][row.committed]
        covered = any(
            pages[pools.group] and path[-1][: len(tail)] == tail for path, pages in state.tree.children(row.tip)
        )
        if page.path is None and page.holders == 1 and not covered:
            state.tree.attach(page, (*row.tip, tail))


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


def clear(state: State) -> int:
    """Forget everything; how many pages."""
    gone = 0
    for root in state.roots:
        gone += forget(state, (root,))
    for row in state.rows.values():
        row.tip = None
    state.roots.clear()
    return gone


def forget(state: State, top: Path) -> int:
    """A subtree goes: idle pages are no more, held ones stay private; rows that go on there store no more."""
    for row in state.rows.values():
        if row.tip is not None and row.tip[: len(top)] == top:
            row.tip = None
    gone = 0
    for path in state.tree.below(top):
        for page in list(state.tree.at[path]):
            if page is None:
                continue
            state.tree.detach(page)
            gone += 1
            if not page.holders:
                state.pools[page.group].remove(page)
    return gone
