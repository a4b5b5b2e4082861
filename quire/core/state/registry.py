"""Registry: what one cache keeps between two calls: sequences, open claims and finds, holds, plans. Decides nothing."""

from __future__ import annotations

from collections.abc import Hashable
from weakref import KeyedRef, ref

import numpy as np

from quire.core.records.plan import NO_MOVES, MoveColumn, Moves, Plan
from quire.core.state.claims import Claims, OpenClaims
from quire.core.state.handle import Handles, Lost
from quire.core.state.held_hit import HeldHit
from quire.core.state.hold import Hold
from quire.core.state.learner import Learner
from quire.core.state.prefetching import Prefetching
from quire.core.state.sequence import Sequence, running_of
from quire.core.state.setup import Setup
from quire.core.state.writing import Writing


class Registry:
    """Everything of one cache that is alive; the functions of admission and life act on it under the cache's lock."""

    __slots__ = (
        "abandoned", "background", "callers_plans", "commit_checked", "free_rows", "holds", "learners", "lost_finds",
        "lost_plans", "lost_prefetches", "lost_writers", "next_plan", "open_claims", "open_finds", "open_prefetches",
        "open_writers", "plans", "sequences", "setup", "timed",
    )  # fmt: skip

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.sequences: dict[Hashable, Sequence] = {}
        self.free_rows = list(range(setup.config.max_sequences - 1, -1, -1))
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
        self.callers_plans: dict[int, KeyedRef[int, Plan]] = {}
        self.lost_plans: list[KeyedRef[int, Plan]] = []  # appended to in any thread, at any time
        self.background: dict[int, Plan] = {}  # those that no step waits for
        self.next_plan = 0
        adaptive = setup.config.order == "adaptive"
        self.learners = tuple((*setup.pools[some[0]], Learner()) for some in setup.sharers) if adaptive else ()
        # the stores must know the time: some page may have a duration, all grow older, or are remembered when they go
        self.timed = adaptive or setup.config.receipts
        self.commit_checked: dict[int, Sequence] = {}  # by row: whose commits are checked against what was handed out

    def check_commits(self, sequence: Sequence) -> None:
        """Check its commits while a transfer is to bring its prompt, or while steps of it are still to come."""
        running = running_of(sequence)
        open_end = running.received or (self.setup.bounded and running.granted < sequence.prompt_end)
        if open_end and sequence.computed < sequence.prompt_end:
            self.commit_checked[sequence.row] = sequence
        else:
            self.commit_checked.pop(sequence.row, None)

    def sequence_in(self, row: int) -> Hashable:
        """The id of the live sequence in a row; the latest are asked first."""
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
        self.plans[number], self.callers_plans[number] = plan.copy(), KeyedRef(plan, self.lost_plans.append, number)
        return plan

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


def _take_moves(setup: Setup) -> Moves:
    """In the numbering of the cache's groups; streams share no slot, so their order does not matter."""
    if setup.cross is None:
        return setup.store.take_moves()
    across = setup.cross.store.take_moves()
    across[:, MoveColumn.GROUP] += setup.cross.first
    return np.concatenate([setup.store.take_moves(), across])
