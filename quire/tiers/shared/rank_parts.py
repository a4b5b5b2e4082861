"""Ranks: parts of pages between the memory of ranks and a shared store. Owns how several ranks act as one: a page has
come, or gone, only if every rank's part has. Knows no cache, no text and no plan.

    store ──get──► memory of the rank's own ──place──► its slots    a batch has a number, from its begin to `drop`;
    slots ──copy──► memory of the rank's own ──put──► store         slots are held only while they are copied

Each rank's part has a name of its own in the store, by the rank's fingerprint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from itertools import count, pairwise
from threading import Lock, Thread
from typing import Protocol, TypeVar

import numpy as np

from quire.core.records.errors import InputError, QuireError, StateError, say, without_words
from quire.tiers.base import Bytes, Tier, TierError
from quire.tiers.shared.audit import PageAudit
from quire.tiers.shared.calls.client import StoreClient
from quire.tiers.shared.shared_config import SharedConfig, open_store
from quire.tiers.shared.stores.store import SharedStore, StoreMiss

_log = logging.getLogger("quire.shared")
T = TypeVar("T")
Place = tuple[int, int, int]  # group, tier, slot
Answers = list[StoreMiss | None]  # None: it came, or went


class SharedRank(Protocol):
    """A rank, in this process or behind a wire of the caller's. Calls come from several threads.

    Any exception means: this rank has done none of it. A time is in seconds from now, since clocks of machines differ.
    """

    def page_bytes(self) -> tuple[int, ...]:
        """Of its part of a page, per layer group."""
        ...

    def get(self, number: int, names: Sequence[bytes], groups: Sequence[int], seconds: float) -> Answers:
        """Begin a batch: bring parts of pages of these groups from the store, verified; no slot is touched."""
        ...

    def place(self, number: int, nth: Sequence[int], places: Sequence[Place]) -> None:
        """Copy some of the batch, by their order in it, into slots; when it returns no more is written there."""
        ...

    def copy(self, number: int, places: Sequence[Place]) -> list[bool]:
        """Begin a batch: copy parts of pages out of slots; which of them could be read."""
        ...

    def put(self, number: int, nth: Sequence[int], names: Sequence[bytes], seconds: float) -> Answers:
        """Send some of the batch, by their order in it."""
        ...

    def drop(self, number: int) -> None:
        """The batch is over, whatever became of it."""
        ...

    def close(self) -> None:
        """Let go of the store; again: nothing."""
        ...


class TiersRank:
    """Tiers of this process and a client, as a rank. `tiers` are for its use alone: no other thread calls them."""

    def __init__(self, tiers: Sequence[Tier], client: StoreClient, audit: PageAudit | None = None) -> None:
        self._tiers, self._client, self._audit = list(tiers), client, audit
        self._batches: dict[int, tuple[Sequence[int], list[Bytes]]] = {}  # groups, and bytes
        self._moving = Lock()  # held while a tier is called: it has one caller at a time

    def page_bytes(self) -> tuple[int, ...]:
        """As its tiers say."""
        return self._tiers[-1].info().page_bytes

    def get(self, number: int, names: Sequence[bytes], groups: Sequence[int], seconds: float) -> Answers:
        """Into memory of its own: a call that comes back late must not write where others do."""
        pages = self._memory(groups)
        self._batches[number] = groups, pages
        answers = self._client.get_many(names, pages, time.monotonic() + seconds)
        if self._audit is not None:
            for name, page, answer in zip(names, pages, answers, strict=True):
                if answer is None:
                    self._audit.note(name, page)
        return answers

    def place(self, number: int, nth: Sequence[int], places: Sequence[Place]) -> None:
        """One call of a tier for each group."""
        pages = self._batches[number][1]
        for group, tier in dict.fromkeys(place[:2] for place in places):
            ours = [(one, place[2]) for one, place in zip(nth, places, strict=True) if place[:2] == (group, tier)]
            with self._moving:
                self._tiers[tier].write(group, [slot for _, slot in ours], [pages[one][None] for one, _ in ours])

    def copy(self, number: int, places: Sequence[Place]) -> list[bool]:
        """Likewise."""
        groups = [group for group, _, _ in places]
        pages = self._memory(groups)
        bad: set[Place] = set()
        for group, tier in dict.fromkeys(place[:2] for place in places):
            ours = [nth for nth, place in enumerate(places) if place[:2] == (group, tier)]
            try:
                with self._moving:
                    slots = [places[nth][2] for nth in ours]
                    self._tiers[tier].read(group, slots, [pages[nth][None] for nth in ours])
            except TierError as error:
                bad.update((group, tier, slot) for slot in error.failed)
        self._batches[number] = groups, pages
        return [place not in bad for place in places]

    def put(self, number: int, nth: Sequence[int], names: Sequence[bytes], seconds: float) -> Answers:
        """From that memory."""
        batch, audit = self._batches[number][1], self._audit
        pages = [batch[one] for one in nth]
        if audit is None:
            return self._client.put_many(names, pages, time.monotonic() + seconds)
        right = [one for one, name in enumerate(names) if audit.is_right(name, pages[one])]
        sent = [names[one] for one in right], [pages[one] for one in right]
        answers = dict(zip(right, self._client.put_many(*sent, time.monotonic() + seconds), strict=True))
        return [answers.get(one, StoreMiss.FAILED) for one in range(len(names))]

    def drop(self, number: int) -> None:
        """Give the memory back."""
        self._batches.pop(number, None)

    def close(self) -> None:
        """The client belongs to the caller."""

    def _memory(self, groups: Sequence[int]) -> list[Bytes]:
        sizes = self.page_bytes()
        edges = np.cumsum([0, *(sizes[group] for group in groups)]).tolist()
        memory = np.empty(edges[-1], np.uint8)
        return [memory[start:stop] for start, stop in pairwise(edges)]


class LocalSharedRank(TiersRank):
    """A rank whose memory is in this process, with a connection to the store of its own."""

    def __init__(self, tiers: Sequence[Tier], config: SharedConfig, *, store: SharedStore | None = None) -> None:
        if not tiers:
            raise InputError(say("a rank of a shared cache", "it has no memory", "give its tiers, device first"))
        self._own = StoreClient(open_store(config) if store is None else store)
        super().__init__(tiers, self._own)

    def close(self) -> None:
        """Its connection."""
        self._own.close()


class Ranks:
    """All ranks as one. With one of them its calls are made here; with several, on all at the same time."""

    def __init__(self, ranks: Sequence[SharedRank]) -> None:
        self._ranks = tuple(ranks)
        self._numbers = count(1)
        self._logged = [""] * len(ranks)  # what was wrong with each last: it is logged once

    def __len__(self) -> int:
        return len(self._ranks)

    def next_number(self) -> int:
        """For a batch; drop it."""
        return next(self._numbers)

    def get(self, number: int, names: Sequence[Sequence[bytes]], groups: Sequence[int], seconds: float) -> Answers:
        """Bring pages, `names` by rank; a part that did not come is the answer for its page."""
        answers = self._ask(lambda nth: self._ranks[nth].get(number, names[nth], groups, seconds))
        return _joined(answers, len(groups))

    def place(self, number: int, nth: Sequence[int], places: Sequence[Place]) -> str:
        """Fill slots with what came; nothing, or why a rank could not."""
        for one in self._ask(lambda rank: _placed(self._ranks[rank], number, nth, places)):
            if one:
                return str(one)
        return ""

    def copy(self, number: int, places: Sequence[Place]) -> list[bool]:
        """Copy pages out of slots; which of them every rank could read."""
        answers = self._ask(lambda nth: self._ranks[nth].copy(number, places))
        return [all(not isinstance(one, Exception) and one[nth] for one in answers) for nth in range(len(places))]

    def put(self, number: int, nth: Sequence[int], names: Sequence[Sequence[bytes]], seconds: float) -> Answers:
        """Send pages, `names` by rank; a part that did not go is the answer for its page."""
        answers = self._ask(lambda rank: self._ranks[rank].put(number, nth, names[rank], seconds))
        return _joined(answers, len(nth))

    def drop(self, number: int) -> None:
        """On every rank, also on one that has not begun it."""
        self._ask(lambda nth: self._ranks[nth].drop(number))

    def close(self) -> None:
        """Let go of every rank."""
        self._ask(lambda nth: self._ranks[nth].close())

    def _ask(self, act: Callable[[int], T]) -> list[T | Exception]:
        """What each rank says; an exception: its process has ended, or its wire is cut."""
        if len(self._ranks) == 1:
            return [act(0)]
        answers: list[T | Exception] = [StateError("")] * len(self._ranks)

        def ask(nth: int) -> None:
            try:
                answers[nth] = act(nth)
                self._logged[nth] = ""
            except Exception as error:  # all that it was to do counts as not done
                answers[nth] = error
                text = str(error) if isinstance(error, QuireError | OSError) else without_words(error)
                if self._logged[nth] != text:
                    _log.warning("rank %d of a shared cache: %s", nth, text)
                self._logged[nth] = text

        others = [
            Thread(target=ask, args=(nth,), name=f"quire-rank-{nth}", daemon=True) for nth in range(1, len(self._ranks))
        ]
        for thread in others:
            thread.start()
        ask(0)
        for thread in others:  # to the end: a slot may be given away only when no thread writes there any more
            thread.join()
        return answers


def _placed(rank: SharedRank, number: int, nth: Sequence[int], places: Sequence[Place]) -> str:
    try:
        rank.place(number, nth, places)
    except TierError as error:
        return str(error)
    return ""


def _joined(answers: Sequence[Answers | Exception], size: int) -> Answers:
    """The answers for whole pages."""
    lost: Answers = [StoreMiss.FAILED] * size
    by_rank = [lost if isinstance(one, Exception) else one for one in answers]
    return [next((answer for answer in page if answer is not None), None) for page in zip(*by_rank, strict=True)]
