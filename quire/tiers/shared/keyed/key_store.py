"""KeyStore: pages by a caller's keys in a shared store, with an end to every call. Owns their names; knows no engine.

    write   [ copy ─► is the caller still there? ] ─► what the store lacks ─► put      from the copy
    read    get, into memory of its own ─► checked ─► [ copy ]                         in [ ]: the caller's memory

The store is called on threads of its own. One that does not answer is given up after its deadline and a second, and
whatever it does later touches nothing of the caller's. What it sent that was not the page is sent again when it can be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from copy import copy
from hashlib import blake2b
from threading import Event
from typing import Generic, TypeVar

import numpy as np

from quire.core.records.errors import InputError, say, shown, without_words
from quire.tiers.base import Bytes
from quire.tiers.disk.keyed.key_place import THERE, Still
from quire.tiers.page_digest import DIGEST_BYTES, TAG_BYTES, check_fingerprint
from quire.tiers.shared.calls.client import GRACE, StoreClient
from quire.tiers.shared.calls.counters import StoreCounts
from quire.tiers.shared.calls.crew import Crew
from quire.tiers.shared.stores.bad_pages import UNUSABLE, BadPages
from quire.tiers.shared.stores.store import SharedStore, StoreMiss

T = TypeVar("T")
THREADS = 4  # a writer, two readers and a lookup; what hangs takes one
MOST_CALLS = 64
PATIENCE = 5.0  # seconds for what no request waits for: sending a batch
BATCH_BYTES = 16 << 20  # of one call of the store
LEFT = "its caller has given up"
CLOSED = "the store has been closed"


class _Call(Generic[T]):
    """One call of the store, made on a thread of the crew; `answer` is None until it has come."""

    def __init__(self, act: Callable[[], T]) -> None:
        self._act, self._over = act, Event()
        self.answer: T | None = None
        self.error = ""

    def run(self) -> None:
        """Make it."""
        try:
            self.answer = self._act()
        except Exception as error:
            self.error = without_words(error)
        self._over.set()

    def dropped(self) -> None:
        """The store is being closed."""
        self.error = CLOSED
        self._over.set()

    def wait(self, seconds: float) -> bool:
        """Whether it ended in that time."""
        return self._over.wait(seconds)


class KeyStore:
    """One store's pages of one size, of one model. A `KeyPlace`."""

    def __init__(
        self, store: SharedStore, fingerprint: bytes, page_bytes: int, *, wait: float = 1.0,
        patience: float = PATIENCE, batch_bytes: int = BATCH_BYTES, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`wait`: seconds for a lookup, and for a batch that a request waits for."""
        self._set_form(fingerprint, page_bytes, batch_bytes)
        self.client = StoreClient(store, clock=clock)
        self.wait, self._patience, self._clock = wait, patience, clock
        self._bad, self._is_owner = BadPages(), True
        self._crew = Crew("key-store", THREADS, MOST_CALLS, self.client.probe, self.client.breaker.seconds_to_probe)

    def beside(self, fingerprint: bytes, page_bytes: int) -> KeyStore:
        """Pages of another form in the same store, over the same connections; it ends with this one."""
        other = copy(self)
        other._set_form(fingerprint, page_bytes, self._batch_bytes)
        other._is_owner = False
        return other

    def _set_form(self, fingerprint: bytes, page_bytes: int, batch_bytes: int) -> None:
        check_fingerprint(fingerprint)
        if page_bytes < 1:
            raise InputError(say(f"pages of {shown(page_bytes)} bytes", "that is not a size", "give 1 or more"))
        self._tag = blake2b(fingerprint, digest_size=TAG_BYTES, person=b"quire-key-tag").digest()
        self._page_bytes, self._batch_bytes = page_bytes, batch_bytes
        self._batch = max(1, batch_bytes // page_bytes)

    @property
    def hanging(self) -> bool:
        """Whether the store has not answered in time, or cannot be reached."""
        if self.client.reachable:
            return False
        self._crew.wake()  # a thread that sleeps does not know yet that a probe is due
        return True

    def counts(self) -> StoreCounts:
        """What it has done."""
        return self.client.counts()

    def name_of(self, key: bytes) -> bytes:
        """The name of a key's page: its model's tag, and a digest from which the key cannot be read."""
        return self._tag + blake2b(key, digest_size=DIGEST_BYTES, person=b"quire-key").digest() + bytes(2)

    def exist(self, keys: Sequence[bytes], then: Callable[[list[bool]], None]) -> bool:
        """Ask which are there, and call `then` on another thread; False: it is not asked, since that is pointless."""
        if self.hanging:
            return False
        names = [self.name_of(key) for key in keys]

        return self._crew.submit(_Call(lambda: then(self._there(names))))

    def names_there(self, names: Sequence[bytes]) -> list[bool]:
        """Which are there, of any form of page: one question; none, where the store does not answer in time."""
        there = self._ask(lambda: self._there(names), self.wait) if names else []
        return [False] * len(names) if isinstance(there, str) else there

    def _there(self, names: Sequence[bytes]) -> list[bool]:
        there = self.client.exists_many(names, self._clock() + self.wait)
        if isinstance(there, StoreMiss):
            return [False] * len(names)
        return [is_there and name not in self._bad for is_there, name in zip(there, names, strict=True)]

    def write(self, keys: Sequence[bytes], pages: Sequence[Bytes], still: Still = lambda: True) -> list[str]:
        """Send these pages, if the store has not got them; why not, for each, or THERE."""
        answers: list[str] = []
        for start in range(0, len(keys), self._batch):
            some = keys[start : start + self._batch]
            own = np.stack([self._checked(page) for page in pages[start : start + self._batch]])
            if not still():  # its memory may hold something else by now
                return answers + [LEFT] * (len(keys) - start)
            names = [self.name_of(key) for key in some]
            got = self._ask(lambda names=names, own=own: self._send(names, own), self._patience)  # type: ignore[misc]
            answers += [got] * len(some) if isinstance(got, str) else [THERE if one is None else one for one in got]
        return answers

    def _send(self, names: Sequence[bytes], pages: Bytes) -> list[StoreMiss | None]:
        deadline = self._clock() + self._patience
        there = self.client.exists_many(names, deadline)
        if isinstance(there, StoreMiss):
            return [there] * len(names)
        wanted = [nth for nth, name in enumerate(names) if not there[nth] or name in self._bad]
        answers: list[StoreMiss | None] = [None] * len(names)
        if wanted:
            sent = self.client.put_many([names[nth] for nth in wanted], [pages[nth] for nth in wanted], deadline)
            for nth, answer in zip(wanted, sent, strict=True):
                answers[nth] = answer
            self._bad.discard(names[nth] for nth in wanted if answers[nth] is None)
        return answers

    def read(self, keys: Sequence[bytes], pages: Sequence[Bytes], still: Still = lambda: True) -> list[str]:
        """Fill the pages, each checked; why not, for each, or THERE. A page that did not come is left as it was."""
        answers: list[str] = []
        for start in range(0, len(keys), self._batch):
            rows = [self._checked(page) for page in pages[start : start + self._batch]]
            if not still():
                return answers + [LEFT] * (len(keys) - start)
            names = [self.name_of(key) for key in keys[start : start + self._batch]]
            into = np.empty((len(rows), self._page_bytes), np.uint8)
            got = self._ask(lambda names=names, into=into: self._fetch(names, into), self.wait)  # type: ignore[misc]
            answers += [got] * len(rows) if isinstance(got, str) else [THERE if one is None else one for one in got]
            for row, page, answer in zip(rows, into, answers[start:], strict=True):
                if answer == THERE:
                    row[:] = page
        return answers

    def _fetch(self, names: Sequence[bytes], into: Bytes) -> list[StoreMiss | None]:
        answers = self.client.get_many(names, list(into), self._clock() + self.wait)
        self._bad.add(name for name, answer in zip(names, answers, strict=True) if answer in UNUSABLE)
        return answers

    def _ask(self, act: Callable[[], T], seconds: float) -> T | str:
        """What a call answers; or why there is no answer."""
        if self.hanging:
            return str(StoreMiss.UNREACHABLE)
        call = _Call(act)
        if not self._crew.submit(call):
            return str(StoreMiss.BUSY)
        if not call.wait(seconds + GRACE):
            return str(StoreMiss.LATE)
        return call.error if call.answer is None else call.answer

    def _checked(self, page: Bytes) -> Bytes:
        if page.nbytes != self._page_bytes:
            fact = f"pages here have {self._page_bytes}"
            raise InputError(say(f"a page of {page.nbytes} bytes", fact, "open a place for each size"))
        return page.reshape(-1)

    def use(self, keys: Sequence[bytes], reused: Collection[bytes]) -> None:
        """The store has an order of its own."""

    def tidy(self) -> float | None:
        """Nothing is due: the crew asks a store that was given up whether it is back."""
        return None

    def clear(self) -> None:
        """Take out every page of this form, of any writer, as far as that is done in time."""
        self._ask(lambda: self.client.remove_scope(self._tag, self._clock() + self._patience), self._patience)

    def close(self) -> None:
        """Let go of the store. A call that hangs keeps its thread until the process ends."""
        if not self._is_owner:
            return
        self._crew.close(self.wait + GRACE)
        self.client.close()
