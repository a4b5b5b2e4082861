"""Sums of time against counting it page by page, and splits, with Hypothesis."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from fuzzing.subject import available_stores
from quire import Cache, CacheConfig, LayerGroup, Request, TierConfig, check
from quire.insight.bills import Bills
from quire.insight.bills.bill import split
from quire.insight.bills.evictions import Evictions, split_array
from quire.insight.bills.token_marks import TokenMarks
from tests.effort import cases
from tests.insight.bills.lives import bytes_held

PLACES = st.integers(0, 5)
QUIET: Any = {"deadline": None, "derandomize": True, "database": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=cases(60, 2000), **QUIET)
@given(st.integers(0, 1 << 80), st.lists(st.integers(0, 1 << 40), min_size=1, max_size=9).filter(any))
def test_parts_add_up_and_are_fair_to_one(number: int, weights: list[int]) -> None:
    parts = split(number, weights)
    assert sum(parts) == number
    whole = sum(weights)
    assert all(abs(part * whole - number * weight) < whole for part, weight in zip(parts, weights, strict=True))
    assert all(weight or not part for part, weight in zip(parts, weights, strict=True))


@settings(max_examples=cases(60, 2000), **QUIET)
@given(st.integers(0, 1 << 50), st.lists(st.integers(0, 1 << 24), min_size=1, max_size=9).filter(any), st.data())
def test_evictions_are_dealt_out_in_order_and_whole(number: int, weights: list[int], data: Any) -> None:
    """Beside dealing them out byte by byte, in parts that `split` makes."""
    parts = split_array(number, np.array(weights))
    assert parts.tolist() == split(number, weights)
    small = split_array(number % 50, np.array(weights))
    cuts = sorted(data.draw(st.lists(st.integers(0, int(small.sum())), max_size=4)))
    lost = np.diff([0, *cuts, int(small.sum())])
    evictions, byte_by_byte = Evictions(), Counter[tuple[int, int]]()
    for _ in range(2):
        evictions.add(lost, small)
        byte_by_byte.update(zip(np.repeat(np.arange(len(lost)), lost).tolist(),
                                np.repeat(np.arange(len(small)), small).tolist(), strict=True))  # fmt: skip
    assert {(whose, whom): count for whose, whom, count in evictions.take()} == byte_by_byte


@settings(max_examples=cases(80, 2000), **QUIET)
@given(st.data(), st.integers(1, 5), st.integers(0, 23))
def test_tokens_are_whose_their_pages_are(data: Any, size: int, start: int) -> None:
    """Beside counting token by token: a block without page is as the next one that has one."""
    marks = TokenMarks(0, start, start + 1, size)
    whole = start // size
    kinds = data.draw(st.lists(st.sampled_from((None, True, False)), min_size=whole, max_size=whole))
    rest = data.draw(st.sampled_from((None, True, False)))
    for block, mine in enumerate(kinds):
        if mine is not None:
            marks.note_blocks(np.array([block], np.int32), np.array([mine]))
    if rest is not None:
        marks.note_rest(rest)
    cut = data.draw(st.integers(0, start))
    shared = 0
    for token in range(cut):
        behind = [kind for kind in [*kinds, rest][token // size :] if kind is not None]
        shared += bool(behind) and not behind[0]
    assert marks.reused(cut) == (cut - shared, shared)


class Machine(RuleBasedStateMachine):
    """A few tenants in a small cache; whoever uses a page is noted here, page by page."""

    steps = 0

    @initialize(
        device=st.integers(3, 7),
        host=st.integers(0, 4),
        most=st.integers(3, 6),
        store=st.sampled_from(available_stores()),
    )
    def build(self, device: int, host: int, most: int, store: Any) -> None:
        self.time, self.held = 0, Counter[str]()
        self.bills = Bills(clock=lambda: self.time, most_accounts=most)
        tiers = [TierConfig("device", device), TierConfig("host", host)]
        config = CacheConfig(
            tiers, 2, [LayerGroup(page_bytes=7)], max_length=24, eviction="lru", offload_min_priority=0
        )
        self.cache = Cache(config, watchers=[self.bills], store=store)
        self.live: list[Any] = []
        self.prompt = 0
        Machine.steps += 1

    @rule(tenant=st.sampled_from("abcd"), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def ask(self, tenant: str, tokens: list[int]) -> None:
        request = Request((tenant, self.prompt, len(self.live)), np.array(tokens, np.int32), tenant=tenant)
        if any(one.id == request.id for one in self.live):
            return
        batch = self.cache.add_sequence_batch([request])
        self.cache.finish(batch.plan)
        if batch.sequences:
            self.cache.commit(batch.sequences)
            self.live += batch.sequences
            self.prompt += len(tokens)

    @rule(place=PLACES)
    def end(self, place: int) -> None:
        if self.live:
            self.cache.release(self.live.pop(place % len(self.live)))

    @rule(place=PLACES, token=st.integers(0, 1))
    def grow(self, place: int, token: int) -> None:
        if self.live:
            one = self.live[place % len(self.live)]
            plan = self.cache.grow(one, np.array([token], np.int32)) if one.length < 24 else None
            if plan is not None:
                self.cache.finish(plan)
                self.cache.commit(one)

    @rule(ticks=st.integers(1, 1 << 62))
    def pass_time(self, ticks: int) -> None:
        for tier, number in bytes_held(self.cache).items():
            self.held[tier] += number * ticks
        self.time += ticks

    @rule()
    def clear(self) -> None:
        self.cache.clear(store_again=True)

    @invariant()
    def it_adds_up(self) -> None:
        if hasattr(self, "cache"):
            check(self.cache)
            total = self.bills.bill().total
            assert Counter(total.held) == +self.held and total.prompt == self.prompt


def test_any_calls_add_up() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=cases(15, 1000), stateful_step_count=30, **QUIET),
    )
    assert Machine.steps > 0
