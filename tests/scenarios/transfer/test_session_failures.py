"""What ends a transfer early: refusals, leases, old attempts, late reports, limits. Rows `talk`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import InputError, Scope, Span, StateError
from quire.transfer.geometry.pieces import whole
from quire.transfer.geometry.ranks import Grid, Source
from quire.transfer.links.link import Received
from quire.transfer.wire import messages as wire
from quire.transfer.wire.aux import Aux, AuxRoom, pack, unpack, with_logits
from quire.transfer.wire.layout import hello, layout_of
from quire.transfer.wire.verdict import Key, Limits

from ...transfer.rig import FIRST, Rig
from ...transfer.sides import GROUPS, ListSide, QuireSide, landed_right, tokens
from .test_sessions import (
    CANCELLED,
    DELIVERED,
    FAILED,
    KEY,
    PROMPT,
    cache_of,
    landing_of,
    outcome,
    receiving,
    request,
    verdict,
    word,
)


def test_a_hole_is_a_failure_that_names_it() -> None:
    """talk-19: blocks 1 to 3 wanted, 1 and 3 delivered: failed, block 2 is named, nothing is committed."""
    session = receiving(["a"], wants=((Span(1, 4),),))
    session.heard("a", word(delivered=(((1, 2), (3, 4)),)), 1.0)
    assert outcome(session) == FAILED and "blocks [(2, 3)] of group 0" in verdict(session).reason


def test_a_peer_that_does_not_fit_is_told_why_once() -> None:
    """talk-20: other block size: the first request fails with the fact, the second unsent; another peer works."""
    rig = Rig()
    wrong = QuireSide(size=8)
    link = rig.hub.link("w", wrong.pages)
    rig.sides["w"], rig.links["w"] = wrong, link
    rig.ends["w"] = rig.end("w")
    assert rig.d.receive(KEY, request(), Source(("w",))) is None  # nobody is asked before its hello
    rig.step(names=("p", "d", "w"))
    first = rig.d.receive(KEY, request(), Source(("w",)))
    assert outcome(first) == FAILED and "block size: '8' here, '4' there" in verdict(first).reason
    told = len(rig.hub._heap)
    second = rig.d.receive(Key("r", 2), request("s"), Source(("w",)))
    assert outcome(second) == FAILED and len(rig.hub._heap) == told
    rig.serve(request("t"), Key("t"))
    third = rig.ask(request("t"), Key("t"))
    rig.step()
    assert outcome(third) == DELIVERED and rig.empty()
    rig.d.forgive("w")
    assert rig.d.receive(Key("r", 3), request("u"), Source(("w",))) is None


def test_an_unknown_group_of_ranks_answers_once() -> None:
    """talk-21: four groups asked, one answers: delivered; the others' asks are withdrawn. A second answer breaks it."""
    session = receiving(["a", "b", "c", "d"], expected=1)
    notices = session.heard("c", word(), 1.0)
    assert outcome(session) == DELIVERED and [say.peer for say in notices] == ["a", "b", "d"]
    session.heard("a", word(), 2.0)
    assert verdict(session).broken


def test_auxiliary_data_is_bounded_and_tagged() -> None:
    """talk-22: 5 drafts where 4 fit; a tag of another session; two writers that differ; none where some is due."""
    room = AuxRoom(draft_tokens=4)
    with pytest.raises(InputError, match="5 draft tokens: there is room for 4"):
        pack(Aux(draft_tokens=(1, 2, 3, 4, 5)), KEY, room)
    packed = pack(FIRST, KEY, room)
    assert unpack(packed, KEY, room) == FIRST
    logits = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    whole = with_logits(Aux((1, 2), (3,), sampling=b"seed", cached_tokens=9), logits)
    back = unpack(pack(whole, KEY, room), KEY, room)
    assert back == whole and np.array_equal(back.logits_array(), logits)
    for key in (Key("x", 1), Key("r", 2)):
        with pytest.raises(InputError, match="tag is of another session"):
            unpack(packed, key, room)
    for data in (b"", packed[:16], packed[:-1], bytes(len(packed))):
        with pytest.raises(InputError):
            unpack(data, KEY, room)
    session = receiving(["a", "b"], aux_room=room)
    session.heard("a", word(aux=packed), 1.0)
    session.heard("b", word(aux=pack(Aux(first_tokens=(8,)), KEY, room)), 1.0)
    assert verdict(session).broken
    nothing = receiving(["a"], aux_room=room)
    nothing.heard("a", word(), 1.0)
    assert outcome(nothing) == FAILED
    foreign = receiving(["a"], aux_room=room)
    foreign.heard("a", word(aux=pack(FIRST, Key("x", 1), room)), 1.0)
    assert verdict(foreign).broken


def test_a_shared_partial_page_is_not_written() -> None:
    """talk-23: 37 of 40 tokens match, the last block belongs to a live request: it is sent into a page of its own."""
    one = GROUPS[:1]
    rig = Rig(QuireSide(one, (24,), 16), QuireSide(one, (24,), 16))
    rig.sides["d"].compute(request("live", tokens(range(37))))
    shared = [page.copy() for page in rig.sides["d"].pages]
    slots = cache_of(rig, "d").cache.sequence("live").slots().tolist()
    prompt = tokens(range(40))
    rig.serve(request(prompt=prompt), KEY)
    session = rig.ask(request(prompt=prompt), KEY)
    assert session.wants == ((Span(2, 3),),)
    rig.step()
    assert outcome(session) == DELIVERED
    assert all((rig.sides["d"].pages[0][slot] == shared[0][slot]).all() for slot in slots)


def test_a_sender_that_will_not_send_says_so() -> None:
    """talk-24: aborted at the sender after it was asked for; asked for again after the end: told at once."""
    rig = Rig()
    rig.sides["p"].compute(request())
    rig.p.send(KEY, "r")
    session = rig.ask(request(), KEY)
    rig.step()
    rig.p.cancel(KEY, "too long")
    rig.step()
    assert (outcome(session), verdict(session).by_peer, verdict(session).reason) == (CANCELLED, True, "too long")
    assert rig.empty()
    rig.hub.kill("d")
    rig.links["d"] = rig.hub.link("d", rig.sides["d"].pages)
    rig.ends["d"] = rig.end("d")  # started again, it has forgotten all about it
    late = rig.ask(request(), KEY)
    rig.step()
    assert outcome(late) == FAILED and "is over" in verdict(late).reason


def test_a_lease_runs_out_unless_somebody_waits() -> None:
    """talk-25: nobody asks for 30 s: failed, pages back. A queued request keeps it alive; scans look at every lease."""
    rig = Rig()
    for name in "abc":
        rig.serve(request(name, tokens(ord(name), range(9))), Key(name))
    rig.d.expect(Key("b"), Source(("p",)))
    for _ in range(7):
        rig.step(5)
    assert [str(s.key) for s in rig.ended if outcome(s) == FAILED] == ["a#0", "c#0"]
    session = rig.ask(request("b", tokens(ord("b"), range(9))), Key("b"))
    rig.step()
    assert outcome(session) == DELIVERED and rig.empty()


def test_another_prompt_under_the_same_key_is_refused() -> None:
    """talk-26: other tokens, another salt: failed, nothing is sent; the sender goes on waiting for the right one."""
    for other in (request(prompt=tokens(range(21), 99)), request(scope=Scope(salt="x"))):
        rig = Rig()
        rig.serve(request(), KEY)
        session = rig.ask(other, KEY)
        rig.step()
        assert outcome(session) == FAILED and "prompt is another one" in verdict(session).reason
        assert rig.p._registry.dispatches[KEY].session.verdict is None and not rig.d._registry.arrivals
        rig.step(30)
        assert rig.empty() and rig.sides["d"].taken() == [0, 0, 0]


def test_an_old_attempt_does_not_reach_the_new_one() -> None:
    """talk-27: attempt 1 is cancelled with a write under way: its words and bytes change nothing in attempt 2."""
    delays = iter([50.0, 0.0])

    def fate(what: str, source: str, target: str) -> tuple[float, ...]:
        return (next(delays),) if what == "write" else (0.0,)

    rig = Rig(fate=fate)
    rig.serve(request(), KEY)
    rig.ask(request(), KEY)
    rig.step()
    rig.d.cancel(KEY)
    rig.step()
    rig.p.send(Key("r", 2), "r")
    rig.p.put(Key("r", 2), 22, last=True, aux=FIRST)
    second = rig.ask(request(), Key("r", 2))
    landing = landing_of(rig, second)
    rig.step()
    assert outcome(second) == DELIVERED and landed_right(rig.sides["d"], landing, request())
    rig.step(60)
    assert rig.empty() and outcome(second) == DELIVERED


def test_the_last_word_after_a_cancel_is_a_failure() -> None:
    """talk-29: cancelled at the sender with a write under way: quiet, and the last word said, when that is over."""

    def fate(what: str, source: str, target: str) -> tuple[float, ...]:
        return (5.0,) if what == "write" else (0.0,)

    rig = Rig(fate=fate, fenced=False)
    rig.serve(request(), KEY)
    session, sending = rig.ask(request(), KEY), rig.p._registry.dispatches[KEY].session
    rig.step(0.01)
    rig.step(0.01)
    rig.p.cancel(KEY, "preempted")
    rig.step()
    assert (outcome(sending), sending.quiet, outcome(session), session.quiet) == (CANCELLED, False, CANCELLED, False)
    taken = [rig.sides[name].taken() for name in "pd"]
    rig.step(5)
    assert session.reports["p"].ok is False and rig.empty()
    assert (outcome(session), rig.sides["d"].taken(), taken[1]) == (CANCELLED, [0, 0, 0], [6, 2, 1])


def test_a_last_word_alone_frees_no_page() -> None:
    """talk-31: a sender that says it has failed while its write is under way: the pages wait until it has landed."""

    def fate(what: str, source: str, target: str) -> tuple[float, ...]:
        return (5.0,) if what == "write" else (0.0,)

    rig = Rig(fate=fate, fenced=False)
    rig.serve(request(), KEY)
    session = rig.ask(request(), KEY)
    rig.step(0.01)
    rig.step(0.01)
    rig.links["p"].send("d", wire.encode(word(ok=False, reason="not true")))
    rig.step()
    assert (outcome(session), session.quiet, session in rig.ended) == (FAILED, True, False)
    assert rig.sides["d"].taken() == [6, 2, 1]
    rig.step(5)
    assert session in rig.ended and rig.sides["d"].taken() == [0, 0, 0]


def test_a_state_that_has_moved_on_is_not_sent() -> None:
    """talk-32: the sender has computed one token more: the state stands after 23 tokens, wanted after 22: failed."""
    rig = Rig()
    rig.sides["p"].compute(request())
    sender = cache_of(rig, "p")
    cache = sender.cache
    sequence = cache.sequence("r")
    plan = cache.grow(sequence, tokens(99))
    assert plan is not None
    sender.run(plan)
    cache.commit(sequence)
    rig.p.send(KEY, "r")
    rig.p.put(KEY, 22, last=True, aux=FIRST)
    session = rig.ask(request(), KEY)
    rig.step()
    assert outcome(session) == FAILED and "stands after 23 tokens, wanted after 22" in verdict(session).reason
    assert rig.empty() and rig.sides["d"].taken() == [0, 0, 0]


@pytest.mark.parametrize(("last", "reason"), [(False, "patience ran out"), (True, "not delivered in time")])
def test_a_sender_has_deadlines_of_its_own(last: bool, reason: str) -> None:
    """talk-33: a prompt that is never finished, a write that never ends, and a receiver that says nothing more."""
    rig = Rig(fate=lambda what, source, target: (1e9,) if what == "write" else (0.0,))
    rig.sides["p"].compute(request())
    rig.p.send(KEY, "r")
    rig.ask(request(), KEY)
    rig.p.step()
    session = rig.p._registry.dispatches[KEY].session
    if last:
        rig.p.put(KEY, 22, last=True, aux=FIRST)
    rig.step(9.9, names=("p",))
    assert session.verdict is None
    rig.step(0.1, names=("p",))
    assert outcome(session) == FAILED and reason in verdict(session).reason
    rig.step(10, names=("p",))  # the link to the silent receiver is closed: that proves it
    assert not rig.p._registry.dispatches and not rig.p.stuck


def test_lists_of_another_length_are_refused() -> None:
    """talk-30: the peers agree on the prompt and not on its blocks: failed with both numbers, once."""
    rig = Rig()
    rig.serve(request(), KEY)
    offer = rig.p._registry.dispatches[KEY].offers[-1]
    rig.links["d"].send("p", wire.encode(hello(rig.d._registry.layout)))
    for blocks in (7, 1 << 22):
        wants = tuple(wire.GroupWant(blocks, ()) for _ in GROUPS)
        ask = wire.Ask("r", 1, 0, 1, 22, offer.content, wants, 0, 5.0)
        rig.links["d"].send("p", wire.encode(ask))
    rig.p.step()
    _, heard = [wire.decode(news.data) for news in rig.links["d"].poll() if isinstance(news, Received)]
    assert isinstance(heard, wire.DeliveryReport) and not heard.ok and "has 7 blocks, the sender's 6" in heard.reason


def test_limits_and_second_sessions_are_refused() -> None:
    """talk-28: a key twice, a piece after the last, a lease of 0, what is no key: errors that change nothing."""
    rig = Rig()
    rig.serve(request(), KEY)
    with pytest.raises(StateError, match="use another epoch"):
        rig.p.send(KEY, "r")
    piece = whole(22, 4)
    with pytest.raises(StateError, match="the last one was sent"):
        rig.p._registry.dispatches[KEY].session.add(piece, [], 0, 0.0)
    with pytest.raises(InputError, match="above 0"):
        Limits(lease=0)
    for peers in ((), ("p", "p"), ("p", "q", "r")):
        with pytest.raises(InputError, match="one peer per rank"):
            Source(peers, Grid(tensor=2))
    number: Any = 3
    keys: list[Any] = ["r", ("r", 1), Key("r", -1), Key("", 0), Key("x" * 1025), Key(number, 0)]
    for key in keys:
        with pytest.raises(InputError, match="session"):
            rig.p.send(key, "r")
    assert layout_of(rig.p._registry.shape, "x").name == "x"


@pytest.mark.parametrize("one_start", [False, True])
def test_a_peer_with_one_start_is_asked_for_everything_from_there_on(one_start: bool) -> None:
    """talk-34: blocks 0 to 3 of full are held, 4 of the window, no state: 4, 5 and the state, or 5 instead of 4, 5."""
    rig = Rig(receiver=ListSide())
    layout = layout_of(rig.p._registry.shape, "p", can=()) if one_start else rig.p._registry.layout
    rig.ends["p"] = rig.end("p", layout=layout)
    rig.sides["d"].compute(request("turn", PROMPT[:20]))
    rig.sides["d"].end("turn")
    receiver = rig.sides["d"]
    assert isinstance(receiver, ListSide)
    lists = receiver.lists
    name = lists._names[0].pop(slot := lists._found[0][lists._names_of(request())[4]])
    lists._free[0].append(slot)
    del lists._found[0][name]
    rig.serve(request(), KEY)
    session = rig.ask(request(), KEY)
    landing = landing_of(rig, session)
    near = Span(4, 6) if one_start else Span(5, 6)
    assert landing.wants == ((Span(4, 6),), (near,), (Span(5, 6),))
    rig.step()
    assert outcome(session) == DELIVERED and session.num_bytes == 2 * 64 + len(near) * 32 + 16
    assert landed_right(rig.sides["d"], landing, request()) and rig.empty()


def test_who_has_not_said_hello_is_asked_for_nothing() -> None:
    """talk-35: nobody there; lost before its hello; silent for 10 s: failed, with the reason, and no page is taken."""
    rig = Rig()
    nobody = rig.d.receive(KEY, request(), Source(("nobody",)))
    assert outcome(nobody) == FAILED and verdict(nobody).reason == "nobody could not be asked"
    rig.hub.link("lost", [])
    assert rig.d.receive(Key("lost"), request(), Source(("lost",))) is None
    rig.hub.kill("lost")
    rig.step()
    lost = rig.d.receive(Key("lost"), request(), Source(("lost",)))
    assert outcome(lost) == FAILED and verdict(lost).reason == "lost could not be asked: it has died"
    rig.hub.link("mute", [])
    for seconds in (0.0, 9.0):
        rig.step(seconds)
        assert rig.d.receive(Key("mute"), request(), Source(("mute",))) is None
    rig.step(1.0)
    mute = rig.d.receive(Key("mute"), request(), Source(("mute",)))
    assert outcome(mute) == FAILED and verdict(mute).reason == "mute has not said hello within 10 s"
    rig.step()
    assert rig.empty() and rig.sides["d"].taken() == [0, 0, 0]
