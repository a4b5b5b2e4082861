"""KeyDisk: pages by key in a folder, bounded, checksummed, there after a restart. Owns which key lies in which slot.

    write   room: the order's first go ─► their slots are recorded as free, on the disk ─► pages ─► their records
    read    held meanwhile, so that no write takes the slot; a page that is not as it was written is lost
    tidy    a fence once a second, so that no more than that is lost when the power fails; compaction

One thread writes and tidies; any number read. The files are those of a cache's disk (`quire.tiers.disk`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, RLock
from typing import Literal

from quire.core.outside.key_ranking import KeyRanking
from quire.core.records.errors import InputError, QuireError, say
from quire.tiers.base import Bytes, TierError
from quire.tiers.disk import DiskCounts, DiskFolder, DiskIO, DiskLimits
from quire.tiers.disk.calls.files import REAL_FILES, Files, FullDisk
from quire.tiers.disk.calls.stalls import Stalls
from quire.tiers.disk.keyed.key_blocks import MOST_KEY_BYTES, ROOT, came, freed, read_keys
from quire.tiers.disk.keyed.key_place import THERE, Still
from quire.tiers.disk.log.manifest import EMPTY, DamagedLog
from quire.tiers.disk.pages.slots import Gone, NoVerdict
from quire.tiers.process import reason

_log = logging.getLogger("quire.tiers")
KEY_INDEX = 700  # bytes of memory per page, at most: key, slot, checksum, uses, eight ghosts
FENCE_SECONDS = 1.0
COMPACT_BYTES = 8 << 20  # the log is compacted when it has grown by that, and to twice its size
AT_ONCE = 32  # slots that are freed together, since each time waits for the disk; of small folders a 32nd
FULL = "no slot is free, and every page is being read or written"
LEFT = "its caller has given up"


class KeyDisk:
    """One folder's pages, for one process."""

    def __init__(
        self, folder: str | Path, fingerprint: bytes, page_bytes: int, num_slots: int, *,
        eviction: Literal["adaptive", "lru"] = "adaptive", io: DiskIO | None = None, files: Files = REAL_FILES,
        fence_seconds: float = FENCE_SECONDS,
    ) -> None:  # fmt: skip
        if num_slots < 1:
            raise InputError(say(f"a disk of {num_slots} pages", "there is no room for one", "give it more bytes"))
        limits = DiskLimits(page_index=KEY_INDEX)
        self._folder = DiskFolder(folder, fingerprint, (page_bytes,), (num_slots,), io=io, files=files, limits=limits)
        self.report = self._folder.report
        self.broken = ""  # why nothing is written any more
        self._stalls, self._unwritten = Stalls(self._folder.folder), ""  # the last: why pages of a write were not
        self.tell_gone: Callable[[Sequence[bytes]], None] = lambda keys: None  # may neither wait nor call back
        self._fence_seconds = fence_seconds
        self._writing = RLock()  # the manifest's and the slots' one writer; taken before the other
        self._lock = Lock()  # guards all below
        self._room = num_slots
        self._ranking = KeyRanking(num_slots, eviction)
        self._slots: dict[bytes, int] = {}
        self._readers: Counter[bytes] = Counter()
        self._lost: set[bytes] = set()  # of those that are read: bad
        self._unfenced = False
        self._last_fence = time.monotonic()
        contents = self._folder.contents
        kept, self._to_free = read_keys(contents)  # slots that are free once a record says so
        self._number = contents.last_number + 1
        for key, slot in kept:
            self._ranking.order.come(key)
            self._ranking.order.let_go(key)
            self._slots[key] = slot
        taken = {*self._slots.values(), *self._to_free}
        self._free = deque(slot for slot in range(num_slots) if slot not in taken)
        self._folder.contents = EMPTY

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: bytes) -> bool:
        return key in self._slots

    @property
    def num_slots(self) -> int:
        """Pages for which there is room."""
        return self._room

    @property
    def stalled(self) -> str:
        """Why something is not written now, that may yet succeed."""
        return self._stalls.why or self._unwritten

    @property
    def hanging(self) -> bool:
        """Whether the disk does not answer."""
        return self._folder.watch.hanging

    def counts(self) -> DiskCounts:
        """What the disk has done."""
        return self._folder.tier.counts()

    # writing

    def write(self, keys: Sequence[bytes], pages: Sequence[Bytes], still: Still = lambda: True) -> list[str]:
        """Keep these pages, in the order of their text; why not, for each. What is there already is left as it is."""
        with self._writing:
            answers = dict.fromkeys(keys, THERE)
            fresh = {key: page for key, page in zip(keys, pages, strict=True) if self._takes(key, answers)}
            if self.broken:
                return [answers[key] or self.broken if key in fresh else answers[key] for key in keys]
            slots = self._make_room(list(fresh), [key for key in answers if key not in fresh], answers)
            try:
                if slots and still():
                    self._fill(slots, fresh, answers, still)
            except BaseException as bug:
                self._break(f"{type(bug).__name__}: {bug}")
                raise
            finally:
                self._give_back(slots, answers)
            return [answers[key] for key in keys]

    def _takes(self, key: bytes, answers: dict[bytes, str]) -> bool:
        if not 0 < len(key) <= MOST_KEY_BYTES:
            answers[key] = f"a key of {len(key)} bytes"
        return not answers[key] and key not in self._slots

    def _make_room(self, keys: list[bytes], beside: list[bytes], answers: dict[bytes, str]) -> dict[bytes, int]:
        """A slot for each key, as far as there are; the keys have come, and are held. What its caller wants kept
        `beside` them does not go for them."""
        with self._lock:
            short = len(keys) - len(self._free)
            if short > 0:
                others = self._ranking.order.num_free - sum(key in self._slots for key in beside)
                most = min(max(0, others), max(short, min(AT_ONCE, self._room // 32)))
                self._forget(self._ranking.take(most, beside) or ())
        if not self._record_free(answers, keys):
            return {}
        slots: dict[bytes, int] = {}
        with self._lock:
            self._ranking.meet(keys)
            for key in keys[len(self._free) :]:
                answers[key] = FULL
            taken = keys[: len(self._free)]
            for key in reversed(taken):  # the end of a text goes first
                self._ranking.order.come(key)
            slots.update({key: self._free.popleft() for key in taken})
            self._ranking.order.chain(taken)
        return slots

    def _record_free(self, answers: dict[bytes, str], keys: list[bytes]) -> bool:
        """What is free is so on the disk too: no record there speaks of bytes that something else has replaced."""
        with self._lock:
            slots = list(self._to_free)
        if not slots:
            return True
        with self._trying("record", answers, keys) as tried:
            self._folder.record(freed(slots))
            self._folder.before_writing()
        if tried:
            with self._lock:
                del self._to_free[: len(slots)]
                self._free.extend(slots)
        return bool(tried)

    def _fill(
        self, slots: dict[bytes, int], fresh: dict[bytes, Bytes], answers: dict[bytes, str], still: Still
    ) -> None:
        """Bytes into slots, then their records."""
        written = list(slots)
        try:
            self._folder.tier.write(0, list(slots.values()), [fresh[key].reshape(1, -1) for key in slots])
        except TierError as wrong:
            written = [key for key, slot in slots.items() if slot not in wrong.failed]
            answers.update({key: wrong.failed[slot] for key, slot in slots.items() if slot in wrong.failed})
            self._unwritten = next(iter(wrong.failed.values()), "")
        if not still():  # its memory may hold something else by now
            answers.update(dict.fromkeys(written, LEFT))
            written = []
        done: set[bytes] = set()
        if written:
            with self._trying("record", answers, written) as tried:
                left = self._record(written, slots)
                done = {key for key in written if slots[key] not in left}
            if tried:
                answers.update(dict.fromkeys(set(written) - done, "its record does not fit"))
        with self._lock:
            for key in done:
                self._slots[key] = slots[key]
                self._ranking.order.let_go(key)

    def _record(self, keys: list[bytes], slots: dict[bytes, int]) -> set[int]:
        """Into the manifest, the end of the text first: after a restart the first that came go first."""
        keys = keys[::-1]
        first, self._number = self._number, self._number + len(keys)
        left = self._folder.record(came(keys, [slots[key] for key in keys], first))
        self._unfenced, self._unwritten = True, ""
        return set(left.slot.tolist())

    def _give_back(self, slots: dict[bytes, int], answers: dict[bytes, str]) -> None:
        """Keys that did not come after all. Their slots are the last to be tried again: the disk may not take them."""
        with self._lock:
            for key, slot in slots.items():
                if key not in self._slots:
                    self._ranking.order.drop(key)
                    self._free.append(slot)
                    answers[key] = answers[key] or LEFT

    @contextmanager
    def _trying(self, act: str, answers: dict[bytes, str], keys: Sequence[bytes]) -> Iterator[list[bool]]:
        """Do something with the manifest; the list is empty where it failed, and the answers say why."""
        tried: list[bool] = [True]
        try:
            yield tried
            self._stalls.end(act)
        except OSError as wrong:
            tried.clear()
            why = reason(wrong)
            if isinstance(wrong, DamagedLog) or (not keys and not isinstance(wrong, FullDisk | TimeoutError)):
                self._break(why)  # what a sync could not write may be lost permanently, and nothing reports it again
            else:
                self._stalls.begin(act, why)
            answers.update(dict.fromkeys(keys, why))

    def _break(self, why: str) -> None:
        if not self.broken:
            self.broken = why
            _log.error("nothing is written to %s any more: %s", self._folder.folder, why)

    def _forget(self, keys: Sequence[bytes]) -> None:
        """The order has let them go; their slots are free when a record says so. Under the lock."""
        self._to_free += [self._slots.pop(key) for key in keys]
        self.tell_gone(keys)

    # reading

    def hold(self, keys: Sequence[bytes]) -> bool:
        """None of these goes until `let_go`, as often as it was held; False: not all are there, and none is held."""
        with self._lock:
            if not all(key in self._slots and key not in self._lost for key in keys):
                return False
            self._begin_reading(keys)
        return True

    def let_go(self, keys: Sequence[bytes]) -> None:
        """Those that were held may go."""
        self._end_reading(dict.fromkeys(keys, -1), {})

    def remove(self, keys: Sequence[bytes]) -> None:
        """These go, and may come anew; what is read or held just now goes after that."""
        with self._lock:
            there = [key for key in keys if key in self._slots]
            free = [key for key in there if not self._readers[key]]
            self._lost.update(key for key in there if self._readers[key])
            for key in free:
                self._ranking.order.drop(key)
            self._forget(free)

    def _begin_reading(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._readers[key] += 1
            self._ranking.order.hold(key)

    def read(self, keys: Sequence[bytes], pages: Sequence[Bytes], still: Still = lambda: True) -> list[str]:
        """Fill the pages; why not, for each. After the deadline nothing of the caller's is touched."""
        answers = dict.fromkeys(keys, str(Gone("no page is there under this key")))
        with self._lock:
            slots = {key: self._slots[key] for key in answers if key in self._slots}
            self._begin_reading(slots)
        bad: dict[int, str] = {}
        wanted = [(slots[key], page.reshape(1, -1)) for key, page in zip(keys, pages, strict=True) if key in slots]
        try:
            if wanted and still():
                self._folder.tier.read(0, [slot for slot, _ in wanted], [page for _, page in wanted])
            elif wanted:
                bad = dict.fromkeys(slots.values(), NoVerdict(LEFT))
        except TierError as wrong:
            bad = dict(wrong.failed)
        except (QuireError, OSError) as wrong:
            bad = dict.fromkeys(slots.values(), NoVerdict(str(wrong)))
        finally:
            self._end_reading(slots, bad)
        return [bad.get(slots[key], THERE) if key in slots else answers[key] for key in keys]

    def _end_reading(self, slots: dict[bytes, int], bad: dict[int, str]) -> None:
        """A page that is not what was written is lost; of one for which the disk did not answer it is not known."""
        with self._lock:
            for key, slot in slots.items():
                if slot in bad and not isinstance(bad[slot], NoVerdict):
                    self._lost.add(key)
                self._readers[key] -= 1
                if self._readers[key]:
                    continue
                del self._readers[key]
                if key in self._lost:
                    self._lost.remove(key)
                    self._ranking.order.drop(key)
                    self._forget([key])
                else:
                    self._ranking.order.let_go(key)

    def use(self, keys: Sequence[bytes], reused: Collection[bytes]) -> None:
        """A request is over; so the order learns what comes back."""
        with self._lock:
            self._ranking.order.chain(keys)
            self._ranking.use(keys, reused, 2 * len(reused) >= len(keys) > 0)

    def clear(self) -> bool:
        """Forget every page that no call reads just now; whether the disk knows it, too."""
        answers: dict[bytes, str] = {}
        with self._writing:
            with self._lock:
                self._forget(self._ranking.take(self._ranking.order.num_free) or ())
            return not self.broken and self._record_free(answers, [ROOT])

    # lasting

    def tidy(self) -> float | None:
        """Fence and compact, if that is due."""
        with self._writing:
            if not self._unfenced or self.broken:
                return None
            due = self._last_fence + self._fence_seconds - time.monotonic()
            if due > 0:
                return due
            return None if self.fence() else self._fence_seconds

    def fence(self) -> bool:
        """What was written is durable when this says so."""
        with self._writing, self._trying("fence", {}, ()) as tried:
            self._last_fence = time.monotonic()
            self._folder.fence()
            self._unfenced = False
            manifest = self._folder.manifest
            if manifest.grown >= COMPACT_BYTES and 2 * manifest.grown >= manifest.size:
                manifest.compact()
        return bool(tried)

    def close(self) -> None:
        """Make it durable, and let go of the folder. StateError: the last pages may not be."""
        with self._writing:
            if not self.broken:
                self._record_free({}, [ROOT])  # what was removed does not come back
            self._folder.close(fence=not self.broken)
