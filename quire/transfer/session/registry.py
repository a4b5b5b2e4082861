"""Books: what one endpoint owns, in one place: sessions, pages in their care, peers, messages that came too early.

Decides nothing; `hearing` and `endpoint` act on it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from quire.core.records.errors import QuireError
from quire.transfer.links.link import Door, Link
from quire.transfer.session.orders import Orders
from quire.transfer.session.peers import Peers
from quire.transfer.session.receiving import Receiving
from quire.transfer.session.sending import Do, Move, Sending
from quire.transfer.views.view import CacheView, Landing, Offer
from quire.transfer.wire import messages as wire
from quire.transfer.wire.aux import AuxRoom
from quire.transfer.wire.layout import Layout
from quire.transfer.wire.verdict import Key, Limits

Session = Sending | Receiving
T = TypeVar("T")
REMEMBERED = 4096  # names of sessions that are over


@dataclass(slots=True, eq=False)
class Arrival:
    """A receiving session with its pages and its door; without them nothing was published."""

    session: Receiving
    landing: Landing | None = None
    door: Door | None = None


@dataclass(slots=True, eq=False)
class Dispatch:
    """A sending session with the pages it holds."""

    session: Sending
    id: object
    offers: list[Offer] = field(default_factory=list)
    cursor: int = 0  # tokens handed over so far, whole blocks


@dataclass(slots=True)
class Waiting:
    """Messages whose session is not there yet, for a while; and sessions that are over, so that late ones are known."""

    limits: Limits
    asks: dict[tuple[Key, str], tuple[float, wire.Ask]] = field(default_factory=dict)
    cancels: dict[tuple[Key, str], tuple[float, str, bool]] = field(default_factory=dict)  # until, why, it has asked
    refusals: OrderedDict[Key, tuple[float, str]] = field(default_factory=OrderedDict)  # what is never sent, and why
    over: OrderedDict[Key, None] = field(default_factory=OrderedDict)
    answered: OrderedDict[tuple[Key, str], None] = field(default_factory=OrderedDict)  # asks that got their last word

    def park_ask(self, peer: str, ask: wire.Ask, now: float) -> bool:
        """Keep it until its session comes; False when too much waits."""
        name = (wire.key_of(ask), peer)
        waits = sum(ask.num_bytes for _, ask in self.asks.values())
        if len(self.asks) >= self.limits.messages or waits + ask.num_bytes > self.limits.parked_bytes:
            return False
        self.asks.setdefault(name, (now + self.limits.parked, ask))
        return True

    def park_cancel(self, peer: str, message: wire.Cancel, now: float) -> None:
        """The session shall be cancelled when it comes; an ask of that peer is not needed any more."""
        name = (wire.key_of(message), peer)
        asked = self.asks.pop(name, None) is not None
        if len(self.cancels) < self.limits.messages:
            self.cancels.setdefault(name, (now + self.limits.parked, message.reason, asked))

    def was_cancelled(self, key: Key, peer: str) -> bool:
        """That peer's cancel has overtaken its ask; from now on it counts as one that has asked."""
        name = (key, peer)
        if name not in self.cancels:
            return False
        self.cancels[name] = (*self.cancels[name][:2], True)
        return True

    def cancelled(self, key: Key, writers: Collection[str] | None = None) -> tuple[str, str] | None:
        """Who has cancelled a session before it was there, and why: one of its writers, or else one that has asked."""
        for (other, peer), (_, reason, asked) in self.cancels.items():
            if other == key and (asked if writers is None else peer in writers):
                return peer, reason
        return None

    def drop_cancels(self, key: Key) -> None:
        """The session is there."""
        for name in [name for name in self.cancels if name[0] == key]:
            del self.cancels[name]

    def refuse(self, key: Key, reason: str, now: float) -> None:
        """Asks that come later are answered with this, for a while."""
        self.refusals[key] = (now + self.limits.parked, reason)
        if len(self.refusals) > self.limits.messages:
            self.refusals.popitem(last=False)

    def take_asks(self, key: Key) -> list[tuple[str, wire.Ask]]:
        """What was asked of a session before it was there, in order."""
        mine = [name for name in self.asks if name[0] == key]
        return [(name[1], self.asks.pop(name)[1]) for name in mine]

    def forget(self, peer: str) -> None:
        """A peer is gone, and what it asked; copies of that cannot come any more."""
        for name in [name for name in self.asks if name[1] == peer]:
            del self.asks[name]
        for name in [name for name in self.answered if name[1] == peer]:
            del self.answered[name]

    def sweep(self, now: float) -> list[tuple[str, wire.Ask]]:
        """Drop what waited too long, whatever its order. Returns asks: they are owed an answer."""
        late = [name for name, (until, _) in self.asks.items() if now >= until]
        asks = [(name[1], self.asks.pop(name)[1]) for name in late]
        for name in [name for name, (until, _, _) in self.cancels.items() if now >= until]:
            del self.cancels[name]
        for key in [key for key, (until, _) in self.refusals.items() if now >= until]:
            del self.refusals[key]
        return asks

    def close(self, key: Key) -> None:
        """A session is over."""
        _remember(self.over, key)

    def answer(self, key: Key, peer: str) -> bool:
        """This ask gets its last word; False when it has got one: a copy of it is neither served nor refused."""
        fresh = (key, peer) not in self.answered
        _remember(self.answered, (key, peer))
        return fresh


def _remember(names: OrderedDict[T, None], name: T) -> None:
    names[name] = None
    if len(names) > REMEMBERED:
        names.popitem(last=False)


class Books:
    """One endpoint's belongings."""

    def __init__(
        self, link: Link, view: CacheView, layout: Layout, limits: Limits, clock: Callable[[], float], *,
        aux_room: AuxRoom, orders: bool,
    ) -> None:  # fmt: skip
        self.link = link
        self.view = view
        self.layout = layout
        self.limits = limits
        self.clock = clock
        self.aux_room = aux_room
        self.shape = view.shape()
        self.dispatches: dict[Key, Dispatch] = {}
        self.arrivals: dict[Key, Arrival] = {}
        self.tickets: dict[int, tuple[Key, str]] = {}
        self.peers = Peers(layout, self.say)
        self.waiting = Waiting(limits)
        self.orders = Orders(limits, orders)
        self.expected: dict[Key, tuple[str, ...]] = {}  # receivers-to-be send heartbeats for these
        self.strange: OrderedDict[Key, float] = OrderedDict()  # since when they wait for a hello
        self.next_beat = 0.0
        self.notes: Counter[str] = Counter()  # messages that changed nothing, by reason
        self.last_refusal = ""  # why the last message was not understood

    def sessions(self, key: Key) -> list[Session]:
        """What is open under a key: this worker may send and receive it."""
        dispatch, arrival = self.dispatches.get(key), self.arrivals.get(key)
        found: list[Session] = [] if dispatch is None else [dispatch.session]
        return found if arrival is None else [*found, arrival.session]

    def every_session(self) -> list[Session]:
        """All that are open."""
        sending = [dispatch.session for dispatch in self.dispatches.values()]
        return [*sending, *(arrival.session for arrival in self.arrivals.values())]

    def wait_for_hello(self, key: Key, now: float) -> float:
        """Since when that one waits: from its own first try on, whoever has tried before it."""
        since = self.strange.setdefault(key, now)
        if len(self.strange) > REMEMBERED:
            self.strange.popitem(last=False)
        return since

    def say(self, peer: str, message: bytes) -> bool:
        """Hand a message to the link; False when it cannot be sent, also to what is no peer at all."""
        try:
            sent = self.link.send(peer, message)
        except QuireError as wrong:
            sent, self.last_refusal = False, str(wrong)
        if not sent:
            self.notes["out of reach"] += 1
        return sent

    def do(self, key: Key, acts: Do) -> None:
        """Carry out what a session has decided."""
        queue = list(acts)
        while queue:
            act = queue.pop(0)
            if isinstance(act, Move):
                ticket = self.link.write(act.peer, act.door, act.rows)
                self.tickets[ticket] = (key, act.peer)
            else:
                self.say(act.peer, wire.encode(act.message))

    def beat(self, now: float) -> None:
        """Tell senders what is still waited for, a few times per lease."""
        if now < self.next_beat:
            return
        self.next_beat = now + self.limits.lease / 6
        by_peer: dict[str, list[Key]] = {}
        for key, peers in self._awaited():
            for peer in peers:
                by_peer.setdefault(peer, []).append(key)
        for peer, keys in by_peer.items():
            for first in range(0, len(keys), wire.MAX_KEYS):
                if self.peers.greet(peer):
                    self.say(peer, wire.encode(wire.Beat(tuple(keys[first : first + wire.MAX_KEYS]))))

    def _awaited(self) -> Iterable[tuple[Key, Iterable[str]]]:
        yield from self.expected.items()
        for key, arrival in self.arrivals.items():
            if arrival.session.verdict is None:
                yield key, arrival.session.silent
