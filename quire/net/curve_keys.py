"""Curve: who may read a stream and ask for it: ZMQ's CURVE, as pyzmq has it. Owns keys and who is let in; no crypto.

A publisher is the server, also where it connects: its public key is what followers must know. They are clients, with
keys of their own; `clients` says which of them are let in.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
import zmq.auth
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from quire.core.records.errors import InputError, StateError, say
from quire.net.zmq_sockets import open_socket

DOMAIN = "quire"
_log = logging.getLogger("quire.events")


def public_key(key: bytes | str) -> bytes:
    """A public key, from Z85 text or from the name of a file that has one."""
    text = key.encode() if isinstance(key, str) else key
    is_file = isinstance(key, str) and os.path.isfile(key)  # the name of one may look like a key
    if isinstance(text, bytes) and len(text) == 40 and not is_file:
        return Keys(text, b"").public
    return Keys.read(Path(str(key)), secret=False).public


def _is_z85(text: bytes) -> bool:
    try:
        z85.decode(text)
    except (KeyError, struct.error):  # other letters, or a number that is too large
        return False
    return True


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one end, as 40 characters of Z85 each; `Keys.make()`, or `Keys.read(file)`."""

    public: bytes
    secret: bytes = field(repr=False)
    clients: frozenset[bytes] | None = None  # of a publisher: who is let in; None: all who know its public key

    def __post_init__(self) -> None:
        if not zmq.has("curve"):
            raise StateError(say("CURVE", "this libzmq was built without it", "install pyzmq from its wheel"))
        for key in (self.public, self.secret, *(self.clients or ())):
            if not isinstance(key, bytes) or len(key) not in (0, 40) or not _is_z85(key):
                fact, cure = "it is not a Z85 text of 40 bytes", "use Keys.make() or Keys.read(file)"
                raise InputError(say("this key", fact, cure))
        if self.secret and zmq.curve_public(self.secret) != self.public:
            raise InputError(say("these keys", "the public one is not that of the secret one", "use Keys.make()"))

    @staticmethod
    def make() -> Keys:
        """Fresh ones."""
        public, secret = zmq.curve_keypair()
        return Keys(public, secret)

    @staticmethod
    def read(path: str | Path, *, secret: bool = True) -> Keys:
        """From a file as `zmq.auth.create_certificates` writes it."""
        try:
            public, own = zmq.auth.load_certificate(path)
        except (OSError, ValueError) as error:
            raise InputError(say(f"keys in {path}", str(error), "use zmq.auth.create_certificates")) from error
        if secret and own is None:
            raise InputError(say(f"keys in {path}", "there is no secret key", "pass the file that ends in .key_secret"))
        return Keys(public, own or b"")

    def admitting(self, clients: Iterable[bytes | str]) -> Keys:
        """The same for a publisher that accepts these clients only."""
        return Keys(self.public, self.secret, frozenset(public_key(client) for client in clients))


class ServerSockets:
    """Makes the sockets of one publisher. With a list of clients they have a context and authenticator of their own."""

    def __init__(self, keys: Keys | None) -> None:
        self._keys = keys
        self._context: zmq.Context[Any] | None = None
        self._authenticator: ThreadAuthenticator | None = None
        if keys is not None and keys.clients is not None:
            self._context = zmq.Context()  # it has one authenticator; that of a shared one may be another's
            self._authenticator = ThreadAuthenticator(self._context)
            self._authenticator.start()
            self._authenticator.configure_curve_callback(domain=DOMAIN, credentials_provider=self)

    def callback(self, domain: str, key: bytes) -> bool:
        """Asked by pyzmq: whether a client's public key, in Z85, is one of those."""
        known = self._keys is not None and self._keys.clients is not None and key in self._keys.clients
        if not known:
            _log.warning("a client with the public key %r was refused", key)
        return known

    def socket(self, kind: int) -> zmq.Socket[bytes]:
        """A server's socket."""
        made = open_socket(kind) if self._context is None else self._context.socket(kind)
        if self._keys is not None:
            made.curve_secretkey, made.curve_publickey = self._keys.secret, self._keys.public
            made.curve_server = True
            made.zap_domain = DOMAIN.encode()
        return made

    def close(self) -> None:
        """After its sockets were closed: what lingers in them is sent first."""
        if self._context is not None and self._authenticator is not None:
            self._authenticator.stop()
            self._context.term()


def join(socket: zmq.Socket[bytes], keys: Keys | None, server: bytes | None) -> None:
    """Make a socket a client of the server with that public key."""
    if server is not None:
        own = keys or Keys.make()
        socket.curve_secretkey, socket.curve_publickey, socket.curve_serverkey = own.secret, own.public, server
    elif keys is not None:
        raise InputError(say("keys without a server's", "CURVE needs the publisher's public key", "pass server=..."))
