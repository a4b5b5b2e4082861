"""A real cache behind the door: prompts sent while they are computed, encoders, pages that come up from the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import (
    Cache,
    CacheConfig,
    Encoder,
    Finished,
    Kind,
    LayerGroup,
    Plan,
    Request,
    Sequence,
    Span,
    TierConfig,
    check,
)
from quire.core.records.errors import StateError
from quire.tiers import ArenaTier
from quire.transfer.geometry.slices import spans_of
from quire.transfer.views.quire_view import QuireView
from quire.transfer.wire.verdict import Key, Outcome

from ..rig import Rig
from ..sides import QuireSide, expected, landed_right, tokens

SIZE = 4
FULL, NEAR = LayerGroup("full", page_bytes=64), LayerGroup("near", page_bytes=32, window=6)


class Chunked(QuireSide):
    """A cache that computes in chunks of 8: window pages come and go, later ones are reserved."""

    def __init__(self, slots: tuple[int, int]) -> None:
        super().__init__((FULL, NEAR), slots)
        config = CacheConfig((TierConfig("device", slots),), SIZE, self.groups, 4, 256, max_chunk=8)
        self.cache = Cache(config)
        self.view = QuireView(self.cache, self.run)

    def chunks(self, request: Request) -> Any:
        """Compute the prompt; yields how far it is after every step."""
        batch = self.cache.add_sequence_batch([request])
        (sequence,) = batch.sequences
        yield 0
        while True:
            self.run(batch.plan)
            end = batch.spans[sequence].end
            for group in range(2):
                for ordinal, slot in enumerate(sequence.slots(group).tolist()):
                    if slot >= 0 and ordinal * SIZE < end and (ordinal + 1) * SIZE > sequence.computed:
                        page_bytes = self.groups[group].page_bytes
                        self.pages[group][slot] = expected(request, group, ordinal, page_bytes)
            self.cache.commit(sequence)
            yield end
            if end == sequence.prompt_end:
                return
            batch = self.cache.add_sequence_batch([], continuing=[sequence])


@pytest.mark.parametrize("slots", [(24, 24), (24, 6)])
@pytest.mark.parametrize("cached", [0, 9])
def test_a_prompt_is_sent_while_it_is_computed(slots: tuple[int, int], cached: int) -> None:
    """Pieces go out between steps; a pool so small that pages cannot be held yet sends them with a later piece."""
    prompt = Request("r", tokens(range(43)))
    rig, key = Rig(Chunked(slots), QuireSide((FULL, NEAR), (24, 24))), Key("r")
    sender: Any = rig.sides["p"]
    if cached:
        for _ in sender.chunks(Request("turn", prompt.tokens[:cached])):
            pass
        sender.end("turn")
    session = rig.ask(prompt, key, aux=False)
    landing = rig.d.landing(session)
    assert landing is not None
    arrived = []
    for done in sender.chunks(prompt):
        if not done:
            rig.p.send(key, "r")
            continue
        assert rig.p.put(key, done, last=done == 43) or done < 43
        rig.step()
        arrived.append(sum(bool(rig.sides["d"].pages[0][slot].any()) for slot in landing.places[0]))
        check(sender.cache)
    assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED, session.verdict
    assert arrived[-1] == 11 and (slots == (24, 6) or 0 < arrived[1] < 11)
    assert landed_right(rig.sides["d"], landing, prompt, (FULL, NEAR)) and rig.empty()
    sender.end("r")
    assert sender.taken() == [0, 0]


def test_what_is_not_computed_cannot_be_offered() -> None:
    side = Chunked((24, 24))
    run = side.chunks(Request("r", tokens(range(20))))
    next(run)
    with pytest.raises(StateError, match="offer what is computed"):
        side.view.offer("r", Span(0, 4))
    next(run)
    with pytest.raises(StateError, match="8 of them computed"):
        side.view.offer("r", Span(0, 9))


def test_what_a_step_in_flight_computes_is_neither_offered_nor_counted_on() -> None:
    """With `share_pending` a prompt shares it, and a transfer does not: it wants every block, and sends none of it."""
    cache = Cache(CacheConfig((TierConfig("device", 32),), SIZE, (FULL,), 8, 64, share_pending=True))
    view, prompt = QuireView(cache), tokens(range(14))
    cache.add_sequence_batch([Request("r", prompt)])
    step = cache.launch()
    (sharer,) = cache.add_sequence_batch([Request("s", prompt)]).sequences
    assert sharer.start == 12
    for name in "rs":
        with pytest.raises(StateError, match="0 of them computed"):
            view.offer(name, Span(0, 4))
    landing = view.want(Request("d", prompt))
    assert landing is not None and spans_of(landing.places[0]) == (Span(0, 4),) and landing.start == 0
    check(cache)
    view.release(landing)
    cache.commit(step)
    offer, landing = view.offer("s", Span(0, 12)), view.want(Request("e", prompt))
    assert offer is not None and spans_of(offer.places[0]) == (Span(0, 3),)
    assert landing is not None and spans_of(landing.places[0]) == (Span(3, 4),) and landing.start == 12
    check(cache)


def test_an_encoder_is_sent_whole_or_not_at_all() -> None:
    """Ten encoder places in three blocks; the second prompt about the same input wants its own text only."""
    groups = (FULL, LayerGroup("cross", page_bytes=16, cross=True))
    rig = Rig(QuireSide(groups, (16, 16)), QuireSide(groups, (16, 16)))
    for nth, wanted in ((1, 3), (2, 0)):
        encoder = Encoder(10, tokens=tokens(range(100, 110)))
        request, key = Request(f"r{nth}", tokens(nth, range(8)), encoder=encoder), Key("r", nth)
        sender: Any = rig.sides["p"]
        sender.compute(request)
        slots = sender.cache.sequence(request.id).slots(1)
        for ordinal, slot in enumerate(slots.tolist()):
            sender.pages[1][slot] = 50 + ordinal
        rig.p.send(key, request.id)
        rig.p.put(key, 9, last=True)
        session = rig.ask(request, key, aux=False)
        landing = rig.d.landing(session)
        assert landing is not None and sum(map(len, landing.wants[1])) == wanted
        rig.step()
        assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED, session.verdict
        rows = rig.sides["d"].rows(landing)[1]
        assert [int(rig.sides["d"].pages[1][slot][0]) for slot in rows] == [50, 51, 52]
    plain = rig.sides["d"].view.want(Request("plain", tokens(range(9))))
    assert plain is not None and [len(places) for places in plain.places] == [3, 0]
    rig.sides["d"].view.release(plain)


class Hosted:
    """A device of 8 pages and a host; plans are carried out, or a move of them fails."""

    def __init__(self) -> None:
        tiers = (TierConfig("device", 8), TierConfig("host", 16))
        self.cache = Cache(CacheConfig(tiers, SIZE, (FULL,), 4, 64))
        self.view = QuireView(self.cache, self.run)
        self.pages = [ArenaTier(tier.name, [tier.of_pool(0)], [64]).view(0) for tier in tiers]
        self.fails = False

    def run(self, plan: Plan) -> Finished:
        for move in plan:
            (from_tier, source), (to_tier, target) = move.src, move.dst
            if move.kind == Kind.EXCHANGE:
                kept = self.pages[to_tier][target].copy()
                self.pages[to_tier][target] = self.pages[from_tier][source]
                self.pages[from_tier][source] = kept
            elif not self.fails:
                self.pages[to_tier][target] = self.pages[from_tier][source]
        failed = [nth for nth, move in enumerate(plan) if self.fails and move.kind == Kind.ONBOARD]
        return self.cache.finish(plan, failed)

    def compute(self, name: str, first: int, length: int) -> Sequence:
        batch = self.cache.add_sequence_batch([Request(name, tokens(range(first, first + length)))])
        self.run(batch.plan)
        (sequence,) = batch.sequences
        for ordinal, slot in enumerate(sequence.slots().tolist()):
            self.pages[0][slot] = first + ordinal
        self.cache.commit(sequence)
        return sequence


@pytest.mark.parametrize("fails", [False, True])
def test_held_pages_come_up_from_the_host_before_anybody_writes(fails: bool) -> None:
    side = Hosted()
    side.cache.release(side.compute("turn", 0, 16))
    side.cache.release(side.compute("other", 100, 32))  # pushes the turn down to the host
    side.fails = fails
    landing = side.view.want(Request("r", tokens(range(24))))
    check(side.cache)
    if fails:
        assert landing is None and side.cache.num_free() == 8 and not side.cache.num_sequences
        return
    assert landing is not None and landing.held == ((Span(0, 4),),)
    sequence: Any = landing.ref
    assert side.pages[0][sequence.slots()[:4], 0].tolist() == [0, 1, 2, 3]
    assert spans_of(landing.places[0]) == (Span(4, 6),)
    side.view.commit(landing)
    side.cache.release(sequence)
    assert np.array_equal(side.cache.table()[0, :1], [-1]) and side.cache.num_free() == 8


@pytest.mark.parametrize("fails", [False, True])
def test_pages_that_an_unfinished_plan_brings_are_neither_sent_nor_counted_on(fails: bool) -> None:
    """What may still fail is not in a transfer's hands: nobody could tell its session."""
    side = Hosted()
    side.cache.release(side.compute("turn", 0, 16))
    side.cache.release(side.compute("other", 100, 32))
    batch = side.cache.add_sequence_batch([Request("again", tokens(range(18)))])  # brings the turn up, some time
    (again,) = batch.sequences
    side.cache.commit(again)
    assert side.view.offer("again", Span(0, 16)) is None and side.view.want(Request("r", tokens(range(24)))) is None
    check(side.cache)
    assert side.cache.num_sequences == 1
    side.fails = fails
    assert [setback.holder for setback in side.run(batch.plan).setbacks] == ([again] if fails else [])
    side.fails = False
    offer = side.view.offer("again", Span(0, again.computed))
    assert offer is not None
    side.view.release(offer)
    side.cache.release(again)
    landing = side.view.want(Request("r", tokens(range(24))))
    assert landing is not None and landing.held == (() if fails else (Span(0, 4),),)
    side.view.release(landing)
    check(side.cache)


def test_slots_that_an_unfinished_plan_reads_are_not_given_to_a_peer() -> None:
    """Pages on their way down leave the slots that a peer would fill: it must not be faster than they are."""
    side = Hosted()
    side.cache.release(side.compute("turn", 0, 32))
    batch = side.cache.add_sequence_batch([Request("next", tokens(range(100, 132)))])
    (late,) = batch.sequences
    assert batch.plan.count(Kind.OFFLOAD) == 8
    side.cache.release(late, store=False)
    assert side.view.want(Request("r", tokens(range(200, 216)))) is None, "its slots are empty now, and still read"
    side.run(batch.plan)
    landing = side.view.want(Request("r", tokens(range(200, 216))))
    assert landing is not None
    side.view.release(landing)
    check(side.cache)


def test_a_session_can_be_opened_while_encoder_pages_come_up() -> None:
    """Its facts are known as soon as the prompt is admitted; nothing is held before there is something to send."""
    groups = (LayerGroup("full", page_bytes=64), LayerGroup("cross", page_bytes=16, cross=True))
    cache = Cache(CacheConfig((TierConfig("device", (8, 4)), TierConfig("host", (16, 16))), 4, groups, 4, 64))
    view = QuireView(cache)

    def admit(name: str, first: int, heard: int) -> tuple[Sequence, Plan]:
        encoder = Encoder(10, tokens(range(heard, heard + 10)))
        batch = cache.add_sequence_batch([Request(name, tokens(range(first, first + 8)), encoder=encoder)])
        return batch.sequences[0], batch.plan

    for name, first, heard in (("a", 0, 100), ("b", 50, 300)):
        sequence, plan = admit(name, first, heard)
        cache.finish(plan)
        cache.commit(sequence)
        cache.release(sequence)
    sequence, plan = admit("again", 20, 100)
    assert plan.count(Kind.ONBOARD) and cache.open_plans() == [plan]
    offer = view.offer("again", Span(0, 0))
    assert offer is not None and [len(places) for places in offer.places] == [2, 3]
    assert not any((places >= 0).any() for places in offer.places)
    view.release(offer)
    cache.finish(plan)
    cache.commit(sequence)
    whole = view.offer("again", Span(0, 8))
    assert whole is not None and spans_of(whole.places[1]) == (Span(0, 3),)
    view.release(whole)
    cache.release(sequence)
    check(cache)
