"""FleetWork: what a server asks a worker to generate, and what comes back. Records that go between processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from quire.core.records.errors import QuireError
from quire.core.records.identity import Scope
from quire.core.records.request import Int32
from quire.engine.loop.feed import Piece
from quire.engine.sampling.params import Sampling
from quire.engine.step.runs.page_hints import NO_HINTS, PageHints
from quire.engine.step.runs.tenant import Together
from quire.fleet.in_flight import WorkTicket


@dataclass(frozen=True, slots=True)
class FleetWork:
    """One prompt and how it is answered. `begun`: what another worker has made of its answer."""

    tokens: Int32
    sampling: Sampling
    scope: Scope
    hints: PageHints = NO_HINTS  # of what becomes of its pages
    begun: tuple[int, ...] = ()
    ticket: WorkTicket | None = None  # stays in the server's process
    tenant: str | Together | None = None  # whose turns it takes
    ttft: float | None = None  # seconds within which its first token is wanted

    def __repr__(self) -> str:
        return f"FleetWork({len(self.tokens)} tokens, {len(self.begun)} begun)"

    def __reduce__(self) -> tuple[Any, ...]:
        given = (self.tokens, self.sampling, self.scope, self.hints, self.begun, None, self.tenant, self.ttft)
        return FleetWork, given


class LookAt(NamedTuple):
    """A question of the live page about one worker's cache. It goes to that worker and to no other."""

    worker: str
    path: str
    query: str
    is_operator: bool


class AskQuote(NamedTuple):
    """When would this worker have a first token? It goes to that worker and to no other."""

    worker: str
    work: FleetWork


class WorkerQuote(NamedTuple):
    """What its door says to that, in seconds from when it was asked; nothing is held for it."""

    accepted: bool
    soonest: float
    bound: float


class WorkerFacts(NamedTuple):
    """What a server must know of its workers, which are all alike."""

    longest: int  # tokens of a prompt and its answer
    vocabulary: int


class Taken(NamedTuple):
    """The first thing that a worker says: it has a place for the work."""

    worker: str
    bound: float | None = None  # seconds until its first token, at the latest, if it was given a deadline


class WorkRefused(NamedTuple):
    """Or why it has not: the work is wrong, this worker is full, or would be too late, or it ends."""

    why: Literal["input", "busy", "late", "ending"]
    text: str
    worker: str = ""  # who would be too late
    bound: float = 0.0  # by what it said


class MorePieces(NamedTuple):
    """What has come of the answers; nothing, now and then, so that silence means something."""

    pieces: Sequence[Piece]
    reused: int


class Over(NamedTuple):
    """The last thing: all has come, or why not. `is_lost`: the worker's engine has failed, another one may do it."""

    error: str | None = None
    is_lost: bool = False


WorkerMessage = Taken | WorkRefused | MorePieces | Over


class WorkerLost(QuireError):
    """The worker that had the work is gone, or says nothing any more."""


class FleetFull(QuireError):
    """As much work waits as may."""
