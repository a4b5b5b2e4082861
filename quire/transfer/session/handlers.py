"""Handlers: what an endpoint does with each piece of news from its link.

Nothing that a peer says raises here: it is acted on, refused, or counted in `registry.ignored`.
"""

from __future__ import annotations

import logging

from quire.core.records.errors import QuireError
from quire.transfer.links.link import Lost, News, Received, WriteDone
from quire.transfer.session import answering
from quire.transfer.session.endpoint_registry import TransferRegistry
from quire.transfer.wire import messages as wire
from quire.transfer.wire.verdict import Key

_log = logging.getLogger("quire.transfer")


def handle(registry: TransferRegistry, news: News, now: float) -> None:
    """One piece of news."""
    match news:
        case Received(peer, data):
            try:
                _message(registry, peer, wire.decode(data), now)
            except QuireError as error:
                registry.ignored["not understood"] += 1
                registry.last_refusal = str(error)
                registry.peers.not_understood(peer, str(error))
        case WriteDone(ticket, problem):
            write_done(registry, ticket, problem, now)
        case Lost(peer, reason):
            lost(registry, peer, reason, now)


def _message(registry: TransferRegistry, peer: str, message: wire.AnyMessage, now: float) -> None:
    match message:
        case wire.Hello():
            registry.peers.met(peer, message)
        case wire.Refuse(reason):
            _refused(registry, peer, reason, now)
        case wire.Order():
            _order(registry, peer, message)
        case wire.Ask():
            answering.answer(registry, peer, message, now)
        case wire.DeliveryReport():
            _report(registry, peer, message, now)
        case wire.Cancel():
            _cancel(registry, peer, message, now)
        case wire.Beat(keys):
            for name in keys:
                dispatch = registry.dispatches.get(Key(*name))
                if dispatch is not None:
                    dispatch.session.renew(now)


def _refused(registry: TransferRegistry, peer: str, reason: str, now: float) -> None:
    """A peer does not want us: what was asked of it will not come."""
    registry.peers.refused_by(peer, reason)
    for key in registry.received_from.keys_of(peer):
        report = answering.refusal(key, f"{peer} does not fit: {reason}")
        registry.carry_out(key, registry.arrivals[key].session.heard(peer, report, now))


def _order(registry: TransferRegistry, peer: str, message: wire.Order) -> None:
    """Keep it for the engine; a peer whose order is not computed learns that when it asks."""
    key = wire.key_of(message)
    if peer not in registry.peers.layouts or key in registry.dispatches or key in registry.early.over:
        registry.ignored["an order of a stranger, or again"] += 1
    elif key in registry.arrivals or key in registry.expected:
        registry.orders.refuse(key, peer, "that key is being received here")
    else:
        registry.orders.put(peer, message)


def _report(registry: TransferRegistry, peer: str, message: wire.DeliveryReport, now: float) -> None:
    arrival = registry.arrivals.get(wire.key_of(message))
    if arrival is None:
        registry.ignored["a report for no session"] += 1
        return
    registry.carry_out(arrival.session.key, arrival.session.heard(peer, message, now))


def _cancel(registry: TransferRegistry, peer: str, message: wire.Cancel, now: float) -> None:
    """Cancel what is there, for a peer that takes part in it; what is not there yet is cancelled when it comes."""
    key = wire.key_of(message)
    dispatch, arrival = registry.dispatches.get(key), registry.arrivals.get(key)
    ordered = registry.orders.withdraw(key, peer)
    if ordered:
        registry.early.drop_ask(key, peer)
    if dispatch is not None and (ordered or peer in dispatch.session.receivers):
        registry.carry_out(key, dispatch.session.cancel(message.reason, now, by_peer=peer))
    elif arrival is not None and peer in arrival.session.writers:
        registry.carry_out(key, arrival.session.cancel(message.reason, now, by_peer=peer))
    elif dispatch is not None or arrival is not None:
        registry.ignored["a cancel of a stranger"] += 1
    elif key not in registry.early.over and not ordered:
        registry.early.park_cancel(peer, message, now)


def write_done(registry: TransferRegistry, ticket: int, problem: str | None, now: float) -> None:
    """A write is over."""
    write = registry.tickets.pop(ticket, None)
    dispatch = None if write is None else registry.dispatches.get(write.key)
    if write is None or dispatch is None:
        registry.ignored["a write of no session"] += 1
    else:
        registry.carry_out(write.key, dispatch.session.moved(write.peer, problem, now))


def lost(registry: TransferRegistry, peer: str, reason: str, now: float) -> None:
    """A peer is gone: what it takes part in ends. What it has nothing to do with is not looked at."""
    if registry.peers.lost(peer, reason, now):
        _log.warning("peer %s is lost: %r", peer, reason)
    registry.early.forget(peer)
    for key in registry.orders.lost(peer, reason):
        if key in registry.dispatches and not registry.dispatches[key].session.receivers:
            session = registry.dispatches[key].session
            registry.carry_out(key, session.cancel(f"{peer} was lost", now, by_peer=peer))
    for key in registry.sent_to.keys_of(peer):
        registry.carry_out(key, registry.dispatches[key].session.lost(peer, now))
    for key in registry.received_from.keys_of(peer):
        registry.carry_out(key, registry.arrivals[key].session.lost(peer, now))
