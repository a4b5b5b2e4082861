"""Scheduler: who computes what in the next step. Token and slot budgets come from the claims, so they hold.

    decoding branches: a token each, and drafts     grow, or preempt who gives way first until there is room
    prompts under way, waiting branches             incoming.py: by rounds of their tenants (rounds.py), and as many
                                                    sequences for each as for the others (seats.py)

Nobody starves: docs/engine.md has the proof. Knows no model.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections import Counter
from collections.abc import Callable

import numpy as np

from quire.core.cache import Cache
from quire.core.records.plan import Plan
from quire.core.records.span import Span
from quire.engine.setup.settings import EngineConfig
from quire.engine.step.draft import lookup
from quire.engine.step.incoming import Incoming
from quire.engine.step.runs.branch import NO_DRAFTS, Branch, Run
from quire.engine.step.runs.tenant import Tenant, TokenKey
from quire.engine.step.runs.work import Turn, Work
from quire.engine.step.turns.rounds import Rounds
from quire.engine.step.turns.seats import first_to_give_way, giver, seats_of

_log = logging.getLogger("quire.engine")


class Scheduler:
    """Branches by what they wait for, and the choice among them."""

    def __init__(self, cache: Cache, config: EngineConfig, carry: Callable[[Plan], None]) -> None:
        self._cache, self._config, self.carry = cache, config, carry
        self.rounds = Rounds(config.max_num_tokens, dict(config.granted), fair=config.scheduling == "fair")
        self.waiting: list[Branch] = []  # no pages; those of a tenant in its own order
        self.prompts: dict[Branch, None] = {}  # pages, and prompt tokens to compute
        self.ready: dict[Branch, None] = {}  # pages, and one new token to compute
        self.held: dict[Branch, None] = {}  # pages; a beam whose mates are not as far
        self.num_preemptions = self.num_drafts = 0
        self._incoming = Incoming(self, cache, config)
        self._lacking: list[Branch] = []  # whose prompts could have computed more in the last step

    @property
    def holders(self) -> list[Branch]:
        """Branches with pages."""
        return [*self.held, *self.prompts, *self.ready]

    @property
    def num_waits(self) -> int:
        """Steps that a branch waited for a prefix."""
        return self._incoming.num_waits

    def put(self, branch: Branch) -> None:
        """It waits for pages."""
        branch.prepared = None
        self.expect(branch)
        branch.run.tenant.num_waiting += 1
        insort(self.waiting, branch, key=lambda one: one.age)

    def expect(self, branch: Branch) -> None:
        """Its tenant waits for something from now on, if it did not before."""
        tenant = branch.run.tenant
        if not tenant.num_waiting and not any(one.run.tenant is tenant for one in self.prompts):
            self.rounds.begin_to_wait(branch)

    def take_out(self, branch: Branch) -> None:
        """It waits no more."""
        self.waiting.remove(branch)
        branch.run.tenant.num_waiting -= 1

    def remove(self, branch: Branch) -> None:
        """It wants nothing any more."""
        branch.end_prefetch()
        for place in (self.prompts, self.ready, self.held):
            place.pop(branch, None)
        if branch.sequence is None and branch in self.waiting:
            self.take_out(branch)

    def next_turn(self) -> Turn:
        """Decide the next step. Plans go to `carry` in the order they are made."""
        turn = Turn()
        if self.prompts or self.waiting:
            self.rounds.catch_up(self.prompts)
        self._decode(turn)
        left = self._config.max_num_tokens - turn.num_tokens
        if self.prompts or self.waiting:
            if left > 0:
                self._lacking = self._incoming.admit(turn, left)
            else:
                self._lacking = [*self.prompts, *self._incoming.candidates(turn, 1)]
        return turn

    # -- decoding ----------------------------------------------------------------------------------------------------

    def _decode(self, turn: Turn) -> None:
        """Every ready branch computes its last token, and its drafts where they fit."""
        ready, kept = self._share_tokens()
        spare = self._config.max_num_tokens - len(ready)
        if any(branch.run.sampling.drafts for branch in ready):
            ready.sort(key=lambda one: (self.rounds.token_key(one.run), one.age))
            if self.prompts or self.waiting:
                spare -= max(kept, self._kept_from_drafts())
        for branch in ready:
            guesses = branch.run.sampling.drafts and spare > 0 and branch.mask is None
            branch.drafts = self._guess(branch, spare) if guesses else NO_DRAFTS
            spare -= len(branch.drafts)
        counts = [len(branch.drafts) for branch in ready]  # before the first of them takes its drafts back
        for count in sorted(set(counts), reverse=True):
            self._grow(turn, [branch for branch, one in zip(ready, counts, strict=True) if one == count])

    def _share_tokens(self) -> tuple[list[Branch], int]:
        """Who decodes, and tokens kept for prompts.

        Where prompts lacked tokens in the last step, no tenant decodes beyond its share of this one at their expense.
        """
        lacking = [one for one in self._lacking if not one.run.done and (one.sequence is None or one in self.prompts)]
        self._lacking = []
        tenants = {branch.run.tenant for branch in (*self.ready, *self.prompts, *lacking)} if lacking else ()
        if len(tenants) < 2:
            return list(self.ready), 0
        budget = self._config.max_num_tokens
        share = max(1, budget // len(tenants))
        ranks, first, beyond = Counter[Tenant](), list[Branch](), list[Branch]()
        for branch in sorted(self.ready, key=lambda one: one.age):
            (first if ranks[branch.run.tenant] < share else beyond).append(branch)
            ranks[branch.run.tenant] += 1
        wanted = Counter[Tenant]()
        for branch in lacking:
            wanted[branch.run.tenant] += branch.length - (branch.sequence.computed if branch.sequence else 0)
        kept = sum(min(count, max(0, share - ranks[tenant])) for tenant, count in wanted.items())
        kept = min(kept, budget - len(first))
        return first + beyond[: budget - len(first) - kept], kept

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
        """Slots for one token and equally many drafts each, all in one call."""
        while some := [branch for branch in branches if branch in self.ready]:
            rows = np.array([branch.sequence.row for branch in some if branch.sequence], np.int32)
            tokens = np.array([[branch.tokens[-1], *branch.drafts] for branch in some], np.int32)
            plan = self._cache.grow(rows, tokens)
            if plan is not None:
                self.carry(plan)
                break
            if tokens.shape[1] > 1:
                for branch in some:  # guesses are worth nobody's pages
                    branch.drafts = NO_DRAFTS
            elif not self._make_room(turn, some[-1]):
                branches = some[:-1]  # somebody else's pages come back later: it waits
        for branch in some:
            extra = len(branch.drafts)
            self.num_drafts += extra
            turn.works[branch] = Work(branch, Span(branch.length - 1, branch.length + extra), 1 + extra)

    def _make_room(self, turn: Turn, asking: Branch) -> bool:
        """Preempt who gives way first; False when nobody but the asking one holds pages."""
        holders = self.holders
        victim = first_to_give_way(holders)
        if victim is asking and len(holders) == 1:
            return False
        self.preempt(victim)
        turn.works.pop(victim, None)
        return True

    def preempt(self, branch: Branch) -> None:
        """Take its pages; what it has computed stays findable, and it waits its turn again."""
        assert branch.sequence is not None
        _log.info("preempted a request at %d tokens; it waits for pages again", branch.length)
        self._cache.suspend(branch.sequence)
        branch.run.num_preemptions += 1
        self.num_preemptions += 1
        self.lost(branch)

    def give_way(self, turn: Turn) -> bool:
        """Nothing can be computed: one that holds pages without using them gives them back; False: there is none."""
        if turn.made_way:
            return True
        holders = [*self.held, *self.prompts]
        if holders:
            self.preempt(first_to_give_way(holders))
        return bool(holders)

    def make_way(self, branch: Branch) -> None:
        """A prompt that comes from a peer finds no row: one that has to gives way to it."""
        full = self._cache.num_sequences >= self._config.max_sequences
        if full and (victim := giver(self.holders, branch)) is not None:
            self.preempt(victim)

    def must_wait(self, run: Run) -> bool:
        """One that waits for pages comes in before this run would."""
        seats = seats_of(self.holders) if self.waiting else Counter[Tenant]()

        def key(one: Run) -> tuple[int, int, TokenKey, tuple[int, int]]:
            return one.tenant.granted, seats[one.tenant], self.rounds.token_key(one), one.order

        own = key(run)
        return any(key(branch.run) < own for branch in self.waiting)

    def end_prefetches(self) -> bool:
        """Nobody fits: what waiting branches hold of pages that came for them is let go of; False: nothing."""
        holders = [branch for branch in self.waiting if branch.prefetch is not None]
        for branch in holders:
            branch.end_prefetch()
        return bool(holders)

    def lost(self, branch: Branch) -> None:
        """Its pages are gone; unless it has just delivered, it waits for new ones."""
        branch.sequence, branch.drafts = None, NO_DRAFTS
        delivered = branch in self.held
        for place in (self.held, self.prompts, self.ready):
            place.pop(branch, None)
        if not delivered:
            self.put(branch)
