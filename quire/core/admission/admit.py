"""Phase 2: turn claims into sequences. A dry count decides before the first move; after it nothing can fail.

claims --tokens, rows--> prefix --slots--> prefix --seat all, settle each--> sequences + plan
                           \\-- what does not fit is given back, last first
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from quire.core.admission import charge
from quire.core.admission.batch import NO_SNAPSHOTS, Batch, SequenceSpan
from quire.core.admission.budgets import Shortage, Step, shortage
from quire.core.admission.claim import claim_each
from quire.core.admission.prepare import check_device, ready_to_claim
from quire.core.admission.probe import slots_now
from quire.core.admission.step_snapshots import open_inside
from quire.core.admission.waves import Waves
from quire.core.records.errors import StateError, say, shown
from quire.core.records.request import Request
from quire.core.state.claim import Promise, Refusal
from quire.core.state.claims import Claims, drop_from, end_promises, open_promises
from quire.core.state.explained import remember_text
from quire.core.state.learner import learn
from quire.core.state.prefetching import end_prefetches
from quire.core.state.prepared import Prepared
from quire.core.state.registry import Registry, check_boarded
from quire.core.state.roots import NO_ROOT
from quire.core.state.sequence import Sequence, running_of
from quire.core.state.setup import Setup

Reason = Literal["slots", "tokens", "sequences", "order"]


def add_batch(
    registry: Registry, requests: Iterable[Request | Prepared], step: Step, continuing: tuple[Sequence, ...]
) -> Batch:
    """Claim and admit at once: no caller has these claims in hand, so they need no handle."""
    if type(requests) in (list, tuple) and not requests:
        check_device(registry.setup, "claim")
        return _continue_batch(registry, step, continuing)
    now = registry.setup.now() if registry.timed else None
    ready = ready_to_claim(registry, requests, "compute")
    promises: list[Promise] = []
    try:
        refused = claim_each(registry, ready, "compute", now, promises)
        return admit_batch(registry, promises, refused, step, continuing, now)
    except BaseException:  # misuse, or an interrupt: nothing stays held
        drop_from(promises, 0)
        raise


def admit_batch(
    registry: Registry, promises: list[Promise], unfit: list[Refusal], step: Step, continuing: tuple[Sequence, ...],
    now: int | None = None,
) -> Batch:  # fmt: skip
    """Admit the longest prefix that fits (or all, or none), and empty the list. `unfit`: refused before that."""
    if not promises and not unfit:
        return _continue_batch(registry, step, continuing)
    setup, asked = registry.setup, promises.copy()
    if now is None and registry.timed:
        now = setup.now()  # before the first change: a caller's clock may raise
    parts = _parts_of(registry, step, continuing) if continuing else []
    for claim in promises if setup.state_groups else ():  # another claim of the request may have parted elsewhere
        claim.prepared.part_at(claim.junction or 0)
    waves = Waves(registry, promises, parts) if setup.shares_pending and not step.all_or_nothing else None
    behind = [] if waves is None else waves.behind
    ends, refused = _fit_tokens(registry, promises, behind, step)
    others = _all_or_none(setup, promises, refused or unfit) if step.all_or_nothing else []
    out, lacked = _fit_slots(setup, promises, behind)
    if parts:
        parts = [part for part in parts if _extend_prompt(registry, part)]
        if registry.in_flight.steps:  # what these compute has not left yet, so parts may take more than was reserved
            out, lacked = _fit_again(setup, (promises, behind), step, others, (out, lacked))
    waiting = _left_out(continuing, parts) if len(parts) < len(continuing) else []
    sequences = _seat(registry, promises)
    if now is not None and sequences:  # a batch that is refused leaves everything as it was
        setup.refresh(now)
    parts += _settle(registry, promises, sequences, ends)
    if waves is not None and behind:
        refused, out, lacked = _admit_waves(registry, waves, step, (promises, sequences, parts), (out, lacked), now)
    snapshots = open_inside(setup, parts) if setup.inside_groups else NO_SNAPSHOTS
    admitted = list(promises) if setup.config.receipts else None
    if registry.open_prefetches:
        end_prefetches(registry.open_prefetches, [claim.prepared for claim in promises])
    end_promises(promises)
    if sequences and registry.learners:
        _learn_where_due(registry)
    _keep_waiting(registry, asked, len(sequences))
    if others or out or unfit:
        refused = _in_order(others + _slot_refusals(registry, out, lacked), refused) + unfit
    return Batch(sequences, parts, registry.take_plan(), refused, waiting, admitted, snapshots=snapshots)


def _keep_waiting(registry: Registry, asked: list[Promise], num_admitted: int) -> None:
    if num_admitted < len(asked):
        registry.waiting.keep([claim.prepared for claim in asked])


def _learn_where_due(registry: Registry) -> None:
    for store, place, learner in registry.learners:
        if store.is_due(place):
            learn(store, place, learner)


def _continue_batch(registry: Registry, step: Step, continuing: tuple[Sequence, ...]) -> Batch:
    """The next parts of running prompts, and no new request: what admitting no claims comes to."""
    setup = registry.setup
    if registry.timed:
        setup.now()  # a caller's clock may raise, before the first change
    parts = [part for part in _parts_of(registry, step, continuing) if _extend_prompt(registry, part)]
    waiting = _left_out(continuing, parts) if len(parts) < len(continuing) else []
    snapshots = open_inside(setup, parts) if setup.inside_groups else NO_SNAPSHOTS
    told: list[Promise] | None = [] if setup.config.receipts else None
    return Batch([], parts, registry.take_plan(), [], waiting, told, snapshots=snapshots)


def promises_to_admit(registry: Registry, claims: Claims) -> list[Promise]:
    """Of claims that can be admitted: once, by the cache that made them."""
    promises = open_promises(claims, registry.open_claims)
    for claim in promises:
        name = claim.prepared.request.id
        if name in registry.sequences or claim.prepared.seated:
            fact = "a sequence of that id was admitted since"
            raise StateError(say(f"admit of request {shown(name)}", fact, "drop these claims and use another id"))
    return promises


def _parts_of(registry: Registry, step: Step, continuing: Iterable[Sequence]) -> list[SequenceSpan]:
    setup, flies = registry.setup, registry.in_flight.busy
    parts: list[SequenceSpan] = []
    seen: set[Sequence] = set()
    for sequence in continuing:
        start, end = setup.store.computed.item(sequence.row), setup.store.length.item(sequence.row)
        if flies:
            check_boarded(registry.in_flight, "continuing", sequence)
            start = max(start, setup.store.launched.item(sequence.row))  # steps in flight compute up to there
        if sequence in seen or start >= sequence.prompt_end:
            fact = "it is given twice" if sequence in seen else "its prompt is computed, or steps in flight compute it"
            cure = "pass each unfinished prompt once; a sequence that decodes only grows"
            raise StateError(say(f"continuing {shown(sequence.id)}", fact, cure))
        seen.add(sequence)
        prepared = running_of(sequence).prepared
        if end > sequence.prompt_end:  # what was generated meanwhile is computed again too, as far as it has pages
            end = max(sequence.prompt_end, min(end, setup.longest(sequence.row)))
        if setup.state_groups:
            end = prepared.stop_after(start, end)
        stop = step.end(start, end, prepared)
        if stop is None:
            step.left = 0  # it waits, and so does every request behind it
            break
        parts.append((sequence, start, stop))
    return parts


def _fit_tokens(
    registry: Registry, claims: list[Promise], behind: list[Promise], step: Step
) -> tuple[list[int], list[Refusal]]:
    """Where each claim's part of this step ends; those that the budget or the rows do not reach are given back, with
    those behind them."""
    setup, rows = registry.setup, len(registry.free_rows)
    ends: list[int] = []
    for place, claim in enumerate(claims):
        if place == rows:
            return ends, _refuse((claims, behind), place, "sequences", (place + 1, rows))
        left, start, prepared = step.left, claim.hit.start, claim.prepared
        stop = start + claim.num_tokens
        if setup.state_groups:
            stop = prepared.stop_after(start, stop)
        end = step.end(start, stop, prepared) if step.limited else stop
        if end is None:
            lack, unchunked = step.lack(start, claim.num_tokens, left, prepared), step.never_whole(stop - start)
            return ends, _refuse((claims, behind), place, "tokens", lack, unchunked)
        ends.append(end)
    return ends, []


def _refuse(
    claims: tuple[list[Promise], list[Promise]], place: int, reason: Reason, numbers: tuple[int, int],
    unchunked: bool = False,
) -> list[Refusal]:  # fmt: skip
    """The first that does not fit says what it lacks; those behind it are out for the order."""
    later = drop_from(claims[1], 0)
    first, *behind = drop_from(claims[0], place) + later
    refusal = Refusal(first.request, reason, *numbers, unchunked=unchunked)
    return [refusal, *(Refusal(claim.request, "order", *numbers) for claim in behind)]


def _fit_slots(setup: Setup, claims: list[Promise], behind: list[Promise]) -> tuple[list[Promise], Shortage | None]:
    """Give back claims from the end until the dry count holds; what they held becomes room for the others. Those
    `behind` are not counted yet, and are the first to go."""
    out: list[Promise] = []
    lacked: Shortage | None = None  # what the last claim given back was short of
    while claims and (short := shortage(setup, claims)) is not None:
        last = behind or claims
        out = drop_from(last, len(last) - 1) + out
        lacked = short
    return out, lacked


def _fit_again(
    setup: Setup,
    claims: tuple[list[Promise], list[Promise]],
    step: Step,
    others: list[Refusal],
    before: tuple[list[Promise], Shortage | None],
) -> tuple[list[Promise], Shortage | None]:
    """The same once parts of running prompts have their pages; with all_or_nothing `others` get the refusals of all."""
    if step.all_or_nothing:
        others += _all_or_none(setup, claims[0], [])
    out, lacked = _fit_slots(setup, *claims)
    return out + before[0], lacked or before[1]


def _admit_waves(
    registry: Registry,
    waves: Waves,
    step: Step,
    made: tuple[list[Promise], list[Sequence], list[SequenceSpan]],
    before: tuple[list[Promise], Shortage | None],
    now: int | None,
) -> tuple[list[Refusal], list[Promise], Shortage | None]:
    """Those behind the first wave, which is admitted: what was `made` of it is added to."""
    (promises, sequences, parts), (out, lacked) = made, before
    refused: list[Refusal] = []
    try:
        while waves.behind:
            claims = waves.next(parts, now)
            ends, refused = _fit_tokens(registry, claims, waves.behind, step)
            last, short = _fit_slots(registry.setup, claims, waves.behind)
            out, lacked = last + out, short or lacked
            seated = _seat(registry, claims)
            if now is not None and seated and not sequences:  # the first wave may be empty
                registry.setup.refresh(now)
            parts += _settle(registry, claims, seated, ends)
            sequences += seated
            promises += claims
    finally:
        waves.close()
    return refused, out, lacked


def _all_or_none(setup: Setup, claims: list[Promise], refused: list[Refusal]) -> list[Refusal]:
    """When one does not fit the others are out too, for the order, with the numbers of the one that lacks."""
    short = shortage(setup, claims)
    if short is None:
        if not refused:
            return []
        short = Shortage(-1, refused[0].need, refused[0].have, -1)
    dropped = enumerate(drop_from(claims, 0))
    return [_refusal(claim, short, "slots" if nth == short.place else "order") for nth, claim in dropped]


def _refusal(claim: Promise, short: Shortage, reason: Reason) -> Refusal:
    group = short.group if reason == "slots" else None
    return Refusal(claim.request, reason, short.need, short.have, group=group)


def _slot_refusals(registry: Registry, out: list[Promise], lacked: Shortage | None) -> list[Refusal]:
    """What the first one left out would take off the free count now, and what is free."""
    if not out or lacked is None:
        return []
    setup, now = registry.setup, slots_now(registry, out[0].prepared, out[0].purpose)
    facts = [
        Shortage(0, sum([now[group] for group in groups]), setup.available(groups[0]), groups[0])
        for groups in setup.sharers
    ]
    short = max(facts, key=lambda fact: fact.need - fact.have)
    if short.need <= short.have:  # what it lacks is room beside the page it would copy from: the dry count knows
        short = lacked
    first, *behind = out
    return [_refusal(first, short, "slots"), *(_refusal(claim, short, "order") for claim in behind)]


def _in_order(front: list[Refusal], behind: list[Refusal]) -> list[Refusal]:
    """All refusals: where one in front lacks slots, those that tokens or rows did not reach wait behind it. What they
    lacked was counted with it inside, and is not so without it."""
    lacking = next((refusal for refusal in front if refusal.reason == "slots"), None)
    if lacking is None:
        return front + behind
    return front + [Refusal(refusal.request, "order", lacking.need, lacking.have) for refusal in behind]


def _extend_prompt(registry: Registry, part: SequenceSpan) -> bool:
    """Pages for the next part of a prompt, as reserved at its admission; only claims still open can be in the way."""
    setup, (sequence, start, end) = registry.setup, part
    running = running_of(sequence)
    length = setup.store.length.item(sequence.row)
    if length > sequence.prompt_end and (most := min(length, setup.longest(sequence.row))) > sequence.prompt_end:
        running.granted = sequence.prompt_end = most  # what was generated meanwhile is computed again too
    if setup.bounded and end > running.granted:  # else it has them already
        prepared = running.prepared
        asks = charge.later_asks(setup, prepared, sequence.start, (start, end), running.owned)
        if setup.store.extend(sequence.row, asks, prepared.priorities, prepared.ticks) < 0:
            return False
    if end > running.granted:
        running.granted = end
    setup.store.hand_out(sequence.row, end)
    if setup.bounded:
        registry.check_commits(sequence)
    return True


def _left_out(continuing: tuple[Sequence, ...], parts: list[SequenceSpan]) -> list[Sequence]:
    served = {sequence for sequence, _, _ in parts}
    return [sequence for sequence in continuing if sequence not in served]


def _seat(registry: Registry, claims: list[Promise]) -> list[Sequence]:
    """First all of them get their hits, before any slot moves."""
    setup, sequences = registry.setup, []
    for claim in claims:
        prepared = claim.prepared
        keep = prepared.keep and not claim.is_cut
        root = setup.roots.make(prepared.scope_key, prepared.scope) if keep and prepared.scope else NO_ROOT
        row = registry.free_rows.pop()
        sequence = Sequence(setup, prepared, row, claim.hit.start)
        if registry.page_watcher is not None:
            registry.page_watcher.seating(sequence, claim)
        if setup.shares_pending:
            _share_pending(registry, claim, row, (root, keep))
        else:
            setup.store.seat(claim.hit, row, prepared.chain, root, keep)
        if prepared.named:
            setup.store.name_points(row, prepared.named)
        if claim.cross_hit is not None:
            _seat_across(setup, claim, row)
        if registry.content is not None:
            remember_text(prepared, registry.content)
        prepared.seated = True
        registry.sequences[prepared.request.id] = sequence
        sequences.append(sequence)
    return sequences


def _share_pending(registry: Registry, claim: Promise, row: int, place: tuple[int, bool]) -> None:
    """Its hit may end with what steps in flight compute for another row: it is computed as these go."""
    setup = registry.setup
    owner = setup.store.owner(claim.hit)
    setup.store.seat(claim.hit, row, claim.prepared.chain, *place)
    if owner >= 0:
        span = setup.store.computed.item(row), claim.hit.start
        registry.in_flight.ride(row, owner, span)


def _settle(
    registry: Registry, claims: list[Promise], sequences: list[Sequence], ends: list[int]
) -> list[SequenceSpan]:
    """Then slots, onboards and copies, one request after the other; what each computes now."""
    setup, parts = registry.setup, []
    for place, claim in enumerate(claims):  # tokens may have sufficed for more
        sequence, end = sequences[place], ends[place]
        prepared, hit, decodes = claim.prepared, claim.hit, claim.purpose == "decode"
        running = running_of(sequence)
        received = decodes and setup.groups_differ
        if setup.windows:
            running.owned = setup.store.owned(sequence.row)
        owned = running.owned
        if prepared.request.session is not None:
            _supersede(registry, sequence, prepared.scope_key, prepared.request.session)
        asks = charge.decode_asks(setup, prepared) if received else charge.asks(setup, prepared, hit, end, owned)
        setup.store.settle(
            sequence.row, hit, asks, prepared.priorities, prepared.ticks,
            prepared.decode_priority, prepared.decode_ticks,
            sequence.start if decodes else end,  # what a transfer brings is not handed out to compute
        )  # fmt: skip
        if claim.cross_hit is not None:
            _settle_across(setup, claim, sequence.row)
        parts.append((sequence, sequence.start, end))
        running.received = received
        running.granted = prepared.end if decodes else end
        if received or setup.bounded:
            registry.check_commits(sequence)
    return parts


def _supersede(registry: Registry, sequence: Sequence, scope_key: bytes, session: str) -> None:
    """What the last of its session left behind, and this one does not go on from, makes room first."""
    end = registry.sessions.pop((scope_key, session), None)
    if end is not None:
        registry.setup.store.supersede(sequence.row, end)


def _seat_across(setup: Setup, claim: Promise, row: int) -> None:
    places, cross, hit = claim.prepared.encoder, setup.cross, claim.cross_hit
    assert cross is not None and places is not None and hit is not None
    scope = claim.request.scope
    keep = places.keep and not claim.is_cross_cut
    root = cross.roots.make(scope.key, scope) if keep else NO_ROOT
    cross.store.seat(hit, row, places.chain, root, keep)


def _settle_across(setup: Setup, claim: Promise, row: int) -> None:
    prepared, places, cross, hit = claim.prepared, claim.prepared.encoder, setup.cross, claim.cross_hit
    assert cross is not None and places is not None and hit is not None
    asks = [(hit.blocks, places.blocks, 0, 0)] * (len(setup.groups) - len(setup.own_groups))
    cross.store.settle(row, hit, asks, None, None, prepared.decode_priority, prepared.decode_ticks)
