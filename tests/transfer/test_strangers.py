"""Peers that are wrong, strange or not wanted: they fail alone, they learn why, and nobody else's session changes."""

from __future__ import annotations

import msgspec
import pytest

from quire import Request
from quire.core.errors import InputError
from quire.transfer import Key, Outcome, Source, check_key
from quire.transfer import messages as wire
from quire.transfer.layout import from_hello, hello, layout_of
from quire.transfer.links.local import LocalLink
from quire.transfer.ranks import Grid

from .rig import Rig
from .views import tokens

KEY = Key("r", 1)
ASKED = Request("r", tokens(range(22)))


def stranger(rig: Rig) -> LocalLink:
    """A peer that fits, and has asked for nothing."""
    link = rig.hub.link("x", rig.sides["d"].pages)
    link.send("p", wire.encode(hello(layout_of(rig.p.books.shape, "x"))))
    return link


def said(link: LocalLink) -> list[wire.Any]:
    return [wire.decode(news.data) for news in link.poll()]


def ask(content: bytes, length: int) -> bytes:
    wishes = tuple(wire.Wish(6, ()) for _ in range(3))
    return wire.encode(wire.Ask(*KEY, 0, 1, length, content, wishes, 0, 5.0))


def test_ranks_of_a_peer_are_bounded() -> None:
    rig = Rig()
    good = hello(layout_of(rig.p.books.shape, "x"))
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
    content = rig.p.books.dispatches[KEY].offers[-1].content
    link.send("p", ask(b"other" if length == 22 else content, length))
    rig.p.step()
    _, word = said(link)
    assert isinstance(word, wire.Result) and not word.ok and "prompt is another one" in word.reason
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
    assert not rig.p.books.waiting.cancels and not rig.d.books.waiting.cancels


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
    rig = Rig()
    link = rig.hub.link("gone", rig.sides["p"].pages)
    source = Source(("p", "gone"), Grid(tensor=2))
    assert rig.d.receive(KEY, ASKED, source) is None
    link.send("d", wire.encode(hello(layout_of(rig.p.books.shape, "gone"))))
    rig.step()
    del rig.hub.links["gone"]
    session = rig.d.receive(KEY, ASKED, source)
    assert session is not None and session.verdict is not None and list(session.told) == ["p"]
    rig.p.step()
    assert not rig.p.books.waiting.asks and rig.p.books.waiting.cancelled(KEY) == ("d", "gone could not be asked")


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
    link.send("d", wire.encode(hello(layout_of(rig.p.books.shape, "late"))))
    rig.step()
    session = rig.d.receive(Key("r", 4), ASKED, source)
    assert session is not None and session.verdict is None


def test_one_wrong_ask_fails_alone() -> None:
    """A state after another token, a list that is too long: that asker learns it, the others are served."""
    rig = Rig()
    link = stranger(rig)
    rig.serve(ASKED, KEY)
    content = rig.p.books.dispatches[KEY].offers[-1].content
    state = wire.Wish(6, ((5, bytes(4)),), True, 21)
    wishes = (wire.Wish(6, ()), wire.Wish(6, ()), state)
    link.send("p", wire.encode(wire.Ask(*KEY, 0, 1, 22, content, wishes, 0, 5.0)))
    rig.p.step()
    _, word = said(link)
    assert isinstance(word, wire.Result) and not word.ok and "wanted after 21 tokens of 22" in word.reason
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
    assert not rig.p.books.waiting.refusals and not rig.p.knows(KEY)


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
