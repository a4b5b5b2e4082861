"""Secrets: their minimum lengths, and keys stored as digests and compared in constant time. Knows no sockets."""

from __future__ import annotations

from hashlib import blake2b
from hmac import compare_digest

MIN_SECRET = 16  # bytes of the secret that both ends of a link share
SHORTEST, LONGEST = 16, 512  # characters of a key that is sent in a header


class KeyRing:
    """Keys with the names of their owners. Rings with different purposes have different digests of the same key."""

    def __init__(self, purpose: bytes) -> None:
        self._purpose = purpose
        self._names: dict[bytes, str] = {}

    def __len__(self) -> int:
        return len(self._names)

    @property
    def names(self) -> set[str]:
        """The owners."""
        return set(self._names.values())

    def add(self, key: bytes, name: str = "") -> bool:
        """Add a key; without a name its owner is named after its digest. False: the key is there already."""
        digest = self._digest(key)
        if digest in self._names:
            return False
        self._names[digest] = name or f"key-{digest[:8].hex()}"
        return True

    def whose(self, authorization: bytes) -> str | None:
        """The owner of the key in `authorization: Bearer KEY`; None: it is unknown. Every key takes the same time."""
        scheme, _, key = authorization.partition(b" ")
        asked = self._digest(key.strip()[: LONGEST + 1])
        found: str | None = None
        for digest, name in self._names.items():
            if compare_digest(asked, digest):
                found = name
        return found if scheme.lower() == b"bearer" else None

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=32, person=self._purpose).digest()
