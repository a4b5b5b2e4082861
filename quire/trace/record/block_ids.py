"""TraceKey: names for the blocks of prompts, by a secret key. Who lacks it learns from them what is equal, and no more.

A hash id stands for a block and everything before it, as in Mooncake's traces. It is SipHash-2-4 over the tokens under
the id of the block before; the first block is under its scope. Knows no files.
"""

from __future__ import annotations

import os
import secrets
from hashlib import blake2b
from pathlib import Path
from typing import cast

from quire.core.records.errors import InputError, say
from quire.core.records.identity import Scope, Words
from quire.core.records.request import PLAIN, Int32
from quire.core.store import open_store
from quire.core.store.interface import UInt64Array

KEY_BYTES = 32
LEAST_BYTES = 16  # of a key that the caller has made
MOST_BYTES = 4096


class TraceKey:
    """A secret, drawn afresh unless one is given. Traces with one key can be joined; no other two share an id."""

    def __init__(self, secret: bytes | None = None) -> None:
        secret = secrets.token_bytes(KEY_BYTES) if secret is None else secret
        if not LEAST_BYTES <= len(secret) <= MOST_BYTES:
            fact = f"it has {len(secret)} bytes"
            raise InputError(say("the key of a trace", fact, f"give {LEAST_BYTES} to {MOST_BYTES} random bytes"))
        self._seed = blake2b(secret, digest_size=16, person=b"quire-trace").digest()
        self._chain = open_store().Chain

    def __repr__(self) -> str:
        return "TraceKey()"

    def hash_ids(self, tokens: Int32, block_size: int, scope: Scope = PLAIN, words: Words | None = None) -> list[int]:
        """One for each block, below 2**63; the last block may have fewer tokens, and then equals no longer one."""
        root = self.root(scope)
        ids = self.whole_blocks(tokens, block_size, root, words)
        numbers = cast(list[int], (ids >> 1).tolist())  # 63 bits fit the integers of every reader
        if rest := len(tokens) % block_size:
            last = None if words is None else words[-rest:]
            under = int(ids[-1]) if len(ids) else root
            numbers.append(int(self._chain(rest, tokens[-rest:], last).event_hashes(under, self._seed)[0]) >> 1)
        return numbers

    def whole_blocks(self, tokens: Int32, block_size: int, under: int, words: Words | None = None) -> UInt64Array:
        """Ids of the whole blocks, 64 bits each, under a scope's `root` or the id of the block before."""
        return self._chain(block_size, tokens, words).event_hashes(under, self._seed)

    def scope_id(self, scope: Scope) -> int:
        """A number for the scope."""
        return self.root(scope) >> 1

    def session_id(self, session: object, scope: Scope = PLAIN) -> int:
        """A number for a conversation of a scope: without the key it cannot be traced back."""
        text = str(session).encode(errors="surrogatepass") + (b"" if scope == PLAIN else b"\0" + scope.key)
        name = blake2b(text, digest_size=8, key=self._seed, person=b"quire-session").digest()
        return int.from_bytes(name, "little") >> 1

    @property
    def fingerprint(self) -> str:
        """Distinguishes keys, and reveals nothing of them."""
        return blake2b(b"", digest_size=8, key=self._seed, person=b"quire-trace-name").hexdigest()

    def root(self, scope: Scope) -> int:
        """The id that the first block of a scope is under."""
        name = blake2b(scope.key, digest_size=8, key=self._seed, person=b"quire-trace-root").digest()
        return int.from_bytes(name, "little")


def read_key(path: str | Path) -> TraceKey:
    """The key that a file holds; where there is no such file it is made, for its owner alone."""
    place = Path(path)
    try:
        with place.open("rb") as file:
            secret = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        secret = secrets.token_bytes(KEY_BYTES)
        try:
            with open(place, "xb", opener=_private) as file:
                file.write(secret)
        except OSError as error:
            raise _unusable(path, error) from None
    except OSError as error:
        raise _unusable(path, error) from None
    return TraceKey(secret)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _unusable(path: str | Path, wrong: OSError) -> InputError:
    return InputError(say(f"key file {str(path)!r}", f"{wrong.strerror or wrong}", "name a file that can be used"))
