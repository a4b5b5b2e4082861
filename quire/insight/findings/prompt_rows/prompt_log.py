"""PromptLog: the prompts of a log as rows of chunk numbers, with when they came and whose they were. Keeps no tokens.

Up to MOST_CHUNKS chunks are kept; with more, cuts become half as frequent, so memory is bounded by the number of
requests alone: about 100 bytes for each and 40 for each chunk.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.core.content.content_chunks import LEVELS, Chunks, UInt64, cut_prompts, merge_chunks
from quire.trace.prompts.logged_prompts import LoggedPrompt
from quire.trace.units import Int32, Int64, cut

MOST_CHUNKS = 7 << 20
BATCH = 1 << 16  # tokens that are cut at once
AT_ONCE = 1 << 18  # numbers that are looked at, to need little memory beside the result
ROW = 4  # numbers of each request
SCOPE_PARTS = ("salt", "lora", "epoch")
MOST_NAMES, LONGEST_NAME = 1 << 16, 200  # that are kept to be shown; letters of one


@dataclass(slots=True, eq=False)
class PromptLog:
    """Columns; a row per request in order of arrival, and one per chunk in order of requests."""

    ids: Int32  # chunks by content, dense
    sizes: Int32
    starts: Int64  # of each request's chunks; one more than there are requests
    times: NDArray[np.float64]
    lengths: Int64
    scopes: Int32  # a number for each scope
    scope_parts: UInt64  # of each request: a column for each of SCOPE_PARTS, equal where they are
    names: Int32  # numbers into name_list
    lines: NDArray[np.int64]  # line and place
    name_list: list[str | None]
    level: int  # of the cuts; a chunk has 8 << level tokens in the mean

    def __len__(self) -> int:
        return len(self.times)

    def chunks_of(self, request: int) -> Int32:
        """Its chunks, by number."""
        return self.ids[self.starts[request] : self.starts[request + 1]]

    def sizes_of(self, request: int) -> Int32:
        """Their tokens."""
        return self.sizes[self.starts[request] : self.starts[request + 1]]

    @property
    def request_of(self) -> Int32:
        """The request of each chunk."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.starts))


class LogReader:
    """Takes prompts one by one; `finish` gives the log."""

    def __init__(self, most_chunks: int = MOST_CHUNKS) -> None:
        self._most = most_chunks
        self._waiting: list[Int32] = []
        self._waiting_tokens = 0
        self._parts: list[Chunks] = []
        self._count = 0
        self._level = 0
        self._rows = array("d")  # time, length, line, place
        self._scopes = array("q")  # hashes of its parts
        self._names = array("q")  # hashes
        self._shown: dict[int, str | None] = {}  # by hash

    def __len__(self) -> int:
        return len(self._rows) // ROW

    def add(self, prompt: LoggedPrompt) -> None:
        """One more; its tokens are not kept."""
        self._rows.extend((prompt.time, len(prompt.tokens), prompt.line, prompt.place))
        name = hash(prompt.name)
        self._names.append(name)
        if name not in self._shown and len(self._shown) < MOST_NAMES:
            self._shown[name] = prompt.name and cut(prompt.name, LONGEST_NAME)
        self._scopes.extend(hash(getattr(prompt.scope, part)) for part in SCOPE_PARTS)
        self._waiting.append(prompt.tokens)
        self._waiting_tokens += len(prompt.tokens)
        if self._waiting_tokens >= BATCH:
            self._cut()

    def _cut(self) -> None:
        if not self._waiting:
            return
        lengths = np.array([len(one) for one in self._waiting], np.int64)
        chunks = cut_prompts(np.concatenate(self._waiting), lengths)
        self._waiting, self._waiting_tokens = [], 0
        self._parts.append(merge_chunks(chunks, self._level) if self._level else chunks)
        self._count += len(self._parts[-1])
        while self._count > self._most and self._level < LEVELS - 1:
            self._level += 1
            for place, part in enumerate(self._parts):
                self._parts[place] = merge_chunks(part, self._level)
            self._count = sum(map(len, self._parts))

    def finish(self) -> PromptLog:
        """Everything, in order of arrival."""
        self._cut()
        parts, self._parts = self._parts, []
        columns = np.frombuffer(self._rows, np.float64).reshape(-1, ROW)
        scopes = np.frombuffer(self._scopes, np.uint64).reshape(-1, len(SCOPE_PARTS))
        counts = np.concatenate([part.counts for part in parts] or [np.empty(0, np.int64)])
        sizes = np.concatenate([part.sizes for part in parts] or [np.empty(0, np.int32)])
        chunks = np.concatenate([part.names for part in parts] or [np.empty(0, np.uint64)])
        parts.clear()
        ids = dense(chunks)
        del chunks
        hashes, names = np.unique(np.frombuffer(self._names, np.int64), return_inverse=True)
        order = np.argsort(columns[:, 0], kind="stable")
        if (np.diff(order) < 0).any():
            firsts = np.cumsum(counts) - counts
            taken = gathered(firsts[order], counts[order])
            ids, sizes, counts, columns, scopes = ids[taken], sizes[taken], counts[order], columns[order], scopes[order]
            names = names[order]
        return PromptLog(
            ids, sizes, np.concatenate([[0], np.cumsum(counts)]), columns[:, 0].copy(), columns[:, 1].astype(np.int64),
            joined_scopes(scopes, SCOPE_PARTS), scopes, names.astype(np.int32), columns[:, 2:].astype(np.int64),
            [self._shown.get(one) for one in hashes.tolist()], self._level,
        )  # fmt: skip


def joined_scopes(parts: UInt64, names: Sequence[str]) -> Int32:
    """A number for each scope, of these parts alone."""
    numbers: Int32 = np.zeros(len(parts), np.int32)
    for name in names:
        _, column = np.unique(parts[:, SCOPE_PARTS.index(name)], return_inverse=True)
        if column.any():
            both = numbers.astype(np.int64) * (int(column.max()) + 1) + column
            numbers = np.unique(both, return_inverse=True)[1].astype(np.int32)
    return numbers


def gathered(firsts: Int64, counts: Int64) -> Int64:
    """first, first + 1, ... of each, count of them."""
    ends = np.cumsum(counts)
    places: Int64 = np.arange(ends[-1] if len(ends) else 0) + np.repeat(firsts - (ends - counts), counts)
    return places


def dense(values: UInt64) -> Int32:
    """The same values as numbers from 0 on. Different values never get one number.

    Sorted by their first bits and their place in one word, which takes a third of the time of an argsort; values that
    are different behind equal first bits, of which there are a handful among millions, may get several numbers.
    """
    bits = np.uint64(max(len(values), 1).bit_length())
    words = values >> bits
    words <<= bits
    words |= np.arange(len(values), dtype=np.uint64)
    words.sort()
    words &= (np.uint64(1) << bits) - np.uint64(1)
    ids = np.zeros(len(values), np.int32)
    last, number = values[words[:1]], 0
    for first in range(0, len(words), AT_ONCE):
        order = words[first : first + AT_ONCE]
        in_order = values[order]
        numbers = np.cumsum(in_order != np.concatenate([last, in_order[:-1]]), dtype=np.int32) + np.int32(number)
        ids[order] = numbers
        last, number = in_order[-1:], int(numbers[-1])
    return ids
