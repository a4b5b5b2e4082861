"""Hearing: what an endpoint does with each piece of news. Nothing a peer says raises: it is refused, noted or heard."""

from __future__ import annotations

from quire.core.records.errors import InputError, QuireError, say
from quire.core.records.span import Span
from quire.transfer.geometry.ranks import meets
from quire.transfer.geometry.shards import overlap
from quire.transfer.geometry.slices import only
from quire.transfer.links.link import Lost, Message, Moved, News
from quire.transfer.session.registry import Books
from quire.transfer.session.sending import Reader, Sending, reader_of
from quire.transfer.wire import messages as wire
from quire.transfer.wire.layout import PER_GROUP, Layout
from quire.transfer.wire.verdict import Key, failed


def hear(books: Books, news: News, now: float) -> None:
    """One piece of news."""
    match news:
        case Message(peer, data):
            try:
                _message(books, peer, wire.decode(data), now)
            except QuireError as wrong:
                books.notes["not understood"] += 1
                books.last_refusal = str(wrong)
                books.peers.not_understood(peer, str(wrong))
        case Moved(ticket, problem):
            moved(books, ticket, problem, now)
        case Lost(peer, reason):
            lost(books, peer, reason, now)


def _message(books: Books, peer: str, message: wire.Any, now: float) -> None:
    match message:
        case wire.Hello():
            books.peers.met(peer, message)
        case wire.Refuse(reason):
            _refuse(books, peer, reason, now)
        case wire.Order():
            _order(books, peer, message)
        case wire.Ask():
            ask(books, peer, message, now)
        case wire.Result():
            _result(books, peer, message, now)
        case wire.Cancel():
            _cancel(books, peer, message, now)
        case wire.Beat(keys):
            for name in keys:
                dispatch = books.dispatches.get(Key(*name))
                if dispatch is not None:
                    dispatch.session.renew(now)


def _refuse(books: Books, peer: str, reason: str, now: float) -> None:
    books.peers.refused_by(peer, reason)
    for key, arrival in list(books.arrivals.items()):
        if peer in arrival.session.told:
            verdict = failed(f"{peer} does not fit: {reason}")
            books.do(key, arrival.session.heard(peer, _refusal(key, verdict.reason), now))


def _order(books: Books, peer: str, message: wire.Order) -> None:
    """Keep it for the engine; whoever ordered what is not computed learns it when it asks."""
    key = wire.key_of(message)
    if peer not in books.peers.layouts or key in books.dispatches or key in books.waiting.over:
        books.notes["an order of a stranger, or again"] += 1
    elif key in books.arrivals or key in books.expected:
        books.orders.refuse(key, peer, "that key is being received here")
    else:
        books.orders.put(peer, message)


def _refusal(key: Key, reason: str, piece: int = 0) -> wire.Result:
    return wire.Result(*key, piece, True, False, reason=reason[:1000])


def ask(books: Books, peer: str, message: wire.Ask, now: float) -> None:
    """Serve it, keep it until its session comes, or answer at once that it will not be served."""
    key = wire.key_of(message)
    theirs = books.peers.layouts.get(peer)
    dispatch = books.dispatches.get(key)
    if (key, peer) in books.waiting.answered or (dispatch is not None and peer in dispatch.session.readers):
        books.notes["an ask again"] += 1
    elif theirs is None:
        _turn_down(books, peer, message, books.peers.misfits.get(peer, "no hello came before it"))
    elif dispatch is None and key in books.waiting.refusals:
        _turn_down(books, peer, message, books.waiting.refusals[key][1])
    elif dispatch is None and (refused := books.orders.refusal(key, peer)) is not None:
        _turn_down(books, peer, message, refused)
    elif dispatch is None and books.waiting.was_cancelled(key, peer):
        _turn_down(books, peer, message, "it was cancelled before it was asked for")
    elif key in books.waiting.over or (dispatch is None and _newer(books, key)):
        _turn_down(books, peer, message, "the sender's session is over")
    elif dispatch is None:
        if not books.waiting.park_ask(peer, message, now):
            _turn_down(books, peer, message, "too many asks wait")
    elif dispatch.session.verdict is not None:
        _turn_down(books, peer, message, f"the sender's session has ended: {dispatch.session.verdict.reason}")
    else:
        _serve(books, peer, message, theirs, now)


def refuse(books: Books, key: Key, reason: str, now: float) -> None:
    """It will never be sent: who has asked hears it now, who asks later hears it then."""
    dispatch = books.dispatches.get(key)
    if dispatch is not None:
        books.do(key, dispatch.session.fail(reason, now))
    books.waiting.refuse(key, reason, now)
    for peer, message in books.waiting.take_asks(key):
        _turn_down(books, peer, message, reason)


def sweep(books: Books, now: float) -> None:
    """What waited too long for its session is dropped, and told so."""
    for peer, message in books.waiting.sweep(now):
        _turn_down(books, peer, message, f"nothing was sent for {books.limits.parked:g} s")


def _turn_down(books: Books, peer: str, message: wire.Ask, reason: str) -> None:
    """Its last word; a copy of the ask that comes later changes nothing."""
    key = wire.key_of(message)
    if books.waiting.answer(key, peer):
        books.say(peer, wire.encode(_refusal(key, reason, message.piece)))


def _serve(books: Books, peer: str, message: wire.Ask, theirs: Layout, now: float) -> None:
    dispatch = books.dispatches[wire.key_of(message)]
    session, mine, turn = dispatch.session, books.layout, theirs.seat.group
    if message.content != session.content or message.length != session.length:
        _turn_down(books, peer, message, "the receiver's prompt is another one")
        return
    try:
        _check_lists(books, message, [len(places) for places in dispatch.offers[0].places])
        fragments = [overlap(here, there, turn) for here, there in zip(mine.pages, theirs.pages, strict=True)]
        reader = reader_of(message, fragments, [page.page_bytes for page in theirs.pages], now)
        expected = len(meets(mine.grid, mine.seat, theirs.grid, turn))
        _check_alone(session, message, reader, theirs)
    except QuireError as wrong:
        _turn_down(books, peer, message, str(wrong))
        return
    if PER_GROUP not in theirs.can:  # it lists all its slots, and says in one number from where on it lacks them
        reader.targets = tuple(
            places if group.cross else only(places, (Span(min(message.start, len(places)), len(places)),))
            for group, places in zip(books.shape.groups, reader.targets, strict=True)
        )
    books.do(session.key, session.asked(peer, reader, expected, now))


def _check_alone(session: Sending, message: wire.Ask, reader: Reader, theirs: Layout) -> None:
    """One session has one receiver: its ranks, each of them once. A second one under its key would share its fate."""
    reader.place = (theirs.grid, theirs.seat.group, theirs.rank)
    for known in session.readers.values():
        if known.place[:2] != reader.place[:2] or known.place[2] == theirs.rank:
            fact = "another receiver has asked for it under this key"
            raise InputError(say(f"an ask for {message.request}", fact, "send it under a key of its own"))


def _check_lists(books: Books, message: wire.Ask, lengths: list[int]) -> None:
    """Lists as long as the sender's own, and a state after the prompt: told apart before memory is taken for them."""
    for group, wish, blocks in zip(books.shape.groups, message.wishes, lengths, strict=False):
        fact = ""
        if wish.blocks != blocks:
            fact = f"its list of group {group.name!r} has {wish.blocks} blocks, the sender's {blocks}"
        elif wish.state != bool(group.current):
            fact = f"its list of group {group.name!r} is {'' if wish.state else 'not '}of a state"
        elif group.current and wish.runs and wish.position != message.length:
            fact = f"the state of group {group.name!r} is wanted after {wish.position} tokens of {message.length}"
        if fact:
            raise InputError(say(f"an ask for {message.request}", fact, "agree on the prompt and the block size"))


def _newer(books: Books, key: Key) -> bool:
    """A later attempt of the same request is known: this one is over."""
    return any(other.request == key.request and other.epoch > key.epoch for other in books.dispatches)


def _result(books: Books, peer: str, message: wire.Result, now: float) -> None:
    arrival = books.arrivals.get(wire.key_of(message))
    if arrival is None:
        books.notes["a result for no session"] += 1
        return
    books.do(arrival.session.key, arrival.session.heard(peer, message, now))


def _cancel(books: Books, peer: str, message: wire.Cancel, now: float) -> None:
    """Cancel what is there, for a peer that takes part in it; what is not there yet is cancelled when it comes."""
    key = wire.key_of(message)
    dispatch, arrival = books.dispatches.get(key), books.arrivals.get(key)
    ordered = books.orders.withdraw(key, peer)
    if ordered:
        books.waiting.asks.pop((key, peer), None)
    if dispatch is not None and (ordered or peer in dispatch.session.readers):
        books.do(key, dispatch.session.cancel(message.reason, now, by_peer=peer))
    elif arrival is not None and peer in arrival.session.told:
        books.do(key, arrival.session.cancel(message.reason, now, by_peer=peer))
    elif dispatch is not None or arrival is not None:
        books.notes["a cancel of a stranger"] += 1
    elif key not in books.waiting.over and not ordered:
        books.waiting.park_cancel(peer, message, now)


def moved(books: Books, ticket: int, problem: str | None, now: float) -> None:
    """A write is over."""
    key, peer = books.tickets.pop(ticket, (None, ""))
    dispatch = None if key is None else books.dispatches.get(key)
    if key is None or dispatch is None:
        books.notes["a write of no session"] += 1
    else:
        books.do(key, dispatch.session.moved(peer, problem, now))


def lost(books: Books, peer: str, reason: str, now: float) -> None:
    """A peer is gone."""
    books.peers.lost(peer, reason, now)
    books.waiting.forget(peer)
    for key in books.orders.lost(peer, reason):
        if key in books.dispatches and not books.dispatches[key].session.readers:
            books.do(key, books.dispatches[key].session.cancel(f"{peer} was lost", now, by_peer=peer))
    for key, dispatch in list(books.dispatches.items()):
        books.do(key, dispatch.session.lost(peer, now))
    for key, arrival in list(books.arrivals.items()):
        books.do(key, arrival.session.lost(peer, now))
