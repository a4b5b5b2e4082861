"""WorkerBook: what each worker has cached and how much work it has, and hence who gets the next request. Knows no Ray.

    events of workers ──► Follower ──► Index ── held tokens ──────────────┐
    tickets of requests ─────────────► InFlight ── promised tokens, load ─┴──► rank: the cheapest first

cost = tokens to compute + load x (a share of the prompt's length): one request under way weighs as much as computing
that share anew, so a prompt goes where most of it is, or is being computed, unless too many are there already. Of equal
cost, the worker that had the last request of its session comes first: its events may be on their way. Before the
cost comes when a first token would be there, where workers have said that.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quire.core.records.identity import Scope
from quire.core.records.request import Int32
from quire.events import Follower, Index, Keys, Status
from quire.fleet.in_flight import UNQUOTED, InFlight, Quoted, WorkTicket
from quire.fleet.prefix_marks import marks_of

SHARE, LEAST = 1 / 16, 16.0  # what is cached outweighs 16 requests more under way; a larger share finds less


@dataclass(frozen=True, slots=True)
class RankWeights:
    """How much a request under way counts against what is cached."""

    share: float = SHARE  # of the prompt's tokens
    least: float = LEAST  # tokens, for short prompts


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """Where a worker publishes what it has cached."""

    events: str
    replay: str
    key: str | None = None  # its public CURVE key
    pid: int = 0  # of its process, on its own machine


class WorkerBook:
    """Of one server. `update` says which workers there are, `rank` whom to ask first."""

    def __init__(self, weights: RankWeights | None = None, keys: Keys | None = None) -> None:
        self.index, self.in_flight, self._weights = Index(), InFlight(), weights or RankWeights()
        self._follower = Follower(self.index, keys=keys)
        self._known: dict[str, WorkerAddress] = {}
        self.num_choices, self.choice_seconds = 0, 0.0

    def __repr__(self) -> str:
        return f"WorkerBook({self.statuses()}, {self.in_flight!r})"

    def update(self, workers: Mapping[str, WorkerAddress]) -> None:
        """These are all there are: others are forgotten."""
        for gone in self._known.keys() - workers.keys():
            self.forget(gone)
        for name in workers.keys() - self._known.keys():
            address = workers[name]
            self._follower.follow(name, address.events, address.replay, server=address.key)
            self._known[name] = address

    def forget(self, worker: str) -> None:
        """It is gone, and what it had with it."""
        if worker in self._known:
            del self._known[worker]
            self._follower.leave(worker)

    def addresses(self) -> dict[str, WorkerAddress]:
        """Of all that there are."""
        return dict(self._known)

    def statuses(self) -> dict[str, str]:
        """How well each worker's cache is known."""
        return {str(name): str(status).rpartition(".")[2] for name, status in self.index.workers().items()}

    def held(self, tokens: Int32, scope: Scope) -> dict[str, int]:
        """Leading tokens by worker. One whose events are not all here counts as holding nothing."""
        found = self.index.find(tokens, scope)
        return {str(name): one.tokens for name, one in found.items() if one.status is Status.EXACT}

    def rank(self, workers: Sequence[str], tokens: Int32, scope: Scope, ticket: WorkTicket | None = None) -> list[str]:
        """Who should have this prompt: the best first, those last that have lost it before."""
        began, ticket = time.perf_counter(), ticket or WorkTicket(marks_of(tokens, scope))
        avoid, quoted, home = ticket.avoided, ticket.quoted, self.in_flight.home(ticket.session)
        held, promised = self.held(tokens, scope), self.in_flight.leading(ticket.marks)
        loads, length = self.in_flight.loads(), len(tokens)
        each = max(self._weights.least, self._weights.share * length)

        def cost(worker: str) -> tuple[bool, Quoted, float, bool, float]:
            computed = length - max(held.get(worker, 0), promised.get(worker, 0))
            busy = each * loads.get(worker, 0)
            return worker in avoid, quoted.get(worker, UNQUOTED), computed + busy, worker != home, random.random()

        ranked = sorted(workers, key=cost)
        self.num_choices += 1
        self.choice_seconds += time.perf_counter() - began
        return ranked

    @property
    def stopped(self) -> bool:
        """Whether events of workers are not heard any more: what they hold is not known."""
        return self._follower.stopped

    def close(self) -> None:
        """Listen no more."""
        self._follower.close()
