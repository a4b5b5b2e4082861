"""HMAC authentication: two ends of a connection prove that they know the secret, and tag every frame they send. It
encrypts nothing (`tls` does); knows no sockets.

    both     magic, nonce, name                                        greeting
    both     HMAC(secret, role, both nonces, own name)                 proof
    then     every frame: head, tag = HMAC(key of this direction, number, head and body), body

A frame that was changed, repeated, left out or reflected has a wrong tag.
"""

from __future__ import annotations

import hmac
import os
import struct
from hashlib import sha256

from quire.core.records.errors import InputError, say
from quire.net.secrets import MIN_SECRET

MAGIC = b"QUIRE\x00\x00\x01"  # the last byte is the version of the frames
NONCE_BYTES, PROOF_BYTES, TAG_BYTES, NAME_BYTES = 16, 32, 16, 200
GREETING_BYTES = len(MAGIC) + NONCE_BYTES + 1 + NAME_BYTES  # names are padded: one size to read


class HmacAuthentication:
    """One end's view of the handshake and, after it, of the tags in both directions."""

    def __init__(self, secret: bytes, name: str, *, dialled: bool) -> None:
        if not isinstance(secret, bytes) or len(secret) < MIN_SECRET:
            raise InputError(say("a link's secret", f"it needs {MIN_SECRET} bytes or more", "share a random one"))
        raw = name.encode()
        if not 0 < len(raw) <= NAME_BYTES:
            raise InputError(say(f"link name {name!r}", f"it has {len(raw)} bytes", f"use 1 to {NAME_BYTES}"))
        self._secret = secret
        self._dialled = dialled
        self._nonce = os.urandom(NONCE_BYTES)
        self._name = raw
        self._theirs = b""
        self._their_name = b""
        self._keys = (b"", b"")  # to send, to receive
        self._numbers = [0, 0]

    def greeting(self) -> bytes:
        """The first bytes on the wire."""
        return MAGIC + self._nonce + bytes((len(self._name),)) + self._name.ljust(NAME_BYTES, b"\0")

    def greeted(self, data: bytes) -> str:
        """The peer's first bytes; its name, which is not proven yet."""
        if data[: len(MAGIC)] != MAGIC:
            raise InputError(say("a connection", "the peer does not speak this version of the link", "check the port"))
        self._theirs = data[len(MAGIC) : len(MAGIC) + NONCE_BYTES]
        size = data[len(MAGIC) + NONCE_BYTES]
        self._their_name = data[len(MAGIC) + NONCE_BYTES + 1 :][:size]
        nonces = (self._nonce, self._theirs) if self._dialled else (self._theirs, self._nonce)
        keys = tuple(hmac.digest(self._secret, b"key" + side + b"".join(nonces), sha256) for side in (b"d", b"a"))
        self._keys = (keys[0], keys[1]) if self._dialled else (keys[1], keys[0])
        return self._their_name.decode(errors="replace")

    def proof(self) -> bytes:
        """What shows that this end knows the secret."""
        return self._proof(self._dialled, self._theirs, self._nonce, self._name)

    def proven(self, data: bytes) -> bool:
        """Whether the peer knows it too."""
        return hmac.compare_digest(data, self._proof(not self._dialled, self._nonce, self._theirs, self._their_name))

    def _proof(self, dialled: bool, to: bytes, by: bytes, name: bytes) -> bytes:
        return hmac.digest(self._secret, b"proof" + (b"d" if dialled else b"a") + to + by + name, sha256)

    def tag(self, frame: bytes) -> bytes:
        """The tag of the next frame to send."""
        return self._tag(0, frame)

    def matches(self, frame: bytes, tag: bytes) -> bool:
        """Whether the next frame received is the one that was sent."""
        return hmac.compare_digest(tag, self._tag(1, frame))

    def _tag(self, way: int, frame: bytes) -> bytes:
        number = struct.pack("<Q", self._numbers[way])
        self._numbers[way] += 1
        return hmac.digest(self._keys[way], number + frame, sha256)[:TAG_BYTES]
