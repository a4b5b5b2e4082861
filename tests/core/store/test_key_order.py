"""KeyOrder: both stores give the same answers in random lives, and what an order over a caller's keys promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from quire.core.outside.key_ranking import KeyRanking
from quire.core.state.learner import Learner
from quire.core.store import open_store
from quire.core.store.interface import KeyOrder
from quire.core.store.reuse import CONTINUED, FEW, LATER, NEVER, NUM_CELLS, ONCE
from tests.effort import cases

HINTED = {"soon": 1, "later": 2, "never": 3}


def key(name: str) -> bytes:
    return name.encode().ljust(36, b".")


@pytest.fixture(params=["compiled", "twin"])
def order(request: pytest.FixtureRequest) -> Iterator[KeyOrder]:
    yield open_store(request.param).KeyOrder(8)


def bring(order: KeyOrder, *names: str) -> list[bytes]:
    """A request that made these, and is over."""
    keys = [key(name) for name in names]
    order.meet(keys)
    for one in keys:
        order.come(one)
        order.let_go(one)
    order.chain(keys)
    order.use(keys, set(), False)
    return keys


def test_a_text_goes_from_its_end_and_the_oldest_first(order: KeyOrder) -> None:
    order.set_time(1_000_000)
    bring(order, "a1", "a2", "a3")
    order.set_time(9_000_000)
    bring(order, "b1", "b2")
    assert order.take(4) == [key("a3"), key("a2"), key("a1"), key("b2")]
    assert len(order) == order.num_free == 1 and key("b1") in order and key("a1") not in order


def test_what_is_held_or_spared_stays_and_too_many_are_none(order: KeyOrder) -> None:
    bring(order, "a1", "a2", "a3")
    order.hold(key("a3"))
    assert order.num_free == 2
    assert order.take(2, {key("a1")}) is None
    assert order.take(1, {key("a1"), key("a3"), key("elsewhere")}) == [key("a2")]
    order.let_go(key("a3"))  # what it continued has gone: nothing waits for it
    assert order.take(2) == [key("a1"), key("a3")]


def test_a_key_stays_while_another_continues_it(order: KeyOrder) -> None:
    system = bring(order, "s1", "s2")
    order.set_time(50_000_000)
    order.come(key("x"))
    order.let_go(key("x"))
    order.chain([*system, key("x")])  # a younger text goes on from an old one
    assert order.take(3) == [key("x"), key("s2"), key("s1")]


def test_a_key_that_comes_back_has_the_uses_of_its_ghost(order: KeyOrder) -> None:
    keys = bring(order, "a1", "a2")
    order.use(keys, set(keys), False)
    assert order.take(2) is not None
    assert order.meet(keys) == (2, FEW)
    for one in keys:
        order.come(one)
        order.let_go(one)
    assert order.use(keys, set(keys), False) == FEW
    assert order.meet([key("new")]) == (0, ONCE)


def test_hints_and_priorities_count(order: KeyOrder) -> None:
    shared, mine, kept = bring(order, "s"), bring(order, "m1", "m2"), bring(order, "k")
    order.chain([*shared, *mine])
    order.chain([*shared, *kept])
    assert order.hint([*shared, *mine], HINTED["never"]) == 2  # the head is another text's, too
    order.retain(shared, 90)
    assert order.take(4) == [key("m2"), key("m1"), key("k"), key("s")]


def test_a_key_that_could_not_be_written_leaves_no_ghost(order: KeyOrder) -> None:
    order.come(key("a"))
    order.drop(key("a"))
    assert order.meet([key("a")]) == (0, ONCE) and len(order) == 0


def test_misuse_is_refused_and_changes_nothing(order: KeyOrder) -> None:
    bring(order, *"abcdefgh")
    for one in "ai":  # there already; one more than there is room for
        with pytest.raises(ValueError):
            order.come(key(one))
    with pytest.raises(ValueError):
        order.retain([key("a")], 101)
    with pytest.raises(ValueError):
        order.set_rank(np.zeros(NUM_CELLS, np.int32), False)
    with pytest.raises(KeyError):
        order.drop(key("i"))
    assert order.take(8) == [key(name) for name in "hgfedcba"]
    with pytest.raises(ValueError):
        type(order)(0)


class Lives:
    """The same calls to both stores."""

    def __init__(self, seed: int) -> None:
        self.dice = np.random.default_rng(seed)
        room, ghosts, adaptive = (
            int(self.dice.choice([1, 2, 5, 17, 40])),
            int(self.dice.choice([0, 2, 8])),
            seed % 3 > 0,
        )
        self.room, self.adaptive = room, adaptive
        self.orders = [open_store(name).KeyOrder(room, ghosts, adaptive) for name in ("compiled", "twin")]
        self.learners = [Learner(), Learner()]
        self.names = [key(str(number))[: 36 - number % 7] for number in range(4 * room + 4)]
        self.there: list[bytes] = []
        self.held: set[bytes] = set()
        self.now = 0

    def both(self, call: str, *given: Any) -> Any:
        answers = []
        for order in self.orders:
            try:
                answers.append(getattr(order, call)(*given))
            except (ValueError, KeyError) as wrong:
                answers.append(type(wrong).__name__)
        assert answers[0] == answers[1], (call, given)
        return answers[0]

    def some(self) -> list[bytes]:
        return [self.names[number] for number in self.dice.integers(len(self.names), size=self.dice.integers(6))]

    def step(self) -> None:
        self.now += int(self.dice.choice([0, 1, 1000, 10**6, 10**8]))
        self.both("set_time", self.now)
        acts = [self.come, self.come, self.hold, self.let_go, self.take, self.drop, self.talk, self.talk]
        acts[self.dice.integers(len(acts))]()
        for order in self.orders:
            assert (len(order), order.num_free) == (len(self.there), len(self.there) - len(self.held))
        if self.adaptive and (self.orders[0].is_due or self.dice.random() < 0.05):
            self.learn()

    def come(self) -> None:
        one = self.names[self.dice.integers(len(self.names))]
        self.both("meet", [one, *self.some()])
        if self.both("come", one) is None:
            self.there.append(one)
            self.held.add(one)

    def one(self) -> bytes:
        return self.there[self.dice.integers(len(self.there))] if self.there else self.names[0]

    def hold(self) -> None:
        one = self.one()
        if self.both("hold", one) is None:
            self.held.add(one)

    def let_go(self) -> None:
        one = self.one()
        self.both("let_go", one)
        self.held.discard(one)

    def take(self) -> None:
        count, spared = int(self.dice.integers(4)), set(self.some())
        free = len(set(self.there) - self.held - spared)
        gone = self.both("take", count, spared)
        assert (gone is None) == (count > free)
        for one in gone or ():
            assert one not in self.held | spared
            self.there.remove(one)

    def drop(self) -> None:
        one = self.one()
        if self.dice.random() < 0.3 and self.both("drop", one) is None:
            self.there.remove(one)
            self.held.discard(one)
        elif self.dice.random() < 0.01:
            self.both("clear")
            self.there, self.held = [], set()

    def talk(self) -> None:
        some, way = self.some(), self.dice.random()
        if way < 0.3:
            self.both("chain", some)
        elif way < 0.7:
            self.both("use", some, set(some[:2]), bool(self.dice.random() < 0.5))
        elif way < 0.85:
            self.both("hint", some, int(self.dice.integers(4)))
        else:
            self.both("retain", some, int(self.dice.choice([0, 35, 35, 90, 100])))

    def learn(self) -> None:
        counts = [order.take_counts() for order in self.orders]
        for one, other in zip(*counts, strict=True):
            assert np.array_equal(one, other)
        ranks = [learner.order(*count) for learner, count in zip(self.learners, counts, strict=True)]
        odd = self.dice.random() < 0.4
        anyhow = self.dice.permutation(NUM_CELLS).astype(np.int32), bool(self.dice.random() < 0.3)
        for order, rank in zip(self.orders, ranks, strict=True):
            order.set_rank(*(anyhow if odd else rank))


@pytest.mark.parametrize("seed", range(cases(12, 600)))
def test_both_stores_agree_in_random_lives(seed: int) -> None:
    lives = Lives(seed)
    for _ in range(250):
        lives.step()
    lives.both("take", lives.orders[0].num_free)


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("store", ["compiled", "twin"])
def test_a_priority_ends_in_its_time(store: Any) -> None:
    clock = Time()
    ranking = KeyRanking(8, clock=clock, store=store)
    first, second = bring(ranking.order, "a"), bring(ranking.order, "b")
    ranking.retain(first, 80, 60.0)
    clock.now = 59.0
    assert ranking.take(1) == second
    bring(ranking.order, "c")
    clock.now = 60.0
    assert ranking.take(1) == first


@pytest.mark.parametrize("store", ["compiled", "twin"])
def test_a_later_priority_outlives_an_earlier_one(store: Any) -> None:
    clock = Time()
    ranking = KeyRanking(8, clock=clock, store=store)
    first = bring(ranking.order, "a")
    ranking.retain(first, 80, 10.0)
    ranking.retain(first, 90, 100.0)
    second = bring(ranking.order, "b")
    ranking.retain(second, 60)
    clock.now = 50.0
    assert ranking.take(1) == second


def test_what_is_learned_rules_and_is_forgotten() -> None:
    """Text that comes back after two seconds is kept over younger text that never does."""
    clock = Time()
    ranking, hits = KeyRanking(40, clock=clock), 0
    for turn in range(4000):
        clock.now = turn / 10
        for name in (f"new{turn}", f"pair{turn}") + ((f"pair{turn - 20}",) if turn >= 20 else ()):
            keys = [key(name)]
            found = keys[0] in ranking.order
            if not found:
                ranking.meet(keys)
                if len(ranking.order) == 40:
                    ranking.take(1)
                ranking.order.come(keys[0])
                ranking.order.let_go(keys[0])
            ranking.use(keys, set(keys) if found else set(), False)
            hits += found and turn >= 3000
    assert hits > 700, "LRU has 1 of 1000"
    ranking.clear()
    assert len(ranking.order) == 0 and ranking.meet([key("pair1999")]) == (0, ONCE)


def test_a_text_that_continues_has_its_class(order: KeyOrder) -> None:
    keys = bring(order, "a1")
    order.use(keys, set(), True)
    assert order.use(keys, set(keys), False) == CONTINUED
    order.hint(keys, HINTED["later"])
    assert order.use(keys, set(keys), False) == LATER
    order.hint(keys, HINTED["never"])
    assert order.use(keys, set(keys), False) == NEVER
