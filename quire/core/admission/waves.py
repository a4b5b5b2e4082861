"""Waves: claims of one batch that share what it computes for others are admitted behind these.

    parts   p                 a part of a prompt under way
    claims  a  b  c  d        c and d begin as a does, and no step has computed that yet
    waves   a  b              these get their pages; what they and p will compute is offered
                  c  d        these look again, and find it as they would in a step in flight

If a goes on from where p's part begins, it waits for p as c does for a, and the first wave is empty.
Owns who waits for whom, and the offer, which lasts as long as the call. Decides nothing of who fits.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from quire.core.admission.batch import SequenceSpan
from quire.core.admission.claim import note_facts
from quire.core.admission.promise import make_promise, usable_tokens
from quire.core.state.claim import Promise, let_go
from quire.core.state.registry import Registry
from quire.core.state.setup import Setup

Block = tuple[bytes, int, int]  # the first that a claim has not found: its scope, its place and its key


class Waves:
    """The claims of one batch, in its order: those that may be admitted now, and `behind` them the others."""

    __slots__ = ("_computed", "_launched", "_parts", "_registry", "behind")

    def __init__(self, registry: Registry, claims: list[Promise], parts: Iterable[SequenceSpan]) -> None:
        """All of them; the first wave is left in the list. `parts` of prompts under way are computed before them."""
        size = registry.setup.block_size
        self._registry = registry
        self._parts = [range(start // size, end // size) for _, start, end in parts]  # in blocks, until offered
        self._computed: set[Block] = set()  # what the last wave computes first
        self._launched: dict[int, int] = {}  # by row: how far steps in flight really compute it
        self.behind = claims.copy()
        claims[:] = self._take()

    def next(self, parts: Iterable[SequenceSpan], now: int | None) -> list[Promise]:
        """Those before have their pages: what they compute is offered, and claims that waited for it look again."""
        store = self._registry.setup.store
        for row in [sequence.row for sequence, _, _ in parts if sequence.row not in self._launched]:
            self._launched[row] = store.launched.item(row)
            _set_launched(self._registry.setup, row, store.handed.item(row))
        for claim in self.behind:
            if self._gains(claim):
                _look_again(self._registry, claim, now)
        self._parts.clear()
        return self._take()

    def close(self) -> None:
        """Nothing is offered any more: the step is yet to be launched."""
        for row, end in self._launched.items():
            _set_launched(self._registry.setup, row, end)

    def _take(self) -> list[Promise]:
        """Those up to the first that could share what one of them computes, or a part before them."""
        self._computed.clear()
        place = 0
        for claim in self.behind:
            if self._gains(claim):
                break
            place += 1
            if (block := _lacked(claim, claim.prepared.end)) is not None:
                self._computed.add(block)
        wave, self.behind[:] = self.behind[:place], self.behind[place:]
        return wave

    def _gains(self, claim: Promise) -> bool:
        if self._parts and self._goes_on(claim):
            return True
        return bool(self._computed) and _lacked(claim, usable_tokens(claim.prepared, True)) in self._computed

    def _goes_on(self, claim: Promise) -> bool:
        """A part has the block behind what was found. By its place alone: so far in, it mostly has the same text, and
        looking again finds out."""
        prepared, found = claim.prepared, claim.full or claim.hit
        if claim.purpose != "compute" or not prepared.keep:
            return False
        fits = (found.blocks + 1) * prepared.setup.block_size <= usable_tokens(prepared, True)
        return fits and any(found.blocks in part for part in self._parts)


def _lacked(claim: Promise, end: int) -> Block | None:
    """The first whole block before `end` that a claim has not found; None: there is none to share."""
    prepared, block = claim.prepared, claim.hit.blocks
    if claim.purpose != "compute" or not prepared.keep or (block + 1) * prepared.setup.block_size > end:
        return None
    prepared.chain.extend_keys(block + 1)
    return prepared.scope_key, block, prepared.chain.key(block)


def _look_again(registry: Registry, claim: Promise, now: int | None) -> None:
    """It has what it was promised, or more."""
    new = Promise(claim.prepared, claim.purpose)
    row = make_promise(registry.setup, new, claim.noted is not None)
    if new.hit.start <= claim.hit.start:
        let_go(new)
        return
    if claim.noted is not None and now is not None:
        note_facts(registry, new, row, now)
    let_go(claim)
    for name in ("cold", "full", "hit", "is_cut", "junction", "noted", "num_tokens", "onboards", "receipt", "takes"):
        setattr(claim, name, getattr(new, name))


def _set_launched(setup: Setup, row: int, end: int) -> None:
    setup.store.launch(np.array([row], np.int32), np.array([end], np.int32))
