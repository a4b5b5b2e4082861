"""Incoming: prompts under way go on, waiting branches come in. Decides it in claims, so budgets hold; knows no model.

    candidates, by seats and rounds -> claim -> leave out who gains by waiting -> a seat for each -> admit
                                                                                  '- others give way to it, or it waits

Prompts under way that are later in the rounds than a newcomer get the tokens that it leaves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import NamedTuple

from quire.core.admission.batch import Batch
from quire.core.cache import Cache
from quire.core.records.span import Span
from quire.core.state.claim import Claim
from quire.core.state.claims import Claims
from quire.core.state.prepared import Prepared
from quire.engine.setup.engine_config import EngineConfig
from quire.engine.step.fairness.tenant_rounds import Rounds
from quire.engine.step.fairness.tenant_seats import Line, all_equal, giver, mate_of, seats_of
from quire.engine.step.plan_runner import PlanRunner
from quire.engine.step.queues import Queues
from quire.engine.step.runs.branch import Age, Branch
from quire.engine.step.runs.step_work import RefusedBranch, Turn, Work
from quire.engine.step.runs.tenant import Tenant, TokenKey


class _Mate(NamedTuple):
    """A prompt that another may wait for."""

    branch: Branch | None  # under way already
    prepared: Prepared
    coming: Span  # what it computes and cannot be used at once
    shared: int = 0  # up to where it can


MOST_CLAIMS = 64  # waiting branches looked at in one step
Branches = dict[Hashable, Branch]  # by the id of their requests
TurnKey = tuple[TokenKey, Age]


class Incoming:
    """The part of a scheduler that hands out seats, and what decoding leaves of the tokens."""

    def __init__(self, cache: Cache, config: EngineConfig, queues: Queues, rounds: Rounds, plans: PlanRunner) -> None:
        self._cache, self._config, self._plans = cache, config, plans
        self._queues, self._rounds = queues, rounds
        self._look = MOST_CLAIMS  # waiting branches to look at: a few more than came in last time
        self._paged = [g for g, group in enumerate(cache.config.groups) if not group.current]
        self.num_waits = 0

    def admit(self, turn: Turn, left: int) -> list[Branch]:
        """Who computes what with these tokens, in rounds; those who could have computed more are returned."""
        prompts = self._queues.prompts
        branches = {branch.id: branch for branch in self.candidates(turn, left)}
        with self._cache.claim([self._prepared(branch) for branch in branches.values()]) as claims:
            turn.refused = [RefusedBranch(branches[refusal.request.id], refusal) for refusal in claims.refused]
            over = {refused.branch.run for refused in turn.refused}  # they end before this step is launched
            for claim in [one for one in claims if over and branches[one.request.id].run in over]:
                claims.leave_out(claim)
            turns = self._leave_out(turn, claims, branches)
            going = sorted(prompts, key=turns.__getitem__)
            first = min((self._key(branches[claim.request.id]) for claim in claims), default=None)
            early = going if first is None else [branch for branch in going if turns[branch] <= first]
            self._make_seats(turn, claims, branches, left - _wanted(early, self._config.longest_chunk))
            batch = self._admitted(turn, claims, early, left)
        self._seat(turn, batch, branches)
        left -= _num_tokens(batch)
        self._make_way(turn, batch, branches)
        late = [branch for branch in going if branch not in early and branch.sequence is not None]
        if late and left > 0:
            batch = self._admitted(turn, None, late, left)
            left -= _num_tokens(batch)
        if left > 0 and not batch.waiting:
            return []
        cut = [branch for branch in prompts if branch not in turn.works or not turn.works[branch].num_logits]
        return cut + [branch for branch in branches.values() if branch.sequence is None]

    def _key(self, branch: Branch) -> TurnKey:
        return self._rounds.token_key(branch.run), branch.age

    def _admitted(self, turn: Turn, claims: Claims | None, going: list[Branch], left: int) -> Batch:
        """Newcomers, if any, behind prompts under way; the work of those."""
        owners = {branch.sequence: branch for branch in going if branch.sequence is not None}
        chunk = self._config.longest_chunk
        if claims is None:
            batch = self._cache.add_sequence_batch([], token_budget=left, max_chunk=chunk, continuing=list(owners))
        else:
            batch = self._cache.admit(claims, token_budget=left, max_chunk=chunk, continuing=list(owners))
        self._plans.carry(batch.plan)
        for sequence in batch.spans:
            if sequence in owners:
                self._note(turn, owners[sequence], batch)
        return batch

    def _note(self, turn: Turn, branch: Branch, batch: Batch) -> None:
        sequence = branch.sequence
        assert sequence is not None
        span, told = batch.spans[sequence], batch.snapshots.get(sequence, ())
        turn.works[branch] = Work(branch, span, int(span.end == sequence.prompt_end), told)

    def _seat(self, turn: Turn, batch: Batch, branches: Branches) -> None:
        """Those who came in have pages, and compute."""
        receipts = batch.receipts if self._config.receipts else ()
        for place, sequence in enumerate(batch.sequences):
            branch = branches[sequence.id]
            turn.shares |= sequence.computed < sequence.start
            branch.sequence, branch.prepared = sequence, None
            branch.end_prefetch()
            if receipts and branch.run.fresh:
                branch.run.receipt = receipts[place]
            self._queues.seat(branch)
            turn.admitted.append(branch)
            self._note(turn, branch, batch)
        self._look = min(MOST_CLAIMS, 2 * len(batch.sequences) + 4)

    def _make_way(self, turn: Turn, batch: Batch, branches: Branches) -> None:
        """Who did not find pages is given way to; it comes in with the next step."""
        short = next((one for one in batch.refused if one.reason == "slots" and not one.never), None)
        if short is None or short.group is None:
            return
        while self._cache.num_free(short.group) < short.need:
            if not self._free_seat(turn, branches[short.request.id]):
                return

    def candidates(self, turn: Turn, left: int) -> list[Branch]:
        """Who comes in next, as many as there may be tokens and seats for; who is prefetched waits for that."""
        queues, rounds = self._queues, self._rounds
        rows = self._config.max_sequences - self._cache.num_sequences
        ready = [branch for branch in queues.waiting if branch.prefetch is None or branch.prefetch.done]
        turn.passed_over = len(queues.waiting) - len(ready)
        most = min(left, self._look)
        if len(rounds.inside) == 1 or not ready:
            return ready[: min(rows, most)]
        picked, seats = list[Branch](), seats_of(queues.holders)
        if rows > 0 or not all_equal(seats, rounds):
            picked = Line(ready, seats, rounds).pick(rows, most)
        if queues.held:
            picked += [beam for beam in ready if beam not in picked and mate_of(queues.held, beam)]
        return picked[:most]

    def _prepared(self, branch: Branch) -> Prepared:
        if branch.prepared is None:
            branch.prepared = self._cache.prepare(branch.request())
        return branch.prepared

    def _leave_out(self, turn: Turn, claims: Claims, branches: Branches) -> dict[Branch, TurnKey]:
        """Who shares a prefix with a prompt that is computed in this very step waits for it, and reuses it then; but
        what this step computes before it, and what steps in flight do, is used at once where pages are shared.

        When each prompt under way has its turn: one that another waits for has that one's, if it is earlier.
        """
        turns = {branch: self._key(branch) for branch in self._queues.prompts}
        if not self._config.wait_for_reuse:
            return turns
        first = min((self._key(branches[claim.request.id]) for claim in claims), default=None)
        mates = [] if first is None else self._mates(turns, first, in_flight=turn.in_flight)
        for claim in list(claims):
            mate = next((one for one in mates if claim.gains_from(one.prepared, one.coming, one.shared)), None)
            if mate is None:
                mates.append(self._newcomer(claim))
                continue
            claims.leave_out(claim)
            self.num_waits += 1
            if mate.branch is not None:
                turns[mate.branch] = min(turns[mate.branch], self._key(branches[claim.request.id]))
        return turns

    def _mates(self, turns: dict[Branch, TurnKey], first: TurnKey, *, in_flight: bool) -> list[_Mate]:
        """Prompts that others may wait for, as far as they are admitted. Whose turn is after the `first` newcomer's may
        get what that leaves: nobody counts on it in this step."""
        mates = list[_Mate]()
        for branch in sorted(turns, key=turns.__getitem__):
            if (one := branch.sequence) is not None:
                left, early = Span(one.ran, one.prompt_end), turns[branch] <= first
                mates.append(self._mate(branch, one.prepared, left, one.computed, early))
        if in_flight:  # prompts whose last part is not committed yet
            last = [branch.sequence for branch in (*self._queues.ready, *self._queues.unread)]
            mates += [
                _Mate(None, one.prepared, Span(one.computed, one.prompt_end))
                for one in last if one is not None and one.computed < one.prompt_end
            ]  # fmt: skip
        return mates

    def _newcomer(self, claim: Claim) -> _Mate:
        """What others may wait for if this one comes in."""
        return self._mate(None, claim.prepared, Span(claim.start, claim.prepared.end), claim.start, True)

    def _mate(self, branch: Branch | None, prepared: Prepared, left: Span, computed: int, early: bool) -> _Mate:
        """Its next part, and what is in flight; where pages are shared and it is `early`, all behind that. One with
        uncut tokens may compute a single token of it."""
        part = _part(prepared, left, self._config.longest_chunk)
        alone = len(part) == 1 or prepared.request.uncut  # a step of single tokens reads and writes pages at once
        if self._cache.config.share_pending and early and not alone:
            return _Mate(branch, prepared, Span(part.end, left.end), part.end)
        return _Mate(branch, prepared, Span(computed, part.end))

    def _make_seats(self, turn: Turn, claims: Claims, branches: Branches, left: int) -> None:
        """A row and pages for every newcomer: others give way, or it waits, and those behind it.

        Newcomers leave one page for every running branch; without it they would be preempted in the next step.
        """
        needed, newcomers = [0] * len(self._cache.config.groups), Counter[Tenant]()
        for place, claim in enumerate(list(claims)):
            branch = branches[claim.request.id]
            needed = [one + more for one, more in zip(needed, claim.slots_needed, strict=True)]
            while not (fits := self._fits(place + 1, needed)) and left > 0:
                if not self._free_seat(turn, branch, newcomers[branch.run.tenant]):
                    break
            if not fits:
                for late in reversed(list(claims)[place:]):
                    claims.leave_out(late)
                return
            newcomers[branch.run.tenant] += 1
            left -= min(claim.num_tokens, self._config.longest_chunk)

    def _fits(self, rows: int, needed: list[int]) -> bool:
        """There are so many rows, and pages that leave one for every running branch."""
        if self._cache.num_sequences + rows > self._config.max_sequences:
            return False
        reserve = len(self._queues.holders)
        return not reserve or all(self._cache.num_free(g) - reserve >= needed[g] for g in self._paged)

    def _free_seat(self, turn: Turn, branch: Branch, more: int = 0) -> bool:
        """One that has to gives way, or a beam of its own search that has delivered; False: none, or others share what
        this step may compute of it."""
        queues = self._queues
        victim = giver(queues.holders, branch, more) or mate_of(queues.held, branch)
        if victim is None or victim in turn.admitted or (turn.shares and victim in turn.works):
            return False
        if turn.in_flight:
            turn.must_read = True
            return False
        queues.preempt(victim)
        turn.works.pop(victim, None)
        turn.made_way = True
        return True


def _wanted(going: list[Branch], chunk: int) -> int:
    """Tokens that these prompts can compute in one step."""
    return sum(min(chunk, one.prompt_end - one.ran) for one in [branch.sequence for branch in going] if one)


def _num_tokens(batch: Batch) -> int:
    return sum(map(len, batch.spans.values()))


def _part(prepared: Prepared, left: Span, chunk: int) -> Span:
    """What is computed of it in one step, if the budget allows."""
    start, end = left.start, prepared.stop_after(left.start, left.end)
    return Span(start, end if end <= start + chunk else max(start, prepared.cut_before(start + chunk)))
