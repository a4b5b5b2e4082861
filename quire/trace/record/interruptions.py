"""PromptInterruptions: where a prompt parts from those before it though its text was here. For recorder and maker.

    earlier   [ 10:31 ][ rules of the house ............ ][ a question ]
    now       [ 10:32 ][ rules of the house ............ ][ another ]
              ^ position, width 5 or so ^ equal_after

Places are those of chunks. Keeps numbers of the last chunks, and no token.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.core.content.content_index import LEAST_EQUAL, ContentIndex, NamedText, name_text
from quire.core.records.identity import Scope
from quire.trace.record.trace_writer import MOST_PIECES, Interruption

CHUNKS = 1 << 20  # of prompts, about 8 million tokens: 16 MiB
FIRST, GROWTH = 1 << 12, 8  # at the beginning: few logs are long
ROOM = 128  # places for each chunk until then, so that hardly one falls on others


class PromptInterruptions:
    """Looks at one prompt after the other, each beside all before it of its scope."""

    def __init__(self) -> None:
        self._size = FIRST
        self._content = ContentIndex(FIRST)
        self._texts: list[NamedText] = []  # until it has its full size
        self._chunks = 0

    def add(self, tokens: NDArray[np.int32], scope: Scope) -> Interruption | None:
        """One more prompt; where it was interrupted, if it is."""
        if not len(tokens):
            return None
        text = name_text(tokens, scope.key)
        known, runs = self._content.find(text)
        self._keep(text, known < len(tokens))
        numbers, at = [known], known
        for start, stop in runs:
            start = max(start, known)
            if stop - start >= LEAST_EQUAL and len(numbers) <= 2 * MOST_PIECES:
                numbers += [start - at, stop - start]
                at = stop
        return Interruption(known, numbers[1], numbers[2], tuple(numbers[3:])) if len(numbers) > 1 else None

    def _keep(self, text: NamedText, is_new: bool) -> None:
        """For the prompts that come."""
        self._content.add(text)
        if self._size == CHUNKS or not is_new:
            return
        self._texts.append(text)
        self._chunks += len(text.ends)
        if self._chunks * ROOM > self._size:
            self._grow()

    def _grow(self) -> None:
        while self._size < min(self._chunks * ROOM, CHUNKS):
            self._size = min(self._size * GROWTH, CHUNKS)
        self._content = ContentIndex(self._size)
        for one in self._texts:
            self._content.add(one)
        if self._size == CHUNKS:
            self._texts.clear()
