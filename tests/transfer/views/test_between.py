"""Between an offer and the read of its pages anything may happen: a plan that brings them is open, or one fails;
others evict and exchange, windows pass, the sequence ends. What was offered has its bytes for as long as it is held.

The order of these is drawn on purpose, one call after the other; the bytes follow from the text.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from quire import Sequence, Span
from quire.core.records.plan import Kind
from quire.core.records.request import PLAIN
from quire.transfer.views.quire_view import QuireView
from quire.transfer.views.view import Offer
from tests.effort import cases
from tests.tiers.shared.machine import FULL, POOLED, STATE, WINDOW, Int32, Machine, content, text

GROUPS = {"full": (FULL,), "window": (FULL, WINDOW), "pool": POOLED, "state": (FULL, STATE)}
KINDS = (Kind.ONBOARD, Kind.OFFLOAD, Kind.EXCHANGE, Kind.COPY)


class Reader:
    """A sender of pages: it offers what a sequence has, and reads it later."""

    def __init__(self, machine: Machine, rng: random.Random) -> None:
        self.machine, self.rng, self.view = machine, rng, QuireView(machine.cache)
        self.open: list[tuple[Offer, Int32]] = []
        self.seen = Counter[str]()

    def offer(self, sequence: Sequence, tokens: Int32, when: str) -> None:
        """Of all that it has computed, or nothing: a plan that is not finished moves some of it."""
        end = min(sequence.prompt_end, sequence.computed)
        if not end or self.rng.random() < 0.3:
            return
        offer = self.view.offer(sequence.id, Span(0, end))
        self.seen[f"{'refused' if offer is None else 'offered'} {when}"] += 1
        if offer is not None:
            self.open.append((offer, tokens))

    def maybe_read(self, share: float) -> None:
        """Some of what is offered is read, and given back."""
        for one in [one for one in self.open if self.rng.random() < share]:
            self.open.remove(one)
            self._read(*one)
            self.view.release(one[0])

    def _read(self, offer: Offer, tokens: Int32) -> None:
        for group, layer in enumerate(self.machine.groups):
            places = offer.places[group]
            for block in np.flatnonzero(places >= 0).tolist():
                page = self.machine.tiers[0].view(group)[places[block]]
                right = content(PLAIN, tokens, block, group, layer.page_bytes)
                assert np.array_equal(page, right), f"wrong bytes in block {block} of group {group}"
                self.seen["read"] += 1


def turn(one: Machine, reader: Reader, tokens: Int32) -> None:
    """A prompt from its admission to its end; the reader acts between any two calls."""
    batch = one.cache.add_sequence_batch([one.request(tokens)], max_chunk=8)
    if not batch.sequences:  # what is offered takes the room
        one.carry(batch.plan)
        return
    (sequence,) = batch.sequences
    reader.offer(sequence, tokens, "before its plan")
    while True:
        reader.seen.update({kind.name: batch.plan.count(kind) for kind in KINDS})
        reader.maybe_read(0.3)
        good = one.carry(batch.plan)
        reader.seen["failed plan"] += not good
        if not good or sequence not in batch.spans:
            break
        one._compute(sequence, batch.spans[sequence], PLAIN, tokens)
        one.cache.commit([sequence])
        reader.offer(sequence, tokens, "after a step")
        reader.maybe_read(0.1)
        if sequence.computed == len(tokens):
            break
        batch = one.cache.add_sequence_batch([], max_chunk=8, continuing=[sequence])
    if sequence.live:
        one.cache.release(sequence, store=good)


@pytest.mark.long
@pytest.mark.parametrize("worn", [None, 1], ids=["sound", "worn"])
@pytest.mark.parametrize("groups", GROUPS)
def test_what_is_offered_has_its_bytes_whatever_happens_before_it_is_read(
    groups: str, worn: int | None, tmp_path: Path
) -> None:
    rng, seen = random.Random(f"{groups} {worn}"), Counter[str]()
    wanted = ["offered after a step", "offered before its plan", "refused before its plan", "read", "ONBOARD"]
    wanted += ["OFFLOAD", "COPY" if groups == "state" else "failed plan" if worn else "EXCHANGE"]
    for life in range(60):
        broken = None if worn is None else worn + life
        one = Machine(str(tmp_path / str(life)), *GROUPS[groups], device=24, host=12, worn=broken)
        reader = Reader(one, rng)
        texts = [text(rng.randrange(3), rng.randrange(3), length=rng.choice((16, 24, 40))) for _ in range(6)]
        for _ in range(40):
            turn(one, reader, rng.choice(texts))
        reader.maybe_read(2.0)
        one.close()
        seen += reader.seen
        if life >= cases(3, 50) and all(seen[what] > 2 for what in wanted):
            return
    raise AssertionError(seen)
