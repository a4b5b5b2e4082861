"""Answering: how a sender comes to a session, and what becomes of each ask for it: it is served, kept for later or
refused. Knows nothing of receiving.
"""

from __future__ import annotations

from collections.abc import Hashable

from quire.core.records.errors import InputError, QuireError, UnknownError, say
from quire.core.records.span import Span
from quire.transfer.geometry.pieces import piece_of
from quire.transfer.geometry.ranks import RankPlace, meets
from quire.transfer.geometry.shards import overlap
from quire.transfer.geometry.slices import only
from quire.transfer.session.endpoint_registry import Dispatch, TransferRegistry
from quire.transfer.session.sending_session import ReceiverRank, Sending, receiver_rank_of
from quire.transfer.wire import messages as wire
from quire.transfer.wire.aux import Aux, pack
from quire.transfer.wire.layout import PER_GROUP, Layout
from quire.transfer.wire.verdict import Key


def send(registry: TransferRegistry, key: Key, id: Hashable) -> Sending:
    """Open the sender's half for a live prompt, and serve peers that have asked before."""
    now = registry.clock()
    first = registry.view.offer(id, Span(0, 0))
    assert first is not None, "an empty span is always there"
    session = Sending(key, registry.shape, first.length, first.content, limits=registry.limits, now=now)
    registry.dispatches[key] = Dispatch(session, id, [first])
    cancel, asks = registry.early.cancelled(key), registry.early.take_asks(key)
    registry.early.drop_cancels(key)
    if cancel is not None and not asks:  # else a peer waits for it
        session.cancel(cancel.reason, now, by_peer=cancel.peer)
    for early in asks:
        answer(registry, early.peer, early.ask, now)
    return session


def put(registry: TransferRegistry, key: Key, done: int, *, last: bool, aux: Aux | None) -> bool:
    """Hold and send what has become whole with so many computed tokens; False: not now."""
    dispatch = registry.dispatches.get(key)
    if dispatch is None:
        raise UnknownError(say(f"a piece of {key}", "no such session sends", "call `send` first"))
    if aux is not None and not last:
        raise InputError(say(f"auxiliary data of {key}", "this piece is not the last", "give it with the last one"))
    session = dispatch.session
    if session.verdict is not None:
        return True
    chunk = Span(min(dispatch.cursor, done), done)
    piece = piece_of(chunk, session.length, registry.shape.block_size, last=last)
    if piece is None:
        return True
    packed = pack(aux, key, registry.aux_room) if aux is not None else b""
    offer = registry.view.offer(dispatch.id, Span(0, session.length) if last else piece.span)
    if offer is None:
        return False
    dispatch.offers.append(offer)
    dispatch.cursor = piece.span.end
    registry.carry_out(key, session.add(piece, offer.places, offer.position, registry.clock(), aux=packed))
    return True


def refuse(registry: TransferRegistry, key: Key, reason: str, now: float) -> None:
    """It will never be sent: peers that have asked hear it now, later ones when they ask."""
    dispatch = registry.dispatches.get(key)
    if dispatch is not None:
        registry.carry_out(key, dispatch.session.fail(reason, now))
    registry.early.refuse(key, reason, now)
    for early in registry.early.take_asks(key):
        _turn_down(registry, early.peer, early.ask, reason)


def sweep(registry: TransferRegistry, now: float) -> None:
    """An ask that waited too long for its session is dropped, and its peer notified."""
    for early in registry.early.sweep(now):
        _turn_down(registry, early.peer, early.ask, f"nothing was sent for {registry.limits.parked:g} s")


def refusal(key: Key, reason: str, piece: int = 0) -> wire.DeliveryReport:
    """A last report that says why nothing comes."""
    return wire.DeliveryReport(*key, piece, True, False, reason=reason[:1000])


def answer(registry: TransferRegistry, peer: str, message: wire.Ask, now: float) -> None:
    """Serve an ask, keep it until its session comes, or answer at once that it will not be served."""
    key = wire.key_of(message)
    theirs, dispatch = registry.peers.layouts.get(peer), registry.dispatches.get(key)
    if registry.early.was_answered(key, peer) or (dispatch is not None and peer in dispatch.session.receivers):
        registry.ignored["an ask again"] += 1
        return
    wrong = _objection(registry, peer, key)
    if wrong is not None:
        _turn_down(registry, peer, message, wrong)
    elif dispatch is None:
        if not registry.early.park_ask(peer, message, now):
            _turn_down(registry, peer, message, "too many asks wait")
    elif theirs is not None:
        _serve(registry, dispatch, peer, message, theirs, now)


def _objection(registry: TransferRegistry, peer: str, key: Key) -> str | None:
    """Why an ask of that peer is not served, if there is a reason that is known before looking at what it asks."""
    dispatch, early = registry.dispatches.get(key), registry.early
    if peer not in registry.peers.layouts:
        return registry.peers.misfits.get(peer, "no hello came before it")
    if dispatch is None:
        refused = early.refusal(key)
        if refused is None:
            refused = registry.orders.refusal(key, peer)
        if refused is not None:
            return refused
        if early.was_cancelled(key, peer):
            return "it was cancelled before it was asked for"
    if key in early.over or (dispatch is None and _newer(registry, key)):
        return "the sender's session is over"
    if dispatch is not None and dispatch.session.verdict is not None:
        return f"the sender's session has ended: {dispatch.session.verdict.reason}"
    return None


def _turn_down(registry: TransferRegistry, peer: str, message: wire.Ask, reason: str) -> None:
    """Its last report; a copy of the ask that comes later changes nothing."""
    key = wire.key_of(message)
    if registry.early.answer(key, peer):
        registry.send(peer, wire.encode(refusal(key, reason, message.piece)))


def _serve(
    registry: TransferRegistry, dispatch: Dispatch, peer: str, message: wire.Ask, theirs: Layout, now: float
) -> None:
    session, mine, turn = dispatch.session, registry.layout, theirs.seat.group
    if message.content != session.content or message.length != session.length:
        _turn_down(registry, peer, message, "the receiver's prompt is another one")
        return
    try:
        _check_lists(registry, message, [len(places) for places in dispatch.offers[0].places])
        fragments = [overlap(here, there, turn) for here, there in zip(mine.pages, theirs.pages, strict=True)]
        receiver = receiver_rank_of(message, fragments, [page.page_bytes for page in theirs.pages], now)
        expected = len(meets(mine.grid, mine.seat, theirs.grid, turn))
        _check_alone(session, message, receiver, theirs)
    except QuireError as error:
        _turn_down(registry, peer, message, str(error))
        return
    if PER_GROUP not in theirs.can:  # it lists all its slots, and says in one number from where on it lacks them
        receiver.targets = tuple(
            places if group.cross else only(places, (Span(min(message.start, len(places)), len(places)),))
            for group, places in zip(registry.shape.groups, receiver.targets, strict=True)
        )
    registry.add_receiver(session, peer, receiver, expected, now)


def _check_alone(session: Sending, message: wire.Ask, receiver: ReceiverRank, theirs: Layout) -> None:
    """One session has one receiver: its ranks, each of them once. A second one under its key would share its fate."""
    receiver.place = RankPlace(theirs.grid, theirs.seat.group, theirs.rank)
    for known in session.receivers.values():
        if not known.place.is_another_rank_of(receiver.place):
            fact = "another receiver has asked for it under this key"
            raise InputError(say(f"an ask for {message.request}", fact, "send it under a key of its own"))


def _check_lists(registry: TransferRegistry, message: wire.Ask, lengths: list[int]) -> None:
    """Lists as long as the sender's own, and a state after the prompt: checked before memory is taken for them."""
    for group, want, blocks in zip(registry.shape.groups, message.wants, lengths, strict=False):
        fact = ""
        if want.blocks != blocks:
            fact = f"its list of group {group.name!r} has {want.blocks} blocks, the sender's {blocks}"
        elif want.state != bool(group.current):
            fact = f"its list of group {group.name!r} is {'' if want.state else 'not '}of a state"
        elif group.current and want.runs and want.position != message.length:
            fact = f"the state of group {group.name!r} is wanted after {want.position} tokens of {message.length}"
        if fact:
            raise InputError(say(f"an ask for {message.request}", fact, "agree on the prompt and the block size"))


def _newer(registry: TransferRegistry, key: Key) -> bool:
    """A later attempt of the same request is known: this one is over."""
    return any(other.request == key.request and other.epoch > key.epoch for other in registry.dispatches)
