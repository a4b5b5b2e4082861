"""Ending: a session that has a verdict becomes quiet, and then its pages are given back or made findable.

Wrong bytes are worse than pages that stay taken: nothing is given back before it is proven that no peer touches it.
"""

from __future__ import annotations

import logging

from quire.core.records.errors import StateError, say
from quire.transfer.session.endpoint_registry import Session, TransferRegistry
from quire.transfer.session.receiving_session import Receiving
from quire.transfer.session.sending_session import Sending
from quire.transfer.wire.verdict import Outcome

CLOSING = 1.0  # seconds that a closed link gets to prove that nothing moves any more

_log = logging.getLogger("quire.transfer")
_LEVELS = {Outcome.DELIVERED: logging.DEBUG, Outcome.CANCELLED: logging.INFO, Outcome.FAILED: logging.WARNING}


def is_quiet(session: Session) -> bool:
    """Its writers say so and, of a receiver, its own door too: a peer's report alone frees no page."""
    return session.quiet and (isinstance(session, Sending) or session.proven)


def quieten(registry: TransferRegistry, session: Session, now: float) -> None:
    """Shut its door; after its grace close the link to silent peers; its pages stay taken until all is proven."""
    if isinstance(session, Receiving) and not session.proven:
        door = registry.arrivals[session.key].door
        session.proven = door is None or door.shut()
    if is_quiet(session):
        if session.stuck:
            _log.warning("session %s is not stuck any more: it is proven that no peer touches its pages", session.key)
        session.stuck = False  # the proof has come after all
        return
    if session.stuck or session.quiet_until is None or now < session.quiet_until:
        return
    if session.closed_at is None:
        session.closed_at = now
        for peer in list(session.writers) if isinstance(session, Receiving) else session.silent:
            registry.link.close(peer)
    session.stuck = now >= session.closed_at + CLOSING
    if session.stuck:
        _log.error("session %s is stuck: a peer may still touch its pages. If it lasts, restart", session.key)


def log_end(session: Session) -> None:
    """Say how a session has ended."""
    if session.verdict is not None:
        what = "sending" if isinstance(session, Sending) else "receiving"
        verdict = session.verdict
        _log.log(_LEVELS[verdict.outcome], "%s %s: %s %r", what, session.key, verdict.outcome, verdict.reason)


def conclude(registry: TransferRegistry, session: Session, *, commit: bool | None) -> None:
    """Give its pages back, or make them findable: when delivered, unless ranks have agreed not to `commit`."""
    key = session.key
    if session not in registry.sessions(key) or not is_quiet(session) or session.stuck:
        fact = "it is over" if session not in registry.sessions(key) else "a peer may still touch its pages"
        raise StateError(say(f"the end of {key}", fact, "wait until `step` returns it, and end it once"))
    if isinstance(session, Sending):
        _give_back(registry, session)
    else:
        _settle_pages(registry, session, commit)
    if not registry.sessions(key):
        registry.early.close(key)


def _give_back(registry: TransferRegistry, session: Sending) -> None:
    for peer in session.receivers:
        registry.early.answer(session.key, peer)
    for offer in registry.take_dispatch(session.key).offers:
        registry.view.release(offer)


def _settle_pages(registry: TransferRegistry, session: Receiving, commit: bool | None) -> None:
    landing = registry.take_arrival(session.key).landing
    if landing is None:
        return
    delivered = session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED
    if not delivered or commit is False:
        registry.view.release(landing)
        return
    try:
        registry.view.commit(landing)
    except Exception as error:  # of a device, say: it has released them
        session.spoil(f"{type(error).__name__}: {error}")
        log_end(session)
