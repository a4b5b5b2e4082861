"""Phase 1: find and hold every reusable page of a batch. Allocates, moves, reorders and emits nothing.

request --prepare--> Prepared --walk, claim--> Claim --admit--> Sequence
                                                 \\--drop----> nothing happened
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np

from quire.core.admission import charge
from quire.core.admission.prepare import ready_to_claim
from quire.core.admission.promise import make_promise
from quire.core.records.config import num_encoder_columns
from quire.core.records.errors import say
from quire.core.records.request import Request
from quire.core.state.claim import Promise, Refusal, explained_of
from quire.core.state.claims import Claims, drop_from, promises_in
from quire.core.state.explained import look_back, look_elsewhere
from quire.core.state.prepared import Prepared, Purpose, ReadyRequest
from quire.core.state.registry import Registry
from quire.core.state.setup import Setup

_ALL: AbstractContextManager[None] = nullcontext()


def claim_batch(registry: Registry, requests: Iterable[Request | Prepared], purpose: Purpose) -> Claims:
    """Hold every reusable page of the batch before any slot moves, for a caller that will admit it or drop it."""
    setup = registry.setup
    now = setup.now() if setup.config.receipts else None  # before the first look: a caller's clock may raise
    ready = ready_to_claim(registry, requests, purpose)
    batch = Claims(setup.lock, registry.open_claims, registry.abandoned, [])
    try:
        batch.refused += claim_each(registry, ready, purpose, now, promises_in(batch))
    except BaseException:  # an interrupt, no memory: all of them or none
        batch.drop()
        raise
    return batch


def claim_each(
    registry: Registry, ready: list[ReadyRequest], purpose: Purpose, now: int | None, promises: list[Promise]
) -> list[Refusal]:
    """Hold what there is for each of them, one promise more for each; those too large for the cache are refused.

    If it raises, the promises made so far are the caller's to give back. `now`: with receipts, the time.
    """
    refused: list[Refusal] = []
    setup, explains = registry.setup, registry.setup.config.receipts
    looks = setup.config.receipt_scopes or registry.content is not None
    usual = (now, None, None, None) if explains and now is not None and not looks else None
    for prepared in ready:
        if prepared.fits != purpose:  # asked once, however often it is claimed
            never = never_fits(setup, prepared, purpose)
            if never is not None:
                refused.append(never)
                continue
            prepared.fits = purpose
        claim = Promise(prepared, purpose)
        with launched_only(registry):
            row = make_promise(setup, claim, explains)
        promises.append(claim)
        if row < 0 and usual is not None:
            claim.noted = usual
        elif explains and now is not None:
            note_facts(registry, claim, row, now)
        if prepared.timed:
            registry.timed = True
    return refused


def launched_only(registry: Registry) -> AbstractContextManager[None]:
    """While it is open, rows that share what is yet to be launched are as far as launched steps compute them.

        a  |......|          admitted, not launched
        b  |aaaa|..|         shares a's first pages, in the same batch: both are launched together
        c  |?                a claim between that admission and the launch finds nothing of a, and nothing of it in b

    Else c would rest on what no step has begun to compute, also after a and b have been released.
    """
    return _without_coming(registry) if registry.in_flight.coming else _ALL


@contextmanager
def _without_coming(registry: Registry) -> Iterator[None]:
    flight, store = registry.in_flight, registry.setup.store
    ends = {ride.row: 0 for ride in flight.coming}
    for ride in (ride for some in flight.rides.values() for ride in some):
        if ride.row in ends:
            ends[ride.row] = max(ends[ride.row], ride.end)
    rows = np.array(list(ends), np.int32)
    before = store.launched[rows]
    store.launch(rows, np.array(list(ends.values()), np.int32))
    try:
        yield
    finally:
        store.launch(rows, before)


def note_facts(registry: Registry, claim: Promise, row: int, now: int) -> None:
    """What else its receipt will say, where a row computes what it lacks or other scopes are asked: later calls change
    the tree, and rows get other sequences."""
    computing = registry.sequence_in(row) if row >= 0 else None
    scopes = registry.setup.config.receipt_scopes
    elsewhere = look_elsewhere(claim.prepared, explained_of(claim)[0], scopes) if scopes else None
    claim.noted = now, computing, elsewhere, look_back(claim.prepared, registry.content)


def never_fits(setup: Setup, prepared: ReadyRequest, purpose: Purpose) -> Refusal | None:
    """A request larger than the whole cache is refused at once, with the numbers."""
    request, config = prepared.request, setup.config
    least, places = prepared.length + request.extra_tokens, prepared.encoder
    if least > config.max_length:
        return Refusal(request, "tokens", least, config.max_length, never=True)
    if request.uncut and config.max_chunk is not None:
        together = max(map(len, request.uncut))
        if together > config.max_chunk:
            return Refusal(request, "tokens", together, config.max_chunk, never=True)
    longest = max(least, prepared.length + prepared.new_tokens) if request.max_new_tokens else least
    # as if beams shared nothing and nothing were forgotten; a state has one page more
    most = -(-(longest + setup.most_extra) // setup.block_size) * request.beams + 1
    if places is None and most <= setup.smallest_share:
        return None  # the usual case: there is far more room than that
    if places is not None and places.blocks > num_encoder_columns(config):
        most = num_encoder_columns(config) * config.block_size
        return Refusal(request, "tokens", places.length, most, never=True, group=setup.own_groups.stop)
    for groups in setup.sharers:
        need = sum([charge.worst(setup, prepared, group, purpose) for group in groups])
        have = setup.device_slots[groups[0]]
        if need > have:
            return Refusal(request, "slots", need, have, never=True, group=groups[0])
    return None


def give_back(registry: Registry) -> None:
    """What was claimed and lost is given back, the last first. Between two calls only: never inside one.

    A finalizer may have ended them since they were noted, or may have kept them: then they are settled.
    """
    lost = 0
    while registry.abandoned:  # another thread may have been here before
        promises = registry.open_claims.pop(registry.abandoned.pop(), [])
        lost += len(promises)
        drop_from(promises, 0)
    if not lost:
        return
    fact = f"{lost} of them were lost, neither admitted nor dropped: they are given back"
    warnings.warn(say("claims", fact, "use a `with` block"), ResourceWarning, stacklevel=4)


def open_claims(registry: Registry) -> list[Claims]:
    """Those that were neither admitted nor dropped, in the order they were made."""
    return [claims for ref in registry.open_claims if (claims := ref()) is not None]
