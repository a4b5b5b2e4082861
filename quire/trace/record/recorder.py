"""TraceRecorder: a trace of the requests that something serves, written meanwhile. Knows no cache and no engine.

    arrive -> arrived ... add(arrived, tokens, output) -> queue -> [ a thread: ids, lines, file ] -> close: the end mark

The serving thread never waits for it and never fails because of it: what finds the queue full is lost and counted, and
a full disk ends the recording, with a warning. Tokens leave the process as keyed ids only.
"""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from typing import NamedTuple

from quire.core.records.errors import InputError, say, without_words
from quire.core.records.hint_words import Back
from quire.core.records.identity import Scope, Words
from quire.core.records.request import PLAIN, Int32
from quire.trace.record.block_ids import TraceKey
from quire.trace.record.interruptions import PromptInterruptions
from quire.trace.record.output_file import OutputFile, pack_gzip
from quire.trace.record.trace_writer import TraceRecord, TraceWriter, is_reason, iso_text

MOST_TOKENS = 1 << 24  # that may wait: 64 MiB
MOST_HELD = 1 << 12  # records that wait for an earlier one to end
IDLE = 1.0  # seconds without a request, after which others can read what was written
_log = logging.getLogger("quire.trace")


class ArrivedRequest(NamedTuple):
    """A request that has come: which one, and when."""

    number: int
    time_ms: float  # since the epoch


class _Served(NamedTuple):
    """A request that was served."""

    arrived: ArrivedRequest
    tokens: Int32
    scope: Scope
    output: int
    words: Words | None
    session: object | None
    finish: str | None
    back: Back | None


class TraceRecorder:
    """Writes `path`, plain or gzip by its name; while it records, the file is called NAME.PID.part."""

    def __init__(
        self, path: str | Path, block_size: int, *, key: TraceKey | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        place = Path(path)
        ask = f"a recording in {str(path)!r}"
        if place.suffix in (".zst", ".zstd"):
            raise InputError(say(ask, "recordings are plain or gzip", "name it .jsonl or .jsonl.gz"))
        if place.is_file():
            raise InputError(say(ask, "there is such a file", "name another one: a recording replaces none"))
        self.path, self._size, self._clock = place, block_size, clock
        self._key = TraceKey() if key is None else key
        self._file = OutputFile(place, pack_gzip if place.suffix == ".gz" else None)
        self._began, self._start = time.time() * 1000, clock()
        header = {"block_size": block_size, "from": "recording", "began": iso_text(self._began)}
        self._writer = TraceWriter(self._file.write, {**header, "key": self._key.fingerprint})
        self._interruptions = PromptInterruptions()  # of the thread
        self._queue: SimpleQueue[_Served | int | None] = SimpleQueue()  # an int: that number never comes
        self._lock = Lock()
        self._numbers = self._waiting = 0
        self._next, self._held = 0, dict[int, TraceRecord | None]()  # of the thread
        self._closed = False
        self.num_lost = 0  # requests that are not in the trace
        self.error: str | None = None  # why nothing is recorded any more
        self._thread = Thread(target=self._work, name="quire-trace", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "recording"
        return f"TraceRecorder({str(self.path)!r}, {self.error or state}, {self.num_recorded} requests)"

    @property
    def num_recorded(self) -> int:
        """Requests in the trace so far."""
        return self._writer.num_requests

    @property
    def is_open(self) -> bool:
        """Whether it still records."""
        return not self._closed and self.error is None

    @property
    def stopped(self) -> str:
        """Why it records nothing any more, though it is open; empty: it does."""
        return self.error or ("its thread has ended" if self.is_open and not self._thread.is_alive() else "")

    def arrive(self) -> ArrivedRequest:
        """A request has come; `add` or `forget` says what became of it."""
        now = self._began + (self._clock() - self._start) * 1000
        with self._lock:
            self._numbers += 1
            return ArrivedRequest(self._numbers - 1, now)

    def add(
        self, arrived: ArrivedRequest, tokens: Int32, output: int, scope: Scope = PLAIN, words: Words | None = None,
        *, session: object | None = None, finish: str | None = None, back: Back | None = None,
    ) -> None:  # fmt: skip
        """It was served; `tokens` are those of its prompt, and must not change. Returns at once.

        `finish`: why its answer ended; `back`: when its text comes back, by its hint.
        """
        with self._lock:
            taken = self.error is None and not self._closed and self._waiting + len(tokens) <= MOST_TOKENS
            self._waiting += len(tokens) if taken else 0
            self.num_lost += not taken
            served = _Served(arrived, tokens, scope, output, words, session, finish, back)
            self._queue.put(served if taken else arrived.number)

    def forget(self, arrived: ArrivedRequest) -> None:
        """It is not served after all."""
        self._queue.put(arrived.number)

    def close(self) -> None:
        """Write what waits and the end mark: the file gets its name. Closing again does nothing."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            atexit.unregister(self.close)
            self._queue.put(None)
        if current_thread() is not self._thread:
            self._thread.join()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while (item := self._take()) is not None:
                self._put(item)
                time.sleep(0)  # the serving thread comes first
            for number in sorted(self._held):
                self._write(self._held[number])
            self._writer.end({"lost": self.num_lost} if self.num_lost else {})
            if self._writer.num_requests:
                self._file.finish()
            else:
                self._file.discard()  # a trace of nothing is none
        except Exception as error:  # a full disk above all; whatever it is, it ends the recording and nothing else
            self._stop(f"{getattr(error, 'strerror', None) or without_words(error)}")
            while self._queue.get() is not None:
                pass  # what comes now would pile up

    def _take(self) -> _Served | int | None:
        """The next item; a pause is a good time to let others see what is there."""
        try:
            return self._queue.get(timeout=IDLE)
        except Empty:
            self._file.flush()
            return self._queue.get()

    def _put(self, item: _Served | int) -> None:
        """Into the trace, in order of arrival as far as few are held."""
        number, record = (item, None) if isinstance(item, int) else (item.arrived.number, self._made(item))
        if number < self._next:  # those behind it could not wait
            self._write(record)
            return
        self._held[number] = record
        if len(self._held) > MOST_HELD:
            self._next = min(self._held)
        while self._next in self._held:
            self._write(self._held.pop(self._next))
            self._next += 1

    def _made(self, item: _Served) -> TraceRecord:
        ids = self._key.hash_ids(item.tokens, self._size, item.scope, item.words)
        scope = None if item.scope == PLAIN else self._key.scope_id(item.scope)
        with self._lock:
            self._waiting -= len(item.tokens)
        session = None if item.session is None else self._key.session_id(item.session, item.scope)
        finish = item.finish if is_reason(item.finish) else None
        size = len(item.tokens)
        mark = self._interruptions.add(item.tokens, item.scope) if item.words is None else None
        return TraceRecord(item.arrived.time_ms, size, item.output, ids, scope, session, finish, mark, item.back)

    def _write(self, record: TraceRecord | None) -> None:
        if record is None:
            return
        try:
            self._writer.add(record.line(self._began))
        except OSError:
            self.num_lost += 1
            raise

    def _stop(self, why: str) -> None:
        with self._lock:
            self.error = why
        lost, is_over = len(self._held), False
        self._held.clear()
        with suppress(Empty):
            while True:
                item = self._queue.get_nowait()
                lost += isinstance(item, _Served)
                is_over = is_over or item is None
        if is_over:
            self._queue.put(None)  # for the thread, which waits for it
        with self._lock:
            self.num_lost += lost
        part = self._file.abandon()
        _log.warning("%s is not recorded any more: %s; what was written is in %s", self.path, why, part)
