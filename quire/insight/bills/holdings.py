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
Copies = tuple[Int32, NDArray[np.uint8]]  # of some pages: parties and tiers
NOTHING: Int32 = np.zeros(0, np.int32)


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
        self._held: Int64 = np.zeros((self.num_tiers, len(parties)), np.int64)  # pages, by tier and party
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
        tiers = flags.astype(np.uint8)
        fresh = self._stamp[pages] != stamps
        new = np.where(fresh, makers[rows], old)
        if given:
            new[fresh] = [given.get(page, party) for page, party in zip(pages[fresh].tolist(), new[fresh].tolist(),
                                                                        strict=True)]  # fmt: skip
        self._shift((old, before), (new, tiers), now)
        self._party[pages], self._stamp[pages], self._tiers[pages] = new, stamps, tiers
        made, dropped = new[fresh & (tiers > 0)], old[flags >= DROPPED]
        if self.num_tiers == 1:
            return Come(made, NOTHING, NOTHING, dropped)
        same = ~fresh & (before > 0)
        raised = same & (before & 1 == 0) & (tiers & 1 == 1)
        near = (1 << self.slow) - 1 if self.slow >= 0 else 0
        fetched = same & (before & near == 0) & (tiers & near > 0)
        return Come(made, pages[raised], new[fetched], dropped)

    def join(self, pages: Int32, account: int, now: int) -> NDArray[np.bool_]:
        """An account uses these pages from now on; which of them it had used before."""
        had, mine = self._party[pages], np.zeros(len(pages), np.bool_)
        alike = bool((had == had[0]).all())  # mostly a text was used by the same ones from end to end
        for party in had[:1].tolist() if alike else np.unique(had).tolist():
            some = slice(None) if alike else had == party
            if self._parties.has(party, account):
                mine[some] = True
                continue
            self._give(pages[some], party, self._parties.joined(party, account), now)
        return mine

    def own(self, page: int, account: int, now: int) -> None:
        """No other account has this page any more."""
        pages = np.array([page], np.int32)
        self._give(pages, int(self._party[page]), account, now)

    def _give(self, pages: Int32, old: int, new: int, now: int) -> None:
        """Pages of one party are another's."""
        self._make_room()
        tiers, time = self._tiers[pages], now - self._start
        for tier in range(self.num_tiers):
            count = int(np.count_nonzero(tiers & 1 << tier))
            for party, more in ((new, count), (old, -count)) if count else ():
                self._held[tier, party] += more
                self._since[tier, party] += more * time
        self._party[pages] = new

    def _shift(self, before: Copies, after: Copies, now: int) -> None:
        """Parties and tiers of some pages were such, and are such."""
        self._make_room()
        time = now - self._start
        for tier, (held, since) in enumerate(zip(self._held, self._since, strict=True)):
            count = 0
            for (parties, tiers), sign in ((after, 1), (before, -1)):
                some = parties[tiers & 1 << tier > 0]
                pages = np.bincount(some) * sign
                held[: len(pages)] += pages
                since[: len(pages)] += pages * time
                count += sign * len(some)
            self._all[:, tier] += (count, count * time)

    def _make_room(self) -> None:
        """For all parties that there are."""
        if self._held.shape[1] < len(self._parties):
            more = np.zeros((self.num_tiers, len(self._parties) + 64 - self._held.shape[1]), np.int64)
            self._held, self._since = np.hstack([self._held, more]), np.hstack([self._since, more])

    # -- sums --------------------------------------------------------------------------------------------------------

    def is_due(self, now: int) -> bool:
        """Whether it is time to settle: with more, the numbers might not fit."""
        return (now - self._start) * len(self._party) * self.num_tiers >= MOST_PAGE_TIME

    def settle(self, now: int) -> list[tuple[int, int, int]]:
        """Byte-nanoseconds since the last call: party, tier and number. It starts anew."""
        tiers, parties = np.nonzero(self._held | self._since)
        held, since = self._held[tiers, parties].tolist(), self._since[tiers, parties].tolist()
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
        return set(np.flatnonzero(self._held.any(axis=0)).tolist())

    def pages_by_tier(self) -> list[int]:
        """Copies that are held, by all parties together."""
        numbers: list[int] = self._held.sum(axis=1).tolist()
        return numbers

    def is_sound(self) -> bool:
        """Whether the sums are those of the pages one by one."""
        bits = (self._tiers >> self._places[:, None] & 1).astype(np.int64)
        counted = np.zeros_like(self._held)
        np.add.at(counted.T, self._party, bits.T)
        return bool((self._held == counted).all())
