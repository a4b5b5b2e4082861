"""Scheduler: who computes what in the next step. Token and slot budgets come from the claims, so they hold.

    decoding branches: a token each, and drafts     grow, or preempt the youngest until there is room
    prompts under way: their next part              admit(continuing=...)
    waiting branches, oldest first                  claim -> leave out who gains by waiting -> admit
                                                    (who is being prefetched is passed over: prefetch.py)

Whoever came first goes first, a preempted one too, so nobody starves: the oldest always fits. Knows no model.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from quire.core.admission.batch import Snapshot
from quire.core.cache import Cache
from quire.core.records.plan import Plan
from quire.core.records.span import Span
from quire.core.state.claim import Refusal
from quire.core.state.claims import Claims
from quire.core.state.prepared import Prepared
from quire.core.state.sequence import Sequence
from quire.engine.model.batch import Segment
from quire.engine.settings import EngineConfig
from quire.engine.step.branch import NO_DRAFTS, Branch
from quire.engine.step.draft import lookup

MOST_CLAIMS = 64  # waiting branches looked at in one step
_log = logging.getLogger("quire.engine")


class Work(NamedTuple):
    """What one branch computes in a step."""

    branch: Branch
    span: Span
    num_logits: int
    snapshots: tuple[Snapshot, ...] = ()  # states to write on the way

    def segment(self) -> Segment:
        """The same for the batch builder."""
        branch, span = self.branch, self.span
        assert branch.sequence is not None
        known = branch.tokens[span.start : span.end]  # drafts are no part of the answer yet
        tokens = np.concatenate([known, branch.drafts]) if len(branch.drafts) else known
        return Segment(branch.sequence.row, span.start, tokens, self.num_logits, self.snapshots)


class RefusedBranch(NamedTuple):
    """A branch that can never run, and why."""

    branch: Branch
    refusal: Refusal


class Turn:
    """One step, decided: what to compute, and who was refused for good."""

    __slots__ = ("admitted", "passed_over", "refused", "works")

    def __init__(self) -> None:
        self.passed_over = 0  # waiting branches whose pages were on their way when it was decided
        self.works: dict[Branch, Work] = {}
        self.admitted: list[Branch] = []
        self.refused: list[RefusedBranch] = []

    @property
    def num_tokens(self) -> int:
        """Tokens it computes."""
        return sum(len(work.span) for work in self.works.values())


class Scheduler:
    """Branches by what they wait for, and the choice among them."""

    def __init__(self, cache: Cache, config: EngineConfig, carry: Callable[[Plan], None]) -> None:
        self._cache, self._config, self._carry = cache, config, carry
        self.waiting: list[Branch] = []  # oldest first: no pages
        self.prompts: dict[Branch, None] = {}  # pages, and prompt tokens to compute
        self.ready: dict[Branch, None] = {}  # pages, and one new token to compute
        self.held: dict[Branch, None] = {}  # pages; a beam whose mates are not as far
        self.num_preemptions = self.num_waits = self.num_drafts = 0
        self._look = MOST_CLAIMS  # waiting branches to look at: a few more than came in last time
        self._paged = [g for g, group in enumerate(cache.config.groups) if not group.current]

    def put(self, branch: Branch) -> None:
        """It waits for pages."""
        branch.prepared = None
        insort(self.waiting, branch, key=lambda one: one.age)

    def remove(self, branch: Branch) -> None:
        """It wants nothing any more."""
        branch.end_prefetch()
        for place in (self.prompts, self.ready, self.held):
            place.pop(branch, None)
        if branch.sequence is None and branch in self.waiting:
            self.waiting.remove(branch)

    def next_turn(self) -> Turn:
        """Decide the next step. Plans go to `carry` in the order they are made."""
        turn = Turn()
        self._decode(turn)
        left = self._config.max_num_tokens - turn.num_tokens
        if left > 0 and (self.prompts or self.waiting):
            self._admit(turn, left)
        return turn

    # -- decoding ----------------------------------------------------------------------------------------------------

    def _decode(self, turn: Turn) -> None:
        """Every ready branch computes its last token, and its drafts where they fit."""
        ready = sorted(self.ready, key=lambda one: one.age)
        spare = self._config.max_num_tokens - len(ready)
        if (self.prompts or self.waiting) and any(branch.run.sampling.drafts for branch in ready):
            spare -= self._kept_from_drafts()
        for branch in ready:
            guesses = branch.run.sampling.drafts and spare > 0 and branch.mask is None
            branch.drafts = self._guess(branch, spare) if guesses else NO_DRAFTS
            spare -= len(branch.drafts)
        counts = [len(branch.drafts) for branch in ready]  # before the first of them takes its drafts back
        for count in sorted(set(counts), reverse=True):
            self._grow(turn, [branch for branch, one in zip(ready, counts, strict=True) if one == count])

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
                self._carry(plan)
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
        """Preempt the youngest; False when nobody but the asking one holds pages."""
        holders = [*self.held, *self.prompts, *self.ready]
        victim = max(holders, key=lambda one: one.age)
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

    def give_way(self) -> bool:
        """Nothing can be computed: the youngest that holds pages without using them gives them back; False: none."""
        holders = [*self.held, *self.prompts]
        if holders:
            self.preempt(max(holders, key=lambda one: one.age))
        return bool(holders)

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

    # -- prompts -----------------------------------------------------------------------------------------------------

    def _admit(self, turn: Turn, left: int) -> None:
        """Prompts under way go on; waiting branches come in, oldest first, as far as the budgets reach."""
        going = sorted(self.prompts, key=lambda one: one.age)
        continuing = [branch.sequence for branch in going if branch.sequence is not None]
        branches = {branch.id: branch for branch in self._candidates(turn, left)}
        with self._cache.claim([self._prepared(branch) for branch in branches.values()]) as claims:
            turn.refused = [RefusedBranch(branches[refusal.request.id], refusal) for refusal in claims.refused]
            self._leave_out(claims, continuing)
            self._keep_reserve(claims)
            batch = self._cache.admit(
                claims, token_budget=left, max_chunk=self._config.longest_chunk, continuing=continuing
            )
        self._carry(batch.plan)
        receipts = batch.receipts if self._config.receipts else ()
        for place, sequence in enumerate(batch.sequences):
            branch = branches[sequence.id]
            branch.sequence, branch.prepared = sequence, None
            branch.end_prefetch()
            if receipts and branch.run.fresh:
                branch.run.receipt = receipts[place]
            self.waiting.remove(branch)
            self.prompts[branch] = None
            turn.admitted.append(branch)
        self._look = min(MOST_CLAIMS, 2 * len(batch.sequences) + 4)
        owners = {branch.sequence: branch for branch in self.prompts}
        for sequence, span in batch.spans.items():
            branch = owners[sequence]
            told = batch.snapshots.get(sequence, ())
            turn.works[branch] = Work(branch, span, int(span.end == sequence.prompt_end), told)

    def _candidates(self, turn: Turn, left: int) -> list[Branch]:
        """The oldest waiting ones, as many as there may be tokens and rows for; who is prefetched waits for that."""
        rows = self._config.max_sequences - self._cache.num_sequences
        ready = [branch for branch in self.waiting if branch.prefetch is None or branch.prefetch.done]
        turn.passed_over = len(self.waiting) - len(ready)
        return ready[: min(rows, left, self._look)]

    def _prepared(self, branch: Branch) -> Prepared:
        if branch.prepared is None:
            branch.prepared = self._cache.prepare(branch.request())
        return branch.prepared

    def _leave_out(self, claims: Claims, continuing: list[Sequence]) -> None:
        """Who shares a prefix with a prompt that is computed in this very step waits for it, and reuses it then."""
        if not self._config.wait_for_reuse:
            return
        chunk = self._config.longest_chunk
        mates = [(one.prepared, _part(one.prepared, Span(one.computed, one.prompt_end), chunk)) for one in continuing]
        for claim in list(claims):
            if any(claim.gains_from(*mate) for mate in mates):
                claims.leave_out(claim)
                self.num_waits += 1
            else:
                left = Span(claim.start, claim.prepared.end)
                mates.append((claim.prepared, _part(claim.prepared, left, chunk)))

    def _keep_reserve(self, claims: Claims) -> None:
        """Newcomers leave one page for every running branch; without it they would be preempted in the next step."""
        reserve = len(self.ready) + len(self.prompts) + len(self.held)
        if not reserve:
            return
        free = {group: self._cache.num_free(group) - reserve for group in self._paged}
        for place, claim in enumerate(list(claims)):
            for group in free:
                free[group] -= claim.slots_needed[group]
            if min(free.values(), default=0) < 0:
                for late in reversed(list(claims)[place:]):
                    claims.leave_out(late)
                return


def _part(prepared: Prepared, left: Span, chunk: int) -> Span:
    """What is computed of it in one step, if the budget allows."""
    start, end = left.start, prepared.stop_after(left.start, left.end)
    return Span(start, end if end <= start + chunk else max(start, prepared.cut_before(start + chunk)))
