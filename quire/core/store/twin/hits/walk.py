"""The walk: which leading blocks of a chain are cached, and the partial block after them.

Owns which boundary counts. Changes nothing; knows nothing of rows.
"""

from collections.abc import Sequence

from quire.core.store.twin.hits.partial import best_partial
from quire.core.store.twin.hits.walk_result import Hit
from quire.core.store.twin.keys.chain import Chain
from quire.core.store.twin.pools.group import ALL, Group
from quire.core.store.twin.pools.listing import is_near
from quire.core.store.twin.pools.state import State
from quire.core.store.twin.tree.node import Node


def walk(state: State, chain: Chain, root: Node | None, usable: int, policy: int, first: int = 0) -> Hit:
    """Look up a chain; tokens from `usable` on are not looked at. Policy 0: full blocks, 1: idle leaves too, 2: any.

    Blocks before `first` are somebody else's: their pages count as there. What is in the slow tier only is not there;
    how far the hit would go with it is counted beside.
    """
    groups, slow, size = state.groups, state.rules.slow, chain.block_size
    usable = min(usable, len(chain))
    if root is None:
        return Hit(groups, [], 0, size, first)
    nodes: list[Node] = []
    near, all_there = Edge(groups), Edge(groups)
    all_full = all(group.tail == ALL for group in groups)
    parent = root
    while (len(nodes) + 1) * size <= usable:
        child = parent.children.get(chain.block(len(nodes)))
        if child is None:
            break
        nodes.append(child)
        had = len(nodes) <= first
        near.advance([had or is_near(page, slow) for page in child.pages])
        all_there.advance([had or page is not None for page in child.pages])
        if all_full and max(all_there.runs) < len(nodes):
            break  # nothing beyond is of use to any group
        parent = child
    blocks = near.blocks
    hit = Hit(groups, nodes, blocks, size, first)
    hit.set_coming(slow, all_there.blocks)
    query = chain.span(blocks * size, min((blocks + 1) * size, usable))
    if policy and query and not any(group.current for group in groups):  # a state has no partial blocks
        source, matched = best_partial(nodes[blocks - 1] if blocks else root, query, policy, slow)
        if source is not None:
            hit.set_source(source, matched)
    return hit


class Edge:
    """The last boundary up to which every group could resume, block after block."""

    __slots__ = ("_groups", "_leads", "_walked", "blocks", "runs")

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self._leads = [0] * len(groups)  # leading pages up to the sink
        self._walked = 0
        self.runs = [0] * len(groups)  # pages in a row up to here
        self.blocks = 0

    def advance(self, there: list[bool]) -> None:
        """Count one more block: of which groups there is a page."""
        self._walked += 1
        for place, group in enumerate(self._groups):
            if not there[place]:
                self.runs[place] = 0
                continue
            self.runs[place] += 1
            if self._leads[place] == self._walked - 1 and self._leads[place] < group.sink:
                self._leads[place] += 1
        if self._is_good():
            self.blocks = self._walked

    def _is_good(self) -> bool:
        """Every group could resume after this many blocks."""
        for group, run, lead in zip(self._groups, self.runs, self._leads, strict=True):
            tail = self._walked if group.tail == ALL else min(self._walked, group.tail)
            if run < tail or lead < min(self._walked, group.sink):
                return False
        return True
