"""QuireView: a `Cache` as transfer sees it. Owns nothing but the way there; the cache decides."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from quire.core.cache import Cache
from quire.core.errors import InputError, StateError, say
from quire.core.finish import Finished
from quire.core.hold import Hold
from quire.core.plan import Plan
from quire.core.request import Request
from quire.core.sequence import Sequence
from quire.core.span import Span
from quire.transfer.pieces import keeps_all
from quire.transfer.slices import Places, Spans, nowhere, num_blocks, only, wants
from quire.transfer.view import Landing, Offer, Shape, content_of


class QuireView:
    """`run` carries a plan out and finishes it (setbacks of other sequences are its caller's); None: nothing moves."""

    __slots__ = ("_cache", "_run", "_shape")

    def __init__(self, cache: Cache, run: Callable[[Plan], Finished] | None = None) -> None:
        self._cache = cache
        self._run = cache.finish if run is None else run
        config = cache.config
        self._shape = Shape(tuple(group.clamped(config.max_length) for group in config.groups), config.block_size)

    def shape(self) -> Shape:
        """Groups and block size."""
        return self._shape

    def offer(self, id: Hashable, span: Span) -> Offer | None:
        """Hold the pages of these tokens; None when they were promised to make room for the prompt's next ones."""
        cache = self._cache
        sequence = cache.sequence(id)
        length = sequence.prompt_end
        if span.end > min(length, sequence.computed):
            fact = f"it has {length} tokens, {sequence.computed} of them computed"
            raise StateError(say(f"offer of [{span.start}, {span.end}) of {id!r}", fact, "offer what is computed"))
        held = cache.hold(sequence, span)
        if held is None:
            return None
        places = tuple(self._source(sequence, held, group, span.end == length) for group in range(len(held.blocks)))
        return Offer(length, places, sequence.computed, content_of(sequence.request, length), held)

    def _source(self, sequence: Sequence, held: Hold, group: int, complete: bool) -> Places:
        layer, length, size = self._shape.groups[group], sequence.prompt_end, self._shape.block_size
        places = nowhere(_blocks(sequence, layer.cross, length, size))
        inside = held.blocks[group] < len(places)  # a state may have moved on; its position says so
        places[held.blocks[group][inside]] = held.slots[group][inside]
        if layer.cross:
            return places
        ready = complete or keeps_all(layer, length, size)
        return only(places, layer.needs_at(length, size)) if ready else nowhere(len(places))

    def want(self, request: Request) -> Landing | None:
        """Claim for decoding, group by group, and admit; None when there is no room, or a held page did not come up."""
        cache = self._cache
        with cache.claim([request], purpose="decode") as claims:
            if not len(claims):
                raise InputError(str(claims.refused[0]))  # it never fits, whatever is released
            (claim,) = claims
            wanted, start = claim.wanted_blocks, claim.start
            batch = cache.admit(claims)
        if not batch.sequences:
            return None
        (sequence,) = batch.sequences
        finished = self._run(batch.plan)  # pages leave the slots that a peer is about to fill
        if any(setback.holder is sequence for setback in finished.setbacks):
            if sequence.live:
                cache.release(sequence, store=False)
            return None
        return self._landing(sequence, wanted, start)

    def _landing(self, sequence: Sequence, wanted: tuple[Spans, ...], start: int) -> Landing:
        size, length = self._shape.block_size, sequence.prompt_end
        needs, places = [], []
        for group, layer in enumerate(self._shape.groups):
            blocks = _blocks(sequence, layer.cross, length, size)
            needs.append((Span(0, blocks),) if layer.cross and blocks else layer.needs_at(length, size))
            room = nowhere(blocks)
            if layer.current:
                room[[span.start for span in wanted[group]]] = sequence.state_slot(group)
            else:
                slots = sequence.slots(group)[:blocks]
                room[: len(slots)] = slots
            places.append(only(room, wanted[group]))
            if layer.cross and not blocks:
                needs[-1] = ()
        held = wants(needs, wanted)
        return Landing(length, tuple(needs), held, tuple(places), start, content_of(sequence.request, length), sequence)

    def commit(self, landing: Landing) -> None:
        """KV of the whole prompt exists now."""
        self._cache.commit(_sequence(landing), landing.length)

    def release(self, held: Offer | Landing) -> None:
        """Drop the hold; or release a sequence whose pages did not arrive, storing nothing."""
        if isinstance(held, Landing):
            self._cache.release(_sequence(held), store=False)
        else:
            assert isinstance(held.ref, Hold)
            self._cache.drop(held.ref)


def _blocks(sequence: Sequence, cross: bool, length: int, size: int) -> int:
    """Blocks of the stream that a group reads."""
    if not cross:
        return num_blocks(length, size)
    places = sequence.prepared.encoder
    return 0 if places is None else places.blocks


def _sequence(landing: Landing) -> Sequence:
    assert isinstance(landing.ref, Sequence)
    return landing.ref
