"""Registry: what one endpoint has, in one place: sessions with their pages, peers, writes under way, early messages.

It carries out what sessions want done, and decides nothing: `asking`, `answering`, `handlers` and `ending` act on it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from quire.core.records.errors import QuireError
from quire.transfer.links.link import Door, Link
from quire.transfer.session.actions import Actions, PageWrite
from quire.transfer.session.early import EarlyMessages
from quire.transfer.session.lease import beats, next_beat
from quire.transfer.session.peer_index import PeerIndex
from quire.transfer.session.peers import Peers
from quire.transfer.session.prompt_orders import Orders
from quire.transfer.session.receiving_session import Receiving
from quire.transfer.session.sending_session import ReceiverRank, Sending
from quire.transfer.views.view import CacheView, Landing, Offer
from quire.transfer.wire import messages as wire
from quire.transfer.wire.aux import AuxRoom
from quire.transfer.wire.layout import Layout
from quire.transfer.wire.verdict import Key, Limits

Session = Sending | Receiving
MOST_WAITING = 4096  # receives that wait for a hello


@dataclass(slots=True, eq=False)
class Arrival:
    """A receiving session with its pages and its door; without them no writer was asked."""

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


class WriteUnderWay(NamedTuple):
    """A write that the link has not reported yet: whose it is and to whom it goes."""

    key: Key
    peer: str


class TransferRegistry:
    """All that one endpoint has."""

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
        self.tickets: dict[int, WriteUnderWay] = {}
        self.sent_to, self.received_from = PeerIndex(), PeerIndex()  # dispatches and arrivals by peer
        self.peers = Peers(layout, self.send)
        self.early = EarlyMessages(limits)
        self.orders = Orders(limits, orders)
        self.expected: dict[Key, tuple[str, ...]] = {}  # not received yet: whose lease heartbeats keep
        self.waiting_for_hello: OrderedDict[Key, float] = OrderedDict()  # since when
        self.next_beat = 0.0
        self.ignored: Counter[str] = Counter()  # messages that changed nothing, by reason
        self.last_refusal = ""  # why the last message was not understood

    # -- sessions ----------------------------------------------------------------------------------------------------

    def sessions(self, key: Key) -> list[Session]:
        """What is open under a key: this worker may send and receive it."""
        dispatch, arrival = self.dispatches.get(key), self.arrivals.get(key)
        found: list[Session] = [] if dispatch is None else [dispatch.session]
        return found if arrival is None else [*found, arrival.session]

    def every_session(self) -> list[Session]:
        """All that are open."""
        sending = [dispatch.session for dispatch in self.dispatches.values()]
        return [*sending, *(arrival.session for arrival in self.arrivals.values())]

    def add_receiver(self, session: Sending, peer: str, receiver: ReceiverRank, expected: int, now: float) -> None:
        """A receiver rank has asked for what a session sends."""
        self.sent_to.add(peer, session.key)
        self.carry_out(session.key, session.asked(peer, receiver, expected, now))

    def add_writers(self, session: Receiving) -> None:
        """A session has asked its writers."""
        for peer in session.writers:
            self.received_from.add(peer, session.key)

    def take_dispatch(self, key: Key) -> Dispatch:
        """A sending session is over."""
        dispatch = self.dispatches.pop(key)
        for peer in dispatch.session.receivers:
            self.sent_to.discard(peer, key)
        return dispatch

    def take_arrival(self, key: Key) -> Arrival:
        """A receiving session is over."""
        arrival = self.arrivals.pop(key)
        for peer in arrival.session.writers:
            self.received_from.discard(peer, key)
        return arrival

    def waits_for_hello_since(self, key: Key, now: float) -> float:
        """Since when that receive waits: from its own first try on."""
        since = self.waiting_for_hello.setdefault(key, now)
        if len(self.waiting_for_hello) > MOST_WAITING:
            self.waiting_for_hello.popitem(last=False)
        return since

    # -- what goes out -----------------------------------------------------------------------------------------------

    def send(self, peer: str, message: bytes) -> bool:
        """Hand a message to the link; False when it cannot be sent, also where the name is not a peer's."""
        try:
            sent = self.link.send(peer, message)
        except QuireError as error:
            sent, self.last_refusal = False, str(error)
        if not sent:
            self.ignored["out of reach"] += 1
        return sent

    def carry_out(self, key: Key, actions: Actions) -> None:
        """Do what a session has decided."""
        for action in actions:
            if isinstance(action, PageWrite):
                ticket = self.link.write(action.peer, action.door, action.rows)
                self.tickets[ticket] = WriteUnderWay(key, action.peer)
            else:
                self.send(action.peer, wire.encode(action.message))

    def send_beats(self, now: float) -> None:
        """Report to senders what is still waited for, a few times per lease."""
        if now < self.next_beat:
            return
        self.next_beat = next_beat(self.limits.lease, now)
        for peer, beat in beats(self._awaited()):
            if self.peers.greet(peer):
                self.send(peer, wire.encode(beat))

    def _awaited(self) -> Iterable[tuple[Key, Iterable[str]]]:
        yield from self.expected.items()
        for key, arrival in self.arrivals.items():
            if arrival.session.verdict is None:
                yield key, arrival.session.silent
