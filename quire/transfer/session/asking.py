"""Asking: a receiver's way to a session: peers that are known, pages for what they will send, then the ask itself."""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.records.errors import InputError, say
from quire.core.records.request import Request
from quire.transfer.geometry.ranks import Source
from quire.transfer.geometry.slices import first_missing
from quire.transfer.session.receiving import PIECE, Receiving
from quire.transfer.session.registry import Arrival, Books
from quire.transfer.views.view import Landing
from quire.transfer.wire import messages as wire
from quire.transfer.wire.verdict import Key


def writers(books: Books, source: Source) -> tuple[tuple[str, ...], int]:
    """Peers to ask, and how many of them answer."""
    return source.writers(books.layout.grid, books.layout.seat)


def order(books: Books, key: Key, peer: str, body: bytes) -> bool:
    """Tell a peer what to compute; if it gets lost on the way, `receive` says so."""
    if len(body) > wire.MAX_ORDER:
        raise InputError(say(f"an order of {len(body)} bytes", f"{wire.MAX_ORDER} may travel", "shorten it"))
    said = books.peers.greet(peer) and books.say(peer, wire.encode(wire.Order(*key, body)))
    books.orders.give(key, peer, said)
    return said


def receive(books: Books, key: Key, request: Request, source: Source, aux: bool) -> Receiving | None:
    """A session that has asked, or has ended before it could; None: not now."""
    now = books.clock()
    told, expected = writers(books, source)
    early = books.waiting.cancelled(key, told)
    wrong = books.orders.failure(key) or _against(books, key, source, told)
    landing = None if early or wrong else _land(books, key, request, told)
    if landing is None and not early and not wrong:
        return None
    knowing = _settle(books, key)
    books.waiting.drop_cancels(key)
    room, wants = books.aux_room if aux else None, () if landing is None else landing.wants
    session = Receiving(
        key, wants, told if landing else (), expected=expected, limits=books.limits, now=now, aux_room=room
    )
    arrival = books.arrivals[key] = Arrival(session, landing)
    if landing is not None:
        _publish(books, arrival, landing, now)
    elif early:
        session.cancel(early[1], now, by_peer=early[0])
    else:
        session.fail(wrong or "", now)
    done = {*session.told, early[0] if early else ""}
    if session.verdict is not None:  # who was told to compute it, and not asked for it, need not
        _call_off(books, key, [peer for peer in knowing if peer not in done], session.verdict.reason)
    return session


def _against(books: Books, key: Key, source: Source, told: tuple[str, ...]) -> str | None:
    """The first thing that speaks against asking these peers."""
    peers, now, mine = books.peers, books.clock(), books.layout
    if not told:
        return f"there is nobody to ask: no rank of {source.grid} has pages of rank {mine.rank} of {mine.grid}"
    wrong = [peers.meet(peer, now) for peer in told]
    known = [(peer, peers.layouts[peer]) for peer in told if peer in peers.layouts]
    wrong += [source.denies(peer, layout.grid, layout.rank) for peer, layout in known]
    if any(wrong):
        return next(filter(None, wrong))
    strangers = [peer for peer in told if peer not in peers.layouts]
    if not strangers:
        books.strange.pop(key, None)
        return peers.lack(source)
    if now < books.wait_for_hello(key, now) + books.limits.transfer:
        return None
    peers.give_up(strangers)
    return f"{strangers[0]} has not said hello within {books.limits.transfer:g} s"


def _land(books: Books, key: Key, request: Request, told: tuple[str, ...]) -> Landing | None:
    """Pages for it, once its peers are known; a request that never fits is given up."""
    if not books.peers.know(told):
        return None
    try:
        return books.view.want(request, one_start=not books.peers.take_wants(told))
    except BaseException as wrong:
        give_up(books, key, str(wrong))
        raise


def _publish(books: Books, arrival: Arrival, landing: Landing, now: float) -> None:
    """The door is open and the writers are known before the first of them is asked."""
    session = arrival.session
    arrival.door = books.link.door(landing.places)
    own = [place for place, group in enumerate(books.shape.groups) if not group.cross]
    start = first_missing([landing.needs[g] for g in own], [landing.held[g] for g in own])
    wishes = tuple(
        wire.wish(places, state=bool(group.current), position=landing.length)
        for group, places in zip(books.shape.groups, landing.places, strict=True)
    )
    ask = wire.Ask(
        *session.key, PIECE, arrival.door.number, landing.length, landing.content, wishes, start, books.limits.transfer
    )
    message = wire.encode(ask)
    for peer in tuple(session.told):
        if not books.say(peer, message):
            books.do(session.key, session.unsent(peer, now))
            break


def give_up(books: Books, key: Key, reason: str) -> None:
    """What was ordered or expected, and not asked for, is not wanted: whoever was to compute it is told. It is over."""
    told = _settle(books, key)
    _call_off(books, key, told, reason)
    if told and not books.sessions(key):
        books.waiting.close(key)


def _settle(books: Books, key: Key) -> dict[str, None]:
    """It is asked for now, or never: who knows so far that it is wanted, each once."""
    books.strange.pop(key, None)
    ordered, told = books.orders.settle(key), dict.fromkeys(books.expected.pop(key, ()))
    return told if ordered is None else told | {ordered: None}


def _call_off(books: Books, key: Key, peers: Iterable[str], reason: str) -> None:
    for peer in peers:
        books.say(peer, wire.encode(wire.Cancel(*key, reason[:1000])))
