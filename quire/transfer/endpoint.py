"""Endpoint: one worker's door to its peers. Owns the order of things: hold, tell, wait, prove, give back.

    sender     send(key, id) ... put(key, done, last=...) ... step() -> ended sessions
    receiver   expect(key, source) ... receive(key, request, source) ... step() -> ended sessions

One caller at a time; nothing blocks but `step(timeout)`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

from quire.core.records.errors import InputError, StateError, UnknownError, say
from quire.core.records.request import Request
from quire.core.records.span import Span
from quire.transfer.geometry.pieces import piece_of
from quire.transfer.geometry.ranks import Source, Vote
from quire.transfer.links.link import Link
from quire.transfer.session import asking, handlers
from quire.transfer.session.receiving import Receiving
from quire.transfer.session.registry import Arrival, Books, Dispatch, Session
from quire.transfer.session.sending import Sending
from quire.transfer.views.view import CacheView, Landing
from quire.transfer.wire.aux import Aux, AuxRoom, pack
from quire.transfer.wire.layout import Layout, layout_of
from quire.transfer.wire.verdict import Key, Limits, Outcome, check_key

CLOSING = 1.0  # seconds that a closed link gets to prove that nothing moves any more


def _is_quiet(session: Session) -> bool:
    """Its writers say so and, of a receiver, its own door too: a peer's word alone frees no page."""
    return session.quiet and (isinstance(session, Sending) or session.proven)


class Endpoint:
    """Sessions over one link, on one cache. With `alone` it ends them itself; several ranks agree first.

    With `orders` peers may ask for prompts to be computed: `take_orders` has them.
    """

    def __init__(
        self, link: Link, view: CacheView, layout: Layout | None = None, *, limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic, aux_room: AuxRoom | None = None, alone: bool = True,
        orders: bool = False,
    ) -> None:  # fmt: skip
        made = layout or layout_of(view.shape(), "worker")
        self.books = Books(link, view, made, limits or Limits(), clock, aux_room=aux_room or AuxRoom(), orders=orders)
        self.alone = alone
        self._told: set[Session] = set()  # ended ones that a caller has heard of

    def __repr__(self) -> str:
        books = self.books
        stuck = f", {len(self.stuck)} stuck" if self.stuck else ""
        at_work = f"sends {len(books.dispatches)}, receives {len(books.arrivals)}"
        return f"Endpoint({books.layout.name!r}, {at_work}, knows {len(books.peers.layouts)} peers{stuck})"

    # -- sender ------------------------------------------------------------------------------------------------------

    def send(self, key: Key, id: Hashable) -> Sending:
        """Open the sender's half for a live prompt; its pages follow with `put`."""
        books, now = self.books, self.books.clock()
        self._check_new(key, books.dispatches)
        first = books.view.offer(id, Span(0, 0))
        assert first is not None, "an empty span is always there"
        session = Sending(key, books.shape, first.length, first.content, limits=books.limits, now=now)
        books.dispatches[key] = Dispatch(session, id, [first])
        early, asks = books.waiting.cancelled(key), books.waiting.take_asks(key)
        books.waiting.drop_cancels(key)
        if early is not None and not asks:  # else somebody waits for it
            session.cancel(early[1], now, by_peer=early[0])
        for peer, ask in asks:
            handlers.ask(books, peer, ask, now)
        return session

    def put(self, key: Key, done: int, *, last: bool, aux: Aux | None = None) -> bool:
        """So many tokens are computed: hold and send what has become whole. `aux` goes with the last piece.

        False: not now. A piece rides with the next one; the last one is to be put again.
        """
        books = self.books
        dispatch = books.dispatches.get(key)
        if dispatch is None:
            raise UnknownError(say(f"a piece of {key}", "no such session sends", "call `send` first"))
        if aux is not None and not last:
            raise InputError(say(f"auxiliary data of {key}", "this piece is not the last", "give it with the last one"))
        session = dispatch.session
        if session.verdict is not None:
            return True
        chunk = Span(min(dispatch.cursor, done), done)
        piece = piece_of(chunk, session.length, books.shape.block_size, last=last)
        if piece is None:
            return True
        tag = pack(aux, key, books.aux_room) if aux is not None else b""
        offer = books.view.offer(dispatch.id, Span(0, session.length) if last else piece.span)
        if offer is None:
            return False
        dispatch.offers.append(offer)
        dispatch.cursor = piece.span.end
        books.do(key, session.add(piece, offer.places, offer.position, books.clock(), aux=tag))
        return True

    def refuse(self, key: Key, reason: str) -> None:
        """It will never be sent: whoever has asked for it, or asks within `limits.parked` seconds, is told why."""
        handlers.refuse(self.books, key, reason, self.books.clock())

    def take_orders(self) -> list[tuple[Key, bytes]]:
        """Prompts that peers have ordered since the last call, on any thread. Each is to be sent, or refused."""
        return self.books.orders.take()

    def take_withdrawn(self) -> list[Key]:
        """Of those taken, what is not wanted any more: it need not be computed."""
        return self.books.orders.take_withdrawn()

    # -- receiver ----------------------------------------------------------------------------------------------------

    def expect(self, key: Key, source: Source) -> None:
        """A request waits in a queue here: keep the sender's lease alive until it is received or given up."""
        check_key(key)
        self.books.expected[key] = asking.writers(self.books, source)[0]
        self.books.next_beat = 0.0

    def order(self, key: Key, peer: str, body: bytes) -> bool:
        """Have a peer compute a prompt that will be received under `key`; False when it is out of reach."""
        check_key(key)
        return asking.order(self.books, key, peer, body)

    def receive(self, key: Key, request: Request, source: Source, *, aux: bool = True) -> Receiving | None:
        """Hold what is here, make room for the rest, and ask for it.

        None: not now, call again after a step. Its peers have not said hello yet (`met`), or there is no room.
        """
        self._check_new(key, self.books.arrivals)
        return asking.receive(self.books, key, request, source, aux)

    def met(self, source: Source) -> bool:
        """Its peers have said hello: if `receive` says None there is no room."""
        return self.books.peers.know(asking.writers(self.books, source)[0])

    # -- both --------------------------------------------------------------------------------------------------------

    def cancel(self, key: Key, reason: str = "cancelled") -> None:
        """Whatever is under way for this key is not wanted any more."""
        books, now = self.books, self.books.clock()
        for session in books.sessions(key):
            books.do(key, session.cancel(reason, now))
        asking.give_up(books, key, reason)

    def step(self, timeout: float = 0.0) -> list[Session]:
        """Hear what peers say, look at the clock, and return sessions that have newly ended and are quiet."""
        books = self.books
        for news in books.link.poll(timeout):
            handlers.hear(books, news, books.clock())
        now = books.clock()
        handlers.sweep(books, now)
        books.beat(now)
        ended = []
        for session in books.every_session():
            if session.verdict is None:
                books.do(session.key, session.tick(now))
            if session.verdict is not None:
                self._quieten(session, now)
                if _is_quiet(session) and not session.stuck and session not in self._told:
                    self._told.add(session)
                    ended.append(session)
        if self.alone:
            for session in ended:
                self.conclude(session)
        return ended

    def _quieten(self, session: Session, now: float) -> None:
        """Shut its door; after its grace close the link to who is silent; its pages stay taken until all is proven."""
        books = self.books
        if isinstance(session, Receiving) and not session.proven:
            door = books.arrivals[session.key].door
            session.proven = door is None or door.shut()
        if _is_quiet(session):
            session.stuck = False  # the proof has come after all
            return
        if session.stuck or session.quiet_until is None or now < session.quiet_until:
            return
        if session.closed_at is None:
            session.closed_at = now
            for peer in list(session.told) if isinstance(session, Receiving) else session.silent:
                books.link.close(peer)
        session.stuck = now >= session.closed_at + CLOSING

    def conclude(self, session: Session, *, commit: bool | None = None) -> None:
        """Give its pages back, or make them findable: when delivered, unless ranks have agreed not to `commit`.

        Look at its verdict afterwards: pages that could not be put in their place have failed after all.
        """
        books, key = self.books, session.key
        if session not in books.sessions(key) or not _is_quiet(session) or session.stuck:
            fact = "it is over" if session not in books.sessions(key) else "somebody may still touch its pages"
            raise StateError(say(f"the end of {key}", fact, "wait until `step` returns it, and end it once"))
        delivered = session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED
        if isinstance(session, Sending):
            for peer in session.readers:
                books.waiting.answer(key, peer)
            for offer in books.dispatches.pop(key).offers:
                books.view.release(offer)
        else:
            landing = books.arrivals.pop(key).landing
            if landing is not None and delivered and commit is not False:
                try:
                    books.view.commit(landing)
                except Exception as wrong:  # of a device, say: it has released them
                    session.spoil(f"{type(wrong).__name__}: {wrong}")
            elif landing is not None:
                books.view.release(landing)
        self._told.discard(session)
        if not books.sessions(key):
            books.waiting.close(key)

    # -- questions ---------------------------------------------------------------------------------------------------

    @property
    def stuck(self) -> list[Session]:
        """Sessions whose pages cannot be given back: somebody may touch them. If that lasts, restart this worker."""
        return [session for session in self.books.every_session() if session.stuck]

    def is_asked_for(self, key: Key) -> bool:
        """A receiver waits for what is sent under that key, or it is over."""
        dispatch = self.books.dispatches.get(key)
        return dispatch is None or dispatch.session.verdict is not None or bool(dispatch.session.readers)

    def knows(self, key: Key) -> bool:
        """A session of that key is open here, or was."""
        return bool(self.books.sessions(key)) or key in self.books.waiting.over

    def vote(self) -> Vote:
        """What this rank has seen, for `agree`."""
        names: dict[str, set[str]] = {"delivered": set(), "failed": set(), "cancelled": set()}
        quiet = set()
        for session in self.books.every_session():
            if session.verdict is not None:
                names[session.verdict.outcome].add(str(session.key))
                quiet |= {str(session.key)} if _is_quiet(session) and not session.stuck else set()
        completed, failures, cancels = (frozenset(names[end]) for end in ("delivered", "failed", "cancelled"))
        return Vote(completed, failures, cancels, frozenset(quiet))

    def landing(self, session: Receiving) -> Landing | None:
        """The pages of a session that is not concluded yet."""
        arrival = self.books.arrivals.get(session.key)
        return None if arrival is None else arrival.landing

    def forgive(self, peer: str) -> None:
        """Try a peer again that did not fit."""
        self.books.peers.forgive(peer)

    def leave(self, reason: str, patience: float = 1.0) -> bool:
        """Cancel what is under way, end it, and close. After so many seconds the link to whoever is silent is closed.

        False: somebody may still touch pages; call it again, it may be proven later that nobody does.
        """
        books, self.alone = self.books, True  # what follows is nobody else's to decide
        self._told.clear()
        for key in [*books.expected, *(session.key for session in books.every_session())]:
            self.cancel(key, reason)
        end = books.clock() + patience
        while books.dispatches or books.arrivals:
            if books.clock() >= end:
                for session in books.every_session():
                    session.quiet_until = end
            self.step(0.01)
            if self.stuck:
                return False
        return self.close()

    def close(self) -> bool:
        """Leave; False while sessions are open or somebody may still touch pages."""
        if self.books.dispatches or self.books.arrivals:
            return False
        return self.books.link.close()

    def _check_new(self, key: Key, known: dict[Key, Dispatch] | dict[Key, Arrival]) -> None:
        check_key(key)
        if key in known or key in self.books.waiting.over:
            fact = "there is one already" if key in known else "it is over"
            raise StateError(say(f"a session for {key}", fact, "use another epoch for another attempt"))
        if self.stuck:
            fact = f"{self.stuck[0].key} may still be written to by a peer that is gone"
            raise StateError(say(f"a session for {key}", fact, "wait until it is proven quiet, or restart this worker"))
        if len(known) >= self.books.limits.sessions:
            fact = f"{len(known)} are open, the most there may be"
            raise StateError(say(f"a session for {key}", fact, "wait until some have ended"))
