"""The walk: which leading blocks of a chain are cached, and the partial block after them.

Owns which boundary counts. Changes nothing; knows nothing of rows.
"""

from collections.abc import Sequence

from quire.core.store.reference.hits.partial import best_partial, longest_tail
from quire.core.store.reference.hits.walk_result import Hit
from quire.core.store.reference.keys.chain import WIDTH, Chain
from quire.core.store.reference.pools.group import ALL, Group
from quire.core.store.reference.pools.listing import is_near
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import Node


def walk(state: State, chain: Chain, root: Node | None, usable: int, policy: int, first: int = 0) -> Hit:
    """Look up a chain, ignoring tokens from `usable` on. Policy 0: full blocks, 1: idle leaves too, 2: any.

    Blocks before `first` are held elsewhere: their pages count as present. Pages that are only in the slow tier do not;
    how far the hit would go with them is counted separately. With states the only hits inside a block are stored tails.
    """
    groups, slow, size = state.groups, state.rules.slow, chain.block_size
    usable = min(usable, len(chain))
    if root is None:
        return Hit(groups, [], 0, size, first)
    nodes: list[Node] = []
    near, all_there, read = Edge(groups), Edge(groups), Edge([group for group in groups if not group.current])
    all_full = all(group.tail == ALL for group in groups)
    parent = root
    while (len(nodes) + 1) * size <= usable:
        child = parent.children.get(chain.block(len(nodes)))
        if child is None:
            break
        nodes.append(child)
        had = len(nodes) <= first
        is_there = [had or is_near(page, slow) for page in child.pages]
        near.advance(is_there)
        read.advance([there for there, group in zip(is_there, groups, strict=True) if not group.current])
        all_there.advance([had or page is not None for page in child.pages])
        if all_full and max(all_there.runs) < len(nodes):
            break  # nothing beyond is of use to any group
        parent = child
    hit = Hit(groups, nodes, near.blocks, size, first)
    hit.set_coming(slow, all_there.blocks)
    query = chain.span(near.blocks * size, min((near.blocks + 1) * size, usable))
    if policy and any(group.current for group in groups):
        find_tail(state, hit, root, chain.span(0, usable), policy, [0, *read.good])
    elif policy and query:
        source, matched = best_partial(nodes[near.blocks - 1] if near.blocks else root, query, policy, slow)
        if source is not None:
            hit.set_source(near.blocks, source, matched)
    return hit


def find_tail(state: State, hit: Hit, root: Node, text: bytes, policy: int, depths: Sequence[int]) -> None:
    """The last stored tail that a text goes on behind, where the groups without a state could resume before it."""
    block = state.rules.block_size * WIDTH
    for depth in reversed([depth for depth in depths if depth >= hit.blocks]):
        parent, query = hit.nodes[depth - 1] if depth else root, text[depth * block : (depth + 1) * block - WIDTH]
        source = longest_tail(parent, query, policy, state.rules.slow)
        if source is not None:
            hit.set_source(depth, source, source.size)
            return


class Edge:
    """The boundaries at which every group could resume, block after block; the last one counts."""

    __slots__ = ("_groups", "_leads", "_walked", "good", "runs")

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self._leads = [0] * len(groups)  # leading pages up to the sink
        self._walked = 0
        self.runs = [0] * len(groups)  # pages in a row up to here
        self.good: list[int] = []  # every one of them so far

    @property
    def blocks(self) -> int:
        return self.good[-1] if self.good else 0

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
            self.good.append(self._walked)

    def _is_good(self) -> bool:
        """Every group could resume after this many blocks."""
        for group, run, lead in zip(self._groups, self.runs, self._leads, strict=True):
            tail = self._walked if group.tail == ALL else min(self._walked, group.tail)
            if run < tail or lead < min(self._walked, group.sink):
                return False
        return True
