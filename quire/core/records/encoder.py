"""Encoder: the input that cross attention reads, as the cache sees it. Knows no pages.

Every state of a bidirectional encoder depends on the whole input. So one digest of all of it stands in every block:
equal inputs share every page, and inputs that only begin alike share none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, say, shown
from quire.core.records.identity import Media, Scope, Words, kind_of, token_words
from quire.core.records.span import Span

Int32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Encoder:
    """`length` places of cross KV, named by the encoder's tokens or by a digest of its features.

    With neither, nothing names the content: its pages are neither looked up nor stored.
    """

    length: int
    tokens: Int32 | None = None
    digest: bytes | None = None

    def __post_init__(self) -> None:
        if type(self.length) is not int or self.length < 1:
            raise InputError(say(f"encoder length {shown(self.length)}", "it has no places", "leave the encoder out"))
        if self.tokens is not None and self.digest is not None:
            raise InputError(say("an encoder", "it has tokens and a digest", "give the one that names its content"))
        if self.digest is not None and (not isinstance(self.digest, bytes) or not 16 <= len(self.digest) <= 64):
            fact = f"it is {kind_of(self.digest)}"
            raise InputError(say("an encoder's digest", fact, "pass a hash of 16 to 64 bytes"))
        if self.tokens is not None and (
            not isinstance(self.tokens, np.ndarray) or self.tokens.dtype != np.int32 or self.tokens.ndim != 1
        ):
            fact = "they must be a one-dimensional int32 array"
            raise InputError(say("encoder tokens", fact, "use np.asarray(tokens, dtype=np.int32)"))
        if self.tokens is not None and len(self.tokens) != self.length:
            fact = f"{len(self.tokens)} tokens are given"
            raise InputError(say(f"encoder length {self.length}", fact, "make them equal"))

    def __repr__(self) -> str:
        """How long it is and what names it; never the content."""
        by = "tokens" if self.tokens is not None else "a digest" if self.digest is not None else "nothing"
        return f"Encoder({self.length} places, named by {by})"

    def name(self) -> bytes | None:
        """32 bytes that stand for the whole input; None without a name."""
        if self.tokens is not None:
            content = b"t" + np.ascontiguousarray(self.tokens).tobytes()
        elif self.digest is not None:
            content = b"d" + self.digest
        else:
            return None
        start = self.length.to_bytes(8, "little")
        return blake2b(start + content, digest_size=32, person=b"quire-encoder").digest()


def scope_over(encoder: Encoder, scope: Scope) -> Scope | None:
    """Where text is kept that was computed over this input: a decoder's own KV depends on what it has read.

    None without a name: then that text cannot be reused either.
    """
    name = encoder.name()
    return None if name is None else replace(scope, space=name + repr(scope.space).encode())


def places_of(encoder: Encoder, block_size: int) -> tuple[Int32, Words | None]:
    """Its stream, filled up to whole blocks: nothing is ever written behind it, so every page can be shared."""
    num_places = -(-encoder.length // block_size) * block_size
    name = encoder.name()
    words = None if name is None else token_words(num_places, None, (Media(name, (Span(0, num_places),)),))
    return np.zeros(num_places, np.int32), words
