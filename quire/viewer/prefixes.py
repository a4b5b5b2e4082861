"""Prefixes: the tree of blocks with its unbranched runs joined, and the largest of them. Numbers only; no tokens.

            root ── 12 blocks ─┬─ 3 blocks ── ...        a run is a prefix: all that continue it share its pages
                               └─ 40 blocks

Owns the joining, in NumPy, without a loop over nodes. What it is given may be torn (a tree that changed while it was
read), so every loop is bounded and a parent that is not there makes a root.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.core.store.interface import Int32Array
from quire.core.store.mapped import NodeColumn

Ints = NDArray[np.int64]
MOST_PREFIXES = 160  # that are shown
MOST_LEVELS = 512  # below which nothing is added up
ROUNDS = 24  # pointers are followed 2 ** ROUNDS steps at most


class NodeIndex:
    """Node number -> its place among those that were read."""

    def __init__(self, ids: Int32Array) -> None:
        self._sorted = ids
        self._table: Int32Array | None = None
        highest = int(ids.max(initial=-1))
        if highest < 4 * len(ids) + 1024:  # numbers are given again in the compiled store, so it is nearly full
            self._table = np.full(highest + 2, -1, np.int32)  # the last one stands for those that are not there
            self._table[ids] = np.arange(len(ids), dtype=np.int32)

    def places(self, nodes: Int32Array) -> Int32Array:
        """-1: it is not there."""
        if not len(self._sorted):
            return np.full(len(nodes), -1, np.int32)
        if self._table is not None:
            return self._table[np.clip(nodes, -1, len(self._table) - 1)]  # -1 is the last one
        found = np.minimum(np.searchsorted(self._sorted, nodes), len(self._sorted) - 1)
        return np.where(self._sorted[found] == nodes, found, -1).astype(np.int32)


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Runs of nodes by number; a parent comes with a number of -1 where the run is a root."""

    nodes: Ints  # the first node of each run
    parents: Ints
    roots: Ints  # number of the run at the top
    levels: Ints
    tokens: Ints  # of the run alone
    depths: Ints  # tokens from the beginning to its end
    blocks: Ints  # of the run and all below it
    ends: Ints  # of the texts that go through it: runs below it, or itself, that nothing continues
    holders: Ints  # most sequences that hold one of its pages
    uses: Ints  # most uses of a page of it; -1: not counted
    index: NodeIndex
    run_of: Int32Array  # of every node, by its place in the index; -1: none

    def largest(self) -> Ints:
        """Numbers of the runs that stand for most blocks, parents before their children."""
        first = np.lexsort((self.levels, -self.blocks))[:MOST_PREFIXES]
        shown: set[int] = set()
        kept = []
        for number in first.tolist():  # of a torn tree some have no parent here
            if self.parents[number] < 0 or int(self.parents[number]) in shown:
                shown.add(number)
                kept.append(number)
        return np.array(kept, np.int64)

    def runs(self, nodes: Int32Array) -> Int32Array:
        """The run of each of these nodes, -1: none."""
        found: Int32Array = np.append(self.run_of, np.int32(-1))[self.index.places(nodes)]  # -1 is the last one
        return found

    def way_up(self, number: int) -> list[int]:
        """A run and those above it, up to its root."""
        found: list[int] = []
        while number >= 0 and len(found) < MOST_LEVELS:
            found.append(number)
            number = int(self.parents[number])
        return found


def prefix_tree(nodes: Int32Array) -> PrefixTree:
    """The runs of a tree as `Store.map_nodes` gives it."""
    ids = nodes[:, NodeColumn.NODE]
    index = NodeIndex(ids)
    parent = index.places(nodes[:, NodeColumn.PARENT])
    kids = np.bincount(parent + 1, minlength=len(ids) + 1)[1:]
    inner = (parent >= 0) & (kids[parent] == 1) & (parent[parent] >= 0)
    head = _followed(np.where(inner, parent, np.arange(len(ids), dtype=np.int32)))
    tops = np.flatnonzero(~inner)
    number = np.full(len(ids), -1, np.int32)
    number[tops] = np.arange(len(tops), dtype=np.int32)
    run = number[head]  # -1 in a circle, which only a torn tree has
    run_parent = np.where(parent[tops] >= 0, run[parent[tops]], -1).astype(np.int64)
    return _measured(nodes, tops, run, run_parent, index)


def _followed(pointer: Int32Array) -> Int32Array:
    """Each pointer followed to its end."""
    for _ in range(ROUNDS):
        further = pointer[pointer]
        if np.array_equal(further, pointer):
            break
        pointer = further
    return pointer


def _measured(nodes: Int32Array, tops: Ints, run: Int32Array, parents: Ints, index: NodeIndex) -> PrefixTree:
    """Lengths, depths and what is below each run."""
    count = len(tops)
    tokens = np.bincount(run + 1, nodes[:, NodeColumn.TOKENS], count + 1)[1:].astype(np.int64)
    blocks = np.bincount(run + 1, minlength=count + 1)[1:]
    blocks[nodes[tops, NodeColumn.TOKENS] == 0] -= 1  # a root has no tokens, and is not a block
    depths, levels, roots = _depths(tokens, parents)
    has_child = np.zeros(count, bool)
    has_child[parents[parents >= 0]] = True
    ends = (~has_child & (parents >= 0)).astype(np.int64)
    order = np.argsort(-levels, kind="stable")
    edges = np.flatnonzero(np.diff(levels[order])) + 1
    for level in np.split(order, edges):
        below = level[(parents[level] >= 0) & (levels[level] <= MOST_LEVELS)]
        np.add.at(blocks, parents[below], blocks[below])
        np.add.at(ends, parents[below], ends[below])
    holders, uses = nodes[tops, NodeColumn.HOLDERS].astype(np.int64), nodes[tops, NodeColumn.USES].astype(np.int64)
    return PrefixTree(
        nodes[tops, NodeColumn.NODE].astype(np.int64), parents, roots, levels, tokens, depths, blocks, ends,
        holders, uses, index, run,
    )  # fmt: skip


def _depths(tokens: Ints, parents: Ints) -> tuple[Ints, Ints, Ints]:
    """Tokens and runs from the top down to the end of each, and which run is at the top."""
    outside = len(parents)  # a run above all roots, of no length
    up = np.append(np.where(parents >= 0, parents, outside), outside)
    top = np.append(np.where(parents >= 0, parents, np.arange(outside)), outside)
    depths, levels = np.append(tokens, 0), np.append(np.ones(outside, np.int64), 0)
    for _ in range(ROUNDS):
        if (up == outside).all():
            break
        depths, levels = depths + depths[up], levels + levels[up]
        up, top = up[up], top[top]
    return depths[:-1], levels[:-1], top[:-1]
