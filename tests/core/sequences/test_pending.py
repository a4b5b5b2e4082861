"""Pending pages: prompts that share whole blocks which a launched step is still computing for another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import (
    Cache,
    Encoder,
    InputError,
    LayerGroup,
    Request,
    Scope,
    Sequence,
    Span,
    StateError,
    Stored,
    check,
)
from quire.core.store import StoreName
from tests.core.conftest import seq, small
from tests.core.sequences.test_in_flight import decoding, edges, found, hybrid, ints, start

WINDOW = (LayerGroup("full"), LayerGroup("window", window=6))


def sharing(store: StoreName, slots: int = 32, **options: Any) -> Cache:
    return small(store, slots, share_pending=True, **options)


def flying(cache: Cache, name: str = "a", length: int = 11, **limits: Any) -> tuple[Sequence, Any]:
    """A prompt that is being computed."""
    (one,) = start(cache, Request(name, seq(0, length)), **limits)
    return one, cache.launch()


def sharer(cache: Cache, name: str = "b", length: int = 11, more: int = 0, **options: Any) -> Sequence:
    """A prompt that begins as the other does, with so many tokens of its own."""
    (one,) = start(cache, Request(name, np.append(seq(0, length), seq(500, more)), **options))
    check(cache)
    return one


def goes_on(cache: Cache, *some: Sequence) -> None:
    """These compute what is left of their prompts."""
    spans = {one: Span(one.computed, one.prompt_end) for one in some}
    assert cache.add_sequence_batch([], continuing=some).spans == spans
    cache.commit(cache.launch())
    check(cache)
    assert [one.computed for one in some] == [one.prompt_end for one in some]


def test_two_equal_prompts_compute_the_common_blocks_once(store: StoreName) -> None:
    cache = sharing(store, events=True, receipts=True)
    one, first = flying(cache, length=101)
    with cache.claim([Request("b", seq(0, 101))]) as claims:
        (claim,) = claims
        assert (claim.start, claim.num_tokens, claim.receipt.reused) == (100, 1, 100)
        assert (claim.slots_needed, cache.num_free()) == ((1,), 32 - 26)
        (two,) = cache.admit(claims).sequences
    check(cache)
    assert two.pages()[:25].tolist() == one.pages()[:25].tolist() and two.pages()[25] != one.pages()[25]
    assert two.counts().reused_pending == 25 == cache.stats().reused_pending
    assert (two.start, edges(two)) == (100, (0, 101, 101, 104))
    second = cache.launch()
    assert (second.starts.tolist(), second.ends.tolist()) == ([100], [101])
    assert not [event for event in cache.take_events() if isinstance(event, Stored)], "nothing before the commit"
    assert cache.commit(first, tokens=ints(7)) == 25, "each block is stored once"
    check(cache)
    assert edges(two) == (100, 101, 101, 104) and two.committed == 100
    assert sum(len(event.hashes) for event in cache.take_events() if isinstance(event, Stored)) == 25
    cache.commit(second, tokens=ints(8))
    cache.release([one, two])
    check(cache)
    assert cache.num_free() == 32 and found(cache, seq(0, 101)) == 101


def test_off_nothing_is_shared_and_pending_pages_are_for_claims_alone(store: StoreName) -> None:
    for cache, start_of in ((small(store, 32), 0), (sharing(store), 8)):
        flying(cache)
        assert sharer(cache).start == start_of
        with cache.find(Request("f", seq(0, 11))) as hit:
            assert hit.end == 0
        with cache.claim([Request("d", seq(0, 11))], purpose="decode") as claims:
            assert claims[0].start == 0
        with cache.claim([Request("n", seq(0, 11), reuse=False)]) as claims:
            assert claims[0].start == 0
        check(cache)
    with pytest.raises(InputError, match="share_pending"):
        small(store, 32, share_pending=1)


def test_what_is_handed_out_and_not_launched_is_not_shared(store: StoreName) -> None:
    cache = sharing(store)
    start(cache, Request("a", seq(0, 11)))
    assert sharer(cache).start == 0


def test_chunks_in_flight_land_one_after_the_other(store: StoreName) -> None:
    cache = sharing(store)
    one, first = flying(cache, length=20, max_chunk=6)
    cache.add_sequence_batch([], max_chunk=6, continuing=[one])
    second = cache.launch()
    two = sharer(cache, length=20)
    assert (two.start, two.computed) == (12, 0), "whole blocks up to where the steps in flight compute"
    third = cache.launch()
    cache.commit(first)
    check(cache)
    assert (two.computed, two.committed) == (4, 4)
    three = sharer(cache, "c", 20)
    assert (three.start, three.computed) == (16, 4), "the second one computes more of it"
    told = cache.fail(third)
    check(cache)
    assert [(back.holder, back.old_start, back.start, back.lost) for back in told] == [
        (two, 20, 12, False), (three, 17 + 3, 12, False),
    ], "it goes on behind what earlier steps compute for it"  # fmt: skip
    assert (two.computed, two.ran, three.computed, three.ran) == (4, 12, 4, 12)
    assert three.pages()[:3].tolist() == one.pages()[:3].tolist() and three.pages()[3] != two.pages()[3]
    cache.commit(second)
    check(cache)
    assert (one.computed, two.computed, three.computed) == (12, 12, 12)
    goes_on(cache, two, three)


def test_sharers_of_a_step_that_fails_go_back_with_its_owner(store: StoreName) -> None:
    cache = sharing(store)
    one, first = flying(cache, length=20, max_chunk=8)
    cache.add_sequence_batch([], max_chunk=8, continuing=[one])
    second = cache.launch()
    two, three = sharer(cache, length=20), sharer(cache, "c", 8, 5)
    assert (two.start, three.start) == (16, 8)
    with cache.claim([Request("d", seq(0, 20)), Request("e", seq(0, 9))]) as claims:
        setbacks = cache.fail(second)
        check(cache)
        told = [(back.holder, back.old_start, back.start, back.lost) for back in setbacks]
        assert told == [(one, 16, 8, False), (two, 20, 8, False), (claims[0], 16, 8, False)]
        assert (claims[0].start, claims[1].start, three.ran, two.start) == (8, 8, 13, 8)
    cache.commit(first)
    assert (two.computed, three.computed) == (8, 8)
    goes_on(cache, one, two)
    assert two.pages()[:2].tolist() == one.pages()[:2].tolist() and two.pages()[2] != one.pages()[2]
    cache.release([one, two, three])
    check(cache)
    assert (cache.num_free(), found(cache, seq(0, 20))) == (32, 20)


def test_sharers_of_sharers_go_back_too(store: StoreName) -> None:
    cache = sharing(store)
    one, first = flying(cache, length=12)
    two = sharer(cache, length=12, more=9)
    second = cache.launch()
    (three,) = start(cache, Request("c", np.append(seq(0, 12), seq(500, 9))))
    assert (two.start, three.start) == (12, 20)
    check(cache)
    with cache.claim([Request("d", np.append(seq(0, 12), seq(500, 9)))]) as claims:
        assert claims[0].start == 20
        told = [(back.holder, back.start, back.lost) for back in cache.fail(first)]
        assert told == [(one, 0, False), (two, 0, False), (three, 0, False), (claims[0], 0, False)]
        check(cache)
    assert cache.open_steps() == [] and second.number == 1
    assert not {*one.pages()} & {*two.pages()} and not {*two.pages()} & {*three.pages()}
    goes_on(cache, one, two, three)


def test_a_claim_outlives_the_step_it_rests_on(store: StoreName) -> None:
    cache = sharing(store)
    one, first = flying(cache)
    with cache.claim([Request("b", seq(0, 11))]) as claims:
        cache.commit(first)
        cache.release(one)
        check(cache)
        (two,) = cache.admit(claims).sequences
    check(cache)
    assert (two.start, two.computed, two.committed, two.counts().reused_pending) == (8, 8, 8, 0)


def test_a_claim_is_dropped_as_if_it_had_not_been_made(store: StoreName) -> None:
    cache = sharing(store)
    flying(cache)
    free = cache.num_free()
    with cache.claim([Request("b", seq(0, 11))]):
        check(cache)
    assert cache.num_free() == free
    check(cache)


def test_a_shared_part_of_a_prompt_is_committed_whole(store: StoreName) -> None:
    cache = sharing(store)
    one, first = flying(cache)
    with cache.claim([Request("b", seq(0, 11))]) as claims:
        with pytest.raises(StateError, match="others share what it was to compute up to 8"):
            cache.commit(first, ints(7))
        (two,) = cache.admit(claims).sequences
    with pytest.raises(StateError, match="others share what it was to compute up to 8"):
        cache.commit(first, ints(7))
    check(cache)
    cache.commit(first, ints(9))
    check(cache)
    assert (one.computed, one.ran, two.computed) == (9, 9, 8)


def test_a_cancelled_owner_computes_for_its_sharers(store: StoreName) -> None:
    cache = sharing(store)
    one, first = flying(cache)
    two = sharer(cache)
    cache.release(one, store=False)
    three = sharer(cache, "c")
    assert three.start == 8, "its step runs on"
    check(cache)
    cache.commit(first)
    check(cache)
    assert (two.computed, three.computed) == (8, 8)


def test_sharers_end_when_no_step_has_them(store: StoreName) -> None:
    cache = sharing(store)
    one, first = flying(cache)
    two, three = sharer(cache), sharer(cache, "c")
    request = cache.suspend(two)
    cache.release(three, store=False)
    check(cache)
    with pytest.raises(StateError, match="a step in flight computes it"):
        cache.trim(sharer(cache, "d"), 1)
    cache.commit(first)
    check(cache)
    assert (len(request.tokens), one.computed, cache.num_free()) == (11, 8 + 3, 32 - 3 - 1)
    assert sharer(cache).start == 8


def test_sharers_of_an_owner_that_loses_a_page_go_back(store: StoreName) -> None:
    cache = sharing(store)
    start(cache, Request("z", seq(0, 4)))
    cache.commit(cache.launch())
    one, first = flying(cache, length=16)
    two = sharer(cache, length=16)
    assert (one.start, two.start) == (4, 12)
    claims = cache.claim([Request("c", seq(0, 16))])
    second = cache.launch()
    told = cache.lose(0, [int(one.slots()[0])]).setbacks
    check(cache)
    assert [(back.holder.id if isinstance(back.holder, Sequence) else "claim", back.lost) for back in told] == [
        ("z", False), ("a", False), ("b", False), ("claim", False),
    ]  # fmt: skip
    assert (claims[0].start, two.computed, two.ran) == (0, 0, 0)
    claims.drop()
    cache.commit(first)
    cache.commit(second)
    check(cache)
    assert (one.computed, two.computed) == (0, 0)
    goes_on(cache, one, two)


def test_a_sharer_that_has_ended_stays_busy_until_its_step_is_closed(store: StoreName) -> None:
    cache = sharing(store)
    one, first = flying(cache)
    cache.release(sharer(cache))
    cache.lose(0, [int(one.slots()[1])])
    check(cache)
    assert cache.num_free() == 32 - 3 - 1
    cache.commit(first)
    check(cache)
    assert cache.num_free() == 32 - 3
    goes_on(cache, one)


def test_a_lost_pending_page_is_lost_to_all(store: StoreName) -> None:
    cache = sharing(store)
    one, first = flying(cache)
    two = sharer(cache)
    told = cache.lose(0, [int(one.slots()[1])]).setbacks
    assert [(back.holder, back.start, back.lost) for back in told] == [(one, 0, False), (two, 0, False)]
    check(cache)
    cache.commit(first)
    check(cache)
    assert (one.computed, two.computed) == (0, 0)
    goes_on(cache, one, two)


def test_a_fork_of_a_sharer_computes_what_is_not_there(store: StoreName) -> None:
    cache = sharing(store)
    _, first = flying(cache)
    two = sharer(cache)
    made = cache.fork(two, ["f"])
    assert made is not None
    fork, hold = made[0][0], cache.hold(two, Span(0, 11))
    check(cache)
    assert (fork.computed, fork.ran) == (0, 0)
    cache.commit(first)
    check(cache)
    assert (two.computed, fork.computed) == (8, 0)
    assert hold is not None
    cache.drop(hold)


def test_a_window_charges_the_sharer(store: StoreName) -> None:
    """The owner was to give up its window's pages for later parts; a sharer keeps them, and has room of its own."""
    cache = hybrid(store, WINDOW, (16, 6), share_pending=True, max_chunk=8)
    one, first = flying(cache, length=24)
    free = cache.num_free(1)
    with cache.claim([Request("b", seq(0, 9))]) as claims:
        assert claims[0].start == 8
        batch = cache.admit(claims)
    check(cache)
    if batch.sequences:
        assert cache.num_free(1) <= free - 1
    cache.add_sequence_batch([], continuing=[one])
    second = cache.launch()
    cache.commit(first)
    check(cache)
    cache.commit(second)
    check(cache)
    assert one.computed == 16


def test_groups_with_windows_share_what_their_resume_point_reads(store: StoreName) -> None:
    cache = hybrid(store, WINDOW, (32, 32), share_pending=True)
    one, first = flying(cache, length=21)
    two = sharer(cache, length=21)
    assert two.start == 20 and two.pages(1)[:5].tolist() == [-1, -1, -1, *one.pages(1)[3:5].tolist()]
    assert [two.counts(group).reused_pending for group in (0, 1)] == [5, 2]
    cache.commit(first)
    check(cache)
    assert two.computed == 20
    (back,) = hybrid_setback(store)
    assert back.lost


def hybrid_setback(store: StoreName) -> list[Any]:
    """The sharer of a failed step in a cache with windows."""
    cache = hybrid(store, WINDOW, (32, 32), share_pending=True)
    _, first = flying(cache, length=21)
    two = sharer(cache, length=21)
    told = [back for back in cache.fail(first) if back.holder is two]
    check(cache)
    return told


def test_states_and_encoders_share_nothing_in_flight(store: StoreName) -> None:
    state = (LayerGroup("full"), LayerGroup("state", snapshot_every=4))
    cross = (LayerGroup("full"), LayerGroup("cross", cross=True))
    for groups, encoder in ((state, None), (cross, Encoder(4, ints(0, 0, 0, 1)))):
        cache = hybrid(store, groups, (32, 16), share_pending=True)
        start(cache, Request("a", seq(0, 11), encoder=encoder), max_chunk=4)
        cache.launch()
        assert sharer(cache, encoder=encoder).start == 0


def test_redo_and_limits_count_pending_blocks(store: StoreName) -> None:
    cache = sharing(store, receipts=True)
    flying(cache, length=21)
    assert sharer(cache, "b", 21, redo_blocks=2).start == 12
    assert sharer(cache, "c", 21, reuse_limit=9).start == 8
    assert cache.probe([Request("p", seq(0, 21))])[0].start == 20
    assert cache.explain(Request("p", seq(0, 21))).reused == 20


def test_what_was_forgotten_meanwhile_is_not_stored(store: StoreName) -> None:
    cache = sharing(store)
    _, first = flying(cache)
    two = sharer(cache)
    with cache.claim([Request("c", seq(0, 11))]) as claims:
        cache.clear()
        (three,) = cache.admit(claims).sequences
    check(cache)
    cache.commit(first)
    check(cache)
    assert (two.computed, three.computed, found(cache, seq(0, 11))) == (8, 8, 0)


def test_a_twin_of_a_block_that_came_first_is_shared_too(store: StoreName) -> None:
    """Two rows compute the same block; the one that lands later keeps its own page, and so do its sharers."""
    cache = sharing(store)
    batch = [*start(cache, Request("x", seq(0, 9))), *start(cache, Request("a", seq(0, 13)))]
    first = cache.launch([batch[0]])
    second = cache.launch([batch[1]])
    two = sharer(cache, length=13)
    assert two.start == 12
    cache.commit(first)
    check(cache)
    cache.commit(second)
    check(cache)
    cache.release(batch)
    check(cache)
    assert (two.computed, two.committed) == (12, 12)
    cache.release(two)
    check(cache)
    assert found(cache, seq(0, 13)) == 13


def test_other_text_and_other_scopes_are_not_shared(store: StoreName) -> None:
    cache = sharing(store)
    start(cache, Request("t", seq(200, 4), scope=Scope(salt="s")))
    flying(cache, length=13)
    (other,) = start(cache, Request("o", np.append(seq(70, 1), seq(1, 12)).astype(np.int32)))
    (parted,) = start(cache, Request("p", np.append(seq(0, 5), seq(90, 8)).astype(np.int32)))
    (salted,) = start(cache, Request("s", seq(0, 13), scope=Scope(salt="s")))
    assert (other.start, parted.start, salted.start) == (0, 4, 0)
    check(cache)


def test_drafts_that_may_be_rejected_are_not_shared(store: StoreName) -> None:
    cache = sharing(store)
    one = decoding(cache, 7)
    cache.grow(one, seq(8, 6))
    step = cache.launch()
    assert sharer(cache, "b", 13).start == 4, "what is committed, and no draft"
    cache.commit(step, ints(9))
    check(cache)


def test_a_claim_is_admitted_when_a_part_has_landed(store: StoreName) -> None:
    cache = sharing(store)
    one, first = flying(cache, length=13, max_chunk=8)
    cache.add_sequence_batch([], continuing=[one])
    second = cache.launch()
    with cache.claim([Request("b", seq(0, 13))]) as claims:
        cache.commit(first)
        (two,) = cache.admit(claims).sequences
    check(cache)
    assert (two.start, two.computed, two.committed, two.counts().reused_pending) == (12, 8, 8, 1)
    cache.commit(second)
    assert two.computed == 12


def test_sharers_go_back_with_an_owner_whose_lost_page_they_have_not(store: StoreName) -> None:
    cache = sharing(store)
    batch = [*start(cache, Request("x", seq(0, 9))), *start(cache, Request("a", seq(0, 13)))]
    first, _ = cache.launch([batch[0]]), cache.launch([batch[1]])
    cache.commit(first)
    two = sharer(cache, length=13)
    with cache.claim([Request("c", seq(0, 13))]) as claims:
        assert (two.start, two.computed, claims[0].start) == (12, 8, 12)
        told = cache.lose(0, [int(batch[1].slots()[0])]).setbacks
        assert [(back.holder, back.start) for back in told] == [(batch[1], 0), (two, 8), (claims[0], 8)]
        check(cache)


def test_a_row_that_lost_a_page_shares_again_for_another_sequence(store: StoreName) -> None:
    cache = sharing(store)
    (before,) = start(cache, Request("q", seq(300, 4)))
    cache.commit(cache.launch())
    _, first = flying(cache)
    cache.lose(0, [int(before.slots()[0])])
    row = before.row
    cache.release(before)
    two = sharer(cache)
    assert two.row == row
    cache.commit(first)
    check(cache)
    assert two.computed == 8


def test_a_hole_before_what_is_there_is_why_a_pending_hit_ends(store: StoreName) -> None:
    """The block behind the hit has its window page; the one before, which is computed anew, was lost."""
    groups = (LayerGroup("window", window=6), LayerGroup("full"))
    cache = sharing(store, groups=groups, receipts=True)
    (one,) = start(cache, Request("one", seq(0, 9)))
    cache.commit(one)
    slot = int(one.slots(0)[0])
    cache.release(one)
    cache.lose(0, [slot])
    start(cache, Request("again", np.append(seq(0, 4), seq(500, 1))))
    cache.launch()
    with cache.claim([Request("both", seq(0, 9))]) as claims:
        assert claims[0].start == 4
        assert [(miss.cause, miss.group) for miss in claims[0].receipt.misses] == [("failed", 0), ("last_token", None)]


def test_what_is_pending_is_not_there_for_any_group(store: StoreName) -> None:
    """The block behind the hit has a page in one group, but that group's page before it is only being computed."""
    cache = sharing(store, groups=(LayerGroup("one"), LayerGroup("two")), receipts=True)
    (one,) = start(cache, Request("one", seq(0, 9)))
    cache.commit(one)
    slots = [int(one.slots(group)[group]) for group in range(2)]  # block 0 of the first group, 1 of the second
    cache.release(one)
    for group, slot in enumerate(slots):
        cache.lose(group, [slot])
    start(cache, Request("again", np.append(seq(0, 4), seq(500, 1))))
    cache.launch()
    with cache.claim([Request("both", seq(0, 9))]) as claims:
        assert claims[0].start == 4
        assert [(miss.cause, miss.group) for miss in claims[0].receipt.misses] == [
            ("forgotten", 0),
            ("last_token", None),
        ]


def test_a_claim_rests_on_an_owner_that_goes_on(store: StoreName) -> None:
    """Its next token is handed out while the claim is open: what is not computed stays so for who shares it."""
    cache = sharing(store)
    one, first = flying(cache)
    claims = cache.claim([Request("b", seq(0, 11))])
    assert cache.grow(one) is not None
    cache.launch()
    (two,) = cache.admit(claims).sequences
    check(cache)
    assert edges(two) == (0, 11, 11, 12) and two.counts().reused_pending == 2
    assert [back.holder for back in cache.fail(first)] == [one, two]


def test_a_claim_in_a_window_rests_on_chunks_that_land_one_by_one(store: StoreName) -> None:
    cache = hybrid(store, (LayerGroup("window", window=4),), (24,), share_pending=True)
    one, first = flying(cache, length=20, max_chunk=8)
    cache.add_sequence_batch([], max_chunk=8, continuing=[one])
    second = cache.launch()
    claims = cache.claim([Request("b", seq(0, 20))])
    cache.commit(first)
    (two,) = cache.admit(claims).sequences
    check(cache)
    assert (two.start, two.computed, two.ran) == (16, 8, 20) and two.counts().reused_pending > 0
    cache.commit(second)
    check(cache)
    assert two.computed == 16


def test_the_second_page_of_a_block_is_stored_when_the_first_is_lost(store: StoreName) -> None:
    """Its owner landed second and has ended; who shares it was seated after that, and stores it at the end."""
    cache = sharing(store)
    batch = [*start(cache, Request("x", seq(0, 9))), *start(cache, Request("a", seq(0, 13)))]
    steps = [cache.launch([batch[0]]), cache.launch([batch[1]])]
    claims = cache.claim([Request("b", seq(0, 13))])
    for step in steps:
        cache.commit(step)
    (two,) = cache.admit(claims).sequences
    lost = [int(slot) for slot in batch[0].slots()[:2]]
    cache.release(batch)
    cache.lose(0, lost)
    check(cache)
    assert found(cache, seq(0, 13)) == 0
    cache.release(two)
    check(cache)
    assert found(cache, seq(0, 13)) == 13


def test_a_sharer_of_a_failed_step_ends_while_an_older_step_is_open(store: StoreName) -> None:
    cache = sharing(store)
    older = cache.launch()
    one, failing = flying(cache)
    two = sharer(cache)
    cache.release([back.holder for back in cache.fail(failing) if isinstance(back.holder, Sequence) and not back.lost])
    check(cache)
    assert not one.live and not two.live and cache.num_free() == 32
    cache.commit(older)
