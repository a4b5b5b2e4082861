"""Phase 2: turn claims into sequences. A dry count decides before the first move; after it nothing can fail.

claims --tokens, rows--> prefix --slots--> prefix --seat all, settle each--> sequences + plan
                           \\-- what does not fit is given back, last first
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from quire.core.claim import Claim, Claims, Refusal
from quire.core.errors import InputError, StateError, say
from quire.core.plan import Plan
from quire.core.sequence import Sequence
from quire.core.span import Span
from quire.core.state import NO_ROOT, State


class Batch:
    """What one admission decided: sequences in order, the span each computes now, the moves, who stays out."""

    __slots__ = ("plan", "refused", "sequences", "spans")

    def __init__(
        self, sequences: list[Sequence], spans: dict[Sequence, Span], plan: Plan, refused: list[Refusal]
    ) -> None:
        self.sequences = sequences
        self.spans = spans  # continuing sequences first
        self.plan = plan
        self.refused = refused

    @property
    def num_tokens(self) -> int:
        """Tokens this step computes: never more than the budget."""
        return sum(map(len, self.spans.values()))


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of one step."""

    token_budget: int | None = None
    max_chunk: int | None = None  # longest part of a prompt per step; None: a prompt is computed whole
    all_or_nothing: bool = False

    def __post_init__(self) -> None:
        for name in ("token_budget", "max_chunk"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InputError(
                    say(f"{name} {value!r}", "nothing fits into it", "pass a whole number of at least 1, or None")
                )


Reason = Literal["slots", "tokens", "sequences", "order"]


class Step:
    """Hands out a step's tokens, first come first served, in exact lengths."""

    __slots__ = ("block_size", "left", "max_chunk")

    def __init__(self, limits: Limits, block_size: int) -> None:
        self.block_size = block_size
        self.left = limits.token_budget
        self.max_chunk = limits.max_chunk

    def span(self, start: int, end: int) -> Span | None:
        """The whole rest, or a chunk that ends on a block boundary; None when neither fits."""
        limit = end - start
        if self.max_chunk is not None:
            limit = min(limit, self.max_chunk, limit if self.left is None else self.left)
            if limit < end - start:
                limit = (start + limit) // self.block_size * self.block_size - start
                if limit <= 0:
                    return None
        if self.left is not None:
            if limit > self.left:
                return None
            self.left -= limit
        return Span(start, start + limit)


def admit_batch(state: State, claims: Claims, limits: Limits, continuing: Iterable[Sequence]) -> Batch:
    """Admit the longest prefix that fits (or all, or none); the rest is given back."""
    if claims.settled:
        raise StateError(
            say("admit of these claims", "they were admitted or dropped before", "claim the requests again")
        )
    step = Step(limits, state.config.block_size)
    spans = _continue(step, continuing)
    new_spans, refused = _fit_tokens(state, claims, step)
    refused += _fit_slots(state, claims)
    if limits.all_or_nothing and (refused or claims.refused):
        first = (refused or claims.refused)[0]
        refused += [Refusal(claim.request, "order", first.need, first.have) for claim in claims]
        claims.drop_from(0)
    sequences = _seat(state, claims)
    spans.update(zip(sequences, new_spans, strict=False))
    refused += claims.refused
    claims.claims = []
    claims.close()
    return Batch(sequences, spans, state.take_plan(), refused)


def _continue(step: Step, continuing: Iterable[Sequence]) -> dict[Sequence, Span]:
    spans: dict[Sequence, Span] = {}
    for sequence in continuing:
        span = step.span(sequence.computed, sequence.prompt_end)
        if span is None:
            break
        spans[sequence] = span
    return spans


def _fit_tokens(state: State, claims: Claims, step: Step) -> tuple[list[Span], list[Refusal]]:
    spans: list[Span] = []
    rows = len(state.free_rows)
    for place, claim in enumerate(claims):
        left = step.left
        if place == rows:
            return spans, _refuse(claims, place, "sequences", (place + 1, rows))
        span = step.span(claim.start, claim.start + claim.num_tokens)
        if span is None:
            return spans, _refuse(claims, place, "tokens", (claim.num_tokens, left or 0))
        spans.append(span)
    return spans, []


def _refuse(claims: Claims, place: int, reason: Reason, numbers: tuple[int, int]) -> list[Refusal]:
    need, have = numbers
    first, *behind = claims.claims[place:]
    refused = [Refusal(first.request, reason, need, have)]
    refused += [Refusal(claim.request, "order", need, have) for claim in behind]
    claims.drop_from(place)
    return refused


def _fit_slots(state: State, claims: Claims) -> list[Refusal]:
    """Give back claims from the end until the dry count holds; what they held becomes room for the others."""
    refused: list[Refusal] = []
    while claims.claims:
        short = shortage(state, claims.claims)
        if short is None:
            break
        last = len(claims.claims) - 1
        reason: Reason = "slots" if short[0] == last or not refused else "order"
        refused = _refuse(claims, last, reason, short[1:]) + refused
    return refused


def shortage(state: State, claims: list[Claim]) -> tuple[int, int, int] | None:
    """Dry count: the first claim that runs out of slots with its need and what is there; None when all fit."""
    partial = any(claim.hit.source >= 0 for claim in claims)
    roles = _roles(state, claims) if partial else {}
    if _run_dry(state, claims, roles, [claim.cold for claim in claims]) is None:
        return None
    return _run_dry(state, claims, roles, _cold_once(state, claims))


def _run_dry(
    state: State, claims: list[Claim], roles: dict[int, tuple[int, int]], cold: list[tuple[int, ...]]
) -> tuple[int, int, int] | None:
    for group in range(len(state.config.groups)):
        have = state.store.available(group)
        for place, claim in enumerate(claims):
            takes, gives = roles.get(place, (0, 0))
            need = cold[place][group] + takes
            new = claim.prepared.blocks - claim.hit.blocks - (claim.hit.source >= 0) + claim.prepared.spare
            if need > have or new > have - need + gives:
                return place, need + new, have
            have += gives - need - new
    return None


def _cold_once(state: State, claims: list[Claim]) -> list[tuple[int, ...]]:
    """Onboards per claim and group as they are now, a page that several claims share counted for the first."""
    groups = range(len(state.config.groups))
    seen: list[set[int]] = [set() for _ in groups]
    counts: list[tuple[int, ...]] = []
    for claim in claims:
        cold = [{claim.hit.node(b) for b in np.flatnonzero(claim.hit.tiers(group) > 0).tolist()} for group in groups]
        counts.append(tuple(len(cold[group] - seen[group]) for group in groups))
        for group in groups:
            seen[group] |= cold[group]
    return counts


def _roles(state: State, claims: list[Claim]) -> dict[int, tuple[int, int]]:
    """For each partial hit: slots it takes, and slots its source gives back right after the copy.

    An idle leaf that nobody hits in full goes to its last partial hitter; all others copy. The last copier of an
    idle source that is no leaf gives it back, so that the next page of this very batch may have its slot.
    """
    by_source: dict[int, list[int]] = {}
    for place, claim in enumerate(claims):
        if claim.hit.source >= 0:
            by_source.setdefault(claim.hit.source, []).append(place)
    roles: dict[int, tuple[int, int]] = {}
    for source, places in by_source.items():
        last = claims[places[-1]].hit
        leaf, held, num_claims, tier = state.store.source_state(last)
        in_full = any(c.hit.blocks > last.blocks and c.hit.node(last.blocks) == source for c in claims)
        free = not held and not in_full and num_claims == len(places)
        for place in places:
            roles[place] = (1, 0)
        if free and leaf:
            roles[places[-1]] = (int(tier > 0), 0)
        elif free and tier == 0:
            roles[places[-1]] = (1, 1)
    return roles


def _seat(state: State, claims: Claims) -> list[Sequence]:
    """Holds first, for all of them; then slots, onboards and copies, one request after the other."""
    store = state.store
    sequences: list[Sequence] = []
    for claim in claims:
        prepared = claim.prepared
        root = state.roots.make(prepared.scope_key, prepared.request.scope) if prepared.keep else NO_ROOT
        row = state.free_rows.pop()
        store.seat(claim.hit, row, prepared.chain, root, prepared.keep)
        sequence = Sequence(state, prepared, row, claim.hit.start)
        state.sequences[prepared.request.id] = sequence
        sequences.append(sequence)
    if sequences:
        store.refresh(state.now())
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
