"""Early messages: those whose session is not here yet, kept for a while; and what is known of sessions that are over,
so that messages which come too late are recognised. Sends nothing; knows no link and no pages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import NamedTuple

from quire.transfer.session.peer_index import PeerIndex
from quire.transfer.wire import messages as wire
from quire.transfer.wire.verdict import Key, Limits

REMEMBERED = 4096  # names of sessions that are over, and of asks that were answered


class EarlyAsk(NamedTuple):
    """A receiver has asked before there was a session."""

    peer: str
    ask: wire.Ask
    until: float


class EarlyCancel(NamedTuple):
    """A peer has cancelled before there was a session; `has_asked`: it had asked for it, or has done so since."""

    peer: str
    reason: str
    until: float
    has_asked: bool


class RefusedKey(NamedTuple):
    """What is never sent, and why; asks are answered with it for a while."""

    reason: str
    until: float


class EarlyMessages:
    """One endpoint's. Bounded by its limits in number, in bytes and in time."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.asks: dict[tuple[Key, str], EarlyAsk] = {}
        self.cancels: dict[tuple[Key, str], EarlyCancel] = {}
        self.over: OrderedDict[Key, None] = OrderedDict()  # sessions that have ended
        self._refusals: OrderedDict[Key, RefusedKey] = OrderedDict()
        self._answered: OrderedDict[tuple[Key, str], None] = OrderedDict()  # asks that got their last report
        self._asks_of, self._answered_of = PeerIndex(), PeerIndex()

    # -- asks --------------------------------------------------------------------------------------------------------

    def park_ask(self, peer: str, ask: wire.Ask, now: float) -> bool:
        """Keep it until its session comes; False when too much waits."""
        key, limits = wire.key_of(ask), self._limits
        waits = sum(early.ask.num_bytes for early in self.asks.values())
        if len(self.asks) >= limits.messages or waits + ask.num_bytes > limits.parked_bytes:
            return False
        self.asks.setdefault((key, peer), EarlyAsk(peer, ask, now + limits.parked))
        self._asks_of.add(peer, key)
        return True

    def drop_ask(self, key: Key, peer: str) -> EarlyAsk | None:
        """That peer's ask is not needed any more; it, if there was one."""
        self._asks_of.discard(peer, key)
        return self.asks.pop((key, peer), None)

    def take_asks(self, key: Key) -> list[EarlyAsk]:
        """What was asked of a session before it was there, in order."""
        taken = [early for (other, _), early in self.asks.items() if other == key]
        for early in taken:
            self.drop_ask(key, early.peer)
        return taken

    def answer(self, key: Key, peer: str) -> bool:
        """This ask gets its last report; False when it has got one: a copy of it is neither served nor refused."""
        fresh = (key, peer) not in self._answered
        self._answered[key, peer] = None
        self._answered_of.add(peer, key)
        if len(self._answered) > REMEMBERED:
            (oldest, whose), _ = self._answered.popitem(last=False)
            self._answered_of.discard(whose, oldest)
        return fresh

    def was_answered(self, key: Key, peer: str) -> bool:
        """That peer's ask has got its last report."""
        return (key, peer) in self._answered

    # -- cancels -----------------------------------------------------------------------------------------------------

    def park_cancel(self, peer: str, message: wire.Cancel, now: float) -> None:
        """The session shall be cancelled when it comes; an ask of that peer is not needed any more."""
        key = wire.key_of(message)
        has_asked = self.drop_ask(key, peer) is not None
        if len(self.cancels) < self._limits.messages:
            early = EarlyCancel(peer, message.reason, now + self._limits.parked, has_asked)
            self.cancels.setdefault((key, peer), early)

    def was_cancelled(self, key: Key, peer: str) -> bool:
        """That peer's cancel has overtaken its ask; from now on it counts as one that has asked."""
        early = self.cancels.get((key, peer))
        if early is None:
            return False
        self.cancels[key, peer] = early._replace(has_asked=True)
        return True

    def cancelled(self, key: Key, writers: Collection[str] | None = None) -> EarlyCancel | None:
        """Who has cancelled a session before it was there: one of its writers; or, of a sender, one that has asked."""
        for (other, peer), early in self.cancels.items():
            if other == key and (early.has_asked if writers is None else peer in writers):
                return early
        return None

    def drop_cancels(self, key: Key) -> None:
        """The session is there."""
        for name in [name for name in self.cancels if name[0] == key]:
            del self.cancels[name]

    # -- refusals, and the end ---------------------------------------------------------------------------------------

    def refuse(self, key: Key, reason: str, now: float) -> None:
        """Asks that come later are answered with this, for a while."""
        self._refusals[key] = RefusedKey(reason, now + self._limits.parked)
        if len(self._refusals) > self._limits.messages:
            self._refusals.popitem(last=False)

    def refusal(self, key: Key) -> str | None:
        """Why nothing is sent under that key, if that was said."""
        refused = self._refusals.get(key)
        return None if refused is None else refused.reason

    def close(self, key: Key) -> None:
        """A session is over."""
        self.over[key] = None
        if len(self.over) > REMEMBERED:
            self.over.popitem(last=False)

    def forget(self, peer: str) -> None:
        """A peer is gone, and what it asked; copies of that cannot come any more."""
        for key in self._asks_of.keys_of(peer):
            self.drop_ask(key, peer)
        for key in self._answered_of.keys_of(peer):
            del self._answered[key, peer]
            self._answered_of.discard(peer, key)

    def sweep(self, now: float) -> list[EarlyAsk]:
        """Drop what has waited too long, whatever its order. Returns asks: they are owed an answer."""
        late = [(key, early) for (key, _), early in self.asks.items() if now >= early.until]
        for key, early in late:
            self.drop_ask(key, early.peer)
        for name in [name for name, cancel in self.cancels.items() if now >= cancel.until]:
            del self.cancels[name]
        for key in [key for key, refused in self._refusals.items() if now >= refused.until]:
            del self._refusals[key]
        return [early for _, early in late]
