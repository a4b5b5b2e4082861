"""The offline optimum: what a cache of some size could have hit at best, had it known the trace. Knows no cache.

Between two requests the cache keeps at most `capacity` blocks out of those it kept and those the request left;
a request hits the leading run of its blocks that are kept. Dropping the block whose next use lies furthest ahead
(deepest first among equals) maximises the hit blocks: it is Belady's rule, and it never keeps a block without its
prefix when the block can be hit, so the rule loses nothing to prefix hits. docs/replay.md has the argument.

Blocks that the same requests use are handled as one extent, so the cost follows the branches of the trace, not its
block size.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BlockKeys = NDArray[np.uint64]
_NEVER = np.iinfo(np.int64).max
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class Optimum:
    """The most blocks any policy could have hit with `capacity` blocks."""

    capacity: int
    hit_blocks: int
    hit_rate: float  # tokens of those blocks, of all prompt tokens


def chain_keys(tokens: NDArray[np.int32], block_size: int, root: int = 0) -> BlockKeys:
    """One 64-bit key per whole block of a prompt; equal keys mean equal tokens up to the block's end (and root)."""
    num_blocks = len(tokens) // block_size
    cells = tokens[: num_blocks * block_size].astype(np.uint64).reshape(num_blocks, block_size)
    places = _mix(np.arange(1, block_size + 1, dtype=np.uint64)) | np.uint64(1)
    blocks = _mix(cells + np.uint64(1)) @ places
    depths = _mix(np.arange(num_blocks, dtype=np.uint64) + np.uint64(root % (1 << 63)) * np.uint64(2) + np.uint64(1))
    return np.cumsum(_mix(blocks ^ depths), dtype=np.uint64)


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread bits (the finaliser of splitmix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _MIX[0]
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _MIX[1]
    return numbers ^ (numbers >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class OptimumPrompt:
    """One request, in order of arrival: its pieces by key, how many of them, from the first, can be hit at all."""

    keys: BlockKeys
    length: int  # tokens
    num_hittable: int
    sizes: NDArray[np.int64] | None = None  # of the pieces, in blocks; None: each is one block


def whole_blocks(tokens: NDArray[np.int32], block_size: int, root: int = 0) -> OptimumPrompt:
    """A prompt in whole blocks. Its last token is always computed, so a block that ends there is left, never hit."""
    return OptimumPrompt(chain_keys(tokens, block_size, root), len(tokens), max(0, len(tokens) - 1) // block_size)


class Reuse:
    """Who uses what again, for one trace and block size; `optimum` asks it for any number of sizes."""

    def __init__(self, prompts: Iterable[OptimumPrompt], block_size: int) -> None:
        every = list(prompts)
        self.block_size = block_size
        self.num_tokens = sum(prompt.length for prompt in every)
        self._lengths = [prompt.length for prompt in every]
        ends = np.cumsum([0, *(len(prompt.keys) for prompt in every)])
        flat = np.concatenate([np.empty(0, np.uint64), *(prompt.keys for prompt in every)])
        ones = (np.ones(len(p.keys), np.int64) if p.sizes is None else p.sizes for p in every)
        sizes = np.concatenate([np.empty(0, np.int64), *ones])
        owner = np.repeat(np.arange(len(every)), np.diff(ends))
        depth = np.arange(len(flat)) - ends[owner]
        hittable = depth < np.array([prompt.num_hittable for prompt in every], np.int64)[owner]
        self._paths = _extents(flat, sizes, np.stack((owner, depth)), hittable) if len(flat) else []

    def optimum(self, capacity: int, skip: int = 0) -> Optimum:
        """The best hit rate for so many blocks; of the requests behind the first `skip`, those before fill the cache.

        Of these alone another choice might have been better: it is what the best choice for all of them gives them.
        """
        kept: dict[int, int] = {}  # extent -> leading blocks of it that are in the cache
        due: dict[int, int] = {}  # extent -> the request that hits it next
        shelf: list[tuple[int, int, int]] = []  # latest use first, deepest first; stale entries are skipped
        room, total = capacity, 0
        for asker, path in self._paths:
            if asker >= skip:
                total += _leading(path, kept)
            for extent, size, _, next_hit, depth in path:
                room += kept.pop(extent, 0)
                if next_hit != _NEVER:
                    kept[extent], due[extent] = size, next_hit
                    room -= size
                    heapq.heappush(shelf, (-next_hit, -depth, extent))
            while room < 0:
                when, _, extent = shelf[0]
                there = kept.get(extent, 0)
                if not there or due[extent] != -when:
                    heapq.heappop(shelf)
                    continue
                gone = min(there, -room)
                room += gone
                kept[extent] = there - gone
                if gone == there:
                    heapq.heappop(shelf)
                    del kept[extent]
        tokens = sum(self._lengths[skip:])
        return Optimum(capacity, total, total * self.block_size / tokens if tokens else 0.0)

    def most(self) -> Optimum:
        """With unlimited memory: everything seen before is hit."""
        return self.optimum(sum(size for _, path in self._paths for _, size, _, _, _ in path))


_Step = tuple[int, int, bool, int, int]  # extent, blocks in it, may be hit here, request that hits it next, depth


def _leading(path: Sequence[_Step], kept: dict[int, int]) -> int:
    """Blocks of the leading run that is in the cache."""
    run = 0
    for extent, size, hits, _, _ in path:
        there = kept.get(extent, 0) if hits else 0
        run += there
        if there < size:
            break
    return run


def _extents(
    flat: BlockKeys, pieces: NDArray[np.int64], place: NDArray[np.int64], hits: NDArray[np.bool_]
) -> list[tuple[int, list[_Step]]]:
    """Each request's pieces as extents: neighbours that exactly the same requests leave behind and hit."""
    owner, depth = place
    _, block = np.unique(flat, return_inverse=True)
    left, hit = np.bincount(block)[block], np.bincount(block, hits)[block]
    head = np.ones(len(flat), np.bool_)
    head[1:] = (depth[1:] == 0) | (left[1:] != left[:-1]) | (hit[1:] != hit[:-1])
    heads = np.flatnonzero(head)
    sizes = np.add.reduceat(pieces, heads)
    names, who, may = block[heads], owner[heads], hits[heads]
    ahead = _next_hits(names, who, may)
    paths: list[tuple[int, list[_Step]]] = []  # of those that have any, with their numbers
    before = -1
    rows = zip(*(x.tolist() for x in (names, sizes, may, ahead, depth[heads], who)), strict=True)
    for extent, size, can, soon, deep, asker in rows:
        if asker != before:
            paths.append((asker, []))
            before = asker
        paths[-1][1].append((extent, size, can, soon, deep))
    return paths


def _next_hits(names: NDArray[np.int64], who: NDArray[np.int64], may: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each use of an extent: the request that uses it next, or never when that one cannot hit it."""
    order = np.lexsort((who, names))
    same = names[order][1:] == names[order][:-1]
    following = np.full(len(names), _NEVER, np.int64)
    following[order[:-1]] = np.where(same & may[order][1:], who[order][1:], _NEVER)
    return following
