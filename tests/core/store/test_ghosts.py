"""Pages that are gone and remembered where no order learns from them: both stores remember the same, whenever asked."""

from __future__ import annotations

from random import Random
from typing import Literal, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from quire import Cache, CacheConfig, Miss, Request, RetainRange, Retention, Scope, Sequence, TierConfig, check
from quire.core.store import StoreName

from ...effort import cases

Int32 = NDArray[np.int32]


class Life(NamedTuple):
    """How a pair of caches lives."""

    ghosts: int  # per slot
    slots: int
    blocks: int  # of a prompt, a token each
    prompts: int
    chance: float  # that somebody asks after a prompt
    eviction: Literal["lru", "adaptive"] = "lru"
    cuts: int = 1  # places where prompts part from each other lie so far apart
    scopes: int = 1


LIVES = {
    "a ring that goes round often": Life(1, 96, 24, 200, 0.2),
    "asked all the time": Life(8, 96, 24, 80, 1.0),
    "more gone pages than are entered at once": Life(3, 1000, 700, 20, 0.1),
    "a ring of a few texts": Life(1, 40, 30, 300, 0.5),
    "ghosts are met": Life(2, 60, 40, 200, 0.3, "adaptive"),
    "a ring of a few texts that are met": Life(1, 40, 30, 300, 0.5, "adaptive"),
    "the same text in many scopes": Life(4, 50, 20, 200, 0.5, scopes=4),
    "the same text in many scopes, met": Life(4, 50, 20, 200, 0.5, "adaptive", scopes=4),
    "texts that part at one place": Life(64, 24, 16, 200, 0.1, cuts=12),
    "texts that part at one place, met": Life(64, 24, 16, 200, 0.1, "adaptive", cuts=12),
}


def told(cache: Cache, ask: Request) -> tuple[int, tuple[Miss, ...], int]:
    """What a receipt says, and how many ghosts there are."""
    receipt = cache.explain(ask)
    return receipt.reused, receipt.misses, cache.usage().ghosts


def serve(cache: Cache, request: Request, keep: int | None) -> tuple[Miss, ...]:
    """A prompt from admission to release, and what its receipt says; sometimes what it stored is cut off again."""
    batch = cache.add_sequence_batch([request])
    cache.finish(batch.plan)
    (sequence,) = batch.sequences
    cache.commit(sequence)
    cache.release(sequence)
    if keep is not None:
        cache.truncate(Request("cut", request.tokens, scope=request.scope), keep)
    return batch.receipts[0].misses


def next_prompt(life: Life, dice: Random, seen: list[Request]) -> Request:
    """New text, or such as goes on from a place in an old one; perhaps as short as that."""
    tokens = np.array([dice.randrange(1 << 20) for _ in range(life.blocks)], np.int32)
    if seen and dice.random() < 0.5:
        cut = dice.randrange(1, life.blocks) // life.cuts * life.cuts
        old = dice.choice(seen[-40:]).tokens[:cut]
        tokens[: len(old)] = old
        tokens = tokens[: dice.randrange(cut + 1, life.blocks + 1)]
    return Request(len(seen), tokens, scope=Scope(salt=dice.randrange(life.scopes)))


@pytest.mark.long
@pytest.mark.parametrize("name", LIVES)
def test_both_stores_remember_the_same(name: str) -> None:
    pytest.importorskip("quire.core.store._compiled")
    life, dice, now = LIVES[name], Random(name), 0.0
    seen: list[Request] = []
    causes: set[str] = set()
    tiers = (TierConfig("device", life.slots),)
    config = CacheConfig(tiers, 1, max_length=life.blocks, receipts=True, ghosts=life.ghosts, eviction=life.eviction)
    names: tuple[StoreName, ...] = ("twin", "compiled")
    pair = [Cache(config, clock=lambda: now, store=store) for store in names]
    for _ in range(cases(life.prompts // 4, life.prompts)):
        now += 0.3
        request = next_prompt(life, dice, seen)
        seen.append(request)
        keep = dice.randrange(life.blocks) if dice.random() < 0.1 else None
        first, second = (serve(cache, request, keep) for cache in pair)
        assert first == second
        if dice.random() < life.chance:
            asked = dice.choice(seen)
            assert told(pair[0], asked) == told(pair[1], asked)
    for request in seen:
        one, other = (told(cache, request) for cache in pair)
        assert one == other
        causes |= {miss.cause for miss in one[1]}
    assert {"evicted", "last_token"} <= causes
    for cache in pair:
        check(cache)
        cache.clear()
        assert cache.usage().ghosts == 0 and "evicted" not in {miss.cause for miss in told(cache, seen[0])[1]}


@pytest.mark.parametrize("eviction", ["lru", "adaptive"])
def test_a_few_blocks_that_go_again_and_again_are_remembered_alike(eviction: Literal["lru", "adaptive"]) -> None:
    """Most of the pool is held: the same eight blocks go hundreds of times while the ring turns once."""
    pytest.importorskip("quire.core.store._compiled")
    now = 0.0
    config = CacheConfig((TierConfig("device", 30),), 1, max_length=30, receipts=True, ghosts=64, eviction=eviction)
    names: tuple[StoreName, ...] = ("twin", "compiled")
    pair = [Cache(config, clock=lambda: now, store=store) for store in names]
    for cache in pair:
        cache.add_sequence_batch([Request("stays", np.arange(100, 120, dtype=np.int32))])
    head = np.arange(8, dtype=np.int32)
    for turn in range(340):
        now += 0.5
        new, others = np.append(head, 1000 + turn).astype(np.int32), np.arange(10, dtype=np.int32) + 10_000 + 10 * turn
        texts = (new, others) if turn >= 200 else (others,)  # by then the ring has gone round once
        first, second = ([serve(cache, Request(turn, text), None) for text in texts] for cache in pair)
        assert first == second
        parting = np.append(head, [2000 + turn, 1, 1]).astype(np.int32)
        for asked in (new, parting, others - 30, others - 900) if turn >= 200 else (others - 30,):
            assert told(pair[0], Request("asked", asked)) == told(pair[1], Request("asked", asked))


@pytest.mark.parametrize("store", ["twin", "compiled"])
def test_a_page_that_goes_again_is_remembered_again_and_the_last_time_is_told(store: StoreName) -> None:
    now = 0.0
    config = CacheConfig((TierConfig("device", 2),), 1, max_length=8, receipts=True, ghosts=8, eviction="lru")
    cache = Cache(config, clock=lambda: now, store=store)
    prompt, ask = np.array([1, 2], np.int32), np.array([1, 2, 3], np.int32)
    for turn in range(3):  # it goes at 1 s, 3 s and 5 s
        now = 2.0 * turn
        serve(cache, Request(turn, prompt), None)
        now += 1.0
        serve(cache, Request(10 + turn, np.array([90 + turn, 80], np.int32)), None)
    now = 7.0
    (gone, _) = cache.explain(Request("asked", ask)).misses
    assert (gone.cause, gone.start, gone.stop, gone.seconds, gone.admission) == ("evicted", 0, 2, 2.0, 6)
    assert cache.usage().ghosts == 10  # three times two, and the others twice
    serve(cache, Request(20, prompt), 0)  # what is cut off is remembered no more, however often it went
    _, misses, ghosts = told(cache, Request("asked", ask))
    assert ghosts == 12 - 6 and {miss.cause for miss in misses} == {"new", "last_token"}
    check(cache)


@pytest.mark.parametrize("store", ["twin", "compiled"])
def test_a_block_that_was_asked_for_before_it_ever_went_is_remembered(store: StoreName) -> None:
    """What a search has found out counts until the next page goes."""
    config = CacheConfig((TierConfig("device", 4),), 1, max_length=8, eviction="adaptive")
    cache = Cache(config, clock=lambda: 0.0, store=store)

    def run(*text: int) -> None:
        (sequence,) = (batch := cache.add_sequence_batch([Request("run", np.array(text, np.int32))])).sequences
        cache.finish(batch.plan)
        cache.commit(sequence)
        cache.release(sequence)

    ask = Request("asked", np.array([1, 2, 3, 9], np.int32))
    run(10, 11, 12, 13)
    run(20, 21, 22, 23)
    assert told(cache, ask)[1][0].cause == "new"
    run(1, 2, 3)
    run(30, 31, 32, 33)
    run(1, 2)  # their ghosts are met; that of the third block is not
    reused, misses, _ = told(cache, ask)
    assert (reused, misses[0].cause, misses[0].start, misses[0].stop) == (2, "evicted", 2, 3)


@pytest.mark.parametrize("store", ["twin", "compiled"])
def test_what_a_row_computes_is_known_whatever_the_row_was_before(store: StoreName) -> None:
    config = CacheConfig((TierConfig("device", 40),), 2, max_sequences=2, max_length=16)
    cache = Cache(config, clock=lambda: 0.0, store=store)

    def computing(*text: int) -> list[object]:
        misses = cache.explain(Request("asked", np.array([*text, 9], np.int32))).misses
        return [miss.request for miss in misses if miss.cause == "under_way"]

    def admit(name: str, *text: int) -> Sequence:
        return cache.add_sequence_batch([Request(name, np.array(text, np.int32))]).sequences[0]

    first = admit("first", 1, 2, 3, 4, 5)
    assert (computing(1, 2, 3, 4), computing(5, 6)) == (["first"], [])
    cache.release(first)
    second = admit("second", 5, 6, 7)
    assert (computing(1, 2), computing(5, 6)) == ([], ["second"])
    cache.trim(second, 2)
    assert computing(5, 6) == []
    cache.grow(second, np.array([8], np.int32))
    cache.grow(second, np.array([9], np.int32))
    assert (computing(5, 6), computing(5, 8)) == ([], ["second"])
    cache.release(second)
    third = admit("third", 1, 2, 3)
    assert computing(1, 2) == ["third"]
    cache.commit(third, 3)
    assert cache.fork(third, ["fourth"]) is not None
    cache.release(third)
    cache.grow(cache.sequence("fourth"), np.array([4], np.int32))
    assert computing(1, 2, 3, 4) == ["fourth"]
    check(cache)


@pytest.mark.parametrize("store", ["twin", "compiled"])
def test_a_block_whose_parent_is_remembered_no_more_is(store: StoreName) -> None:
    config = CacheConfig((TierConfig("device", 4),), 1, max_length=8, receipts=True, eviction="lru")
    cache = Cache(config, clock=lambda: 0.0, store=store)
    serve(cache, Request(0, np.array([1, 2, 3], np.int32)), None)
    serve(cache, Request(1, np.array([30, 31, 32, 33], np.int32)), None)
    serve(cache, Request(2, np.array([1, 2], np.int32)), 1)  # the second block is cut off, and its ghost is forgotten
    reused, misses, _ = told(cache, Request("asked", np.array([1, 2, 3, 9], np.int32)))
    assert (reused, [miss.cause for miss in misses]) == (1, ["forgotten", "evicted", "last_token"])


@pytest.mark.parametrize("store", ["twin", "compiled"])
def test_the_last_time_counts_also_of_what_went_since_somebody_asked(store: StoreName) -> None:
    """Nobody claims in between: blocks come and go while sequences grow."""
    now = 0.0
    config = CacheConfig((TierConfig("device", 16),), 1, max_length=40, receipts=True, eviction="lru")
    cache = Cache(config, clock=lambda: now, store=store)

    def grow(name: str, *text: int) -> None:
        for token in text:
            plan = cache.grow(cache.sequence(name), np.array([token], np.int32))
            assert plan is not None
            cache.finish(plan)
            cache.commit(cache.sequence(name))

    names = {"one": 50, "other": 80, "a": 1, "b": 1}
    batch = cache.add_sequence_batch([Request(name, np.array([first], np.int32)) for name, first in names.items()])
    cache.finish(batch.plan)
    serve(cache, Request("c", np.array([1, 2, 3], np.int32)), None)
    now = 10.0
    serve(cache, Request("tells the time", np.array([70], np.int32)), None)
    grow("one", *range(100, 111))  # 3, 2 and 1 go
    before = told(cache, Request("asked", np.array([1, 2, 9], np.int32)))[1]
    assert [(miss.cause, miss.seconds) for miss in before[:2]] == [("under_way", None), ("evicted", 0.0)]
    cache.release(cache.sequence("one"))
    grow("a", 2, 3)
    cache.release(cache.sequence("a"))
    now = 20.0
    serve(cache, Request("tells the time", np.array([71], np.int32)), None)
    grow("other", *range(200, 213))  # and again, behind what "one" had
    cache.release(cache.sequence("other"))
    grow("b", 2)
    now = 25.0
    reused, misses, _ = told(cache, Request("asked", np.array([1, 2, 3, 9], np.int32)))
    assert (reused, misses[0].cause, misses[0].seconds) == (2, "evicted", 5.0)
    check(cache)


@pytest.mark.parametrize("store", ["twin", "compiled"])
def test_the_last_time_counts_also_where_the_parent_went_earlier(store: StoreName) -> None:
    """What grows meets no ghosts, and what is cut off leaves none: the parent's last one is older than the block's."""
    now = 0.0
    config = CacheConfig((TierConfig("device", 7),), 1, max_length=16, receipts=True, eviction="adaptive")
    cache = Cache(config, clock=lambda: now, store=store)
    ask = Request("asked", np.array([1, 2, 3, 9], np.int32))
    (sequence,) = cache.add_sequence_batch([Request("grows", np.array([1], np.int32))]).sequences
    serve(cache, Request("first", np.array([1, 2, 3], np.int32)), None)
    now = 10.0
    serve(cache, Request("others", np.arange(100, 106, dtype=np.int32)), None)
    for token in (2, 3):
        assert cache.grow(sequence, np.array([token], np.int32)) is not None
        cache.commit(sequence)
    cache.release(sequence)
    assert cache.explain(ask).reused == 3
    now = 20.0
    for number in range(20):
        if cache.explain(ask).reused == 3:
            serve(cache, Request(number, np.array([200 + number], np.int32)), None)
    assert cache.explain(ask).reused == 2  # the third has gone again
    cache.truncate(Request("cut", np.array([1, 2], np.int32)), 1)
    now = 25.0
    reused, misses, _ = told(cache, ask)
    causes = [(miss.cause, round(miss.seconds or 0.0, 3)) for miss in misses[:2]]
    assert (reused, causes) == (1, [("evicted", 15.0), ("evicted", 5.0)])
    check(cache)


class Texts:
    """A cache of blocks of one token, LRU with receipts, and what can happen to texts in it."""

    def __init__(self, store: StoreName, slots: int) -> None:
        self.now = 0.0
        config = CacheConfig((TierConfig("device", slots),), 1, max_length=40, receipts=True, eviction="lru")
        self.cache = Cache(config, clock=lambda: self.now, store=store)

    def begin(self, *text: int, keep: tuple[int, int] | None = None) -> Sequence:
        """Admitted, not computed; a block and its priority, if that is not the default."""
        kept = Retention((RetainRange(keep[0], keep[0] + 1, keep[1]),)) if keep else Retention()
        batch = self.cache.add_sequence_batch([Request(text, np.array(text, np.int32), retention=kept)])
        self.cache.finish(batch.plan)
        return batch.sequences[0]

    def serve(self, *text: int, keep: tuple[int, int] | None = None) -> None:
        """From admission to release."""
        sequence = self.begin(*text, keep=keep)
        self.cache.commit(sequence)
        self.cache.release(sequence)

    def grow(self, sequence: Sequence, *tokens: int) -> None:
        """What grows is claimed by nobody: no ghost is looked for."""
        for token in tokens:
            plan = self.cache.grow(sequence, np.array([token], np.int32))
            assert plan is not None
            self.cache.finish(plan)
            self.cache.commit(sequence)

    def gone(self, *text: int) -> list[tuple[int, int, float | None]]:
        """Of a text's blocks those that were evicted: from, to, how many seconds ago."""
        found = self.cache.explain(Request("asked", np.array([*text, 9], np.int32)))
        check(self.cache)
        return [(miss.start, miss.stop, miss.seconds) for miss in found.misses if miss.cause == "evicted"]


@pytest.mark.parametrize("store", ["twin", "compiled"])
def test_what_was_found_of_a_parent_says_nothing_once_more_pages_went(store: StoreName) -> None:
    """1, 2 goes from before 3, which stays, and its first block is asked for; both go again, and the first comes back.
    Right before what was found last is the second block's ghost, of the first time. It is looked for once only: what
    is in the tree without a page need not be recalled."""
    texts = Texts(store, 8)
    texts.serve(1, 2, 3, keep=(2, 90))
    texts.now = 10.0
    texts.serve(60)  # tells the time; of a prompt of one token no block is looked for
    growing = texts.begin(61)
    texts.grow(growing, *range(62, 67))  # 2 and 1 go
    assert texts.gone(1) == [(0, 1, 0.0)]
    texts.cache.release(growing)
    again = texts.begin(1)
    texts.grow(again, 2)
    texts.cache.release(again)
    texts.now = 20.0
    texts.serve(67)
    texts.grow(texts.begin(80), *range(81, 86))  # what is left of 61.. goes, and 2 and 1 again
    texts.serve(1)
    texts.now = 25.0
    assert texts.gone(1, 2) == [(1, 2, 5.0)]


@pytest.mark.parametrize("store", ["twin", "compiled"])
def test_what_was_found_of_another_block_says_nothing_of_this_one(store: StoreName) -> None:
    """Behind 1, which is held, 2 goes and then 3; then 2 again and 1, and 1 comes back. Who has found 3 has a ghost of
    2 right before it, and that is not its last one."""
    texts = Texts(store, 4)
    texts.serve(1, 2, 3, keep=(1, 0))
    held = texts.begin(1, 7)
    texts.now = 10.0
    texts.serve(60, 61)  # 2 and 3 go
    again = texts.begin(1)
    texts.grow(again, 2)
    texts.cache.release(again)
    texts.cache.release(held, store=False)
    texts.now = 20.0
    texts.serve(70, 71, 72, 73)  # 2 and 1 go
    texts.serve(1)
    texts.now = 25.0
    assert texts.gone(1, 2, 3) == [(1, 2, 5.0), (2, 3, 15.0)]


@pytest.mark.parametrize("store", ["twin", "compiled"])
def test_the_last_time_counts_also_where_an_ancestor_went_right_after(store: StoreName) -> None:
    """The third block goes twice, then the first: two places before that is the third's ghost of the first time."""
    now = 0.0
    config = CacheConfig((TierConfig("device", 3),), 2, max_length=16, receipts=True, ghosts=8, eviction="lru")
    cache = Cache(config, clock=lambda: now, store=store)
    rules = Retention(tuple(RetainRange(2 * nth, 2 * nth + 2, rank) for nth, rank in enumerate((20, 90, 10))))
    text = np.arange(6, dtype=np.int32)
    for now, tokens, kept in ((0.0, text, rules), (1.0, text[5:], 0), (5.0, text, rules), (9.0, text[4:5], 100),
                              (11.0, text[3:4], 100)):  # fmt: skip
        retention = kept if isinstance(kept, Retention) else Retention((RetainRange(0, None, kept),))
        serve(cache, Request(now, tokens, retention=retention), None)  # a lone token leaves no ghost
    now = 13.0
    first, third, _ = cache.explain(Request("asked", np.arange(7, dtype=np.int32))).misses
    assert [(miss.start, miss.stop, miss.seconds) for miss in (first, third)] == [(0, 4, 2.0), (4, 6, 4.0)]
    assert cache.usage().ghosts == 3


@pytest.mark.parametrize("store", ["twin", "compiled"])
def test_what_goes_behind_empty_slots_is_remembered(store: StoreName) -> None:
    """In release order one call takes two slots that are empty, and then that of a page."""
    config = CacheConfig((TierConfig("device", 3),), 1, max_length=8, receipts=True, eviction="release_order")
    cache = Cache(config, clock=lambda: 0.0, store=store)
    serve(cache, Request("first", np.array([1], np.int32)), None)
    serve(cache, Request("second", np.array([5, 6, 7], np.int32)), None)
    (gone, _) = cache.explain(Request("asked", np.array([1, 2], np.int32))).misses
    assert (gone.cause, cache.usage().ghosts) == ("evicted", 1)
