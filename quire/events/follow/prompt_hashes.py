"""PromptHashes: the event hashes of one prompt, made once per block size and seed. Knows no workers.

Hashing is most of what a lookup costs: workers that share a seed and a block size share its hashes too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, say
from quire.core.records.identity import Media, Scope, token_words
from quire.events.wire.names import Names

if TYPE_CHECKING:
    from quire.core.store.interface import Chain


class PromptHashes:
    """The hashes of one prompt; `chain` is the store's class that makes them."""

    __slots__ = ("_chain", "_chains", "_hashes", "_scope", "_tokens", "_words")

    def __init__(
        self, chain: type[Chain], tokens: NDArray[np.int32], scope: Scope, extra_ids: NDArray[np.int64] | None = None,
        media: Sequence[Media] = (),
    ) -> None:  # fmt: skip
        _check_prompt(tokens, scope, extra_ids)
        self._chain, self._tokens, self._scope = chain, np.ascontiguousarray(tokens), scope
        self._words = token_words(len(tokens), extra_ids, media) if media or extra_ids is not None else None
        self._chains: dict[int, Chain] = {}  # by block size
        self._hashes: dict[tuple[int, bytes], NDArray[np.uint64]] = {}  # by block size and seed

    def for_names(self, names: Names) -> NDArray[np.uint64]:
        """One hash per whole block, as workers with these names publish them."""
        key = size, seed = names.block_size, names.seed
        if key not in self._hashes:
            if size not in self._chains:
                self._chains[size] = self._chain(size, self._tokens, self._words)
            self._hashes[key] = self._chains[size].event_hashes(self._scope.event_hash(seed), seed)
        return self._hashes[key]


def _check_prompt(tokens: NDArray[np.int32], scope: Scope, extra_ids: NDArray[np.int64] | None) -> None:
    if not isinstance(tokens, np.ndarray) or tokens.dtype != np.int32 or tokens.ndim != 1:
        fact = "they must be a one-dimensional int32 array"
        raise InputError(say("tokens", fact, "use np.asarray(tokens, dtype=np.int32)"))
    if not isinstance(scope, Scope):
        raise InputError(say(f"scope {scope!r}", f"it is a {type(scope).__name__}", "pass a Scope"))
    if extra_ids is None:
        return
    if not isinstance(extra_ids, np.ndarray) or extra_ids.dtype != np.int64 or extra_ids.shape != tokens.shape:
        fact = "they must be an int64 array, one per token"
        raise InputError(say("extra_ids", fact, "use np.asarray(extra_ids, dtype=np.int64)"))
