"""Peers: who is known, who does not fit and who stays silent. Owns introductions; knows no sessions.

    greet: Hello ->        <- Hello: it is known, and what it can do         <- Refuse: it is not asked again
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from quire.core.errors import QuireError
from quire.transfer import messages as wire
from quire.transfer.layout import PER_GROUP, Layout, from_hello, hello, misfits

AGAIN = 1.0  # seconds until a peer that could not be reached is tried again


class Peers:
    """Introductions of one endpoint. `say` sends a message, and tells whether it could."""

    def __init__(self, layout: Layout, patience: float, say: Callable[[str, bytes], bool]) -> None:
        self._hello = wire.encode(hello(layout))
        wire.decode(self._hello)  # what nobody would understand is an error here, not a silence there
        self._mine = layout
        self._patience = patience  # seconds for an answer to a hello
        self._say = say
        self.layouts: dict[str, Layout] = {}  # of those that have said hello
        self.misfits: dict[str, str] = {}  # whom we have refused, while they are connected
        self._greeted: dict[str, float] = {}  # when
        self._since: dict[str, float] = {}  # since when they owe us a hello, lost or not
        self._refused: dict[str, str] = {}  # who has refused us, and why, while they are connected
        self._gone: dict[str, tuple[float, str]] = {}  # lost before they said hello: until when, and why

    def greet(self, peer: str, now: float) -> bool:
        """Say hello before the first word to a peer; False when it is out of reach."""
        if peer not in self._greeted:
            if not self._say(peer, self._hello):
                return False
            self._greeted[peer] = now
            if peer not in self.layouts:
                self._since.setdefault(peer, now)
        return True

    def met(self, peer: str, message: wire.Hello, now: float) -> None:
        """A hello: one that fits is answered, once; one that does not is told why."""
        self.layouts.pop(peer, None)
        try:
            theirs = from_hello(message)
            wrong = misfits(self._mine, theirs)
        except QuireError as odd:
            wrong = str(odd)[:1000]
        if wrong is not None:
            self.misfits[peer] = wrong
            self._say(peer, wire.encode(wire.Refuse(wrong)))
            return
        for facts in (self.misfits, self._refused, self._since):
            facts.pop(peer, None)
        self.layouts[peer] = theirs
        self.greet(peer, now)

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
        if not self.greet(peer, now):
            return f"{peer} could not be asked"
        if now >= self._since[peer] + self._patience:
            del self._since[peer], self._greeted[peer]
            return f"{peer} has not said hello within {self._patience:g} s"
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
        self.misfits.pop(peer, None)
        self._refused.pop(peer, None)
        if self._greeted.pop(peer, None) is not None and not known:
            self._gone = {name: fact for name, fact in self._gone.items() if now < fact[0]}
            self._gone[peer] = (now + AGAIN, reason)

    def forgive(self, peer: str) -> None:
        """Try one again that did not fit."""
        for facts in (self._refused, self.misfits, self._greeted, self._since, self._gone):
            facts.pop(peer, None)
