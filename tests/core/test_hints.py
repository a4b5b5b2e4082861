"""Hints: what release, requests and the cache may be told of the future; what is wrong is refused before any change."""

from __future__ import annotations

from hashlib import blake2b
from random import Random
from typing import Any

import numpy as np
import pytest

from quire import Cache, CacheConfig, InputError, Request, Scope, StateError, TierConfig, UnknownError, check
from quire.core.records.config import Eviction
from quire.core.records.hint_words import Back
from quire.core.state import registry
from quire.core.state.learner import worth_of_all
from quire.core.store import StoreName
from quire.core.store.reuse import FEW, LATER, MANY, NEVER, NUM_AGES, NUM_REUSE_CLASSES, ONCE, SOON

from .conftest import seq, serve, small, text


def test_several_sequences_end_in_one_call(store: StoreName) -> None:
    cache = small(store, 8)
    many = cache.add_sequence_batch([Request(n, seq(10 * n, 4)) for n in range(3)]).sequences
    cache.commit(many)
    cache.release(many[:2], back="soon")
    assert [one.live for one in many] == [False, False, True] and [one.back for one in many] == ["soon", "soon", None]
    cache.release(many[2])
    cache.release([])
    check(cache)
    assert cache.num_sequences == 0


@pytest.mark.parametrize(("back", "place"), [("soon", 0), ("later", 1), ("never", 2)])
def test_a_hint_at_the_end_of_one_in_flight_counts_when_its_step_is_committed(
    store: StoreName, back: Back, place: int
) -> None:
    cache = small(store, 16)
    (one,) = cache.add_sequence_batch([Request("a", seq(0, 11))]).sequences
    step = cache.launch()
    cache.release(one, back=back)
    check(cache)
    assert not one.live and one.back == back and cache.num_sequences == 0
    assert cache.stats().hinted == (0, 0, 0) and cache.num_free() == 13, "its slots are busy"
    cache.commit(step)
    check(cache)
    assert cache.stats().hinted[place] == sum(cache.stats().hinted) == 3 and cache.num_free() == 16
    with cache.claim([Request("b", seq(0, 14))]) as claims:
        assert claims[0].start == 11, "what was computed is stored"


def test_a_hint_at_the_end_of_one_whose_step_fails_is_of_what_is_left(store: StoreName) -> None:
    cache = small(store, 16)
    (one,) = cache.add_sequence_batch([Request("a", seq(0, 20))], max_chunk=8).sequences
    cache.commit(cache.launch())
    cache.add_sequence_batch([], continuing=[one])
    step = cache.launch()
    cache.release(one, back="never")
    assert not cache.fail(step)
    check(cache)
    assert cache.stats().hinted == (0, 0, 2) and cache.num_free() == 16


def test_a_release_that_is_refused_ends_nothing(store: StoreName) -> None:
    cache, other = small(store, 8), small(store, 8)
    one, two = cache.add_sequence_batch([Request(n, seq(10 * n, 4)) for n in range(2)]).sequences
    (strange,) = other.add_sequence_batch([Request("x", seq(0, 4))]).sequences
    wrong: list[tuple[type[Exception], Any]] = [
        (StateError, [one, two, one]), (UnknownError, [one, strange]), (InputError, [one, "two"]), (InputError, 7)
    ]  # fmt: skip
    for error, sequences in wrong:
        with pytest.raises(error):
            cache.release(sequences)
        assert one.live and two.live
    check(cache)


@pytest.mark.parametrize(
    ("back", "cure"),
    [("son", "did you mean soon"), ("Never", "did you mean never"), (3, "there are soon"), ("", "are")],
)
def test_a_word_that_is_no_hint_is_refused(store: StoreName, back: Any, cure: str) -> None:
    cache = small(store, 8)
    (sequence,) = cache.add_sequence_batch([Request("a", seq(0, 4))]).sequences
    for tell in (lambda: cache.release(sequence, back=back), lambda: cache.hint(seq(0, 4), back)):
        with pytest.raises(InputError, match=cure):
            tell()
    assert sequence.live


@pytest.mark.parametrize("session", [7, "", "s" * 257, "\ud800"])
def test_a_session_is_a_text_that_can_be_sent(session: Any) -> None:
    with pytest.raises(InputError, match="session"):
        Request("a", seq(0, 4), session=session)
    assert Request("a", seq(0, 4), session="s" * 256).session == "s" * 256


def test_a_session_goes_where_its_request_goes(store: StoreName) -> None:
    cache = small(store, 8)
    (sequence,) = cache.add_sequence_batch([Request("a", seq(0, 4), session="one")]).sequences
    cache.commit(sequence)
    forked = cache.fork(sequence, ["b"])
    assert forked is not None and forked[0][0].session == sequence.session == "one"
    assert cache.suspend(sequence).session == "one"
    assert cache.probe([Request("p", seq(0, 5), session="two")])[0].start == 4, "it is no part of what a text is"


@pytest.mark.parametrize("eviction", ["lru", "adaptive"])
def test_never_leaves_what_other_texts_go_on_from(store: StoreName, eviction: Eviction) -> None:
    """The one who stored a common beginning first speaks of it as of its own: the others' prompts still find it."""
    cache = Cache(CacheConfig([TierConfig("g", 16)], block_size=4, max_length=200, eviction=eviction), store=store)
    common = seq(0, 16)
    for n in range(3):
        serve(cache, Request(n, np.concatenate([common, seq(100 * (n + 1), 8)])))
    told = cache.hint(np.concatenate([common, seq(100, 8)]), "never")
    assert told == (6 if eviction == "adaptive" else 2), "in lru its own end alone"
    serve(cache, Request("new", seq(1000, 44)))
    assert cache.probe([Request("p", np.concatenate([common, seq(900, 4)]))])[0].start == 16
    assert cache.probe([Request("q", np.concatenate([common, seq(100, 9)]))])[0].start == 16, "its end went first"
    check(cache)


def test_a_hint_counts_what_is_stored_behind_a_position(store: StoreName) -> None:
    cache = small(store, 8)
    serve(cache, Request("a", seq(0, 10)))
    assert [cache.hint(seq(0, 10), "later", keep=keep) for keep in (0, 1, 4, 8, 9)] == [3, 2, 2, 1, 0]
    assert cache.hint(seq(0, 8), "never") == 2 and cache.hint(seq(0, 40), None) == 3
    assert [cache.hint(seq(0, 10), "never", keep=keep) for keep in (11, 2**31, 2**63 - 1, 2**63, 2**70)] == [0] * 5
    assert cache.hint(seq(1, 10), "never") == 0 and cache.hint(seq(0, 10), "never", Scope(salt=b"other")) == 0
    wrong: list[dict[str, Any]] = [{"keep": -1}, {"keep": 1.5}, {"scope": "s"}, {"tokens": [1, 2]}]
    for named in wrong:
        with pytest.raises(InputError):
            cache.hint(**{"tokens": seq(0, 8), "back": "soon", **named})
    assert cache.probe([Request("p", seq(0, 11))])[0].start == 10, "nothing was removed"
    check(cache)


# -- what the order makes of them ------------------------------------------------------------------------------------


def played(store: StoreName, *slots: int) -> str:
    """A load without hints; what its requests found, in a few letters."""
    dice, now = Random(5), [0.0]
    cache = small(store, *slots, max_sequences=4, eviction="adaptive", clock=lambda: now[0])
    texts: list[list[int]] = []
    starts: list[int] = []
    for step in range(700):
        now[0] += dice.expovariate(0.5)
        if texts and dice.random() < 0.7:
            old = texts.pop(-min(len(texts), int(dice.paretovariate(0.8))))
            tokens = old + [dice.randrange(50) for _ in range(dice.randrange(9))] if len(old) < 120 else old[:40]
        else:
            tokens = [dice.randrange(50) for _ in range(dice.randint(8, 60))]
        texts.append(tokens)
        starts.append(serve(cache, Request(step, np.array(tokens, np.int32))))
    return blake2b(np.array(starts, np.int32).tobytes(), digest_size=8).hexdigest()


def test_without_hints_the_order_is_what_it_was_before_there_were_any() -> None:
    """Noted of 0.2.0; both stores gave these."""
    assert played("compiled", 90) == "3be5ae2af1d5a5d2"
    assert played("compiled", 50, 60) == "b7f0b5d588fcbacf"


def ended(cache: Cache, number: int, back: Back | None, session: str | None = None, blocks: int = 3) -> None:
    (sequence,) = cache.add_sequence_batch([Request(object(), text(number, blocks), session=session)]).sequences
    cache.commit(sequence)
    cache.release(sequence, back=back)


def kept(cache: Cache, *numbers: int) -> list[int]:
    return [number for number in numbers if cache.probe([Request("p", text(number))])[0].start >= 12]


@pytest.mark.parametrize("order", ["adaptive", "lru"])
def test_what_never_comes_back_goes_first_and_a_use_ends_that(store: StoreName, order: str) -> None:
    cache = small(store, 13, eviction=order)
    ended(cache, 1, None)
    ended(cache, 2, "never")
    ended(cache, 3, None)
    ended(cache, 4, None)
    assert cache.stats().hinted == (0, 0, 4)
    assert kept(cache, 1, 2, 3, 4) == [1, 3, 4], "the fourth took a page of the second, not of the oldest"
    cache.hint(text(3), "never")
    serve(cache, Request("again", text(3)))
    assert cache.stats().reused_hinted == (0, 0, 4)
    ended(cache, 5, None)
    assert kept(cache, 3) == [3], "it came back: what was said of it is over"
    check(cache)


def test_in_the_order_of_release_hints_are_counted_and_rank_nothing(store: StoreName) -> None:
    cache = small(store, 9, eviction="release_order")
    for number, back in ((1, None), (2, "never"), (3, None)):
        ended(cache, number, back, blocks=2)  # type: ignore[arg-type]
    ended(cache, 4, None, blocks=2)
    assert [cache.probe([Request("p", text(n, 2))])[0].start >= 8 for n in (1, 2, 3)] == [False, True, True]
    assert cache.stats().hinted[2] == 3


@pytest.mark.parametrize("order", ["adaptive", "lru"])
def test_text_that_a_session_leaves_behind_goes_first(store: StoreName, order: str) -> None:
    cache = small(store, 24, eviction=order)
    head = text(1, 2)[:8]
    ended_with = np.concatenate([head, seq(5000, 9)]).astype(np.int32)
    other = np.concatenate([head, seq(7000, 9)]).astype(np.int32)
    for tokens, session in ((ended_with, "s"), (other, "t")):  # another session goes on from the same head
        serve(cache, Request("a", tokens, session=session))
    serve(cache, Request("b", np.concatenate([ended_with[:16], seq(5100, 5)]).astype(np.int32), session="s"))
    assert cache.stats().superseded == 0, "it goes on from all whole blocks"
    serve(cache, Request("c", np.concatenate([head, seq(6000, 9)]).astype(np.int32), session="s"))
    own = 4 if order == "adaptive" else 2  # without classes only what the last request added
    assert cache.stats().superseded == own, "a new text behind the head: the old one is left behind"
    serve(cache, Request("d", np.concatenate([head, seq(6500, 9)]).astype(np.int32), Scope(salt=b"x"), session="s"))
    assert cache.stats().superseded == own, "a session of another scope is another one"
    serve(cache, Request("e", text(9, 4), session="t"))
    assert cache.stats().superseded == own + 3, "the head is not its own: others went on from there"
    check(cache)
    assert cache.probe([Request("p", np.append(head, 1).astype(np.int32))])[0].start == 8


def test_a_person_thinking_is_news_only_where_a_tool_ran_before(store: StoreName) -> None:
    cache = small(store, 32, eviction="adaptive")
    pages = cache._setup.store
    ended(cache, 1, "later")
    assert set(reuse_classes(pages)) == {ONCE}
    ended(cache, 1, "soon")
    assert set(reuse_classes(pages)) == {SOON}
    ended(cache, 1, "later")
    assert set(reuse_classes(pages)) == {LATER}
    ended(cache, 1, None)
    assert set(reuse_classes(pages)) <= {FEW, MANY}
    assert cache.stats().hinted == (4, 8, 0), "three blocks and the end of a fourth, each time"


@pytest.mark.parametrize("said", ["soon", "later", "never"])
def test_a_hint_can_be_taken_back(store: StoreName, said: Back) -> None:
    """Of text that was used once and of text that was used again: their classes are by uses, as without a hint."""
    cache = small(store, 32, eviction="adaptive", partial_reuse=False)
    for number, times in ((1, 1), (2, 2)):
        for _ in range(times):
            ended(cache, number, None)
    assert sorted(reuse_classes(cache._setup.store)) == [ONCE] * 3 + [FEW] * 3
    for number in (1, 2):
        cache.hint(text(number), said)
    assert set(reuse_classes(cache._setup.store)) == {{"soon": SOON, "later": LATER, "never": NEVER}[said]}
    for number in (1, 2):
        cache.hint(text(number), None)
    assert sorted(reuse_classes(cache._setup.store)) == [ONCE] * 3 + [FEW] * 3
    check(cache)


@pytest.mark.parametrize(("turns", "own"), [(4, 3), (5, 1)])
def test_a_few_turns_that_end_inside_a_block_do_not_part_a_text(store: StoreName, turns: int, own: int) -> None:
    cache = small(store, 32, eviction="adaptive", partial_reuse=False)
    for _ in range(turns):
        ended(cache, 1, None, blocks=2)
    ended(cache, 1, "soon")
    assert reuse_classes(cache._setup.store).count(SOON) == own, "beyond four, others asked for the first two blocks"
    ended(cache, 1, "never")
    assert reuse_classes(cache._setup.store).count(NEVER) == own
    check(cache)


def reuse_classes(store: Any) -> list[int]:
    (group,) = store.dump().groups
    nodes = store.dump().nodes
    whole = [number for number, page in group.pages.items() if page.node >= 0 and nodes[page.node].size == 4]
    return [group.cells.pages[number].reuse for number in whole]


def test_a_receipt_says_whether_the_hint_was_right(store: StoreName) -> None:
    for back, verdict in ((None, "absent"), ("soon", "right"), ("never", "wrong")):
        cache = small(store, 8, eviction="adaptive", receipts=True)
        ended(cache, 1, back)  # type: ignore[arg-type]
        ended(cache, 2, None, blocks=7)
        misses = [miss for miss in cache.explain(Request("p", text(1))).misses if miss.cause == "evicted"]
        assert misses and {(miss.back, miss.hint) for miss in misses} == {(back, verdict)}
        assert {miss.hint for miss in cache.explain(Request("p", text(7))).misses} == {None}


def test_sessions_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MOST_SESSIONS", 3)
    cache = small("auto", 32)
    for number in range(6):
        ended(cache, number, None, session=f"s{number}")
    assert [name for _, name in cache._registry.sessions] == ["s3", "s4", "s5"]
    cache.clear()
    assert not cache._registry.sessions


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_what_lies_loses_its_rank(share: float) -> None:
    """Of a class that is said to come back never and does, the cells rank like those of any other that does."""
    hits, waiting = np.zeros((NUM_REUSE_CLASSES, NUM_AGES)), np.zeros((NUM_REUSE_CLASSES, NUM_AGES))
    waiting[:, 60:80] = 500
    hits[ONCE, 70] = hits[NEVER, 70] = 0
    hits[MANY, 70], hits[NEVER, 70] = 2000, share * 4000
    worth = worth_of_all(hits, waiting)[:, 60:70]
    assert (worth[NEVER] == 0).all() if share == 0 else (worth[NEVER] > worth[ONCE]).all()
