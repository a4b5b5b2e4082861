"""The walk: which leading blocks of a chain are cached, and the partial block after them.

Owns which boundary counts. Changes nothing; knows nothing of rows.
"""

from collections.abc import Sequence

from quire.core.store.twin.hits.partial import best_partial
from quire.core.store.twin.hits.walk_result import Hit
from quire.core.store.twin.keys.chain import Chain
from quire.core.store.twin.pools.group import ALL, Group
from quire.core.store.twin.tree.node import Node


def walk(groups: Sequence[Group], chain: Chain, root: Node | None, usable: int, policy: int, first: int = 0) -> Hit:
    """Look up a chain; tokens from `usable` on are not looked at. Policy 0: full blocks, 1: idle leaves too, 2: any.

    Blocks before `first` are somebody else's: their pages count as there.
    """
    size = chain.block_size
    usable = min(usable, len(chain))
    if root is None:
        return Hit(groups, [], 0, size, first)
    nodes: list[Node] = []
    runs, leads = [0] * len(groups), [0] * len(groups)
    all_full = all(group.tail == ALL for group in groups)
    parent, blocks = root, 0
    while (len(nodes) + 1) * size <= usable:
        child = parent.children.get(chain.block(len(nodes)))
        if child is None:
            break
        nodes.append(child)
        _advance(groups, nodes, runs, leads, len(nodes) <= first)
        if _is_good(groups, len(nodes), runs, leads):
            blocks = len(nodes)
        if all_full and max(runs) < len(nodes):
            break  # nothing beyond is of use to any group
        parent = child
    hit = Hit(groups, nodes, blocks, size, first)
    query = chain.span(blocks * size, min((blocks + 1) * size, usable))
    if policy and query and not any(group.current for group in groups):  # a state has no partial blocks
        source, matched = best_partial(nodes[blocks - 1] if blocks else root, query, policy)
        if source is not None:
            hit.set_source(source, matched)
    return hit


def _advance(groups: Sequence[Group], nodes: list[Node], runs: list[int], leads: list[int], had: bool) -> None:
    """Count the newest node: pages in a row up to here, and leading pages up to the sink; `had`: elsewhere, all."""
    for place, group in enumerate(groups):
        if nodes[-1].pages[place] is None and not had:
            runs[place] = 0
            continue
        runs[place] += 1
        if leads[place] == len(nodes) - 1 and leads[place] < group.sink:
            leads[place] += 1


def _is_good(groups: Sequence[Group], blocks: int, runs: list[int], leads: list[int]) -> bool:
    """Every group could resume after this many blocks."""
    for group, run, lead in zip(groups, runs, leads, strict=True):
        tail = blocks if group.tail == ALL else min(blocks, group.tail)
        if run < tail or lead < min(blocks, group.sink):
            return False
    return True
