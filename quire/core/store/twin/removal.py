"""Parts of the tree that go at once: a chain's end, or everything.

Owns the order of removal. Refuses while a claim rests on what would go: the hit would be left with dead pages.
"""

from quire.core.store.twin.chain import Chain
from quire.core.store.twin.parts import Parts
from quire.core.store.twin.tree import Node, subtree


def truncate(parts: Parts, root: Node, chain: Chain, usable: int, keep: int) -> int:
    """Forget what is stored along a chain from the first block that starts at `keep` or later; pages detached."""
    size = parts.rules.block_size
    usable = min(usable, len(chain))
    parent, block = root, 0
    while block * size < keep:
        child = parent.children.get(chain.block(block)) if (block + 1) * size <= usable else None
        if child is None:
            return 0
        parent, block = child, block + 1
    first = block * size
    starts = (chain.span(first, end) for end in range(first + 1, min(first + size, usable) + 1))
    return _remove(parts, [parent.children[start] for start in starts if start in parent.children])


def clear(parts: Parts) -> int:
    """Forget everything, roots included; pages detached."""
    tops = [child for root in parts.tree.roots.values() for child in root.children_in_order()]
    gone = _remove(parts, tops, quiet=True)
    for row in parts.table.rows:
        if row is not None:
            row.tip = None
    parts.tree.forget_roots()
    parts.events.cleared()
    return gone


def _remove(parts: Parts, tops: list[Node], quiet: bool = False) -> int:
    """Remove whole subtrees, deepest nodes first; idle pages are freed, held ones become open."""
    nodes = [node for top in tops for node in subtree(top)]
    if any(page is not None and page.claims for node in nodes for page in node.pages):
        raise ValueError("a claim rests on what would be removed: drop the claims first")
    _untie(parts, set(nodes))
    gone = 0
    for node in nodes:
        for pool in parts.pools:
            page = node.pages[pool.group]
            if page is None:
                continue
            pool.detach(page, quiet)
            gone += 1
            if page.holders == 0:
                pool.free(page)
        parts.tree.prune(node)
    return gone


def _untie(parts: Parts, nodes: set[Node]) -> None:
    """Rows that end in these nodes commit nothing any more."""
    for row in parts.table.rows:
        if row is not None and row.tip in nodes:
            row.tip.tips -= 1
            row.tip = None
