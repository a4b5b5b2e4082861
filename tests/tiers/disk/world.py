"""A writer of random blocks and pages through a DiskFolder, and what must be found again. Knows no crash in particular.

Bytes of a page follow from its block and group, so that a page which comes back can be judged by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from quire.core.records.lasting import BlockNodes, LastingChanges, LastingPages
from quire.tiers import TierError
from quire.tiers.disk import DiskFolder, DiskIO, DiskLimits
from quire.tiers.disk.calls.files import REAL_FILES, Files
from quire.tiers.disk.log.manifest_contents import Contents

FINGERPRINT = bytes(range(32))
PAGE_BYTES = (96, 5000)
NUM_SLOTS = (12, 6)
BLOCK = 4


def tokens_of(node: int) -> list[int]:
    """Tokens of a block."""
    return [node * 7 % 1000 + nth for nth in range(BLOCK)]


def page_of(node: int, group: int, page_bytes: Sequence[int] = PAGE_BYTES) -> np.ndarray:
    """Bytes of a page."""
    return np.random.default_rng((node, group)).integers(0, 256, (1, page_bytes[group]), np.uint8)


@dataclass(frozen=True)
class Shape:
    """Sizes of a folder's groups, and whether they share their slots."""

    page_bytes: tuple[int, int] = PAGE_BYTES
    num_slots: tuple[int, int] = NUM_SLOTS
    pool_of: tuple[int, int] = (0, 1)

    def open(self, folder: str | Path, io: DiskIO, files: Files = REAL_FILES) -> DiskFolder:
        """A folder of this shape."""
        limits = DiskLimits(pool_of=self.pool_of)
        return DiskFolder(folder, FINGERPRINT, self.page_bytes, self.num_slots, io=io, files=files, limits=limits)


APART = Shape()
POOLED = Shape((96, 96), (12, 12), (0, 0))


@dataclass
class World:
    """What was told: blocks, who has which slot, and the state at the last fence."""

    shape: Shape = APART
    next_node: int = 1
    parents: dict[int, int] = field(default_factory=dict)
    pages: dict[tuple[int, int], int] = field(default_factory=dict)  # (group, slot) -> node
    durable: dict[tuple[int, int], int] = field(default_factory=dict)  # those before the last fence, not freed since
    tell: Callable[[World], None] = lambda world: None  # somebody outside wants to know, before it may show

    def step(self, folder: DiskFolder, dice: np.random.Generator) -> None:
        """Do one thing."""
        what = dice.random()
        if what < 0.6:
            self.store(folder, dice)
        elif what < 0.75:
            self.free(folder, dice)
        elif what < 0.93:
            self.fence(folder)
        else:
            folder.manifest.compact()

    def store(self, folder: DiskFolder, dice: np.random.Generator) -> None:
        """Some new blocks with pages, in slots that are free or become so."""
        count = int(dice.integers(1, 4))
        nodes = list(range(self.next_node, self.next_node + count))
        live = sorted(set(self.pages.values()))
        parents = [
            int(dice.choice(live)) if live and dice.random() < 0.7 else -1 - int(dice.integers(2)) for _ in nodes
        ]
        if dice.random() < 0.5:
            parents[1:] = nodes[:-1]  # a chain
        self.next_node += count
        self.parents.update(zip(nodes, parents, strict=True))
        places: list[tuple[int, int, int]] = []
        for node in nodes:
            for group in range(2):
                if dice.random() < 0.8:
                    slot = int(dice.integers(self.shape.num_slots[group]))
                    if all(self.at(group, slot) != self.at(*place[:2]) for place in places):
                        places.append((group, slot, node))
        taken = {self.at(*place[:2]) for place in places}
        freed = [place for place in self.pages if self.at(*place) in taken]
        self.drop(freed)
        self.tell(self)
        folder.record(changes(freed=freed))
        folder.before_writing()
        for group in range(2):
            ours = [(slot, node) for where, slot, node in places if where == group]
            data = [page_of(node, group, self.shape.page_bytes) for _, node in ours]
            folder.tier.write(group, [slot for slot, _ in ours], data)
        left = folder.record(self.changes(places))
        assert not len(left.slot)
        self.pages.update({(group, slot): node for group, slot, node in places})

    def at(self, group: int, slot: int) -> tuple[int, int]:
        """Where a page's bytes are."""
        return self.shape.pool_of[group], slot

    def free(self, folder: DiskFolder, dice: np.random.Generator) -> None:
        """Some pages go."""
        gone = [place for place in self.pages if dice.random() < 0.3]
        self.drop(gone)
        self.tell(self)
        folder.record(changes(freed=gone))

    def fence(self, folder: DiskFolder) -> None:
        """What is there is durable from now on."""
        folder.fence()
        self.durable = dict(self.pages)
        self.tell(self)

    def drop(self, gone: list[tuple[int, int]]) -> None:
        for place in gone:
            del self.pages[place]
            self.durable.pop(place, None)

    def changes(self, places: list[tuple[int, int, int]]) -> LastingChanges:
        """The pages, and the blocks above them that were not told, or whose pages were gone meanwhile."""
        wanted: set[int] = set()
        for _, _, node in places:
            while node > 0 and node not in wanted:
                wanted.add(node)
                node = self.parents[node]
        return changes(nodes=[(node, self.parents[node]) for node in sorted(wanted)], pages=places)

    def reopened(self, contents: Contents) -> None:
        """The process is another one: what was found is what there is."""
        found = zip(
            contents.pages.group.tolist(), contents.pages.slot.tolist(), contents.pages.node.tolist(), strict=True
        )
        self.pages = {(group, slot): node for group, slot, node in found}
        self.durable = dict(self.pages)
        self.next_node = max(contents.nodes.number.tolist(), default=0) + 1
        self.parents = {node: parent for node, parent in self.parents.items() if node < self.next_node}

    def judge(self, folder: DiskFolder, bad: frozenset[tuple[int, int]] = frozenset()) -> None:
        """Everything durable is there, everything there is right; `bad`: pages that were damaged on purpose."""
        contents = folder.contents
        numbers = contents.nodes.number.tolist()
        for place, number in enumerate(numbers):
            start, end = contents.nodes.start[place : place + 2].tolist()
            assert contents.nodes.tokens[start:end].tolist() == tokens_of(number)
            parent = int(contents.nodes.parent[place])
            above = self.parents[number]
            if parent > 0:
                assert parent == above and parent in numbers[:place]
            else:
                assert contents.nodes.roots[-1 - parent] == root(above)
        where = [self.at(group, slot) for group, slot, _ in places_of(contents)]
        assert len(set(where)) == len(where), "two pages in one slot"
        found = {}
        for group, slot, node in places_of(contents):
            assert node in numbers
            out = np.zeros((1, self.shape.page_bytes[group]), np.uint8)
            try:
                folder.tier.read(group, [slot], [out])
            except TierError:
                assert (group, slot) in bad, f"slot {slot} of group {group} cannot be read"
                continue
            assert np.array_equal(out, page_of(node, group, self.shape.page_bytes)), (
                f"wrong bytes in slot {slot} of group {group}"
            )
            found[group, slot] = node
        missing = {place: node for place, node in self.durable.items() if found.get(place) != node and place not in bad}
        assert not missing, f"durable, and not found: {missing}"


def places_of(contents: Contents) -> list[tuple[int, int, int]]:
    """Group, slot and node of every page."""
    pages = contents.pages
    return list(zip(pages.group.tolist(), pages.slot.tolist(), pages.node.tolist(), strict=True))


def root(parent: int) -> bytes:
    """The digest of a root."""
    return bytes([200 + parent]) * 64


def changes(
    freed: list[tuple[int, int]] | None = None,
    nodes: list[tuple[int, int]] | None = None,
    pages: list[tuple[int, int, int]] | None = None,
) -> LastingChanges:
    """As arrays. `nodes`: number and parent; a parent below 0 is a root, by its own number."""
    freed, nodes, pages = freed or [], nodes or [], pages or []
    roots = sorted({parent for _, parent in nodes if parent < 0})
    parents = [-1 - roots.index(parent) if parent < 0 else parent for _, parent in nodes]
    tokens = [token for node, _ in nodes for token in tokens_of(node)]
    words = [place for place, token in enumerate(tokens) if token % 5 == 0]
    blocks = BlockNodes(
        np.array([node for node, _ in nodes], np.int64), np.array(parents, np.int64),
        np.arange(len(nodes) + 1, dtype=np.int64) * BLOCK, np.array(tokens, np.int32),
        np.array([[1, tokens[place], 2] for place in words], np.uint64).reshape(-1, 3), np.array(words, np.int64),
        tuple(root(parent) for parent in roots),
    )  # fmt: skip
    columns = np.array([*pages, (0, 0, 0)], np.int64)[:-1].T
    gone = np.array([*freed, (0, 0)], np.int32)[:-1].T
    return LastingChanges(
        gone[0], gone[1], blocks, LastingPages(columns[0].astype(np.int32), columns[1].astype(np.int32), columns[2])
    )
