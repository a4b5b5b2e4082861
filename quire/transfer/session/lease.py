"""Lease: how long a sender holds pages for receivers that have not asked, and how they ask it to wait: by heartbeats.

Both sides: a sender's `Lease`, and the heartbeats of a receiver whose request waits in a queue. Knows no link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quire.transfer.wire import messages as wire
from quire.transfer.wire.verdict import Key

BEATS = 6  # heartbeats per lease: some of them may be lost


class Lease:
    """One sender's patience with receivers that have not asked. It only ever becomes longer."""

    __slots__ = ("_seconds", "_until")

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds = seconds
        self._until = now + seconds

    def begin_anew(self, now: float) -> None:
        """There is more to wait for: one more piece has been computed."""
        self._until = max(self._until, now + self._seconds)

    def renew(self, now: float) -> None:
        """A receiver still waits for it: a heartbeat."""
        self._until = max(self._until, now + self._seconds * 2 / 3)

    def has_run_out(self, now: float) -> bool:
        """No peer has sent anything for so long."""
        return now >= self._until


def next_beat(seconds: float, now: float) -> float:
    """When to send heartbeats again, for leases of so many seconds."""
    return now + seconds / BEATS


def beats(awaited: Iterable[tuple[Key, Iterable[str]]]) -> Iterator[tuple[str, wire.Beat]]:
    """One heartbeat for each sender, with all that is awaited from it; more where it names too many for one."""
    by_peer: dict[str, list[Key]] = {}
    for key, peers in awaited:
        for peer in peers:
            by_peer.setdefault(peer, []).append(key)
    for peer, keys in by_peer.items():
        for first in range(0, len(keys), wire.MAX_KEYS):
            yield peer, wire.Beat(tuple(keys[first : first + wire.MAX_KEYS]))
