"""Peers that are wrong, strange or not wanted: they fail alone, they learn why, and nobody else's session changes."""

from __future__ import annotations

import msgspec
import pytest

from quire import InputError, LayerGroup, Request, StateError
from quire.transfer import Key, Outcome, Source, check_key
from quire.transfer.geometry.ranks import Grid
from quire.transfer.links.link import Received
from quire.transfer.links.local import LocalLink
from quire.transfer.wire import messages as wire
from quire.transfer.wire.layout import from_hello, hello, layout_of

from ..rig import FIRST, Rig
from ..sides import QuireSide, tokens

KEY = Key("r", 1)
ASKED = Request("r", tokens(range(22)))


def stranger(rig: Rig) -> LocalLink:
    """A peer that fits, and has asked for nothing."""
    link = rig.hub.link("x", rig.sides["d"].pages)
    link.send("p", wire.encode(hello(layout_of(rig.p._registry.shape, "x"))))
    return link


def said(link: LocalLink) -> list[wire.AnyMessage]:
    return [wire.decode(news.data) for news in link.poll() if isinstance(news, Received)]


def ask(content: bytes, length: int, *, state: bool = False) -> bytes:
    wants = tuple(wire.GroupWant(6, (), state and nth == 2) for nth in range(3))
    return wire.encode(wire.Ask(*KEY, 0, 1, length, content, wants, 0, 5.0))


def test_ranks_of_a_peer_are_bounded() -> None:
    rig = Rig()
    good = hello(layout_of(rig.p._registry.shape, "x"))
    for ranks in ((2**60, (1,), 1, 1), (1, (4097,), 1, 1), (1, (1,), 0, 1), (1, (1,), 1, 4097)):
        with pytest.raises(InputError, match="a message from a peer"):
            wire.decode(wire.encode(msgspec.structs.replace(good, ranks=ranks)))
    many = msgspec.structs.replace(good, ranks=(4096, (1,), 1, 32))
    with pytest.raises(InputError, match="there are 131072"):
        from_hello(many)
    assert from_hello(msgspec.structs.replace(good, ranks=(4096, (1,), 1, 16))).grid.num_ranks == 65_536
    link = rig.hub.link("x", [])
    link.send("p", wire.encode(many))
    rig.p.step()
    (word,) = said(link)
    assert isinstance(word, wire.Refuse) and "there are 131072" in word.reason


@pytest.mark.parametrize("length", [22, 21])
def test_another_prompt_fails_its_asker_alone(length: int) -> None:
    rig = Rig()
    link = stranger(rig)
    rig.serve(ASKED, KEY)
    content = rig.p._registry.dispatches[KEY].offers[-1].content
    link.send("p", ask(b"other" if length == 22 else content, length))
    rig.p.step()
    _, word = said(link)
    assert isinstance(word, wire.DeliveryReport) and not word.ok and "prompt is another one" in word.reason
    session = rig.ask(ASKED, KEY)
    rig.step()
    assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED and rig.empty()


@pytest.mark.parametrize("early", [True, False])
def test_a_cancel_of_a_stranger_cancels_nothing(early: bool) -> None:
    rig = Rig()
    link = stranger(rig)
    for name in "pd" if early else "":
        link.send(name, wire.encode(wire.Cancel(*KEY, "no")))
    rig.step()
    rig.serve(ASKED, KEY)
    session = rig.ask(ASKED, KEY)
    link.send("p", wire.encode(wire.Cancel(*KEY, "no")))
    rig.step()
    assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED and rig.empty()
    assert not rig.p._registry.early.cancels and not rig.d._registry.early.cancels


def test_an_ask_that_comes_after_its_cancel_is_cancelled() -> None:
    rig = Rig()
    link = stranger(rig)
    rig.sides["p"].compute(ASKED)
    link.send("p", wire.encode(wire.Cancel(*KEY, "no")))
    link.send("p", ask(b"", 22))
    rig.p.step()
    verdict = rig.p.send(KEY, "r").verdict
    assert verdict is not None and verdict.outcome is Outcome.CANCELLED and verdict.by_peer


def test_writers_that_were_asked_hear_that_another_could_not_be() -> None:
    """One of two is gone before it is asked, and nobody has noticed."""
    rig, grid = Rig(), Grid(tensor=2)
    shape = rig.p._registry.shape
    rig.ends["p"] = rig.end("p", layout=layout_of(shape, "p", grid=grid))
    link = rig.hub.link("gone", rig.sides["p"].pages)
    source = Source(("p", "gone"), grid)
    assert rig.d.receive(KEY, ASKED, source) is None
    link.send("d", wire.encode(hello(layout_of(shape, "gone", grid=grid, rank=1))))
    rig.step()
    del rig.hub.links["gone"]
    session = rig.d.receive(KEY, ASKED, source)
    assert session is not None and session.verdict is not None and list(session.writers) == ["p"]
    rig.p.step()
    early = rig.p._registry.early.cancelled(KEY)
    assert not rig.p._registry.early.asks and early is not None
    assert (early.peer, early.reason) == ("d", "gone could not be asked")


def test_a_peer_that_could_not_be_reached_is_tried_again() -> None:
    """After a second, not before: those who wait for it fail together, and nobody hammers at its door."""
    rig = Rig()
    rig.hub.link("late", [])
    source = Source(("late",))
    assert rig.d.receive(KEY, ASKED, source) is None
    rig.hub.kill("late")
    rig.step()
    for epoch in (2, 3):
        session = rig.d.receive(Key("r", epoch), ASKED, source)
        assert session is not None and session.verdict is not None
    link = rig.hub.link("late", rig.sides["p"].pages)
    rig.step(1)
    assert rig.d.receive(Key("r", 4), ASKED, source) is None
    assert [type(word) for word in said(link)] == [wire.Hello]
    link.send("d", wire.encode(hello(layout_of(rig.p._registry.shape, "late"))))
    rig.step()
    session = rig.d.receive(Key("r", 4), ASKED, source)
    assert session is not None and session.verdict is None


def test_one_wrong_ask_fails_alone() -> None:
    """A state after another token, a list that is too long: that asker learns it, the others are served."""
    rig = Rig()
    link = stranger(rig)
    rig.serve(ASKED, KEY)
    content = rig.p._registry.dispatches[KEY].offers[-1].content
    state = wire.GroupWant(6, ((5, bytes(4)),), True, 21)
    wants = (wire.GroupWant(6, ()), wire.GroupWant(6, ()), state)
    link.send("p", wire.encode(wire.Ask(*KEY, 0, 1, 22, content, wants, 0, 5.0)))
    rig.p.step()
    _, word = said(link)
    assert isinstance(word, wire.DeliveryReport) and not word.ok and "wanted after 21 tokens of 22" in word.reason
    session = rig.ask(ASKED, KEY)
    rig.step()
    assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED and rig.empty()


def test_who_asks_for_what_is_never_sent_learns_it_at_once() -> None:
    rig = Rig()
    rig.p.refuse(Key("nobody", 7), "no such thing")
    first = rig.ask(ASKED, KEY)
    rig.step()
    assert first.verdict is None
    rig.p.refuse(KEY, "the prompt is too long")
    rig.step()
    assert first.verdict is not None and "the prompt is too long" in first.verdict.reason
    rig.p.refuse(Key("r", 2), "not here")
    for seconds, told in ((100, True), (21, False)):
        key = Key("r", 2) if told else Key("nobody", 7)
        rig.clock.now += seconds
        rig.p.step()
        late = rig.ask(ASKED, key)
        rig.step()
        assert (late.verdict is not None and "not here" in late.verdict.reason) == told
    assert not rig.p._registry.early.refusal(KEY) and not rig.p.knows(KEY)


def test_a_session_that_is_open_can_be_refused() -> None:
    rig = Rig()
    rig.sides["p"].compute(ASKED)
    rig.p.send(KEY, "r")
    session = rig.ask(ASKED, KEY)
    rig.step()
    rig.p.refuse(KEY, "aborted")
    rig.step()
    assert session.verdict is not None and "aborted" in session.verdict.reason and rig.empty()


def test_an_endpoint_knows_what_is_open_or_over() -> None:
    rig = Rig()
    assert not rig.p.knows(KEY) and not rig.d.knows(KEY)
    rig.serve(ASKED, KEY)
    rig.ask(ASKED, KEY)
    assert rig.p.knows(KEY) and rig.d.knows(KEY)
    rig.step()
    assert rig.empty() and rig.p.knows(KEY) and rig.d.knows(KEY) and not rig.p.knows(Key("r", 2))
    check_key(KEY)


@pytest.mark.parametrize(("grid", "rank"), [(Grid(stages=(1, 1)), 0), (Grid(groups=2), 1), (Grid(tensor=2), 1)])
def test_a_peer_must_be_the_rank_it_is_asked_as(grid: Grid, rank: int) -> None:
    """Otherwise it sends its part, says that this was all, and half of every page was never written."""
    rig = Rig()
    rig.ends["p"] = rig.end("p", layout=layout_of(rig.p._registry.shape, "p", grid=grid, rank=rank))
    session = rig.ask(ASKED, KEY)
    assert session.verdict is not None and "and was asked as rank 0 of Grid(tensor=1" in session.verdict.reason
    rig.step()
    assert rig.empty() and rig.sides["d"].taken() == [0, 0, 0]


@pytest.mark.parametrize("group", [-1, 2, 5])
def test_a_source_has_the_group_it_is_asked_for(group: int) -> None:
    with pytest.raises(InputError, match="it has 2 groups of ranks"):
        Source(("a", "b"), Grid(groups=2), group)


@pytest.mark.parametrize("pause", [0.1, 1.2, 4.0])
def test_waiting_for_a_hello_is_bounded_however_rarely_one_asks(pause: float) -> None:
    """A peer that is lost again and again, each time before its hello: a failure within twice the patience."""
    rig = Rig()
    session, waited = None, 0.0
    while session is None:
        if "deaf" not in rig.hub.links:
            rig.hub.link("deaf", [])
        session = rig.d.receive(KEY, ASKED, Source(("deaf",)))
        rig.hub.kill("deaf")
        rig.step(pause)
        waited += pause
    assert waited < 21 and session.verdict is not None and session.verdict.outcome is Outcome.FAILED


def test_a_peer_of_another_release_is_told_apart_from_a_silent_one() -> None:
    rig = Rig()
    link = rig.hub.link("new", [])
    assert rig.d.receive(KEY, ASKED, Source(("new",))) is None
    link.send("d", bytes([wire.VERSION + 1]) + b"what nobody here understands")
    rig.step()
    session = rig.d.receive(KEY, ASKED, Source(("new",)))
    assert session is not None and session.verdict is not None
    assert "new does not fit" in session.verdict.reason and "run the same release" in session.verdict.reason


def test_a_peer_that_has_refused_us_and_restarts_is_asked_again() -> None:
    rig = Rig()
    shape = rig.p._registry.shape
    link = rig.hub.link("w", rig.sides["p"].pages)
    assert rig.d.receive(KEY, ASKED, Source(("w",))) is None
    link.send("d", wire.encode(wire.Refuse("model: 'a' here, 'b' there")))
    rig.step()
    session = rig.d.receive(KEY, ASKED, Source(("w",)))
    assert session is not None and session.verdict is not None and "model: 'a'" in session.verdict.reason
    rig.hub.kill("w")
    rig.step()
    rig.step(2)
    link = rig.hub.link("w", rig.sides["p"].pages)
    assert rig.d.receive(Key("r", 2), ASKED, Source(("w",))) is None
    link.send("d", wire.encode(hello(layout_of(shape, "w"))))
    rig.step()
    again = rig.d.receive(Key("r", 2), ASKED, Source(("w",)))
    assert again is not None and again.verdict is None


def test_a_link_that_one_side_has_closed_is_opened_again() -> None:
    rig = Rig()
    rig.serve(ASKED, KEY)
    assert rig.ask(ASKED, KEY).verdict is None
    rig.step()
    rig.links["d"].close("p")
    rig.step(2)
    rig.serve(Request("s", ASKED.tokens), Key("s"))
    session = rig.ask(Request("s", ASKED.tokens), Key("s"))
    rig.step()
    assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED


def test_what_has_failed_is_never_committed() -> None:
    rig = Rig()
    rig.ends["d"] = rig.end("d", alone=False)
    session = rig.ask(ASKED, KEY)
    rig.d.cancel(KEY)
    rig.step()
    rig.d.conclude(session, commit=True)
    landing = rig.sides["d"].view.want(Request("again", ASKED.tokens))
    assert landing is not None and landing.held == ((), (), ())


def test_what_was_cancelled_while_it_was_expected_is_over() -> None:
    rig = Rig()
    rig.d.expect(KEY, Source(("p",)))
    rig.step()
    rig.d.cancel(KEY)
    with pytest.raises(StateError, match="use another epoch"):
        rig.d.receive(KEY, ASKED, Source(("p",)))


def test_a_request_that_never_fits_is_not_expected_any_more() -> None:
    rig = Rig()
    rig.d.expect(KEY, Source(("p",)))
    rig.step()
    with pytest.raises(InputError):
        rig.d.receive(KEY, Request("r", tokens(range(200))), Source(("p",)))
    assert rig.empty()


def test_an_ask_that_waits_too_long_is_answered() -> None:
    rig = Rig()
    link = stranger(rig)
    link.send("p", ask(b"", 22))
    rig.p.step()
    said(link)
    rig.step(121)
    (word,) = said(link)
    assert isinstance(word, wire.DeliveryReport) and not word.ok and word.reason == "nothing was sent for 120 s"


def test_long_reasons_travel() -> None:
    rig = Rig()
    rig.sides["p"].compute(ASKED)
    rig.p.send(KEY, "r")
    session = rig.ask(ASKED, KEY)
    rig.step()
    rig.p.cancel(KEY, "because " * 1000)
    rig.step()
    assert session.verdict is not None and session.verdict.outcome is Outcome.CANCELLED


def test_auxiliary_data_goes_with_the_last_piece() -> None:
    rig = Rig()
    rig.sides["p"].compute(ASKED)
    rig.p.send(KEY, "r")
    with pytest.raises(InputError, match="this piece is not the last"):
        rig.p.put(KEY, 8, last=False, aux=FIRST)


def test_many_layer_groups_and_long_names() -> None:
    groups = tuple(LayerGroup(f"a group with a rather long name, number {nth}", page_bytes=8) for nth in range(64))
    rig = Rig(QuireSide(groups, (4,) * 64), QuireSide(groups, (4,) * 64))
    request = Request("r", tokens(range(8)))
    rig.serve(request, KEY)
    session = rig.ask(request, KEY)
    rig.step()
    assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED
    with pytest.raises(InputError, match="a message from a peer"):
        rig.end("p", layout=layout_of(rig.p._registry.shape, "p", model="m" * 2000))


def test_the_first_request_after_an_outage_waits_for_its_own_hello() -> None:
    """However long ago another one has given up on that peer."""
    rig = Rig()
    rig.hub.link("late", [])
    assert rig.d.receive(KEY, ASKED, Source(("late",))) is None
    rig.hub.kill("late")
    rig.step()
    session = rig.d.receive(KEY, ASKED, Source(("late",)))
    assert session is not None and session.verdict is not None and "it has died" in session.verdict.reason
    link = rig.hub.link("late", rig.sides["p"].pages)
    rig.step(1000)
    assert rig.d.receive(Key("r", 2), ASKED, Source(("late",))) is None
    link.send("d", wire.encode(hello(layout_of(rig.p._registry.shape, "late"))))
    rig.step()
    again = rig.d.receive(Key("r", 2), ASKED, Source(("late",)))
    assert again is not None and again.verdict is None


def test_each_of_two_requests_waits_for_a_hello_as_long() -> None:
    rig = Rig()
    rig.hub.link("deaf", [])
    source, first, second = Source(("deaf",)), Key("r", 1), Key("r", 2)
    assert rig.d.receive(first, ASKED, source) is None
    rig.step(6)
    assert rig.d.receive(second, Request("s", ASKED.tokens), source) is None
    rig.step(6)
    session = rig.d.receive(first, ASKED, source)
    assert session is not None and session.verdict is not None
    assert session.verdict.reason == "deaf has not said hello within 10 s"
    assert rig.d.receive(second, Request("s", ASKED.tokens), source) is None
    rig.d.cancel(second)
    rig.step()
    assert not rig.d._registry.waiting_for_hello


def test_a_peer_that_never_answered_is_greeted_again_by_the_next_request() -> None:
    rig = Rig()
    deaf = rig.hub.link("deaf", [])
    source = Source(("deaf",))
    for nth in range(3):
        assert rig.d.receive(Key("r", nth), ASKED, source) is None
        rig.step(1)
        assert rig.d.receive(Key("r", nth), ASKED, source) is None
        assert [type(message) for message in said(deaf)] == [wire.Hello]
        rig.step(10)
        session = rig.d.receive(Key("r", nth), ASKED, source)
        assert session is not None and session.verdict is not None and "has not said hello" in session.verdict.reason


def second(rig: Rig, grid: Grid | None = None, rank: int = 0) -> LocalLink:
    """Another receiver, with a cache like the first one's."""
    link = rig.hub.link("x", rig.sides["d"].pages)
    link.send("p", wire.encode(hello(layout_of(rig.p._registry.shape, "x", grid=grid, rank=rank))))
    return link


@pytest.mark.parametrize("grid", [None, Grid(tensor=2), Grid(groups=2)])
@pytest.mark.parametrize("early", [False, True])
def test_a_second_receiver_under_one_key_is_refused_and_harms_nobody(early: bool, grid: Grid | None) -> None:
    """Its asks, its cancel and its death are its own: the first one is served."""
    rig = Rig()
    link = second(rig, grid, 0 if grid is None else 1)
    if not early:
        rig.sides["p"].compute(ASKED)
        rig.p.send(KEY, "r")
    session = rig.ask(ASKED, KEY)
    rig.step()
    content = rig.d.landing(session).content  # type: ignore[union-attr]
    link.send("p", ask(content, 22, state=True))
    rig.step()
    if early:
        rig.sides["p"].compute(ASKED)
        rig.p.send(KEY, "r")
        rig.step()
    _, word = said(link)
    assert isinstance(word, wire.DeliveryReport) and word.last and not word.ok and "under this key" in word.reason
    link.send("p", wire.encode(wire.Cancel(*KEY, "no")))
    rig.step()
    rig.hub.kill("x")
    rig.step()
    assert session.verdict is None and list(rig.p._registry.dispatches[KEY].session.receivers) == ["d"]
    assert rig.p.put(KEY, 22, last=True, aux=FIRST)
    rig.step()
    assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED and rig.empty()


def test_who_asks_early_and_cancels_does_not_cancel_for_another_who_waits() -> None:
    rig = Rig()
    link = second(rig)
    link.send("p", ask(b"", 22, state=True))
    session = rig.ask(ASKED, KEY)
    rig.step()
    link.send("p", wire.encode(wire.Cancel(*KEY, "no")))
    rig.step()
    rig.serve(ASKED, KEY)
    rig.step()
    assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED and rig.empty()


def test_ranks_of_one_receiver_are_served_under_one_key() -> None:
    rig = Rig()
    grid = Grid(tensor=2)
    content = b""
    rig.sides["p"].compute(ASKED)
    rig.p.send(KEY, "r")
    links = []
    for rank in range(2):
        links.append(rig.hub.link(f"x{rank}", rig.sides["d"].pages))
        links[-1].send("p", wire.encode(hello(layout_of(rig.p._registry.shape, "x", grid=grid, rank=rank))))
        content = rig.p._registry.dispatches[KEY].offers[0].content
        links[-1].send("p", ask(content, 22, state=True))
    rig.step()
    assert list(rig.p._registry.dispatches[KEY].session.receivers) == ["x0", "x1"]
