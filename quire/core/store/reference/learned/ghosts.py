"""Ghosts: what is known of pages that are gone, the last so many of a pool.

Owns the ring: first in, first out, found by key. A page that goes twice leaves two ghosts, and a search finds the
newest. A ghost that is taken leaves a gap, which is not filled before its turn. The ring takes memory as it fills.
Knows nothing of pages that are there, nor of what a ghost is remembered for.
"""

from typing import NamedTuple

from quire.core.store.reuse import REST_TICKS

Key = tuple[int, int, int]  # of a page: its scope's name, its block's chain key, its group
MOST_GHOSTS = 1 << 30
MAX_REST = (1 << 20) - 1


class Ghost(NamedTuple):
    """A page that is gone."""

    key: Key
    used: int  # when an admission last used it, in ticks
    rest: int  # quarters of a second from then on until it went
    why: int
    uses: int
    reuse: int  # its class
    admission: int  # admissions so far, the one it made room for included


class Ghosts:
    """A ring of so many places, `room`; those that none has come to yet are not in `places`."""

    __slots__ = ("_at", "_next", "places", "room")

    def __init__(self, room: int) -> None:
        self.room = min(room, MOST_GHOSTS)
        self.places: list[Ghost | None] = []
        self._at: dict[Key, list[int]] = {}  # key -> places, the newest last
        self._next = 0

    def __len__(self) -> int:
        return sum(map(len, self._at.values()))

    def add(self, ghost: Ghost) -> Ghost | None:
        """Remember a page; the ghost that falls out for it."""
        if not self.room:
            return None
        place, self._next = self._next, (self._next + 1) % self.room
        if place == len(self.places):
            self.places.append(None)
        old, self.places[place] = self.places[place], ghost
        if old is not None:
            self._at[old.key].remove(place)
            if not self._at[old.key]:
                del self._at[old.key]
        self._at.setdefault(ghost.key, []).append(place)
        return old

    def find_ghost(self, key: Key) -> Ghost | None:
        """The newest ghost of a key."""
        places = self._at.get(key)
        return None if places is None else self.places[places[-1]]

    def take_ghost(self, key: Key) -> Ghost | None:
        """Take the newest ghost of a key; the key has none any more."""
        ghost = self.find_ghost(key)
        for place in self._at.pop(key, []):
            self.places[place] = None
        return ghost

    def forget(self) -> None:
        """Forget all, as if none had ever been."""
        self.places.clear()
        self._at.clear()
        self._next = 0


def rest_of(used: int, now: int) -> int:
    """Quarters of a second from a page's last use until now, the nearest number."""
    return min((max(0, now - used) + REST_TICKS // 2) // REST_TICKS, MAX_REST)


def gone_at(ghost: Ghost) -> int:
    """The tick at which a page went, to a quarter of a second."""
    if not ghost.uses:
        return ghost.used  # of an order that learns nothing: when it went
    return (ghost.used + ghost.rest * REST_TICKS + REST_TICKS // 2) // REST_TICKS * REST_TICKS
