"""Index: the router's side. Which worker holds how much of a prompt, in which tier, and whether that is certain.

Owns the pages of all workers and where each stream stands; knows no sockets: `hear` takes what came, and says what to
ask for. A Follower does both over ZMQ.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, UnknownError, say
from quire.core.records.identity import Media, Scope
from quire.core.store import StoreName, open_store
from quire.events.follow.prompt_hashes import PromptHashes
from quire.events.follow.reusable_blocks import leading, resumable
from quire.events.follow.stream_state import ReplayRequest, Report, Status, StreamState
from quire.events.wire.delta import Delta, decoded
from quire.events.wire.digest import agrees
from quire.events.wire.field import MAX_NUMBER, Damaged, Form, Refused
from quire.events.wire.names import Names

if TYPE_CHECKING:
    from quire.core.store.interface import Chain, Ledger

_log = logging.getLogger("quire.events")
PLAIN = Scope()
MAX_WORKERS = 4096  # a ledger has no room for more
PENDING_BYTES = 256 << 20  # of batches of all workers that came too early
WARN_EVERY = 1.0  # seconds: a worker that is refused over and over does not fill a log


@dataclass(frozen=True, slots=True)
class Holding:
    """What one worker holds of a prompt: leading tokens it need not compute, and how many of them by tier."""

    tokens: int
    tiers: tuple[int, ...]
    status: Status


class Index:
    """The pages of many workers, kept from their events. May be used from several threads."""

    def __init__(self, *, max_pages: int = 1 << 23, store: StoreName = "auto") -> None:
        """A worker that publishes more than `max_pages` pages is not believed: it could fill this side's memory."""
        if type(max_pages) is not int or max_pages < 1:
            raise InputError(say(f"max_pages {max_pages!r}", "that is not a size", "pass a positive int"))
        module = open_store(store)
        self._max_pages = max_pages
        self._chain: type[Chain] = module.Chain
        self._ledger: Ledger = module.Ledger(8, 1)
        self._groups, self._num_slots = 1, 8
        self._streams: dict[Hashable, StreamState] = {}
        self._free = list(range(7, -1, -1))
        self._alike: dict[Names, list[tuple[Hashable, StreamState]]] = {}  # workers whose caches are built alike
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        states = self.workers().values()
        exact = sum(status is Status.EXACT for status in states)
        return f"Index({len(states)} workers, {exact} of them exact, {len(self._ledger)} pages)"

    # -- workers -----------------------------------------------------------------------------------------------------

    def add(self, worker: Hashable, *, mendable: bool = True) -> None:
        """A worker whose batches will come; it is UNKNOWN until then, and after a loss if it cannot be asked."""
        with self._lock:
            if worker in self._streams:
                raise InputError(say(f"worker {worker!r}", "it is there already", "remove it first"))
            if len(self._streams) >= MAX_WORKERS:
                raise InputError(say(f"worker {worker!r}", f"the index has {MAX_WORKERS} already", "use another index"))
            if not self._free:
                self._widen(2 * self._num_slots, self._groups)
            self._streams[worker] = StreamState(self._free.pop(), mendable)

    def remove(self, worker: Hashable) -> None:
        """Forget a worker."""
        with self._lock:
            stream = self._stream(worker)
            self._ledger.clear(stream.slot)
            self._free.append(stream.slot)
            del self._streams[worker]
            self._group_by_names()

    def workers(self) -> dict[Hashable, Status]:
        """All of them, and how far each may be trusted."""
        with self._lock:
            return {worker: stream.status for worker, stream in self._streams.items()}

    def status(self, worker: Hashable) -> Status:
        """How far the index may be trusted about a worker."""
        with self._lock:
            return self._stream(worker).status

    def report(self, worker: Hashable) -> Report:
        """What became of a worker's stream so far."""
        with self._lock:
            stream = self._stream(worker)
            return replace(stream.report, reason=stream.reason)

    def pages(self, worker: Hashable, group: int = 0) -> dict[int, tuple[int, int]]:
        """Everything known of one group of a worker: event hash -> tier, priority."""
        with self._lock:
            slot = self._stream(worker).slot
            if not 0 <= group < self._groups:
                return {}
            hashes, tiers, priorities = (part.tolist() for part in self._ledger.pages(slot, group))
        return dict(zip(hashes, zip(tiers, priorities, strict=True), strict=True))

    def _stream(self, worker: Hashable) -> StreamState:
        stream = self._streams.get(worker)
        if stream is None:
            raise UnknownError(say(f"worker {worker!r}", "the index does not know it", "add it first"))
        return stream

    def _widen(self, workers: int, groups: int) -> None:
        self._ledger.widen(workers, groups)
        self._free = [*range(workers - 1, self._num_slots - 1, -1), *self._free]
        self._num_slots, self._groups = workers, groups

    def _group_by_names(self) -> None:
        self._alike.clear()
        for worker, stream in self._streams.items():
            if stream.names is not None:
                self._alike.setdefault(stream.names, []).append((worker, stream))

    # -- streams -----------------------------------------------------------------------------------------------------

    def hear(self, worker: Hashable, seq: int, payload: bytes, *, asked: bool = False) -> ReplayRequest | None:
        """A batch or a snapshot of a worker's stream; what to ask the worker for, if anything is missing.

        `asked` says that it came as an answer. Each batch may come late, twice, or not at all.
        """
        with self._lock:
            stream = self._stream(worker)
            before, refused = stream.status, stream.refused
            stream.silent, stream.fetched = False, asked
            stream.report.repair_bytes += len(payload) if asked else 0
            self._hear(stream, seq, payload)
            stream.report.gaps += before is Status.EXACT and stream.status is Status.REPAIRING
            if stream.status is not before or stream.refused != refused:
                _log_change(worker, stream, before)
            return stream.request_missing()

    def _hear(self, stream: StreamState, seq: int, payload: bytes) -> None:
        try:
            if not 0 <= seq <= MAX_NUMBER:
                raise Refused(f"a batch of number {seq}")
            delta = decoded(payload)
            if delta is not None and delta.run == stream.run and delta.names != stream.names:
                raise Refused("its parts have other names than before")
        except Damaged as error:
            stream.add_damaged(seq if 0 <= seq <= MAX_NUMBER else None)
            stream.refused = str(error) if isinstance(error, Refused) else stream.refused
            return
        stream.foreign = delta is None
        if delta is None:
            stream.refused = "its batches have no field of ours: nothing in them can be checked"
        elif not (stream.is_late(delta) or delta.run == stream.barred):
            stream.refused = ""
            self._enter(stream, seq, delta)

    def _enter(self, stream: StreamState, seq: int, delta: Delta) -> None:
        """A batch of the run that is followed, or of a new one."""
        if delta.number != seq:
            stream.add_damaged(None)
            return
        if stream.run != delta.run:
            self._begin(stream, delta)
        self._take(stream, seq, delta)

    def check(self, worker: Hashable) -> ReplayRequest:
        """The request that checks a quiet worker; when something is missing, the request that asks for it again."""
        with self._lock:
            return self._stream(worker).request_check()

    def answered(self, worker: Hashable, request: ReplayRequest) -> ReplayRequest | None:
        """An answer is complete; when it was not enough, what to ask for instead."""
        with self._lock:
            return self._stream(worker).answered(request)

    def silent(self, worker: Hashable) -> None:
        """A worker does not answer: what is known of it cannot be checked until a message of it comes."""
        with self._lock:
            stream = self._stream(worker)
            if not stream.silent:
                _log.warning("worker %r does not answer", worker)
            stream.silent = True

    def fail(self, worker: Hashable, why: str) -> None:
        """A worker is no longer followed: do not rely on what is known of it."""
        with self._lock:
            self._stream(worker).bar(why)
            _log.warning("worker %r is not followed any more: %s", worker, why)

    def _begin(self, stream: StreamState, delta: Delta) -> None:
        self._ledger.clear(stream.slot)
        if len(delta.names.groups) > self._groups:
            self._widen(self._num_slots, len(delta.names.groups))
        stream.begin(delta)
        self._group_by_names()

    def _take(self, stream: StreamState, seq: int, delta: Delta) -> None:
        """Apply what can be applied, in order; keep the rest."""
        if delta.form is Form.MARK:
            self._compare(stream, seq, delta)
            return
        if stream.next is not None and seq < stream.next:
            return  # a duplicate, or late
        if seq != stream.next and delta.form is Form.CHANGES:
            stream.keep(seq, delta, PENDING_BYTES - self._pending_bytes() + stream.pending_bytes)
            return
        self._apply(stream, seq, delta)
        while stream.next is not None and stream.next in stream.pending:
            self._apply(stream, stream.next, stream.pending[stream.next])

    def _apply(self, stream: StreamState, seq: int, delta: Delta) -> None:
        """One batch, and whether the digests agree after it."""
        known = 0 if delta.form is Form.WHOLE else self._ledger.num_pages(stream.slot)
        if known + len(delta.records.hashes) > self._max_pages and (pages := delta.at_least(known)) > self._max_pages:
            self._bar(stream, pages)  # before it takes time and memory
            return
        try:
            if delta.form is Form.WHOLE:
                self._ledger.clear(stream.slot)
            self._ledger.apply(stream.slot, *delta.records)
            exact = agrees(self._ledger, stream.slot, delta.digest)
        except ValueError:  # records that the recorder never makes
            exact = False
        stream.report.lost += delta.lost
        stream.reached(seq, exact, delta.form is Form.WHOLE)
        if (pages := self._ledger.num_pages(stream.slot)) > self._max_pages:
            self._bar(stream, pages)

    def _bar(self, stream: StreamState, pages: int) -> None:
        self._ledger.clear(stream.slot)
        stream.bar(f"it publishes {pages} pages, there is room for {self._max_pages} (max_pages)")

    def _pending_bytes(self) -> int:
        return sum(stream.pending_bytes for stream in self._streams.values())

    def _compare(self, stream: StreamState, seq: int, delta: Delta) -> None:
        """Compare what is known with a mark."""
        if stream.is_ahead(seq):
            stream.next = None
        if stream.next is None or seq < stream.next - 1:
            return
        if seq >= stream.next:
            stream.seen = max(stream.seen, seq)  # some batches did not come
        elif not agrees(self._ledger, stream.slot, delta.digest):
            stream.report.mismatches += 1
            stream.next = None

    # -- questions ---------------------------------------------------------------------------------------------------

    def find(
        self, tokens: NDArray[np.int32], scope: Scope = PLAIN, *, extra_ids: NDArray[np.int64] | None = None,
        media: Sequence[Media] = (),
    ) -> dict[Hashable, Holding]:  # fmt: skip
        """How much of a prompt each worker holds, in whole blocks; workers that hold nothing are left out."""
        prompt = PromptHashes(self._chain, tokens, scope, extra_ids, media)
        found: dict[Hashable, Holding] = {}
        with self._lock:
            for names, alike in self._alike.items():
                slots = [stream.slot for _, stream in alike]
                held = (leading if names.plain else resumable)(self._ledger, names, prompt.for_names(names), slots)
                for (worker, stream), num_tokens, tiers in zip(alike, held.tokens, held.tiers, strict=True):
                    if num_tokens:
                        found[worker] = Holding(num_tokens, tuple(tiers), stream.status)
        return found


def _log_change(worker: Hashable, stream: StreamState, before: Status) -> None:
    """What an operator wants to know; reasons may quote what a worker has sent."""
    if stream.refused:
        if (now := time.monotonic()) >= stream.warn_after:
            _log.warning("worker %r is not believed: %r", worker, stream.refused)
            stream.warn_after = now + WARN_EVERY
    elif stream.status is Status.EXACT:
        _log.info("worker %r is exact%s", worker, ", its stream is repaired" if before is Status.REPAIRING else "")
    elif before is Status.EXACT:
        _log.info("worker %r: something is missing from number %s on", worker, stream.next)
