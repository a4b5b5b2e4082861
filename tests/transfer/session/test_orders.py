"""Orders: who has ordered what, and who learns that it will not come. Between endpoints; tests/engine has engines."""

from __future__ import annotations

import pytest

from quire import InputError, Request
from quire.transfer import Grid, Key, PageShape, Section, Source
from quire.transfer.links.local import LocalLink
from quire.transfer.wire import messages as wire
from quire.transfer.wire.layout import hello, layout_of

from ..rig import LIMITS, Rig
from ..sides import tokens

KEY = Key("r", 1)
ASKED = Request("r", tokens(range(22)))
SOURCE = Source(("p",))


@pytest.fixture
def rig() -> Rig:
    """The sender takes orders."""
    made = Rig()
    made.ends["p"] = made.end("p", orders=True)
    return made


def stranger(rig: Rig, name: str = "x") -> LocalLink:
    link = rig.hub.link(name, rig.sides["d"].pages)
    link.send("p", wire.encode(hello(layout_of(rig.p._registry.shape, name))))
    return link


def give(link: LocalLink, key: Key = KEY, body: bytes = b"theirs") -> None:
    link.send("p", wire.encode(wire.Order(*key, body)))


def test_an_order_is_taken_once_and_its_prompt_sent(rig: Rig) -> None:
    assert rig.d.order(KEY, "p", b"a prompt")
    rig.d.order(KEY, "p", b"a prompt")
    rig.step()
    assert rig.p.take_orders() == [(KEY, b"a prompt")] and rig.p.take_orders() == []
    rig.serve(ASKED, KEY)
    session = rig.ask(ASKED, KEY)
    rig.step()
    assert session.verdict is not None and session.verdict.outcome == "delivered" and rig.p.take_withdrawn() == []


def test_a_key_belongs_to_whom_it_was_ordered_by(rig: Rig) -> None:
    """Another one's order and cancel of it change nothing."""
    rig.d.order(KEY, "p", b"mine")
    rig.step()
    link = stranger(rig)
    give(link)
    link.send("p", wire.encode(wire.Cancel(*KEY, "no")))
    rig.step()
    assert rig.p.take_orders() == [(KEY, b"mine")] and rig.p.take_withdrawn() == []
    rig.d.cancel(KEY)
    rig.step()
    assert rig.p.take_withdrawn() == [KEY]


@pytest.mark.parametrize("taken", [False, True])
def test_what_is_cancelled_need_not_be_computed(rig: Rig, taken: bool) -> None:
    rig.d.order(KEY, "p", b"mine")
    rig.step()
    assert not taken or rig.p.take_orders()
    rig.d.cancel(KEY)
    rig.step()
    assert rig.p.take_orders() == [] and rig.p.take_withdrawn() == ([KEY] if taken else [])


def test_whoever_orders_and_dies_wants_nothing_any_more(rig: Rig) -> None:
    """Not yet taken, being computed, and waiting to be asked for: all are given up."""
    for name in ("late", "under way", "r"):
        rig.d.order(Key(name), "p", b"")
    rig.step()
    assert len(rig.p.take_orders()) == 3
    rig.d.order(Key("last"), "p", b"")
    rig.step()
    rig.serve(ASKED, Key("r"))
    rig.hub.kill("d")
    rig.step(names=("p",))
    assert rig.p.take_orders() == [] and {key.request for key in rig.p.take_withdrawn()} == {"late", "under way", "r"}
    assert rig.empty() or not rig.p._registry.dispatches


def test_whoever_was_to_compute_it_and_dies_is_not_waited_for(rig: Rig) -> None:
    """The order is lost with it: a new process on its address has never heard of it."""
    rig.d.order(KEY, "p", b"mine")
    rig.step()
    rig.hub.kill("p")
    del rig.ends["p"]
    rig.step(names=("d",))
    session = rig.d.receive(KEY, ASKED, SOURCE)
    assert session is not None and session.verdict is not None and "p was lost" in session.verdict.reason
    other = rig.d.receive(Key("other"), Request("s", ASKED.tokens), Source(("nobody",)))
    assert other is not None


def test_an_order_that_nobody_takes_fails_its_own_ask_alone() -> None:
    rig = Rig()
    link = stranger(rig)
    session = rig.ask(ASKED, KEY)
    give(link)
    rig.step()
    assert session.verdict is None, "somebody else's order"
    rig.d.order(Key("mine"), "p", b"")
    mine = rig.ask(Request("mine", ASKED.tokens), Key("mine"))
    rig.step()
    assert mine.verdict is not None and "no prompts are computed for others here" in mine.verdict.reason


def test_too_many_orders_are_refused_and_may_be_given_again(rig: Rig) -> None:
    link = stranger(rig)
    body = bytes(LIMITS.parked_bytes // 4)
    for epoch in range(5):
        give(link, Key("big", epoch), body)
    rig.step()
    registry = rig.p._registry
    assert registry.orders.refusal(Key("big", 4), "x") == "too many prompts wait to be computed"
    assert [key.epoch for key, _ in rig.p.take_orders()] == [0, 1, 2, 3]
    give(link, Key("big", 4), body)
    rig.step()
    assert registry.orders.refusal(Key("big", 4), "x") is None and len(rig.p.take_orders()) == 1
    with pytest.raises(InputError, match="shorten it"):
        rig.d.order(KEY, "p", bytes(wire.MAX_ORDER + 1))


def test_a_key_that_is_received_here_is_not_computed_here(rig: Rig) -> None:
    rig.p.expect(KEY, Source(("d",)))
    give(stranger(rig))
    rig.step()
    assert rig.p.take_orders() == [] and rig.p._registry.orders.refusal(KEY, "x") == "that key is being received here"


def test_what_cannot_be_said_will_not_come(rig: Rig) -> None:
    assert not rig.d.order(KEY, "nobody", b"")
    session = rig.d.receive(KEY, ASKED, Source(("nobody",)))
    assert session is not None and session.verdict is not None and "nobody could not be asked" in session.verdict.reason


@pytest.mark.parametrize("why", ["rank", "layers", "unsent", "cancelled", "refused"])
def test_an_order_whose_receive_fails_is_withdrawn(rig: Rig, why: str) -> None:
    """Twenty of them: none is computed for nobody, and no page is held for one who will not ask."""
    shape = rig.p._registry.shape
    if why == "layers":
        pages = [PageShape((nth,), (Section("page", group.page_bytes),)) for nth, group in enumerate(shape.groups)]
        rig.ends["p"] = rig.end("p", layout=layout_of(shape, "p", pages=pages), orders=True)
    peers = ("gone", "p") if why == "unsent" else ("p",)
    grid = {"rank": Grid(context=1, groups=1, tensor=1, stages=(2,)), "unsent": Grid(tensor=2)}.get(why, Grid())
    if why == "unsent":
        rig.ends["p"] = rig.end("p", layout=layout_of(shape, "p", grid=grid, rank=1), orders=True)
        gone = rig.hub.link("gone", [])
        gone.send("d", wire.encode(hello(layout_of(shape, "gone", grid=grid))))
    keys = [Key("many", nth) for nth in range(20)]
    for nth, key in enumerate(keys):
        assert rig.d.order(key, "p", b"a prompt")
        rig.d.expect(key, Source(peers, grid))
        if nth == 9:
            rig.step()
            assert len(rig.p.take_orders()) == 10  # half of them are being computed
    rig.step()
    if why == "unsent":
        del rig.hub.links["gone"]
    elif why == "refused":
        rig.links["p"].send("d", wire.encode(wire.Refuse("not you")))
    for key in keys if why == "cancelled" else ():
        rig.links["p"].send("d", wire.encode(wire.Cancel(*key, "no")))
    rig.step()
    for nth, key in enumerate(keys):
        session = rig.d.receive(key, Request(nth, ASKED.tokens), Source(peers, grid))
        assert session is not None and session.verdict is not None and session.verdict.outcome != "delivered"
        rig.step()
    if why == "cancelled":  # by the one who was to compute them: it knows
        return
    assert rig.p.take_orders() == [] and sorted(rig.p.take_withdrawn()) == keys[:10]
    assert rig.empty() and not rig.p._registry.early.cancels


def test_whoever_has_asked_and_dies_has_failed_and_not_cancelled(rig: Rig) -> None:
    """Its order ends with it, but it takes part in the session by now: it is lost like any other receiver."""
    rig.d.order(KEY, "p", b"mine")
    rig.step()
    assert rig.p.take_orders() == [(KEY, b"mine")]
    rig.sides["p"].compute(ASKED)
    sending = rig.p.send(KEY, "r")
    rig.ask(ASKED, KEY)
    rig.step()
    assert list(sending.receivers) == ["d"] and sending.verdict is None
    rig.hub.kill("d")
    rig.step(names=("p",))
    assert sending.verdict is not None
    assert (sending.verdict.outcome, sending.verdict.reason) == ("failed", "d was lost")
    assert rig.p.take_withdrawn() == [KEY]
