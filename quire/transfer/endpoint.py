"""Endpoint: one worker's way to its peers. Owns the order of acts: hold, report, wait, prove, give back.

    sender     send(key, id) ... put(key, done, last=...) ... step() -> ended sessions
    receiver   expect(key, source) ... receive(key, request, source) ... step() -> ended sessions

One caller at a time; nothing blocks but `step(timeout)`. What happens is decided in `session/`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

from quire.core.records.errors import StateError, say
from quire.core.records.request import Request
from quire.transfer.geometry.ranks import Source, Vote
from quire.transfer.links.link import Link
from quire.transfer.session import answering, asking, ending, handlers
from quire.transfer.session.endpoint_registry import Arrival, Dispatch, Session, TransferRegistry
from quire.transfer.session.prompt_orders import TakenOrder
from quire.transfer.session.receiving_session import Receiving
from quire.transfer.session.sending_session import Sending
from quire.transfer.views.view import CacheView, Landing
from quire.transfer.wire.aux import Aux, AuxRoom
from quire.transfer.wire.layout import Layout, layout_of
from quire.transfer.wire.verdict import Key, Limits, check_key


class Endpoint:
    """Sessions over one link, on one cache. With `alone` it ends them itself; several ranks agree first.

    With `orders` peers may ask for prompts to be computed: `take_orders` has them.
    """

    def __init__(
        self, link: Link, view: CacheView, layout: Layout | None = None, *, limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic, aux_room: AuxRoom | None = None, alone: bool = True,
        orders: bool = False,
    ) -> None:  # fmt: skip
        self._registry = TransferRegistry(
            link, view, layout or layout_of(view.shape(), "worker"), limits or Limits(), clock,
            aux_room=aux_room or AuxRoom(), orders=orders,
        )  # fmt: skip
        self.alone = alone
        self._told: set[Session] = set()  # ended ones that a caller has heard of

    def __repr__(self) -> str:
        registry = self._registry
        stuck = f", {len(self.stuck)} stuck" if self.stuck else ""
        at_work = f"sends {len(registry.dispatches)}, receives {len(registry.arrivals)}"
        return f"Endpoint({registry.layout.name!r}, {at_work}, knows {len(registry.peers.layouts)} peers{stuck})"

    # -- sender ------------------------------------------------------------------------------------------------------

    def send(self, key: Key, id: Hashable) -> Sending:
        """Open the sender's half for a live prompt; its pages follow with `put`."""
        self._check_new(key, self._registry.dispatches)
        return answering.send(self._registry, key, id)

    def put(self, key: Key, done: int, *, last: bool, aux: Aux | None = None) -> bool:
        """So many tokens are computed: hold and send what has become whole. `aux` goes with the last piece.

        False: not now. A piece rides with the next one; the last one is to be put again.
        """
        return answering.put(self._registry, key, done, last=last, aux=aux)

    def refuse(self, key: Key, reason: str) -> None:
        """It will never be sent: peers that have asked for it, or ask within `limits.parked` seconds, hear why."""
        answering.refuse(self._registry, key, reason, self._registry.clock())

    def take_orders(self) -> list[TakenOrder]:
        """Prompts that peers have ordered since the last call, on any thread. Each is to be sent, or refused."""
        return self._registry.orders.take()

    def take_withdrawn(self) -> list[Key]:
        """Of those taken, what is not wanted any more: it need not be computed."""
        return self._registry.orders.take_withdrawn()

    # -- receiver ----------------------------------------------------------------------------------------------------

    def expect(self, key: Key, source: Source) -> None:
        """A request waits in a queue here: keep the sender's lease alive until it is received or given up."""
        check_key(key)
        self._registry.expected[key] = asking.writers_of(self._registry, source).peers
        self._registry.next_beat = 0.0

    def order(self, key: Key, peer: str, body: bytes) -> bool:
        """Have a peer compute a prompt that will be received under `key`; False when it is out of reach."""
        check_key(key)
        return asking.order(self._registry, key, peer, body)

    def receive(self, key: Key, request: Request, source: Source, *, aux: bool = True) -> Receiving | None:
        """Hold what is here, make room for the rest, and ask for it.

        None: not now, call again after a step. Its peers have not said hello yet (`met`), or there is no room.
        """
        self._check_new(key, self._registry.arrivals)
        return asking.receive(self._registry, key, request, source, aux)

    def met(self, source: Source) -> bool:
        """Its peers have said hello: if `receive` says None there is no room."""
        return self._registry.peers.know(asking.writers_of(self._registry, source).peers)

    # -- both --------------------------------------------------------------------------------------------------------

    def cancel(self, key: Key, reason: str = "cancelled") -> None:
        """Cancel what is under way for this key."""
        registry, now = self._registry, self._registry.clock()
        for session in registry.sessions(key):
            registry.carry_out(key, session.cancel(reason, now))
        asking.give_up(registry, key, reason)

    def step(self, timeout: float = 0.0) -> list[Session]:
        """Hear what peers say, look at the clock, and return sessions that have newly ended and are quiet."""
        registry = self._registry
        for news in registry.link.poll(timeout):
            handlers.handle(registry, news, registry.clock())
        now = registry.clock()
        answering.sweep(registry, now)
        registry.send_beats(now)
        ended = []
        for session in registry.every_session():
            if session.verdict is None:
                registry.carry_out(session.key, session.tick(now))
            if session.verdict is not None:
                ending.quieten(registry, session, now)
                if ending.is_quiet(session) and not session.stuck and session not in self._told:
                    self._told.add(session)
                    ended.append(session)
        for session in ended:
            ending.log_end(session)
            if self.alone:
                self.conclude(session)
        return ended

    def conclude(self, session: Session, *, commit: bool | None = None) -> None:
        """Give its pages back, or make them findable: when delivered, unless ranks have agreed not to `commit`.

        Look at its verdict afterwards: pages that could not be put in their place have failed after all.
        """
        ending.conclude(self._registry, session, commit=commit)
        self._told.discard(session)

    # -- questions ---------------------------------------------------------------------------------------------------

    @property
    def stuck(self) -> list[Session]:
        """Sessions whose pages cannot be given back: a peer may touch them. If that lasts, restart this worker."""
        return [session for session in self._registry.every_session() if session.stuck]

    @property
    def link(self) -> Link:
        """What carries its messages and pages."""
        return self._registry.link

    @property
    def num_open(self) -> int:
        """Sessions that are not concluded."""
        return len(self._registry.dispatches) + len(self._registry.arrivals)

    @property
    def num_expected(self) -> int:
        """Requests whose senders' leases are kept alive."""
        return len(self._registry.expected)

    @property
    def is_moving(self) -> bool:
        """Pages are on their way to a peer, or may be on their way here."""
        return bool(self._registry.tickets or self._registry.arrivals)

    def is_open(self, key: Key) -> bool:
        """A session of that key is not concluded."""
        return bool(self._registry.sessions(key))

    def is_sending(self, key: Key) -> bool:
        """A session that sends under that key is not concluded."""
        return key in self._registry.dispatches

    def is_asked_for(self, key: Key) -> bool:
        """A receiver waits for what is sent under that key, or it is over."""
        dispatch = self._registry.dispatches.get(key)
        return dispatch is None or dispatch.session.verdict is not None or bool(dispatch.session.receivers)

    def knows(self, key: Key) -> bool:
        """A session of that key is open here, or was."""
        return bool(self._registry.sessions(key)) or key in self._registry.early.over

    def vote(self) -> Vote:
        """What this rank has seen, for `agree`."""
        names: dict[str, set[str]] = {"delivered": set(), "failed": set(), "cancelled": set()}
        quiet = set()
        for session in self._registry.every_session():
            if session.verdict is not None:
                names[session.verdict.outcome].add(str(session.key))
                quiet |= {str(session.key)} if ending.is_quiet(session) and not session.stuck else set()
        completed, failures, cancels = (frozenset(names[end]) for end in ("delivered", "failed", "cancelled"))
        return Vote(completed, failures, cancels, frozenset(quiet))

    def landing(self, session: Receiving) -> Landing | None:
        """The pages of a session that is not concluded yet."""
        arrival = self._registry.arrivals.get(session.key)
        return None if arrival is None else arrival.landing

    def forgive(self, peer: str) -> None:
        """Try a peer again that did not fit."""
        self._registry.peers.forgive(peer)

    def leave(self, reason: str, patience: float = 1.0) -> bool:
        """Cancel what is under way, end it, and close. After so many seconds the link to silent peers is closed.

        False: a peer may still touch pages; call it again, it may be proven later that none does.
        """
        registry, self.alone = self._registry, True  # what follows is decided here alone
        self._told.clear()
        for key in [*registry.expected, *(session.key for session in registry.every_session())]:
            self.cancel(key, reason)
        end = registry.clock() + patience
        while self.num_open:
            if registry.clock() >= end:
                for session in registry.every_session():
                    session.quiet_until = end
            self.step(0.01)
            if self.stuck:
                return False
        return self.close()

    def close(self) -> bool:
        """Leave; False while sessions are open or a peer may still touch pages."""
        if self.num_open:
            return False
        return self._registry.link.close()

    def _check_new(self, key: Key, known: dict[Key, Dispatch] | dict[Key, Arrival]) -> None:
        check_key(key)
        if key in known or key in self._registry.early.over:
            fact = "there is one already" if key in known else "it is over"
            raise StateError(say(f"a session for {key}", fact, "use another epoch for another attempt"))
        if self.stuck:
            fact = f"{self.stuck[0].key} may still be written to by a peer that is gone"
            raise StateError(say(f"a session for {key}", fact, "wait until it is proven quiet, or restart this worker"))
        if len(known) >= self._registry.limits.sessions:
            fact = f"{len(known)} are open, the most there may be"
            raise StateError(say(f"a session for {key}", fact, "wait until some have ended"))
