"""Snapshot: everything that the page shows of one moment, as plain values of bounded size. Knows no HTTP.

                                                most          and without
    pools       cells of slots                  4,096 each    tokens
    prefixes    runs of the tree                160           text
    requests    running / waiting               100 / 50      ids, salts

Owns the bounds and what is shown. The tree is read less often than the rest: it changes slowly, and it is large.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections import defaultdict
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.core.maps import SequenceMap, eviction_order, live_sequences, slots_of_pool, stream_of, tree_of
from quire.core.records.groups import LayerGroup
from quire.core.records.reports.stats import Counts
from quire.core.store.interface import Int32Array
from quire.core.store.mapped import SlotColumn
from quire.viewer.cells import MOST_SCOPES, Bytes, Colour, ages, cells_of, uses
from quire.viewer.labels import RequestNumbers, ScopeLabels
from quire.viewer.prefixes import PrefixTree, prefix_tree
from quire.viewer.source import CacheSource, QueuedRequest

MOST_POOLS = 12
MOST_RUNNING = 100
MOST_WAITING = 50
MOST_HOLDERS = 6  # requests named per prefix
MOST_SHOWN_STEPS = 120
TREE_SECONDS = 2.0  # at least, from one reading of the tree to the next
TREE_SHARE = 0.0025  # of a core that reading it may take
MOVED = (  # counted in pages, since the beginning
    "reused_full", "reused_partial", "missed", "grown", "onboarded", "offloaded", "copied", "dropped", "demoted",
    "copied_down", "prefetched", "reused_pending",
)  # fmt: skip


class Snapshots:
    """Makes snapshots of one source; remembers labels and the last tree."""

    def __init__(self, source: CacheSource, show_tokens: bool = False) -> None:
        self.source, self.cache, self.show_tokens = source, source.cache, show_tokens
        self.numbers, self.scopes = RequestNumbers(), ScopeLabels()
        self._trees: dict[int, PrefixTree] = {}
        self._labels: dict[int, list[str]] = {}  # by stream: the scope of each run
        self._order: list[str] = []  # scopes, those with most blocks first
        self._read = -1e9  # when the trees were last read,
        self._reading = 0.0  # and the seconds of a core it took
        self.reading = 0.0  # the same, of the last snapshot: 0 when it read none

    def make(self, colour: Colour) -> dict[str, Any]:
        """What is so now."""
        now, config = self.source.now(), self.cache.config
        self.reading = 0.0
        if now - self._read >= max(TREE_SECONDS, self._reading / TREE_SHARE):
            began = time.thread_time()
            self._read_trees()
            self._read, self._reading = now, time.thread_time() - began
            self.reading = self._reading
        sequences, waiting = live_sequences(self.cache, MOST_RUNNING), self.source.waiting()
        requests = self._requests(sequences, waiting)  # first: prefixes name them by their numbers
        return {
            "time": round(now, 3),
            "name": self.source.name,
            "block": config.block_size,
            "eviction": config.order,
            "receipts": config.receipts,
            "shows_tokens": self.show_tokens,
            "tiers": [tier.name for tier in config.tiers],
            "groups": [_group(group) for group in config.groups],
            "colour": colour,
            "pools": self._pools(colour),
            "scopes": self._order[:MOST_SCOPES],
            "num_scopes": len(self._order),
            "prefixes": self._prefixes(sequences),
            "blocks": int(sum(tree.blocks[tree.parents < 0].sum() for tree in self._trees.values())),
            "requests": requests,
            "moved": self._moved(),
            "reuse": self._reuse(),
            "steps": self._steps(),
            "regret": self.source.regret(),
        }

    # -- the tree ----------------------------------------------------------------------------------------------------

    def _read_trees(self) -> None:
        blocks: dict[str, int] = defaultdict(int)
        named: dict[int, dict[int, str]] = {}
        own = tree_of(self.cache)
        named[0] = self.scopes.keep(own.scopes)
        self._trees = {0: prefix_tree(own.nodes)}
        if stream_of(self.cache, len(self.cache.config.groups) - 1):  # an encoder's texts have scopes of their own
            self._trees[1], named[1] = prefix_tree(tree_of(self.cache, 1).nodes), {}
        for stream, tree in self._trees.items():
            tops = [named[stream].get(node, "encoder") for node in tree.nodes.tolist()]
            self._labels[stream] = [tops[root] for root in tree.roots.tolist()]
            for number in np.flatnonzero(tree.parents < 0).tolist():
                blocks[tops[number]] += int(tree.blocks[number])
        self._order = sorted(blocks, key=lambda label: (-blocks[label], label))

    def _prefixes(self, sequences: SequenceMap) -> list[list[Any]]:
        """Rows of (parent's row, scope, tokens, depth, blocks, ends, holders, uses, numbers of requests)."""
        tree, labels = self._trees[0], self._labels[0]
        using: dict[int, list[int]] = defaultdict(list)
        ids = [sequence.id for sequence in sequences.handles]
        for id, run in zip(ids, tree.runs(sequences.tips).tolist(), strict=True):
            number = self.numbers.number(id)
            for above in tree.way_up(run) if number is not None else ():
                using[above].append(number)  # type: ignore[arg-type]
        largest = tree.largest()
        facts = (tree.tokens, tree.depths, tree.blocks, tree.ends, tree.holders, tree.uses)
        numbers = np.stack([fact[largest] for fact in facts], axis=1).tolist()
        place = {-1: -1, **{number: row for row, number in enumerate(largest.tolist())}}
        parents = tree.parents[largest].tolist()
        return [
            [place[parent], labels[number], *counts, using.get(number, [])[:MOST_HOLDERS]]
            for number, parent, counts in zip(largest.tolist(), parents, numbers, strict=True)
        ]

    # -- pools -------------------------------------------------------------------------------------------------------

    def _pools(self, colour: Colour) -> list[dict[str, Any]]:
        config = self.cache.config
        firsts = [config.pool_of.index(pool) for pool in range(config.num_pools)]  # one map for all that share it
        pairs = [(tier, group) for tier in range(len(config.tiers)) for group in firsts]
        pairs = [(tier, group) for tier, group in pairs if config.slots_of(tier, group)]
        return [self._pool(tier, group, colour) for tier, group in pairs[:MOST_POOLS]]

    def _pool(self, tier: int, group: int, colour: Colour) -> dict[str, Any]:
        slots = slots_of_pool(self.cache, tier, group)
        cells = cells_of(slots, self._shades(slots, tier, group, colour), colour)
        pools = self.cache.config.pool_of
        return {
            "tier": tier,
            "group": group,
            "groups": [nth for nth, pool in enumerate(pools) if pool == pools[group]],
            "slots": cells.num_slots,
            "per_cell": cells.slots_per_cell,
            "counts": cells.counts,
            "states": _packed(cells.states),
            "shades": _packed(cells.shades),
        }

    def _shades(self, slots: Int32Array, tier: int, group: int, colour: Colour) -> Bytes:
        match colour:
            case "age":
                return ages(len(slots), eviction_order(self.cache, tier, group))
            case "uses":
                return uses(slots)
            case "scope":
                return self._scope_shades(slots, stream_of(self.cache, group))
        return np.empty(0, np.uint8)

    def _scope_shades(self, slots: Int32Array, stream: int) -> Bytes:
        """1 for the scope with most blocks, and so on; 0: none, or one of many small ones."""
        tree, place = self._trees[stream], {label: nth for nth, label in enumerate(self._order[:MOST_SCOPES])}
        shade_of_run = np.array([1 + place.get(label, -1) for label in self._labels[stream]] + [0], np.uint8)
        shades: Bytes = shade_of_run[tree.runs(slots[:, SlotColumn.NODE])]
        return shades

    # -- requests ----------------------------------------------------------------------------------------------------

    def _requests(self, sequences: SequenceMap, waiting: list[QueuedRequest]) -> dict[str, Any]:
        self.numbers.keep([*sequences.ids, *(one.id for one in waiting)])
        totals = sequences.numbers.sum(axis=0, dtype=np.int64).tolist()
        rows = zip(sequences.handles, sequences.numbers.tolist(), sequences.reused_from.tolist(), strict=False)
        return {
            "running": len(sequences.ids),
            "waiting": len(waiting),
            "totals": totals,  # tokens reused, of prompts, known, computed; blocks
            "rows": [
                [self.numbers.number(one.id), self.scopes.label(one.request.scope), *numbers, reused]
                for one, numbers, reused in rows
            ],
            "waits": [
                [self.numbers.number(one.id), one.tokens, one.found, round(one.seconds, 1)]
                for one in waiting[:MOST_WAITING]
            ],
        }

    # -- numbers -----------------------------------------------------------------------------------------------------

    def _moved(self) -> list[dict[str, int]]:
        """Pages by what became of them, by layer group."""
        counted: list[Counts] = [self.cache.stats(group) for group in range(len(self.cache.config.groups))]
        return [{name: getattr(counts, name) for name in MOVED} for counts in counted]

    def _reuse(self) -> dict[str, Any]:
        tally = self.source.tally
        return {
            "requests": tally.requests,
            "tokens": tally.tokens,
            "reused": tally.reused,
            "missed": {cause: count for cause, count in tally.missed.items() if count},
        }

    def _steps(self) -> list[list[Any]]:
        """Rows of (time, tokens, milliseconds by part)."""
        steps = list(self.source.steps)
        last = islice(steps, max(0, len(steps) - MOST_SHOWN_STEPS), None)
        return [
            [round(step.time, 3), step.tokens, {part: round(1e3 * spent, 2) for part, spent in step.seconds.items()}]
            for step in last
        ]


def _group(group: LayerGroup) -> dict[str, Any]:
    return {"name": group.name, "kind": group.kind, "window": group.window or 0, "page_bytes": group.page_bytes}


def _packed(numbers: NDArray[np.uint8]) -> str:
    return b64encode(numbers.tobytes()).decode("ascii")
