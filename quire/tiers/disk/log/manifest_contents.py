"""From the frames of a manifest to what it means: blocks and pages that are there. Owns the rules by which later
records outdo earlier ones and by which damage spreads: what rests on a block that is missing is missing too. Reads
no file.

Everything here works on whole arrays: a million pages take about a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.core.records.lasting import BlockNodes, LastingPages
from quire.tiers.base import first_of
from quire.tiers.disk.log.frames import CHANGES, Log
from quire.tiers.disk.log.records import Changes, unpack_changes
from quire.tiers.disk.pages.slots import Sums

Index = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Contents:
    """What is on disk: blocks that pages need, pages with their checksums, and which of them a fence covers."""

    nodes: BlockNodes
    pages: LastingPages
    sums: Sums
    fenced: Mask  # [pages] those that were on disk for certain
    orphans: int  # pages that a fence covered, but whose block or one above it is missing
    unreadable: int  # frames with sound checksums that make no sense
    dead: int  # records that say nothing any more
    last_number: int  # the highest of all recorded blocks, dead ones included

    def only(self, kept: Mask) -> Contents:
        """The same with these pages alone, and the blocks that they need."""
        pages = only(self.pages, kept)
        nodes = _needed(self.nodes, pages.node)[0]
        return Contents(nodes, pages, self.sums[kept], self.fenced[kept], 0, 0, 0, self.last_number)


def read_log(log: Log, pool_of: Sequence[int] = ()) -> Contents:
    """All that the sound frames say together. `pool_of`: groups of one number have the same slots; (): none have."""
    records = [frame for frame in log.frames if frame.kind == CHANGES]
    read = [(unpack_changes(frame.payload), frame.number < log.covered) for frame in records]
    sound = [(changes, fenced) for changes, fenced in read if changes is not None]
    frames = [changes for changes, _ in sound]
    pages, sums, fenced = _last_pages(frames, [fenced for _, fenced in sound], pool_of)
    if log.gaps:  # the record that freed a slot may be lost, and the page be somewhere else by now
        once = _last_of(pages.node << 8 | pages.group)
        pages, sums, fenced = only(pages, once), sums[once], fenced[once]
    every = _recorded_once(_joined_nodes(frames))
    if log.gaps:
        every = _without_twins(every)
    nodes, reachable = _needed(every, pages.node)
    recorded = sum(len(frame.sums) + len(frame.changes.freed_slot) for frame in frames)
    last = int(every.number.max(initial=0))
    dead = len(every.number) - len(nodes.number) + recorded - len(pages.slot)
    orphans = int(np.count_nonzero(~reachable & fenced))  # others came after the last fence: a power cut explains them
    if not reachable.all():
        pages = only(pages, reachable)
        sums, fenced = sums[reachable], fenced[reachable]
    return Contents(nodes, pages, sums, fenced, orphans, len(read) - len(sound), dead, last)


def slot_keys(group: NDArray[np.int32], slot: NDArray[np.int32], pool_of: Sequence[int]) -> Index:
    """A number per slot: equal for groups that have the same slots, and for no others."""
    pool = group.astype(np.int64)
    if len(pool_of):
        named = (pool >= 0) & (pool < len(pool_of))  # groups that there are no more have slots of their own
        pool = np.where(named, np.array(first_of(pool_of), np.int64)[np.where(named, pool, 0)], pool)
    keys: Index = pool << 32 | slot
    return keys


def _last_pages(
    frames: Sequence[Changes], fenced: Sequence[bool], pool_of: Sequence[int]
) -> tuple[LastingPages, Sums, Mask]:
    """Per slot what the last record says of it, whichever group's it is; freed ones are left out."""
    group, slot, node, sums, mark = (list[NDArray[Any]]() for _ in range(5))
    for frame, sure in zip(frames, fenced, strict=True):
        freed, came = len(frame.changes.freed_slot), len(frame.changes.pages.slot)
        group += [frame.changes.freed_group, frame.changes.pages.group]
        slot += [frame.changes.freed_slot, frame.changes.pages.slot]
        node += [np.full(freed, -1, np.int64), frame.changes.pages.node]
        sums += [np.zeros(freed, np.uint64), frame.sums]
        mark.append(np.full(freed + came, sure))
    groups, slots = _join(group, np.int32), _join(slot, np.int32)
    last = _last_of(slot_keys(groups, slots, pool_of))
    nodes = _join(node, np.int64)
    last = last[nodes[last] > 0]
    pages = LastingPages(groups[last], slots[last], nodes[last])
    return pages, _join(sums, np.uint64)[last], _join(mark, np.bool_)[last]


def _joined_nodes(frames: Sequence[Changes]) -> BlockNodes:
    """The blocks of all frames, one behind the other, with one list of roots."""
    roots: dict[bytes, int] = {}
    parents, starts, words_at, base = [], [np.zeros(1, np.int64)], [], 0
    for frame in frames:
        nodes = frame.changes.nodes
        place = np.array([roots.setdefault(root, len(roots)) for root in nodes.roots], np.int64)
        parent = np.array(nodes.parent, np.int64)
        top = parent < 0
        if top.any():
            known = -1 - parent[top] < len(place)
            parent[top] = np.where(known, -1 - place[np.where(known, -1 - parent[top], 0)], 0) if len(place) else 0
        parents.append(parent)
        starts.append(nodes.start[1:] + base)
        words_at.append(nodes.word_at + base)
        base += len(nodes.tokens)
    every = [frame.changes.nodes for frame in frames]
    return BlockNodes(
        _join([nodes.number for nodes in every], np.int64), _join(parents, np.int64), _join(starts, np.int64),
        _join([nodes.tokens for nodes in every], np.int32),
        _join([nodes.words.reshape(-1) for nodes in every], np.uint64).reshape(-1, 3),
        _join(words_at, np.int64), tuple(roots),
    )  # fmt: skip


def _recorded_once(nodes: BlockNodes) -> BlockNodes:
    """A block that was recorded again stands where it was recorded first: before those under it."""
    if np.all(np.diff(nodes.number) > 0):
        return nodes
    first = np.unique(nodes.number, return_index=True)[1]
    return nodes if len(first) == len(nodes.number) else _select(nodes, np.sort(first))


def _without_twins(nodes: BlockNodes) -> BlockNodes:
    """Where two blocks under one parent have one text, the later one: the pages of the earlier had been freed, and the
    record of that is lost."""
    texts = _text_sums(nodes)
    last = _last_of(np.unique(np.stack([nodes.parent, texts], axis=1), axis=0, return_inverse=True)[1].reshape(-1))
    return nodes if len(last) == len(nodes.number) else _select(nodes, last)


def _text_sums(nodes: BlockNodes) -> Index:
    """A number per block that is equal for equal tokens and words; seldom for others, and then a block is lost."""
    word_sum = np.zeros(len(nodes.tokens), np.uint64)
    word_sum[nodes.word_at] = (nodes.words * np.array([3, 5, 7], np.uint64)).sum(axis=1, dtype=np.uint64)
    place = np.arange(len(nodes.tokens)) - np.repeat(nodes.start[:-1], np.diff(nodes.start))
    mixed = (nodes.tokens.astype(np.uint64) + word_sum + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * (2 * place + 1).astype(np.uint64)
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed)])
    sums: Index = (total[nodes.start[1:]] - total[nodes.start[:-1]]).view(np.int64)
    return sums


def _needed(nodes: BlockNodes, wanted: Index) -> tuple[BlockNodes, Mask]:
    """Blocks that these pages need, themselves and all above them; and which pages have all of theirs."""
    above, whole = _parents(nodes)
    place, known = _places(nodes, wanted)
    reachable = known & (whole[place] if len(whole) else False)
    keep = np.zeros(len(nodes.number), bool)
    keep[place[reachable]] = True
    seen = np.empty(len(keep), np.int64)
    front = np.flatnonzero(keep)
    while len(front):  # one round for each block in a row that has no page itself
        front = above[front]
        front = front[front >= 0]
        front = front[~keep[front]]
        seen[front] = np.arange(len(front))
        front = front[seen[front] == np.arange(len(front))]  # each once
        keep[front] = True
    return (nodes if keep.all() and len(keep) else _select(nodes, np.flatnonzero(keep))), reachable


def _parents(nodes: BlockNodes) -> tuple[Index, Mask]:
    """The place of each block's parent, -1 under a root; and whether every block up to the root is there."""
    at_root = nodes.parent < 0
    place, known = _places(nodes, nodes.parent)
    known &= place < np.arange(len(place))  # a block comes after its parent: so there is no circle
    above = np.where(at_root, -1, place)
    whole: Mask = at_root | known
    if not whole.all():
        jump = np.where(at_root | ~known, np.arange(len(above)), above)  # up, twice as far each round
        while True:
            whole = whole & whole[jump]
            further = jump[jump]
            if np.array_equal(further, jump):
                break
            jump = further
    return above, whole


def _places(nodes: BlockNodes, numbers: Index) -> tuple[Index, Mask]:
    """Where these numbers stand among the blocks, and whether they are there at all."""
    if not len(nodes.number):
        return np.zeros(len(numbers), np.int64), np.zeros(len(numbers), bool)
    order = None if np.all(np.diff(nodes.number) > 0) else np.argsort(nodes.number, kind="stable")
    ascending = nodes.number if order is None else nodes.number[order]
    found = np.minimum(np.searchsorted(ascending, numbers), len(ascending) - 1)
    known = ascending[found] == numbers
    return (found if order is None else order[found]), known


def _select(nodes: BlockNodes, places: Index) -> BlockNodes:
    """These blocks alone, in this order, with the roots that they name."""
    length = np.diff(nodes.start)
    start = np.concatenate(([0], np.cumsum(length[places])))
    shift = np.repeat(nodes.start[:-1][places] - start[:-1], length[places])
    taken = np.arange(start[-1]) + shift  # for each kept token its place before
    where = np.full(len(nodes.tokens), -1, np.int64)
    where[taken] = np.arange(len(taken))
    word = where[nodes.word_at] >= 0
    parent = nodes.parent[places]
    top = parent < 0
    used, renamed = np.unique(-1 - parent[top], return_inverse=True)
    parent[top] = -1 - renamed
    roots = tuple(nodes.roots[nth] for nth in used.tolist())
    word_at = where[nodes.word_at[word]]
    return BlockNodes(nodes.number[places], parent, start, nodes.tokens[taken], nodes.words[word], word_at, roots)


def _last_of(key: Index) -> Index:
    """The last place of every key, in the order of places."""
    order = np.argsort(key, kind="stable")
    last: Index = order[np.append(np.diff(key[order]) != 0, True)] if len(order) else order
    last.sort()
    return last


def some_nodes(nodes: BlockNodes, kept: Mask) -> BlockNodes:
    """These blocks."""
    return nodes if kept.all() else _select(nodes, np.flatnonzero(kept))


def only(pages: LastingPages, kept: Mask | Index) -> LastingPages:
    """These pages."""
    return LastingPages(pages.group[kept], pages.slot[kept], pages.node[kept])


def _join(parts: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *parts]).astype(dtype, copy=False)
