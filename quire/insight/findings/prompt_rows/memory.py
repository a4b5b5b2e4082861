"""Memory: what an LRU cache of so many tokens hits of rows of chunks, and why less than it could. NumPy only.

    use 1   a b c d          what a request has used last stands together; the oldest such rows go first
    use 2   a b x            row 1 is now c d, row 2 a b x: to lose row 1 is to lose what lies behind it, as in a tree

A request hits the leading chunks that are there. Requests come one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.core.content.content_chunks import UInt64, mix
from quire.insight.findings.prompt_rows.prompt_log import dense
from quire.trace.units import Int32, Int64

AT_ONCE = 1 << 19  # chunks, to need little memory beside the result


@dataclass(slots=True, eq=False)
class Rows:
    """Chunks of requests, by number, one request behind the other."""

    ids: Int32
    sizes: Int32
    starts: Int64  # one more than there are requests
    apart: Int32  # requests share only where this is equal

    def __len__(self) -> int:
        return len(self.apart)

    @property
    def lengths(self) -> Int64:
        """Tokens of each request."""
        sums = np.concatenate([[0], np.cumsum(self.sizes, dtype=np.int64)])
        lengths: Int64 = sums[self.starts[1:]] - sums[self.starts[:-1]]
        return lengths


def rows_of(rows: Sequence[tuple[Int32, Int32]], apart: Int32) -> Rows:
    """Of lists of chunks and sizes."""
    starts = np.concatenate([[0], np.cumsum([len(ids) for ids, _ in rows])]).astype(np.int64)
    empty = [np.empty(0, np.int32)]
    ids, sizes = (np.concatenate([row[place] for row in rows] or empty) for place in (0, 1))
    return Rows(ids.astype(np.int32), sizes.astype(np.int32), starts, apart)


def prefixes(rows: Rows) -> Int32:
    """A number for each chunk and all before it in its request, in its scope."""
    return dense(prefix_names(rows))


def prefix_names(rows: Rows) -> UInt64:
    """The same as numbers of 64 bits, spread over all of them."""
    names = np.empty(len(rows.ids), np.uint64)
    bounds = np.searchsorted(rows.starts, np.arange(0, len(rows.ids), AT_ONCE), side="left")
    bounds = np.unique([*bounds.tolist(), len(rows)])
    for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        _name_prefixes(rows, first, end, names)
    return names


def _name_prefixes(rows: Rows, first: int, end: int, names: UInt64) -> None:
    """Those of some requests."""
    starts = rows.starts[first : end + 1]
    chunks = slice(int(starts[0]), int(starts[-1]))
    counts = np.diff(starts)
    place = np.arange(chunks.start, chunks.stop) - np.repeat(starts[:-1], counts)
    spread = mix(np.arange(int(counts.max(initial=0)), dtype=np.uint64)) | np.uint64(1)
    sums = np.cumsum(mix(rows.ids[chunks].astype(np.uint64)) * spread[place])
    before = np.concatenate([np.zeros(1, np.uint64), sums])[starts[:-1] - starts[0]]
    root = mix(rows.apart[first:end].astype(np.uint64) + np.uint64(1 << 40))
    names[chunks] = mix(sums + np.repeat(root - before, counts))


def hits(rows: Rows, capacity: int, kept: NDArray[np.bool_] | None = None) -> Int64:
    """Tokens that each request finds; what requests that are not in `kept` bring is not stored."""
    numbers, bounds = prefixes(rows), rows.starts.tolist()
    used = np.full(int(numbers.max(initial=-1)) + 1, -1, np.int64)  # the request that has used it last
    tokens = np.zeros(len(rows) + 1, np.int64)  # of what was used last by each request
    found = np.zeros(len(rows), np.int64)
    oldest, held = 0, 0
    for request in range(len(rows)):
        mine = numbers[bounds[request] : bounds[request + 1]]
        sizes = rows.sizes[bounds[request] : bounds[request + 1]]
        last = used[mine]
        there = last >= oldest
        count = len(mine) if there.all() else int(there.argmin())
        found[request] = int(sizes[:count].sum())
        if kept is not None and not kept[request]:
            mine, sizes, last = mine[:count], sizes[:count], last[:count]
            there = there[:count]
        was = int(sizes[there].sum())
        np.subtract.at(tokens, last[there], sizes[there])
        used[mine] = request
        total = int(sizes.sum())
        tokens[request] += total
        held += total - was
        while held > capacity and oldest < request:
            held -= int(tokens[oldest])
            oldest += 1
    return found
