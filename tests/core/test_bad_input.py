"""Misuse: each is one QuireError that gives the ask, the fact and the cure, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quire
from quire import (
    Cache,
    CacheConfig,
    InputError,
    LayerGroup,
    Media,
    QuireError,
    Request,
    RetainRange,
    Retention,
    Scope,
    Span,
    StateError,
    TierConfig,
    UnknownError,
    check,
)  # fmt: skip
from quire.core.store import StoreName

IMAGE = b"i" * 32


def toks(*values: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


def req(*values: int, **rest: Any) -> Request:
    return Request("a", toks(*values), **rest)


class Scene:
    """A cache with one of everything: sequences live and released, claims, holds, plans; and a second cache."""

    def __init__(self, store: StoreName) -> None:
        config = CacheConfig(
            (TierConfig("device", 12), TierConfig("host", 4)), block_size=4, max_sequences=4, max_length=32, events=True
        )
        self.cache = Cache(config, clock=lambda: 0.0, store=store)
        self.other = Cache(config, clock=lambda: 0.0, store=store)
        self.live, self.gone, self.plan, self.done = self.fill(self.cache)
        self.theirs, *_ = self.fill(self.other)
        self.their_claims = self.other.claim([Request("theirs", toks(1))])
        self.claims = self.cache.claim([Request("admitted", toks(9, 9, 9))])
        (self.second,) = self.cache.admit(self.claims).sequences
        self.dropped = self.cache.claim([Request("dropped", toks(8, 8, 8))])
        self.dropped.drop()
        self.hold = self.cache.hold(self.live, Span(0, 4))
        self.let_go = self.cache.hold(self.live, Span(4, 6))
        assert self.let_go is not None
        self.cache.drop(self.let_go)
        self.before = self.state()

    @staticmethod
    def fill(cache: Cache) -> Any:
        """Ten tokens and a sampled one live, eight released, one plan open and one finished."""
        (live,) = cache.add_sequence_batch([Request("live", np.arange(10, dtype=np.int32))]).sequences
        cache.commit(live)
        cache.grow(live, toks(50))
        (gone,) = cache.add_sequence_batch([Request("gone", np.arange(20, 28, dtype=np.int32))]).sequences
        cache.commit(gone)
        cache.release(gone)
        done, plan = cache.offload(1), cache.offload(1)
        assert len(done) == len(plan) == 1
        cache.finish(done)
        return live, gone, plan, done

    def state(self) -> Any:
        """Everything a failed call must leave alone."""
        cache = self.cache
        kept = cache._registry
        rest = (cache.stats(), sorted(kept.sequences, key=str), list(kept.free_rows), sorted(kept.plans))
        return cache._setup.store.dump(), cache.table().tolist(), len(kept.open_claims), len(kept.holds), rest


Ask = Callable[[Any, Any], Any]
untyped: Any = quire  # the same names without types: misuse is the point
CASES: dict[str, tuple[Ask, type[QuireError], str]] = {
    # names
    "unknown id": (lambda c, s: c.sequence("nobody"), UnknownError, "no live sequence has that id"),
    "live id again": (lambda c, s: c.claim([Request("live", toks(1))]), StateError, "a sequence of that id is live"),
    "id twice in a batch": (
        lambda c, s: c.add_sequence_batch([req(1), req(2)]), InputError, "twice in the batch"),
    "fork to a taken id": (lambda c, s: c.fork(s.live, ["x", "live"]), StateError, "that id is taken"),
    "fork to one id twice": (lambda c, s: c.fork(s.live, ["x", "x"]), StateError, "that id is taken"),
    "fork to an unhashable id": (lambda c, s: c.fork(s.live, [[]]), InputError, "must be hashable"),
    "no such group": (lambda c, s: c.num_free(1), UnknownError, "group 1"),
    "group from behind": (lambda c, s: c.stats(-1), UnknownError, "group -1"),
    "no such tier": (lambda c, s: c.usage(2), UnknownError, "tier 2"),
    "table of no group": (lambda c, s: c.table(3), UnknownError, "group 3"),
    # what is claimed
    "claim of a string": (lambda c, s: c.claim(["hello"]), InputError, "it is not a Request"),
    "claim for nothing known": (lambda c, s: c.claim([req(1)], purpose="fun"), InputError, "purpose 'fun'"),
    "probe for nothing known": (lambda c, s: c.probe([req(1)], purpose="fun"), InputError, "purpose 'fun'"),
    "bool in a scope": (lambda c, s: c.claim([req(1, scope=Scope(lora=True))]), InputError, "a bool names nothing"),
    "float in a scope": (lambda c, s: c.claim([req(1, scope=untyped.Scope(salt=1.5))]), InputError, "it is a float"),
    "media beyond the tokens": (
        lambda c, s: c.claim([req(1, 2, media=(Media(IMAGE, (Span(1, 3),)),))]), InputError, "has 2 tokens"),
    "media over media": (
        lambda c, s: c.claim([req(1, 2, media=(Media(IMAGE, (Span(0, 2),)), Media(IMAGE, (Span(1, 2),))))]),
        InputError, "another run covers part of it"),
    "one bad request of two": (
        lambda c, s: c.claim([Request("a", np.arange(8, dtype=np.int32)), Request("b", toks(1), Scope(lora=False))]),
        InputError, "a bool names nothing"),
    "prepared by another cache": (
        lambda c, s: c.claim([s.other.prepare(req(1))]), UnknownError, "another cache"),
    # admission
    "admit twice": (lambda c, s: c.admit(s.claims), StateError, "admitted or dropped before"),
    "admit after drop": (lambda c, s: c.admit(s.dropped), StateError, "admitted or dropped before"),
    "admit of nothing": (lambda c, s: c.admit(None), InputError, "it is not Claims"),
    "negative budget": (
        lambda c, s: c.add_sequence_batch([req(1)], token_budget=-1), InputError, "at least 0"),
    "chunk of zero": (
        lambda c, s: c.add_sequence_batch([req(1)], max_chunk=0), InputError, "no part of a prompt fits into it"),
    "negative chunk": (
        lambda c, s: c.add_sequence_batch([req(1)], max_chunk=-4), InputError, "at least 1"),
    "continuing a released one": (
        lambda c, s: c.add_sequence_batch([], continuing=[s.gone]), StateError, "it was released"),
    "continuing a finished prompt": (
        lambda c, s: c.add_sequence_batch([], continuing=[s.live]), StateError, "its prompt is computed"),
    "continuing one twice": (
        lambda c, s: c.add_sequence_batch([], continuing=[s.second, s.second], max_chunk=4), StateError, "given twice"),
    # after release, or of another cache
    "release twice": (lambda c, s: c.release(s.gone), StateError, "it was released"),
    "commit after release": (lambda c, s: c.commit(s.gone, 1), StateError, "it was released"),
    "grow after release": (lambda c, s: c.grow(s.gone, toks(1)), StateError, "it was released"),
    "trim after release": (lambda c, s: c.trim(s.gone, 1), StateError, "it was released"),
    "fork after release": (lambda c, s: c.fork(s.gone, ["x"]), StateError, "it was released"),
    "hold after release": (lambda c, s: c.hold(s.gone, Span(0, 4)), StateError, "it was released"),
    "suspend after release": (lambda c, s: c.suspend(s.gone), StateError, "it was released"),
    "tokens after release": (lambda c, s: c.tokens(s.gone), StateError, "it was released"),
    "length after release": (lambda c, s: s.gone.length, StateError, "it was released"),
    "release elsewhere": (lambda c, s: c.release(s.theirs), UnknownError, "another cache"),
    "commit elsewhere": (lambda c, s: c.commit(s.theirs), UnknownError, "another cache"),
    "grow elsewhere": (lambda c, s: c.grow([s.live, s.theirs], toks(1, 2)), UnknownError, "another cache"),
    "continuing there": (lambda c, s: c.add_sequence_batch([], continuing=[s.theirs]), UnknownError, "another cache"),
    "admit elsewhere": (lambda c, s: c.admit(s.their_claims), UnknownError, "another cache"),
    "drop elsewhere": (lambda c, s: c.drop(s.other.hold(s.theirs, Span(0, 4))), UnknownError, "another cache"),
    "release of a string": (lambda c, s: c.release("live"), InputError, "it is not a Sequence"),
    # commit, grow, trim
    "commit beyond the length": (lambda c, s: c.commit(s.live, 12), InputError, "the sequence has 11"),
    "commit beyond int32": (lambda c, s: c.commit([s.live, s.second], 1 << 40), InputError, "the sequence has"),
    "commit of less than nothing": (lambda c, s: c.commit(s.live, -1), InputError, "commit of -1 tokens"),
    "commit of less than nothing, by row": (
        lambda c, s: c.commit(toks(s.live.row), toks(-1)),
        InputError,
        "commit of -1 tokens",
    ),
    "commit with a list": (lambda c, s: c.commit([s.live], [11]), InputError, "an int32 array"),
    "commit with a wrong dtype": (lambda c, s: c.commit([s.live], np.array([11])), InputError, "an int32 array"),
    "commit of a row that is not live": (lambda c, s: c.commit(toks(3)), UnknownError, "row 3"),
    "commit of a row that does not exist": (lambda c, s: c.commit(toks(99), 0), UnknownError, "99"),
    "commit of a negative row": (lambda c, s: c.commit(toks(-1)), UnknownError, "-1"),
    "commit of a row twice": (lambda c, s: c.commit([s.live, s.live]), UnknownError, "each once"),
    "grow of a row twice": (lambda c, s: c.grow([s.live, s.live], toks(1, 2)), UnknownError, "each once"),
    "grow of a row that is not live": (lambda c, s: c.grow(toks(3), toks(1)), UnknownError, "row 3"),
    "grow of int64 rows": (lambda c, s: c.grow(np.array([0]), toks(1)), InputError, "int64"),
    "grow with a list": (lambda c, s: c.grow(s.live, [1]), InputError, "a list"),
    "grow with a wrong dtype": (lambda c, s: c.grow(s.live, np.array([1.5])), InputError, "float64"),
    "grow unevenly": (lambda c, s: c.grow([s.live, s.second], toks(1, 2, 3)), InputError, "the same number of tokens"),
    "grow by nothing": (lambda c, s: c.grow(s.live, num_tokens=0), InputError, "grow by 0 tokens"),
    "grow by a fraction": (lambda c, s: c.grow(s.live, num_tokens=1.5), InputError, "grow by 1.5 tokens"),
    "grow beyond the longest": (lambda c, s: c.grow(s.live, num_tokens=30), InputError, "max_length is 32"),
    "trim of what is committed": (lambda c, s: c.trim(s.live, 4), InputError, "3 tokens of sequence 'live' can be"),
    "trim of less than nothing": (lambda c, s: c.trim(s.live, -1), InputError, "trim of -1 tokens"),
    # holds and plans
    "hold beyond the slots": (lambda c, s: c.hold(s.live, Span(0, 13)), StateError, "has slots for 12 tokens"),
    "hold of a tuple": (lambda c, s: c.hold(s.live, (0, 4)), InputError, "it is not a Span"),
    "drop twice": (lambda c, s: c.drop(s.let_go), StateError, "it was dropped before"),
    "drop of nothing": (lambda c, s: c.drop(None), InputError, "it is not a Hold"),
    "finish twice": (lambda c, s: c.finish(s.done), StateError, "it is not open here"),
    "finish of another cache's plan": (lambda c, s: s.other.finish(s.plan), StateError, "it is not open here"),
    "finish of nothing": (lambda c, s: c.finish(None), InputError, "it is not a Plan"),
    "finish with an unknown move": (lambda c, s: c.finish(s.plan, failed=[1]), InputError, "the plan has 1 moves"),
    "finish with a negative move": (lambda c, s: c.finish(s.plan, failed=[-1]), InputError, "the plan has 1 moves"),
    "finish with words": (lambda c, s: c.finish(s.plan, failed=["first"]), InputError, "the plan has 1 moves"),
    # the tree
    "truncate below nothing": (lambda c, s: c.truncate(Request("t", toks(1)), keep=-1), InputError, "keep at least 0"),
    "truncate by a string": (lambda c, s: c.truncate("live"), InputError, "it is not a Request"),
    "offload of less than nothing": (lambda c, s: c.offload(-1), InputError, "offload of -1 pages"),
    "offload of no group": (lambda c, s: c.offload(1, group=1), UnknownError, "group 1"),
}  # fmt: skip


def tells(caught: QuireError, error: type[QuireError], fact: str) -> None:
    """One kind of error, with the fact in it, between the ask before and the cure behind."""
    assert type(caught) is error
    message = str(caught)
    assert fact in message
    ask, _, rest = message.partition(": ")
    assert ask and rest.rpartition("; ")[0] and rest.rpartition("; ")[2]


@pytest.fixture
def scene(store: StoreName) -> Scene:
    return Scene(store)


@pytest.mark.parametrize("name", CASES)
def test_misuse_is_told_and_changes_nothing(scene: Scene, name: str) -> None:
    ask, error, fact = CASES[name]
    with pytest.raises(QuireError) as caught:
        ask(scene.cache, scene)
    tells(caught.value, error, fact)
    assert scene.state() == scene.before
    check(scene.cache)


def test_a_prepared_request_becomes_one_sequence(scene: Scene) -> None:
    """Its tokens belong to that sequence, so it cannot be claimed again, and not by two claims."""
    prepared = scene.cache.prepare(Request("a", toks(1, 2, 3)))
    first, second = scene.cache.claim([prepared]), scene.cache.claim([prepared])
    (sequence,) = scene.cache.admit(first).sequences
    for again in (lambda: scene.cache.admit(second), lambda: scene.cache.claim([Request("a", toks(1))])):
        before = scene.state()
        with pytest.raises(StateError):
            again()
        assert scene.state() == before
    second.drop()
    scene.cache.release(sequence)
    with pytest.raises(StateError, match="it was admitted before"):
        scene.cache.claim([prepared])
    check(scene.cache)


def test_claims_for_an_id_that_was_taken_meanwhile(scene: Scene) -> None:
    """The first claim admitted gets the id; the other stays open until it is dropped."""
    first, second = (scene.cache.claim([Request("a", toks(1, 2, 3))]) for _ in range(2))
    scene.cache.admit(second)
    before = scene.state()
    with pytest.raises(StateError, match="was admitted since"):
        scene.cache.admit(first)
    assert scene.state() == before
    first.drop()
    check(scene.cache)


@pytest.mark.parametrize(
    ("request_", "reason", "need", "have"),
    [
        (Request("long", np.zeros(33, np.int32)), "tokens", 33, 32),
        (Request("drafts", np.zeros(30, np.int32), extra_tokens=3), "tokens", 33, 32),
        (Request("wide", np.zeros(17, np.int32), beams=10), "slots", 14, 12),
    ],
    ids=lambda value: value.id if isinstance(value, Request) else None,
)
def test_what_can_never_fit_is_refused_at_once(
    scene: Scene, request_: Request, reason: str, need: int, have: int
) -> None:
    """No error: a refusal with the numbers; the others of the batch are not held up by it."""
    with scene.cache.claim([request_, Request("fits", toks(1, 2))]) as claims:
        assert [claim.request.id for claim in claims] == ["fits"]
        (refusal,) = claims.refused
    assert (refusal.reason, refusal.need, refusal.have, refusal.never) == (reason, need, have, True)
    cure = "shorten it or enlarge the cache" if reason == "slots" else "shorten it or raise max_length"
    for word in (repr(request_.id), str(need), str(have), cure):
        assert word in str(refusal)
    assert scene.state() == scene.before


def test_no_room_is_an_answer_not_an_error(scene: Scene) -> None:
    """grow and fork return None, admit a refusal; all of them change nothing."""
    cache = scene.cache
    (big,) = cache.add_sequence_batch([Request("big", np.arange(100, 128, dtype=np.int32))]).sequences
    cache.commit(big)
    before = scene.state()
    assert cache.num_free() == 1
    assert cache.fork(scene.live, ["x", "y"]) is None
    assert cache.grow([big, scene.live], num_tokens=4) is None
    (refusal,) = cache.add_sequence_batch([Request("c", np.arange(200, 208, dtype=np.int32))]).refused
    assert (refusal.reason, refusal.need, refusal.have, refusal.never) == ("slots", 2, 1, False)
    assert "release something or try in a later step" in str(refusal)
    assert scene.state() == before


def test_who_waits_for_another_is_told_so(scene: Scene) -> None:
    """Behind one that did not fit: its own numbers are not in the way, so none are named."""
    long, short = Request("long", np.arange(100, 128, dtype=np.int32)), Request("short", toks(1, 2))
    with scene.cache.claim([long, short]) as claims:
        batch = scene.cache.admit(claims, token_budget=10)
    assert [refusal.reason for refusal in batch.refused] == ["tokens", "order"]
    assert str(batch.refused[1]) == "request 'short' waits: one before it did not fit; try in a later step"


DEVICE = (TierConfig("device", 4),)
UNBUILT: dict[str, tuple[Callable[[], Any], str]] = {
    # requests
    "tokens as a list": (lambda: untyped.Request("a", [1, 2]), "a list"),
    "tokens as int64": (lambda: Request("a", np.array([1, 2])), "int64"),
    "tokens in two dimensions": (lambda: Request("a", np.zeros((2, 2), np.int32)), "(2, 2)"),
    "tokens with gaps": (lambda: Request("a", np.zeros(8, np.int32)[::2]), "ascontiguousarray"),
    "no tokens": (lambda: req(), "it has no tokens"),
    "no dummy tokens": (lambda: Request.dummy("a", 0), "it has no tokens"),
    "unhashable id": (lambda: untyped.Request([], toks(1)), "must be hashable"),
    "length of zero": (lambda: req(1, length=0), "length 0"),
    "negative length": (lambda: req(1, length=-1), "length -1"),
    "no beams": (lambda: req(1, beams=0), "beams 0"),
    "negative drafts": (lambda: req(1, extra_tokens=-1), "extra_tokens -1"),
    "negative future": (lambda: req(1, max_new_tokens=-1), "max_new_tokens -1"),
    "extra ids as a list": (lambda: req(1, extra_ids=[1]), "int64 array"),
    "extra ids of another length": (
        lambda: req(1, extra_ids=np.zeros(2, np.int64)),
        "one number per token",
    ),
    "extra ids as int32": (lambda: req(1, extra_ids=np.zeros(1, np.int32)), "int64 array"),
    "scope as a string": (lambda: req(1, scope="s"), "its scope is a str"),
    "retention as a number": (lambda: req(1, retention=80), "its retention is a int"),
    "media as bytes": (lambda: req(1, media=(IMAGE,)), "not a list of Media"),
    # what belongs to them
    "media without runs": (lambda: Media(IMAGE, ()), "runs are ()"),
    "media with an empty run": (lambda: Media(IMAGE, (Span(1, 1),)), "non-empty Span"),
    "media with a tuple for a run": (lambda: untyped.Media(IMAGE, ((0, 2),)), "non-empty Span"),
    "media with a short digest": (lambda: Media(b"short", (Span(0, 1),)), "16 to 64 bytes"),
    "span backwards": (lambda: Span(3, 2), "[3, 2)"),
    "span below zero": (lambda: Span(-1, 2), "[-1, 2)"),
    "span of fractions": (lambda: untyped.Span(0.5, 2), "0.5"),
    "range backwards": (lambda: RetainRange(8, 4, 50), "[8, 4)"),
    "priority too high": (lambda: RetainRange(0, 4, 101), "priority 101"),
    "priority below zero": (lambda: Retention(decode_priority=-1), "priority -1"),
    "priority as a fraction": (lambda: untyped.Retention(decode_priority=35.5), "priority 35.5"),
    "endless seconds": (lambda: Retention(decode_seconds=float("inf")), "inf seconds"),
    "seconds that are no number": (lambda: RetainRange(0, 4, 50, float("nan")), "nan seconds"),
    "seconds below zero": (lambda: RetainRange(0, 4, 50, -0.5), "-0.5 seconds"),
    "ranges that overlap": (lambda: Retention((RetainRange(0, 5, 1), RetainRange(4, 8, 2))), "ends at 5"),
    "a range behind an open one": (lambda: Retention((RetainRange(0, None, 1), RetainRange(8, 9, 2))), "ends at None"),
    "retention by nothing known": (lambda: untyped.Retention(by="last"), "retention by 'last'"),
    # caches
    "no tiers": (lambda: CacheConfig(()), "0 tiers"),
    "too many tiers": (lambda: CacheConfig(tuple(TierConfig(str(n), 1) for n in range(9))), "9 tiers"),
    "two tiers of one name": (lambda: CacheConfig(DEVICE * 2), "two tiers have one name"),
    "no device slots": (lambda: CacheConfig((TierConfig("device", 0),)), "0 slots"),
    "negative host slots": (lambda: CacheConfig((*DEVICE, TierConfig("host", -1))), "-1 slots"),
    "half a slot": (lambda: CacheConfig((untyped.TierConfig("device", 2.5),)), "not whole numbers"),
    "slots for other groups": (lambda: CacheConfig((TierConfig("device", (4, 4)),)), "2 numbers for 1 groups"),
    "no groups": (lambda: CacheConfig(DEVICE, groups=()), "at least one layer group"),
    "two groups of one name": (
        lambda: CacheConfig(DEVICE, groups=(LayerGroup(), LayerGroup())),
        "two groups have one name",
    ),
    "blocks of nothing": (lambda: CacheConfig(DEVICE, block_size=0), "block_size 0"),
    "half a block": (lambda: untyped.CacheConfig(DEVICE, block_size=4.0), "block_size 4.0"),
    "no rows": (lambda: CacheConfig(DEVICE, max_sequences=0), "max_sequences 0"),
    "no length": (lambda: CacheConfig(DEVICE, max_length=0), "max_length 0"),
    "no events to hold": (lambda: CacheConfig(DEVICE, max_events=0), "max_events 0"),
    "an order nobody knows": (lambda: untyped.CacheConfig(DEVICE, eviction="random"), "eviction 'random'"),
    "pages that were never used": (lambda: CacheConfig(DEVICE, eviction="adaptive", min_uses=0), "min_uses 0"),
    "receipts that are a number": (lambda: CacheConfig(DEVICE, receipts=1), "receipts 1"),  # type: ignore[arg-type]
    "more scopes than a receipt looks into": (lambda: CacheConfig(DEVICE, receipt_scopes=65), "receipt_scopes 65"),
    "uses that nobody counts": (
        lambda: CacheConfig(DEVICE, eviction="lru", min_uses=2),
        "min_uses 2 with eviction 'lru'",
    ),
    "a limit beyond all priorities": (
        lambda: CacheConfig(DEVICE, offload_min_priority=102),
        "offload_min_priority 102",
    ),
    "a page of negative size": (lambda: LayerGroup(page_bytes=-1), "page_bytes -1"),
    "a page that does not divide": (lambda: LayerGroup(page_bytes=10, planes=3), "do not divide into 3 planes"),
    "a store nobody knows": (lambda: untyped.Cache(CacheConfig(DEVICE), store="fast"), "store 'fast'"),
}


@pytest.mark.parametrize("name", UNBUILT)
def test_what_makes_no_sense_is_not_built(name: str) -> None:
    make, fact = UNBUILT[name]
    with pytest.raises(QuireError) as caught:
        make()
    tells(caught.value, InputError, fact)
