"""PromptInterruptions: where a prompt parts from those before it though its text was here. For recorder and maker.

    earlier   [ 10:31 ][ rules of the house ............ ][ a question ]
    now       [ 10:32 ][ rules of the house ............ ][ another ]
              ^ position, width 5 or so ^ equal_after

Of several pieces that are equal again the longest counts. Places are those of chunks. Keeps numbers of the last
chunks, and no token.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.core.content.content_index import LEAST_EQUAL, ContentIndex, name_text
from quire.core.records.identity import Scope
from quire.trace.record.trace_writer import Interruption

CHUNKS = 1 << 20  # of prompts, about 8 million tokens: 16 MiB


class PromptInterruptions:
    """Looks at one prompt after the other, each beside all before it of its scope."""

    def __init__(self) -> None:
        self._content = ContentIndex(CHUNKS)

    def add(self, tokens: NDArray[np.int32], scope: Scope) -> Interruption | None:
        """One more prompt; where it was interrupted, if it is."""
        if not len(tokens):
            return None
        text = name_text(tokens, scope.key)
        known, runs = self._content.find(text)
        self._content.add(text)
        behind = [(stop - max(start, known), max(start, known)) for start, stop in runs if stop > known]
        length, start = max(behind, default=(0, 0))
        return Interruption(known, start - known, length) if length >= LEAST_EQUAL else None
