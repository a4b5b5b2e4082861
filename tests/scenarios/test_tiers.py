"""Pages on their way between device and host, with their bytes. Rows `tier`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quire import Cache, Kind, LayerGroup, Moved, Plan, Request, Retained, Sequence, Span, Stored, check
from quire.core.store import StoreName
from quire.tiers import ArenaTier, Mover, PageLayout

from .conftest import admit, build, compute, events, finish, got, keep, release, run, start_of, tokens, try_admit

PLANES = 4  # strips of a page: layers x K/V
PAGE = LayerGroup(page_bytes=PLANES * 8 * 2, planes=PLANES)  # 8 tokens, two bytes of each in every strip


Maker = Callable[..., "tuple[Cache, Machine]"]


class Machine:
    """Plain memory for the device and the host of one cache, the mover between them, and a model that writes tokens."""

    def __init__(self, cache: Cache) -> None:
        layout = PageLayout(PAGE.page_bytes, PAGE.planes)
        self.cache, self.size = cache, cache.config.block_size
        self.tiers = [ArenaTier(t.name, [t.of_pool(0)], [PAGE.page_bytes]) for t in cache.config.tiers]
        self.mover = Mover(self.tiers, [layout], self.size)

    def memory(self, tier: int) -> NDArray[np.uint16]:
        """[slot, strip, token of the block]"""
        view = self.tiers[tier].view(0)
        return view.view(np.uint16).reshape(len(view), PLANES, self.size)

    def move(self, plan: Plan) -> None:
        assert self.mover.run(plan) == []
        finish(self.cache, plan)

    def compute(self, sequence: Sequence, span: Span) -> None:
        for place in range(span.start, span.end):
            block, inside = divmod(place, self.size)
            token = self.cache.tokens(sequence)[place]
            self.memory(0)[sequence.slots()[block], :, inside] = token * PLANES + np.arange(PLANES)
        compute(self.cache, sequence, span.end)

    def read(self, sequence: Sequence, end: int) -> list[int]:
        """Tokens [0, end) as attention would find them: every strip must tell the same."""
        pages = self.memory(0)[sequence.slots()]  # [block, strip, token]
        told = pages.transpose(1, 0, 2).reshape(PLANES, -1)[:, :end] - np.arange(PLANES)[:, None]
        assert (told == told[0]).all() and not (told % PLANES).any()
        found: list[int] = (told[0] // PLANES).tolist()
        return found


@pytest.fixture
def machine(store: StoreName) -> Iterator[Maker]:
    made: list[Machine] = []

    def make(slots: int, host: int, **options: Any) -> tuple[Cache, Machine]:
        cache = build(store, slots, host, block_size=8, groups=(PAGE,), **options)
        made.append(Machine(cache))
        return cache, made[-1]

    yield make
    for one in made:
        one.mover.close()


def step(cache: Cache, machine: Machine, request: Request) -> Sequence:
    """Admit one request, move what the plan says, compute the rest of the prompt."""
    batch = cache.add_sequence_batch([request])
    machine.move(batch.plan)
    (sequence,) = batch.sequences
    machine.compute(sequence, batch.spans[sequence])
    return sequence


def test_a_partial_copy_after_a_journey_to_the_host(machine: Maker) -> None:
    """tier-01: two blocks go down and come back; another prompt copies 3 tokens of the second and no byte more."""
    cache, memory = machine(4, 4)
    first = step(cache, memory, Request("a", tokens(range(17))))
    release(cache, first, store=False)
    memory.move(cache.offload(3))
    assert cache.usage(1).shadows == 2
    release(cache, *admit(cache, Request("pressure", tokens(range(100, 132)))))
    again = cache.add_sequence_batch([Request("b", tokens(range(17)))])
    assert again.plan.count(Kind.ONBOARD) == 2
    memory.memory(0)[:] = 0xEEEE
    memory.move(again.plan)
    (sequence,) = again.sequences
    assert got(sequence).start == 16 and sequence.slots().tolist() == [0, 1, 2]
    assert memory.read(sequence, 16) == list(range(16))
    compute(cache, sequence, 16)
    batch = cache.add_sequence_batch([Request("c", tokens(range(11), 50))])
    (copy,) = batch.plan
    (third,) = batch.sequences
    assert (third.start, third.slots().tolist(), copy.kind, copy.tokens) == (11, [0, 3], Kind.COPY, 3)
    memory.move(batch.plan)
    assert memory.read(third, 11) == list(range(11))
    assert (memory.memory(0)[3, :, 3:] == 0xEEEE).all()


def test_pages_that_change_places_again_and_again_keep_their_bytes(machine: Maker) -> None:
    """tier-02: two prompts swap device and host six times, all plans under way at once: no slot is read too early."""
    cache, memory = machine(2, 2)
    prompts = {"x": tokens(range(16)), "y": tokens(range(100, 116))}
    for name, prompt in prompts.items():
        release(cache, step(cache, memory, Request(name, prompt)))
    tickets = []
    for turn in range(6):
        claims = cache.claim([Request(turn, prompts["xy"[turn % 2]])], purpose="decode")
        batch = cache.admit(claims)
        check(cache)
        assert [move.kind for move in batch.plan] == [Kind.EXCHANGE] * 2
        tickets.append((batch.plan, memory.mover.submit(batch.plan)))
        if turn < 5:
            release(cache, *batch.sequences)
    for plan, ticket in tickets:
        assert ticket.wait(120) == []
        finish(cache, plan)
    (last,) = batch.sequences
    assert memory.read(last, 16) == list(range(100, 116))
    release(cache, last)
    assert sorted((memory.memory(1)[:, 0] // PLANES).ravel().tolist()) == list(range(16))
    assert cache.stats().dropped == 0


@pytest.mark.parametrize(("priority", "offloaded"), [(35, 1), (30, 1), (29, 0), (5, 0)])
def test_pages_below_the_limit_are_dropped_instead_of_offloaded(
    store: StoreName, priority: int, offloaded: int
) -> None:
    """tier-03: the limit is 30: an idle page of at least that goes to the host, one below it goes away."""
    cache = build(store, 1, 1)
    run(cache, Request("a", tokens(range(4)), retention=keep(priority)))
    run(cache, Request("b", tokens(range(10, 14))))
    stats = cache.stats()
    assert (stats.offloaded, stats.dropped) == (offloaded, 1 - offloaded)
    assert start_of(cache, tokens(range(5))) == 4 * offloaded


def test_a_claim_lowers_the_free_count_of_its_own_tier(store: StoreName) -> None:
    """tier-04: a claimed device page is not free, a claimed host page takes nothing from the device."""
    cache = build(store, 2, 4)
    run(cache, Request("cold", tokens(range(4))))
    run(cache, Request("hot", tokens(range(10, 18))))
    free = []
    for prompt in (tokens(range(5)), tokens(range(10, 14), 99)):
        with cache.claim([Request("c", prompt)]) as claims:
            check(cache)
            free.append((claims[0].start, cache.num_free()))
    assert free == [(4, 2), (4, 1)] and cache.num_free() == 2


def test_a_fresh_device_page_takes_the_place_of_a_host_one(store: StoreName) -> None:
    """tier-05: a page went to the host before its twin was committed: the twin is found, the old copy its shadow."""
    cache = build(store, 2, 2, events=True)
    first, second = admit(cache, Request(1, tokens(range(4)), retention=keep(80)), Request(2, tokens(range(4))))
    compute(cache, first)
    release(cache, first)
    release(cache, *admit(cache, Request("pressure", tokens(range(50, 54)))))
    block = next(event for event in events(cache) if isinstance(event, Stored))
    assert (cache.usage(1).idle, compute(cache, second)) == (1, 0)
    assert events(cache) == [Moved(0, block.hashes[0], 1, 0), Retained(0, block.hashes[0], 80, 35)]
    assert (cache.usage(1).idle, cache.usage(1).shadows) == (0, 1)
    (probe,) = cache.probe([Request(3, tokens(range(5)))])
    assert (probe.start, probe.onboards) == (4, (0,))
    release(cache, second)


@pytest.mark.parametrize("shadows", [True, False])
def test_a_shadow_makes_the_second_offload_free(store: StoreName, shadows: bool) -> None:
    """tier-06: down, up and down again: with shadows the second way down copies nothing, without it copies again."""
    cache = build(store, 1, 2, shadows=shadows)
    run(cache, Request("a", tokens(range(4))))
    release(cache, *admit(cache, Request("b", tokens(range(10, 14)))))
    claims = cache.claim([Request("c", tokens(range(4)))], purpose="decode")
    batch = cache.admit(claims)
    finish(cache, batch.plan)
    assert [move.kind for move in batch.plan] == [Kind.ONBOARD]
    assert (cache.usage(1).shadows, cache.usage(1).empty) == ((1, 1) if shadows else (0, 2))
    release(cache, *batch.sequences)
    moved = try_admit(cache, Request("d", tokens(range(20, 24)))).plan
    assert [move.kind for move in moved] == ([] if shadows else [Kind.OFFLOAD])
    stats = cache.stats()
    assert (stats.offloaded, stats.demoted) == ((1, 1) if shadows else (2, 0))
    assert start_of(cache, tokens(range(5))) == 4


def test_what_was_never_stored_is_never_offloaded(store: StoreName) -> None:
    """tier-07: pages of a stopped request, and a page it had taken over, hold nothing worth a copy."""
    cache = build(store, 2, 2)
    run(cache, Request("seed", tokens(range(6))))
    (stopped,) = admit(cache, Request("a", tokens(range(5), 50, 51)))
    assert (stopped.start, stopped.counts().reused_partial) == (5, 1)
    release(cache, stopped, store=False)
    (other,) = admit(cache, Request("b", tokens(range(20, 24))))
    assert (got(other).slots, cache.stats().offloaded) == ([1], 0)
    release(cache, other)


def test_an_offload_never_pushes_out_a_higher_priority(store: StoreName) -> None:
    """tier-08: the one host slot holds a page of 80: a page of 35 is dropped, one of 80 or more takes its place."""
    cache = build(store, 1, 1)
    run(cache, Request("a", tokens(range(4)), retention=keep(80)))
    run(cache, Request("b", tokens(range(10, 14))))
    run(cache, Request("c", tokens(range(20, 24)), retention=keep(80)))
    assert (start_of(cache, tokens(range(5))), start_of(cache, tokens(range(10, 15)))) == (4, 0)
    run(cache, Request("d", tokens(range(30, 34))))
    assert (start_of(cache, tokens(range(5))), start_of(cache, tokens(range(20, 25)))) == (0, 4)


@pytest.mark.parametrize("slots", [3, 4])
@pytest.mark.parametrize(("failed", "start"), [(0, 0), (1, 4)])
def test_a_failed_onboard_is_the_only_thing_that_moves_a_start(
    store: StoreName, slots: int, failed: int, start: int
) -> None:
    """tier-09: two blocks come up from the host, one of them cannot be read: the sequence is told its new start."""
    cache = build(store, slots, 8)
    run(cache, Request("a", tokens(range(9))), computed=8)
    run(cache, Request("b", tokens(range(20, 20 + 4 * slots))))
    batch = cache.add_sequence_batch([Request("c", tokens(range(9)))])
    (sequence,) = batch.sequences
    onboards = [place for place, move in enumerate(batch.plan) if move.kind == Kind.ONBOARD]
    assert (sequence.start, len(onboards)) == (8, 2)
    (setback,) = cache.finish(batch.plan, failed=[onboards[failed]]).setbacks
    check(cache)
    assert (setback.holder, setback.old_start, setback.start, setback.lost) == (sequence, 8, start, False)
    assert (sequence.start, sequence.computed, sequence.capacity()) == (start, start, 12)
    assert start_of(cache, tokens(range(9))) == start
    assert cache.commit(sequence) == 0 and sequence.computed == start  # nothing was handed out since
    compute(cache, sequence, 9)
    release(cache, sequence)
    assert start_of(cache, tokens(range(9))) == 8


def test_early_offloads_go_only_into_empty_slots(store: StoreName) -> None:
    """tier-10: of three idle pages two get a copy in the two empty host slots; evicting those is free."""
    cache = build(store, 3, 2, eviction="lru")
    run(cache, Request("a", tokens(range(12))))
    plan = cache.offload(5)
    assert [move.kind for move in plan] == [Kind.OFFLOAD] * 2
    finish(cache, plan)
    batch = try_admit(cache, Request("b", tokens(range(50, 58))))
    assert (len(batch.plan), cache.stats().demoted) == (0, 2)
    assert start_of(cache, tokens(range(12))) == 11


def test_a_taken_over_page_gives_up_its_copy_below(store: StoreName) -> None:
    """tier-11: a tail with a shadow is taken over: its content will change, so the host copy goes."""
    cache = build(store, 4, 4)
    run(cache, Request("a", tokens(range(6))))
    finish(cache, cache.offload(2))
    assert (cache.usage(1).shadows, cache.usage(1).empty) == (2, 2)
    (sequence,) = admit(cache, Request("b", tokens(range(5), 90)))
    assert (got(sequence).slots, cache.usage(1).shadows, cache.usage(1).empty) == ([0, 1], 1, 3)
    release(cache, sequence)
