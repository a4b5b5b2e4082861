"""InFlight: which worker has how much of our work, of which prompts, and whose sessions, noted where it is sent.

Counted here and not asked for: in a burst, what a worker last said about its queue is older than the burst.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from threading import Lock
from types import MappingProxyType

from quire.fleet.prefix_marks import Marks, PromisedPrefixes

Quoted = tuple[bool, float]  # whether a worker would refuse a request, and within how many seconds it would be served
NOTHING_QUOTED: Mapping[str, Quoted] = MappingProxyType({})
UNQUOTED: Quoted = (True, float("inf"))
MOST_SESSIONS = 1 << 16  # whose last worker is known; who was idle longest is forgotten


class WorkTicket:
    """One request's place in the table: with at most one worker at a time, and nowhere when it is over."""

    __slots__ = ("_avoid", "_over", "_table", "marks", "quoted", "session", "worker")

    def __init__(self, marks: Marks = (), session: str | None = None) -> None:
        self.marks = marks  # of its prompt
        self.session = session  # that its request belongs to
        self.worker: str | None = None
        self.quoted: Mapping[str, Quoted] = NOTHING_QUOTED  # by worker
        self._table: InFlight | None = None
        self._avoid: set[str] = set()
        self._over = False

    def __repr__(self) -> str:
        return f"WorkTicket({'over' if self._over else self.worker})"

    @property
    def avoided(self) -> frozenset[str]:
        """Workers that have lost it."""
        return frozenset(self._avoid)

    def enter(self, table: InFlight, worker: str) -> None:
        """It goes to this worker, and to no other."""
        with table.lock:
            if self._over:
                return  # its client has gone
            self._step_out()
            self._table, self.worker = table, worker
            table.counts[worker] += 1
            table.promised.add(worker, self.marks)
            if self.session is not None:
                table.settle(self.session, worker)

    def withdraw(self) -> None:
        """It is with no worker for the moment: one is chosen anew."""
        self._leave(False)

    def lost(self) -> None:
        """Its worker has not done it: it will go to another."""
        if self.worker is not None:
            self._avoid.add(self.worker)
        self._leave(False)

    def leave(self) -> None:
        """It is over."""
        self._leave(True)

    def _leave(self, over: bool) -> None:
        table = self._table
        if table is None:
            self._over = over
            return
        with table.lock:
            self._over = over
            self._step_out()

    def _step_out(self) -> None:
        if self._table is not None and self.worker is not None:
            self._table.promised.remove(self.worker, self.marks)
            self._table.counts[self.worker] -= 1
            if not self._table.counts[self.worker]:
                del self._table.counts[self.worker]
        self._table = self.worker = None


class InFlight:
    """Requests under way by worker. Used from several threads."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.counts: Counter[str] = Counter()
        self.promised = PromisedPrefixes()
        self._homes: OrderedDict[str, str] = OrderedDict()  # who had each session last; the longest idle first

    def __repr__(self) -> str:
        return f"InFlight({dict(self.counts)})"

    def loads(self) -> dict[str, int]:
        """How many each worker has; those with none are left out."""
        with self.lock:
            return dict(self.counts)

    def settle(self, session: str, worker: str) -> None:
        """A session's request goes there; under the lock."""
        self._homes[session] = worker
        self._homes.move_to_end(session)
        if len(self._homes) > MOST_SESSIONS:
            self._homes.popitem(last=False)

    def home(self, session: str | None) -> str | None:
        """The worker that had the last request of a session, if that is known."""
        with self.lock:
            return None if session is None else self._homes.get(session)

    def leading(self, marks: Marks) -> dict[str, int]:
        """Tokens of a prompt's beginning that each worker computes now, for others."""
        with self.lock:
            return self.promised.leading(marks)
