"""The order that learns: leaves before parents, ages, ghosts, what teaches and what does not. Rows `adapt`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import Cache, Request, Scope, Sequence, check
from quire.core.state.learner import Learner
from quire.core.store import StoreName
from quire.core.store.dumped import DumpedCells, DumpedReuse
from quire.core.store.reuse import CONTINUED, FEW, MANY, NUM_AGES, NUM_CELLS, ONCE

from .conftest import Clock, Ran, build, finish, keep, run, start_of, tokens

A, B, C, D = (tokens(range(number, number + 4)) for number in (0, 10, 20, 30))


def adaptive(store: StoreName, slots: int, host: int = 0, **options: Any) -> tuple[Cache, Clock]:
    clock = Clock()
    return build(store, slots, host, clock=clock, **{"eviction": "adaptive", "ghosts": 4} | options), clock


def cells(cache: Cache) -> DumpedCells:
    """What the order knows of the only group."""
    found = cache._setup.store.dump().groups[0].cells
    assert found is not None
    return found


def known(cache: Cache, prompt: Any, salt: str | None = None) -> list[DumpedReuse]:
    """What it knows of a prompt's blocks, by running it: while it lives its pages are shown."""
    scope = Scope() if salt is None else Scope(salt=salt)
    batch = cache.add_sequence_batch([Request("look", prompt, scope=scope)])
    finish(cache, batch.plan)
    (sequence,) = batch.sequences
    pages = [cells(cache).pages[page] for page in sequence.pages().tolist()]
    cache.commit(sequence)
    cache.release(sequence)
    check(cache)
    return pages


def test_a_parent_does_not_go_before_its_child(store: StoreName) -> None:
    """adapt-01: whatever the priorities: 0 above 90 goes after it."""
    cache, _ = adaptive(store, 4)
    run(cache, Request(0, tokens(range(8)), retention=keep(0, 90)))
    assert run(cache, Request(1, tokens(range(100, 112)))) == Ran(0, [2, 3, 1])
    assert start_of(cache, tokens(range(9))) == 4
    assert run(cache, Request(2, tokens(range(200, 204)))) == Ran(0, [0])
    assert start_of(cache, tokens(range(9))) == 0


def test_before_anything_is_learned_the_oldest_go_first(store: StoreName) -> None:
    """adapt-02: what was used again is younger than what came after its first use."""
    cache, clock = adaptive(store, 3, ghosts=0)
    for clock.now, name, prompt in ((0, "a", A), (10, "b", B), (20, "c", C), (60, "a", A)):
        run(cache, Request(name, prompt))
    clock.now = 61
    assert run(cache, Request("d", D)).slots == [1]
    assert [start_of(cache, prompt) for prompt in (A, B, C)] == [3, 0, 3]


def test_a_block_that_comes_back_has_its_uses(store: StoreName) -> None:
    """adapt-03: two uses, gone, and a third: its class says so; new text behind known text has a class of its own."""
    cache, clock = adaptive(store, 2, partial_reuse=False)
    assert known(cache, A) == [DumpedReuse(1, ONCE, 0)]
    clock.now = 1
    assert known(cache, tokens(range(4), 9)) == [DumpedReuse(2, FEW, 1_000_000), DumpedReuse(1, CONTINUED, 1_000_000)]
    run(cache, Request(0, tokens(range(100, 108))))
    assert cache.usage().ghosts == 1
    for clock.now, uses, reuse in ((2, 3, FEW), (3, 4, MANY)):
        assert known(cache, tokens(range(4), 9))[0] == DumpedReuse(uses, reuse, int(clock.now * 1e6))
        run(cache, Request(uses, tokens(range(100 * uses, 100 * uses + 8))))


def test_nobody_is_taught_by_another_scope(store: StoreName) -> None:
    """adapt-04: the same tokens under another salt are new; under their own, even after the root went, they are not."""
    cache, _ = adaptive(store, 1, partial_reuse=False)
    run(cache, Request(0, A, scope=Scope(salt="a")))
    run(cache, Request(1, B))
    assert known(cache, A, "b")[0].uses == 1
    run(cache, Request(2, B))
    assert known(cache, A, "a")[0].uses == 2
    run(cache, Request(3, B))
    cache.clear()
    assert cache.usage().ghosts == 0
    assert known(cache, A, "a")[0].uses == 1


def test_only_an_admission_teaches(store: StoreName) -> None:
    """adapt-05: probes, claims that are dropped and batches that are refused leave it as it was."""
    cache, clock = adaptive(store, 4)
    for number in range(4):
        run(cache, Request(number, tokens(range(100 * number, 100 * number + 8))))
    before, clock.now = cache._setup.store.dump(), 100
    start_of(cache, tokens(range(8)))
    cache.claim([Request("c", tokens(range(8), 9))]).drop()
    assert cache.add_sequence_batch([Request("r", tokens(range(9, 29)))]).refused
    assert cache._setup.store.dump() == before


def test_retention_that_is_over_leaves_a_page_at_its_true_age(store: StoreName) -> None:
    """adapt-06: kept for a second, last used long before the others: it goes first, not last."""
    cache, clock = adaptive(store, 3)
    run(cache, Request("a", A, retention=keep(80, seconds=1)))
    for clock.now, name, prompt in ((60, "b", B), (90, "c", C)):
        run(cache, Request(name, prompt))
    clock.now = 100
    assert run(cache, Request("d", D)).slots == [0]
    assert [start_of(cache, prompt) for prompt in (A, B, C)] == [0, 3, 3]


def test_a_page_takes_what_is_known_of_it_along(store: StoreName) -> None:
    """adapt-07: down to the host with its uses and age, from there it is lost for a younger one, and remembered."""
    cache, clock = adaptive(store, 1, 1, partial_reuse=False)
    for clock.now, name, prompt in ((0, "a", A), (30, "b", B), (60, "c", C)):
        run(cache, Request(name, prompt))
    assert (cache.usage(0).idle, cache.usage(1).idle, cache.usage().ghosts) == (1, 1, 1)
    assert [(fact.uses, fact.used) for fact in cells(cache).pages.values()] == [(1, 60_000_000), (1, 30_000_000)]
    assert [ghost.used for ghost in cells(cache).ghosts if ghost] == [0]


def test_in_a_colder_tier_only_what_is_worth_less_makes_way(store: StoreName) -> None:
    """adapt-08: a page of priority 50 on the host stays; the device's victim of 35 is dropped and remembered."""
    cache, clock = adaptive(store, 1, 1, partial_reuse=False)
    run(cache, Request("a", A, retention=keep(50)))
    for clock.now, name, prompt in ((30, "b", B), (60, "c", C)):
        run(cache, Request(name, prompt))
    assert [start_of(cache, tokens(prompt.tolist(), 1)) for prompt in (A, B, C)] == [4, 0, 4]
    assert [ghost.used for ghost in cells(cache).ghosts if ghost] == [30_000_000]


@pytest.mark.parametrize(
    ("options", "copied"), [({"eviction": "lru"}, [1, 2]), ({"min_uses": 1}, [0, 2]), ({"min_uses": 2}, [0])]
)
def test_early_copies_begin_with_what_is_worth_most(
    store: StoreName, options: dict[str, Any], copied: list[int]
) -> None:
    """adapt-10: the last to go first, and with `min_uses` of 2 only what was used again; lru copies the next to go."""
    cache, clock = adaptive(store, 4, 2, partial_reuse=False, **options)
    for clock.now, name, prompt in ((0, "a", tokens(range(8))), (10, "c", C), (20, "again", tokens(range(4), 9))):
        run(cache, Request(name, prompt))
    plan = cache.offload(4)
    assert [move.src for move in plan] == [(0, slot) for slot in copied]
    assert (cache.usage(1).shadows, cache.usage(1).empty) == (len(copied), 2 - len(copied))
    finish(cache, plan)


def test_claimed_parents_are_passed_over(store: StoreName) -> None:
    """adapt-11: two children go, their parents are claimed: next is the leaf of a younger prompt."""
    cache, clock = adaptive(store, 6, partial_reuse=False)
    for clock.now, name, prompt in ((0, "a", tokens(range(16))), (60, "b", tokens(range(100, 108)))):
        run(cache, Request(name, prompt))
    clock.now = 70
    with cache.claim([Request("waits", tokens(range(8), 9))]):
        assert run(cache, Request("c", tokens(range(200, 212)))) == Ran(0, [3, 2, 5])
    assert [start_of(cache, prompt) for prompt in (tokens(range(17)), tokens(range(100, 109)))] == [8, 4]


@pytest.mark.parametrize(("eviction", "least", "most"), [("lru", 0, 0), ("adaptive", 150, 400)])
def test_it_learns_that_chats_come_back_late(store: StoreName, eviction: str, least: int, most: int) -> None:
    """adapt-09: every chat asks again after 40 others: LRU with 24 slots never has it; learned, old ones are kept."""
    cache, clock = adaptive(store, 24, eviction=eviction, partial_reuse=False)
    found = 0
    for number in range(440):
        clock.now += 1.0
        first = tokens(range(1000 * number, 1000 * number + 4), 1)
        run_fast(cache, first)
        if number >= 40:
            clock.now += 1.0
            found += run_fast(cache, tokens(range(1000 * (number - 40), 1000 * (number - 40) + 4), 1, 2))
    check(cache)
    assert least <= found <= most


@pytest.mark.parametrize("speed", [0.0, 1e-6, 1.0, 1e6])
def test_every_time_scale_is_as_good(store: StoreName, speed: float) -> None:
    """adapt-12: the same chats on clocks that stand, creep and race: what is learned is worth as much."""
    cache, clock = adaptive(store, 24, partial_reuse=False)
    found = 0
    for number in range(300):
        clock.now += speed
        run_fast(cache, tokens(range(1000 * number, 1000 * number + 4), 1))
        if number >= 40:
            clock.now += speed
            found += run_fast(cache, tokens(range(1000 * (number - 40), 1000 * (number - 40) + 4), 1, 2))
    check(cache)
    assert found > 60


def test_a_clock_that_goes_back_leaves_the_order_of_use(store: StoreName) -> None:
    """adapt-13: whoever came after the clock was set back is still the youngest."""
    cache, clock = adaptive(store, 3, ghosts=0)
    for clock.now, name, prompt in ((100, "a", A), (200, "b", B), (1, "c", C), (1, "b", B)):
        run(cache, Request(name, prompt))
    assert run(cache, Request("d", D)).slots == [0]
    assert [start_of(cache, prompt) for prompt in (A, B, C)] == [0, 3, 3]


def test_where_lru_does_better_it_falls_back_and_says_so(store: StoreName) -> None:
    """adapt-14: an order that keeps what is never asked again, forced upon it: LRU has all, and pages go by age."""
    cache, _ = adaptive(store, 64, partial_reuse=False)
    assert (cache.usage().by_age, cache.usage().fallbacks) == (True, 0)  # nothing is learned yet
    ((inside, place, _),), learner = cache._registry.learners, Backwards()
    cache._registry.learners = ((inside, place, learner),)
    seen = set()
    for number in range(1200):
        run_fast(cache, tokens(range(1000 * number, 1000 * number + 4), 1))
        if number >= 20:  # LRU has all of it
            run_fast(cache, tokens(range(1000 * (number - 20), 1000 * (number - 20) + 4), 1))
        seen.add(cache.usage().by_age)
    check(cache)
    assert cache.usage().fallbacks >= 1 and seen == {False, True}
    assert learner.judge.fallen or learner.judge.balance < 0


def test_what_came_together_goes_together(store: StoreName) -> None:
    """adapt-15: the youngest bins first: a parent joins the bin its child was in when all were last looked at."""
    cache, clock = adaptive(store, 96, partial_reuse=False)
    texts = [tokens(range(1000 * number, 1000 * number + 192)) for number in range(2)]
    for clock.now, text in ((0.0, texts[0]), (1.0, texts[1])):
        run_fast(cache, text)
    youngest_first = [reuse * NUM_AGES + age for age in range(NUM_AGES) for reuse in range(NUM_CELLS // NUM_AGES)]
    cache._setup.store.set_rank(0, np.array(youngest_first, np.int32), False)
    cache._registry.learners = ()
    for clock.now, name in ((10.0, 5000), (14.0, 6000), (14.0, 7000)):
        cache.commit(run_live(cache, tokens(range(name, name + 4))))
    assert cells(cache).clock[2] == 10_000_000  # 96 slots: so few new pages are no reason to look again
    assert [start_of(cache, tokens(text, 9)) for text in texts] == [180, 192]


def run_live(cache: Cache, prompt: Any) -> Sequence:
    """A request that goes on."""
    batch = cache.add_sequence_batch([Request(int(prompt[0]), prompt)])
    cache.finish(batch.plan)
    return batch.sequences[0]


class Backwards(Learner):
    """What it learns is the worst there is."""

    def order(self, *counts: Any) -> tuple[Any, bool]:
        """New text goes before what was used again, which never is."""
        found, by_age = super().order(*counts)
        return found if by_age else np.arange(NUM_CELLS, dtype=np.int32), by_age


def run_fast(cache: Cache, prompt: Any) -> int:
    """One request's life; blocks found."""
    batch = cache.add_sequence_batch([Request("r", prompt)])
    cache.finish(batch.plan)
    (sequence,) = batch.sequences
    cache.commit(sequence)
    cache.release(sequence)
    return sequence.start // 4
