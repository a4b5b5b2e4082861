"""Prefixes: runs of the tree, against the same counted one by one; and trees that nobody has."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from quire import Cache, CacheConfig, Request, Scope, TierConfig
from quire.core.maps import tree_of
from quire.core.store import StoreName
from quire.core.store.mapped import NodeColumn
from quire.viewer.prefixes import MOST_PREFIXES, PrefixTree, prefix_tree

NODE, PARENT, TOKENS = NodeColumn.NODE, NodeColumn.PARENT, NodeColumn.TOKENS


def grown(store: StoreName, seed: int) -> Cache:
    """A cache with many texts that begin alike."""
    rng = random.Random(seed)
    config = CacheConfig((TierConfig("device", 400),), block_size=2, max_sequences=4, max_length=64)
    cache = Cache(config, store=store)
    texts: list[list[int]] = [[]]
    for number in range(60):
        text = rng.choice(texts)[: 2 * rng.randrange(12)] + [rng.randrange(4) for _ in range(rng.randrange(1, 16))]
        texts.append(text[:50])
        batch = cache.add_sequence_batch([Request(number, np.array(texts[-1], np.int32), Scope(lora=rng.randrange(2)))])
        cache.finish(batch.plan)
        cache.commit(batch.sequences[0])
        if number % 20:
            cache.release(batch.sequences[0])
    return cache


def told(tree: PrefixTree) -> set[tuple[int, ...]]:
    """First node, first node of the parent, tokens, depth, blocks, ends of every run."""
    above = [int(tree.nodes[parent]) if parent >= 0 else -1 for parent in tree.parents.tolist()]
    columns = (tree.nodes, above, tree.tokens, tree.depths, tree.blocks, tree.ends)
    return set(zip(*(np.asarray(column).tolist() for column in columns), strict=True))


def counted(nodes: Any) -> set[tuple[int, ...]]:
    """The same, by walking the tree."""
    rows = {row[NODE]: row for row in nodes.tolist()}
    children: dict[int, list[int]] = {number: [] for number in [-1, *rows]}
    for row in rows.values():
        children[row[PARENT]].append(row[NODE])
    found: set[tuple[int, ...]] = set()

    def walk(first: int, above: int, depth: int) -> tuple[int, int]:
        tokens, blocks, last = rows[first][TOKENS], int(rows[first][TOKENS] > 0), first
        while above >= 0 and len(children[last]) == 1:  # a root is a run of its own
            last = children[last][0]
            tokens, blocks = tokens + rows[last][TOKENS], blocks + 1
        below = [walk(child, first, depth + tokens) for child in children[last]]
        blocks += sum(one for one, _ in below)
        ends = sum(one for _, one in below) if below else int(above >= 0)
        found.add((first, above, tokens, depth + tokens, blocks, ends))
        return blocks, ends

    for root in children[-1]:
        walk(root, -1, 0)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_runs_are_those_of_the_tree(store: StoreName, seed: int) -> None:
    nodes = tree_of(grown(store, seed)).nodes
    tree = prefix_tree(nodes)
    assert told(tree) == counted(nodes) and len(tree.nodes) > 20
    assert tree.blocks[tree.parents < 0].sum() == (nodes[:, TOKENS] > 0).sum()
    np.testing.assert_array_equal(tree.parents[tree.roots], -1)


def test_a_node_leads_to_its_runs(store: StoreName) -> None:
    nodes = tree_of(grown(store, 1)).nodes
    tree, parent = prefix_tree(nodes), dict(nodes[:, [NODE, PARENT]].tolist())
    for node, run in zip(nodes[:, NODE].tolist(), tree.runs(nodes[:, NODE]).tolist(), strict=True):
        way = tree.way_up(run)
        climbed = [node]
        while parent[climbed[-1]] >= 0:
            climbed.append(parent[climbed[-1]])
        assert set(tree.nodes[way].tolist()) <= set(climbed) and tree.parents[way[-1]] == -1
    assert tree.runs(np.array([-1, 10**6], np.int32)).tolist() == [-1, -1]


def test_the_largest_come_with_their_parents(store: StoreName) -> None:
    tree = prefix_tree(tree_of(grown(store, 2)).nodes)
    largest = tree.largest().tolist()
    assert len(largest) == min(MOST_PREFIXES, len(tree.nodes))
    for place, number in enumerate(largest):
        assert tree.parents[number] < 0 or int(tree.parents[number]) in largest[:place]


def test_an_empty_tree() -> None:
    tree = prefix_tree(np.empty((0, 6), np.int32))
    assert len(tree.largest()) == 0 and tree.runs(np.array([3, -1], np.int32)).tolist() == [-1, -1]
    assert tree.way_up(-1) == []


def test_numbers_far_apart() -> None:
    """As the reference store's are after a while: they are never given again."""
    nodes = np.array([[7, -1, 0, 0, 0, -1], [9_000_000, 7, 4, 0, 0, -1], [2_000_000_000, 9_000_000, 4, 1, 1, -1]])
    tree = prefix_tree(nodes.astype(np.int32))
    assert told(tree) == {(7, -1, 0, 0, 2, 1), (9_000_000, 7, 8, 8, 2, 1)}
    assert tree.runs(np.array([2_000_000_000, 8], np.int32)).tolist() == [1, -1]


@pytest.mark.parametrize("seed", range(20))
def test_a_torn_tree_ends_nothing(seed: int) -> None:
    """Parents that are not there, circles, nodes twice: whatever is read while a tree changes."""
    rng = np.random.default_rng(seed)
    number = int(rng.integers(1, 60))
    nodes = rng.integers(-1, 40, (number, 6)).astype(np.int32)
    nodes[:, NODE], nodes[:, TOKENS] = np.sort(rng.integers(0, 40, number)), 4
    tree = prefix_tree(nodes)
    largest = tree.largest()
    assert len(largest) <= MOST_PREFIXES and all(len(tree.way_up(run)) <= 512 for run in tree.runs(nodes[:, NODE]))
