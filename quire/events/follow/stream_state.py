"""StreamState: where one worker's stream stands: numbers, gaps, what to ask for. Knows neither pages nor sockets.

in order, digest equal                 EXACT
a number is missing                    REPAIRING: ask for the batches from there on
... and they are no longer to be had   REPAIRING: ask for a snapshot
digest differs, or a new publisher     REPAIRING: ask for a snapshot
nothing heard, or nothing to check     UNKNOWN
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from quire.events.wire.delta import Delta
from quire.events.wire.names import Names

MAX_PENDING = 1_000  # batches kept while one before them is missing
PENDING_BYTES = 16 << 20  # of them
RETIRED = 8  # earlier publishers that are remembered, so that their late batches are passed over


class Status(Enum):
    """How far an index may be trusted about one worker."""

    EXACT = "exact"  # what it knows equals what was published, by the digest
    REPAIRING = "repairing"  # something is missing and has been noticed; what it knows may be stale
    UNKNOWN = "unknown"  # nothing was heard, or nothing shows whether it is right


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What to ask a worker for: batches from a number on, a snapshot, or (`check`) its last number and digest."""

    start: int | None  # None: a snapshot
    check: bool = False  # nothing is known to be missing


@dataclass(slots=True)
class Report:
    """What became of one worker's stream."""

    batches: int = 0  # applied
    gaps: int = 0  # times that something was found missing
    mismatches: int = 0  # times that digests differed
    damaged: int = 0  # payloads that were no batch, or not the one of their number
    checks: int = 0  # requests only to be sure
    replays: int = 0  # requests for batches
    snapshots: int = 0  # requests for the whole state
    repair_bytes: int = 0  # fetched by asking
    rank: int = 0  # of the worker's cache
    lost: int = 0  # hashes the worker's own recorder had no room for
    reason: str = ""  # why it is UNKNOWN


class StreamState:
    """One worker's stream."""

    __slots__ = (
        "_doubted", "_requested", "_retired", "barred", "fetched", "foreign", "mendable", "names", "next",
        "pending", "pending_bytes", "refused", "report", "run", "seen", "silent", "slot", "warn_after",
    )  # fmt: skip

    def __init__(self, slot: int, mendable: bool) -> None:
        self.slot = slot  # of the worker in the ledger
        self.mendable = mendable  # there is a way to ask
        self.report = Report()
        self.names: Names | None = None
        self.run: int | None = None  # of the publisher heard last
        self.next: int | None = None  # the number expected; None: only a whole state helps
        self.pending: dict[int, Delta] = {}  # came too early
        self.pending_bytes = 0  # of them
        self.seen = -1  # the highest number known of, whether its batch came or not
        self.refused = ""  # why the last batch is not believed; the next one may be
        self.foreign = False  # it had no field of ours: nothing in it can be checked
        self.barred: int | None = None  # a run of which nothing more is taken
        self.silent = False  # the worker does not answer
        self.fetched = False  # what is being heard is an answer
        self.warn_after = 0.0  # when its refusal may be logged again
        self._requested: ReplayRequest | None = None  # not answered yet
        self._doubted: set[int] = (
            set()
        )  # pending when a snapshot was requested: the snapshot contains them, or they were wrong
        self._retired: list[int] = []

    @property
    def status(self) -> Status:
        if self.run is None or self.refused or self.silent:
            return Status.UNKNOWN
        if self.is_whole:
            return Status.EXACT
        return Status.REPAIRING if self.mendable else Status.UNKNOWN

    @property
    def reason(self) -> str:
        """Why it is UNKNOWN; nothing when it is not."""
        if self.status is not Status.UNKNOWN:
            return ""
        if self.refused:
            return self.refused
        if self.silent:
            return "it does not answer"
        return "nothing was heard yet" if self.run is None else "something is missing, and there is no way to ask"

    @property
    def is_whole(self) -> bool:
        """Nothing is known to be missing."""
        return self.next is not None and not self.pending and self.seen < self.next

    @property
    def is_barred(self) -> bool:
        """Nothing of this publisher is taken any more."""
        return self.run is not None and self.run == self.barred

    def is_late(self, delta: Delta) -> bool:
        """It comes from a publisher that another one has replaced."""
        return delta.run in self._retired

    def begin(self, delta: Delta) -> None:
        """A publisher is heard for the first time; its first batch is a whole state, and so is a snapshot."""
        if self.run is not None:
            self._retired = [*self._retired, self.run][-RETIRED:]
        self.run, self.report.rank, self.names = delta.run, delta.rank, delta.names
        self.next = self._requested = None
        self.seen = -1
        self.forget_pending()

    def forget_pending(self) -> None:
        """Give up what came too early."""
        self.pending.clear()
        self.pending_bytes = 0

    def bar(self, why: str) -> None:
        """Nothing more is taken of this publisher."""
        self.refused, self.barred, self.next = why, self.run, None
        self.forget_pending()

    def add_damaged(self, seq: int | None) -> None:
        """A batch came that is none, or that has two numbers (None): then it may have been the next one."""
        self.report.damaged += 1
        doubted = self.next if seq is None else seq
        if doubted is not None:
            self.seen = max(self.seen, doubted)

    def keep(self, seq: int, delta: Delta, room: int) -> None:
        """It cannot be used yet; when there are too many such, or no room for their bytes, a snapshot is cheaper."""
        self._unkeep(seq)
        if len(self.pending) >= MAX_PENDING or self.pending_bytes + delta.num_bytes > min(room, PENDING_BYTES):
            self.forget_pending()
            self.next = None
            self.seen = max(self.seen, seq)
            if delta.num_bytes > min(room, PENDING_BYTES):
                return
        self.pending[seq] = delta
        self.pending_bytes += delta.num_bytes

    def _unkeep(self, seq: int) -> None:
        gone = self.pending.pop(seq, None)
        self.pending_bytes -= 0 if gone is None else gone.num_bytes

    def reached(self, seq: int, exact: bool, whole: bool) -> None:
        """Everything up to a number has been applied; if the digests differ only a whole state helps."""
        self.next = seq + 1 if exact else None
        corrects = whole and self.fetched  # a whole state that was asked for shows which numbers were wrong
        self.seen = seq if corrects else max(self.seen, seq)
        for old in [number for number in self.pending if number <= seq or (corrects and number in self._doubted)]:
            self._unkeep(old)
        self.report.batches += 1
        self.report.mismatches += not exact

    def request_missing(self) -> ReplayRequest | None:
        """What to ask for; None when nothing is missing, or when it is on its way."""
        if self.status is Status.EXACT or self.foreign or self.is_barred:
            self._requested = None
            return None
        request, under_way = ReplayRequest(self.next), self._requested
        if under_way is not None and not under_way.check and (under_way.start is None) == (request.start is None):
            return None
        return self._send(request)

    def request_check(self) -> ReplayRequest:
        """What to ask for to be sure, or again what has not been answered."""
        return self._send(ReplayRequest(self.next, check=self.is_whole or self.is_barred))

    def _send(self, request: ReplayRequest) -> ReplayRequest:
        """The caller must send it: it is counted and waited for."""
        self._requested = request
        if request.start is None:
            self._doubted = set(self.pending)
        self.report.checks += request.check
        self.report.replays += not request.check and request.start is not None
        self.report.snapshots += not request.check and request.start is None
        return request

    def is_ahead(self, seq: int) -> bool:
        """Whether the number known when a mark was requested was wrong: the mark has a lower one."""
        request = self._requested
        return request is not None and request.check and request.start is not None and seq < request.start - 1

    def answered(self, request: ReplayRequest) -> ReplayRequest | None:
        """An answer is complete: what to ask for now. Batches that did not come are no longer to be had."""
        self.silent = False
        if self._requested not in (None, request):
            return None  # something else was requested since
        self._requested = None
        if request.start is None:
            return None  # a worker without any state yet is asked again later
        if not request.check and self.next == request.start and not self.is_whole:
            self.next = None
        return self.request_missing()
