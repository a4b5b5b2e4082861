"""Scheduler: who computes what in the next step. Token and slot budgets come from the claims, so they hold.

    decoding branches: a token each, and drafts     grow, or preempt who gives way first until there is room
    prompts under way, waiting branches             incoming.py: by rounds of their tenants, and as many sequences for
                                                    each as for the others (fairness/tenant_rounds, tenant_seats)

Where branches are, and the moves between: queues.py. No request starves: docs/engine.md has the proof. Knows no model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from quire.core.cache import Cache
from quire.core.records.plan import Plan
from quire.core.records.request import Int32
from quire.core.records.span import Span
from quire.core.sequences.setbacks import Setback
from quire.engine.setup.engine_config import EngineConfig
from quire.engine.step.draft import lookup
from quire.engine.step.fairness.tenant_rounds import Rounds
from quire.engine.step.fairness.tenant_seats import first_to_give_way, giver, seats_of
from quire.engine.step.incoming import Incoming
from quire.engine.step.plan_runner import PlanRunner
from quire.engine.step.queues import Queues
from quire.engine.step.runs.branch import NO_DRAFTS, Branch, Run
from quire.engine.step.runs.step_work import Turn, Work
from quire.engine.step.runs.tenant import Tenant, TokenKey


class Scheduler:
    """The choice among all branches. `waiting`, `prompts`, `ready`, `unread` and `held` are those of its queues."""

    def __init__(self, cache: Cache, config: EngineConfig, plans: PlanRunner) -> None:
        self._cache, self._config, self._plans = cache, config, plans
        self.rounds = Rounds(config.max_num_tokens, dict(config.granted), fair=config.scheduling == "fair")
        self.queues = Queues(cache, self.rounds)
        self.waiting, self.prompts = self.queues.waiting, self.queues.prompts
        self.ready, self.unread, self.held = self.queues.ready, self.queues.unread, self.queues.held
        self.num_drafts = 0
        self.give_up_hold: Callable[[], bool] = _no_hold  # pages held for one that waits go before those of a branch
        self._incoming = Incoming(cache, config, self.queues, self.rounds, plans)
        self._lacking: list[Branch] = []  # whose prompts could have computed more in the last step

    @property
    def num_preemptions(self) -> int:
        """Branches that lost their pages to others."""
        return self.queues.num_preemptions

    @property
    def num_waits(self) -> int:
        """Steps that a branch waited for a prefix."""
        return self._incoming.num_waits

    def next_turn(self, *, in_flight: bool = False) -> Turn:
        """Decide the next step. Plans are under way from the moment they are made. `in_flight`: not all before it
        were read; then no branch loses pages, which would come back too late."""
        turn = Turn(in_flight=in_flight)
        if self.prompts or self.waiting:
            self.rounds.catch_up(self.prompts)
        self._decode(turn)
        left = self._config.max_num_tokens - turn.num_tokens
        if (self.prompts or self.waiting) and not turn.must_read:
            if left > 0:
                self._lacking = self._incoming.admit(turn, left)
            else:
                self._lacking = [*self.prompts, *self._incoming.candidates(turn, 1)]
        return turn

    # -- decoding ----------------------------------------------------------------------------------------------------

    def _decode(self, turn: Turn) -> None:
        """Every ready branch computes its last token, and its drafts where they fit."""
        rows, ready, kept = self._share_tokens()
        if ready:
            self._decode_special(turn, ready, kept, self._config.max_num_tokens - len(rows) - len(ready))
        plain = self.queues.plain
        rows = plain.still_ready(rows)  # others may have had to give way
        fresh = plain.are_new(rows)
        num_fresh = np.count_nonzero(fresh)
        if num_fresh in (0, len(rows)):  # as in most steps
            self._grow_plain(turn, rows, bool(num_fresh))
        else:
            self._grow_plain(turn, rows[fresh], True)
            self._grow_plain(turn, rows[~fresh], False)

    def _decode_special(self, turn: Turn, ready: list[Branch], kept: int, spare: int) -> None:
        """Those that are not plain: all with equally many drafts in one call."""
        if any(branch.run.sampling.drafts for branch in ready):
            ready.sort(key=lambda one: (self.rounds.token_key(one.run), one.age))
            if self.prompts or self.waiting:
                spare -= max(kept, self._kept_from_drafts())
        for branch in ready:
            guesses = branch.run.sampling.drafts and spare > 0 and branch.mask is None and _is_new(branch)
            branch.drafts = self._guess(branch, spare) if guesses else NO_DRAFTS
            spare -= len(branch.drafts)
        kinds = [(len(branch.drafts), _is_new(branch)) for branch in ready]  # before one of them takes its drafts back
        for kind in sorted(set(kinds), reverse=True):
            if not turn.must_read:
                self._grow(turn, [branch for branch, one in zip(ready, kinds, strict=True) if one == kind])

    def _share_tokens(self) -> tuple[Int32, list[Branch], int]:
        """Who decodes, plain rows and others, and tokens kept for prompts.

        Where prompts lacked tokens in the last step, no tenant decodes beyond its share of this one at their expense.
        """
        lacking = [one for one in self._lacking if not one.run.done and (one.sequence is None or one in self.prompts)]
        self._lacking = []
        plain, special = self.queues.plain, list(self.queues.special)
        seats = plain.tenants + seats_of(special) if lacking else Counter[Tenant]()
        tenants = {*seats, *(branch.run.tenant for branch in (*self.prompts, *lacking))} if lacking else ()
        if len(tenants) < 2:
            return plain.ready, special, 0
        budget = self._config.max_num_tokens
        share = max(1, budget // len(tenants))
        wanted = Counter[Tenant]()
        for branch in lacking:
            wanted[branch.run.tenant] += branch.length - (branch.sequence.ran if branch.sequence else 0)
        kept = sum(min(count, max(0, share - seats[tenant])) for tenant, count in wanted.items())
        if max(seats.values(), default=0) <= share:
            return plain.ready, special, min(kept, budget - len(self.ready))
        ranks, first, beyond = Counter[Tenant](), list[Branch](), list[Branch]()
        for branch in sorted(self.ready, key=lambda one: one.age):
            (first if ranks[branch.run.tenant] < share else beyond).append(branch)
            ranks[branch.run.tenant] += 1
        kept = min(kept, budget - len(first))
        going = first + beyond[: budget - len(first) - kept]
        rows = [one.sequence.row for one in going if one.sequence is not None and one not in self.queues.special]
        return np.array(rows, np.int32), [one for one in going if one in self.queues.special], kept

    def _kept_from_drafts(self) -> int:
        """Tokens of a step with which a prompt can always go on: a block, or what must not be cut."""
        requests = (branch.run.request for branch in (*self.prompts, *self.waiting))
        return max(self._config.block_size, *(len(span) for request in requests for span in request.uncut), 0)

    def _guess(self, branch: Branch, spare: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        sampling = branch.run.sampling
        open_tokens = sampling.max_tokens - len(branch.answer) - 1  # the last one of an answer is never a draft
        room = self._config.max_length - branch.length
        count = min(sampling.drafts, open_tokens, room, spare)
        return lookup(branch.tokens, count, sampling.ngram) if count > 0 else NO_DRAFTS

    def _grow(self, turn: Turn, branches: list[Branch]) -> None:
        """Slots for one token and equally many drafts each, all in one call. Of all or of none the token is new."""
        while some := [branch for branch in branches if branch in self.ready]:
            plan = self._hand_out(some)
            if plan is not None:
                self._plans.carry(plan)
                break
            if len(some[0].drafts):
                for branch in some:  # no sequence gives up pages for drafts
                    branch.drafts = NO_DRAFTS
            elif turn.in_flight:
                turn.must_read = True
                return
            elif not self._make_room(turn, some[-1]):
                branches = some[:-1]  # another's pages come back later: it waits
        for branch in some:
            assert branch.sequence is not None
            extra, end = len(branch.drafts), branch.sequence.ran
            self.num_drafts += extra
            turn.works[branch] = Work(branch, Span(end - 1 - extra, end), 1 + extra)

    def _grow_plain(self, turn: Turn, rows: Int32, fresh: bool) -> None:
        """The same for plain rows, whose tokens are all new or none."""
        plain = self.queues.plain
        while len(rows := plain.still_ready(rows)) and not turn.must_read:
            plan = self._cache.grow(rows, plain.last[rows] if fresh else None)
            if plan is not None:
                self._plans.carry(plan)
                turn.rows = rows if not len(turn.rows) else np.concatenate([turn.rows, rows])
                return
            if turn.in_flight:
                turn.must_read = True
            elif not self._make_room(turn, plain.branches_in(rows[-1:])[0]):
                rows = rows[:-1]  # another's pages come back later: it waits

    def _hand_out(self, branches: list[Branch]) -> Plan | None:
        """New tokens and drafts, or only a place: the token is there, or follows when its step is committed."""
        rows = np.array([branch.sequence.row for branch in branches if branch.sequence], np.int32)
        if not _is_new(branches[0]):
            return self._cache.grow(rows)
        return self._cache.grow(rows, np.array([[one.tokens[-1], *one.drafts] for one in branches], np.int32))

    def _make_room(self, turn: Turn, asking: Branch) -> bool:
        """Preempt who gives way first; False when only the asking one holds pages."""
        if self.give_up_hold():
            return True
        holders = self.queues.holders
        victim = first_to_give_way(holders)
        if victim is asking and len(holders) == 1:
            return False
        self.queues.preempt(victim)
        turn.works.pop(victim, None)
        turn.rows = self.queues.plain.still_ready(turn.rows)
        return True

    def give_way(self, turn: Turn) -> bool:
        """Nothing can be computed: one that holds pages without using them gives them back; False: there is none."""
        if turn.made_way or self.give_up_hold():
            return True
        holders = [*self.held, *self.prompts]
        if holders:
            self.queues.preempt(first_to_give_way(holders))
        return bool(holders)

    def make_way(self, branch: Branch) -> None:
        """A prompt that comes from a peer finds no row: one that has to gives way to it."""
        full = self._cache.num_sequences >= self._config.max_sequences
        if full and (victim := giver(self.queues.holders, branch)) is not None:
            self.queues.preempt(victim)

    def must_wait(self, run: Run) -> bool:
        """One that waits for pages comes in before this run would."""
        seats = seats_of(self.queues.holders) if self.waiting else Counter[Tenant]()

        def key(one: Run) -> tuple[int, int, TokenKey, tuple[int, int]]:
            return one.tenant.granted, seats[one.tenant], self.rounds.token_key(one), one.order

        own = key(run)
        return any(key(branch.run) < own for branch in self.waiting)

    def end_prefetches(self) -> bool:
        """No branch fits: waiting ones give up the pages that were brought up for them; False: they hold none."""
        holders = [branch for branch in self.waiting if branch.prefetch is not None]
        for branch in holders:
            branch.end_prefetch()
        return bool(holders)

    # -- pages that moves have lost ----------------------------------------------------------------------------------

    def holder(self, sequence: object) -> Branch | None:
        """The branch whose pages these are; None: of one that ended, or that another still reads."""
        return next((branch for branch in self.queues.holders if branch.sequence is sequence), None)

    def set_back(self, setback: Setback, turn: Turn, flies: Callable[[Branch], bool]) -> None:
        """A failed move has changed a promise: the branch computes what it lost again, or waits for new pages. So does
        one that `flies`: what steps in flight make of it counts nothing."""
        branch = self.holder(setback.holder)
        if branch is None:
            return
        turn.works.pop(branch, None)
        if setback.lost:
            self.queues.lose_pages(branch)
            return
        if flies(branch):
            self.queues.preempt(branch)
            return
        assert branch.sequence is not None
        if len(branch.drafts):
            self._cache.trim(branch.sequence, len(branch.drafts))
            branch.drafts = NO_DRAFTS
        if branch in self.held or branch.sequence.length < branch.length:
            self.queues.preempt(branch)  # its next token is not in its sequence: it cannot just go on from there
        else:
            self.queues.compute_again(branch)


def _no_hold() -> bool:
    """No waiting request holds pages."""
    return False


def _is_new(branch: Branch) -> bool:
    """The cache has all its tokens but the last. Else it has that one too, or a step in flight makes it."""
    return not branch.ahead and branch.sequence is not None and branch.sequence.length < branch.length
