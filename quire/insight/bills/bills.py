"""Bills: what each tenant used of one cache, kept while it runs, so that the parts add up to the cache's own sums.

    bills = Bills("bills.json")
    cache = quire.Cache(config, watchers=[bills])
    bills.bill().lines

It hears of every sequence and, at the end of each call, which pages have got or lost copies (`take_tenure` of the
store). Owns which account uses which pages; what that comes to is in `line_book`. Knows no prices.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from quire.core.records.errors import BrokenInvariant, StateError, say, without_words
from quire.core.records.request import Int32, Request
from quire.core.state.sequence import Sequence as LiveSequence
from quire.core.state.setup import Setup
from quire.insight.bills.accounts import MOST_ACCOUNTS, Accounts
from quire.insight.bills.bill import Bill
from quire.insight.bills.bill_file import load_bill, lock_bill, save_bill
from quire.insight.bills.holdings import Holdings
from quire.insight.bills.line_book import LineBook, Seat
from quire.insight.bills.saver import Saver
from quire.insight.bills.token_marks import TokenMarks
from quire.insight.bills.token_totals import TokenTotals

if TYPE_CHECKING:
    from quire.core.state.claim import Promise
    from quire.core.store.interface import Hit

_log = logging.getLogger("quire.insight.bills")


class Bills:
    """Of one cache, given to it when it is made: `Cache(config, watchers=[Bills()])`.

    `path`: a file that is read now, written every so many seconds (`every`, 0: not by itself) and on `save`; until
    `close` no other may have it.
    `sessions`: each is billed apart. `clock` counts nanoseconds; `now` is for the dates of a bill.
    """

    def __init__(
        self, path: str | Path | None = None, *, sessions: bool = False, most_accounts: int = MOST_ACCOUNTS,
        every: float = 60.0, clock: Callable[[], int] = time.monotonic_ns,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:  # fmt: skip
        self.path, self.error = None if path is None else Path(path), ""
        self._clock, self._now, self._last = clock, now, 0
        self._accounts, self._most_accounts = Accounts(most_accounts, sessions), most_accounts
        self._let_go = None if self.path is None else weakref.finalize(self, lock_bill(self.path).close)
        self._before = load_bill(self.path) if self.path is not None and self.path.exists() else None
        self._since = self._date()
        self._opened: LineBook | None = None
        self._live: dict[int, tuple[LiveSequence, TokenMarks]] = {}  # by row
        self._ended = TokenTotals()  # of sequences that have ended, and requests of all: lines must add up to it
        self._seats: list[Seat] = []  # of the present call
        self._pools: list[Holdings] = []
        self._given: list[dict[int, int]] = []  # of the present call, by pool: parties of pages made for no row
        self._time: int | None = None  # of the present call
        self._saving = Lock()  # one file at a time
        self._saver = Saver(self.save, every) if self.path is not None and every > 0 else None

    def __repr__(self) -> str:
        return f"Bills({len(self._accounts)} accounts{f', broken: {self.error}' * bool(self.error)})"

    @property
    def stopped(self) -> str:
        """Why they are not kept, or not saved, any more; empty: they are."""
        ended = self._saver is not None and self._saver.stopped
        return f"they are broken: {self.error}" if self.error else "their thread has ended" if ended else ""

    # -- what the cache reports ----------------------------------------------------------------------------------------

    def attach_pages(self, setup: Setup) -> None:
        """The cache is made; its stores note tenure from now on."""
        if self._opened is not None:
            raise StateError(say("these bills", "they are another cache's", "make others for this one"))
        for stream in setup.streams:
            stream.store.note_tenure()
        self._opened = LineBook(setup, self._accounts, self._most_accounts, self._at())
        self._pools, self._given = self._opened.pools, [{} for _ in self._opened.pools]
        self._makers: Int32 = np.zeros(setup.config.max_sequences + 1, np.int32)  # party by row; the last: of none
        self._time = None

    def admitted(self, sequences: Iterable[LiveSequence]) -> None:
        """They have their pages: what they read from colder tiers is theirs, and what they took over."""
        with self._guard("admitted"):
            book = self._book
            for sequence in sequences:
                _, marks = self._live[sequence.row]
                reads = book.setup.groups if sequence.request.encoder is not None else book.setup.own_groups
                for group in reads if len(book.tiers) > 1 else ():
                    for tier, pages in enumerate(sequence.counts(group).reused_from):
                        if tier and pages:
                            book.read_up(marks.account, group, tier, pages)
                for group, page in marks.sources:
                    if self._has(sequence, group, page, marks.start):
                        pool = book.pools[book.setup.pool_of[group]]
                        pool.own(page, marks.account, self._at())
                marks.sources = []

    def ending(self, sequence: LiveSequence, store: bool) -> None:
        """Nothing: `leaving` reports every end."""

    def seating(self, sequence: LiveSequence, claim: Promise) -> None:
        """It is about to get its pages, and is their user from now on."""
        with self._guard("seating"):
            book = self._book
            account = self._makers[sequence.row] = book.account(sequence.request)
            marks = TokenMarks(account, sequence.start, sequence.prompt_end, book.setup.block_size)
            marks.received = claim.purpose == "decode"
            self._live[sequence.row] = sequence, marks
            book.lines[account].requests += 1
            self._ended.requests += 1
            if sequence.start or claim.cross_hit is not None:
                self._use(account, (claim.hit, claim.cross_hit), marks)

    def reading(self, request: Request, hits: tuple[Hit, Hit | None]) -> None:
        """A caller outside reads the pages of a request's hits."""
        with self._guard("reading"):
            self._use(self._book.account(request), hits, None)

    def writing(self, request: Request, pages: Sequence[Int32]) -> None:
        """A caller outside got new pages, by group, to write them."""
        with self._guard("writing"):
            account = self._book.account(request)
            for group, some in enumerate(pages):
                self._given[self._book.setup.pool_of[group]].update(dict.fromkeys(some.tolist(), account))

    def forked(self, source: LiveSequence, forks: Sequence[LiveSequence]) -> None:
        """More sequences go on from where it is; they are billed to whom it is."""
        with self._guard("forked"):
            account = self._live[source.row][1].account
            for fork in forks:
                self._makers[fork.row] = account
                marks = TokenMarks(account, 0, 0, self._book.setup.block_size)
                marks.computed, marks.forked = fork.computed, True
                self._live[fork.row] = fork, marks

    def leaving(self, sequence: LiveSequence) -> None:
        """It is about to give up its row: its tokens are counted permanently."""
        with self._guard("leaving"):
            _, marks = self._live.pop(sequence.row)
            marks.write(self._book.lines[marks.account], sequence)
            marks.count(self._ended, sequence)

    def call_over(self) -> None:
        """A call is over: what it has changed is billed, as of one time."""
        try:
            for number, pool in enumerate(self._pools):
                told = pool.take()
                if len(told):
                    given = self._given[number]
                    self._book.charge(number, pool.change(told, self._at(), self._makers, given), self._seats)
                    given.clear()
        except Exception as wrong:
            self._note_fault("a call", wrong)
        if self._seats:
            self._seats.clear()
        self._time = None

    # -- parts of it -------------------------------------------------------------------------------------------------

    @property
    def _book(self) -> LineBook:
        assert self._opened is not None
        return self._opened

    def _note_fault(self, what: str, wrong: Exception) -> None:
        """Inside an `except`: it harms no call of the cache, and the bill says so."""
        if not self.error:
            self.error = f"{what}: {without_words(wrong)}"
            _log.exception("bills are not whole any more")

    def _guard(self, what: str) -> _Guard:
        return _Guard(self, what)

    def _at(self) -> int:
        """The time of the present call; a clock that goes back stands still."""
        if self._time is None:
            self._time = self._last = max(self._last, int(self._clock()))
            if self._opened is not None:
                self._opened.pass_time(self._time)
        return self._time

    def _date(self) -> str:
        return self._now().isoformat(timespec="seconds")

    def _use(self, account: int, hits: tuple[Hit, Hit | None], marks: TokenMarks | None) -> None:
        """An account uses the pages of these hits; `marks` learn whose they were."""
        setup = self._book.setup
        for stream, hit in zip(setup.streams, hits, strict=False):
            if hit is None:
                continue
            for place in range(len(stream.store.pages)):
                group = stream.first + place
                own_marks = marks if group in setup.own_groups else None
                pages, blocks = hit.pages(place), hit.held(place)
                there = pages >= 0
                if there.any():
                    mine = self._join(account, group, pages[there])
                    if own_marks is not None:
                        own_marks.note_blocks(blocks[there], mine)
                for page in hit.sources()[place : place + 1]:
                    mine = self._join(account, group, np.array([page], np.int32))
                    if own_marks is not None:
                        own_marks.note_rest(bool(mine[0]))
                        own_marks.sources.append((group, page))

    def _join(self, account: int, group: int, pages: Int32) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        number = self._book.setup.pool_of[group]
        self._seats.append((account, number, pages))
        return self._book.pools[number].join(pages, account, self._at())

    def _has(self, sequence: LiveSequence, group: int, page: int, start: int) -> bool:
        """Whether a sequence has taken over the page that it was to start in."""
        setup = self._book.setup
        store, place = setup.pools[group]
        row, column = store.pages[place][sequence.row], start // setup.block_size
        return page in (int(store.currents[place][sequence.row]), int(row[column]) if column < len(row) else -1)

    # -- what it says ------------------------------------------------------------------------------------------------

    def count_late(self, request: Request) -> None:
        """An answer's first token came after its deadline."""
        with self._book.setup.lock, self._guard("count_late"):
            self._book.lines[self._book.account(request)].late += 1
            self._ended.late += 1

    def bill(self) -> Bill:
        """What was used so far, by this process and by those before it that had the file."""
        if self._opened is None:
            raise StateError(say("a bill", "these bills are no cache's", "pass them to Cache(watchers=[...])"))
        with self._book.setup.lock:
            if not self.error:
                self._book.settle(self._at())
            bill = Bill(self._book.tiers, self._since, self._date(), note=self.error)
            self._book.write(bill)
            for sequence, marks in self._live.values():
                marks.write(bill.line(self._accounts.who[marks.account]), sequence)
        if self._before is not None:
            bill.add(self._before)
        return bill

    def save(self) -> Path:
        """Write the bill to its file, which is there whole or as it was before."""
        if self.path is None or self._let_go is None:
            raise StateError(say("saving a bill", "it has no file", "pass Bills(path), or use save_bill"))
        with self._saving:
            if not self._let_go.alive:
                raise StateError(say("saving a bill", "these bills are closed", "use save_bill, with another file"))
            return save_bill(self.bill(), self.path)

    def close(self) -> None:
        """Write the file for the last time; another may have it then. Again: nothing."""
        if self._saver is not None:
            self._saver.close()
        if self._let_go is None or not self._let_go.alive:
            return
        try:
            if self._opened is not None:
                self.save()
        finally:
            self._let_go()

    def check_sums(self, copies: Sequence[Sequence[int]], live: Iterable[LiveSequence]) -> None:
        """All parts add up to what the cache itself counts."""
        if self.error:
            raise BrokenInvariant(f"bills are broken: {self.error}")
        here = {row: sequence for row, (sequence, _) in self._live.items()}
        if here != {sequence.row: sequence for sequence in live}:
            raise BrokenInvariant(f"sequences in rows {sorted(here)} are billed, and others live")
        self._book.settle(self._at())
        self._book.check([list(some) for some in copies], self._ended)


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
        self._bills._note_fault(self._what, wrong)
        return True
