"""Incidents: the last calls that changed a cache, kept without stopping it, and written to a file when it matters.

    cache ──a note of each call──► queue ──► [ a thread: packs ──► Ring ] ──save──► [ a process: names ──► file ]

    incidents = Incidents("incidents", keep="1h")
    cache = quire.Cache(config, watchers=[incidents])

The calling thread copies what it must and goes on. A file is written on demand (`save`, SIGUSR2), when a call raises
what it should not, and at a sign: no step for long, few hits, long waits. Knows no engine.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from quire.core.cache import Cache
from quire.core.records.errors import QuireError, StateError, say, without_words
from quire.core.records.memory import parse_bytes
from quire.incidents.files.write import write, write_apart
from quire.incidents.listening import Listening
from quire.incidents.record.encode import LineEncoder
from quire.incidents.record.entry import Entry
from quire.incidents.record.read_clock import ReadClock
from quire.incidents.record.recorded_calls import RecordedCalls
from quire.incidents.record.ring import Pack, Ring
from quire.incidents.signs import Lines, Signs, seconds_of

PACK = 4096  # calls
PAUSE = 0.5  # seconds that the thread waits for more
MOST_WAITING = 1 << 18  # calls that wait for the thread; with more, what came before is given up
AGAIN = 300.0  # seconds in which one kind of sign is saved once
MOST_FILES = 16  # that are written without being asked for; the oldest go, but for the first of each kind
MOST_BROKEN = 64  # faults of calls that wait for the thread
ASKED = "signal"  # the reason of a file that SIGUSR2 asked for
SUFFIX = ".incident.gz"
_log = logging.getLogger("quire.incidents")


class Incidents:
    """Of one cache, given to it when it is made: `Cache(config, watchers=[Incidents(folder)])`.

    It keeps calls from the making of the cache on, as far as `max_bytes` reach; a warning is logged where that is less
    than `keep`. While the first call is there a file plays exactly. `lines`: limits that start a file when crossed.
    """

    def __init__(
        self, folder: str | Path = "incidents", *, keep: str | float = "1h", max_bytes: str | int = "256MiB",
        lines: Lines | None = None, apart: bool = True, thread: bool = True,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:  # fmt: skip
        self.folder, self.keep = Path(folder), seconds_of(keep)
        self._ring = Ring(parse_bytes(max_bytes, "max_bytes of incidents"))
        self._signs = Signs(Lines() if lines is None else lines)
        self._apart, self._now = apart, now
        self._encoder = LineEncoder()
        self._waiting: deque[Entry] = deque()
        self._wanted: deque[str] = deque()  # reasons to save, from any thread
        self._lock = threading.Lock()  # of the ring; the cache's calls never take it
        self._saved: dict[str, float] = {}  # by kind of sign
        self._broken: deque[str] = deque()  # calls that raised what they should not, from any thread
        self._first: dict[str, Path] = {}  # by kind of sign: its first file, which stays
        self._listening: Listening | None = None
        self._clock: ReadClock | None = None
        self._cache: weakref.ref[Cache] | None = None
        self._warned, self._last = False, 0.0  # the time that was read last
        self._doubtful: str | None = None  # a call that was made is not among the notes
        self.error: str | None = None  # why something was not written or kept, the last time that it was not
        self.num_saved = 0
        self.num_waiting: Callable[[], int] = lambda: 0  # requests that wait where the cache cannot see them
        self._wake, self._closed = threading.Event(), False
        self._has_thread = thread
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        ring = self._ring
        state = "from the start" if ring.is_whole else "from the middle on"
        return f"Incidents({str(self.folder)!r}, {ring.num_calls} calls {state}, {ring.num_bytes / 1e6:.1f} MB)"

    @property
    def stopped(self) -> str:
        """Why nothing is kept any more, though they are open; empty: calls are."""
        ended = self._thread is not None and not self._thread.is_alive() and not self._closed
        return "their thread has ended" if ended else ""

    # -- the cache's side --------------------------------------------------------------------------------------------

    def timed(self, clock: Callable[[], float]) -> Callable[[], float]:
        """The cache's clock, whose readings are kept."""
        if self._clock is not None:
            raise StateError(say("these incidents", "they watch a cache already", "make others for another cache"))
        self._clock = ReadClock(clock)
        return self._clock

    def attach(self, cache: Cache) -> None:
        """From now on its calls are kept."""
        if self._clock is None:
            raise StateError(say("these incidents", "the cache's clock is not theirs", "pass them to Cache(watchers=)"))
        self._cache, self._config = weakref.ref(cache), cache.config
        RecordedCalls(cache, self._clock, self._waiting.append, self._broke)
        if self._has_thread:
            target = (weakref.ref(self), self._wake)
            self._thread = threading.Thread(target=_work, args=target, name="quire-incidents", daemon=True)
            self._thread.start()

    def _broke(self, verb: str, wrong: BaseException) -> None:
        if verb.startswith("the note of"):
            self._doubtful = f"{verb}: {without_words(wrong)}"
        if isinstance(wrong, Exception) and len(self._broken) < MOST_BROKEN:
            self._broken.append(f"broken: {verb} raised {without_words(wrong)}")
            self._wake.set()

    # -- the thread --------------------------------------------------------------------------------------------------

    def work(self) -> list[Path]:
        """Do what is due: pack calls, look for signs, write incidents. Returns the files that were written."""
        with self._lock:
            self._flush()
            cache = None if self._cache is None else self._cache()
            now = self._last
            if cache is not None and self._clock is not None:
                with suppress(Exception):  # a caller's clock
                    now = self._last = self._clock.time()
                    for sign in self._signs.look(now, cache.num_sequences > 0 or self.num_waiting() > 0):
                        self._want(sign, now)
            while self._broken:
                self._want(self._broken.popleft(), now)
            reasons = list(self._wanted)
            self._wanted.clear()
            return [path for reason in reasons if (path := self._write(reason)) is not None]

    def _flush(self) -> None:
        if self._doubtful is not None:
            why, self._doubtful = self._doubtful, None
            self._waiting.clear()
            self._give_up(why)
        while self._waiting:
            if len(self._waiting) > MOST_WAITING:
                self._waiting.clear()
                self._give_up("too many calls waited for the thread")
            some = [self._waiting.popleft() for _ in range(min(PACK, len(self._waiting)))]
            if not some:
                return
            try:
                data = self._encoder.pack(some)
                for sign in self._signs.hear(some):
                    self._want(sign, some[-1].time)
            except Exception as error:  # something that no call should have been given: it must harm no call
                self._give_up(f"a call could not be kept: {without_words(error)}")
                continue
            self._ring.add(Pack(data, some[0].time, some[-1].time, len(some)))
            if not self._ring.is_whole and not self._warned and self._ring.seconds < self.keep:
                self._warned = True
                fact = f"{self._ring.max_bytes / 1e6:.0f} MB hold {self._ring.seconds:.0f} s"
                _log.warning(
                    "incidents keep %.0f s: %s; give them more max_bytes (serve --incidents-bytes)", self.keep, fact
                )

    def _give_up(self, why: str) -> None:
        """What was kept does not lead to what comes now."""
        self.error = why
        _log.warning("incidents: %s; what came before is given up", why)
        while self._ring.packs:
            self._ring.drop()
        self._ring.is_whole = False

    def _want(self, sign: str, now: float) -> None:
        kind = sign if sign.startswith("broken") else sign.partition(":")[0]
        if now - self._saved.get(kind, -AGAIN * 2) >= AGAIN:
            self._saved[kind] = now
            self._wanted.append(sign)

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, reason: str = "asked for") -> Path:
        """Write the calls kept so far, now; returns the file."""
        with self._lock:
            self._flush()
            path = self._write(reason, asked=True)
        if path is None:
            raise StateError(say("saving an incident", str(self.error), "look at the folder and its room"))
        return path

    def _write(self, reason: str, asked: bool = False) -> Path | None:
        if self._cache is None:
            self.error = "they watch no cache"
            return None
        made, asked = self._now().strftime("%Y%m%dT%H%M%S.%fZ"), asked or reason == ASKED
        word = re.sub(r"[^a-z]+", "-", reason.partition(":")[0].lower()).strip("-") or "asked"
        path = self.folder / f"{made}-{'asked' if asked else word}{SUFFIX}"
        packs = [pack.data for pack in self._ring.packs]
        try:
            make = write_apart if self._apart else write
            make(path, reason, made, self._config, packs, self._ring.is_whole)
        except Exception as error:  # a full disk above all: serving goes on
            own = str(error) if isinstance(error, QuireError) else without_words(error)
            self.error = f"{getattr(error, 'strerror', None) or own}"
            _log.warning("incident %r was not written: %s", reason, self.error)
            return None
        self.num_saved += 1
        _log.warning("incident %r: %s", reason, path)
        if not asked:
            self._first.setdefault(word, path)
            self._thin_out()
        return path

    def _thin_out(self) -> None:
        """What nobody asked for does not fill a disk. The first of each kind, when it all began, stays."""
        files = [path for path in sorted(self.folder.glob(f"*{SUFFIX}")) if not path.name.endswith(f"-asked{SUFFIX}")]
        first = self._first.values()
        for path in [path for path in files if path not in first][: max(0, len(files) - MOST_FILES)]:
            path.unlink(missing_ok=True)

    def listen(self) -> None:
        """SIGUSR2 saves from now on, and the folder says which process to send it to. From the main thread only.

        StateError where another process keeps the incidents of that folder.
        """
        if self._listening is None:
            before = signal.signal(signal.SIGUSR2, self._signalled)  # first: the folder invites the signal
            try:
                self._listening = Listening(self.folder)
            except BaseException:
                signal.signal(signal.SIGUSR2, before)
                raise

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if ASKED not in self._wanted:
            self._wanted.append(ASKED)
        self._wake.set()

    def close(self) -> None:
        """Keep nothing more; the cache goes on."""
        self._closed = True
        self._wake.set()
        if self._listening is not None:
            self._listening.close()
            self._listening = None


def _work(held: weakref.ref[Incidents], wake: threading.Event) -> None:
    """The thread: it ends with the incidents or the cache."""
    while True:
        wake.wait(PAUSE)
        incidents = held()
        if incidents is None or incidents._closed or incidents._cache is None or incidents._cache() is None:
            return
        wake.clear()
        try:
            incidents.work()
        except Exception as error:  # of whatever kind: it harms no call
            incidents.error = without_words(error)
            _log.exception("incidents")
        del incidents
        time.sleep(0)
