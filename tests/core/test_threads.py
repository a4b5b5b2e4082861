"""Several threads at one door: every call is whole, and making keys lets others run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from random import Random
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest

from quire import Cache, CacheConfig, Removed, Request, Span, Stored, TierConfig, check
from quire.core.store import StoreName, open_store

THREADS = 4
ROUNDS = {"twin": 60, "compiled": 400}


@pytest.fixture(autouse=True)
def switch_often() -> Iterator[None]:
    """Threads change places about as often as the interpreter allows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def build(store: StoreName, slots: int = 40, host: int = 12) -> Cache:
    tiers = (TierConfig("device", slots), TierConfig("host", host))
    config = CacheConfig(tiers, block_size=4, max_sequences=16, max_length=64, events=True)
    return Cache(config, store=store)


def together(*works: Callable[[], Any]) -> list[Any]:
    """Run them at once, to the end; the first error of any of them is ours."""
    start, answers, errors = Barrier(len(works)), [None] * len(works), []

    def work(place: int) -> None:
        try:
            start.wait()
            answers[place] = works[place]()
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=work, args=(place,)) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return answers


def prompt(dice: Random) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Few tokens, so that threads meet in the tree."""
    return np.array([int(dice.random() < 0.2) for _ in range(dice.randint(1, 24))], np.int32)


class Worker:
    """One thread's requests: each through its whole life, kept until a later round."""

    def __init__(self, cache: Cache, number: int, rounds: int) -> None:
        self.cache, self.number, self.rounds = cache, number, rounds
        self.dice = Random(number)
        self.live: list[Any] = []
        self.admitted = 0
        self.full = False  # somebody had no room: let go of something

    def __call__(self) -> Worker:
        for turn in range(self.rounds):
            self.admit(
                [Request((self.number, turn, part), prompt(self.dice)) for part in range(self.dice.randint(1, 2))]
            )
            self.decode()
            while len(self.live) > 2 or (self.live and self.full):
                self.full = False
                self.let_go(self.live.pop(self.dice.randrange(len(self.live))))
        while self.live:
            self.let_go(self.live.pop())
        return self

    def admit(self, requests: list[Request]) -> None:
        ready = [self.cache.prepare(request) if self.dice.random() < 0.5 else request for request in requests]
        starts = [probe.start for probe in self.cache.probe(ready)]
        assert all(0 <= start < len(request.tokens) for start, request in zip(starts, requests, strict=True))
        with self.cache.claim(ready) as claims:
            promised = {claim.request.id: claim.start for claim in claims}
            if self.dice.random() < 0.2:
                return  # dropped by leaving
            batch = self.cache.admit(claims, token_budget=40)
        self.cache.finish(batch.plan)
        for sequence in batch.sequences:
            assert sequence.start == promised[sequence.id]
            assert (self.cache.tokens(sequence) == sequence.request.tokens).all()
            self.cache.commit(sequence, batch.spans[sequence].end)
        self.admitted += len(batch.sequences)
        self.full |= bool(batch.refused)
        self.live += batch.sequences

    def decode(self) -> None:
        growing = [sequence for sequence in self.live if sequence.length < 60]
        plan = self.cache.grow(growing, np.ones(len(growing), np.int32)) if growing else None
        self.full |= plan is None
        if plan is not None:
            self.cache.finish(plan)
            self.cache.commit(growing)

    def let_go(self, sequence: Any) -> None:
        if self.dice.random() < 0.2:
            held = self.cache.hold(sequence, Span(0, min(4, sequence.capacity())))
            self.cache.release(sequence)
            assert held is not None
            self.cache.drop(held)
        else:
            self.cache.release(sequence, store=self.dice.random() < 0.9)


def test_many_threads_leave_one_sound_cache(store: StoreName) -> None:
    """Claims, admissions, growth, commits, releases, probes, holds of four threads; then all is accounted for."""
    cache = build(store)
    works = [Worker(cache, number, ROUNDS[store]) for number in range(THREADS)]
    listener = Listener(cache, ROUNDS[store])
    together(*works, listener)
    check(cache)
    assert cache.num_sequences == 0 and cache.num_free() == 40
    usage = [cache.usage(tier) for tier in range(2)]
    assert all(one.held == 0 and one.empty + one.idle + one.shadows == one.capacity for one in usage)
    assert not cache._registry.open_claims and not cache._registry.holds and not cache._registry.plans
    listener.hear()
    assert len(listener.known) == usage[0].idle + usage[1].idle
    assert sum(work.admitted for work in works) > THREADS * ROUNDS[store] // 2


class Listener:
    """Reads events, counts and gauges while the others work; knows at the end what is stored."""

    def __init__(self, cache: Cache, rounds: int) -> None:
        self.cache, self.rounds = cache, rounds
        self.known: set[int] = set()
        self.allocated = 0

    def __call__(self) -> None:
        for _ in range(self.rounds):
            self.hear()
            self.allocated += self.cache.take_stats().allocated
            usage = self.cache.usage()
            assert usage.empty + usage.idle + usage.shadows + usage.held == usage.capacity
            assert 0 <= self.cache.num_free() <= usage.capacity
            check(self.cache)

    def hear(self) -> None:
        batch = self.cache.take_events()
        assert batch.lost == 0
        for event in batch:
            match event:
                case Stored():
                    assert not self.known & set(event.hashes)
                    self.known |= set(event.hashes)
                case Removed():
                    assert self.known >= set(event.hashes)
                    self.known -= set(event.hashes)


def test_counts_of_all_threads_add_up(store: StoreName) -> None:
    """Two threads read the step's counts while two work: no page is counted twice or forgotten."""
    cache = build(store)
    works = [Worker(cache, number, ROUNDS[store] // 2) for number in range(2)]
    readers = [Listener(cache, ROUNDS[store]), Listener(cache, ROUNDS[store])]
    together(*works, *(lambda reader=reader: count(reader) for reader in readers))
    rest = cache.take_stats().allocated
    assert sum(reader.allocated for reader in readers) + rest == cache.stats().allocated > 0


def count(reader: Listener) -> None:
    for _ in range(reader.rounds):
        reader.allocated += reader.cache.take_stats().allocated


def test_requests_are_prepared_while_the_door_is_in_use(store: StoreName) -> None:
    """Preparing needs no lock: what other threads prepare is admitted here, token by token what was asked."""
    cache = build(store)
    ready: SimpleQueue[Any] = SimpleQueue()
    num_requests = ROUNDS[store]

    def prepare(number: int) -> None:
        dice = Random(number)
        for turn in range(num_requests):
            ready.put(cache.prepare(Request((number, turn), prompt(dice))))

    def serve() -> int:
        served = 0
        for _ in range(2 * num_requests):
            (sequence,) = cache.add_sequence_batch([ready.get()]).sequences
            assert (cache.tokens(sequence) == sequence.request.tokens).all()
            cache.commit(sequence)
            cache.release(sequence)
            served += 1
        return served

    *_, served = together(lambda: prepare(1), lambda: prepare(2), serve)
    check(cache)
    assert served == 2 * num_requests and cache.num_free() == 40


def test_making_keys_lets_other_threads_run(store: StoreName) -> None:
    """While one thread makes the keys of a long chain another gets on, though no thread is ever made to yield.

    The interpreter is told not to switch by itself. So if the call kept the interpreter, this thread would first wake
    when the worker has ended, and never find it inside a call.
    """
    if store == "twin":
        pytest.skip("the reference store is plain Python")
    chain = open_store("compiled").Chain
    tokens = np.arange(1 << 22, dtype=np.int32)
    inside = [False]
    begun: SimpleQueue[None] = SimpleQueue()
    rounds = 20

    def work() -> None:
        for _ in range(rounds):
            made = chain(16, tokens)
            inside[0] = True
            begun.put(None)
            assert made.extend_keys() == len(tokens) // 16
            inside[0] = False

    sys.setswitchinterval(1000.0)
    worker = Thread(target=work)
    worker.start()
    seen = 0
    for _ in range(rounds):
        begun.get()
        seen += inside[0]
    worker.join()
    assert seen > 0
