"""Claim: one request's hold on what the cache has for it, before admission. Knows neither rows nor slots.

`quire.core.admission.promise` finds the hit and fills in the numbers; this is what the caller sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from quire.core.records.errors import StateError, say, shown
from quire.core.records.reports.receipt import Receipt
from quire.core.records.request import Request
from quire.core.records.span import Span, merged, without
from quire.core.state.explained import Noted, receipt_of
from quire.core.state.prepared import Prepared, Purpose

if TYPE_CHECKING:
    from quire.core.store.interface import Hit

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
        if self.unchunked:
            cure = "no step has more: pass max_chunk, and it is computed in parts"
        where = "" if self.group is None else f" of group {self.group}"
        return f"request {shown(self.request.id)} needs {self.need} {self.reason}{where}, {self.have} are there; {cure}"


class Claim:
    """One request's hold on its hit. `start` and the hit are final: nothing but a failed read can change them.

    `prepared` is the request made ready, for `gains_from` of other claims; `purpose` is what it was claimed for.
    """

    __slots__ = (
        "_cold", "_cross_cut", "_cross_hit", "_cut", "_hit", "_noted", "_receipt", "_takes", "junction", "num_tokens",
        "onboards", "prepared", "purpose",
    )  # fmt: skip

    prepared: Prepared
    purpose: Purpose
    num_tokens: int  # left to compute
    junction: int | None  # with states: the block edge behind `start` where it parts from a cached text; kept there
    onboards: tuple[int, ...]  # pages per group that admission reads from a colder tier
    _cut: bool  # what it found was forgotten since: the sequence it becomes stores nothing
    _cross_cut: bool  # the same of its encoder
    _hit: Hit
    _cross_hit: Hit | None  # in the encoder's stream
    _cold: tuple[int, ...]  # whole hit pages per group that need a slot on the device
    _takes: tuple[int, ...]  # slots per group at the peak; a partial hit's copy is one of them

    _noted: Noted  # what its receipt says besides what the hit has noted; set where receipts are made
    _receipt: Receipt | None  # set when somebody asks for it

    def __init__(self, prepared: Prepared, purpose: Purpose) -> None:
        self.prepared = prepared
        self.purpose = purpose

    @property
    def request(self) -> Request:
        """What was asked."""
        return self.prepared.request

    @property
    def start(self) -> int:
        """First token to compute: every group can resume here."""
        return self._hit.start

    @property
    def coming(self) -> int:
        """Tokens behind `start` that could be reused, had they been prefetched from the slow tier."""
        return max(0, self._hit.coming * self.prepared._setup.block_size - self.start)

    @property
    def coming_pages(self) -> tuple[int, ...]:
        """Pages per group that are in the slow tier only, of those that resuming there reads; as things are now."""
        setup = self.prepared._setup
        hits = ((hit_of(self, group), setup.pools[group].place) for group in setup.groups)
        slow = setup.config._slow_tier
        return tuple(0 if hit is None else int((hit.reach(place)[1] == slow).sum()) for hit, place in hits)

    @property
    def _explains(self) -> bool:
        """Whether it makes a receipt."""
        return hasattr(self, "_noted")

    @property
    def receipt(self) -> Receipt:
        """Why it missed what it missed, as things were when it was claimed; for the operator."""
        if not self._explains:
            raise StateError(RECEIPTS_OFF)
        receipt: Receipt | None = getattr(self, "_receipt", None)
        if receipt is None:
            explained = self._hit.explained()
            self._receipt = receipt = receipt_of(self.prepared, self.purpose, self.start, explained, self._noted)
        return receipt

    @property
    def encoder_start(self) -> int:
        """Leading places of the encoder's KV that are there; the encoder need not run when that is all of them."""
        places = self.prepared._encoder
        if places is None or self._cross_hit is None:
            return 0
        return min(places.length, self._cross_hit.start)

    @property
    def spans(self) -> tuple[Spans, ...]:
        """Tokens the cache had for this request when it was claimed, group by group, never cut to the shortest.

        What decoding after the prompt reads and, for compute, what `start` needs: that much is held. For decode all.
        """
        setup, size = self.prepared._setup, self.prepared._setup.block_size
        blocks = self._found()
        if self.purpose == "compute":
            edge = self._hit.blocks * size
            sides = [g for g in setup.own_groups if self._hit.source < 0 or not setup.layers[g].current]
            needs = {g: setup.layers[g].needs_at(edge, size) for g in sides}  # a tail brings its own state
            blocks = [merged(*spans, *needs.get(g, ())) for g, spans in enumerate(blocks)]
        found = [tuple(Span(s.start * size, s.end * size) for s in spans) for spans in blocks]
        if self._hit.matched:
            part = Span(self._hit.blocks * size, self._hit.start)
            found = [merged(*spans, part) for spans in found]
        across = Span(0, self.encoder_start)
        return (*found, *(merged(across) for _ in setup.groups[len(found) :]))

    @property
    def wanted_blocks(self) -> tuple[Spans, ...]:
        """Blocks per group that decoding after the prompt needs and the cache has not: what a transfer must bring."""
        setup, end, size = self.prepared._setup, self.prepared.end, self.prepared._setup.block_size
        needed = [setup.layers[group].needs_at(end, size) for group in setup.own_groups]
        missing = [without(need, found) for need, found in zip(needed, self._found(), strict=True)]
        places = self.prepared._encoder
        if places is None or self._cross_hit is None:
            return (*missing, *(() for _ in setup.groups[len(missing) :]))
        across = merged(Span(self._cross_hit.blocks, places.blocks))
        return (*missing, *(across for _ in setup.groups[len(missing) :]))

    def _found(self) -> list[Spans]:
        setup, end = self.prepared._setup, self.prepared.end
        facts = [(setup.layers[group], self._hit.present(group)) for group in setup.own_groups]
        return [layer.found(present, end, setup.block_size) for layer, present in facts]

    def gains_from(self, other: Prepared, span: Span) -> bool:
        """Once `other` has computed `span`, more of this request could be reused: the same tokens, up to there.

        Where all is kept the first whole block it lacks counts; with states, the first snapshot that `span` leaves.
        """
        setup, mine, size = self.prepared._setup, self.prepared, self.prepared._setup.block_size
        if setup.state_groups:
            block = self._first_kept(other, span) // size - 1
            gains = block >= 0
        else:
            block = self._hit.blocks
            gains = span.start // size <= block < span.end // size
        alike = mine._keep and other._keep and mine._scope_key == other._scope_key
        copies = setup.partial_policy == 2 and not setup.state_groups  # a part of a page can be copied
        usable = mine.end if copies and self.start < mine.end - 1 else mine.end - 1  # the last token is always computed
        usable = usable if mine.request.reuse_limit is None else min(usable, mine.request.reuse_limit)
        if not gains or not alike or (block + 1) * size > usable:
            return False
        for chain in (mine._chain, other._chain):
            chain.extend_keys(block + 1)
        return mine._chain.key(block) == other._chain.key(block)

    def _first_kept(self, other: Prepared, span: Span) -> int:
        """The first position behind the start at which `span` leaves every state: inside it, or at its end; 0: none."""
        setup, size, marks = self.prepared._setup, self.prepared._setup.block_size, other._marks
        layers = [setup.layers[group] for group in setup.state_groups]
        places = [span.end]
        if all(layer.snapshot_inside for layer in layers):
            places = [(block + 1) * size for block in layers[0]._inside(span.start, span.end, marks, size)]
        kept = (at for at in places if at > self.start and all(layer._is_stop(at, marks, size) for layer in layers))
        return next(kept, 0)

    @property
    def slots_needed(self) -> tuple[int, ...]:
        """Device slots per group, at the peak: new pages, onboards and, for a partial hit, the copy."""
        return tuple(cold + takes for cold, takes in zip(self._cold, self._takes, strict=True))

    def __repr__(self) -> str:
        return f"Claim({shown(self.request.id)}, start={self.start})"


def let_go(claim: Claim) -> None:
    """Give the hold back."""
    setup = claim.prepared._setup
    setup.store.unclaim(claim._hit)
    if claim._cross_hit is not None and setup.cross is not None:
        setup.cross.store.unclaim(claim._cross_hit)


def hit_of(claim: Claim, group: int) -> Hit | None:
    """What it found in the stream that a group reads."""
    return claim._hit if group < claim.prepared._setup.own_groups.stop else claim._cross_hit
