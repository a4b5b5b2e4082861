"""Holdings: which party has which page of one pool, in which tiers, and how long so far: whole byte-nanoseconds.

    store ──which pages changed──► Holdings ──pages x time, by party and tier──► lines of accounts

Per party and tier it keeps the pages there are now and, of every change, when it was: pages x (now - start) less that
is the time so far, without looking at any page. Owns no account and reads no clock. Takes 9 bytes a page.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.core.records.request import Int32
from quire.core.state.setup import GroupPool
from quire.insight.bills.parties import Parties

DROPPED = 256  # in what a store reports, beside the tiers of a page
MOST_PAGE_TIME = 1 << 61  # pages x nanoseconds that are kept before they are written to lines
Int64 = NDArray[np.int64]


class Come(NamedTuple):
    """What one call has changed in a pool, as far as an account pays for it apart from time."""

    made: Int32  # parties that got new pages, one entry per page
    raised: Int32  # pages that came up to the device
    fetched: Int32  # parties of the pages that came up from the slow tier
    dropped: Int32  # parties of the pages that were evicted with their last copy


class Holdings:
    """Of one pool."""

    def __init__(
        self, source: GroupPool, page_bytes: int, slots: tuple[int, ...], slow: int, parties: Parties, start: int
    ) -> None:  # fmt: skip
        self.source, self.page_bytes, self.num_tiers, self.slow = source, page_bytes, len(slots), slow
        self._parties = parties
        num_pages = sum(slots)
        self._party: Int32 = np.zeros(num_pages, np.int32)
        self._stamp: Int32 = np.zeros(num_pages, np.int32)
        self._tiers: NDArray[np.uint8] = np.zeros(num_pages, np.uint8)
        self._places = np.arange(self.num_tiers, dtype=np.uint8)
        self._held: Int64 = np.zeros((len(parties), self.num_tiers), np.int64)  # pages, by party and tier
        self._since: Int64 = np.zeros_like(self._held)  # of every page that came when, less those that went
        self._start = start
        self.whole = [0] * self.num_tiers  # byte-nanoseconds of all parties, counted apart from them
        self._all: Int64 = np.zeros((2, self.num_tiers), np.int64)  # pages, and since when, likewise

    # -- changes -----------------------------------------------------------------------------------------------------

    def take(self) -> Int32:
        """What has changed since the last call, as the store reports it."""
        return self.source.store.take_tenure(self.source.place)

    def change(self, told: Int32, now: int, makers: Int32, given: dict[int, int]) -> Come:
        """It is so from now on. `makers`: the party of each row, of none last; `given`: of pages by number that were
        made for no row."""
        pages, stamps, rows, flags = told.T
        before, old = self._tiers[pages], self._party[pages]
        tiers = (flags & 0xFF).astype(np.uint8)
        fresh = self._stamp[pages] != stamps
        new = old.copy()
        if fresh.any():
            new[fresh] = makers[rows[fresh]]
            if given:
                new[fresh] = [given.get(page, party) for page, party in zip(pages[fresh].tolist(), new[fresh].tolist(),
                                                                            strict=True)]  # fmt: skip
        self._count(old, before, -1, now)
        self._count(new, tiers, 1, now)
        self._count_all(before, tiers, now)
        self._party[pages], self._stamp[pages], self._tiers[pages] = new, stamps, tiers
        same = ~fresh & (before > 0)
        raised = same & (before & 1 == 0) & (tiers & 1 == 1)
        near = (1 << self.slow) - 1 if self.slow >= 0 else 0
        fetched = same & (before & near == 0) & (tiers & near > 0)
        return Come(new[fresh & (tiers > 0)], pages[raised], new[fetched], old[flags & DROPPED > 0])

    def join(self, pages: Int32, account: int, now: int) -> NDArray[np.bool_]:
        """An account uses these pages from now on; which of them it had used before."""
        had, mine = self._party[pages], np.zeros(len(pages), np.bool_)
        for party in np.unique(had).tolist():
            some = had == party
            if self._parties.has(party, account):
                mine |= some
                continue
            self._give(pages[some], self._parties.joined(party, account), now)
        return mine

    def own(self, pages: Int32, account: int, now: int) -> None:
        """No other account has these pages any more."""
        self._give(pages, account, now)

    def _give(self, pages: Int32, party: int, now: int) -> None:
        tiers = self._tiers[pages]
        self._count(self._party[pages], tiers, -1, now)
        self._count(np.full(len(pages), party), tiers, 1, now)
        self._party[pages] = party

    def _count(self, parties: NDArray[np.integer], tiers: NDArray[np.uint8], sign: int, now: int) -> None:
        if len(self._held) < len(self._parties):
            more = np.zeros((len(self._parties) + 64 - len(self._held), self.num_tiers), np.int64)
            self._held, self._since = np.concatenate([self._held, more]), np.concatenate([self._since, more])
        time = now - self._start
        for tier in range(self.num_tiers):
            some = parties[tiers >> tier & 1 > 0]
            if len(some):
                found, pages = _counts(some)
                self._held[found, tier] += sign * pages
                self._since[found, tier] += sign * time * pages

    def _count_all(self, before: NDArray[np.uint8], after: NDArray[np.uint8], now: int) -> None:
        for tier in range(self.num_tiers):
            more = int((after >> tier & 1).sum()) - int((before >> tier & 1).sum())
            self._all[:, tier] += (more, more * (now - self._start))

    # -- sums --------------------------------------------------------------------------------------------------------

    def is_due(self, now: int) -> bool:
        """Whether it is time to settle: with more, the numbers might not fit."""
        return (now - self._start) * len(self._party) * self.num_tiers >= MOST_PAGE_TIME

    def settle(self, now: int) -> list[tuple[int, int, int]]:
        """Byte-nanoseconds since the last call: party, tier and number. It starts anew."""
        parties, tiers = np.nonzero(self._held | self._since)
        held, since = self._held[parties, tiers].tolist(), self._since[parties, tiers].tolist()
        time = now - self._start
        past = [pages * time - then for pages, then in zip(held, since, strict=True)]  # Python's numbers have no end
        told = zip(parties.tolist(), tiers.tolist(), past, strict=True)
        for tier, (pages, since) in enumerate(self._all.T.tolist()):
            self.whole[tier] += (pages * time - since) * self.page_bytes
        self._all[1] = 0
        self._since[:] = 0
        self._start = now
        return [(party, tier, number * self.page_bytes) for party, tier, number in told if number]

    def used(self) -> set[int]:
        """Parties that have pages."""
        return set(np.flatnonzero(self._held.any(axis=1)).tolist())

    def pages_by_tier(self) -> list[int]:
        """Copies that are held, by all parties together."""
        numbers: list[int] = self._held.sum(axis=0).tolist()
        return numbers

    def is_sound(self) -> bool:
        """Whether the sums are those of the pages one by one."""
        bits = (self._tiers[:, None] >> self._places & 1).astype(np.int64)
        counted = np.zeros_like(self._held)
        np.add.at(counted, self._party, bits)
        return bool((self._held == counted).all())


def _counts(parties: NDArray[np.integer]) -> tuple[NDArray[np.integer], Int64]:
    """Each party once, and how often it is there; mostly there is one."""
    if (parties == parties[0]).all():
        return parties[:1], np.array([len(parties)])
    found, counts = np.unique(parties, return_counts=True)
    return found, counts
