"""Bills: what each tenant used of one cache, kept while it runs, so that the parts add up to the cache's own sums.

    bills = Bills("bills.json")
    cache = quire.Cache(config, watchers=[bills])
    bills.bill().lines

It hears of every sequence and, at the end of each call, which pages have got or lost copies (`take_tenure` of the
store). Owns which account pays for what; how the parts are counted is in `holdings`, `parties` and `token_marks`.
Knows no prices.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from quire.bills.accounts import MOST_ACCOUNTS, NOBODYS, OTHERS_NUMBER, Accounts
from quire.bills.bill import NOBODY, Bill, Line, split
from quire.bills.bill_file import load_bill, save_bill
from quire.bills.holdings import Come, Holdings
from quire.bills.parties import Parties
from quire.bills.saver import Saver
from quire.bills.token_marks import TokenMarks
from quire.core.records.errors import BrokenInvariant, StateError, say, without_words
from quire.core.records.reports.stats import counts
from quire.core.records.request import Int32, Request
from quire.core.state.sequence import Sequence as LiveSequence
from quire.core.state.setup import Setup

if TYPE_CHECKING:
    from quire.core.state.claim import Promise
    from quire.core.store.interface import Hit

MOST_EVICTORS = 64  # that are told apart of each account
_log = logging.getLogger("quire.bills")


class Bills:
    """Of one cache, given to it when it is made: `Cache(config, watchers=[Bills()])`.

    `path`: a file that is read now, written every so many seconds (`every`, 0: not by itself) and on `save`.
    `sessions`: each is billed apart. `clock` counts nanoseconds; `now` is for the dates of a bill.
    """

    def __init__(
        self, path: str | Path | None = None, *, sessions: bool = False, most_accounts: int = MOST_ACCOUNTS,
        every: float = 60.0, clock: Callable[[], int] = time.monotonic_ns,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:  # fmt: skip
        self.path, self.error = None if path is None else Path(path), ""
        self._clock, self._now, self._last = clock, now, 0
        self._accounts = Accounts(most_accounts, sessions)
        self._parties = Parties(most_accounts, self._sweep)
        self._lines: list[Line] = [Line(), Line()]
        self._before = load_bill(self.path) if self.path is not None and self.path.exists() else None
        self._since = self._date()
        self._setup: Setup | None = None
        self._pools: list[Holdings] = []
        self._live: dict[int, tuple[LiveSequence, TokenMarks]] = {}  # by row
        self._seats: list[tuple[int, int, Int32]] = []  # of the present call: account, pool, pages of its hit
        self._given: list[dict[int, int]] = []  # of the present call, by pool: parties of pages made for no row
        self._time: int | None = None  # of the present call
        self._saving = Lock()  # one file at a time
        self._saver = Saver(self.save, every) if self.path is not None and every > 0 else None

    def __repr__(self) -> str:
        return f"Bills({len(self._accounts)} accounts{f', broken: {self.error}' * bool(self.error)})"

    # -- what the cache tells ----------------------------------------------------------------------------------------

    def attach_pages(self, setup: Setup) -> None:
        """The cache is made; its stores note tenure from now on."""
        if self._setup is not None:
            raise StateError(say("these bills", "they are another cache's", "make others for this one"))
        self._setup, config = setup, setup.config
        for stream in setup.streams:
            stream.store.note_tenure()
        self._tiers = tuple(tier.name for tier in config.tiers)
        for groups in setup.sharers:
            slots = tuple(config.slots_of(tier, groups[0]) for tier in range(len(self._tiers)))
            size = self._page_bytes(groups[0])
            self._pools.append(Holdings(setup.pools[groups[0]], size, slots, setup.slow_tier, self._parties))
            self._given.append({})
        self._makers: Int32 = np.zeros(config.max_sequences + 1, np.int32)  # party by row; the last: of none
        for pool in self._pools:
            pool.settle(self._at())
        self._time = None

    def admitted(self, sequences: Iterable[LiveSequence]) -> None:
        """They have their pages: what they read from colder tiers is theirs, and what they took over."""
        with self._guard("admitted"):
            for sequence in sequences:
                _, marks = self._live[sequence.row]
                self._read_up(sequence, marks)
                for group, page in marks.sources:
                    if self._has(sequence, group, page, marks.start):
                        pool = self._pool(group)
                        pool.own(np.array([page], np.int32), marks.account, self._at())
                marks.sources = []

    def ending(self, sequence: LiveSequence, store: bool) -> None:
        """Nothing: `leaving` tells of every end."""

    def seating(self, sequence: LiveSequence, claim: Promise) -> None:
        """It is about to get its pages, and is their user from now on."""
        with self._guard("seating"):
            account = self._account(sequence.request)
            self._makers[sequence.row] = account
            size = self._set().block_size
            marks = TokenMarks(account, sequence.start, sequence.prompt_end, size)
            marks.received = claim.purpose == "decode"
            self._live[sequence.row] = sequence, marks
            self._lines[account].requests += 1
            if sequence.start or claim.cross_hit is not None:
                self._use(account, (claim.hit, claim.cross_hit), marks)

    def reading(self, request: Request, hits: tuple[Hit, Hit | None]) -> None:
        """Somebody outside reads the pages of a request's hits."""
        with self._guard("reading"):
            self._use(self._account(request), hits, None)

    def writing(self, request: Request, pages: Sequence[Int32]) -> None:
        """Somebody outside got new pages, by group, to write them."""
        with self._guard("writing"):
            account = self._account(request)
            for group, some in enumerate(pages):
                self._given[self._set().pool_of[group]].update(dict.fromkeys(some.tolist(), account))

    def forked(self, source: LiveSequence, forks: Sequence[LiveSequence]) -> None:
        """More sequences go on from where it is; they are billed to whom it is."""
        with self._guard("forked"):
            account = self._live[source.row][1].account
            for fork in forks:
                self._makers[fork.row] = account
                marks = TokenMarks(account, 0, 0, self._set().block_size)
                marks.computed = fork.computed
                self._live[fork.row] = fork, marks

    def leaving(self, sequence: LiveSequence) -> None:
        """It is about to give up its row: its tokens are counted for good."""
        with self._guard("leaving"):
            _, marks = self._live.pop(sequence.row)
            self._lines[marks.account].add(_tokens(marks, sequence.computed, sequence.start))

    def call_over(self) -> None:
        """A call is over: what it has changed is billed, as of one time."""
        with self._guard("a call"):
            for number, pool in enumerate(self._pools):
                come = pool.take(self._at(), self._makers, self._given[number])
                if come is not None:
                    self._charge(number, pool, come)
                    self._given[number].clear()
                if pool.is_due(self._at()):
                    self._settle(self._at())
        self._seats.clear()
        self._time = None

    # -- parts of it -------------------------------------------------------------------------------------------------

    def _guard(self, what: str) -> _Guard:
        return _Guard(self, what)

    def _set(self) -> Setup:
        assert self._setup is not None
        return self._setup

    def _at(self) -> int:
        """The time of the present call; a clock that goes back stands still."""
        if self._time is None:
            self._time = self._last = max(self._last, int(self._clock()))
        return self._time

    def _date(self) -> str:
        return self._now().isoformat(timespec="seconds")

    def _account(self, request: Request) -> int:
        number = self._accounts.number_of(request)
        while len(self._lines) < len(self._accounts):
            self._lines.append(Line())
        return number

    def _page_bytes(self, group: int) -> int:
        """A page of unknown size counts as one byte."""
        return self._set().config.groups[group].page_bytes or 1

    def _pool(self, group: int) -> Holdings:
        return self._pools[self._set().pool_of[group]]

    def _use(self, account: int, hits: tuple[Hit, Hit | None], marks: TokenMarks | None) -> None:
        """An account uses the pages of these hits; what that says of a prompt's tokens."""
        setup = self._set()
        for stream, hit in zip(setup.streams, hits, strict=False):
            for place in range(len(stream.store.pages)) if hit is not None else ():
                group, (pages, blocks) = stream.first + place, _held(hit, place)
                of_prompt = marks is not None and group in setup.own_groups
                pool = self._pool(group)
                if len(pages):
                    mine = pool.join(pages, account, self._at())
                    self._seats.append((account, setup.pool_of[group], pages))
                    if of_prompt and marks is not None:
                        marks.note_blocks(blocks, mine)
                for page in hit.sources()[place : place + 1]:
                    source = np.array([page], np.int32)
                    used = bool(pool.join(source, account, self._at())[0])
                    self._seats.append((account, setup.pool_of[group], source))
                    if of_prompt and marks is not None:
                        marks.note_rest(used)
                        marks.sources.append((group, page))

    def _has(self, sequence: LiveSequence, group: int, page: int, start: int) -> bool:
        """Whether a sequence has taken over the page that it was to start in."""
        setup = self._set()
        store, place = setup.pools[group]
        column = start // setup.block_size
        row = store.pages[place][sequence.row]
        return page in (int(store.currents[place][sequence.row]), int(row[column]) if column < len(row) else -1)

    def _read_up(self, sequence: LiveSequence, marks: TokenMarks) -> None:
        """What its admission read from colder tiers."""
        loaded = self._lines[marks.account].loaded
        setup = self._set()
        for group in setup.groups if sequence.request.encoder is not None else setup.own_groups:
            numbers = sequence.counts(group)
            for tier, pages in enumerate(numbers.reused_from[1:], 1):
                _add(loaded, self._tiers[tier], pages * self._page_bytes(group))

    def _charge(self, number: int, pool: Holdings, come: Come) -> None:
        """Bytes that came up from the slow tier, and evictions, by whom."""
        for account, share in self._split(Counter(come.fetched.tolist()), pool.page_bytes).items():
            _add(self._lines[account].loaded, self._tiers[-1], share)
        if not len(come.dropped):
            return
        takers = Counter[int](come.made.tolist())  # of new pages: a party is the account alone
        for account, where, pages in self._seats if len(come.raised) else ():
            if where == number:
                takers[account] += int(np.isin(come.raised, pages).sum())
        weights = sorted(takers.items()) if takers.total() else [(NOBODYS, 1)]
        for account, lost in sorted(self._split(Counter(come.dropped.tolist()), pool.page_bytes).items()):
            for (taker, _), share in zip(weights, split(lost, [weight for _, weight in weights]), strict=True):
                self._evict(account, taker, share)

    def _split(self, pages: Counter[int], page_bytes: int) -> Counter[int]:
        """Bytes of pages by party, split among its members."""
        found = Counter[int]()
        for party, count in sorted(pages.items()):
            members = self._parties.members(party)
            for account, share in zip(members, split(count * page_bytes, [1] * len(members)), strict=True):
                found[account] += share
        return found

    def _evict(self, account: int, taker: int, lost: int) -> None:
        by = self._lines[account].evicted_by
        who = self._accounts.who[taker]
        if who not in by and len(by) >= MOST_EVICTORS:
            who = self._accounts.who[OTHERS_NUMBER]
        if lost:
            by[who] = by.get(who, 0) + lost

    def _settle(self, now: int) -> None:
        """Write what was held up to now into the lines."""
        for pool in self._pools:
            for party, tier, number in pool.settle(now):
                members = self._parties.members(party)
                for account, share in zip(members, split(number, [1] * len(members)), strict=True):
                    _add(self._lines[account].held, self._tiers[tier], share)

    def _sweep(self) -> set[int]:
        """Parties that have pages; what the others had is written."""
        self._settle(self._at())
        return set[int]().union(*(pool.used() for pool in self._pools))

    # -- what it says ------------------------------------------------------------------------------------------------

    def count_late(self, request: Request) -> None:
        """An answer's first token came after its deadline."""
        with self._set().lock, self._guard("count_late"):
            self._lines[self._account(request)].late += 1

    def bill(self) -> Bill:
        """What was used so far, by this process and by those before it that had the file."""
        setup = self._set()
        with setup.lock:
            if not self.error:
                self._settle(self._at())
            bill = Bill(self._tiers, self._since, self._date(), note=self.error)
            for who, line in zip(self._accounts.who, self._lines, strict=True):
                if line != Line():
                    bill.line(who).add(line)
            self._add_live(bill)
        if self._before is not None:
            bill.add(self._before)
        return bill

    def _add_live(self, bill: Bill) -> None:
        """Of sequences that go on, what they have computed so far."""
        for sequence, marks in self._live.values():
            bill.line(self._accounts.who[marks.account]).add(_tokens(marks, sequence.computed, sequence.start))

    def save(self) -> Path:
        """Write the bill to its file, which is there whole or as it was before."""
        if self.path is None:
            raise StateError(say("saving a bill", "it has no file", "pass Bills(path), or use save_bill"))
        with self._saving:
            return save_bill(self.bill(), self.path)

    def close(self) -> None:
        """Write the file for the last time."""
        if self._saver is not None:
            self._saver.close()
        if self.path is not None:
            self.save()

    def check_sums(self, copies: Sequence[Sequence[int]]) -> None:
        """All parts add up to what the cache itself counts; `copies` there are now, by pool and tier."""
        if self.error:
            raise BrokenInvariant(f"bills are broken: {self.error}")
        told = [pool.pages_by_tier() for pool in self._pools]
        if told != [list(some) for some in copies]:
            raise BrokenInvariant(f"copies {copies} by pool and tier, and {told} of them are billed")
        if not all(pool.is_sound() for pool in self._pools):
            raise BrokenInvariant("pages of a party are not those that it has")
        self._settle(self._at())
        total, whole = Line(), self._counted()
        for line in self._lines:
            total.add(line)
        for what, billed, counted in (("held", total.held, whole.held), ("loaded", total.loaded, whole.loaded),
                                      ("evicted", total.evicted, whole.evicted)):  # fmt: skip
            if billed != counted:
                raise BrokenInvariant(f"{what}: {billed} is billed, {counted} was counted")

    def _counted(self) -> Line:
        """The sums as the cache has them, without accounts."""
        setup, whole = self._set(), Line()
        for pool in self._pools:
            for tier, number in zip(self._tiers, pool.whole, strict=True):
                _add(whole.held, tier, number)
        for group, (store, place) in enumerate(setup.pools):
            size = self._page_bytes(group)
            numbers = counts(store.counters[place], size, len(self._tiers))
            for tier, pages in enumerate(numbers.reused_from[1:], 1):
                _add(whole.loaded, self._tiers[tier], pages * size)
            _add(whole.loaded, self._tiers[-1], numbers.prefetched * size)
            whole.evicted_by[NOBODY] = whole.evicted + numbers.dropped * size
        return whole


class _Guard:
    """What goes wrong inside harms no call of the cache: it is noted, and the bill says so."""

    __slots__ = ("_bills", "_what")

    def __init__(self, bills: Bills, what: str) -> None:
        self._bills, self._what = bills, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, wrong: BaseException | None, trace: object) -> bool:
        if wrong is None or not isinstance(wrong, Exception):
            return False
        if not self._bills.error:
            self._bills.error = f"{self._what}: {without_words(wrong)}"
            _log.exception("bills are not whole any more")
        return True


def _held(hit: Hit, place: int) -> tuple[Int32, Int32]:
    """Pages that a hit holds, and their blocks."""
    pages, blocks = hit.pages(place), hit.held(place)
    there = pages >= 0
    return pages[there], blocks[there]


def _add(numbers: dict[str, int], tier: str, number: int) -> None:
    if number:
        numbers[tier] = numbers.get(tier, 0) + number


def _tokens(marks: TokenMarks, computed: int, start: int) -> Line:
    """What a sequence has used that has computed so far, and starts there now."""
    own, shared = marks.reused(start)
    prompt = max(0, min(computed, marks.end) - min(start, marks.start))
    return Line(
        computed=0 if marks.received else prompt,
        received=prompt if marks.received else 0,
        reused_own=own,
        reused_shared=shared,
        answers=max(0, computed - max(marks.end, marks.computed)),
    )
