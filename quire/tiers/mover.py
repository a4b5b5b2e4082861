"""Mover: runs plans on a thread of its own. Owns the order of plans, the poison that failed moves leave behind and the
count of bytes. Decides nothing: the plan says which page goes where. The tiers are the caller's, to close after it.

    submit(plan) -> Ticket ... ticket.wait() -> failed moves ... cache.finish(plan, failed) ... settle(plan.number)

Plans mean their moves one after the other, in the order they were submitted. A caller who waits for some moves only may
`hurry` them: they overtake those that they do not depend on (move_queue.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread

import numpy as np

from quire.core.records.errors import InputError, StateError, say
from quire.core.records.plan import Moves, Plan
from quire.tiers.base import PageLayout, Tier
from quire.tiers.copy_or_exchange import End, Failures, carry, carry_both
from quire.tiers.move_batch import Ground, MoveBatch
from quire.tiers.move_queue import MoveQueue, Ticket
from quire.tiers.process import check_process

STAGING_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class MoverStats:
    """Work done so far. Bytes are by (from tier, to tier); an exchange counts both ways, a failed move not at all."""

    num_plans: int
    num_moves: int
    num_failed: int
    num_batches: int
    bytes_moved: dict[tuple[int, int], int]


class Mover:
    """Runs plans over tiers; the position of a tier in `tiers` is its number, that of a layout its group.

    Which groups have the same slots, and so wait for each other, the tiers say (`TierInfo.pool_of`).

    A move that fails poisons its target (an exchange: both slots), and a move that reads a poisoned slot fails as well,
    in this plan or a later one, until a move fills the slot or the caller settles the plan that spoilt it.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        layouts: Sequence[PageLayout],
        block_size: int,
        *,
        staging_bytes: int = STAGING_BYTES,
    ) -> None:
        self._ground = Ground([tier.info() for tier in tiers], layouts, block_size)
        self._ends = [End.from_tier(tier) for tier in tiers]
        page_bytes = max((layout.page_bytes for layout in layouts), default=1)
        self._staging = np.empty(max(staging_bytes, 2 * page_bytes), np.uint8)  # an exchange needs room for both pages
        self._poison: dict[int, int] = {}  # place -> the plan that spoilt it; the thread's own, as the counts below
        self._bytes = np.zeros((len(tiers), len(tiers)), np.int64)
        self._plans = self._moves = self._failures = self._batches = 0
        self.failure: Exception | None = None  # a fault of its own: what was moved is not known any more
        self._queue, self._unfinished = MoveQueue(), dict[int, Ticket]()  # the thread's own
        self._closing = False  # what is queued is the last
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._door = Lock()  # guards the two below and the order of jobs
        self._closed = False
        self._newest = -1
        self._pid = os.getpid()
        self._thread = Thread(target=self._work, name="quire-mover", daemon=True)
        self._thread.start()

    def submit(self, plan: Plan) -> Ticket:
        """Queue the plan behind those before it. Requires: plans come in the order the cache made them."""
        moves = self._ground.check(plan)
        ticket = Ticket(plan.number, len(moves))
        with self._door:
            self._check_open(f"plan {plan.number}")
            if plan.number <= self._newest:
                fact = f"plan {self._newest} was submitted before it"
                raise InputError(say(f"plan {plan.number}", fact, "submit each plan once, in the order they were made"))
            self._newest = plan.number
            self._jobs.put(partial(self._enter, ticket, moves))
        return ticket

    def run(self, plan: Plan) -> list[int]:
        """Submit and wait; returns the failed moves."""
        return self.submit(plan).wait()

    def reasons(self, plan: Plan) -> Failures:
        """As `run`, with why each failed."""
        return self.submit(plan).reasons()

    def hurry(self, ticket: Ticket, moves: Iterable[int]) -> None:
        """Carry these moves of a plan next, and what they depend on; nothing else that is submitted depends on it."""
        if not ticket.are_over(places := list(moves)):
            self._jobs.put(partial(self._queue.hurry, ticket, places))

    def settle(self, number: int) -> None:
        """Take back the poison of one plan, for plans submitted from now on.

        Requires: the cache has finished that plan with what failed in it, and every plan made before that is submitted.
        A later plan that reads a spoilt slot then means new content, such as what was computed straight into it.
        """
        with self._door:
            self._check_open(f"settling plan {number}")
            if number > self._newest:
                fact = f"the newest one submitted is {self._newest}"
                raise InputError(say(f"settling plan {number}", fact, "settle a plan after it has run"))
            self._jobs.put(partial(self._queue.bar, number))

    def stats(self) -> MoverStats:
        """The counts so far; exact for plans whose ticket is done."""
        pairs = zip(*(axis.tolist() for axis in np.nonzero(self._bytes)), strict=True)
        moved = {(src, dst): int(self._bytes[src, dst]) for src, dst in pairs}
        return MoverStats(self._plans, self._moves, self._failures, self._batches, moved)

    @property
    def stopped(self) -> bool:
        """Whether its thread has ended though it is open: it should not, whatever it meets."""
        return not self._closed and not self._thread.is_alive()

    def close(self) -> None:
        """Finish what was submitted, then end the thread; closing again does nothing. The tiers stay open."""
        with self._door:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
        self._thread.join()

    def __enter__(self) -> Mover:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self, ask: str) -> None:
        check_process(self._pid, ask)
        if self._closed:
            raise StateError(say(ask, "the mover is closed", "make a new one"))

    def _work(self) -> None:
        while True:
            try:
                if not self._listen():
                    return
                self._run_next()
            except Exception as error:
                self._break(error)

    def _listen(self) -> bool:
        """Take what callers have asked for, and wait for that when there is nothing to move; False: it is closed."""
        while not self._closing and not (len(self._queue) and self._jobs.empty()):
            job = self._jobs.get()
            if job is None:
                self._closing = True
            else:
                job()
        return len(self._queue) > 0

    def _enter(self, ticket: Ticket, moves: Moves) -> None:
        self._unfinished[ticket.number] = ticket
        try:
            batches = self._ground.batches(moves) if self.failure is None else []
        except Exception as error:
            self._break(error)
        if self.failure is not None:
            ticket.finish(self.failure)
        elif batches:
            self._queue.add(ticket, batches)
        else:
            self._note(ticket, [], {})

    def _break(self, error: Exception) -> None:
        """A fault of the mover's own fails every plan that is not done, and all after it, for every waiter."""
        self.failure = error
        self._queue.clear()
        for ticket in self._unfinished.values():
            ticket.finish(error)
        self._unfinished.clear()

    def _run_next(self) -> None:
        """The next batch, or the next two at once; or the poison of a plan is taken back."""
        if not self._poison and (pair := self._queue.pair()) is not None:
            (ticket, down), (_, up) = pair
            both = self._run_both(down, up, ticket.number)
            if both is not None:
                self._queue.drop_pair()
                return self._note(ticket, [*down.moves, *up.moves], both)
        part = self._queue.take()
        if isinstance(part, int):
            self._poison = {place: plan for place, plan in self._poison.items() if plan != part}
        else:
            self._note(part.ticket, part.batch.moves, self._run_batch(part.batch, part.ticket.number))

    def _note(self, ticket: Ticket, moves: list[int], failed: Failures) -> None:
        """These moves of a plan are over."""
        self._moves += len(moves)
        self._failures += len(failed)
        ticket.end(moves, failed)
        if not ticket.num_left:
            del self._unfinished[ticket.number]
            self._plans += 1
            ticket.finish()

    def _run_batch(self, batch: MoveBatch, number: int) -> Failures:
        """Carry what reads no poison; poison what failed, clear what was filled. Failures by index in the plan."""
        failed = self._spoilt(batch) if self._poison else {}
        left = _without(batch, failed) if failed else batch
        if left.moves:
            failed |= self._carry(left)
            self._batches += 1
        if failed or self._poison:
            self._mark(batch, failed, number)
        self._count(batch, len(batch.moves) - len(failed))
        return failed

    def _run_both(self, down: MoveBatch, up: MoveBatch, number: int) -> Failures | None:
        """Two batches at once, as `_run_batch`; None: the tiers cannot. Requires: nothing is spoilt."""
        failed: Failures = {}
        try:
            if not carry_both(self._ends[down.src_tier], self._ends[down.dst_tier], down, up):
                return None
        except Exception as error:  # none of it is to be trusted
            failed = dict.fromkeys([*down.moves, *up.moves], f"{type(error).__name__}: {error}")
        self._batches += 1
        for batch in (down, up):
            if failed:
                self._mark(batch, failed, number)
            else:
                self._count(batch, len(batch.moves))
        return failed

    def _count(self, batch: MoveBatch, num_moves: int) -> None:
        moved = num_moves * batch.cut[0] * batch.cut[1]
        self._bytes[batch.src_tier, batch.dst_tier] += moved
        if batch.exchange:
            self._bytes[batch.dst_tier, batch.src_tier] += moved

    def _carry(self, batch: MoveBatch) -> Failures:
        src, dst = self._ends[batch.src_tier], self._ends[batch.dst_tier]
        try:
            wrong = carry(src, dst, batch, self._staging)
        except Exception as error:  # a tier with a bug: none of this batch is to be trusted, and other moves go on
            return dict.fromkeys(batch.moves, f"{type(error).__name__}: {error}")
        return {batch.moves[position]: reason for position, reason in wrong.items()}

    def _spoilt(self, batch: MoveBatch) -> Failures:
        failed: Failures = {}
        for index, *places in zip(batch.moves, batch.sources, batch.targets, strict=True):
            for place in places if batch.exchange else places[:1]:
                if place in self._poison:
                    failed[index] = f"{self._ground.name(place)}: plan {self._poison[place]} could not fill it"
        return failed

    def _mark(self, batch: MoveBatch, failed: Failures, number: int) -> None:
        for index, source, target in zip(batch.moves, batch.sources, batch.targets, strict=True):
            for place in (source, target) if batch.exchange else (target,):
                if index in failed:
                    self._poison[place] = number
                else:
                    self._poison.pop(place, None)


def _without(batch: MoveBatch, failed: Failures) -> MoveBatch:
    """The batch less the moves that failed already."""
    kept = [nth for nth, index in enumerate(batch.moves) if index not in failed]
    lists = (batch.moves, batch.src_slots, batch.dst_slots, batch.sources, batch.targets)
    fields = [[column[nth] for nth in kept] for column in lists]
    return MoveBatch(batch.group, batch.src_tier, batch.dst_tier, batch.exchange, batch.cut, *fields)
