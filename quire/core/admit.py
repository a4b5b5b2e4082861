"""Phase 2: turn claims into sequences. A dry count decides before the first move; after it nothing can fail.

claims --tokens, rows--> prefix --slots--> prefix --seat all, settle each--> sequences + plan
                           \\-- what does not fit is given back, last first
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np

from quire.core.claim import Claim, Claims, Refusal
from quire.core.errors import InputError, StateError, UnknownError, say
from quire.core.plan import Plan
from quire.core.probe import probe
from quire.core.sequence import Sequence
from quire.core.span import Span
from quire.core.state import NO_ROOT, State


class Batch:
    """What one admission decided: sequences in order, the span each computes now, the moves, who stays out."""

    __slots__ = ("_edges", "_spans", "plan", "refused", "sequences")

    def __init__(self, sequences: list[Sequence], edges: list[Edges], plan: Plan, refused: list[Refusal]) -> None:
        self.sequences = sequences
        self.plan = plan
        self.refused = refused
        self._edges = edges
        self._spans: dict[Sequence, Span] | None = None

    @property
    def spans(self) -> dict[Sequence, Span]:
        """What to compute in this step; continuing sequences first."""
        if self._spans is None:
            self._spans = {sequence: Span(start, end) for sequence, start, end in self._edges}
        return self._spans

    @property
    def num_tokens(self) -> int:
        """Tokens this step computes: never more than the budget."""
        return sum([end - start for _, start, end in self._edges])


Edges = tuple[Sequence, int, int]  # what a sequence computes now, from and to
Reason = Literal["slots", "tokens", "sequences", "order"]
Roles = dict[int, list[tuple[int, int]]]  # by place in the batch, then group: slots taken, slots given back


class Step:
    """The budgets of one step: hands out its tokens, first come first served, in exact lengths."""

    __slots__ = ("all_or_nothing", "left", "max_chunk")

    def __init__(self, token_budget: int | None, max_chunk: int | None, all_or_nothing: bool, block_size: int) -> None:
        if token_budget is not None:
            _check_budget("token_budget", token_budget, 1)
        if max_chunk is not None:
            _check_budget("max_chunk", max_chunk, block_size)  # chunks end on block edges
        self.left = token_budget
        self.max_chunk = max_chunk  # longest part of a prompt per step; None: a prompt is computed whole
        self.all_or_nothing = all_or_nothing

    def end(self, start: int, end: int, block_size: int) -> int | None:
        """Where to stop: at the end, or for a chunk on a block boundary; None when neither fits."""
        limit = end - start
        if self.max_chunk is not None:
            limit = min(limit, self.max_chunk, limit if self.left is None else self.left)
            if limit < end - start:
                limit = (start + limit) // block_size * block_size - start
                if limit <= 0:
                    return None
        if self.left is not None:
            if limit > self.left:
                return None
            self.left -= limit
        return start + limit


def _check_budget(name: str, value: int, least: int) -> None:
    if type(value) is not int or value < least:
        cure = f"pass a whole number of at least {least}, or None"
        raise InputError(say(f"{name} {value!r}", "nothing fits into it", cure))


def admit_batch(state: State, claims: Claims, step: Step, continuing: tuple[Sequence, ...]) -> Batch:
    """Admit the longest prefix that fits (or all, or none); the rest is given back."""
    _check_open(state, claims)
    now = state.now()  # before the first change: a caller's clock may raise
    edges = _continue(step, continuing, state.block_size) if continuing else []
    ends, refused = _fit_tokens(state, claims, step)
    others = _all_or_none(state, claims, refused) if step.all_or_nothing else []
    out, lacked = _fit_slots(state, claims)
    sequences = _seat(state, claims, now)
    edges += [(sequence, sequence.start, end) for sequence, end in zip(sequences, ends, strict=False)]
    for sequence, _, end in edges:
        sequence.granted = max(sequence.granted, end)
    claims.claims = []
    claims.close()
    if others or out or claims.refused:
        refused = others + _slot_refusals(state, out, lacked) + refused + claims.refused
    return Batch(sequences, edges, state.take_plan(), refused)


def _check_open(state: State, claims: Claims) -> None:
    if claims.state is not state:
        raise UnknownError(say("admit of these claims", "another cache made them", "admit them there"))
    if claims.settled:
        raise StateError(say("admit of these claims", "they were admitted or dropped before", "claim again"))
    for claim in claims.claims:
        name = claim.prepared.request.id
        if name in state.sequences or claim.prepared.seated:
            fact = "a sequence of that id was admitted since"
            raise StateError(say(f"admit of request {name!r}", fact, "drop these claims, or use another id"))


def _continue(step: Step, continuing: Iterable[Sequence], block_size: int) -> list[Edges]:
    edges: list[Edges] = []
    seen: set[Sequence] = set()
    for sequence in continuing:
        start, end = sequence.computed, min(sequence.prompt_end, sequence.length)
        if sequence in seen or start >= end:
            fact = "it is given twice" if sequence in seen else "its prompt is computed"
            raise StateError(say(f"continuing {sequence.id!r}", fact, "pass each unfinished prompt once"))
        seen.add(sequence)
        stop = step.end(start, end, block_size)
        if stop is None:
            step.left = 0  # it waits, and so does everybody behind it
            break
        edges.append((sequence, start, stop))
    return edges


def _fit_tokens(state: State, claims: Claims, step: Step) -> tuple[list[int], list[Refusal]]:
    """Where each claim's part of this step ends; those that the budget or the rows do not reach are given back."""
    ends: list[int] = []
    rows = len(state.free_rows)
    for place, claim in enumerate(claims.claims):
        if place == rows:
            return ends, _refuse(claims, place, "sequences", (place + 1, rows))
        left, start = step.left, claim.hit.start
        end = step.end(start, start + claim.num_tokens, state.block_size)
        if end is None:
            return ends, _refuse(claims, place, "tokens", (claim.num_tokens, left or 0))
        ends.append(end)
    return ends, []


def _refuse(claims: Claims, place: int, reason: Reason, numbers: tuple[int, int]) -> list[Refusal]:
    """The first that does not fit says what it lacks; those behind it are out for the order."""
    first, *behind = claims.drop_from(place)
    return [Refusal(first.request, reason, *numbers), *(Refusal(claim.request, "order", *numbers) for claim in behind)]


def _fit_slots(state: State, claims: Claims) -> tuple[list[Claim], tuple[int, int]]:
    """Give back claims from the end until the dry count holds; what they held becomes room for the others."""
    out: list[Claim] = []
    numbers = (0, 0)  # what the last one given back lacked
    while claims.claims and (short := shortage(state, claims.claims)) is not None:
        out = claims.drop_from(len(claims) - 1) + out
        numbers = short[1:]
    return out, numbers


def _all_or_none(state: State, claims: Claims, behind: list[Refusal]) -> list[Refusal]:
    """When one does not fit the others are out too, for the order, with the numbers of the one that lacks."""
    lacking = (behind or claims.refused)[:1]
    place, need, have = shortage(state, claims.claims) or (-1, 0, 0)
    if place < 0:
        if not lacking:
            return []
        need, have = lacking[0].need, lacking[0].have
    dropped = enumerate(claims.drop_from(0))
    return [Refusal(claim.request, "slots" if nth == place else "order", need, have) for nth, claim in dropped]


def _slot_refusals(state: State, out: list[Claim], numbers: tuple[int, int]) -> list[Refusal]:
    """What the first one left out would take off the free count now, and what is free."""
    if not out:
        return []
    (now,) = probe(state, [out[0].prepared], out[0].purpose)
    free = [state.store.available(group) for group in state.groups]
    need, have = max(zip(now.slots_now, free, strict=True), key=lambda pair: pair[0] - pair[1])
    if need <= have:  # the source it would copy from is in its own way: say what the dry count said
        need, have = numbers
    first, *behind = out
    return [Refusal(first.request, "slots", need, have), *(Refusal(c.request, "order", need, have) for c in behind)]


def shortage(state: State, claims: list[Claim]) -> tuple[int, int, int] | None:
    """Dry count: the first claim that runs out of slots with its need and what is there; None when all fit."""
    if _fit_at_worst(state, claims):
        return None
    return _run_dry(state, claims, _roles(state, claims), _cold_once(state, claims))


def _fit_at_worst(state: State, claims: list[Claim]) -> bool:
    """Enough even if every partial hit copies, no source is given back and no onboard is shared: the usual case."""
    for group in state.groups:
        need = 0
        for claim in claims:
            need += claim.cold[group] + claim.new
        if need > state.store.available(group):
            return False
    return True


def _run_dry(
    state: State, claims: list[Claim], roles: Roles, cold: list[tuple[int, ...]]
) -> tuple[int, int, int] | None:
    for group in state.groups:
        have = state.store.available(group)
        for place, claim in enumerate(claims):
            takes, gives = roles[place][group] if place in roles else (0, 0)
            need = cold[place][group] + takes
            new = claim.new - (claim.hit.source >= 0)
            if need > have or new > have - need + gives:
                return place, need + new, have
            have += gives - need - new
    return None


def _cold_once(state: State, claims: list[Claim]) -> list[tuple[int, ...]]:
    """Onboards per claim and group as they are now, a page that several claims share counted for the first."""
    groups = state.groups
    seen: list[set[int]] = [set() for _ in groups]
    counts: list[tuple[int, ...]] = []
    for claim in claims:
        cold = [{claim.hit.node(b) for b in np.flatnonzero(claim.hit.tiers(group) > 0).tolist()} for group in groups]
        counts.append(tuple(len(cold[group] - seen[group]) for group in groups))
        for group in groups:
            seen[group] |= cold[group]
    return counts


def _roles(state: State, claims: list[Claim]) -> Roles:
    """For each partial hit and group: slots it takes, and slots its source gives back right after the copy.

    An idle leaf that nobody hits in full goes to its last partial hitter; all others copy. The last copier of an
    idle source that is no leaf gives it back, so that the next page of this very batch may have its slot.
    """
    by_source: dict[int, list[int]] = {}
    for place, claim in enumerate(claims):
        if claim.hit.source >= 0:
            by_source.setdefault(claim.hit.source, []).append(place)
    roles: Roles = {}
    for source, places in by_source.items():
        last = claims[places[-1]].hit
        leaf, held, num_claims, tiers = state.store.source_state(last)
        in_full = any(c.hit.blocks > last.blocks and c.hit.node(last.blocks) == source for c in claims)
        ours = [
            not in_full and not in_use and count == len(places) for in_use, count in zip(held, num_claims, strict=True)
        ]
        for place in places:
            roles[place] = [(1, 0)] * len(tiers)
        if leaf and all(ours):
            roles[places[-1]] = [(int(tier > 0), 0) for tier in tiers]
        else:
            roles[places[-1]] = [(1, int(mine and tier == 0)) for mine, tier in zip(ours, tiers, strict=True)]
    return roles


def _seat(state: State, claims: Claims, now: int) -> list[Sequence]:
    """Holds first, for all of them; then slots, onboards and copies, one request after the other."""
    store = state.store
    sequences: list[Sequence] = []
    for claim in claims:
        prepared = claim.prepared
        root = state.roots.make(prepared.scope_key, prepared.request.scope) if prepared.keep else NO_ROOT
        row = state.free_rows.pop()
        store.seat(claim.hit, row, prepared.chain, root, prepared.keep)
        prepared.seated = True
        state.timed |= prepared.timed
        sequence = Sequence(state, prepared, row, claim.hit.start)
        if claim.purpose == "decode":
            sequence.granted = sequence.prompt_end  # a transfer brings the rest
        state.sequences[prepared.request.id] = sequence
        sequences.append(sequence)
    if state.timed:
        store.refresh(now)
    for claim, sequence in zip(claims, sequences, strict=True):
        prepared = claim.prepared
        priority, ticks = prepared.decode_retention
        store.settle(
            sequence.row,
            claim.hit,
            prepared.blocks,
            prepared.priorities,
            prepared.ticks,
            priority,
            ticks,
            prepared.spare,
        )
    return sequences
