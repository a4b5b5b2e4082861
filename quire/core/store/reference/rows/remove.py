"""How blocks go at once: the end of a chain, everything, a page whose bytes are gone.

Owns the order of removal. Claimed pages stay with their claims, out of the tree. Knows nothing of who claims.
"""

from quire.core.store.reference.keys.chain import Chain
from quire.core.store.reference.moves.attach import detach
from quire.core.store.reference.moves.evict import bury, unbury
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import Node
from quire.core.store.reference.tree.tree import subtree
from quire.core.store.reuse import SPOILT


def truncate(state: State, root: Node, chain: Chain, usable: int, keep: int) -> int:
    """Forget what is stored along a chain from the first block that starts at `keep` or later; pages detached."""
    size = state.rules.block_size
    usable = min(usable, len(chain))
    parent, block = root, 0
    while block * size < keep:
        child = parent.children.get(chain.block(block)) if (block + 1) * size <= usable else None
        if child is None:
            return 0
        parent, block = child, block + 1
    first = block * size
    starts = (chain.span(first, end) for end in range(first + 1, min(first + size, usable) + 1))
    return _remove(state, [parent.children[start] for start in starts if start in parent.children])


def clear(state: State) -> int:
    """Forget everything, roots included; pages detached."""
    tops = [child for root in state.tree.roots.values() for child in root.children_in_order()]
    gone = _remove(state, tops, quiet=True)
    for row in state.table.rows:
        if row is not None:
            row.tip = None
    state.tree.forget_roots()
    _forget_ghosts(state)
    state.log.log_cleared()
    return gone


def forget_below(state: State, root: Node) -> int:
    """Forget all below a root, and all ghosts, which do not say whose they are; pages detached."""
    for number, row in enumerate(state.table.rows):
        if row is not None and row.tip is not None and row.tip.root is root:
            state.table.set_tip(number, None, state.tree)
    gone = _remove(state, list(root.children_in_order()))
    _forget_ghosts(state)
    return gone


def _forget_ghosts(state: State) -> None:
    for room in state.rooms:
        if room.ghosts is not None:
            room.ghosts.forget()


def _remove(state: State, tops: list[Node], quiet: bool = False) -> int:
    """Remove whole subtrees, deepest nodes first; idle pages are freed, held and claimed ones stay their users'."""
    nodes = [node for top in tops for node in subtree(top)]
    _untie(state, set(nodes))
    gone = 0
    for node in nodes:
        for pool in state.pools:
            page = node.pages[pool.group]
            if page is None:
                continue
            unbury(state, pool, node)
            detach(state, pool, page, page.hottest, quiet)
            gone += 1
            if page.holders == 0:
                pool.strand_page(page)
        state.tree.prune(node)
    return gone


def _untie(state: State, nodes: set[Node]) -> None:
    """Rows that end in these nodes commit nothing any more."""
    for row in state.table.rows:
        if row is not None and row.tip in nodes:
            row.tip.tips -= 1
            row.tip = None


def lose(state: State, group: int, number: int, stamp: int) -> bool:
    """The bytes of a page never came: it leaves the tree; held, it lives on as an open page of its holders."""
    page = state.pools[group].page(number)
    pool = state.pools[page.group]
    if page.stamp != stamp or page.is_free:
        return False
    idle = page.is_idle
    if page.node is not None:
        bury(state, pool, page, SPOILT)
        detach(state, pool, page, page.hottest)
    if (page.holders or page.claims) and not (page.stays and page.claims):  # else they are being read
        pool.drop_shadows(page)
    if idle:
        pool.strand_page(page)
    return True
