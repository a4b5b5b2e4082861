"""RequestTokens: the token ids of one of vLLM's requests as an array, each read once. Knows no cache.

vLLM keeps them as a list of Python ints. They are read when the request comes, and what is generated when it is asked
for; a request that was preempted finds them here again.
"""

from __future__ import annotations

import numpy as np

from quire.core.records.request import Int32
from quire.core.store import open_store
from quire.integrations.vllm.common.request_identity import EngineRequest

MORE = 64  # tokens that may come before the array is copied into a larger one
NO_TOKENS: Int32 = np.empty(0, np.int32)
read_tokens = open_store().read_tokens


class RequestTokens:
    """Of one request, as long as vLLM has it."""

    __slots__ = ("_buffer", "_filled")

    def __init__(self) -> None:
        self._buffer = NO_TOKENS
        self._filled = 0

    def known(self, request: EngineRequest) -> Int32:
        """All that are known now."""
        known = request.num_tokens
        if known != self._filled:
            self._read(request, known)
        return self._buffer[:known]

    def _read(self, request: EngineRequest, known: int) -> None:
        if known > len(self._buffer):
            grown = np.empty(max(known + MORE, 2 * len(self._buffer)), np.int32)
            if self._filled:
                grown[: self._filled] = self._buffer[: self._filled]
            self._buffer = grown
        prompt = request.prompt_token_ids
        if self._filled == 0 and isinstance(prompt, list) and len(prompt) <= known:  # vLLM's own list, not a copy
            read_tokens(prompt, 0, self._buffer[: len(prompt)])
            self._filled = len(prompt)
        if known > self._filled:
            fresh = request.all_token_ids[self._filled : known]
            read_tokens(fresh if type(fresh) is list else list(fresh), 0, self._buffer[self._filled : known])
        self._filled = known
