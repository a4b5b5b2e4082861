"""Peers: who is known, who does not fit and who stays silent. Owns introductions; knows no sessions.

greet: Hello ->        <- Hello: it is known, and what it can do         <- Refuse: it is not asked again
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from quire.core.records.errors import QuireError
from quire.transfer.geometry.ranks import Source, meets
from quire.transfer.wire import messages as wire
from quire.transfer.wire.layout import PER_GROUP, Layout, from_hello, hello, misfits, uncovered

AGAIN = 1.0  # seconds until a peer that could not be reached is tried again
MOST_SOURCES = 1024  # that are known to fit, or not to

_log = logging.getLogger("quire.transfer")


class _Unreached(NamedTuple):
    """A peer that was lost before it said hello: until when it is not tried again, and why."""

    until: float
    reason: str


class Peers:
    """Introductions of one endpoint. `send` hands a message over, and returns whether it could."""

    def __init__(self, layout: Layout, send: Callable[[str, bytes], bool]) -> None:
        self._hello = wire.encode(hello(layout))
        wire.decode(self._hello)  # what no peer would understand is an error here, not a silence there
        self._mine = layout
        self._send = send
        self.layouts: dict[str, Layout] = {}  # of those that have said hello
        self.misfits: dict[str, str] = {}  # whom we have refused, while they are connected
        self._greeted: set[str] = set()
        self._refused: dict[str, str] = {}  # who has refused us, and why, while they are connected
        self._unreached: dict[str, _Unreached] = {}
        self._lacks: dict[Source, str | None] = {}  # what the peers of a source would leave unwritten here

    def greet(self, peer: str) -> bool:
        """Say hello before the first message to a peer; False when it is out of reach."""
        if peer not in self._greeted:
            if not self._send(peer, self._hello):
                return False
            self._greeted.add(peer)
        return True

    def met(self, peer: str, message: wire.Hello) -> None:
        """A hello: one that fits is answered, once; one that does not is refused with the reason."""
        self.layouts.pop(peer, None)
        self._lacks.clear()
        try:
            theirs = from_hello(message)
            wrong = misfits(self._mine, theirs)
        except QuireError as odd:
            wrong = str(odd)[:1000]
        if wrong is not None:
            self.misfits[peer] = wrong
            _log.warning("peer %s does not fit: %r", peer, wrong)
            self._send(peer, wire.encode(wire.Refuse(wrong)))
            return
        for facts in (self.misfits, self._refused):
            facts.pop(peer, None)
        self.layouts[peer] = theirs
        _log.info("peer %s is known: %r", peer, theirs)
        self.greet(peer)

    def not_understood(self, peer: str, why: str) -> None:
        """A peer that has not said hello sent what is not a message of this version: it may run another release."""
        if peer not in self.layouts:
            self.misfits[peer] = why

    def refused_by(self, peer: str, reason: str) -> None:
        """It does not want us."""
        self._refused[peer] = reason
        _log.warning("peer %s refuses us: %r", peer, reason)

    def meet(self, peer: str, now: float) -> str | None:
        """Greet it unless it is known; what speaks against asking it, if something does."""
        reason = self._refused.get(peer) or self.misfits.get(peer)
        if reason is not None:
            return f"{peer} does not fit: {reason}"
        if peer in self.layouts:
            return None
        unreached = self._unreached.get(peer)
        if unreached is not None and now < unreached.until:
            return f"{peer} could not be asked: {unreached.reason}"
        return None if self.greet(peer) else f"{peer} could not be asked"

    def give_up(self, peers: Iterable[str]) -> None:
        """They have not answered: the next session that needs them says hello again."""
        self._greeted.difference_update(peers)

    def lack(self, source: Source) -> str | None:
        """What of the pages here a source, whose peers are all known, would leave unwritten; with any of its groups."""
        if source not in self._lacks:
            if len(self._lacks) >= MOST_SOURCES:
                self._lacks.clear()
            self._lacks[source] = self._find_lack(source)
        return self._lacks[source]

    def _find_lack(self, source: Source) -> str | None:
        mine = self._mine
        for group in range(source.grid.groups) if source.group is None else (source.group,):
            peers = [source.peers[rank] for rank in meets(mine.grid, mine.seat, source.grid, group)]
            wrong = uncovered(mine, [self.layouts[peer] for peer in peers])
            if wrong is not None:
                return f"{', '.join(peers) or 'no peer there'} cannot fill pages here: {wrong}"
        return None

    def know(self, peers: Iterable[str]) -> bool:
        """All of them have said hello."""
        return all(peer in self.layouts for peer in peers)

    def take_wants(self, peers: Iterable[str]) -> bool:
        """All of them know that groups may want different blocks; else one start is meant for all groups."""
        return all(PER_GROUP in self.layouts[peer].can for peer in peers)

    def lost(self, peer: str, reason: str, now: float) -> bool:
        """It is gone, and greeted again when a session needs it. Returns whether it had said hello."""
        known = self.layouts.pop(peer, None) is not None
        if known:
            self._lacks.clear()
        self.misfits.pop(peer, None)
        self._refused.pop(peer, None)
        greeted = peer in self._greeted
        self._greeted.discard(peer)
        if greeted and not known:
            self._unreached = {name: one for name, one in self._unreached.items() if now < one.until}
            self._unreached[peer] = _Unreached(now + AGAIN, reason)
        return known

    def forgive(self, peer: str) -> None:
        """Try one again that did not fit."""
        self._greeted.discard(peer)
        self._refused.pop(peer, None)
        self.misfits.pop(peer, None)
        self._unreached.pop(peer, None)
