"""Hosts: which addresses belong to this machine, and which count as one host when connections are limited. Knows no
sockets.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def neighbourhood(address: str) -> str:
    """What one host can have many of counts as one: an IPv6 host has a network of 64 bits for itself."""
    try:
        where = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(where, IPv6Address):
        return address
    return str(where.ipv4_mapped or (int(where) >> 64))
