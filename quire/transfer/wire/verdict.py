"""Verdict: how a session ended, written once. Also the key that names a session and the limits it lives under."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import NamedTuple, Protocol

from quire.core.records.errors import InputError, say


class Key(NamedTuple):
    """One attempt to transfer one request; both sides are given the same."""

    request: str
    epoch: int = 0

    def __str__(self) -> str:
        return f"{self.request}#{self.epoch}"


def check_key(key: object) -> None:
    """A key travels: it is a Key, its name is short and its epoch a number from 0 on."""
    if not isinstance(key, Key) or not isinstance(key.request, str) or type(key.epoch) is not int:
        raise InputError(say(f"session {key!r}", "it is not a Key(str, int)", "pass Key(request, epoch)"))
    if not 0 < len(key.request) <= 1024 or not 0 <= key.epoch <= 2**62:
        fact = f"its name has {len(key.request)} characters, its epoch is {key.epoch}"
        raise InputError(say("a session", fact, "use 1 to 1024 characters and an epoch from 0 on"))


class Outcome(StrEnum):
    """The three ends."""

    DELIVERED = "delivered"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An end and its first cause. `broken`: a peer has not kept to the protocol, or its pages could not be used."""

    outcome: Outcome
    reason: str = ""
    by_peer: bool = False
    broken: bool = False


DELIVERED = Verdict(Outcome.DELIVERED)


def failed(reason: str) -> Verdict:
    """An ordinary failure."""
    return Verdict(Outcome.FAILED, reason)


def broken(reason: str) -> Verdict:
    """A failure of the protocol itself, or behind it: the only one that replaces another verdict."""
    return Verdict(Outcome.FAILED, reason, broken=True)


def cancelled(reason: str, by_peer: bool = False) -> Verdict:
    """One side does not want it any more."""
    return Verdict(Outcome.CANCELLED, reason, by_peer)


def settle(old: Verdict | None, new: Verdict) -> Verdict:
    """The first verdict stands; only a broken protocol replaces it."""
    return new if old is None or (new.broken and not old.broken) else old


class _Session(Protocol):
    verdict: Verdict | None
    stuck: bool

    @property
    def quiet(self) -> bool: ...


def in_words(session: _Session) -> str:
    """Where a session stands, for those who look at it."""
    if session.verdict is None:
        return "open"
    why = f": {session.verdict.reason[:200]}" if session.verdict.reason else ""
    return f"{session.verdict.outcome}{why}, {'stuck' if session.stuck else 'quiet' if session.quiet else 'not quiet'}"


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds and sizes of one endpoint's sessions."""

    lease: float = 30.0  # how long a sender holds pages for a receiver that has not asked
    transfer: float = 60.0  # sender: from its last piece on; receiver: from its ask on
    grace: float = 60.0  # from the verdict until all writers must be quiet
    parked: float = 120.0  # how long a message waits for its session
    sessions: int = 4096
    messages: int = 4096  # parked ones
    parked_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                fact = f"{field.name} is {getattr(self, field.name)!r}"
                raise InputError(say("limits of transfers", fact, "give numbers above 0"))
