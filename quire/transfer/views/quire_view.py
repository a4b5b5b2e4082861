"""QuireView: a `Cache` as transfer sees it. Owns nothing but the way there; the cache decides."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace

import numpy as np

from quire.core.cache import Cache
from quire.core.records.errors import InputError, StateError, say
from quire.core.records.groups import LayerGroup
from quire.core.records.plan import Plan
from quire.core.records.request import Int32, Request
from quire.core.records.span import Span
from quire.core.sequences.setbacks import Finished
from quire.core.state.claim import Claim
from quire.core.state.claims import Claims
from quire.core.state.hold import Hold
from quire.core.state.sequence import Sequence
from quire.transfer.geometry.pieces import keeps_all
from quire.transfer.geometry.slices import Places, Spans, nowhere, num_blocks, only
from quire.transfer.geometry.wants import first_missing, wants
from quire.transfer.views.view import CacheShape, Landing, Offer, content_of


class QuireView:
    """`run` carries a plan out and finishes it (setbacks of other sequences are its caller's); None: nothing moves."""

    __slots__ = ("_cache", "_run", "_shape")

    def __init__(self, cache: Cache, run: Callable[[Plan], Finished] | None = None) -> None:
        self._cache = cache
        self._run = cache.finish if run is None else run
        config = cache.config
        self._shape = CacheShape(tuple(group.clamped(config.max_length) for group in config.groups), config.block_size)

    def __repr__(self) -> str:
        return f"QuireView({len(self._shape.groups)} groups, {self._cache.num_sequences} sequences)"

    def shape(self) -> CacheShape:
        """Groups and block size."""
        return self._shape

    def offer(self, id: Hashable, span: Span) -> Offer | None:
        """Hold the pages of these tokens.

        None while a plan that is not finished moves one of them, and when they are to make room for the
        prompt's next ones.
        """
        cache = self._cache
        sequence = cache.sequence(id)
        length = sequence.prompt_end
        if span.end > min(length, sequence.computed):
            fact = f"it has {length} tokens, {sequence.computed} of them computed"
            raise StateError(say(f"offer of [{span.start}, {span.end}) of {id!r}", fact, "offer what is computed"))
        content = content_of(sequence.request, length)
        if not span:  # its facts alone
            facts = (nowhere(_blocks(sequence, g.cross, length, self._shape.block_size)) for g in self._shape.groups)
            return Offer(length, tuple(facts), sequence.computed, content, None)
        held = cache.hold(sequence, span)
        if held is None:
            return None
        if self._moves(held.slots):
            cache.drop(held)
            return None
        places = tuple(self._source(sequence, held, group, span.end == length) for group in range(len(held.blocks)))
        return Offer(length, places, sequence.computed, content, held)

    def _source(self, sequence: Sequence, held: Hold, group: int, complete: bool) -> Places:
        layer, length, size = self._shape.groups[group], sequence.prompt_end, self._shape.block_size
        places = nowhere(_blocks(sequence, layer.cross, length, size))
        inside = held.blocks[group] < len(places)  # a state may have moved on; its position says so
        places[held.blocks[group][inside]] = held.slots[group][inside]
        if layer.cross:
            return places
        ready = complete or keeps_all(layer, length, size)
        return only(places, layer.needs_at(length, size)) if ready else nowhere(len(places))

    def want(self, request: Request, *, one_start: bool = False) -> Landing | None:
        """Claim for decoding, group by group, and admit.

        None when there is no room, when a held page did not come up, and while a plan that is not finished moves one of
        its pages: a failure there could not be reported to a transfer.
        """
        cache = self._cache
        if one_start:
            request = replace(request, reuse_limit=self._first_missing(request))
        with cache.claim([request], purpose="decode") as claims:
            claim = _the_claim(claims)
            wanted, start = claim.wanted_blocks, claim.start
            batch = cache.admit(claims)
        try:
            finished = self._run(batch.plan)  # also when nothing was admitted: it may have what others are owed
        except BaseException:
            for sequence in batch.sequences:
                cache.release(sequence, store=False)
            raise
        if not batch.sequences:
            return None
        (sequence,) = batch.sequences
        spoilt = any(setback.holder is sequence for setback in finished.setbacks)
        if spoilt or self._moves([_slots(sequence, group, layer) for group, layer in enumerate(self._shape.groups)]):
            if sequence.live:
                cache.release(sequence, store=False)
            return None
        return self._landing(sequence, wanted, start)

    def _first_missing(self, request: Request) -> int:
        """Tokens before the first block that any group lacks."""
        with self._cache.claim([request], purpose="decode") as claims:
            claim = _the_claim(claims)
        pairs = zip(self._shape.groups, claim.wanted_blocks, strict=True)
        own = [(layer, wanted) for layer, wanted in pairs if not layer.cross]
        needs = [layer.needs_at(claim.prepared.end, self._shape.block_size) for layer, _ in own]
        return first_missing(needs, wants(needs, [wanted for _, wanted in own])) * self._shape.block_size

    def _moves(self, slots: Iterable[Int32]) -> bool:
        """Whether an unfinished plan touches one of these, group by group."""
        plans = self._cache.open_plans()
        return any(plan.touches(group, mine) for group, mine in enumerate(slots) for plan in plans)

    def _landing(self, sequence: Sequence, wanted: tuple[Spans, ...], start: int) -> Landing:
        size, length = self._shape.block_size, sequence.prompt_end
        needs, places = [], []
        for group, layer in enumerate(self._shape.groups):
            blocks = _blocks(sequence, layer.cross, length, size)
            needs.append((Span(0, blocks),) if layer.cross and blocks else layer.needs_at(length, size))
            room, slots = nowhere(blocks), _slots(sequence, group, layer)
            if layer.current:
                room[[span.start for span in wanted[group]]] = slots
            else:
                room[: min(len(slots), blocks)] = slots[:blocks]
            places.append(only(room, wanted[group]))
            if layer.cross and not blocks:
                needs[-1] = ()
        held = wants(needs, wanted)
        return Landing(length, tuple(needs), held, tuple(places), start, content_of(sequence.request, length), sequence)

    def commit(self, landing: Landing) -> None:
        """KV of the whole prompt exists now."""
        sequence = _sequence(landing)
        try:
            self._cache.commit(sequence, landing.length)
        except BaseException:
            if sequence.live:
                self._cache.release(sequence, store=False)
            raise

    def release(self, held: Offer | Landing) -> None:
        """Drop the hold; or release a sequence whose pages did not arrive, storing nothing."""
        if isinstance(held, Landing):
            self._cache.release(_sequence(held), store=False)
        elif held.ref is not None:
            assert isinstance(held.ref, Hold)
            self._cache.drop(held.ref)


def _the_claim(claims: Claims) -> Claim:
    if not len(claims):
        raise InputError(str(claims.refused[0]))  # it never fits, whatever is released
    return claims[0]


def _slots(sequence: Sequence, group: int, layer: LayerGroup) -> Int32:
    """Device slots of a sequence: of a state group its one."""
    return np.array([sequence.state_slot(group)], np.int32) if layer.current else sequence.slots(group)


def _blocks(sequence: Sequence, cross: bool, length: int, size: int) -> int:
    """Blocks of the stream that a group reads."""
    if not cross:
        return num_blocks(length, size)
    encoder = sequence.request.encoder
    return 0 if encoder is None else num_blocks(encoder.length, size)


def _sequence(landing: Landing) -> Sequence:
    assert isinstance(landing.ref, Sequence)
    return landing.ref
