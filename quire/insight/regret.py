"""Regret: watches a running cache, and says what it hit, and what it would have with other memory or another order.

    cache ──admitted, ending──► queue ──► [ a thread: keyed blocks ──► Traffic, OrderSample ──► a report a minute ]

The engine only puts tokens into a queue. The thread makes keyed ids of them, which cannot be turned back and which
never leave it, and works for at most SHARE of the time, in slices: a report takes as long as that takes. What finds the
queue full is lost and counted. `report` first does what waits.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from quire.core.cache import Cache
from quire.core.records.errors import InputError, say, shown, without_words
from quire.core.records.identity import Scope, Words
from quire.core.records.request import Int32
from quire.core.sequences.release import tokens_of
from quire.core.state.sequence import Sequence, setup_of
from quire.insight.block_table import Keys
from quire.insight.evaluate import Observed, evaluate, memory_of
from quire.insight.order_sample import OrderSample
from quire.insight.regret_report import RegretReport
from quire.insight.sample_rate import RatedTraffic
from quire.insight.traffic import AskedPrompt
from quire.trace.record.block_ids import TraceKey
from quire.trace.record.sequence_recorder import MOST_OPEN, watched_scope

WINDOW = 3600.0  # seconds
EVERY = 60.0  # seconds between reports of the thread
SHARE = 0.008  # of the time that the thread may work
SLICE = 0.002  # seconds of work, after which it pauses
IDLE = 1.0  # seconds after which it looks whether it is still held
MOST_TOKENS = 1 << 20  # that may wait: 4 MiB; the words of a token count as six
MOST_WAITING = 1 << 14  # requests and ends of requests, which may have no tokens at all
ITEM_BYTES = 350  # of one of them, tokens and words aside
MOST_PATHS = 1 << 19  # blocks of requests that have not ended: 4 MiB ...
PATH_BLOCKS = 40  # ... of which a request takes so many for itself
OPEN_BYTES = 250  # of a sequence that has not ended
LOST = -1  # number of a request that found no room
_log = logging.getLogger("quire.insight")


class _Came(NamedTuple):
    """A request that was admitted."""

    number: int
    time: float
    tokens: Int32
    scope: Scope
    words: Words | None
    hits: tuple[int, ...]


class _Ended(NamedTuple):
    """And its end: the tokens behind the last whole block of its prompt."""

    number: int
    time: float
    tokens: Int32
    words: Words | None = None


class _Path(NamedTuple):
    """The blocks of a prompt, and what the next block is under."""

    keys: Keys
    under: int


class Regret:
    """Of one cache, from now on, over the last `window` seconds. `close` ends it; so does letting go of the cache.

    `one_in` forces a sample of the blocks; by default all are tracked up to a million, and a sample beyond.
    """

    def __init__(
        self, cache: Cache, *, window: float = WINDOW, one_in: int = 1, key: TraceKey | None = None,
        thread: bool = True, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        for name, value in (("window", window), ("one_in", one_in)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise InputError(say(f"regret with {name} {shown(value)}", "it is not a size", "give a number above 0"))
        config, self._clock, self._window = cache.config, clock, window
        self._size, self._num_tiers = config.block_size, len(config.tiers)
        self._full = next((nth for nth, group in enumerate(config.groups) if group.kind == "full"), None)
        self._key = TraceKey() if key is None else key
        self._traffic = RatedTraffic(self._num_tiers, window, one_in=int(one_in))
        current = self._traffic.current
        self._seen = Observed(current, OrderSample(), memory_of(config), config.block_size, config.order)
        self._lock = threading.Lock()  # of what the thread and `report` share
        self._queue: deque[_Came | _Ended] = deque()
        self._open: dict[Hashable, tuple[int, int]] = {}  # by sequence: its number (LOST), and its prompt's length
        self._paths: dict[int, _Path] = {}  # by number, of prompts that have not ended
        self._num_path = self._numbers = self._lost = 0
        self._put_tokens = self._taken_tokens = 0  # one is the cache's, one the thread's: the difference waits
        self.latest: RegretReport | None = None  # what the thread or `report` has made last
        self.error: str | None = None  # what was wrong the last time that something was left out, if it was
        self._evaluation: Iterator[RegretReport | None] | None = None
        self._due = clock()
        self._wake, self._closed = threading.Event(), False
        self._cache = weakref.ref(cache)
        cache.watch(self)
        self._thread: threading.Thread | None = None
        if thread:
            target = (weakref.ref(self), self._wake)
            self._thread = threading.Thread(target=_work, args=target, name="quire-regret", daemon=True)
            self._thread.start()

    def __repr__(self) -> str:
        return f"Regret({self.latest!r}, {len(self._queue)} waiting, {self.num_bytes / 1e6:.1f} MB)"

    @property
    def num_bytes(self) -> int:
        """What it takes now, temporary arrays aside."""
        seen = self._seen
        waiting = 4 * (self._put_tokens - self._taken_tokens) + ITEM_BYTES * len(self._queue)
        requests = 8 * self._num_path + OPEN_BYTES * len(self._open)
        return self._traffic.num_bytes + seen.sample.num_bytes + waiting + requests

    @property
    def stopped(self) -> str:
        """Why its numbers stand still, though it is open; empty: they do not."""
        ended = self._thread is not None and not self._thread.is_alive() and not self._closed
        return "its thread has ended" if ended else ""

    def close(self) -> None:
        """Watch no more; the last report stays."""
        self._closed = True
        self._wake.set()
        cache = self._cache()
        if cache is not None:
            cache.watch(self, on=False)

    # -- the cache's side --------------------------------------------------------------------------------------------

    def admitted(self, sequences: Iterable[Sequence]) -> None:
        """They have their pages; those that come back are known."""
        for sequence in sequences:
            if sequence.request.scope.space is not None or sequence.id in self._open:
                continue
            number, end = self._numbers, sequence.prompt_end
            self._numbers += 1
            request = sequence.request
            words = request.words()
            came = _Came(
                number, self._clock(), request.tokens[:end].copy(), watched_scope(sequence, number),
                None if words is None else words[:end], self._hits(sequence),
            )  # fmt: skip
            self._open[sequence.id] = number if self._put(came) else LOST, end
            if len(self._open) > MOST_OPEN:  # suspended, and never resumed
                self._open.pop(next(iter(self._open)))

    def ending(self, sequence: Sequence, store: bool) -> None:
        """It is about to be released permanently."""
        known = self._open.pop(sequence.id, None)
        if known is None or known[0] == LOST or not sequence.live:
            return
        number, end = known
        edge = end // self._size * self._size
        tokens = (
            tokens_of(setup_of(sequence), sequence)[edge : max(sequence.computed, edge)].copy() if store else _NOTHING
        )
        words = sequence.request.words()
        if words is not None:  # generated tokens have none
            words = np.concatenate([words[edge:end], np.zeros((len(tokens), 3), np.uint64)])[: len(tokens)]
        self._put(_Ended(number, self._clock(), tokens, words))

    def _hits(self, sequence: Sequence) -> tuple[int, ...]:
        if self._full is None:
            return (sequence.start // self._size * self._size, *[0] * (self._num_tiers - 1))
        counts = sequence.counts(self._full)
        pairs = zip(counts.reused_from, counts.partial_from, strict=True)
        return tuple((whole - partial) * self._size for whole, partial in pairs)

    def _put(self, item: _Came | _Ended) -> bool:
        """Whether there was room for it."""
        tokens = _tokens_in(item)
        waiting = self._put_tokens - self._taken_tokens
        if waiting + tokens > MOST_TOKENS or len(self._queue) >= MOST_WAITING:
            self._lost += isinstance(item, _Came) or len(item.tokens) >= self._size
            return False
        self._put_tokens += tokens
        self._queue.append(item)
        if not self._wake.is_set():
            self._wake.set()
        return True

    # -- the thread's side -------------------------------------------------------------------------------------------

    def report(self, orders: bool = True) -> RegretReport:
        """All of it up to now, at once; without `orders` only what costs nothing: no optimum, no other orders."""
        with self._lock:
            while self._queue:
                self._take()
            found = deque(self._evaluate(orders), maxlen=1).pop()
            assert found is not None
            if orders:  # what the thread has under way is older
                self.latest, self._evaluation, self._due = found, None, self._clock() + EVERY
            return found

    def _evaluate(self, orders: bool) -> Iterator[RegretReport | None]:
        seen = self._seen
        now = Observed(self._traffic.current, seen.sample, seen.memory, seen.block_size, seen.eviction, self._lost)
        return evaluate(now, self._clock(), orders)

    def _slice(self) -> bool:
        """Work for a moment; whether there is more to do."""
        with self._lock:
            until = time.thread_time() + SLICE
            while time.thread_time() < until:
                if self._queue:
                    self._take()
                elif self._evaluation is not None:
                    found = next(self._evaluation, None)
                    if found is not None:
                        self.latest, self._evaluation = found, None
                        self._due = self._clock() + EVERY
                elif self._clock() >= self._due and self._numbers:
                    self._evaluation = self._evaluate(True)
                else:
                    return False
            return True

    def _pass_over(self, wrong: Exception) -> bool:
        """What could not be watched, or judged, is left out and counted; the first is logged. Whether there is more."""
        if self.error is None:
            _log.warning("some of what regret watches is left out: %s", without_words(wrong))
        self.error = without_words(wrong)
        with self._lock:
            self._lost += 1
            self._evaluation, self._due = None, self._clock() + EVERY
        return bool(self._queue)

    def _take(self) -> None:
        """The next of the queue, into the traffic."""
        item = self._queue.popleft()
        self._taken_tokens += _tokens_in(item)
        if isinstance(item, _Came):
            self._begin(item)
        elif (path := self._paths.pop(item.number, None)) is not None:
            self._num_path -= len(path.keys) + PATH_BLOCKS
            if len(item.tokens) >= self._size:
                made = self._key.whole_blocks(item.tokens, self._size, path.under, item.words)
                self._use(np.concatenate([path.keys, made]), item.time, None)

    def _begin(self, item: _Came) -> None:
        root = self._key.root(item.scope)
        keys = self._key.whole_blocks(item.tokens, self._size, root, item.words)
        hittable = min(len(keys), max(len(item.tokens) - 1, 0) // self._size)
        self._use(keys, item.time, AskedPrompt(len(item.tokens), hittable, item.hits))
        self._paths[item.number] = _Path(keys, int(keys[-1]) if len(keys) else root)
        self._num_path += len(keys) + PATH_BLOCKS
        while self._num_path > MOST_PATHS:
            self._num_path -= len(self._paths.pop(next(iter(self._paths))).keys) + PATH_BLOCKS

    def _use(self, keys: Keys, when: float, asked: AskedPrompt | None) -> None:
        self._traffic.use(keys, when, asked)
        self._seen.sample.add(keys, when, 0 if asked is None else asked.hittable)


_NOTHING = np.empty(0, np.int32)


def _tokens_in(item: _Came | _Ended) -> int:
    """Of four bytes each; and words."""
    return len(item.tokens) + (0 if item.words is None else item.words.nbytes // 4)


def _work(regret: weakref.ref[Regret], wake: threading.Event) -> None:
    """The thread: a slice of work, then a pause that is long enough, until the Regret is not held any more."""
    more = False
    while True:
        began, spent = time.perf_counter(), time.thread_time()
        found = regret()
        if found is None or found._closed:
            return
        wake.clear()
        try:
            more = found._slice()
        except Exception as wrong:  # whatever it is, the next requests are watched all the same
            more = found._pass_over(wrong)
        found = None
        rest = (time.thread_time() - spent) / SHARE - (time.perf_counter() - began)
        if rest > 0:
            time.sleep(rest)
        if not more:
            wake.wait(IDLE)
