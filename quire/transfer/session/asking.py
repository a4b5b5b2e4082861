"""Asking: how a receiver comes to a session: peers that are known, pages for what they will send, then the ask."""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.records.errors import InputError, say
from quire.core.records.request import Request
from quire.transfer.geometry.ranks import Source, Writers
from quire.transfer.geometry.wants import first_missing
from quire.transfer.session.endpoint_registry import Arrival, TransferRegistry
from quire.transfer.session.receiving_session import PIECE, Receiving
from quire.transfer.views.view import Landing
from quire.transfer.wire import messages as wire
from quire.transfer.wire.verdict import Key


def writers_of(registry: TransferRegistry, source: Source) -> Writers:
    """Whom this rank has to ask."""
    return source.writers(registry.layout.grid, registry.layout.seat)


def order(registry: TransferRegistry, key: Key, peer: str, body: bytes) -> bool:
    """Order a prompt from a peer; if the order gets lost on the way, `receive` says so."""
    if len(body) > wire.MAX_ORDER:
        raise InputError(say(f"an order of {len(body)} bytes", f"{wire.MAX_ORDER} may travel", "shorten it"))
    sent = registry.peers.greet(peer) and registry.send(peer, wire.encode(wire.Order(*key, body)))
    registry.orders.give(key, peer, sent)
    return sent


def receive(registry: TransferRegistry, key: Key, request: Request, source: Source, aux: bool) -> Receiving | None:
    """A session that has asked, or has ended before it could; None: not now."""
    now = registry.clock()
    writers = writers_of(registry, source)
    early = registry.early.cancelled(key, writers.peers)
    wrong = registry.orders.failure(key) or _objection(registry, key, source, writers.peers)
    landing = None if early or wrong else _land(registry, key, request, writers.peers)
    if landing is None and not early and not wrong:
        return None
    knowing = _settle(registry, key)
    registry.early.drop_cancels(key)
    room, wants = registry.aux_room if aux else None, () if landing is None else landing.wants
    names = () if landing is None else writers.peers
    session = Receiving(
        key, wants, names, expected=writers.expected, limits=registry.limits, now=now, aux_room=room
    )  # fmt: skip
    arrival = registry.arrivals[key] = Arrival(session, landing)
    if landing is not None:
        _ask(registry, arrival, landing, now)
    elif early:
        session.cancel(early.reason, now, by_peer=early.peer)
    else:
        session.fail(wrong or "", now)
    done = {*session.writers, early.peer if early else ""}
    if session.verdict is not None:  # a peer that was to compute it, and was not asked for it, need not
        _call_off(registry, key, [peer for peer in knowing if peer not in done], session.verdict.reason)
    return session


def _objection(registry: TransferRegistry, key: Key, source: Source, names: tuple[str, ...]) -> str | None:
    """The first thing that speaks against asking these peers."""
    peers, now, mine = registry.peers, registry.clock(), registry.layout
    if not names:
        return f"there is no peer to ask: no rank of {source.grid} has pages of rank {mine.rank} of {mine.grid}"
    wrong = [peers.meet(peer, now) for peer in names]
    known = [(peer, peers.layouts[peer]) for peer in names if peer in peers.layouts]
    wrong += [source.denies(peer, layout.grid, layout.rank) for peer, layout in known]
    if any(wrong):
        return next(filter(None, wrong))
    strangers = [peer for peer in names if peer not in peers.layouts]
    if not strangers:
        registry.waiting_for_hello.pop(key, None)
        return peers.lack(source)
    if now < registry.waits_for_hello_since(key, now) + registry.limits.transfer:
        return None
    peers.give_up(strangers)
    return f"{strangers[0]} has not said hello within {registry.limits.transfer:g} s"


def _land(registry: TransferRegistry, key: Key, request: Request, names: tuple[str, ...]) -> Landing | None:
    """Pages for it, once its peers are known; a request that never fits is given up."""
    if not registry.peers.know(names):
        return None
    try:
        return registry.view.want(request, one_start=not registry.peers.take_wants(names))
    except BaseException as error:
        give_up(registry, key, str(error))
        raise


def _ask(registry: TransferRegistry, arrival: Arrival, landing: Landing, now: float) -> None:
    """The door is open and the writers are known before the first of them is asked."""
    session = arrival.session
    arrival.door = registry.link.door(landing.places)
    own = [index for index, group in enumerate(registry.shape.groups) if not group.cross]
    start = first_missing([landing.needs[g] for g in own], [landing.held[g] for g in own])
    wants = tuple(
        wire.group_want(places, state=bool(group.current), position=landing.length)
        for group, places in zip(registry.shape.groups, landing.places, strict=True)
    )
    ask = wire.Ask(
        *session.key, PIECE, arrival.door.number, landing.length, landing.content, wants, start,
        registry.limits.transfer,
    )  # fmt: skip
    message = wire.encode(ask)
    for peer in tuple(session.writers):
        if not registry.send(peer, message):
            registry.carry_out(session.key, session.unsent(peer, now))
            break
    registry.add_writers(session)


def give_up(registry: TransferRegistry, key: Key, reason: str) -> None:
    """An order or expectation that was never asked for is called off, and the peer that was to compute it is names."""
    names = _settle(registry, key)
    _call_off(registry, key, names, reason)
    if names and not registry.sessions(key):
        registry.early.close(key)


def _settle(registry: TransferRegistry, key: Key) -> dict[str, None]:
    """It is asked for now, or never: the peers that know so far that it is wanted."""
    registry.waiting_for_hello.pop(key, None)
    ordered, names = registry.orders.settle(key), dict.fromkeys(registry.expected.pop(key, ()))
    return names if ordered is None else names | {ordered: None}


def _call_off(registry: TransferRegistry, key: Key, peers: Iterable[str], reason: str) -> None:
    for peer in peers:
        registry.send(peer, wire.encode(wire.Cancel(*key, reason[:1000])))
