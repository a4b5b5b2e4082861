"""Registry: what one cache keeps between two calls: sequences, open claims and finds, holds, plans, steps in flight;
and who hears whose pages are used.

Decides nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from quire.core.content.content_index import ContentIndex
from quire.core.records.errors import StateError, say, shown
from quire.core.records.plan import NO_MOVES, MoveColumn, Moves, Plan
from quire.core.records.request import Int32, Request
from quire.core.state.claim import Promise
from quire.core.state.claims import Claims, OpenClaims
from quire.core.state.handle import Handles, Lost
from quire.core.state.held_hit import HeldHit
from quire.core.state.hold import Hold
from quire.core.state.learner import Learner
from quire.core.state.prefetching import Prefetching
from quire.core.state.prepared import Waiting
from quire.core.state.sequence import Sequence, running_of
from quire.core.state.setup import Setup
from quire.core.state.writing import Writing

if TYPE_CHECKING:
    from quire.core.store.interface import Hit

SessionKey = tuple[bytes, str]  # a scope and a name in it: no scope reaches another's
MOST_SESSIONS = 4096  # that are remembered


@runtime_checkable
class PageWatcher(Protocol):
    """What hears of pages; called under the cache's lock: it calls no cache, waits for nothing, never raises."""

    def attach_pages(self, setup: Setup) -> None:
        """The cache is made, and has no page yet; its stores note tenure from now on."""

    def admitted(self, sequences: Iterable[Sequence]) -> None:
        """They have their pages."""

    def ending(self, sequence: Sequence, store: bool) -> None:
        """It is about to be released."""

    def seating(self, sequence: Sequence, claim: Promise) -> None:
        """It is about to get the pages that were claimed for it."""

    def reading(self, request: Request, hits: tuple[Hit, Hit | None]) -> None:
        """A caller outside holds the pages of a request's hits to read them."""

    def writing(self, request: Request, pages: Collection[Int32]) -> None:
        """A caller outside got these new pages, by group of its own tokens, to write them."""

    def forked(self, source: Sequence, forks: Collection[Sequence]) -> None:
        """More sequences go on from where it is."""

    def leaving(self, sequence: Sequence) -> None:
        """It is about to give up its row: released, suspended or lost."""

    def call_over(self) -> None:
        """The lock is about to be given back."""

    def check_sums(self, copies: Collection[Collection[int]], live: Collection[Sequence]) -> None:
        """Raise BrokenInvariant where its own numbers do not add up to the stores'; `copies` by pool and tier."""


class PlanRef(ref[Plan]):
    """A caller's plan, weakly; its number is still known when it is lost. Made without a call of Python's."""

    __slots__ = ("number",)
    number: int


class LaunchedStep:
    """A step in flight, until `commit` or `fail`: it computes tokens [starts, ends) of these rows of block tables."""

    __slots__ = ("ends", "number", "rows", "starts")

    def __init__(self, number: int, rows: Int32, starts: Int32, ends: Int32) -> None:
        self.number = number
        self.rows = rows
        self.starts = starts
        self.ends = ends
        for array in (rows, starts, ends):
            array.flags.writeable = False

    def __repr__(self) -> str:
        return f"LaunchedStep({self.number}, {len(self.rows)} sequences, {int((self.ends - self.starts).sum())} tokens)"


class Ending(NamedTuple):
    """A release that takes effect when no step in flight has the row any more."""

    sequence: Sequence
    store: bool
    back: int


class Ride(NamedTuple):
    """What a step in flight computes of a row as a part of another row, whose pages it shares."""

    row: int
    owner: int  # the other row; it may ride itself
    start: int
    end: int


class LaunchedSteps:
    """The steps of one cache that are in flight, oldest first.

        launch ─► step 1 ─► step 2 ─► step 3        the device runs them in this order
        commit  ◄─ the oldest first                 fail ◄─ any of them, and all behind it

    A row number stays its sequence's until the last step that has the row is closed, released or not. Steps have the
    rows that they compute, and those that share pages of them (`rides`). What a row shares with one of its own batch
    is `coming`, until that one is launched.
    """

    __slots__ = ("_block_size", "busy", "coming", "ending", "last", "next_number", "rides", "since", "steps")

    def __init__(self, rows: int, block_size: int) -> None:
        self._block_size = block_size
        self.steps: list[LaunchedStep] = []
        self.busy = False  # steps are in flight, or rides are coming
        self.next_number = 0
        self.last: NDArray[np.int64] = np.full(rows, -1, np.int64)  # by row: the last step that has it
        self.since: NDArray[np.int64] = np.zeros(rows, np.int64)  # by row: what steps before this one compute is void
        self.ending: dict[int, Ending] = {}  # by row
        self.rides: dict[int, list[Ride]] = {}  # by step
        self.coming: list[Ride] = []  # of steps that are not launched yet

    def has(self, row: int) -> bool:
        """Whether a step in flight computes a row, void or not."""
        return bool(self.steps) and int(self.last[row]) >= self.steps[0].number

    def have(self, rows: Int32) -> NDArray[np.bool_]:
        """The same of several rows."""
        first = self.steps[0].number if self.steps else self.next_number
        found: NDArray[np.bool_] = self.last[rows] >= first
        return found

    def add(self, rows: Int32, starts: Int32, ends: Int32) -> LaunchedStep:
        """One more step."""
        step = LaunchedStep(self.next_number, rows, starts, ends)
        self.next_number += 1
        self.last[rows] = step.number
        self.steps.append(step)
        self.busy = True
        if self.coming:
            self.coming = [left for ride in self.coming if (left := self._board(ride, [step])) is not None]
        return step

    def valid(self, step: LaunchedStep) -> NDArray[np.bool_]:
        """Of the rows of a step: which have kept the pages that it reads."""
        found: NDArray[np.bool_] = self.since[step.rows] <= step.number
        return found

    def void(self, row: int) -> None:
        """A page of the row is lost: what steps in flight compute of it counts nothing."""
        self.since[row] = self.next_number

    def cut(self, place: int, stranded: Iterable[int]) -> list[LaunchedStep]:
        """The steps from `place` on have failed: they are gone, and their rows are in those before them at most, as are
        the `stranded`, who share nothing any more that is yet to be launched."""
        failed = self.steps[place:]
        del self.steps[place:]
        self.coming = [ride for ride in self.coming if ride.row not in stranded]
        self.last[list(stranded)] = -1
        for step in failed:
            self.last[step.rows] = -1
        for step in self.steps:
            self.last[step.rows] = step.number
        self._note_rides()
        self.busy = bool(self.steps or self.coming)
        return failed

    # Rows that share what steps in flight compute

    def ride(self, row: int, owner: int, span: tuple[int, int]) -> None:
        """A new row has tokens [start, end) in common with one in flight, or with one that was admitted before it:
        they are computed as the steps go, and as that one's goes."""
        self.since[row] = 0  # of a sequence that had the row before
        left = self._board(Ride(row, owner, *span), self.steps)
        if left is not None:
            self.coming.append(left)
            self.busy = True

    def _board(self, ride: Ride, steps: list[LaunchedStep]) -> Ride | None:
        """A ride is one of these steps as far as they compute it; what is left of it."""
        row, owner, start, stop = ride
        for step in steps if start < stop else ():
            end = min(self._end_in(step, owner) // self._block_size * self._block_size, stop)
            if end > start:
                self.rides.setdefault(step.number, []).append(Ride(row, owner, start, end))
                self.last[row] = max(int(self.last[row]), step.number)
                start = end
        return Ride(row, owner, start, stop) if start < stop else None

    def waits(self, row: int) -> bool:
        """Whether a row shares with one of its batch what is yet to be launched, or is that one."""
        return any(row in ride[:2] for ride in self.coming)

    def _end_in(self, step: LaunchedStep, row: int) -> int:
        """How far a step computes a row, 0: it does not, or what it computes is void."""
        if int(self.since[row]) > step.number:
            return 0
        ends: list[int] = step.ends[step.rows == row].tolist()
        return max([*ends, *(ride.end for ride in self.rides.get(step.number, ()) if ride.row == row)], default=0)

    def landing(self, step: LaunchedStep) -> list[Ride]:
        """Rides that end with a step, of rows that have kept their pages."""
        return [ride for ride in self.rides.get(step.number, ()) if int(self.since[ride.row]) <= step.number]

    def close(self) -> Int32:
        """The oldest step is committed; the rows that it had."""
        step = self.steps.pop(0)
        self.busy = bool(self.steps or self.coming)
        rides = self.rides.pop(step.number, None)
        return step.rows if rides is None else np.append(step.rows, [ride.row for ride in rides]).astype(np.int32)

    def riders(self, owners: set[int]) -> set[int]:
        """Rows that share what is computed for these, or for such rows, and so on."""
        return _resting_on(owners, [*(ride for some in self.rides.values() for ride in some), *self.coming])

    def stranded(self, place: int) -> set[int]:
        """Rows that share what the steps from `place` on compute; and those that share what such rows were to compute
        next, and so on."""
        here = {ride.row for step in self.steps[place:] for ride in self.rides.get(step.number, ())}
        return here | _resting_on(here, self.coming)

    def shared_ends(self) -> dict[int, int]:
        """How far rows share what is being computed, those that do."""
        ends: dict[int, int] = {}
        for ride in (ride for some in (*self.rides.values(), self.coming) for ride in some):
            ends[ride.row] = max(ride.end, ends.get(ride.row, 0))
        return ends

    def get_off(self, rows: set[int]) -> None:
        """These rows share nothing any more that is being computed; those that have ended stay in their steps."""
        self.coming = [ride for ride in self.coming if ride.row not in rows]
        self.busy = bool(self.steps or self.coming)
        live = self.shared_ends().keys() & rows - self.ending.keys()
        self.rides = {number: [ride for ride in some if ride.row not in live] for number, some in self.rides.items()}
        for row in live:
            self.last[row] = max([step.number for step in self.steps if row in step.rows], default=-1)
        self._note_rides()

    def _note_rides(self) -> None:
        """What is left of the rides: those of steps that are in flight; each keeps its row."""
        there = {step.number for step in self.steps}
        self.rides = {number: some for number, some in self.rides.items() if number in there and some}
        for number, some in self.rides.items():
            for ride in some:
                self.last[ride.row] = max(int(self.last[ride.row]), number)


class Registry:
    """Everything of one cache that is alive; the functions of admission and life act on it under the cache's lock."""

    __slots__ = (
        "abandoned", "background", "callers_plans", "commit_checked", "content", "free_rows", "holds", "in_flight",
        "learners", "lost_finds", "lost_plans", "lost_prefetches", "lost_writers", "next_plan", "on_broken",
        "open_claims", "open_finds", "open_prefetches", "open_writers", "page_watcher", "plans", "sequences",
        "sessions", "setup", "timed", "waiting",
    )  # fmt: skip

    def __init__(self, setup: Setup, page_watcher: PageWatcher | None = None) -> None:
        self.setup = setup
        self.page_watcher = page_watcher
        self.on_broken: Callable[[str, BaseException], object] | None = None  # if `check` fails
        self.sequences: dict[Hashable, Sequence] = {}
        self.sessions: OrderedDict[SessionKey, object] = OrderedDict()  # where the last of each ended; the oldest first
        self.free_rows = list(range(setup.config.max_sequences - 1, -1, -1))
        chunks = setup.config.receipt_chunks
        self.content = ContentIndex(chunks) if chunks else None  # of what was admitted, for receipts
        self.waiting = Waiting()  # requests that were refused, ready for their next claim
        self.open_claims: OpenClaims = {}  # by their handles, in the order they were made
        self.abandoned: list[ref[Claims]] = []  # handles that were lost: appended to in any thread, at any time
        self.holds: dict[Hold, None] = {}
        self.open_finds: Handles[HeldHit] = {}
        self.lost_finds: Lost[HeldHit] = []  # appended to in any thread, at any time
        self.open_writers: Handles[Writing] = {}
        self.lost_writers: Lost[Writing] = []
        self.open_prefetches: Handles[Prefetching] = {}
        self.lost_prefetches: Lost[Prefetching] = []
        self.plans: dict[int, Plan] = {}  # of steps: copies, so that a plan which its caller loses is noted
        self.callers_plans: dict[int, PlanRef] = {}
        self.lost_plans: list[PlanRef] = []  # appended to in any thread, at any time
        self.background: dict[int, Plan] = {}  # those that no step waits for
        self.next_plan = 0
        self.in_flight = LaunchedSteps(setup.config.max_sequences, setup.block_size)
        adaptive = setup.config.order == "adaptive"
        self.learners = tuple((*setup.pools[some[0]], Learner()) for some in setup.sharers) if adaptive else ()
        # the stores must know the time: some page may have a duration, all grow older, or are remembered when they go
        self.timed = adaptive or setup.config.receipts
        self.commit_checked: dict[int, Sequence] = {}  # by row: whose commits are checked against what was handed out

    def end_session(self, key: SessionKey, end: object) -> None:
        """The last sequence of a session has ended there (None: it has left nothing). The longest idle is forgotten."""
        self.sessions.pop(key, None)
        if end is not None:
            self.sessions[key] = end
            if len(self.sessions) > MOST_SESSIONS:
                self.sessions.popitem(last=False)

    def check_commits(self, sequence: Sequence) -> None:
        """Check its commits while a transfer is to bring its prompt, or while steps of it are still to come."""
        running = running_of(sequence)
        open_end = running.received or (self.setup.bounded and running.granted < sequence.prompt_end)
        if open_end and sequence.computed < sequence.prompt_end:
            self.commit_checked[sequence.row] = sequence
        else:
            self.commit_checked.pop(sequence.row, None)

    def sequence_in(self, row: int) -> Hashable:
        """The id of the sequence in a row; the latest are asked first."""
        if row in self.in_flight.ending:
            return self.in_flight.ending[row].sequence.id
        return next(name for name, sequence in reversed(self.sequences.items()) if sequence.row == row)

    def take_plan(self) -> Plan:
        """Everything the stores decided to move since the last plan; one without moves needs no finishing."""
        setup, number = self.setup, self.next_plan
        self.next_plan = number + 1
        if not setup.store.num_moves and (setup.cross is None or not setup.cross.store.num_moves):
            return Plan(number, NO_MOVES)
        moves = _take_moves(setup)
        moves.flags.writeable = False
        if not self.plans:
            self._trust(False)
        plan = Plan(number, moves, pool_of=setup.pool_of)
        self.plans[number] = plan.copy()
        self.watch_plan(plan)
        return plan

    def watch_plan(self, plan: Plan) -> None:
        """From now on the loss of this plan of a step is noted."""
        self.callers_plans[plan.number] = watched = PlanRef(plan, self.lost_plans.append)
        watched.number = plan.number

    def open_plans(self) -> list[Plan]:
        """Plans of steps, as their callers have them; one that was lost is a copy."""
        return [self.callers_plans[number]() or plan for number, plan in self.plans.items()]

    def take_background(self, moves: Moves) -> Plan:
        """A plan of moves that the stores have begun beside those of steps."""
        number = self.next_plan
        self.next_plan = number + 1
        after = max((plan.number for plan in self.plans.values() if plan.collides(moves)), default=-1)
        moves.flags.writeable = False
        plan = Plan(number, moves, background=True, after=after, pool_of=self.setup.pool_of)
        if len(plan):
            self.background[number] = plan
        return plan

    def close_plan(self, number: int) -> None:
        """A plan is finished; when none is under way the stores may trust every copy again."""
        self.plans.pop(number, None)
        self.callers_plans.pop(number, None)
        self.background.pop(number, None)
        if not self.plans:
            self._trust(True)

    def _trust(self, copies: bool) -> None:
        self.setup.store.inherit = copies
        if self.setup.cross is not None:
            self.setup.cross.store.inherit = copies


def _resting_on(owners: set[int], rides: list[Ride]) -> set[int]:
    """Rows of rides with these owners, or with such rows, and so on."""
    found, more = set[int](), owners
    while more:
        more = {ride.row for ride in rides if ride.owner in more} - found
        found |= more
    return found


def check_boarded(flight: LaunchedSteps, verb: str, sequence: Sequence) -> None:
    """It shares nothing with its batch that is yet to be launched."""
    if flight.coming and flight.waits(sequence.row):
        fact = "it shares pages with its batch that are yet to be computed"
        raise StateError(say(f"{verb} of sequence {shown(sequence.id)}", fact, "launch what was handed out first"))


def _take_moves(setup: Setup) -> Moves:
    """In the numbering of the cache's groups; streams share no slot, so their order does not matter."""
    if setup.cross is None:
        return setup.store.take_moves()
    across = setup.cross.store.take_moves()
    across[:, MoveColumn.GROUP] += setup.cross.first
    return np.concatenate([setup.store.take_moves(), across])
