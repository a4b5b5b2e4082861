"""Invariants that speak of what happens between two states, on random lives of small caches."""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import partial
from itertools import permutations
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from quire import (
    Batch,
    Cache,
    CacheConfig,
    Cleared,
    Counts,
    Created,
    Kind,
    LayerGroup,
    Moved,
    Plan,
    Removed,
    Request,
    Retained,
    RetainRange,
    Retention,
    Scope,
    Sequence,
    Span,
    StateError,
    Stored,
    TierConfig,
    check,
)  # fmt: skip
from quire.core.records.config import EVENT_SEED
from quire.core.store import StoreName
from quire.core.store.dumped import Dump
from tests.effort import cases

# The store fixture is a name that never changes, so sharing it between examples is safe.
play = settings(max_examples=cases(8, 200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

OPTIONS = {
    "block_size": st.sampled_from([2, 3]),
    "slots": st.integers(4, 10),
    "host": st.sampled_from([0, 1, 3, 6]),
    "groups": st.sampled_from([1, 1, 2]),
    "eviction": st.sampled_from(["lru", "release_order"]),
    "shadows": st.booleans(),
    "copies": st.booleans(),
}
WEIGHTS = {
    "serve": 6, "add": 5, "grow": 6, "commit": 6, "release": 5, "suspend": 1, "trim": 1, "fork": 1, "hold": 1,
    "drop": 2, "offload": 1, "wait": 2, "truncate": 1, "clear": 1,
}  # fmt: skip
FORBIDDEN = {"truncate", "clear"}  # while a claim is open

Step = tuple[str, Any, Any]


def prompt(dice: Random) -> list[int]:
    """Few tokens and mostly the same one, so that prompts share what they begin with."""
    return [int(dice.random() < 0.2) for _ in range(dice.randint(1, 13))]


def batch(dice: Random) -> list[Any]:
    """Prompt, priority and salt of one to three requests."""
    values, salts = [None, None, 0, 29, 30, 35, 90], [None, None, None, "salt"]
    return [(prompt(dice), dice.choice(values), dice.choice(salts)) for _ in range(dice.randint(1, 3))]


def steps(seed: int, length: int, without: Collection[str] = ()) -> list[Step]:
    """A history; a shorter length is a prefix of a longer one, so a failure shrinks to its first moment."""
    dice = Random(seed)
    verbs = [verb for verb in WEIGHTS if verb not in without]
    history: list[Step] = []
    for verb in dice.choices(verbs, [WEIGHTS[verb] for verb in verbs], k=60)[:length]:
        match verb:
            case "add" | "serve":
                history.append((verb, batch(dice), dice.choice([None, None, 4])))
            case "truncate":
                history.append((verb, prompt(dice), dice.randint(0, 9)))
            case _:
                history.append((verb, dice.randint(0, 99), dice.randint(0, 99)))
    return history


seeds = st.integers(0, 1 << 32)
options = st.fixed_dictionaries(OPTIONS)
histories = st.builds(steps, seeds, st.sampled_from(range(1, 61)))  # uniform, and shrinks to the front
quiet = st.builds(partial(steps, without=FORBIDDEN), seeds, st.integers(0, 10))
batches = st.builds(lambda seed: batch(Random(seed)), seeds)


class Life:
    """A small cache and what happens in it; the same steps on another one must give the same answers."""

    def __init__(
        self, store: StoreName, *, block_size: int, slots: int, host: int, groups: int, copies: bool, **rest: Any
    ) -> None:
        tiers = (TierConfig("device", slots), TierConfig("host", host)) if host else (TierConfig("device", slots),)
        layers = tuple(LayerGroup(f"g{group}") for group in range(groups))
        config = CacheConfig(
            tiers, block_size, layers, max_sequences=6, max_length=32, copy_on_partial_reuse=copies, events=True, **rest
        )
        self.now = 0.0
        self.cache = Cache(config, clock=lambda: self.now, store=store)
        self.live: list[Sequence] = []
        self.holds: list[Any] = []
        self.names = 0

    @property
    def dump(self) -> Dump:
        return self.cache._setup.store.dump()

    def run(self, history: list[Step]) -> None:
        for step in history:
            self.act(step)

    def act(self, step: Step) -> Any:
        verb, first, second = step
        if verb in ("grow", "commit", "release", "suspend", "trim", "fork", "hold") and not self.live:
            return None
        answer = getattr(self, verb)(first, second)
        check(self.cache)
        return answer

    def pick(self, number: int) -> Sequence:
        return self.live[number % len(self.live)]

    def request(self, prompt: list[int], priority: int | None = None, salt: str | None = None, **more: Any) -> Request:
        self.names += 1
        retention = None
        if priority is not None:
            retention = Retention((RetainRange(0, 5, priority, 2.0),), decode_priority=priority)
        return Request(self.names, np.array(prompt, np.int32), Scope(salt=salt), retention=retention, **more)

    def requests(self, batch: list[Any]) -> list[Request]:
        return [self.request(*item) for item in batch]

    def settle(self, plan: Plan | None) -> Any:
        if plan is None:
            return None
        self.cache.finish(plan)
        return plan.moves.tolist()

    def admitted(self, batch: Batch) -> Any:
        self.live += batch.sequences
        facts = [
            (s.start, [s.slots(g).tolist() for g in self.groups], [s.pages(g).tolist() for g in self.groups])
            for s in batch.sequences
        ]
        refused = [(refusal.reason, refusal.need, refusal.have) for refusal in batch.refused]
        return facts, list(batch.spans.values()), refused, self.settle(batch.plan)

    @property
    def groups(self) -> range:
        return range(len(self.cache.config.groups))

    def add(self, batch: list[Any], chunk: int | None) -> Any:
        return self.admitted(self.cache.add_sequence_batch(self.requests(batch), max_chunk=chunk))

    def serve(self, batch: list[Any], chunk: int | None) -> Any:
        """From admission to release at once; a chunk is all that is computed."""
        known = len(self.live)
        answer = self.add(batch, chunk)
        for sequence, span in zip(self.live[known:], answer[1], strict=True):
            self.cache.commit(sequence, span.end)
            check(self.cache)
            self.cache.release(sequence)
            check(self.cache)
        del self.live[known:]
        return answer

    def grow(self, number: int, token: int) -> Any:
        sequence = self.pick(number)
        room = sequence.length < self.cache.config.max_length
        room = room and sequence.ran == sequence.length  # a prompt under way does not grow
        return self.settle(self.cache.grow(sequence, np.array([token % 2], np.int32))) if room else None

    def commit(self, number: int, more: int) -> int:
        sequence = self.pick(number)
        return self.cache.commit(sequence, sequence.computed + more % (sequence.length - sequence.computed + 1))

    def release(self, number: int, chance: int) -> None:
        self.cache.release(self.live.pop(number % len(self.live)), store=chance % 8 > 0)

    def suspend(self, number: int, _: int) -> Any:
        request = self.cache.suspend(self.live.pop(number % len(self.live)))
        return self.admitted(self.cache.add_sequence_batch([request])) if len(request.tokens) else None

    def trim(self, number: int, count: int) -> Any:
        sequence = self.pick(number)
        drafts = sequence.length - max(sequence.committed, sequence.prompt_end)
        try:
            return self.cache.trim(sequence, count % (max(drafts, 0) + 1))
        except StateError as shared:  # by a fork, or a hold
            return type(shared).__name__

    def fork(self, number: int, count: int) -> Any:
        names = [f"fork-{self.names}-{place}" for place in range(1 + count % 2)]
        self.names += 1
        made = self.cache.fork(self.pick(number), names)
        if made is None:
            return None
        self.live += made[0]
        return [sequence.slots().tolist() for sequence in made[0]], self.settle(made[1])

    def hold(self, number: int, end: int) -> Any:
        sequence = self.pick(number)
        held = self.cache.hold(sequence, Span(0, end % (sequence.capacity() + 1)))
        assert held is not None
        self.holds.append(held)
        return [pages.tolist() for pages in held.pages]

    def drop(self, number: int, _: int) -> None:
        if self.holds:
            self.cache.drop(self.holds.pop(number % len(self.holds)))

    def offload(self, count: int, _: int) -> Any:
        return self.settle(self.cache.offload(count % 4))

    def wait(self, seconds: int, _: int) -> None:
        self.now += seconds % 4
        self.cache.refresh()

    def truncate(self, prompt: list[int], keep: int) -> int:
        return self.cache.truncate(Request("cut", np.array(prompt, np.int32)), keep)

    def clear(self, chance: int, _: int) -> int:
        return self.cache.clear() if chance % 4 == 0 else 0

    def end(self) -> None:
        """Everybody lets go."""
        while self.live:
            self.act(("release", 0, 1))
        while self.holds:
            self.act(("drop", 0, 0))


def same_events(one: Cache, other: Cache) -> None:
    left, right = one.take_events(), other.take_events()
    for name in ("records", "hashes", "details", "tokens"):
        assert np.array_equal(getattr(left, name), getattr(right, name)), name
    assert left.lost == right.lost


@pytest.mark.long
@play
@given(options=options, history=histories)
def test_equal_calls_give_equal_numbers(store: StoreName, options: Any, history: Any) -> None:
    """Slots, pages, moves, events and counts follow from the calls alone."""
    one, other = Life(store, **options), Life(store, **options)
    for step in history:
        assert one.act(step) == other.act(step)
    assert one.dump == other.dump
    same_events(one.cache, other.cache)


@pytest.mark.long
@play
@given(options=options, history=histories, intrusions=st.lists(batches, min_size=1, max_size=5))
def test_a_dropped_claim_or_a_refused_batch_leaves_no_trace(
    store: StoreName, options: Any, history: Any, intrusions: Any
) -> None:
    """State, order, counts and events are those of a cache that was never asked."""
    undisturbed, disturbed = Life(store, **options), Life(store, **options)
    for place, step in enumerate(history):
        if place % cases(4, 1) == 0:
            intrude(disturbed, intrusions[place // cases(4, 1) % len(intrusions)])
        answer = undisturbed.act(step)
        undisturbed.names = disturbed.names = max(undisturbed.names, disturbed.names)
        assert disturbed.act(step) == answer
        undisturbed.names = disturbed.names
    assert disturbed.dump == undisturbed.dump
    same_events(disturbed.cache, undisturbed.cache)


def intrude(life: Life, batch: list[Any]) -> None:
    """Ask for a batch and take nothing: drop it, or ask for more than there is."""
    cache, names = life.cache, life.names
    before, stats = life.dump, cache.stats()
    requests = life.requests(batch)
    with cache.claim(requests):
        check(cache)
    too_long = life.request([1] * 32)  # needs more slots than any of these caches has
    refused = cache.add_sequence_batch([*requests, too_long], all_or_nothing=True)
    assert not refused.sequences and len(refused.refused) == len(requests) + 1 and len(refused.plan) == 0
    claims = cache.claim(requests)
    cache.probe(requests)
    claims.drop()
    claims.drop()  # nothing is left to give back
    assert life.dump == before and cache.stats() == stats
    life.names = names


@pytest.mark.long
@play
@given(options=options, history=histories, batch=batches, between=quiet)
def test_a_claim_is_final(store: StoreName, options: Any, history: Any, batch: Any, between: Any) -> None:
    """Its start is what a probe said just before, in every order of the batch, whatever happens until admission."""
    life = Life(store, **options)
    life.run(history)
    requests = life.requests(batch)
    promised = {request.id: probe.start for request, probe in zip(requests, life.cache.probe(requests), strict=True)}
    for order in permutations(requests):
        with life.cache.claim(order) as claims:
            found = {claim.request.id: claim.start for claim in claims}
            refused = {refusal.request.id for refusal in claims.refused}
        assert found == {name: start for name, start in promised.items() if name not in refused}
    claims = life.cache.claim(requests)
    life.run(between)
    batch_now = life.cache.admit(claims)
    check(life.cache)
    for sequence in batch_now.sequences:
        assert sequence.start == sequence.computed == promised[sequence.id] < sequence.prompt_end
        assert batch_now.spans[sequence] == Span(sequence.start, sequence.prompt_end)


@pytest.mark.long
@play
@given(options=options, history=histories)
def test_events_replay_to_the_tree(store: StoreName, options: Any, history: Any) -> None:
    """A listener that applies every event in order knows exactly what is stored, where, and at which priority."""
    life, mirror = Life(store, **options), Mirror()
    for step in history:
        life.act(step)
        mirror.hear(life.cache.take_events())
        assert mirror.pages == stored_pages(life)


class Mirror:
    """What a listener knows: per group and block, named by its whole path, the hottest tier and the priority."""

    def __init__(self) -> None:
        self.paths: dict[int, tuple[Any, ...]] = {}
        self.pages: dict[tuple[int, Any], tuple[int, int]] = {}

    def hear(self, batch: Any) -> None:
        for event in batch:
            match event:
                case Stored():
                    self.stored(event)
                case Moved(group, name, source, target):
                    tier, priority = self.pages[group, self.paths[name]]
                    assert tier == source
                    self.pages[group, self.paths[name]] = (target, priority)
                case Retained(group, name, old, new):
                    tier, priority = self.pages[group, self.paths[name]]
                    assert priority == old != new
                    self.pages[group, self.paths[name]] = (tier, new)
                case Removed(group, names):
                    for name in names:
                        del self.pages[group, self.paths[name]]
                case Cleared(group):
                    self.pages = {place: facts for place, facts in self.pages.items() if place[0] != group}
                case Created():
                    assert not self.pages

    def stored(self, event: Stored) -> None:
        assert event.scope is not None
        path = (event.scope.event_hash(EVENT_SEED),) if event.parent is None else self.paths[event.parent]
        for place, (name, priority) in enumerate(zip(event.hashes, event.priorities, strict=True)):
            size = event.tokens_per_block
            path = (*path, tuple(event.tokens[place * size : (place + 1) * size].tolist()))
            assert self.paths.setdefault(name, path) == path, "one hash names two blocks"
            assert (event.group, path) not in self.pages, "stored twice"
            self.pages[event.group, path] = (0, priority)


def stored_pages(life: Life) -> dict[tuple[int, Any], tuple[int, int]]:
    found = {}
    dump = life.dump
    for group, facts in enumerate(dump.groups):
        for page in facts.pages.values():
            if page.node >= 0:
                way = dump.way_to(page.node)
                path = (way[0].root, *(node.tokens for node in way[1:]))
                found[group, path] = (next(tier for tier, slot in enumerate(page.slots) if slot >= 0), page.priority)
    return found


@pytest.mark.long
@play
@given(options=options, history=histories)
def test_counts_add_up(store: StoreName, options: Any, history: Any) -> None:
    """Steps add up to the whole, requests to their step, kinds to their sum."""
    life = Life(store, **options)
    cache = life.cache
    whole = {group: np.zeros(NUM_FLAT, np.int64) for group in life.groups}
    for step in history:
        known = len(life.live)
        life.act(step)
        for group in life.groups:
            counts = cache.take_stats(group)
            whole[group] += flat(counts)
            assert 0 <= counts.allocated_new <= counts.allocated
            assert counts.reused == counts.reused_full + counts.reused_partial == sum(counts.reused_from)
            assert counts.reused_partial == sum(counts.partial_from)
            if step[0] == "add":
                each = [flat(sequence.counts(group)) for sequence in life.live[known:]]
                assert np.array_equal(flat(counts), sum(each, np.zeros(NUM_FLAT, np.int64)))
    for group in life.groups:
        assert np.array_equal(whole[group], flat(cache.stats(group)))


LISTS = ("hinted", "reused_hinted")
FLAT = [name for name in Counts.__slots__ if name not in ("page_bytes", "reused_from", "partial_from", *LISTS)]
NUM_FLAT = len(FLAT) + 7


def flat(counts: Counts) -> np.ndarray:
    lists = [number for name in LISTS for number in getattr(counts, name)]
    return np.array([*(getattr(counts, name) for name in FLAT), *lists, sum(counts.reused_from)], np.int64)


@pytest.mark.long
@play
@given(options=options, history=histories)
def test_when_everyone_has_let_go_every_slot_is_free(store: StoreName, options: Any, history: Any) -> None:
    """Nothing leaks: all slots are empty, idle or shadows, and the device has as many free ones as it has."""
    life = Life(store, **options)
    life.run(history)
    life.end()
    config = life.cache.config
    for group in life.groups:
        assert life.cache.num_free(group) == config.slots_of(0, group)
        for tier in range(len(config.tiers)):
            usage = life.cache.usage(tier, group)
            assert usage.held == 0 and usage.empty + usage.idle + usage.shadows == usage.capacity
    life.cache.clear()
    assert all(life.cache.usage(0, group).empty == config.slots_of(0, group) for group in life.groups)
    assert not life.dump.nodes


@pytest.mark.long
@play
@given(options=options, history=histories, ones=batches, others=batches, more=st.integers(0, 6))
def test_a_probe_never_promises_too_much_room(
    store: StoreName, options: Any, history: Any, ones: Any, others: Any, more: int
) -> None:
    """Admission takes at most the slots a probe named, growth to completion at most those to completion; it reads from
    colder tiers exactly what was announced."""
    life = Life(store, **options)
    life.run(history)
    request = life.request(*ones[0], max_new_tokens=more)
    with life.cache.claim(life.requests(others)):  # others may have their eye on the same pages
        (probe,) = life.cache.probe([request])
        before = [life.cache.num_free(group) for group in life.groups]
        batch = life.cache.add_sequence_batch([request])
        check(life.cache)
        fits = all(need <= have for need, have in zip(probe.slots_now, before, strict=True))
        assume(batch.sequences)
        (sequence,) = batch.sequences
        assert fits and sequence.start == probe.start
        up = [move.group for move in batch.plan if move.kind != Kind.OFFLOAD and max(move.src[0], move.dst[0])]
        assert tuple(map(up.count, life.groups)) == probe.onboards
        taken = [have - life.cache.num_free(group) for group, have in zip(life.groups, before, strict=True)]
        assert all(count <= most for count, most in zip(taken, probe.slots_now, strict=True))
        life.cache.commit(sequence)
        for _ in range(more):
            if life.cache.grow(sequence, np.array([1], np.int32)) is None:
                break
            life.cache.commit(sequence)
        taken = [have - life.cache.num_free(group) for group, have in zip(life.groups, before, strict=True)]
        assert all(count <= most for count, most in zip(taken, probe.slots_to_completion, strict=True))
    check(life.cache)


@pytest.mark.long
@play
@given(options=options, history=histories, seconds=st.integers(0, 4))
def test_what_has_expired_is_at_the_default(store: StoreName, options: Any, history: Any, seconds: int) -> None:
    """After a refresh no idle page is overdue, and refreshing again at the same time changes nothing."""
    life = Life(store, **options)
    life.run(history)
    life.now += seconds
    life.cache.refresh()
    check(life.cache)
    now = int(life.now * 1_000_000)
    for facts in life.dump.groups:
        for page in facts.pages.values():
            idle = page.node >= 0 and page.holders == 0
            assert page.expiry == -1 or (idle and now < page.expiry <= now + page.duration)
            assert not idle or page.duration < 0 or page.expiry >= 0 or page.priority == 35
    before = life.dump
    life.cache.refresh()
    assert life.dump == before


@pytest.mark.long
def test_a_block_with_very_many_children_stays_cheap(store: StoreName) -> None:
    """A lookup below a block with very many children costs about what it does with 100, whole and partial hits alike"""
    if store == "twin":
        pytest.skip("the reference store is for reading; its sorted lists move on every insertion")
    few, many = with_children(store, 100), with_children(store, cases(20_000, 100_000))
    ask = [Request(n, np.array([7, 7, 7, 7, n * 97 % 100, 50, 60, 70, 80], np.int32)) for n in range(100)]
    assert [probe.start for probe in few.probe(ask)] == [probe.start for probe in many.probe(ask)] == [7] * 100
    cost = {id(cache): min(seconds(cache, ask) for _ in range(7)) for cache in (few, many)}
    assert cost[id(many)] < 20 * cost[id(few)]


def with_children(store: StoreName, count: int) -> Cache:
    """One full block with `count` partial blocks below it."""
    config = CacheConfig((TierConfig("device", count + 1024),), block_size=4, max_sequences=1000, max_length=16)
    cache = Cache(config, store=store)
    for first in range(0, count, 1000):
        names = range(first, min(first + 1000, count))
        requests = [Request(child, np.array([7, 7, 7, 7, child, 50, 60], np.int32)) for child in names]
        batch = cache.add_sequence_batch(requests)
        assert not batch.refused
        cache.commit(batch.sequences)
        for sequence in batch.sequences:
            cache.release(sequence)
    assert cache.usage().idle == count + 1
    return cache


def seconds(cache: Cache, ask: list[Request]) -> float:
    begun = time.process_time()
    cache.probe(ask)
    return time.process_time() - begun


def test_a_recorder_that_nobody_reads_stays_small(store: StoreName) -> None:
    """Neither names of scopes nor clearings pile up; what events speak of has a name all the same."""
    config = CacheConfig((TierConfig("device", 8),), block_size=2, max_length=16, events=True, max_events=64)
    cache = Cache(config, store=store)
    for length in (5, 2):  # with blocks to tell, and without
        for salt in range(300):
            tokens = np.arange(length, dtype=np.int32)
            batch = cache.add_sequence_batch([Request(salt, tokens, Scope(salt=f"{length}/{salt}"))])
            cache.finish(batch.plan)
            if length > 2:
                cache.commit(batch.sequences[0])
            cache.release(batch.sequences[0])
            assert len(cache._setup.roots._gone) <= 64 + 8
            if salt % 211 == 210:
                events = list(cache.take_events())
                assert all(
                    isinstance(event.scope, Scope) and event.scope.salt for event in events if isinstance(event, Stored)
                )
    for _ in range(1_000):
        cache.clear()
    assert [type(event) for event in cache.take_events()] == [Cleared]
