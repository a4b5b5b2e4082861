"""ObjectTier: objects by name on a disk, in a shared store or both, for an L2 adapter. Knows its questions, no LMCache.

    store  ─► pieces to every place             over when all have ended
    lookup ─► held on the disk until `unlock`   the rest is asked of the store, with one question
    load   ─► from the disk, else the store     what is not as it was written does not come, and is a miss for a while

Calls come from any thread and return at once; `signal` is called, on any thread, when something may be over. An object
that has lost a piece is of no use: its others go too.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Literal

from quire.integrations.lmcache.adapter_options import AdapterOptions
from quire.integrations.lmcache.object_pieces import ID_BYTES, Cut, beside, cut, num_pieces, piece_keys
from quire.integrations.places.joined_jobs import ANSWER_AFTER, joined
from quire.integrations.places.open_places import both_of
from quire.tiers.base import Bytes
from quire.tiers.shared.calls.crew import Crew

Kind = Literal["store", "lookup", "load"]
WATCH_SECONDS = 0.5  # how often a place that hangs is looked at while a call waits
HELD_SHARE = 0.5  # of the disk, that lookups may hold; more is found, and may be gone when it is loaded
HELD_SECONDS = 600.0  # a lookup whose objects were not unlocked is forgotten then


@dataclass(frozen=True, slots=True)
class ObjectsStored:
    """A store that is over."""

    good: tuple[bool, ...]
    fresh: tuple[bool, ...]  # that were not on the disk before


@dataclass(slots=True, eq=False)
class _Lookup:
    """Objects of which the disk has some, and the store is asked for the others."""

    found: list[bool]
    asked: list[tuple[int, int]] = field(default_factory=list)  # which one, and of how many pieces
    since: float = 0.0


@dataclass(slots=True)
class _Held:
    """An object that lookups hold on the disk."""

    count: int  # pieces
    times: int
    since: float


class ObjectTier:
    """Objects by name. Any number of threads."""

    def __init__(
        self, options: AdapterOptions, which: bytes, memory: int, signal: Callable[[Kind], None],
        clock: Callable[[], float] = time.monotonic, **more: Any,
    ) -> None:  # fmt: skip
        """`memory`: bytes of the host memory that objects lie in. `more` goes to the disk."""
        self.piece_bytes = options.piece_bytes
        self._signal, self._clock, self._wait = signal, clock, options.wait
        self.disk, self.store = both_of(options, which, self.piece_bytes, **more)
        most = max(1, int(options.waiting * memory) // self.piece_bytes)
        self.jobs = joined(
            options, most, self.disk, self.store, ended=lambda is_load: signal("load" if is_load else "store")
        )
        self._lock = RLock()  # guards all below
        self._number = 0
        self._tasks: dict[int, tuple[Cut, tuple[bool, ...]]] = {}
        self._lookups: dict[int, _Lookup] = {}
        self._stored: dict[int, ObjectsStored] = {}
        self._loaded: dict[int, list[bool]] = {}
        self._answers: dict[int, list[bool]] = {}
        self._held: dict[bytes, _Held] = {}
        self._held_pieces, self._room = 0, 0 if self.disk is None else self.disk.num_slots
        self._gone: deque[bytes] = deque()
        if self.disk is not None:
            self.disk.tell_gone = self._gone.extend
        self._due: float | None = None
        self._watcher = Crew("object-watch", 1, 1, self._watch, self._until_due)

    @property
    def num_waiting(self) -> int:
        """Stores, loads and lookups that are under way."""
        return len(self._tasks) + len(self._lookups)

    # stores and loads

    def submit_store(self, names: Sequence[bytes], objects: Sequence[Bytes]) -> int:
        """Keep these objects; its end is among `pop_stored`."""
        task = cut(names, objects, self.piece_bytes, is_load=False)
        with self._lock:
            fresh = tuple(not self._on_disk(piece_keys(*one)) for one in zip(task.names, task.counts, strict=True))
            number = self._begin(task, fresh)
            self.jobs.submit_store(number, task.keys, task.pages)
        return number

    def submit_load(self, names: Sequence[bytes], objects: Sequence[Bytes]) -> int:
        """Fill these; the answer is `take_loaded`."""
        task = cut(names, objects, self.piece_bytes, is_load=True)
        last = len(self.jobs.parts) - 1
        with self._lock:
            number = self._begin(task, ())
            where = [0 if self._has(0, key) else last for key in task.keys]
            self.jobs.submit_load(number, task.keys, task.pages, where)
        return number

    def _begin(self, task: Cut, fresh: tuple[bool, ...]) -> int:
        number = self._next()
        self._tasks[number] = task, fresh
        self._keep_watch()
        return number

    def pop_stored(self) -> dict[int, ObjectsStored]:
        """Stores that are over since the last call."""
        with self._lock:
            self._collect()
            stored, self._stored = self._stored, {}
        return stored

    def take_loaded(self, number: int) -> list[bool] | None:
        """Which objects of a load came, once; None: it is under way."""
        with self._lock:
            self._collect()
            return self._loaded.pop(number, None)

    def _collect(self) -> None:
        for done in self.jobs.finished():
            task, fresh = self._tasks.pop(done.number)
            good = task.whole(done.good)
            if done.is_load:
                task.fill(good)
                self._loaded[done.number] = good
            else:
                self._stored[done.number] = ObjectsStored(tuple(good), fresh)
            if self.disk is not None:
                self.disk.use([key for key in task.keys if key in self.disk], set(done.good) if done.is_load else ())

    # lookups

    def submit_lookup(self, names: Sequence[bytes], sizes: Sequence[int]) -> int:
        """Which objects of these sizes are there; those on the disk are held. The answer is `take_found`."""
        counts = [num_pieces(size, self.piece_bytes) for size in sizes]
        with self._lock:
            self._end_leases()
            found = [
                count > 0 and self._hold(name, piece_keys(name, count))
                for name, count in zip(names, counts, strict=True)
            ]
            number, lookup = self._next(), _Lookup(found, since=self._clock())
            keys = self._to_ask(names, counts, lookup)
            self._lookups[number] = lookup
            self._keep_watch()
        if not keys or self.store is None or not self.store.exist(keys, lambda there: self._hear(number, there)):
            self._answer(number, ())
        return number

    def _to_ask(self, names: Sequence[bytes], counts: Sequence[int], lookup: _Lookup) -> list[bytes]:
        keys: list[bytes] = []
        last = len(self.jobs.parts) - 1
        for nth, (name, count) in enumerate(zip(names, counts, strict=True)):
            own = piece_keys(name, count)
            if self.store is None or lookup.found[nth] or not own:
                continue
            if all(self.jobs.parts[last].is_well(key) for key in own):
                lookup.asked.append((nth, count))
                keys += own
        return keys

    def _hear(self, number: int, there: Sequence[bool]) -> None:
        """The store has answered, piece by piece; on its thread."""
        with self._lock:
            lookup = self._lookups.get(number)
            if lookup is None:
                return  # it was too late
            start, found = 0, []
            for nth, count in lookup.asked:
                if all(there[start : start + count]):
                    found.append(nth)
                start += count
        self._answer(number, found)

    def _answer(self, number: int, more: Sequence[int]) -> None:
        with self._lock:
            lookup = self._lookups.pop(number, None)
            if lookup is None:
                return
            for nth in more:
                lookup.found[nth] = True
            self._answers[number] = lookup.found
        self._signal("lookup")

    def take_found(self, number: int) -> list[bool] | None:
        """The answer of a lookup, once; None: it is not known yet."""
        with self._lock:
            return self._answers.pop(number, None)

    # what is held, and what goes

    def unlock(self, names: Sequence[bytes]) -> None:
        """A lookup's objects may go, as far as it held them."""
        with self._lock:
            for name, times in Counter(names).items():
                self._let_go(name, times)

    def _hold(self, name: bytes, keys: list[bytes]) -> bool:
        if self.disk is None or not self._on_disk(keys):
            return False
        if self._held_pieces + len(keys) > HELD_SHARE * self._room:
            return True
        if not self.disk.hold(keys):
            return False
        held = self._held.pop(name, None) or _Held(len(keys), 0, 0.0)
        held.times, held.since = held.times + 1, self._clock()
        self._held[name] = held  # the one that was held last is the last
        self._held_pieces += len(keys)
        return True

    def _let_go(self, name: bytes, times: int) -> None:
        held = self._held.get(name)
        if held is None or self.disk is None:
            return
        for _ in range(min(times, held.times)):
            held.times -= 1
            self._held_pieces -= held.count
            self.disk.let_go(piece_keys(name, held.count))
        if not held.times:
            del self._held[name]

    def _end_leases(self) -> None:
        """Lookups that were never unlocked would fill the disk in the end."""
        now = self._clock()
        while self._held and now - (first := next(iter(self._held.items())))[1].since > HELD_SECONDS:
            self._let_go(first[0], first[1].times)

    def delete(self, names: Sequence[bytes], sizes: Sequence[int]) -> None:
        """These go from the disk; what is held goes after that. A store has an order of its own."""
        if self.disk is not None:
            for name, size in zip(names, sizes, strict=True):
                self.disk.remove(piece_keys(name, num_pieces(size, self.piece_bytes)))

    def take_gone(self) -> set[bytes]:
        """Names of objects that the disk has lost since the last call, whole or in part."""
        names = set()
        while self._gone:
            pieces = beside(self._gone.popleft())
            if self.disk is None or pieces[0][:ID_BYTES] in names or all(key in self.disk for key in pieces):
                continue  # it has come anew
            names.add(pieces[0][:ID_BYTES])
            self.disk.remove(pieces)
        return names

    def _on_disk(self, keys: Sequence[bytes]) -> bool:
        return all(self._has(0, key) for key in keys)

    def _has(self, part: int, key: bytes) -> bool:
        return self.disk is not None and key in self.disk and self.jobs.parts[part].is_well(key)

    # what waits for a place that hangs

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _keep_watch(self) -> None:
        if self._due is None:
            self._due = time.monotonic() + WATCH_SECONDS
            self._watcher.wake()

    def _until_due(self) -> float | None:
        due = self._due
        return None if due is None else due - time.monotonic()

    def _watch(self) -> None:
        """Jobs that a hanging place keeps are given up, and lookups whose store does not answer."""
        with self._lock:
            late = [
                number for number, lookup in self._lookups.items()
                if self._clock() - lookup.since > ANSWER_AFTER * self._wait
            ]  # fmt: skip
            self._collect()  # calls that wait hear of what that has ended
            waits = bool(self._tasks or self._lookups)
            self._due = time.monotonic() + WATCH_SECONDS if waits else None
        for number in late:
            self._answer(number, ())

    def close(self) -> bool:
        """Make it durable, and let go; False: a place does not answer."""
        watched = self._watcher.close(WATCH_SECONDS + 30.0)
        return self.jobs.close() and watched
