"""Writers that bring less than was asked of them, peers that return, words that come too late: each is told apart."""

from __future__ import annotations

import pytest

from quire import Request, check
from quire.transfer import Grid, Key, Outcome, Receiving, Source
from quire.transfer.links.link import Received
from quire.transfer.links.local import LocalLink
from quire.transfer.wire import messages as wire
from quire.transfer.wire.aux import pack
from quire.transfer.wire.layout import hello, layout_of
from quire.transfer.wire.verdict import Limits

from ..rig import FIRST, Rig
from ..sides import QuireSide, tokens

KEY = Key("r", 1)
ASKED = Request("r", tokens(range(22)))
Delivered = tuple[tuple[tuple[int, int], ...], ...]


def writer(rig: Rig, name: str, grid: Grid | None = None, rank: int = 0, *, to: str = "d") -> LocalLink:
    """A sender made by hand: it fits, and says what the test says."""
    link = rig.hub.link(name, rig.sides["p"].pages)
    link.send(to, wire.encode(hello(layout_of(rig.p._registry.shape, name, grid=grid, rank=rank))))
    return link


def say_delivered(link: LocalLink, delivered: Delivered, room: object = None) -> None:
    aux = pack(FIRST, KEY, room)  # type: ignore[arg-type]
    link.send("d", wire.encode(wire.DeliveryReport(*KEY, 0, True, True, delivered, 8, "", aux)))


def all_of(session: Receiving) -> Delivered:
    return tuple(map(wire.to_wire, session.wants))


def without_a_block(session: Receiving, group: int) -> Delivered:
    whole = list(all_of(session))
    ((start, end),) = whole[group]
    whole[group] = ((start, end - 1),)
    return tuple(whole)


@pytest.mark.parametrize("group", [0, 1, 2])
@pytest.mark.parametrize("short", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_each_of_two_writers_must_bring_every_block(group: int, short: tuple[int, ...], order: tuple[int, int]) -> None:
    """Whichever of them brings one block less, and whichever speaks last; the reason names it and what is missing."""
    rig, grid = Rig(), Grid(tensor=2)
    links = [writer(rig, f"w{rank}", grid, rank) for rank in range(2)]
    rig.step()
    session = rig.d.receive(KEY, ASKED, Source(("w0", "w1"), grid))
    assert session is not None and session.verdict is None
    for nth in order:
        assert session.verdict is None
        less = without_a_block(session, group)
        say_delivered(links[nth], less if nth in short else all_of(session), rig.d._registry.aux_room)
        rig.step()
    assert session.verdict is not None and session.verdict.outcome is Outcome.FAILED
    named = [f"w{nth} did not deliver blocks" in session.verdict.reason for nth in range(2)]
    assert sum(named) == 1 and named.index(True) in short and f"of group {group}" in session.verdict.reason
    assert rig.sides["d"].taken() == [0, 0, 0]
    side = rig.sides["d"]
    assert isinstance(side, QuireSide)
    check(side.cache)


@pytest.mark.parametrize("group", [0, 1, 2])
def test_one_writer_must_bring_every_block(group: int) -> None:
    for less in (True, False):
        rig = Rig()
        link = writer(rig, "w")
        rig.step()
        session = rig.d.receive(KEY, ASKED, Source(("w",)))
        assert session is not None
        say_delivered(link, without_a_block(session, group) if less else all_of(session), rig.d._registry.aux_room)
        rig.step()
        assert session.verdict is not None
        assert session.verdict.outcome is (Outcome.FAILED if less else Outcome.DELIVERED)


def ask(link: LocalLink, rig: Rig, door: int) -> None:
    content = rig.p._registry.dispatches[KEY].offers[0].content if KEY in rig.p._registry.dispatches else b""
    wants = tuple(wire.GroupWant(6, (), nth == 2) for nth in range(3))
    link.send("p", wire.encode(wire.Ask(*KEY, 0, door, 22, content, wants, 0, 5.0)))


def reports(link: LocalLink) -> list[wire.DeliveryReport]:
    said = [wire.decode(news.data) for news in link.poll() if isinstance(news, Received)]
    return [report for report in said if isinstance(report, wire.DeliveryReport)]


@pytest.mark.parametrize("why", ["refused", "served"])
def test_a_peer_that_returns_and_asks_the_same_key_is_answered(why: str) -> None:
    """While it stays, a copy of its ask is not; whoever has come again knows nothing of the answer before."""
    rig = Rig()
    rig.sides["p"].compute(ASKED)
    for _ in range(2):
        link = writer(rig, "x", to="p")
        rig.step()
        if why == "refused":
            rig.p.refuse(KEY, "not here")
        elif KEY not in rig.p._registry.early.over:
            rig.p.send(KEY, "r")
            rig.p.put(KEY, 22, last=True, aux=FIRST)
        for _ in range(2):
            ask(link, rig, 1)
            rig.p.step()
        assert len(reports(link)) == 1
        rig.hub.kill("x")
        rig.step()
    assert rig.empty()


def test_what_a_peer_asked_before_it_was_gone_is_not_served() -> None:
    """It returns and asks again: bytes go through the door that it has now."""
    rig = Rig()
    rig.sides["p"].compute(ASKED)
    rig.p.send(KEY, "r")
    session = rig.p._registry.dispatches[KEY].session
    for door in (7, 8):
        if door == 8:
            rig.hub.kill("x")
            rig.step()
        else:
            content = session.content
            rig.p.cancel(KEY)
            rig.step()
        link = writer(rig, "x", to="p")
        wants = tuple(wire.GroupWant(6, (), nth == 2) for nth in range(3))
        link.send("p", wire.encode(wire.Ask("r", 2, 0, door, 22, content, wants, 0, 5.0)))
        rig.p.step()
        assert [early.ask.door for early in rig.p._registry.early.asks.values()] == [door]
    served = rig.p.send(Key("r", 2), "r")
    assert [receiver.ask.door for receiver in served.receivers.values()] == [8]


@pytest.mark.parametrize(("now", "heard"), [(9.99, True), (10.0, False), (11.0, False)])
def test_a_word_after_the_grace_changes_nothing(now: float, heard: bool) -> None:
    """Two groups were asked and one is expected: within the grace a second good word breaks the protocol."""
    limits = Limits(lease=30, transfer=10, grace=10)
    session = Receiving(KEY, ((),), ["a", "b"], expected=1, limits=limits, now=0.0)
    good = wire.DeliveryReport(*KEY, 0, True, True, ((),), 8)
    session.heard("a", good, 0.0)
    assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED
    assert session.heard("b", good, now) == []
    assert session.verdict.broken == heard and ("b" in session.reports) == heard and session.quiet == heard
    assert session.num_bytes == 8


def test_a_failed_word_after_the_grace_proves_nothing() -> None:
    limits = Limits(lease=30, transfer=10, grace=10)
    session = Receiving(KEY, ((),), ["a"], expected=1, limits=limits, now=0.0)
    session.tick(10.0)
    session.heard("a", wire.DeliveryReport(*KEY, 0, True, False, reason="late"), 20.0)
    assert not session.quiet and session.silent == ["a"]
    assert session.verdict is not None and session.verdict.reason == "it was not delivered in time"
