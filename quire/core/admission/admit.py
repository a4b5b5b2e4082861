"""Phase 2: turn claims into sequences. A dry count decides before the first move; after it nothing can fail.

claims --tokens, rows--> prefix --slots--> prefix --seat all, settle each--> sequences + plan
                           \\-- what does not fit is given back, last first
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from quire.core.admission import charge
from quire.core.admission.claim import Claim, Refusal
from quire.core.admission.claims import Claims, ended
from quire.core.admission.dry import Shortage, shortage
from quire.core.admission.probe import probe
from quire.core.records.errors import StateError, UnknownError, say, shown
from quire.core.records.plan import Plan
from quire.core.records.span import Span
from quire.core.records.step import Step
from quire.core.state.roots import NO_ROOT
from quire.core.state.sequence import Sequence, watch
from quire.core.state.state import State


class Batch:
    """What one admission decided: sequences in order, the span each computes now, the moves, who stays out."""

    __slots__ = ("_edges", "_spans", "plan", "refused", "sequences", "waiting")

    def __init__(
        self, sequences: list[Sequence], edges: list[Edges], plan: Plan, refused: list[Refusal], waiting: list[Sequence]
    ) -> None:
        self.sequences = sequences
        self.plan = plan
        self.refused = refused
        self.waiting = waiting  # continuing ones without a span: no budget left, or open claims hold what they need
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

    def __repr__(self) -> str:
        who = f"{len(self.sequences)} sequences, {len(self.refused)} refused, {len(self.waiting)} waiting"
        return f"Batch({who}, {self.num_tokens} tokens, {shown(self.plan)})"


Edges = tuple[Sequence, int, int]  # what a sequence computes now, from and to
Reason = Literal["slots", "tokens", "sequences", "order"]


def admit_batch(state: State, claims: Claims, step: Step, continuing: tuple[Sequence, ...]) -> Batch:
    """Admit the longest prefix that fits (or all, or none) of open claims; the rest is given back."""
    now = state.now() if state.timed else 0  # before the first change: a caller's clock may raise
    edges = _continue(step, continuing, state.block_size) if continuing else []
    ends, refused = _fit_tokens(state, claims, step)
    others = _all_or_none(state, claims, refused) if step.all_or_nothing else []
    out, lacked = _fit_slots(state, claims)
    if edges:
        edges = [edge for edge in edges if _go_on(state, *edge)]
    waiting = _left_out(continuing, edges) if continuing else []
    sequences = _seat(state, claims.claims)
    if state.timed:
        state.refresh(now)
    edges += _settle(state, claims.claims, sequences, ends)
    ended(claims)
    if others or out or claims.refused:
        refused = others + _slot_refusals(state, out, lacked) + refused + claims.refused
    return Batch(sequences, edges, state.take_plan(), refused, waiting)


def check_open(state: State, claims: Claims) -> None:
    """Claims can be admitted once, by the cache that made them."""
    if claims.state is not state:
        raise UnknownError(say("admit of these claims", "another cache made them", "admit them there"))
    if claims.settled:
        raise StateError(say("admit of these claims", "they were admitted or dropped before", "claim again"))
    for claim in claims.claims:
        name = claim.prepared.request.id
        if name in state.sequences or claim.prepared.seated:
            fact = "a sequence of that id was admitted since"
            raise StateError(say(f"admit of request {shown(name)}", fact, "drop these claims, or use another id"))


def _continue(step: Step, continuing: Iterable[Sequence], block_size: int) -> list[Edges]:
    edges: list[Edges] = []
    seen: set[Sequence] = set()
    for sequence in continuing:
        start, end = sequence.computed, sequence.length
        if sequence in seen or start >= sequence.prompt_end:
            fact = "it is given twice" if sequence in seen else "its prompt is computed"
            raise StateError(say(f"continuing {shown(sequence.id)}", fact, "pass each unfinished prompt once"))
        seen.add(sequence)
        stop = step.end(start, sequence.prepared.stop_after(start, end), block_size)
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
        stop = start + claim.num_tokens
        end = step.end(start, claim.prepared.stop_after(start, stop) if state.bounded else stop, state.block_size)
        if end is None:
            return ends, _refuse(claims, place, "tokens", (claim.num_tokens, left or 0))
        ends.append(end)
    return ends, []


def _refuse(claims: Claims, place: int, reason: Reason, numbers: tuple[int, int]) -> list[Refusal]:
    """The first that does not fit says what it lacks; those behind it are out for the order."""
    first, *behind = claims.drop_from(place)
    return [Refusal(first.request, reason, *numbers), *(Refusal(claim.request, "order", *numbers) for claim in behind)]


def _fit_slots(state: State, claims: Claims) -> tuple[list[Claim], Shortage | None]:
    """Give back claims from the end until the dry count holds; what they held becomes room for the others."""
    out: list[Claim] = []
    lacked: Shortage | None = None  # by the last one given back
    while claims.claims and (short := shortage(state, claims.claims)) is not None:
        out = claims.drop_from(len(claims) - 1) + out
        lacked = short
    return out, lacked


def _all_or_none(state: State, claims: Claims, behind: list[Refusal]) -> list[Refusal]:
    """When one does not fit the others are out too, for the order, with the numbers of the one that lacks."""
    lacking = (behind or claims.refused)[:1]
    short = shortage(state, claims.claims)
    if short is None:
        if not lacking:
            return []
        short = Shortage(-1, lacking[0].need, lacking[0].have, -1)
    dropped = enumerate(claims.drop_from(0))
    return [_refusal(claim, short, "slots" if nth == short.place else "order") for nth, claim in dropped]


def _refusal(claim: Claim, short: Shortage, reason: Reason) -> Refusal:
    group = short.group if reason == "slots" else None
    return Refusal(claim.request, reason, short.need, short.have, group=group)


def _slot_refusals(state: State, out: list[Claim], lacked: Shortage | None) -> list[Refusal]:
    """What the first one left out would take off the free count now, and what is free."""
    if not out or lacked is None:
        return []
    (now,) = probe(state, [out[0].prepared], out[0].purpose)
    facts = [Shortage(0, now.slots_now[group], state.available(group), group) for group in state.groups]
    short = max(facts, key=lambda fact: fact.need - fact.have)
    if short.need <= short.have:  # the source it would copy from is in its own way: say what the dry count said
        short = lacked
    first, *behind = out
    return [_refusal(first, short, "slots"), *(_refusal(claim, short, "order") for claim in behind)]


def _go_on(state: State, sequence: Sequence, start: int, end: int) -> bool:
    """Pages for the next part of a prompt, as promised at its admission; only claims still open can be in the way."""
    prepared = sequence.prepared
    if sequence.length > sequence.prompt_end:  # what was generated meanwhile has pages, and is computed again too
        sequence.granted = sequence.prompt_end = sequence.length
    if state.bounded and end > sequence.granted:  # else they are there
        asks = charge.later_asks(state, prepared, sequence.start, (start, end))
        if state.store.extend(sequence.row, asks, prepared.priorities, prepared.ticks) < 0:
            return False
    sequence.granted = max(sequence.granted, end)
    state.store.hand_out(sequence.row, end)
    if state.bounded:
        watch(state, sequence)
    return True


def _left_out(continuing: tuple[Sequence, ...], edges: list[Edges]) -> list[Sequence]:
    served = {sequence for sequence, _, _ in edges}
    return [sequence for sequence in continuing if sequence not in served]


def _seat(state: State, claims: list[Claim]) -> list[Sequence]:
    """Holds first, for all of them."""
    sequences: list[Sequence] = []
    for claim in claims:
        prepared = claim.prepared
        root = state.roots.make(prepared.scope_key, prepared.scope) if prepared.keep and prepared.scope else NO_ROOT
        row = state.free_rows.pop()
        state.store.seat(claim.hit, row, prepared.chain, root, prepared.keep)
        if claim.cross_hit is not None:
            _seat_across(state, claim, row)
        prepared.seated = True
        sequence = state.sequences[prepared.request.id] = Sequence(state, prepared, row, claim.hit.start)
        sequences.append(sequence)
    return sequences


def _settle(state: State, claims: list[Claim], sequences: list[Sequence], ends: list[int]) -> list[Edges]:
    """Then slots, onboards and copies, one request after the other; what each computes now."""
    edges: list[Edges] = []
    for claim, sequence, end in zip(claims, sequences, ends, strict=False):  # more ends than fitted
        prepared, decodes = claim.prepared, claim.purpose == "decode"
        apart, handed = decodes and state.apart, sequence.start if decodes else end  # what a transfer brings is told
        asks = charge.decode_asks(state, prepared) if apart else charge.asks(state, prepared, claim.hit, end)
        state.store.settle(
            sequence.row, claim.hit, asks, prepared.priorities, prepared.ticks,
            prepared.decode_priority, prepared.decode_ticks, handed,
        )  # fmt: skip
        if claim.cross_hit is not None:
            _settle_across(state, claim, sequence.row)
        edges.append((sequence, sequence.start, end))
        sequence.received = apart
        sequence.granted = prepared.end if decodes else end
        if apart or state.bounded:
            watch(state, sequence)
    return edges


def _seat_across(state: State, claim: Claim, row: int) -> None:
    prepared, cross = claim.prepared, state.cross
    assert cross is not None and prepared.encoder is not None and claim.cross_hit is not None
    keep = prepared.encoder.keep
    scope = prepared.request.scope
    root = cross.roots.make(scope.key, scope) if keep else NO_ROOT
    cross.store.seat(claim.cross_hit, row, prepared.encoder.chain, root, keep)


def _settle_across(state: State, claim: Claim, row: int) -> None:
    prepared, cross = claim.prepared, state.cross
    assert cross is not None and prepared.encoder is not None and claim.cross_hit is not None
    ask = (claim.cross_hit.blocks, prepared.encoder.blocks, 0, 0)
    asks = [ask] * (len(state.groups) - len(state.own_groups))
    cross.store.settle(row, claim.cross_hit, asks, None, None, prepared.decode_priority, prepared.decode_ticks)
