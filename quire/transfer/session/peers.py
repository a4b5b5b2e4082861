"""Peers: who is known, who does not fit and who stays silent. Owns introductions; knows no sessions.

greet: Hello ->        <- Hello: it is known, and what it can do         <- Refuse: it is not asked again
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from quire.core.records.errors import QuireError
from quire.transfer.geometry.ranks import Source, meets
from quire.transfer.wire import messages as wire
from quire.transfer.wire.layout import PER_GROUP, Layout, from_hello, hello, misfits, uncovered

AGAIN = 1.0  # seconds until a peer that could not be reached is tried again
MOST_SOURCES = 1024  # that are known to fit, or not to


class Peers:
    """Introductions of one endpoint. `say` sends a message, and tells whether it could."""

    def __init__(self, layout: Layout, say: Callable[[str, bytes], bool]) -> None:
        self._hello = wire.encode(hello(layout))
        wire.decode(self._hello)  # what nobody would understand is an error here, not a silence there
        self._mine = layout
        self._say = say
        self.layouts: dict[str, Layout] = {}  # of those that have said hello
        self.misfits: dict[str, str] = {}  # whom we have refused, while they are connected
        self._greeted: set[str] = set()
        self._refused: dict[str, str] = {}  # who has refused us, and why, while they are connected
        self._gone: dict[str, tuple[float, str]] = {}  # lost before they said hello: until when, and why
        self._lacks: dict[Source, str | None] = {}  # what the peers of a source would leave unwritten here

    def greet(self, peer: str) -> bool:
        """Say hello before the first word to a peer; False when it is out of reach."""
        if peer not in self._greeted:
            if not self._say(peer, self._hello):
                return False
            self._greeted.add(peer)
        return True

    def met(self, peer: str, message: wire.Hello) -> None:
        """A hello: one that fits is answered, once; one that does not is told why."""
        self.layouts.pop(peer, None)
        self._lacks.clear()
        try:
            theirs = from_hello(message)
            wrong = misfits(self._mine, theirs)
        except QuireError as odd:
            wrong = str(odd)[:1000]
        if wrong is not None:
            self.misfits[peer] = wrong
            self._say(peer, wire.encode(wire.Refuse(wrong)))
            return
        for facts in (self.misfits, self._refused):
            facts.pop(peer, None)
        self.layouts[peer] = theirs
        self.greet(peer)

    def not_understood(self, peer: str, why: str) -> None:
        """A stranger speaks in riddles: another release, say."""
        if peer not in self.layouts:
            self.misfits[peer] = why

    def refused_by(self, peer: str, reason: str) -> None:
        """It does not want us."""
        self._refused[peer] = reason

    def meet(self, peer: str, now: float) -> str | None:
        """Greet it unless it is known; what speaks against asking it, if something does."""
        reason = self._refused.get(peer) or self.misfits.get(peer)
        if reason is not None:
            return f"{peer} does not fit: {reason}"
        if peer in self.layouts:
            return None
        until, reason = self._gone.get(peer, (now, ""))
        if now < until:
            return f"{peer} could not be asked: {reason}"
        return None if self.greet(peer) else f"{peer} could not be asked"

    def give_up(self, peers: Iterable[str]) -> None:
        """They have not answered: who needs them next says hello again."""
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
                return f"{', '.join(peers) or 'nobody there'} cannot fill pages here: {wrong}"
        return None

    def know(self, peers: Iterable[str]) -> bool:
        """All of them have said hello."""
        return all(peer in self.layouts for peer in peers)

    def take_wants(self, peers: Iterable[str]) -> bool:
        """All of them know that groups may want different blocks; else one start is meant for all groups."""
        return all(PER_GROUP in self.layouts[peer].can for peer in peers)

    def lost(self, peer: str, reason: str, now: float) -> None:
        """It is gone. It is greeted again when somebody needs it."""
        known = self.layouts.pop(peer, None) is not None
        self._lacks.clear()
        self.misfits.pop(peer, None)
        self._refused.pop(peer, None)
        greeted = peer in self._greeted
        self._greeted.discard(peer)
        if greeted and not known:
            self._gone = {name: fact for name, fact in self._gone.items() if now < fact[0]}
            self._gone[peer] = (now + AGAIN, reason)

    def forgive(self, peer: str) -> None:
        """Try one again that did not fit."""
        self._greeted.discard(peer)
        self._refused.pop(peer, None)
        self.misfits.pop(peer, None)
        self._gone.pop(peer, None)
