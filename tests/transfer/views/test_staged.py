"""Pages on a device travel through staging: the suite of all views, whole transfers, and what is left of failures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire import Encoder, InputError, LayerGroup, Request, Span, StateError
from quire.tiers import ArenaTier, Tier, TierError
from quire.transfer.geometry.ranks import Source
from quire.transfer.geometry.slices import spans_of
from quire.transfer.session.receiving_session import Receiving
from quire.transfer.views.staged_view import StagedView
from quire.transfer.views.view import Landing, Offer
from quire.transfer.wire.verdict import Key, Outcome
from tests.effort import cases

from ...tiers.stand_ins import FlakyTier
from ..rig import FIRST, Rig
from ..sides import GROUPS, SLOTS, ListSide, QuireSide, Side, StagedSide, expected, fill, landed_right, tokens
from .test_views import PROMPT, ViewSuite

SIZES = [group.page_bytes for group in GROUPS]
STAGING = (12, 4, 2)  # two prompts of the suite
ONE = (6, 2, 1)  # just one of them
KINDS = pytest.mark.parametrize("kind", [QuireSide, ListSide])
DEVICES = pytest.mark.parametrize("where", ["arena", "cpu", "cuda"])


def device_at(where: str) -> Tier:
    if where == "arena":
        return ArenaTier("device", SLOTS, SIZES)
    torch = pytest.importorskip("torch")
    if where == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    from quire.tiers.torch_tier import TorchTier

    shapes = zip(SLOTS, SIZES, strict=True)
    return TorchTier("device", [torch.zeros(shape, dtype=torch.uint8, device=where) for shape in shapes])


def staged(kind: Any = QuireSide, where: str = "arena", staging: tuple[int, ...] = STAGING) -> StagedSide:
    return StagedSide(kind(), device_at(where), staging)


def offered(side: StagedSide, id: Any, span: Span | None = None) -> Offer:
    offer = side.view.offer(id, Span(0, len(PROMPT)) if span is None else span)
    assert offer is not None
    return offer


def wanted(side: StagedSide, id: Any, prompt: Any = PROMPT) -> Landing:
    landing = side.view.want(Request(id, prompt))
    assert landing is not None
    return landing


def on_device(side: StagedSide) -> list[np.ndarray[Any, Any]]:
    return [np.stack([side.inner.pages[g][slot] for slot in range(count)]) for g, count in enumerate(SLOTS)]


def poison(side: StagedSide) -> None:
    for group, count in enumerate(SLOTS):
        for slot in range(count):
            side.inner.pages[group][slot] = np.full(SIZES[group], 0xEE, np.uint8)
    scribble(side)


def scribble(side: StagedSide) -> None:
    for pages in side.pages:
        pages[:] = 0xDD


def holds_right(side: StagedSide, offer: Offer, request: Request) -> bool:
    """What a link would read for each block of an offer."""
    return all(
        np.array_equal(side.pages[group][slot], expected(request, group, ordinal, SIZES[group]))
        for group, places in enumerate(offer.places)
        for ordinal, slot in enumerate(places.tolist())
        if slot >= 0
    )


class StagedSuite(ViewSuite):
    kind: Any = QuireSide
    where = "arena"

    def make(self) -> Side:
        return staged(self.kind, self.where)


class TestArena(StagedSuite):
    pass


class TestLists(StagedSuite):
    kind = ListSide


class TestTorch(StagedSuite):
    where = "cpu"


class TestCuda(StagedSuite):
    where = "cuda"


# -- one view --------------------------------------------------------------------------------------------------------


@DEVICES
@KINDS
def test_an_offer_is_in_staging_and_no_longer_read_from_the_device(kind: Any, where: str) -> None:
    side, request = staged(kind, where), Request("a", PROMPT)
    side.compute(request)
    offer = offered(side, "a")
    assert [len(places) for places in offer.places] == [6, 6, 6] and side.staged_slots() == [6, 2, 1]
    assert isinstance(offer.ref, Offer) and (offer.length, offer.position) == (offer.ref.length, offer.ref.position)
    for group, count in enumerate(SLOTS):
        for slot in range(count):
            side.inner.pages[group][slot] = np.full(SIZES[group], 0xEE, np.uint8)
    assert holds_right(side, offer, request)
    side.view.release(offer)
    assert side.staged_slots() == [0, 0, 0]


@pytest.mark.parametrize("at", [0, 8])
@KINDS
def test_an_empty_offer_takes_no_slot_even_when_there_is_none(kind: Any, at: int) -> None:
    side = staged(kind, staging=ONE)
    side.compute(Request("a", PROMPT))
    side.compute(Request("b", tokens(range(50, 72))))
    whole, empty = offered(side, "b"), offered(side, "a", Span(at, at))
    assert [spans_of(places) for places in empty.places] == [(), (), ()] and empty.length == 22
    assert side.view.offer("a", Span(0, 8)) is None
    side.view.release(empty)
    side.view.release(whole)
    assert side.staged_slots() == [0, 0, 0]


def test_an_encoder_is_staged_with_the_last_piece() -> None:
    """Its pages are held from the start, and go with the last piece only."""
    groups = (LayerGroup("full", page_bytes=64), LayerGroup("cross", page_bytes=48, cross=True))
    side = StagedSide(QuireSide(groups, (24, 24)), ArenaTier("device", (24, 24), (64, 48)), (6, 3))
    side.compute(Request("a", PROMPT, encoder=Encoder(10, tokens=tokens(range(100, 110)))))
    offers = [offered(side, "a", Span(0, end)) for end in (0, 8, 22)]
    staged = [[spans_of(places) for places in offer.places] for offer in offers]
    assert staged == [[(), ()], [(Span(0, 2),), ()], [(Span(0, 6),), (Span(0, 3),)]]
    inner: Any = offers[-1].ref
    assert all(
        np.array_equal(side.pages[1][here], side.inner.pages[1][there])
        for here, there in zip(offers[-1].places[1], inner.places[1], strict=True)
    )
    for offer in offers:
        side.view.release(offer)
    assert side.staged_slots() == [0, 0]


def test_a_peer_that_knows_one_start_is_asked_for_more() -> None:
    """The window's pages are there, the first ones of full attention are not."""
    side = StagedSide(ListSide(slots=(8, 24, 8)), ArenaTier("device", (8, 24, 8), SIZES), STAGING)
    for request in (Request("a", PROMPT[:20]), Request("b", tokens(range(50, 64)))):
        side.compute(request)
        side.end(request.id)
    landing = wanted(side, "c", PROMPT[:20])
    assert landing.held[0] == () != landing.held[1]
    side.view.release(landing)
    other = side.view.want(Request("d", PROMPT[:20]), one_start=True)
    assert other is not None and other.held == ((), (), ())
    assert [spans_of(places) for places in other.places] == list(other.needs)
    side.view.release(other)
    assert side.taken() == [0, 0, 0]


@KINDS
def test_pieces_and_the_whole_prompt_share_what_cannot_change(kind: Any) -> None:
    device = FlakyTier("device", SLOTS, SIZES)
    side, request = StagedSide(kind(), device, ONE), Request("a", PROMPT)
    side.compute(request)
    device.calls.clear()
    early, more = offered(side, "a", Span(0, 8)), offered(side, "a", Span(8, 16))
    assert side.staged_slots() == [4, 0, 0]
    whole = offered(side, "a")
    assert side.staged_slots() == list(ONE)
    assert device.calls == [("read", 2), ("read", 2), ("read", 2), ("read", 2), ("read", 1)]
    side.view.release(early)
    side.view.release(more)
    assert side.staged_slots() == list(ONE) and holds_right(side, whole, request)
    side.view.release(whole)
    assert side.staged_slots() == [0, 0, 0]


@KINDS
def test_what_may_change_is_read_again(kind: Any) -> None:
    """The end of a block behind the prompt is written by decoding, a state by every step."""
    side, request = staged(kind), Request("a", PROMPT)
    side.compute(request)
    first = offered(side, "a")
    assert isinstance(first.ref, Offer)
    for group, ordinal in ((0, 5), (2, 5)):
        side.inner.pages[group][first.ref.places[group][ordinal]] = np.full(SIZES[group], 9, np.uint8)
    second = offered(side, "a")
    assert first.places[0][:5].tolist() == second.places[0][:5].tolist()
    assert holds_right(side, first, request)
    assert all((side.pages[group][second.places[group][5]] == 9).all() for group in (0, 2))
    side.view.release(first)
    side.view.release(second)
    side.end("a")
    assert side.taken() == [0, 0, 0]


@DEVICES
@KINDS
def test_the_device_is_written_by_the_commit_and_by_nothing_else(kind: Any, where: str) -> None:
    side, request = staged(kind, where), Request("a", PROMPT)
    poison(side)
    before = on_device(side)
    landing = wanted(side, "a")
    assert isinstance(landing.ref, Landing)
    fill(side.pages, [places.tolist() for places in landing.places], request, GROUPS)
    dropped = wanted(side, "b")
    side.view.release(dropped)
    assert all(map(np.array_equal, on_device(side), before))
    side.view.commit(landing)
    scribble(side)
    assert landed_right(side.inner, landing.ref, request) and side.staged_slots() == [0, 0, 0]
    for group, (old, new) in enumerate(zip(before, on_device(side), strict=True)):
        others = np.setdiff1d(np.arange(SLOTS[group]), landing.ref.places[group])
        assert np.array_equal(old[others], new[others])


def test_neighbours_stay_neighbours() -> None:
    side = StagedSide(QuireSide(GROUPS[:1], (24,)), ArenaTier("device", (24,), SIZES[:1]), (12,))
    one, two, three = (wanted(side, n, tokens(range(n * 100, n * 100 + 4 * n))) for n in (2, 3, 1))
    assert [held.places[0].tolist() for held in (one, two, three)] == [[0, 1], [2, 3, 4], [5]]
    side.view.release(one)
    behind = wanted(side, "behind", tokens(range(500, 512)))
    assert behind.places[0].tolist() == [6, 7, 8]  # not 0, 1, 6
    low = wanted(side, "low", tokens(range(600, 608)))
    assert low.places[0].tolist() == [0, 1]
    side.view.release(two)
    apart = wanted(side, "apart", tokens(range(700, 720)))
    assert apart.places[0].tolist() == [2, 3, 4, 9, 10]


# -- too little room, and failures -----------------------------------------------------------------------------------


@KINDS
def test_without_staging_it_is_not_now_and_nothing_is_held(kind: Any) -> None:
    side = staged(kind, staging=ONE)
    side.compute(Request("a", PROMPT))
    side.compute(Request("b", tokens(range(50, 72))))
    live, first = side.inner.taken(), offered(side, "a")
    held = side.inner.taken()
    assert side.view.offer("b", Span(0, 22)) is None
    assert side.view.want(Request("c", tokens(range(70, 92)))) is None
    assert side.inner.taken() == held and side.staged_slots() == list(ONE)
    side.view.release(first)
    assert side.inner.taken() == live
    landing = wanted(side, "c", tokens(range(70, 92)))
    assert side.view.offer("b", Span(0, 22)) is None and side.staged_slots() == list(ONE)
    side.view.release(landing)
    assert side.inner.taken() == live and side.staged_slots() == [0, 0, 0]


@pytest.mark.parametrize("staging, group", [((5, 2, 1), 0), ((6, 1, 1), 1), ((6, 2, 0), 2)])
@KINDS
def test_what_never_fits_is_an_error_and_nothing_is_held(kind: Any, staging: tuple[int, ...], group: int) -> None:
    side = staged(kind, staging=staging)
    with pytest.raises(InputError, match=f"staging slots of group {group}, there are .*enlarge the staging memory"):
        side.view.want(Request("a", PROMPT))
    assert side.taken() == [0, 0, 0]
    side.compute(Request("a", PROMPT))
    live = side.inner.taken()
    with pytest.raises(InputError, match="enlarge the staging memory"):
        side.view.offer("a", Span(0, 22))
    assert side.inner.taken() == live and side.staged_slots() == [0, 0, 0]


def test_only_what_is_wanted_must_fit() -> None:
    side = staged(staging=(2, 2, 1))
    side.compute(Request("turn", PROMPT[:16]))
    side.end("turn")
    landing = wanted(side, "a")
    assert landing.held[0] == (Span(0, 4),) and side.staged_slots() == [2, 2, 1]
    side.view.release(landing)
    assert side.taken() == [0, 0, 0]


def test_pages_of_another_size_are_refused() -> None:
    inner, right = QuireSide(), ArenaTier("device", SLOTS, SIZES)
    for sizes in ([64, 32], [64, 32, 8]):
        wrong = ArenaTier("wrong", STAGING[: len(sizes)], sizes)
        with pytest.raises(InputError, match=r"tier .wrong..*same layer groups"):
            StagedView(inner.view, right, wrong)
        with pytest.raises(InputError, match=r"tier .wrong..*same layer groups"):
            StagedView(inner.view, wrong, right)


@pytest.mark.parametrize("group", [0, 1, 2])
@KINDS
def test_a_failed_read_leaves_nothing_behind(kind: Any, group: int) -> None:
    device = FlakyTier("device", SLOTS, SIZES)
    side, request = StagedSide(kind(), device, STAGING), Request("a", PROMPT)
    side.compute(request)
    live, early = side.inner.taken(), offered(side, "a", Span(0, 8))
    held, slots = side.inner.taken(), side.staged_slots()
    inner = side.inner.view.offer("a", Span(0, 22))
    device.lost = {(group, int(inner.places[group][5]))}
    side.inner.view.release(inner)
    with pytest.raises(TierError, match="bad sector"):
        side.view.offer("a", Span(0, 22))
    assert side.inner.taken() == held and side.staged_slots() == slots == [2, 0, 0]
    device.lost.clear()
    again = offered(side, "a")
    assert holds_right(side, again, request)
    side.view.release(early)
    side.view.release(again)
    assert side.inner.taken() == live and side.staged_slots() == [0, 0, 0]


@pytest.mark.parametrize("group", [0, 1, 2])
@KINDS
def test_a_failed_write_makes_nothing_findable_and_leaves_nothing_behind(kind: Any, group: int) -> None:
    device = FlakyTier("device", SLOTS, SIZES)
    side = StagedSide(kind(), device, STAGING)
    landing = wanted(side, "a")
    assert isinstance(landing.ref, Landing)
    device.full = {(group, int(landing.ref.places[group][5]))}
    with pytest.raises(TierError, match="no space left"):
        side.view.commit(landing)
    assert side.taken() == [0, 0, 0]
    with pytest.raises(StateError):
        side.view.release(landing)
    again = wanted(side, "b")
    assert again.held == ((), (), ())
    side.view.release(again)


@KINDS
def test_everything_is_given_back_once(kind: Any) -> None:
    side = staged(kind, staging=SLOTS)
    side.compute(Request("a", PROMPT))
    offer, landing, other = offered(side, "a"), wanted(side, "b"), wanted(side, "c", tokens(range(70, 74)))
    side.view.release(offer)
    side.view.commit(landing)
    side.view.release(other)
    for held in (offer, landing, other):
        with pytest.raises(StateError, match="commit or release them once"):
            side.view.release(held)
    for gone in (landing, other):
        with pytest.raises(StateError, match="commit or release them once"):
            side.view.commit(gone)
    assert side.staged_slots() == [0, 0, 0]


# -- whole transfers -------------------------------------------------------------------------------------------------


def ask(rig: Rig, request: Request, key: Key) -> Receiving:
    """Until the peers know each other there is no session."""
    for _ in range(8):
        session = rig.d.receive(key, request, Source(("p",)))
        if session is not None:
            return session
        rig.step()
    raise AssertionError("it was never asked for")


@DEVICES
@KINDS
@pytest.mark.parametrize("pieces", [(), (8, 17)])
def test_a_transfer_staged_on_both_sides(kind: Any, where: str, pieces: tuple[int, ...]) -> None:
    sender, receiver = staged(kind, where, ONE), staged(kind, where, ONE)
    rig, request, key = Rig(sender, receiver), Request("r", PROMPT), Key("r")
    rig.ends["d"] = rig.end("d", alone=False)
    poison(receiver)
    receiver.compute(Request("turn", np.append(PROMPT[:8], PROMPT[:5])))  # two blocks in common, and no state there
    receiver.end("turn")
    sender.compute(request)
    rig.p.send(key, "r")
    for done in pieces:
        assert rig.p.put(key, done, last=False)
    assert rig.p.put(key, 22, last=True, aux=FIRST)
    for group, places in enumerate(sender.inner.pages):  # it has left the device
        for slot in range(SLOTS[group]):
            places[slot] = np.zeros(SIZES[group], np.uint8)
    before = on_device(receiver)
    session = ask(rig, request, key)
    landing = rig.d.landing(session)
    assert landing is not None and landing.held[0] == (Span(0, 2),)
    assert session in rig.step() or session in rig.ended
    assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED, session.verdict
    assert all(map(np.array_equal, on_device(receiver), before))
    rig.d.conclude(session)
    scribble(receiver)
    inner: Any = landing.ref
    assert landed_right(receiver.inner, inner, request)
    for group, (old, new) in enumerate(zip(before, on_device(receiver), strict=True)):
        others = np.setdiff1d(np.arange(SLOTS[group]), inner.places[group])
        assert np.array_equal(old[others], new[others])
    rig.step()
    for side in (sender, receiver):
        assert side.staged_slots() == [0, 0, 0]
        side.end("r")
        assert side.taken() == [0, 0, 0]
    assert rig.empty()


def test_a_second_prompt_waits_for_staging_and_then_goes() -> None:
    sender, receiver = staged(staging=ONE), staged(staging=ONE)
    rig = Rig(sender, receiver)
    requests = [Request("a", PROMPT), Request("b", tokens(range(50, 72)))]
    for request in requests:
        sender.compute(request)
        rig.p.send(Key(str(request.id)), request.id)
    assert rig.p.put(Key("a"), 22, last=True, aux=FIRST)
    assert not rig.p.put(Key("b"), 22, last=True, aux=FIRST)
    first = ask(rig, requests[0], Key("a"))
    assert rig.d.receive(Key("b"), requests[1], Source(("p",))) is None
    rig.step()
    assert rig.p.put(Key("b"), 22, last=True, aux=FIRST)
    second = ask(rig, requests[1], Key("b"))
    landing = rig.d.landing(second)
    rig.step()
    for session in (first, second):
        assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED, session.verdict
    assert landing is not None and landed_right(receiver.inner, landing.ref, requests[1])  # type: ignore[arg-type]
    assert sender.staged_slots() == receiver.staged_slots() == [0, 0, 0] and rig.empty()


# -- random histories ------------------------------------------------------------------------------------------------


class History:
    """Offers, landings, commits and releases in any order; every staging slot has exactly the holders it should."""

    def __init__(self, kind: Any, staging: tuple[int, ...]) -> None:
        self.side = StagedSide(kind(GROUPS, (90, 90, 30)), ArenaTier("device", (90, 90, 30), SIZES), staging)
        self.staging = staging
        self.live: dict[int, Request] = {}
        self.offers: list[tuple[Offer, Request]] = []
        self.landings: list[tuple[Landing, Request]] = []
        self.count = 0

    def request(self, data: Any) -> Request:
        self.count += 1
        head = data.draw(st.integers(0, 24))
        return Request(self.count, tokens(range(head), data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=9))))

    def compute(self, data: Any) -> None:
        if len(self.live) < 3:
            request = self.request(data)
            self.side.compute(request)
            self.live[self.count] = request

    def offer(self, data: Any) -> None:
        if not self.live or len(self.offers) > 5:
            return
        request = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        blocks = len(request.tokens) // 4
        end = data.draw(st.sampled_from([*range(0, 4 * blocks + 1, 4), len(request.tokens)]))
        start = 0 if end == len(request.tokens) else data.draw(st.sampled_from(range(0, end + 1, 4)))
        try:
            offer = self.side.view.offer(request.id, Span(start, end))
        except InputError:
            return
        if offer is not None:
            self.offers.append((offer, request))

    def want(self, data: Any) -> None:
        if len(self.landings) + len(self.live) > 5:
            return
        request = self.request(data)
        try:
            landing = self.side.view.want(request)
        except InputError:
            return
        if landing is not None:
            self.landings.append((landing, request))
            return
        inner = self.side.inner.view.want(request)
        assert inner is not None
        free = np.array(self.staging) - self.side.staged_slots()
        assert (np.array([np.count_nonzero(places >= 0) for places in inner.places]) > free).any()
        self.side.inner.view.release(inner)

    def commit(self, data: Any) -> None:
        if not self.landings:
            return
        landing, request = self.landings.pop(data.draw(st.integers(0, len(self.landings) - 1)))
        fill(self.side.pages, [places.tolist() for places in landing.places], request, GROUPS)
        self.side.view.commit(landing)
        assert landed_right(self.side.inner, landing.ref, request)  # type: ignore[arg-type]
        self.live[request.id] = request  # type: ignore[index]

    def release(self, data: Any) -> None:
        held: list[Any] = data.draw(st.sampled_from((self.offers, self.landings)))
        if held:
            self.side.view.release(held.pop(data.draw(st.integers(0, len(held) - 1)))[0])

    def end(self, data: Any) -> None:
        if self.live:
            id = data.draw(st.sampled_from(sorted(self.live)))
            del self.live[id]
            self.side.end(id)

    def check(self) -> None:
        for group in range(3):
            offered = {slot for held, _ in self.offers for slot in held.places[group].tolist() if slot >= 0}
            landing = [slot for held, _ in self.landings for slot in held.places[group].tolist() if slot >= 0]
            assert len(set(landing)) == len(landing) and not offered & set(landing)
            assert self.side.staged.num_used(group) == len(offered) + len(landing)
        assert all(holds_right(self.side, offer, request) for offer, request in self.offers)


@KINDS
@pytest.mark.long
@settings(max_examples=cases(35, 100), deadline=None)
@given(data=st.data())
def test_every_staging_slot_is_accounted_for(kind: Any, data: Any) -> None:
    history = History(kind, data.draw(st.tuples(st.integers(3, 20), st.integers(1, 8), st.integers(0, 4))))
    names = ("compute", "offer", "offer", "want", "commit", "release", "end")
    for name in data.draw(st.lists(st.sampled_from(names), max_size=25)):
        getattr(history, name)(data)
        history.check()
    for offer, _ in history.offers:
        history.side.view.release(offer)
    for landing, _ in history.landings:
        history.side.view.release(landing)
    for id in list(history.live):
        history.side.end(id)
    assert history.side.staged_slots() == [0, 0, 0] and history.side.inner.taken() == [0, 0, 0]


def test_pages_that_cannot_be_put_in_place_fail_their_session_alone() -> None:
    """Two prompts arrive in one step and the device refuses a page of the first: it has failed, the second is here."""
    device = FlakyTier("device", SLOTS, SIZES)
    receiver = StagedSide(QuireSide(), device, SLOTS)
    rig = Rig(staged(staging=SLOTS), receiver)
    requests = [Request("a", PROMPT), Request("b", tokens(range(50, 72)))]
    for request in requests:
        rig.serve(request, Key(str(request.id)))
    sessions = [ask(rig, request, Key(str(request.id))) for request in requests]
    landing = rig.d.landing(sessions[0])
    assert landing is not None and isinstance(landing.ref, Landing)
    device.full = {(0, int(landing.ref.places[0][5]))}
    ended = rig.step()
    outcomes = [session.verdict.outcome for session in sessions if session.verdict is not None]
    assert outcomes == [Outcome.FAILED, Outcome.DELIVERED] and all(session in ended for session in sessions)
    first = sessions[0].verdict
    assert first is not None and "could not be put in place" in first.reason
    receiver.end("b")
    assert rig.empty() and receiver.staged_slots() == [0, 0, 0] and receiver.inner.taken() == [0, 0, 0]
