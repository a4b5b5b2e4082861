"""Claim: one request's hold on what the cache has for it, before admission. Knows neither rows nor slots.

`Promise` is what the cache keeps of it: `quire.core.admission.promise` finds the hit and fills in the numbers. `Claim`
is what the caller sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from quire.core.records.errors import StateError, say, shown
from quire.core.records.groups import is_stop, snapshots_inside
from quire.core.records.reports.receipt import Receipt
from quire.core.records.request import Request
from quire.core.records.span import Span, merged, without
from quire.core.state.explained import Noted, receipt_of
from quire.core.state.prepared import Prepared, Purpose, ReadyRequest, ready_of

if TYPE_CHECKING:
    from quire.core.store.interface import Explained, Hit

Spans = tuple[Span, ...]
RECEIPTS_OFF = say("a receipt", "this cache makes none", "build it with CacheConfig(receipts=True), or ask explain")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that was not admitted: which resource, how much it needs, how much there is."""

    request: Request
    reason: Literal["slots", "tokens", "sequences", "order"]  # order: one before it did not fit
    need: int
    have: int
    never: bool = False  # it cannot fit this cache, whatever is released
    group: int | None = None  # of slots: the layer group that lacks them
    unchunked: bool = False  # longer than the whole token budget, and without `max_chunk` it is not computed in parts

    def __str__(self) -> str:
        if self.reason == "order":
            return f"request {shown(self.request.id)} waits: one before it did not fit; try in a later step"
        cure = "shorten it or enlarge the cache" if self.never else "release something or try in a later step"
        if self.never and self.reason == "tokens" and self.group is None:
            limit = "max_length" if self.need >= len(self.request.tokens) else "max_chunk (tokens that stay together)"
            cure = f"shorten it or raise {limit}"
        if self.unchunked:
            cure = "no step has more: pass max_chunk, and it is computed in parts"
        where = "" if self.group is None else f" of group {self.group}"
        return f"request {shown(self.request.id)} needs {self.need} {self.reason}{where}, {self.have} are there; {cure}"


class Promise:
    """What one request was promised by its claim, as the cache keeps it: the hit that it holds, and what follows."""

    __slots__ = (
        "cold", "cross_hit", "full", "handle", "hit", "is_cross_cut", "is_cut", "junction", "noted", "num_tokens",
        "onboards", "prepared", "purpose", "receipt", "takes",
    )  # fmt: skip

    num_tokens: int  # left to compute
    junction: int | None  # with states: the block edge behind its start where it parts from a cached text; kept there
    onboards: tuple[int, ...]  # pages per group that admission reads from a colder tier
    hit: Hit
    full: Hit | None  # what was found, where a part of it is computed all the same (`redo_blocks`); holds nothing
    cross_hit: Hit | None  # in the encoder's stream
    cold: tuple[int, ...]  # whole hit pages per group that need a slot on the device
    takes: tuple[int, ...]  # slots per group at the peak; a partial hit's copy is one of them
    is_cut: bool  # what it found was forgotten since: the sequence it becomes stores nothing
    is_cross_cut: bool  # the same of its encoder

    def __init__(self, prepared: ReadyRequest, purpose: Purpose) -> None:
        self.prepared = prepared
        self.purpose = purpose
        self.handle: Claim | None = None  # the caller's, while it is open and was asked for
        self.noted: Noted | None = None  # what its receipt says besides what the hit has noted; None: it makes none
        self.receipt: Receipt | None = None  # made when asked for

    @property
    def request(self) -> Request:
        """What was asked."""
        return self.prepared.request


class Claim:
    """One request's hold on its hit. `start` and the hit are final: nothing but a failed read can change them, and an
    admission that finds more, where sequences share pages that an earlier one of the batch is to compute.

    `prepared` is the request made ready, for `gains_from` of other claims; `purpose` is what it was claimed for.
    """

    __slots__ = ("_promise",)

    def __init__(self, promise: Promise) -> None:
        self._promise = promise

    @property
    def prepared(self) -> Prepared:
        """The request made ready, for `gains_from` of other claims."""
        return Prepared(self._promise.prepared)

    @property
    def purpose(self) -> Purpose:
        """What it was claimed for."""
        return self._promise.purpose

    @property
    def num_tokens(self) -> int:
        """Tokens left to compute."""
        return self._promise.num_tokens

    @property
    def junction(self) -> int | None:
        """With states: the block edge behind `start` where it parts from a cached text; a state is kept there."""
        return self._promise.junction

    @property
    def onboards(self) -> tuple[int, ...]:
        """Pages per group that admission reads from a colder tier."""
        return self._promise.onboards

    @property
    def request(self) -> Request:
        """What was asked."""
        return self._promise.prepared.request

    @property
    def start(self) -> int:
        """First token to compute: every group can resume here."""
        return self._promise.hit.start

    @property
    def coming(self) -> int:
        """Tokens behind `start` that could be reused, had they been prefetched from the slow tier."""
        return max(0, _ahead(self._promise).coming * self._promise.prepared.setup.block_size - self.start)

    @property
    def coming_pages(self) -> tuple[int, ...]:
        """Pages per group that are in the slow tier only, of those that resuming there reads; as things are now."""
        setup = self._promise.prepared.setup
        own, slow = _ahead(self._promise), setup.slow_tier
        found = [own if group < setup.own_groups.stop else self._promise.cross_hit for group in setup.groups]
        hits = ((hit, pool.place) for hit, pool in zip(found, setup.pools, strict=True))
        return tuple(0 if hit is None else int((hit.reach(place)[1] == slow).sum()) for hit, place in hits)

    @property
    def receipt(self) -> Receipt:
        """Why it missed what it missed, as things were when it was claimed; for the operator."""
        promise = self._promise
        if promise.noted is None:
            raise StateError(RECEIPTS_OFF)
        if promise.receipt is None:
            starts = self.start, self.start if promise.full is None else promise.full.start
            why = explained_of(promise)
            promise.receipt = receipt_of(promise.prepared, promise.purpose, starts, why, promise.noted)
        return promise.receipt

    @property
    def encoder_start(self) -> int:
        """Leading places of the encoder's KV that are there; the encoder need not run when that is all of them."""
        places, hit = self._promise.prepared.encoder, self._promise.cross_hit
        return 0 if places is None or hit is None else min(places.length, hit.start)

    @property
    def spans(self) -> tuple[Spans, ...]:
        """Tokens the cache had for this request when it was claimed, group by group, never cut to the shortest.

        What decoding after the prompt reads and, for compute, what `start` needs: that much is held. For decode all.
        """
        setup, hit = self._promise.prepared.setup, self._promise.hit
        size, blocks = setup.block_size, _found(self._promise)
        if self._promise.purpose == "compute":
            edge = hit.blocks * size
            sides = [g for g in setup.own_groups if hit.source < 0 or not setup.layers[g].current]
            needs = {g: setup.layers[g].needs_at(edge, size) for g in sides}  # a tail brings its own state
            blocks = [merged(*spans, *needs.get(g, ())) for g, spans in enumerate(blocks)]
        found = [tuple(Span(s.start * size, s.end * size) for s in spans) for spans in blocks]
        if hit.matched:
            part = Span(hit.blocks * size, hit.start)
            found = [merged(*spans, part) for spans in found]
        across = Span(0, self.encoder_start)
        return (*found, *(merged(across) for _ in setup.groups[len(found) :]))

    @property
    def wanted_blocks(self) -> tuple[Spans, ...]:
        """Blocks per group that decoding after the prompt needs and the cache has not: what a transfer must bring."""
        prepared, hit = self._promise.prepared, self._promise.cross_hit
        setup, places = prepared.setup, prepared.encoder
        needed = [setup.layers[group].needs_at(prepared.end, setup.block_size) for group in setup.own_groups]
        missing = [without(need, found) for need, found in zip(needed, _found(self._promise), strict=True)]
        if places is None or hit is None:
            return (*missing, *(() for _ in setup.groups[len(missing) :]))
        across = merged(Span(hit.blocks, places.blocks))
        return (*missing, *(across for _ in setup.groups[len(missing) :]))

    def gains_from(self, other: Prepared, span: Span, having: int = 0) -> bool:
        """Once `other` has computed `span`, more of this request could be reused: the same tokens, up to there.

        Where all is kept the first whole block it lacks counts, behind tokens that it is `having` soon; with states,
        the first snapshot that `span` leaves.
        """
        mine, theirs = self._promise.prepared, ready_of(other)
        setup, size = mine.setup, mine.setup.block_size
        found, redo = self._promise.full or self._promise.hit, mine.request.redo_blocks
        if setup.state_groups:
            block = _first_kept(theirs, span, self.start) // size - 1
            gains = block >= 0 and not redo  # who computes a part again may find no state before that
        else:
            block = max(found.blocks, having // size)
            gains = span.start // size <= block < span.end // size and block >= redo
        alike = mine.keep and theirs.keep and mine.scope_key == theirs.scope_key
        copies = setup.partial_policy == 2 and not setup.state_groups  # a part of a page can be copied
        usable = mine.end if copies and self.start < mine.end - 1 else mine.end - 1  # the last token is always computed
        usable = usable if mine.request.reuse_limit is None else min(usable, mine.request.reuse_limit)
        if not gains or not alike or (block + 1) * size > usable:
            return False
        for chain in (mine.chain, theirs.chain):
            chain.extend_keys(block + 1)
        return mine.chain.key(block) == theirs.chain.key(block)

    @property
    def slots_needed(self) -> tuple[int, ...]:
        """Device slots per group, at the peak: new pages, onboards and, for a partial hit, the copy."""
        return tuple(cold + takes for cold, takes in zip(self._promise.cold, self._promise.takes, strict=True))

    def __repr__(self) -> str:
        return f"Claim({shown(self.request.id)}, start={self.start})"


def claim_of(promise: Promise) -> Claim:
    """The handle of an open claim: the same one as long as it is open."""
    if promise.handle is None:
        promise.handle = Claim(promise)
    return promise.handle


def promise_of(claim: Claim) -> Promise:
    """What the cache keeps behind the handle."""
    return claim._promise


def explained_of(promise: Promise) -> Explained:
    """Why it was not more that was found, and what it reads."""
    runs, tokens = promise.hit.explained()
    return runs if promise.full is None else promise.full.explained()[0], tokens


def _ahead(promise: Promise) -> Hit:
    """The hit that says what is coming: its own, or where it computes a part again what is left of all there is."""
    prepared, found = promise.prepared, promise.full or promise.hit
    redo = prepared.request.redo_blocks if promise.purpose == "compute" else 0
    if not redo or not prepared.keep:
        return promise.hit
    setup = prepared.setup
    usable = max(0, found.coming - redo) * setup.block_size
    return setup.store.walk(prepared.chain, setup.roots.find(prepared.scope_key), usable, 0)


def let_go(promise: Promise) -> None:
    """Give the hold back."""
    setup = promise.prepared.setup
    setup.store.unclaim(promise.hit)
    if promise.cross_hit is not None and setup.cross is not None:
        setup.cross.store.unclaim(promise.cross_hit)


def hit_of(promise: Promise, group: int) -> Hit | None:
    """What it found in the stream that a group reads."""
    return promise.hit if group < promise.prepared.setup.own_groups.stop else promise.cross_hit


def _found(promise: Promise) -> list[Spans]:
    """Blocks by group that are there, of those that decoding after the prompt reads."""
    setup, end = promise.prepared.setup, promise.prepared.end
    facts = [(setup.layers[group], promise.hit.present(group)) for group in setup.own_groups]
    return [layer.found(present, end, setup.block_size) for layer, present in facts]


def _first_kept(other: ReadyRequest, span: Span, start: int) -> int:
    """The first position behind `start` at which `span` leaves every state: inside it, or at its end; 0: none."""
    setup, size, marks = other.setup, other.setup.block_size, other.marks
    layers = [setup.layers[group] for group in setup.state_groups]
    places = [span.end]
    if all(layer.snapshot_inside for layer in layers):
        places = [(block + 1) * size for block in snapshots_inside(layers[0], span.start, span.end, marks, size)]
    kept = (at for at in places if at > start and all(is_stop(layer, at, marks, size) for layer in layers))
    return next(kept, 0)
