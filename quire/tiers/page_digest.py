"""Digests: names of scopes, blocks and pages that are the same in every process and on every machine (BLAKE2b).

    fingerprint (which model, 32 bytes) + scope ──► root ──► block 0 ──► block 1 ──► ...     32 bytes each
                            └── tag, 16 bytes          each: its parent's digest, its tokens, their extra words

A page is its scope's tag, its block's digest and its layer group. Tokens and salts cannot be read off a name, but
a guess at them can be tested. Knows no cache, no files and no models.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, say, shown
from quire.core.records.identity import Scope, Words

FINGERPRINT_BYTES, DIGEST_BYTES, TAG_BYTES = 32, 32, 16
NAME_BYTES = TAG_BYTES + DIGEST_BYTES + 2  # of a page
MOST_BLOCKS = 1 << 24  # of one text


def scope_tag(fingerprint: bytes, scope: Scope) -> bytes:
    """16 bytes that begin the names of all pages of a scope, for one model."""
    return blake2b(fingerprint + scope.digest, digest_size=TAG_BYTES, person=b"quire-tag").digest()


class BlockDigests:
    """The digests of a text's whole blocks, made as the text grows; one hash per block (512 of 16 tokens: 0.6 ms)."""

    __slots__ = ("_digests", "_rest", "_words", "block_size", "tag")

    def __init__(self, fingerprint: bytes, scope: Scope, block_size: int) -> None:
        check_fingerprint(fingerprint)
        if type(block_size) is not int or block_size < 1:
            raise InputError(say(f"blocks of {shown(block_size)} tokens", "that is not a size", "give 1 or more"))
        self.block_size = block_size
        self.tag = scope_tag(fingerprint, scope)
        root = fingerprint + scope.digest + block_size.to_bytes(8, "little")
        self._digests = [blake2b(root, digest_size=DIGEST_BYTES, person=b"quire-root").digest()]
        self._rest = b""  # tokens behind the last whole block
        self._words: Words | None = None  # of them

    def __len__(self) -> int:
        return len(self._digests) - 1

    def __getitem__(self, block: int) -> bytes:
        if not 0 <= block < len(self):
            raise IndexError(f"block {block} of {len(self)}")
        return self._digests[block + 1]

    def extend(self, tokens: NDArray[np.int32], words: Words | None = None) -> int:
        """Append tokens, with three words each or none; the number of whole blocks then."""
        raw = self._rest + np.ascontiguousarray(tokens, "<i4").tobytes()
        given = self._all_words(len(tokens), words)
        size = 4 * self.block_size
        whole = len(raw) // size
        if len(self) + whole > MOST_BLOCKS:
            raise InputError(say(f"a text of {len(self) + whole} blocks", f"{MOST_BLOCKS} is the most", "cut it"))
        marked = _marked(given, self.block_size, whole)
        digest = self._digests[-1]
        for block in range(whole):
            text = digest + raw[block * size : (block + 1) * size]
            if given is not None and marked[block]:
                text += given[block * self.block_size : (block + 1) * self.block_size].astype("<u8").tobytes()
            digest = blake2b(text, digest_size=DIGEST_BYTES, person=b"quire-block").digest()
            self._digests.append(digest)
        self._rest = raw[whole * size :]
        self._words = None if given is None else given[whole * self.block_size :]
        return len(self)

    def _all_words(self, count: int, words: Words | None) -> Words | None:
        """The words of the rest and of `count` new tokens; None when all are plain."""
        if words is not None and words.shape != (count, 3):
            raise InputError(say(f"words of shape {words.shape}", f"{count} tokens are given", "give three per token"))
        if words is None and self._words is None:
            return None
        waiting = np.zeros((len(self._rest) // 4, 3), np.uint64) if self._words is None else self._words
        return np.concatenate([waiting, np.zeros((count, 3), np.uint64) if words is None else words])

    def page(self, block: int, group: int) -> bytes:
        """The name of a page: `NAME_BYTES` bytes."""
        return self.tag + self[block] + group.to_bytes(2, "little")


def _marked(words: Words | None, block_size: int, whole: int) -> NDArray[np.bool_]:
    """Which whole blocks have a token that is not plain."""
    if words is None:
        return np.zeros(whole, np.bool_)
    marked: NDArray[np.bool_] = np.logical_or.reduce(words[: whole * block_size].reshape(whole, 3 * block_size), axis=1)
    return marked


def check_fingerprint(fingerprint: object) -> None:
    """A fingerprint is 32 bytes, made on purpose."""
    if not isinstance(fingerprint, bytes) or len(fingerprint) != FINGERPRINT_BYTES:
        given = f"{len(fingerprint)} bytes" if isinstance(fingerprint, bytes) else f"a {type(fingerprint).__name__}"
        cure = "make one with quire.tiers.fingerprint"
        raise InputError(say("a fingerprint", f"it is {given}, and has {FINGERPRINT_BYTES}", cure))
