"""PromptLog: the prompts of a log as rows of chunk numbers, with when they came and whose they were. Keeps no tokens.

Up to MOST_CHUNKS chunks are kept; with more, cuts become half as frequent, so memory is bounded by the number of
requests alone: about 100 bytes for each and 20 for each chunk.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quire.core.content.content_chunks import LEVELS, Chunks, UInt64, cut_prompts, merge_chunks
from quire.core.records.identity import Scope
from quire.trace.prompts.logged_prompts import LoggedPrompt
from quire.trace.units import Int32, Int64

MOST_CHUNKS = 7 << 20
BATCH = 1 << 16  # tokens that are cut at once


@dataclass(slots=True, eq=False)
class PromptLog:
    """Columns; a row per request in order of arrival, and one per chunk in order of requests."""

    ids: Int32  # chunks by content, dense
    sizes: Int32
    starts: Int64  # of each request's chunks; one more than there are requests
    times: NDArray[np.float64]
    lengths: Int64
    scopes: Int32  # numbers into scope_list
    names: Int32  # into name_list
    sessions: Int32
    lines: NDArray[np.int64]  # line and place
    scope_list: list[Scope]
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


@dataclass(slots=True)
class _Codes:
    """Values by number, in order of appearance."""

    numbers: dict[Hashable, int] = field(default_factory=dict)

    def __getitem__(self, value: Hashable) -> int:
        return self.numbers.setdefault(value, len(self.numbers))


class LogReader:
    """Takes prompts one by one; `finish` gives the log."""

    def __init__(self, most_chunks: int = MOST_CHUNKS) -> None:
        self._most = most_chunks
        self._waiting: list[Int32] = []
        self._waiting_tokens = 0
        self._parts: list[Chunks] = []
        self._count = 0
        self._level = 0
        self._rows: list[tuple[float, int, int, int, int, int, int]] = []
        self._scopes, self._names, self._sessions = _Codes(), _Codes(), _Codes()

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, prompt: LoggedPrompt) -> None:
        """One more; its tokens are not kept."""
        session = -1 if prompt.session is None else self._sessions[prompt.session]
        codes = self._scopes[prompt.scope], self._names[prompt.name], session
        self._rows.append((prompt.time, len(prompt.tokens), *codes, prompt.line, prompt.place))
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
        columns = np.array(self._rows, np.float64).reshape(-1, 7)
        self._rows = []
        counts = np.concatenate([part.counts for part in parts] or [np.empty(0, np.int64)])
        sizes = np.concatenate([part.sizes for part in parts] or [np.empty(0, np.int32)])
        names = np.concatenate([part.names for part in parts] or [np.empty(0, np.uint64)])
        parts.clear()
        ids = dense(names)
        del names
        order = np.argsort(columns[:, 0], kind="stable")
        if (np.diff(order) < 0).any():
            firsts = np.cumsum(counts) - counts
            taken = gathered(firsts[order], counts[order])
            ids, sizes, counts, columns = ids[taken], sizes[taken], counts[order], columns[order]
        scopes, names, sessions = (columns[:, place].astype(np.int32) for place in (2, 3, 4))
        scope_list: list[Scope] = list(self._scopes.numbers)  # type: ignore[arg-type]
        name_list: list[str | None] = list(self._names.numbers)  # type: ignore[arg-type]
        return PromptLog(
            ids, sizes, np.concatenate([[0], np.cumsum(counts)]), columns[:, 0], columns[:, 1].astype(np.int64),
            scopes, names, sessions, columns[:, 5:7].astype(np.int64), scope_list, name_list, self._level,
        )  # fmt: skip


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
    words = values >> bits << bits
    words |= np.arange(len(values), dtype=np.uint64)
    words.sort()
    words &= (np.uint64(1) << bits) - np.uint64(1)
    order = words.astype(np.int32)
    del words
    in_order = values[order]
    is_new = in_order[1:] != in_order[:-1]
    del in_order
    ids = np.zeros(len(values), np.int32)
    ids[order[1:]] = np.cumsum(is_new, dtype=np.int32)
    return ids
