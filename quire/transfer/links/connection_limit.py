"""Crowd: connections that were let in and have not proven that they know the secret. Bounded: who goes when there is no
room for one more, so that idle ones keep nobody out. Knows no sockets.

    first     who has said nothing, or has had its time: of the address with the most, the oldest; none of those who
              came in this very moment, which nobody has listened to yet
    else      one of the address with the most, by lot, the newcomer among them
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Generic, TypeVar

MOST_UNPROVEN = 256
FAIR = 1.0  # seconds in which an honest peer proves itself, wherever it is

T = TypeVar("T")


@dataclass(slots=True)
class _Guest:
    address: str
    since: float
    is_silent: bool = True


class Crowd(Generic[T]):
    """Who is in it, oldest first."""

    def __init__(self) -> None:
        self._guests: dict[T, _Guest] = {}
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._guests)

    def enter(self, token: T, address: str, now: float) -> T | None:
        """One more; who must go for it, if somebody must: it may be itself."""
        guest = self._guests[token] = _Guest(_neighbourhood(address), now)
        self._by_address[guest.address] += 1
        return self.choose(now) if len(self._guests) > MOST_UNPROVEN else None

    def heard(self, token: T) -> None:
        """It has said something, whatever that is worth."""
        if token in self._guests:
            self._guests[token].is_silent = False

    def leave(self, token: T) -> None:
        """It has proven itself, or is gone."""
        guest = self._guests.pop(token, None)
        if guest is not None:
            self._by_address[guest.address] -= 1
            if not self._by_address[guest.address]:
                del self._by_address[guest.address]

    def choose(self, now: float) -> T | None:
        """Who goes first; None: nobody is here."""
        overdue = [
            (self._by_address[guest.address], -place, token)
            for place, (token, guest) in enumerate(self._guests.items())
            if (guest.is_silent and guest.since < now) or now >= guest.since + FAIR
        ]
        if overdue:
            return max(overdue, key=lambda one: one[:2])[2]
        most = max(self._by_address, key=self._by_address.__getitem__, default="")
        return random.choice([t for t, guest in self._guests.items() if guest.address == most] or [None])


def _neighbourhood(address: str) -> str:
    """What one host can have many of counts as one: an IPv6 host has a network of 64 bits for itself."""
    try:
        where = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(where, IPv6Address):
        return address
    return str(where.ipv4_mapped or (int(where) >> 64))
