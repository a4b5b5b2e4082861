"""Secrets: how long they must be, and keys that are kept as digests and compared in constant time. Knows no sockets."""

from __future__ import annotations

from hashlib import blake2b
from hmac import compare_digest

MIN_SECRET = 16  # bytes of what two ends of a link share
SHORTEST, LONGEST = 16, 512  # characters of a key that is sent in a header


class KeyRing:
    """Keys that open something, each with the name of whom it belongs to. `purpose` keeps digests of others apart."""

    def __init__(self, purpose: bytes) -> None:
        self._purpose = purpose
        self._names: dict[bytes, str] = {}

    def __len__(self) -> int:
        return len(self._names)

    @property
    def names(self) -> set[str]:
        """Whom keys belong to."""
        return set(self._names.values())

    def add(self, key: bytes, name: str = "") -> bool:
        """One more key, without a name under one made of its digest; False: it is there already."""
        digest = self._digest(key)
        if digest in self._names:
            return False
        self._names[digest] = name or f"key-{digest[:8].hex()}"
        return True

    def whose(self, authorization: bytes) -> str | None:
        """Whose key a header `authorization: Bearer KEY` has; None: nobody's. Takes equally long for every key."""
        scheme, _, key = authorization.partition(b" ")
        asked = self._digest(key.strip()[: LONGEST + 1])
        found: str | None = None
        for digest, name in self._names.items():
            if compare_digest(asked, digest):
                found = name
        return found if scheme.lower() == b"bearer" else None

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=32, person=self._purpose).digest()
