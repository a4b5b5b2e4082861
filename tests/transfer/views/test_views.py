"""One suite for every cache behind the door of transfer."""

from __future__ import annotations

from typing import Any

import pytest

from quire import InputError, Request, Span
from quire.core.records.errors import QuireError
from quire.transfer.geometry.slices import spans_of

from ..sides import ListSide, QuireSide, Side, tokens

PROMPT = tokens(range(22))  # 6 blocks of 4; the window of 6 reads blocks 4 and 5


class ViewSuite:
    """The contract of CacheView."""

    def make(self) -> Side:
        raise NotImplementedError

    @pytest.fixture
    def side(self) -> Side:
        return self.make()

    def test_an_offer_names_every_block_that_may_be_read_and_holds_it(self, side: Side) -> None:
        side.compute(Request("a", PROMPT))
        before = side.taken()
        offer = side.view.offer("a", Span(0, 22))
        assert offer is not None
        assert [spans_of(places) for places in offer.places] == [(Span(0, 6),), (Span(4, 6),), (Span(5, 6),)]
        assert (offer.length, offer.position) == (22, 22)
        side.end("a")
        assert [taken >= pages for taken, pages in zip(side.taken(), (6, 2, 1), strict=True)] == [True] * 3
        side.view.release(offer)
        assert side.taken() == [0, 0, 0] and before != [0, 0, 0]

    def test_part_of_a_prompt_is_offered_without_what_forgets(self, side: Side) -> None:
        side.compute(Request("a", PROMPT))
        offer = side.view.offer("a", Span(0, 8))
        assert offer is not None
        assert [spans_of(places) for places in offer.places] == [(Span(0, 2),), (), ()]
        side.view.release(offer)
        side.end("a")
        assert side.taken() == [0, 0, 0]

    def test_an_offer_of_nobody_is_an_error(self, side: Side) -> None:
        with pytest.raises(QuireError):
            side.view.offer("nobody", Span(0, 4))

    def test_an_empty_cache_wants_all_that_is_needed(self, side: Side) -> None:
        landing = side.view.want(Request("a", PROMPT))
        assert landing is not None
        assert landing.needs == landing.wants == ((Span(0, 6),), (Span(4, 6),), (Span(5, 6),))
        assert [spans_of(places) for places in landing.places] == list(landing.wants)
        assert (landing.length, landing.start, landing.held) == (22, 0, ((), (), ()))
        side.view.release(landing)
        assert side.taken() == [0, 0, 0]

    def test_a_known_prefix_is_held_and_not_wanted(self, side: Side) -> None:
        side.compute(Request("turn", PROMPT[:16]))
        side.end("turn")
        landing = side.view.want(Request("a", PROMPT))
        assert landing is not None
        assert landing.held[0] == (Span(0, 4),) and landing.wants[0] == (Span(4, 6),)
        assert landing.wants[1:] == ((Span(4, 6),), (Span(5, 6),))
        taken = side.taken()
        assert taken[0] == 6
        side.view.release(landing)
        assert side.taken() == [0, 0, 0]

    def test_another_scope_shares_nothing(self, side: Side) -> None:
        from quire import Scope

        side.compute(Request("turn", PROMPT[:16]))
        side.end("turn")
        one, other = (side.view.want(Request(name, PROMPT, scope=Scope(salt=name))) for name in "xy")
        assert one is not None and other is not None
        assert one.held[0] == other.held[0] == ()
        assert one.content != other.content
        side.view.release(one)
        side.view.release(other)

    def test_nothing_is_found_before_the_commit_and_all_after_it(self, side: Side) -> None:
        landing = side.view.want(Request("a", PROMPT))
        assert landing is not None
        early = side.view.want(Request("early", PROMPT))
        assert early is not None and early.held == ((), (), ())
        side.view.release(early)
        side.view.commit(landing)
        late = side.view.want(Request("late", PROMPT))
        assert late is not None and late.held[0] == (Span(0, 5),)
        side.view.release(late)
        side.end("a")
        assert side.taken() == [0, 0, 0]

    def test_released_without_commit_nothing_is_found(self, side: Side) -> None:
        landing = side.view.want(Request("a", PROMPT))
        assert landing is not None
        side.view.release(landing)
        again = side.view.want(Request("b", PROMPT))
        assert again is not None and again.held == ((), (), ())
        side.view.release(again)

    def test_wanted_pages_are_private(self, side: Side) -> None:
        side.compute(Request("turn", PROMPT[:19]))  # its last block is partial
        first, second = (side.view.want(Request(name, PROMPT)) for name in "ab")
        assert first is not None and second is not None
        for group in range(3):
            slots = [set(landing.places[group].tolist()) - {-1} for landing in (first, second)]
            assert not slots[0] & slots[1]
        side.view.release(first)
        side.view.release(second)
        side.end("turn")
        assert side.taken() == [0, 0, 0]

    def test_a_prompt_that_never_fits_is_an_error(self, side: Side) -> None:
        with pytest.raises(InputError, match="enlarge the cache"):
            side.view.want(Request("long", tokens(range(25 * 4))))
        assert side.taken() == [0, 0, 0]

    def test_no_room_is_no_landing_and_changes_nothing(self, side: Side) -> None:
        side.compute(Request("turn", PROMPT[:16]))
        side.end("turn")
        kept: list[Any] = []
        while len(kept) < 20:
            landing = side.view.want(Request(len(kept), tokens(range(100 + len(kept), 116), range(16))))
            if landing is None:
                break
            kept.append(landing)
        taken = side.taken()
        assert side.view.want(Request("late", tokens(range(50, 80)))) is None
        assert side.taken() == taken
        for landing in kept:
            side.view.release(landing)
        assert side.taken() == [0, 0, 0]


class TestQuire(ViewSuite):
    def make(self) -> Side:
        return QuireSide()


class TestTwin(ViewSuite):
    def make(self) -> Side:
        return QuireSide(store="twin")


class TestLists(ViewSuite):
    def make(self) -> Side:
        return ListSide()
