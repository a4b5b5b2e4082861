"""Index: the router's side. Which worker holds how much of a prompt, in which tier, and whether that is certain.

Owns the pages of all workers and where each stream stands; knows no sockets: `hear` takes what came, and says what to
ask for. A Follower does both over ZMQ.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, UnknownError, say
from quire.core.records.identity import Media, Scope, token_words
from quire.core.store import StoreName, open_store
from quire.events.follow.reuse import leading, resumable
from quire.events.follow.stream_state import Ask, Report, Status, Track
from quire.events.wire.delta import Delta, decoded
from quire.events.wire.field import MAX_NUMBER, Damaged, Form, Refused
from quire.events.wire.names import Names

if TYPE_CHECKING:
    from quire.core.store.interface import Chain, Ledger

PLAIN = Scope()
MAX_WORKERS = 4096  # a ledger has no room for more
PENDING_BYTES = 256 << 20  # of batches of all workers that came too early


@dataclass(frozen=True, slots=True)
class Holding:
    """What one worker holds of a prompt: leading tokens it need not compute, and how many of them by tier."""

    tokens: int
    tiers: tuple[int, ...]
    status: Status


class Index:
    """The pages of many workers, kept from their events. May be used from several threads."""

    def __init__(self, *, max_pages: int = 1 << 23, store: StoreName = "auto") -> None:
        """A worker that tells of more than `max_pages` pages is not believed: it could fill this side's memory."""
        if type(max_pages) is not int or max_pages < 1:
            raise InputError(say(f"max_pages {max_pages!r}", "that is no room", "pass a positive int"))
        module = open_store(store)
        self._max_pages = max_pages
        self._chain: type[Chain] = module.Chain
        self._ledger: Ledger = module.Ledger(8, 1)
        self._groups, self._room = 1, 8
        self._tracks: dict[Hashable, Track] = {}
        self._free = list(range(7, -1, -1))
        self._shapes: dict[Names, list[tuple[Hashable, Track]]] = {}  # workers whose caches are built alike
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        states = self.workers().values()
        exact = sum(status is Status.EXACT for status in states)
        return f"Index({len(states)} workers, {exact} of them exact, {len(self._ledger)} pages)"

    # -- workers -----------------------------------------------------------------------------------------------------

    def add(self, worker: Hashable, *, mendable: bool = True) -> None:
        """A worker whose batches will come; it is UNKNOWN until then, and after a loss if it cannot be asked."""
        with self._lock:
            if worker in self._tracks:
                raise InputError(say(f"worker {worker!r}", "it is there already", "remove it first"))
            if len(self._tracks) >= MAX_WORKERS:
                raise InputError(say(f"worker {worker!r}", f"the index has {MAX_WORKERS} already", "use another index"))
            if not self._free:
                self._widen(2 * self._room, self._groups)
            self._tracks[worker] = Track(self._free.pop(), mendable)

    def remove(self, worker: Hashable) -> None:
        """Forget a worker."""
        with self._lock:
            track = self._track(worker)
            self._ledger.clear(track.slot)
            self._free.append(track.slot)
            del self._tracks[worker]
            self._sort()

    def workers(self) -> dict[Hashable, Status]:
        """All of them, and how far each may be trusted."""
        with self._lock:
            return {worker: track.status for worker, track in self._tracks.items()}

    def status(self, worker: Hashable) -> Status:
        """How far the index may be trusted about a worker."""
        with self._lock:
            return self._track(worker).status

    def report(self, worker: Hashable) -> Report:
        """What became of a worker's stream so far."""
        with self._lock:
            track = self._track(worker)
            return replace(track.report, reason=track.reason)

    def pages(self, worker: Hashable, group: int = 0) -> dict[int, tuple[int, int]]:
        """Everything known of one group of a worker: event hash -> tier, priority."""
        with self._lock:
            slot = self._track(worker).slot
            if not 0 <= group < self._groups:
                return {}
            hashes, tiers, priorities = (part.tolist() for part in self._ledger.pages(slot, group))
        return dict(zip(hashes, zip(tiers, priorities, strict=True), strict=True))

    def _track(self, worker: Hashable) -> Track:
        track = self._tracks.get(worker)
        if track is None:
            raise UnknownError(say(f"worker {worker!r}", "the index does not know it", "add it first"))
        return track

    def _widen(self, workers: int, groups: int) -> None:
        self._ledger.widen(workers, groups)
        self._free = [*range(workers - 1, self._room - 1, -1), *self._free]
        self._room, self._groups = workers, groups

    def _sort(self) -> None:
        self._shapes.clear()
        for worker, track in self._tracks.items():
            if track.names is not None:
                self._shapes.setdefault(track.names, []).append((worker, track))

    # -- streams -----------------------------------------------------------------------------------------------------

    def hear(self, worker: Hashable, seq: int, payload: bytes, *, asked: bool = False) -> Ask | None:
        """A batch or a snapshot of a worker's stream; what to ask the worker for, if anything is missing.

        `asked` says that it came as an answer. Each batch may come late, twice, or not at all.
        """
        with self._lock:
            track = self._track(worker)
            before, track.silent, track.fetched = track.status, False, asked
            track.report.repair_bytes += len(payload) if asked else 0
            self._hear(track, seq, payload)
            track.report.gaps += before is Status.EXACT and track.status is Status.REPAIRING
            return track.wants()

    def _hear(self, track: Track, seq: int, payload: bytes) -> None:
        try:
            if not 0 <= seq <= MAX_NUMBER:
                raise Refused(f"a batch of number {seq}")
            delta = decoded(payload)
            if delta is not None and delta.run == track.run and delta.names != track.names:
                raise Refused("its parts have other names than before")
        except Damaged as error:
            track.spoilt(seq if 0 <= seq <= MAX_NUMBER else None)
            track.refused = str(error) if isinstance(error, Refused) else track.refused
            return
        track.foreign = delta is None
        if delta is None:
            track.refused = "its batches have no field of ours: nothing in them can be checked"
        elif not (track.is_late(delta) or delta.run == track.barred):
            track.refused = ""
            self._enter(track, seq, delta)

    def _enter(self, track: Track, seq: int, delta: Delta) -> None:
        """A batch of the run that is followed, or of a new one."""
        if delta.number != seq:
            track.spoilt(None)
            return
        if track.run != delta.run:
            self._begin(track, delta)
        self._take(track, seq, delta)

    def check(self, worker: Hashable) -> Ask:
        """What to ask a quiet worker for to be sure of it; when something is missing, what to ask for again."""
        with self._lock:
            return self._track(worker).checks()

    def answered(self, worker: Hashable, ask: Ask) -> Ask | None:
        """An answer is complete; when it was not enough, what to ask for instead."""
        with self._lock:
            return self._track(worker).answered(ask)

    def silent(self, worker: Hashable) -> None:
        """A worker does not answer: what is known of it cannot be checked any more, until it is heard again."""
        with self._lock:
            self._track(worker).silent = True

    def fail(self, worker: Hashable, why: str) -> None:
        """Nobody listens to a worker any more: what is known of it is not to be relied on."""
        with self._lock:
            self._track(worker).bar(why)

    def _begin(self, track: Track, delta: Delta) -> None:
        self._ledger.clear(track.slot)
        if len(delta.names.groups) > self._groups:
            self._widen(self._room, len(delta.names.groups))
        track.begin(delta)
        self._sort()

    def _take(self, track: Track, seq: int, delta: Delta) -> None:
        """Apply what can be applied, in order; keep the rest."""
        if delta.form is Form.MARK:
            self._compare(track, seq, delta)
            return
        if track.next is not None and seq < track.next:
            return  # a duplicate, or late
        if seq != track.next and delta.form is Form.CHANGES:
            track.keep(seq, delta, PENDING_BYTES - self._pending_bytes() + track.pending_bytes)
            return
        self._apply(track, seq, delta)
        while track.next is not None and track.next in track.pending:
            self._apply(track, track.next, track.pending[track.next])

    def _apply(self, track: Track, seq: int, delta: Delta) -> None:
        """One batch, and whether the digests agree after it."""
        known = 0 if delta.form is Form.WHOLE else self._ledger.num_pages(track.slot)
        if known + len(delta.records[1]) > self._max_pages and (pages := delta.at_least(known)) > self._max_pages:
            self._bar(track, pages)  # before it takes time and memory
            return
        try:
            if delta.form is Form.WHOLE:
                self._ledger.clear(track.slot)
            self._ledger.apply(track.slot, *delta.records)
            exact = self._agrees(track, delta)
        except ValueError:  # records that the recorder never makes
            exact = False
        track.report.lost += delta.lost
        track.reached(seq, exact, delta.form is Form.WHOLE)
        if (pages := self._ledger.num_pages(track.slot)) > self._max_pages:
            self._bar(track, pages)

    def _bar(self, track: Track, pages: int) -> None:
        self._ledger.clear(track.slot)
        track.bar(f"it tells of {pages} pages, there is room for {self._max_pages} (max_pages)")

    def _agrees(self, track: Track, delta: Delta) -> bool:
        """Whether its pages add up to what it says, and all are in groups and tiers that it has."""
        groups, tiers = len(delta.names.groups), len(delta.names.media)
        sums = self._ledger.sums_by_tier(track.slot)[:groups, :tiers]
        told = int(delta.digest[:, :, 0].sum())
        return np.array_equal(sums, delta.digest) and self._ledger.num_pages(track.slot) == told

    def _pending_bytes(self) -> int:
        return sum(track.pending_bytes for track in self._tracks.values())

    def _compare(self, track: Track, seq: int, delta: Delta) -> None:
        """A mark: is what is known what was published up to a number?"""
        if track.is_ahead(seq):
            track.next = None
        if track.next is None or seq < track.next - 1:
            return
        if seq >= track.next:
            track.seen = max(track.seen, seq)  # there are batches that did not come
        elif not self._agrees(track, delta):
            track.report.mismatches += 1
            track.next = None

    # -- questions ---------------------------------------------------------------------------------------------------

    def find(
        self, tokens: NDArray[np.int32], scope: Scope = PLAIN, *, extra_ids: NDArray[np.int64] | None = None,
        media: Sequence[Media] = (),
    ) -> dict[Hashable, Holding]:  # fmt: skip
        """Who holds how much of a prompt, in whole blocks; workers that hold nothing are left out."""
        _check_prompt(tokens, scope, extra_ids)
        tokens = np.ascontiguousarray(tokens)
        words = token_words(len(tokens), extra_ids, media) if media or extra_ids is not None else None
        found: dict[Hashable, Holding] = {}
        chains: dict[int, Chain] = {}  # by block size
        with self._lock:
            for names, alike in self._shapes.items():
                if names.block_size not in chains:
                    chains[names.block_size] = self._chain(names.block_size, tokens, words)
                hashes = chains[names.block_size].event_hashes(scope.event_hash(names.seed), names.seed)
                slots = [track.slot for _, track in alike]
                held = (leading if names.plain else resumable)(self._ledger, names, hashes, slots)
                for (worker, track), counts in zip(alike, held, strict=True):
                    if counts[0]:
                        found[worker] = Holding(counts[0], tuple(counts[1 : 1 + len(names.media)]), track.status)
        return found


def _check_prompt(tokens: NDArray[np.int32], scope: Scope, extra_ids: NDArray[np.int64] | None) -> None:
    if not isinstance(tokens, np.ndarray) or tokens.dtype != np.int32 or tokens.ndim != 1:
        fact = "they must be a one-dimensional int32 array"
        raise InputError(say("tokens", fact, "use np.asarray(tokens, dtype=np.int32)"))
    if not isinstance(scope, Scope):
        raise InputError(say(f"scope {scope!r}", f"it is a {type(scope).__name__}", "pass a Scope"))
    if extra_ids is None:
        return
    if not isinstance(extra_ids, np.ndarray) or extra_ids.dtype != np.int64 or extra_ids.shape != tokens.shape:
        fact = "they must be an int64 array, one per token"
        raise InputError(say("extra_ids", fact, "use np.asarray(extra_ids, dtype=np.int64)"))
