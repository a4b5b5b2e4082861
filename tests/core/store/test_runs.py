"""Evictions to the host, or from it, many in one call: the compiled store takes slots in runs, and does what the
reference store does one by one. Prompts are longer than a run; claims, finds, priorities and shadows lie in its way."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest

from quire import (
    Cache,
    CacheConfig,
    Claims,
    Found,
    LayerGroup,
    Request,
    RetainRange,
    Retention,
    Sequence,
    TierConfig,
    Writer,
)
from quire.core.check import check
from quire.core.records.config import Eviction
from quire.core.store import StoreName
from tests.effort import cases

BLOCK = 2
ONE = (LayerGroup("full", page_bytes=1),)
TWO = (LayerGroup("low", page_bytes=1), LayerGroup("high", page_bytes=1))


class Both:
    """The same calls to a cache on either store; everything they answer is compared."""

    def __init__(self, device: int = 130, host: int = 170, **more: Any) -> None:
        names: tuple[StoreName, ...] = ("twin", "compiled")
        tiers = (TierConfig("device", device), TierConfig("host", host))[: 2 if host else 1]
        config = CacheConfig(tiers, BLOCK, max_sequences=8, max_length=400, events=True, **more)
        self.now = 0.0
        self.caches = [Cache(config, clock=lambda: self.now, store=name) for name in names]
        self.longest = 0  # run of pages that one plan has sent down

    def plan(self, plans: list[Any]) -> None:
        one, other = (plan.moves for plan in plans)
        assert one.tolist() == other.tolist()
        self.longest = max(self.longest, len(one))
        for cache, plan in zip(self.caches, plans, strict=True):
            cache.finish(plan)

    def add(
        self, name: object, tokens: Any, priority: int | None = None, seconds: float | None = None
    ) -> list[Sequence]:
        """A sequence that is committed as a whole."""
        rules = None if priority is None else Retention((RetainRange(0, None, priority, seconds),))
        ask = Request(name, np.asarray(tokens, np.int32), retention=rules)
        batches = [cache.add_sequence_batch([ask]) for cache in self.caches]
        self.plan([batch.plan for batch in batches])
        rows = [batch.sequences[0] for batch in batches]
        for cache, sequence in zip(self.caches, rows, strict=True):
            cache.commit(sequence)
        return rows

    def put(self, name: object, tokens: Any, priority: int | None = None, seconds: float | None = None) -> None:
        """A text that nobody holds."""
        for cache, sequence in zip(self.caches, self.add(name, tokens, priority, seconds), strict=True):
            cache.release(sequence)

    def same(self) -> None:
        one, other = (cache._setup.store.dump() for cache in self.caches)
        assert one == other
        told = [repr(cache.take_events()) for cache in self.caches]
        assert told[0] == told[1]
        for cache in self.caches:
            check(cache)


def request(rng: random.Random, name: int, texts: list[np.ndarray[Any, Any]]) -> Request:
    """New tokens, or a text that was there, with another end."""
    tokens = np.arange(name * 1000, name * 1000 + rng.randrange(20, 240), dtype=np.int32)
    if texts and rng.random() < 0.3:
        known = rng.choice(texts[-12:])
        tokens = np.concatenate(
            [known[: rng.randrange(len(known) // 2, len(known)) + 1], tokens[: rng.randrange(1, 20)]]
        )
        tokens = tokens[:300]
    rules = (RetainRange(0, None, rng.choice((20, 34, 36))),) if rng.random() < 0.25 else ()
    return Request(name, tokens, retention=Retention(rules) if rules else None)


def act(
    rng: random.Random, both: Both, rows: list[list[Sequence]], held: list[list[Claims | Found]], ask: Request
) -> bool:
    """One call or two of each cache; whether the request was admitted."""
    what = rng.random()
    if what < 0.15:
        hold = [cache.claim([ask]) if what < 0.07 else cache.find(ask) for cache in both.caches]
        held.append(list(hold))
    elif what < 0.25 and held:
        for handle in held.pop(rng.randrange(len(held))):
            handle.close()
    elif what < 0.45 and rows:
        for cache, sequence in zip(both.caches, rows.pop(rng.randrange(len(rows))), strict=True):
            cache.release(sequence)
    elif what < 0.6 and rows:
        many = rng.sample(rows, rng.randrange(1, len(rows) + 1))
        tokens = np.array([[-1 - rng.randrange(9)] * 20 for _ in many], np.int32)
        plans = [cache.grow([row[nth] for row in many], tokens) for nth, cache in enumerate(both.caches)]
        assert (plans[0] is None) == (plans[1] is None)
        if plans[0] is not None:
            both.plan(plans)
    elif len(rows) < 6:
        batches = [cache.add_sequence_batch([ask]) for cache in both.caches]
        assert len({len(batch.sequences) for batch in batches}) == 1
        both.plan([batch.plan for batch in batches])
        if batches[0].sequences:
            rows.append([batch.sequences[0] for batch in batches])
            for nth, cache in enumerate(both.caches):
                cache.commit(rows[-1][nth])
        return bool(batches[0].sequences)
    elif rng.random() < 0.3:
        both.plan([cache.offload(7) for cache in both.caches])
    return False


def write(rng: random.Random, both: Both, ask: Request) -> None:
    """Slots of the host for what is not there; some of them are written."""
    writers = [cache.writer(ask, tier=1) for cache in both.caches]
    one, other = writers
    if not isinstance(one, Writer):
        assert repr(one) == repr(other)
        return
    end = rng.randrange(len(ask.tokens) + 1)
    for writer in writers:
        assert isinstance(writer, Writer) and writer.taken() == one.taken()
        writer.written(end)
        writer.close()


def a_life(seed: str, groups: tuple[LayerGroup, ...], eviction: Eviction, shadows: bool) -> Both:
    """Random calls, compared all the while and at the end."""
    rng, texts = random.Random(seed), list[np.ndarray[Any, Any]]()
    clock = random.Random(5)
    both = Both(groups=groups, eviction=eviction, shadows=shadows)
    rows: list[list[Sequence]] = []
    held: list[list[Claims | Found]] = []
    for name in range(1, cases(160, 250)):
        both.now += clock.choice((0.0, 0.01, 0.4, 30.0))
        ask = request(rng, name, texts)
        if act(rng, both, rows, held, ask):
            texts.append(ask.tokens)
        if name % 10 == 0:
            both.same()
    for handle in [handle for pair in held for handle in pair]:
        handle.close()
    both.same()
    return both


def lives() -> list[Any]:
    """Groups, order and shadows: every pair of them, and of the order that learns every life; the others are slow."""
    ids = {ONE: "one group", TWO: "two groups", True: "shadows", False: "no shadows"}
    found = []
    for groups, eviction, shadows in product((ONE, TWO), ("lru", "release_order", "adaptive"), (True, False)):
        spared = eviction != "adaptive" and (groups is ONE) != (shadows == (eviction == "lru"))
        marks = [pytest.mark.slow] if spared else []
        found.append(
            pytest.param(groups, eviction, shadows, marks=marks, id=f"{ids[shadows]}-{eviction}-{ids[groups]}")
        )
    return found


@pytest.mark.long
@pytest.mark.parametrize(("groups", "eviction", "shadows"), lives())
def test_a_run_of_evictions_is_what_they_are_one_by_one(
    groups: tuple[LayerGroup, ...], eviction: Eviction, shadows: bool
) -> None:
    pytest.importorskip("quire.core.store._compiled", reason="the compiled store is not built")
    seen = Counter[str]()
    for life in range(4):  # until these lives have seen everything: one that nothing came up from the host in is luck
        both = a_life(f"{len(groups)} {eviction} {shadows} {life}", groups, eviction, shadows)
        stats = both.caches[1].stats()
        seen += Counter(offloaded=stats.offloaded, dropped=stats.dropped, onboarded=stats.onboarded)
        seen["longest"] = max(seen["longest"], both.longest)
        least = {"longest": 41, "offloaded": cases(101, 201), "dropped": cases(101, 201), "onboarded": 1}
        if all(seen[what] >= number for what, number in least.items()):
            return
    raise AssertionError(seen)


@pytest.mark.parametrize("device", [0, 130], ids=["no device", "a device"])
@pytest.mark.parametrize("eviction", ["lru", "adaptive"])
def test_a_writer_takes_slots_as_if_one_by_one(device: int, eviction: Eviction) -> None:
    pytest.importorskip("quire.core.store._compiled", reason="the compiled store is not built")
    rng, texts = random.Random(f"{device} {eviction}"), list[np.ndarray[Any, Any]]()
    both = Both(device, groups=ONE, eviction=eviction, partial_reuse=False)
    rows: list[list[Sequence]] = []
    held: list[list[Claims | Found]] = []
    for name in range(1, 150):
        both.now += rng.choice((0.0, 0.01, 0.4, 30.0))
        ask = request(rng, name, texts)
        if rng.random() < 0.5:
            write(rng, both, ask)
            texts.append(ask.tokens)
        elif device and act(rng, both, rows, held, ask):
            texts.append(ask.tokens)
        elif not device and rng.random() < 0.3:
            held.append([cache.find(ask) for cache in both.caches])
        elif not device and held:
            for handle in held.pop(rng.randrange(len(held))):
                handle.close()
        if name % 10 == 0:
            both.same()
    for handle in [handle for pair in held for handle in pair]:
        handle.close()
    both.same()
    assert both.caches[1].stats().dropped > 1000


def adaptive(device: int, host: int) -> Both:
    pytest.importorskip("quire.core.store._compiled", reason="the compiled store is not built")
    return Both(device, host, groups=ONE, eviction="adaptive")


def text(name: int, blocks: int) -> list[int]:
    return list(range(name * 1000, name * 1000 + BLOCK * blocks))


def fill(both: Both, texts: range, blocks: int, priority: int | None = None) -> None:
    """One text after the other, each a little later."""
    for name in texts:
        both.now += 0.01
        both.put(name, text(name, blocks), priority)


def test_a_run_ends_between_a_child_and_its_parent() -> None:
    both = adaptive(40, 60)
    fill(both, range(1, 12), 10)
    for name, blocks in enumerate((3, 7, 1, 33, 40, 2, 11), 20):
        both.put(name, text(name, blocks))
        both.same()


def test_a_claimed_parent_does_not_go_with_its_child() -> None:
    both = adaptive(40, 60)
    fill(both, range(1, 11), 10)
    asks = [Request("held", np.array(text(name, 5), np.int32)) for name in (2, 8)]  # on the host, and on the device
    claims = [cache.claim([ask]) for cache in both.caches for ask in asks]
    both.put(20, text(20, 30))
    both.same()
    assert both.longest == 30
    for claim in claims:
        claim.close()
    both.put(21, text(21, 30))
    both.same()


def test_a_find_keeps_a_parent_on_the_host() -> None:
    both = adaptive(40, 60)
    fill(both, range(1, 11), 10)
    finds = [cache.find(Request("held", np.array(text(2, 5), np.int32))) for cache in both.caches]
    both.put(20, text(20, 30))
    both.same()
    for found in finds:
        found.close()
    both.put(21, text(21, 30))
    both.same()


def test_what_goes_down_is_outranked_from_one_page_on() -> None:
    both = adaptive(40, 60)
    fill(both, range(1, 4), 10, 50)
    fill(both, range(4, 7), 10)
    fill(both, range(7, 11), 10, 40)  # these are on the device: better than half of what is below
    for name in (20, 21, 22):
        both.put(name, text(name, 20), 60)
        both.same()


def test_a_page_goes_down_for_its_only_child() -> None:
    both = adaptive(12, 6)
    both.put(1, text(1, 5))
    for name in range(2, 9):
        both.now += 1.0
        both.put(name, text(name, 5))
        both.put(1, text(1, 3 + name % 3))  # its beginning comes up again, its end stays below
        both.same()
    both.put(20, text(20, 12))
    both.same()


def test_what_has_just_gone_down_is_dropped_in_the_same_run() -> None:
    both = adaptive(40, 3)
    fill(both, range(1, 9), 5)
    both.put(20, text(20, 30))
    both.same()
    both.put(21, text(21, 40), 60)
    both.same()


def test_older_pages_in_the_way_of_a_released_parent() -> None:
    """A parent that was used again goes to the back of its list, and not next."""
    both = adaptive(40, 60)
    fill(both, range(1, 11), 10)
    for name in (9, 8, 3, 2):
        both.now += 0.01
        both.put(("again", name), [*text(name, 4), 7, 7, 7])
    both.put(20, text(20, 35))
    both.same()
    both.put(21, text(21, 35))
    both.same()


def test_grow_takes_from_two_pools_in_turn() -> None:
    """What each row moves and drops is told in the order of the rows, not of the runs."""
    pytest.importorskip("quire.core.store._compiled", reason="the compiled store is not built")
    both = Both(40, 60, groups=TWO, eviction="adaptive")
    rows = [both.add(name, text(name, 5)) for name in (30, 31)]
    fill(both, range(1, 12), 10)
    tokens = np.full((2, 3 * BLOCK), 5, np.int32)
    plans = [cache.grow([row[nth] for row in rows], tokens) for nth, cache in enumerate(both.caches)]
    both.plan(plans)
    both.same()
    assert both.longest >= 12


def test_a_page_that_is_dropped_releases_its_parent_on_the_host() -> None:
    both = adaptive(10, 8)
    tokens = np.array(text(1, 4), np.int32)
    both.put(1, tokens, 50, 5.0)
    both.put(2, text(2, 6), 40)
    finds = [cache.find(Request("first", tokens), from_=2 * BLOCK) for cache in both.caches]
    both.put(3, text(3, 8), 40)  # of the first text only what is found stays on the device
    for found in finds:
        found.close()
    both.now += 10.0  # now it is worth less than the others
    before = both.caches[1].stats()
    both.put(4, text(4, 6), 40)  # the host keeps out what is left of it; then others go down for its beginning
    both.same()
    after = both.caches[1].stats()
    assert (after.offloaded - before.offloaded, after.dropped - before.dropped) == (4, 6)
    assert both.caches[1].probe([Request("first", tokens)])[0].start == 0


def test_a_run_ends_where_an_older_page_has_come_down_behind_a_released_parent() -> None:
    both = adaptive(10, 4)
    older = np.array(text(1, 4), np.int32)
    both.put(1, older)
    both.now += 0.001
    both.put(2, text(2, 4))
    finds = [cache.find(Request("older", older)) for cache in both.caches]
    both.now += 100.0  # so that both are of one age
    both.put(3, text(3, 6))  # so the newer one goes down first
    for found in finds:
        found.close()
    both.put(4, text(4, 1))
    both.same()
    both.put(5, text(5, 1))
    both.same()
    with both.caches[1].find(Request("newer", np.array(text(2, 4), np.int32))) as left:
        assert left.end == 2 * BLOCK


def test_a_clock_that_goes_back_is_the_same_to_both_stores() -> None:
    """What went after that had not rested at all; and pages grow older from then on, not from where the clock was."""
    both = adaptive(8, 6)
    both.now = 100.0
    fill(both, range(1, 4), 4)
    both.now = 50.0
    fill(both, range(4, 7), 4)
    both.same()
    both.now = 57.0
    both.put(7, text(7, 1))
    both.same()
    assert both.caches[1].usage(0).ghosts
