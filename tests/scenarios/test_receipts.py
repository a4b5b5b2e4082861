"""Receipts: one reason for every token that was not reused. Rows `why`."""

from __future__ import annotations

import random
from itertools import takewhile
from typing import Any

import pytest

from quire import (
    Cache,
    CacheConfig,
    InputError,
    Kind,
    LayerGroup,
    Miss,
    Receipt,
    Request,
    Scope,
    StateError,
    TierConfig,
    Writer,
    check,
)
from quire.core.records.reports.receipt import check_receipt
from quire.core.store import StoreName

from .conftest import Clock, admit, build, compute, decode, finish, keep, release, run, tokens

A, B = range(12), range(50, 62)


def explaining(store: StoreName, slots: int | tuple[int, ...], host: Any = 0, **options: Any) -> tuple[Cache, Clock]:
    clock = Clock()
    return build(store, slots, host, clock=clock, **{"receipts": True} | options), clock


def why(cache: Cache, *parts: Any, **options: Any) -> list[Miss]:
    """The misses of a prompt, as things are."""
    return list(receipt_of(cache, *parts, **options).misses)


def receipt_of(cache: Cache, *parts: Any, **options: Any) -> Receipt:
    receipt = cache.explain(Request("why", tokens(*parts), **options))
    check_receipt(receipt)
    with cache.claim([Request("why", tokens(*parts), **options)]) as claims:
        assert [claim.receipt for claim in claims] == [receipt] * len(claims)  # none, when it can never fit
    check(cache)
    return receipt


def told(misses: list[Miss]) -> list[tuple[str, int, int]]:
    return [(miss.cause, miss.start, miss.stop) for miss in misses]


def test_what_no_block_has(store: StoreName) -> None:
    """why-01: policy before the last token, that before what is no whole block, and that before all else."""
    cache, _ = explaining(store, 8)
    assert told(why(cache, 1)) == [("last_token", 0, 1)]
    assert told(why(cache, range(11))) == [("new", 0, 8), ("short", 8, 10), ("last_token", 10, 11)]
    assert told(why(cache, range(11), reuse=False)) == [("policy", 0, 11)]
    assert told(why(cache, range(11), reuse_limit=6)) == [("new", 0, 4), ("short", 4, 6), ("policy", 6, 11)]
    assert told(why(cache, range(11), reuse_limit=10)) == [("new", 0, 8), ("short", 8, 10), ("policy", 10, 11)]
    with cache.claim([Request(0, tokens(range(8)))], "decode") as claims:
        assert told(list(claims[0].receipt.misses)) == [("new", 0, 8)]


def test_where_new_text_parts(store: StoreName) -> None:
    """why-02: the hit takes the shared tokens of a block along; where it may not, they are no whole block."""
    for partial, misses in ((True, [("new", 6, 12)]), (False, [("short", 4, 6), ("new", 6, 12)])):
        cache, _ = explaining(store, 8, partial_reuse=partial)
        run(cache, Request(0, tokens(A)))
        found = receipt_of(cache, range(6), range(90, 97))
        assert told(list(found.misses)) == [*misses, ("last_token", 12, 13)]
        assert found.reused == found.hits[0, 0] == misses[0][1]


@pytest.mark.parametrize("eviction", ["lru", "release_order", "adaptive"])
def test_what_was_evicted(store: StoreName, eviction: str) -> None:
    """why-03: when, and for which admission; found again by key, whatever order made it go."""
    cache, clock = explaining(store, 4, eviction=eviction)
    run(cache, Request(0, tokens(A)))
    clock.now = 10.0
    run(cache, Request(1, tokens(B)))
    clock.now = 12.5
    assert why(cache, A, 99)[:-1] == [Miss("evicted", 4, 12, 0, seconds=2.5, admission=2)]
    assert told(why(cache, A, 99, scope=Scope(salt="b")))[:-1] == [("new", 0, 12)]


def test_what_nobody_remembers(store: StoreName) -> None:
    """why-04: forgotten is what the ghost or page of a child tells of; the rest is new."""
    cache, _ = explaining(store, 3, ghosts=1, partial_reuse=False, eviction="lru")
    run(cache, Request(0, tokens(A), retention=keep(0, 90, 90)))
    for number in range(4):
        run(cache, Request(1 + number, tokens(range(100 + 10 * number, 104 + 10 * number)), retention=keep(0)))
    assert told(why(cache, A, 99)) == [("forgotten", 0, 12), ("last_token", 12, 13)]
    without, _ = explaining(store, 3, ghosts=0, partial_reuse=False)
    run(without, Request(0, tokens(A)))
    run(without, Request(1, tokens(B)))
    assert told(why(without, A, 99)) == [("new", 0, 12), ("last_token", 12, 13)]


def test_a_gap_in_what_is_remembered(store: StoreName) -> None:
    """why-12: a later block's ghost tells of one that left none; behind two such blocks nobody looks."""
    cache, _ = explaining(store, 6, partial_reuse=False)
    run(cache, Request(0, tokens(A, range(12, 20))))
    run(cache, Request(1, tokens(range(50, 58))))
    assert told(why(cache, A, range(12, 20), 99))[:-1] == [("evicted", 16, 20)]
    cache.truncate(Request(2, tokens(A, range(12, 16))), 12)
    assert told(why(cache, A, range(12, 20), 99))[:-1] == [("forgotten", 12, 16), ("evicted", 16, 20)]
    cache.truncate(Request(3, tokens(A)), 8)
    assert told(why(cache, A, range(12, 20), 99))[:-1] == [("new", 8, 20)]


def test_what_is_under_way(store: StoreName) -> None:
    """why-05: whoever computes it is named; what was evicted and is computed again is under way."""
    cache, _ = explaining(store, 12)
    (first,) = admit(cache, Request("first", tokens(A, 1)))
    assert why(cache, A, 99)[:-1] == [Miss("under_way", 0, 12, 0, request="first")]
    assert told(why(cache, range(8), range(90, 96)))[:-1] == [("under_way", 0, 8), ("new", 8, 12), ("short", 12, 13)]
    compute(cache, first, 8)
    assert why(cache, A, 99)[:-1] == [Miss("under_way", 8, 12, 0, request="first")]
    release(cache, first, store=False)
    assert told(why(cache, A, 99))[:-1] == [("new", 8, 12)]


def test_a_move_that_failed(store: StoreName) -> None:
    """why-06: the page whose bytes never came, and not those that were there."""
    cache, clock = explaining(store, 4, 8, shadows=False, partial_reuse=False)
    run(cache, Request(0, tokens(A)))
    run(cache, Request(1, tokens(B, range(62, 66))))
    batch = cache.add_sequence_batch([Request(2, tokens(A, 1))])
    (sequence,) = batch.sequences
    second = [number for number, move in enumerate(batch.plan) if move.kind is Kind.ONBOARD][1]
    clock.now = 2.0
    (setback,) = cache.finish(batch.plan, [second]).setbacks
    assert (setback.holder, setback.start, setback.lost) == (sequence, 4, False)
    release(cache, sequence, store=False)
    clock.now = 5.0
    assert why(cache, A, 99)[:-1] == [Miss("failed", 4, 12, 0, seconds=5.0, admission=3)]


def test_the_group_whose_resume_point_is_lowest(store: StoreName) -> None:
    """why-07: to blame is the group that alone could go on from the least."""
    groups = (LayerGroup("full"), LayerGroup("local", window=5))
    cache, _ = explaining(store, (16, 6), groups=groups)
    for number, prompt in enumerate((range(16), range(70, 90), range(100, 120))):
        run(cache, Request(number, tokens(prompt)))
    found = receipt_of(cache, range(16), 99)
    assert found.misses[:-1] == (
        Miss("evicted", 0, 12, 1, seconds=0.0, admission=2),
        Miss("evicted", 12, 16, 1, seconds=0.0, admission=3),
    )
    assert "16 evicted, 0.0 s ago and before, for admission 3 (group local)" in found.text()
    assert told(why(cache, range(8), range(90, 97)))[:2] == [("evicted", 0, 8), ("new", 8, 12)]


def test_snapshots(store: StoreName) -> None:
    """why-08: none was ever taken there; one that was evicted is missed by all tokens before it."""
    groups = (LayerGroup("full"), LayerGroup("ssm", snapshot_every=0))
    cache, clock = explaining(store, (16, 2), groups=groups)
    for at, prompt in ((0.0, range(17)), (1.0, range(70, 75))):
        clock.now = at
        (sequence,) = admit(cache, Request(at, tokens(prompt)))
        while sequence.computed < sequence.prompt_end:
            cache.commit(sequence)
            if sequence.computed < sequence.prompt_end:
                finish(cache, cache.add_sequence_batch([], continuing=[sequence]).plan)
        release(cache, sequence)
    clock.now = 3.0
    assert why(cache, range(17))[:-1] == [Miss("evicted", 0, 16, 1, seconds=2.0, admission=2)]
    assert told(why(cache, range(70, 74), 1, 2, 3, 4, 5))[:-1] == [("new", 4, 8)]
    assert told(why(cache, range(9)))[:-1] == [("snapshot", 0, 8)]


def test_other_scopes(store: StoreName) -> None:
    """why-09: only when it is turned on, and never told to a client."""
    for scopes, cause in ((0, "new"), (4, "other_scope")):
        cache, _ = explaining(store, 8, receipt_scopes=scopes)
        run(cache, Request(0, tokens(A), scope=Scope(salt="a")))
        found = receipt_of(cache, A, 99)
        assert told(list(found.misses))[:-1] == [(cause, 0, 12)]
        assert [(miss.cause, miss.start, miss.stop) for miss in found.client().misses] == [
            ("new", 0, 12),
            ("policy", 12, 13),
        ]


def test_another_scope_without_pages(store: StoreName) -> None:
    """why-09: a window of one token reads nothing before it, so what another scope computes counts, kept or not."""
    cache, _ = explaining(store, 1, groups=(LayerGroup("local", window=1),), receipt_scopes=4)
    mine = Scope(salt="a")
    (sequence,) = admit(cache, Request(0, tokens(range(4)), scope=mine))
    cache.commit(sequence)
    admit(cache, Request(1, tokens(range(90, 94)), scope=Scope(salt="b")))  # takes the slot of the page that has left
    assert told(why(cache, range(5)))[:-1] == [("other_scope", 0, 4)]
    assert cache.probe([Request("same", tokens(range(5)), scope=mine)])[0].start == 4
    release(cache, sequence)
    assert told(why(cache, range(5)))[:-1] == [("new", 0, 4)]


def test_tiers_and_text(store: StoreName) -> None:
    """why-10: where it was, in words for people; a client hears of its own tokens only."""
    cache, clock = explaining(store, 4, 2)
    run(cache, Request(0, tokens(A)))
    clock.now = 1.0
    run(cache, Request(1, tokens(B)))
    clock.now = 3.0
    found = receipt_of(cache, A, range(90, 95))
    assert found.hits == {(0, 0): 4, (1, 0): 8}
    assert str(found).splitlines() == [
        "12 of 17 tokens reused (4 device, 8 host)",
        "4 new: parted at 12",
        "1 always computed: the last token",
    ]
    run(cache, Request(2, tokens(range(70, 86))))
    clock.now = 4.5
    found = receipt_of(cache, A, range(90, 95))
    assert f"{found.missed('evicted')} evicted 1.5 s ago for admission 3" in found.text()
    assert "admission" not in repr(found.client().misses) and "1.5" not in repr(found.client().misses)


def test_when_a_receipt_is_made(store: StoreName) -> None:
    """why-11: at the claim, in the order of the batch; without receipts there are none, and explain is there."""
    cache, _ = explaining(store, 12)
    run(cache, Request(0, tokens(A)))
    with cache.claim([Request(1, tokens(B, 1)), Request(2, tokens(A, 1))]) as claims:
        batch = cache.admit(claims)
    finish(cache, batch.plan)
    for sequence in batch.sequences:
        decode(cache, sequence, 7)
    assert [receipt.reused for receipt in batch.receipts] == [0, 12]
    off = Cache(CacheConfig((TierConfig("device", 8),), 4), store=store)
    with off.claim([Request(0, tokens(A))]) as claims:
        with pytest.raises(StateError, match="receipts=True"):
            _ = claims[0].receipt
        batch = off.admit(claims)
    with pytest.raises(StateError, match="receipts=True"):
        _ = batch.receipts
    assert off.explain(Request(1, tokens(A))).missed("under_way") == 8


TENANT = Scope(salt="tenant 4")


@pytest.mark.parametrize("act", ["clear", "truncate", "forget"])
@pytest.mark.parametrize("eviction", ["lru", "adaptive"])
def test_what_is_forgotten_on_purpose(store: StoreName, act: str, eviction: str) -> None:
    """why-13: an open claim keeps its receipt; to whoever asks again all is new, ghosts are gone too."""
    cache, _ = explaining(store, 4, partial_reuse=False, eviction=eviction)
    run(cache, Request(0, tokens(A), TENANT))
    run(cache, Request(1, tokens(B), TENANT))
    assert told(why(cache, A, 99, scope=TENANT)) == [("evicted", 4, 12), ("last_token", 12, 13)]
    with cache.claim([Request("open", tokens(A, 99), TENANT)]) as claims:
        (claim,) = claims
        before = claim.receipt
        if act == "truncate":
            cache.truncate(Request("cut", tokens(A), TENANT), 0)
        else:
            cache.forget(TENANT) if act == "forget" else cache.clear()
        assert claim.receipt == before and (before.reused, claim.start) == (4, 4)
        check(cache)
        (again,) = [told(list(cache.explain(Request("why", tokens(A, 99), TENANT)).misses))]
    ghosts = [("forgotten", 0, 4), ("evicted", 4, 12), ("last_token", 12, 13)]  # truncating takes what is there
    assert again == (ghosts if act == "truncate" else [("new", 0, 12), ("last_token", 12, 13)])


def test_a_page_that_is_bad(store: StoreName) -> None:
    """why-14: a claim on it looks again, and its receipt says so; the time is that of the loss."""
    cache, clock = explaining(store, 8, partial_reuse=False)
    run(cache, Request(0, tokens(A)))
    with cache.find(Request("where", tokens(A))) as look:
        slot = int(look.slots()[1])
    with cache.claim([Request("open", tokens(A, 99))]) as claims:
        (claim,) = claims
        assert claim.receipt.reused == 12
        clock.now = 3.0
        (setback,) = cache.lose(0, [slot]).setbacks
        assert (setback.holder, setback.start) == (claim, 4)
        assert claim.receipt.misses[0] == Miss("failed", 4, 12, 0, seconds=0.0, admission=1)
        check(cache)
    clock.now = 5.0
    assert why(cache, A, 99)[0] == Miss("failed", 4, 12, 0, seconds=2.0, admission=1)


def test_what_a_writer_brings(store: StoreName) -> None:
    """why-15: without a device; new until it is written, then there; evicted when another writer needed its slot."""
    cache, clock = explaining(store, 0, 3)

    def receipt() -> Receipt:
        return cache.explain(Request("why", tokens(A)), "decode")

    def writing(text: range) -> Writer:
        writer = cache.writer(Request("w", tokens(text)), tier=1)
        assert isinstance(writer, Writer)
        return writer

    with writing(A) as writer:
        assert told(list(receipt().misses)) == [("new", 0, 12)]
        writer.written(8)
        assert (receipt().hits, told(list(receipt().misses))) == ({(1, 0): 8}, [("new", 8, 12)])
        writer.written(12)
        assert (receipt().reused, receipt().misses) == (12, ())
    clock.now = 10.0
    with writing(B):
        clock.now = 12.5
        assert receipt().misses == (Miss("evicted", 0, 12, 0, seconds=2.5, admission=0),)
        assert told(list(cache.explain(Request("why", tokens(B))).misses)) == [
            ("new", 0, 8), ("short", 8, 11), ("last_token", 11, 12),
        ]  # fmt: skip
    check(cache)


def remembering(store: StoreName, slots: int = 200, **options: Any) -> Cache:
    """Chunks are not of a size that can be seen from outside: texts of hundreds of tokens that are all different."""
    return explaining(store, slots, receipt_chunks=1 << 14, **options)[0]


RULES, HOUSE = range(1000, 1600), range(3000, 3400)


def test_text_behind_another_beginning_is_interrupted(store: StoreName) -> None:
    """why-16: a time before the rules: what is equal again is interrupted, to a chunk, and never a token more."""
    cache = remembering(store)
    run(cache, Request("first", tokens(range(9), 90, 91, RULES, 5000)))
    misses = why(cache, range(9), 70, 71, RULES, range(7000, 7100))
    assert [miss.cause for miss in misses[:3]] == ["new", "interrupted", "new"] and misses[0].start == 9
    again = misses[1]
    assert 11 <= again.start <= 60 and 560 <= again.stop <= 611, "chunks have 8 tokens in the mean"
    assert (again.gap, again.parted) == (again.start - 9, 9)
    receipt = receipt_of(cache, range(9), 70, 71, RULES, range(7000, 7100))
    assert f"interrupted: equal again at {again.start}, after {again.gap} others" in receipt.text()
    assert {miss.cause for miss in receipt.client().misses} == {"new", "short", "policy"}
    assert again.counterfactual is not None and misses[0].counterfactual is None
    short = why(cache, 80, range(1000, 1028), 81, range(1100, 1128), 82, range(1200, 1228), 83)
    assert "interrupted" not in {miss.cause for miss in short}, "28 equal tokens may be chance"


def cut_as_in(part: list[int], earlier: list[list[int]]) -> list[int]:
    """The fewest pieces that earlier prompts have of a text, by their lengths; fails where a token was nowhere."""
    lengths = []
    while part:
        places = [(one, at) for one in earlier for at, token in enumerate(one) if token == part[0]]
        longest = max(
            sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(part, one[at:], strict=False)))
            for one, at in places
        )
        lengths.append(longest)
        part = part[longest:]
    return lengths


def test_no_token_is_interrupted_that_was_not_here(store: StoreName) -> None:
    """why-17: every interrupted token stands in an earlier prompt of the scope, with those beside it."""
    cache, dice = remembering(store, 200, block_size=16), random.Random(7)
    pieces = [[dice.randrange(50_000) for _ in range(dice.randrange(20, 200))] for _ in range(6)]
    earlier: list[list[int]] = []
    found = 0
    for number in range(12):
        prompt = [number, *(token for piece in dice.sample(pieces, 3) for token in piece), number + 90_000]
        for miss in why(cache, prompt):
            if miss.cause == "interrupted":
                part, found = prompt[miss.start : miss.stop], found + 1
                assert miss.num_tokens >= 32 and miss.gap is not None
                assert 1 <= len(cut_as_in(part, earlier)) <= 3, "it stood there in whole pieces"
        run(cache, Request(number, tokens(prompt)))
        earlier.append(prompt)
    assert found > 12


def test_text_known_from_its_beginning_is_forgotten_and_not_new(store: StoreName) -> None:
    """why-18: where no ghost is left, chunks say that the text was here behind the same beginning."""
    cache = remembering(store, 160, ghosts=0)
    run(cache, Request("first", tokens(RULES)))
    cache.truncate(Request("first", tokens(RULES)), 0)
    misses = why(cache, RULES, 5000)
    assert misses[0].cause == "forgotten" and misses[0].start == 0 and misses[0].stop >= 560
    assert "interrupted" not in {miss.cause for miss in misses}


def test_chunks_stay_in_their_scope_and_end_with_what_is_forgotten(store: StoreName) -> None:
    """why-19: another scope's text is new; so is what was claimed only, refused, private, or cleared."""
    cache = remembering(store)
    run(cache, Request("first", tokens(1, RULES), scope=Scope(salt="a")))
    asked = tokens(2, RULES)

    def causes(scope: Scope) -> set[str]:
        return {miss.cause for miss in cache.explain(Request("why", asked, scope=scope)).misses}

    assert "interrupted" in causes(Scope(salt="a")) and "interrupted" not in causes(Scope(salt="b"))
    with cache.claim([Request("only claimed", tokens(3, HOUSE))]):
        pass
    run(cache, Request("private", tokens(4, HOUSE), reuse=False))
    assert "interrupted" not in {miss.cause for miss in why(cache, 5, HOUSE)}
    cache.forget(Scope(salt="a"))
    assert "interrupted" not in causes(Scope(salt="a"))
    run(cache, Request("again", tokens(6, RULES)))
    assert "interrupted" in {miss.cause for miss in why(cache, 7, RULES)}
    cache.clear()
    assert "interrupted" not in {miss.cause for miss in why(cache, 7, RULES)}


def test_chunks_need_receipts_and_a_size() -> None:
    """why-19: what cannot be is refused."""
    tier = (TierConfig("device", 8),)
    for chunks, receipts, why_not in ((5, False, "only receipts look there"), (-1, True, "0 to"), (True, True, "0 to")):
        with pytest.raises(InputError, match=why_not):
            CacheConfig(tier, receipt_chunks=chunks, receipts=receipts)
