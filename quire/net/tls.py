"""Tls: certificates, and the sockets of a link inside TLS 1.3, as the `ssl` library does it. Never blocks; knows no
frames and no secret.

plain   connect ............... greeting, proof, frames
tls     connect, handshake .... greeting, proof, frames       within the same deadline, and unproven until the proof
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from quire.core.records.errors import InputError, say

RECORD = 16 << 10  # bytes of one write
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the certificate of this end and its key, which a listener needs, and the authority to trust.

    Whom we dial shows a certificate of `ca` (of the system's authorities, without one) for the host we have dialled.
    Who dials us shows one when there is a `ca`.
    """

    cert: str | Path | None = None
    key: str | Path | None = None
    ca: str | Path | None = None

    def inward(self) -> ssl.SSLContext:
        """For incoming connections."""
        if self.cert is None:
            raise InputError(say("listening with TLS", "there is no certificate", "give `cert` and `key`"))
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0  # no session is resumed
        if self.ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def outward(self) -> ssl.SSLContext:
        """For outgoing connections."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        if self.ca is None:
            context.load_default_certs()
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if (self.key is None) != (self.cert is None):
            raise InputError(say("TLS", "only one of certificate and key was given", "give `cert` and `key`"))
        try:
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key, password="")  # else OpenSSL asks on the terminal
            if self.ca is not None:
                context.load_verify_locations(self.ca)
        except (OSError, ValueError) as error:
            names = ", ".join(str(name) for name in (self.cert, self.key, self.ca) if name is not None)
            cure = "give PEM files, the key without a password"
            raise InputError(say(f"TLS with {names}", str(error), cure)) from error
        return context


def check_tls(cert: str, key: str) -> None:
    """Refuse files that are not a certificate and its key, before a model is loaded."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        fact = f"{cert} and {key} cannot be used: {error}"
        raise InputError(say("TLS", fact, "give a certificate and its key, in PEM")) from None


class TlsSocket:
    """A socket as a connection uses one. The handshake takes place in the first calls, as far as it goes."""

    __slots__ = ("_chunk", "_context", "_host", "_is_secure", "_secure", "_sock", "_waits")

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, host: str | None) -> None:
        self._sock = sock
        self._secure: ssl.SSLSocket | None = None  # from when the socket is connected
        self._context = context
        self._host = host  # that was dialled; None: it has dialled us
        self._is_secure = False
        self._waits = READ if host is None else WRITE
        self._chunk: bytes | memoryview = b""  # handed over and not taken yet: it must be the same next time

    def fileno(self) -> int:
        """The same before and after the handshake."""
        return (self._secure or self._sock).fileno()

    def close(self) -> None:
        """At once."""
        (self._secure or self._sock).close()

    def interest(self, wanted: int) -> int:
        """What to wait for: until it is secure, what the handshake needs."""
        return wanted if self._is_secure else self._waits

    @property
    def has_more(self) -> bool:
        """Bytes are here that no selector knows of."""
        return self._secure is not None and self._secure.pending() > 0

    def sendmsg(self, views: Sequence[memoryview]) -> int:
        """Hand over the first bytes of these; how many were taken."""
        sock = self._ready()
        if not len(self._chunk):
            self._chunk = _first_bytes(views)
        sent = self._try(lambda: sock.send(self._chunk))
        self._chunk = b""
        return sent

    def recvmsg_into(self, views: Sequence[memoryview]) -> tuple[int, None]:
        """Fill the first of these, and more as long as bytes are here; 0: it was closed."""
        sock, total = self._ready(), 0
        for view in views:
            got = self._try(lambda view=view: sock.recv_into(view))  # type: ignore[misc]
            total += got
            if got < len(view) or not sock.pending():
                break
        return total, None

    def _ready(self) -> ssl.SSLSocket:
        """Go on with the handshake, or be done with it."""
        if self._secure is None:
            wrong = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if wrong:
                raise OSError(wrong, os.strerror(wrong))
            self._secure = self._wrapped()
        if not self._is_secure:
            self._try(self._secure.do_handshake)
            self._is_secure = True
        return self._secure

    def _wrapped(self) -> ssl.SSLSocket:
        try:
            self._sock.getpeername()
        except OSError as error:
            if error.errno == errno.ENOTCONN:
                raise BlockingIOError from None  # it is being dialled
            raise
        try:
            return self._context.wrap_socket(
                self._sock, server_side=self._host is None, do_handshake_on_connect=False, server_hostname=self._host
            )
        except (ValueError, TypeError) as error:  # a host that no certificate can name
            raise OSError(str(error)) from error

    def _try(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except ssl.SSLWantReadError:
            self._waits = READ
        except ssl.SSLWantWriteError:
            self._waits = WRITE
        raise BlockingIOError


def _first_bytes(views: Sequence[memoryview]) -> bytes | memoryview:
    """As many as go into one record."""
    parts: list[memoryview] = []
    room = RECORD
    for view in views:
        parts.append(view[:room])
        room -= len(parts[-1])
        if not room:
            break
    return parts[0] if len(parts) == 1 else b"".join(parts)
