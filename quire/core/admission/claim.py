"""Phase 1: find and hold every reusable page of a request. Allocates, moves, reorders and emits nothing.

request --prepare--> Prepared --walk, claim--> Claim --admit--> Sequence
                                                 \\--drop----> nothing happened
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from quire.core.admission import charge
from quire.core.admission.prepare import Prepared, Purpose
from quire.core.records.errors import shown
from quire.core.records.request import Request
from quire.core.records.span import Span, merged, without
from quire.core.state.roots import NO_ROOT
from quire.core.state.state import State

if TYPE_CHECKING:
    from quire.core.store.twin import Hit

Spans = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that was not admitted: which resource, how much it needs, how much there is."""

    request: Request
    reason: Literal["slots", "tokens", "sequences", "order"]  # order: one before it did not fit
    need: int
    have: int
    never: bool = False  # it cannot fit this cache, whatever is released
    group: int | None = None  # of slots: the layer group that lacks them

    def __str__(self) -> str:
        cure = "shorten it or enlarge the cache" if self.never else "release something or try in a later step"
        where = "" if self.group is None else f" of group {self.group}"
        return f"request {shown(self.request.id)} needs {self.need} {self.reason}{where}, {self.have} are there; {cure}"


class Claim:
    """One request's hold on its hit. `start` and the hit are final: nothing but a failed read can change them."""

    __slots__ = ("cold", "cross_hit", "hit", "num_tokens", "onboards", "prepared", "purpose", "takes")

    def __init__(self, state: State, prepared: Prepared, purpose: Purpose) -> None:
        self.prepared = prepared
        self.purpose: Purpose = purpose
        self.look(state)

    def look(self, state: State) -> None:
        """Find the hit and hold it."""
        prepared, store, computes = self.prepared, state.store, self.purpose == "compute"
        root = state.roots.find(prepared.scope_key) if prepared.keep else NO_ROOT
        usable = prepared.end - computes  # the last prompt token is always computed: it makes the logits
        if prepared.request.reuse_limit is not None:
            usable = min(usable, prepared.request.reuse_limit)
        if computes or not state.apart:
            self.hit = hit = store.walk(prepared.chain, root, usable, state.policy)
            self.cold = store.claim(hit)  # whole hit pages per group that need a slot on the device
            if hit.source >= 0 and self._source_in_the_way(state):
                store.unclaim(hit)
                self.hit = hit = store.walk(prepared.chain, root, usable, 0)
                self.cold = store.claim(hit)
            self.takes = charge.takes(state, prepared, hit)  # slots at the peak; a partial hit's copy is one of them
        else:
            self.hit = hit = store.walk(prepared.chain, root, usable, 0)
            self.cold = store.claim(hit, charge.needs(state, prepared))
            self.takes = charge.decode_takes(state, prepared, hit)
        self.num_tokens = prepared.end - hit.start if computes else 0  # left to compute
        self.cross_hit = self._look_across(state) if state.cross is not None else None
        self.onboards = self._from_below(state) if len(state.config.tiers) > 1 else self.cold

    def _source_in_the_way(self, state: State) -> bool:
        """The pool could never hold the source of a partial hit beside what the request takes: do without it."""
        if state.least - self.hit.blocks >= 2:
            return False  # the usual case: there is far more room than that
        if all(state.room[group] - len(self.hit.held(group)) >= 2 for group in state.own_groups):
            return False  # the source and its copy fit side by side; then the source makes room
        leaf, held, num_claims, _ = state.store.source_state(self.hit)
        return not (leaf and not any(held) and all(claims == 1 for claims in num_claims))

    def _look_across(self, state: State) -> Hit | None:
        """The same for the encoder's stream; its groups take no part in `start`."""
        assert state.cross is not None
        places, cross = self.prepared.encoder, state.cross
        others = len(state.groups) - len(state.own_groups)
        if places is None:
            self.takes, self.cold = self.takes + (0,) * others, self.cold + (0,) * others
            return None
        root = cross.roots.find(self.request.scope.key) if places.keep else NO_ROOT
        hit = cross.store.walk(places.chain, root, places.blocks * state.block_size, 0)
        self.cold += cross.store.claim(hit)
        self.takes += (places.blocks - hit.blocks,) * others
        return hit

    def _from_below(self, state: State) -> tuple[int, ...]:
        """Pages per group that admission reads from a colder tier: whole ones, and those it only copies from.

        They are claimed, so that nothing moves them down; what another request brings up meanwhile need not be read.
        """
        counts = list(self.cold)
        for group, tier in enumerate(state.store.source_state(self.hit)[3]):
            counts[group] += tier > 0
        for group in state.states:
            held = self.hit.held(group)
            counts[group] += len(held) > 0 and int(self.hit.tiers(group)[held[-1]]) > 0
        return tuple(counts)

    def let_go(self, state: State) -> None:
        """Give the hold back."""
        state.store.unclaim(self.hit)
        if self.cross_hit is not None:
            assert state.cross is not None
            state.cross.store.unclaim(self.cross_hit)

    @property
    def request(self) -> Request:
        """What was asked."""
        return self.prepared.request

    @property
    def start(self) -> int:
        """First token to compute: every group can resume here."""
        return self.hit.start

    @property
    def encoder_start(self) -> int:
        """Leading places of the encoder's KV that are there; the encoder need not run when that is all of them."""
        places = self.prepared.encoder
        if places is None or self.cross_hit is None:
            return 0
        return min(places.length, self.cross_hit.start)

    @property
    def spans(self) -> tuple[Spans, ...]:
        """Tokens the cache had for this request when it was claimed, group by group, never cut to the shortest.

        What decoding after the prompt reads and, for compute, what `start` needs: that much is held. For decode all.
        """
        state, size = self.prepared.state, self.prepared.state.block_size
        blocks = self._found()
        if self.purpose == "compute":
            edge = self.hit.blocks * size
            blocks = [merged(*spans, *state.layers[g].needs_at(edge, size)) for g, spans in enumerate(blocks)]
        found = [tuple(Span(s.start * size, s.end * size) for s in spans) for spans in blocks]
        if self.hit.matched:
            part = Span(self.hit.blocks * size, self.hit.start)
            found = [merged(*spans, part) for spans in found]
        across = Span(0, self.encoder_start)
        return (*found, *(merged(across) for _ in state.groups[len(found) :]))

    @property
    def wanted_blocks(self) -> tuple[Spans, ...]:
        """Blocks per group that decoding after the prompt needs and the cache has not: what a transfer must bring."""
        state, end, size = self.prepared.state, self.prepared.end, self.prepared.state.block_size
        needed = [state.layers[group].needs_at(end, size) for group in state.own_groups]
        missing = [without(need, found) for need, found in zip(needed, self._found(), strict=True)]
        places = self.prepared.encoder
        if places is None or self.cross_hit is None:
            return (*missing, *(() for _ in state.groups[len(missing) :]))
        across = merged(Span(self.cross_hit.blocks, places.blocks))
        return (*missing, *(across for _ in state.groups[len(missing) :]))

    def _found(self) -> list[Spans]:
        state, end = self.prepared.state, self.prepared.end
        facts = [(state.layers[group], self.hit.present(group).tolist()) for group in state.own_groups]
        return [layer.found(present, end, state.block_size) for layer, present in facts]

    def gains_from(self, other: Prepared, span: Span) -> bool:
        """Once `other` has computed `span`, more of this request could be reused: the same tokens, up to there.

        Where all is kept the first whole block it lacks counts; with states, the snapshot that `span` may end on.
        """
        state, mine, size = self.prepared.state, self.prepared, self.prepared.state.block_size
        if state.states:
            block = span.end // size - 1
            kept = [state.layers[group].is_stop(span.end, other.marks, size) for group in state.states]
            gains = span.end > self.start and all(kept)
        else:
            block = self.hit.blocks
            gains = span.start // size <= block < span.end // size
        if span.end < other.end and any(layer.bounded and not layer.current for layer in state.layers):
            gains = False  # until then the pages of its windows are not findable
        alike = mine.keep and other.keep and mine.scope_key == other.scope_key
        copies = state.config.partial_hits and state.config.copy_on_partial_reuse  # a part of its page can be had
        usable = mine.end if copies and self.start < mine.end - 1 else mine.end - 1  # the last token is always computed
        usable = usable if mine.request.reuse_limit is None else min(usable, mine.request.reuse_limit)
        if not gains or not alike or (block + 1) * size > usable:
            return False
        for chain in (mine.chain, other.chain):
            chain.extend_keys(block + 1)
        return mine.chain.key(block) == other.chain.key(block)

    @property
    def slots_needed(self) -> tuple[int, ...]:
        """Device slots per group, at the peak: new pages, onboards and, for a partial hit, the copy."""
        return tuple(cold + takes for cold, takes in zip(self.cold, self.takes, strict=True))

    def __repr__(self) -> str:
        return f"Claim({shown(self.request.id)}, start={self.start})"


def never_fits(state: State, prepared: Prepared, purpose: Purpose) -> Refusal | None:
    """A request larger than the whole cache is refused at once, with the numbers."""
    request, config = prepared.request, state.config
    least, places = prepared.length + request.extra_tokens, prepared.encoder
    if least > config.max_length:
        return Refusal(request, "tokens", least, config.max_length, never=True)
    longest = max(least, prepared.length + prepared.new_tokens) if request.max_new_tokens else least
    if state.plain and request.beams == 1 and -(-longest // state.block_size) <= state.least:
        return None  # the usual case: every group takes the same
    if places is not None and places.blocks > config.encoder_columns:
        most = config.encoder_columns * config.block_size
        return Refusal(request, "tokens", places.length, most, never=True, group=state.own_groups.stop)
    for group in state.groups:
        need = charge.worst(state, prepared, group, purpose)
        if need > state.room[group]:
            return Refusal(request, "slots", need, state.room[group], never=True, group=group)
    return None
