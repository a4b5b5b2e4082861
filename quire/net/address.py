"""Addresses: `host:port` as text, `[host]:port` for IPv6, and what a socket needs of it. Asks no name server."""

from __future__ import annotations

import socket
from typing import Any, NamedTuple

from quire.core.records.errors import InputError, say


class HostPort(NamedTuple):
    """The two halves of `host:port`, the host without brackets."""

    host: str
    port: int


class SocketAddress(NamedTuple):
    """Where a socket connects to: a numeric address and its family."""

    family: int
    address: tuple[Any, ...]


def split(address: str) -> HostPort:
    """The host and the port of `host:port`."""
    host, _, port = address.rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if in_brackets else host
    if not host or (":" in host) != in_brackets or not port.isdecimal() or int(port) > 65535:
        cure = "name a host and a port, an IPv6 host in brackets"
        raise InputError(say(f"address {address!r}", "it is not host:port", cure))
    return HostPort(host, int(port))


def joined(host: str, port: int) -> str:
    """The reverse of `split`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def encoded(host: str) -> bytes | None:
    """A host as a resolver takes it; None when it cannot be one."""
    try:
        raw = host.encode("idna")
    except UnicodeError:
        return None
    return None if b"\0" in raw else raw


def addresses(host: bytes, port: int, *, numeric: bool) -> list[SocketAddress]:
    """What a host stands for, IPv4 first; one that is `numeric` is answered at once, others when the resolver does."""
    flags = socket.AI_NUMERICHOST if numeric else 0
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return sorted((SocketAddress(family, where) for family, _, _, _, where in found), key=lambda found: found.family)


def numeric_address(host: bytes, port: int) -> SocketAddress | None:
    """Where a host that is a number lies; None when it is a name."""
    try:
        return addresses(host, port, numeric=True)[0]
    except socket.gaierror:
        return None
