"""LineBook: the lines of all accounts of one cache, and what writes into them: time, evictions, reads from slow tiers.

Owns who pays for what. Hears of no sequence and reads no clock.
"""

from __future__ import annotations

import numpy as np

from quire.core.records.errors import BrokenInvariant
from quire.core.records.reports.stats import counts
from quire.core.records.request import Int32, Request
from quire.core.state.setup import Setup
from quire.insight.bills.accounts import NOBODYS, OTHERS_NUMBER, Accounts
from quire.insight.bills.bill import NOBODY, Bill, BillLine, split
from quire.insight.bills.evictions import Evictions, Int64, split_array
from quire.insight.bills.holdings import Come, Holdings
from quire.insight.bills.parties import Parties
from quire.insight.bills.token_totals import TokenTotals, total_of

MOST_EVICTORS = 64  # that are kept apart for each account
Seat = tuple[int, int, Int32]  # of the present call: account, pool, pages of its hit


class LineBook:
    """Lines by account, pages by pool."""

    def __init__(self, setup: Setup, accounts: Accounts, most_accounts: int, now: int) -> None:
        self.setup, self.accounts, self.now = setup, accounts, now
        self.tiers = tuple(tier.name for tier in setup.config.tiers)
        self.lines: list[BillLine] = [BillLine(), BillLine()]
        self.parties = Parties(most_accounts, self._sweep)
        self.pools: list[Holdings] = []
        self._evictions = Evictions()
        for groups in setup.sharers:
            slots = tuple(setup.config.slots_of(tier, groups[0]) for tier in range(len(self.tiers)))
            source, size = setup.pools[groups[0]], self.page_bytes(groups[0])
            self.pools.append(Holdings(source, size, slots, setup.slow_tier, self.parties, now))

    def page_bytes(self, group: int) -> int:
        """A page of unknown size counts as one byte."""
        return self.setup.config.groups[group].page_bytes or 1

    def account(self, request: Request) -> int:
        """Whom a request is billed to."""
        number = self.accounts.number_of(request)
        while len(self.lines) < len(self.accounts):
            self.lines.append(BillLine())
        return number

    def read_up(self, account: int, group: int, tier: int, pages: int) -> None:
        """Pages were read from a colder tier for an account."""
        add(self.lines[account].loaded, self.tiers[tier], pages * self.page_bytes(group))

    def charge(self, number: int, come: Come, seats: list[Seat]) -> None:
        """What a call has changed in a pool: bytes from the slow tier, and evictions, by whom."""
        size = self.pools[number].page_bytes
        if len(come.fetched):
            fetched = self._by_account(come.fetched, size)
            for account in fetched.nonzero()[0].tolist():
                add(self.lines[account].loaded, self.tiers[-1], int(fetched[account]))
        if not len(come.dropped):
            return
        takers = np.bincount(come.made, minlength=len(self.accounts))  # of new pages: a party is the account alone
        for account, where, pages in seats if len(come.raised) else ():
            if where == number:
                takers[account] += int(np.isin(come.raised, pages).sum())
        if not takers.any():
            takers[NOBODYS] = 1
        self._evictions.add(self._by_account(come.dropped, size), split_array(len(come.dropped) * size, takers))

    def _by_account(self, parties: Int32, page_bytes: int) -> Int64:
        """Bytes of pages, one party each, split among the members."""
        pages = np.bincount(parties, minlength=len(self.accounts))
        found: Int64 = pages[: len(self.accounts)] * page_bytes
        shared = pages[len(self.accounts) :]
        for more in shared.nonzero()[0].tolist():
            for account, share in self._shares(len(self.accounts) + more, int(shared[more]) * page_bytes):
                found[account] += share
        return found

    def _shares(self, party: int, number: int) -> list[tuple[int, int]]:
        """A number in equal parts for the members of a party."""
        members = self.parties.members(party)
        return list(zip(members, split(number, [1] * len(members)), strict=True))

    def _note_evictions(self) -> None:
        for account, taker, lost in self._evictions.take():
            by, who = self.lines[account].evicted_by, self.accounts.who[taker]
            if who not in by and len(by) >= MOST_EVICTORS:
                who = self.accounts.who[OTHERS_NUMBER]
            by[who] = by.get(who, 0) + lost

    def pass_time(self, now: int) -> None:
        """It is now, and nothing has changed since the last call."""
        self.now = now
        if any(pool.is_due(now) for pool in self.pools):
            self.settle(now)

    def settle(self, now: int) -> None:
        """Write what was held and evicted up to now into the lines."""
        self.now = now
        self._note_evictions()
        for pool in self.pools:
            for party, tier, number in pool.settle(now):
                for account, share in self._shares(party, number):
                    add(self.lines[account].held, self.tiers[tier], share)

    def _sweep(self) -> set[int]:
        """Parties that have pages; what the others had is written."""
        self.settle(self.now)
        return set[int]().union(*(pool.used() for pool in self.pools))

    def write(self, bill: Bill) -> None:
        """Every line that has something on it."""
        self._note_evictions()
        for who, line in zip(self.accounts.who, self.lines, strict=True):
            if line != BillLine():
                bill.line(who).add(line)

    def check(self, copies: list[list[int]], ended: TokenTotals) -> None:
        """All parts add up to what the cache itself counts; `copies` there are now, by pool and tier, and sequences
        that have ended had so many tokens."""
        if (lines := total_of(self.lines)) != ended:
            raise BrokenInvariant(f"{lines} are billed, {ended} were counted")
        told = [pool.pages_by_tier() for pool in self.pools]
        if told != copies:
            raise BrokenInvariant(f"copies {copies} by pool and tier, and {told} of them are billed")
        if not all(pool.is_sound() for pool in self.pools):
            raise BrokenInvariant("pages of a party are not those that it has")
        total, whole = BillLine(), self._counted()
        for line in self.lines:
            total.add(line)
        for what, billed, counted in (("held", total.held, whole.held), ("loaded", total.loaded, whole.loaded),
                                      ("evicted", total.evicted, whole.evicted)):  # fmt: skip
            if billed != counted:
                raise BrokenInvariant(f"{what}: {billed} is billed, {counted} was counted")

    def _counted(self) -> BillLine:
        """The sums as the cache has them, without accounts; of time, up to when it was last settled."""
        whole = BillLine()
        for pool in self.pools:
            for tier, number in zip(self.tiers, pool.whole, strict=True):
                add(whole.held, tier, number)
        for group, (store, place) in enumerate(self.setup.pools):
            size = self.page_bytes(group)
            numbers = counts(store.counters[place], size, len(self.tiers))
            for tier, pages in zip(self.tiers[1:], numbers.reused_from[1:], strict=True):
                add(whole.loaded, tier, pages * size)
            add(whole.loaded, self.tiers[-1], numbers.prefetched * size)
            whole.evicted_by[NOBODY] = whole.evicted + numbers.dropped * size
        return whole


def add(numbers: dict[str, int], tier: str, number: int) -> None:
    """So much more of a tier."""
    if number:
        numbers[tier] = numbers.get(tier, 0) + number
