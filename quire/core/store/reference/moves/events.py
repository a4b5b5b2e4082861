"""What the log says about pages: their facts, one record per act, and the whole state at once.

Owns how a page and its node become a record. Knows nothing of why a page changes, nor of who reads the log.
"""

from collections.abc import Iterator, Sequence

from quire.core.records.events import PARTIAL, WORDS, Fact
from quire.core.store.reference.keys.chain import decode
from quire.core.store.reference.keys.hash import signed
from quire.core.store.reference.pools.pool import Pool
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import Node, Page
from quire.core.store.reference.tree.tree import below


def facts_of(state: State, page: Page, node: Node, tier: int) -> int:
    """What stands beside a page's hash: priority, tier, whether its block is partial and whether tokens have words."""
    words = bool(decode(node.identity)[1].any())
    return page.priority | tier << 8 | PARTIAL * (node.size < state.rules.block_size) | WORDS * words


def log_stored(state: State, pool: Pool, run: Sequence[Node]) -> None:
    """A run of blocks, each the parent of the next, got pages of a group."""
    if state.log.on and run:
        state.log.log_flush(pool.group)
        first = run[0].pages[pool.group]
        assert first is not None
        _log_blocks(state, Fact.STORED, pool.group, run, (0, first.hottest))
        state.log.log_bound()


def log_moved(state: State, pool: Pool, page: Page, source: int, target: int) -> None:
    """The hottest copy of a page went from one tier to another, if the page is a committed one."""
    if state.log.on and page.node is not None:
        _log_blocks(state, Fact.MOVED, pool.group, [page.node], (source, target))
        state.log.log_bound()


def log_retained(state: State, pool: Pool, page: Page, before: int, after: int) -> None:
    """A committed page has another priority."""
    if state.log.on and page.node is not None and before != after:
        mark = (page.node.hash, facts_of(state, page, page.node, page.hottest))
        state.log.log_record(Fact.RETAINED, pool.group, [mark], (before, after))
        state.log.log_bound()


def log_restored(state: State, count: int) -> None:
    """All `count` pages of a store that was empty, chains as one; as a loss if they are more than may wait."""
    if state.log.on and not state.log.log_bound(count):
        _log_pages(state)


def log_whole(state: State) -> None:
    """Instead of what waits: cleared and created for every group, then all pages, chains in one tier as one."""
    if not state.log.on:
        return
    state.log.log_discard()
    state.log.log_cleared()
    for pool in state.pools:
        marks = [(len(order.owner), 0) for order in pool.orders]
        state.log.log_record(Fact.CREATED, pool.group, marks)
    _log_pages(state)


def _log_pages(state: State) -> None:
    for pool in state.pools:
        for root in state.tree.roots.values():
            for run, tier in _chains(root, pool.group):
                _log_blocks(state, Fact.STORED, pool.group, run, (0, tier))


def _log_blocks(state: State, kind: Fact, group: int, run: Sequence[Node], ends: tuple[int, int]) -> None:
    """A record of blocks that are each other's parents, with tokens, parent and root."""
    parent = run[0].parent
    assert parent is not None
    marks = []
    for node in run:
        page = node.pages[group]
        assert page is not None
        marks.append((node.hash, facts_of(state, page, node, page.hottest)))
    tokens = [token for node in run for token in decode(node.identity)[0].tolist()]
    above = (signed(parent.hash), signed(parent.root.hash), int(parent.parent is None))
    state.log.log_run((kind, group, run[0].size, *ends), marks, tokens, above)


def _chains(root: Node, group: int) -> Iterator[tuple[list[Node], int]]:
    """All blocks below a root that have a page of `group`, parents first; runs of one tier and size, with the tier."""
    run: list[Node] = []
    tier = -1
    for node in below(root):
        page = node.pages[group]
        if page is None:
            continue
        if run and node.parent is run[-1] and page.hottest == tier and node.size == run[-1].size:
            run.append(node)
            continue
        if run:
            yield run, tier
        run, tier = [node], page.hottest
    if run:
        yield run, tier
