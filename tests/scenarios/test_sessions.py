"""A prompt on its way, end to end on one clock: outcome and drain, early and late messages, deadlines. Rows `talk`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import InputError, Request, Scope, Span, StateError
from quire.core.records.request import Int32
from quire.transfer.geometry.pieces import whole
from quire.transfer.geometry.ranks import Grid, Source
from quire.transfer.geometry.slices import BlockRun, places_of
from quire.transfer.links.link import Received
from quire.transfer.session.receiving import Receiving
from quire.transfer.session.registry import Session
from quire.transfer.views.quire_view import QuireView
from quire.transfer.views.view import CacheView, Landing
from quire.transfer.wire import messages as wire
from quire.transfer.wire.aux import Aux, AuxRoom, pack, unpack, with_logits
from quire.transfer.wire.layout import hello, layout_of
from quire.transfer.wire.verdict import Key, Limits, Outcome, Verdict

from ..transfer.rig import FIRST, LIMITS, Rig
from ..transfer.views import GROUPS, ListSide, QuireSide, landed_right, tokens
from .test_needs import PROMPT as LONG
from .test_needs import after_a_turn

PROMPT = tokens(range(22))  # 6 blocks of 4; window 6; a state
KEY = Key("r", 1)
DELIVERED, FAILED, CANCELLED = Outcome.DELIVERED, Outcome.FAILED, Outcome.CANCELLED


def request(name: str = "r", prompt: Int32 = PROMPT, **options: Any) -> Request:
    return Request(name, prompt, **options)


def outcome(session: Session | None) -> Outcome | None:
    return None if session is None or session.verdict is None else session.verdict.outcome


def verdict(session: Session | None) -> Verdict:
    assert session is not None and session.verdict is not None
    return session.verdict


def landing_of(rig: Rig, session: Receiving) -> Landing:
    landing = rig.d.landing(session)
    assert landing is not None
    return landing


def wanted(view: CacheView, asked: Request) -> Landing:
    landing = view.want(asked)
    assert landing is not None
    return landing


def cache_of(rig: Rig, name: str) -> QuireSide:
    side = rig.sides[name]
    assert isinstance(side, QuireSide)
    return side


def word(
    *,
    ok: bool = True,
    last: bool = True,
    piece: int = 0,
    size: int = 512,
    delivered: tuple[tuple[tuple[int, int], ...], ...] = ((),),
    **options: Any,
) -> wire.DeliveryReport:
    return wire.DeliveryReport(*KEY, piece, last, ok, delivered, size, **options)


def receiving(
    told: list[str], expected: int | None = None, wants: tuple[tuple[Span, ...], ...] = ((),), **options: Any
) -> Receiving:
    return Receiving(KEY, wants, told, expected=expected or len(told), limits=LIMITS, now=0.0, **options)


@pytest.mark.parametrize("kinds", [(QuireSide, QuireSide), (QuireSide, ListSide), (ListSide, QuireSide)])
def test_a_prompt_arrives_whole_with_its_first_token(
    kinds: tuple[type[QuireSide | ListSide], type[QuireSide | ListSide]],
) -> None:
    """talk-01: 6 full pages, 2 of the window, a state; every byte right, both sides empty, findable afterwards."""
    rig = Rig(kinds[0](), kinds[1]())
    rig.serve(request(), KEY)
    session = rig.ask(request(), KEY)
    landing = landing_of(rig, session)
    rig.step()
    assert (outcome(session), session.num_bytes, session.aux) == (DELIVERED, 6 * 64 + 2 * 32 + 16, FIRST)
    assert landed_right(rig.sides["d"], landing, request()) and rig.empty()
    again = wanted(rig.sides["d"].view, request("again"))
    assert again.held[0] == (Span(0, 5),)
    rig.sides["d"].view.release(again)
    for side in rig.sides.values():
        side.end("r")
    assert [side.taken() for side in rig.sides.values()] == [[0, 0, 0]] * 2


@pytest.mark.parametrize("cached", [16, 19])
def test_only_what_is_missing_is_sent(cached: int) -> None:
    """talk-02: 16 or 19 tokens of an earlier turn are there: 2 full pages, the window, the state."""
    rig = Rig()
    rig.sides["d"].compute(request("turn", PROMPT[:cached]))
    rig.sides["d"].end("turn")
    session = rig.ask(request(), KEY)
    landing = landing_of(rig, session)
    rig.step()
    (early,) = rig.p._registry.early.asks.values()
    ask = early.ask
    assert ask.start == 4  # what a peer is told that knows one start for all groups
    rig.serve(request(), KEY)
    rig.step()
    assert (outcome(session), session.num_bytes) == (DELIVERED, 2 * 64 + 2 * 32 + 16)
    assert landed_right(rig.sides["d"], landing, request())


def test_an_exact_hit_is_still_an_exchange() -> None:
    """talk-03: 16 tokens, all of them there: 0 bytes, and the sender lets go; the first token comes with it."""
    one = GROUPS[:1]
    rig = Rig(QuireSide(one, (24,)), QuireSide(one, (24,)))
    rig.sides["d"].compute(request("turn", PROMPT[:16]))
    rig.sides["d"].end("turn")
    rig.serve(request(prompt=PROMPT[:16]), KEY)
    session = rig.ask(request(prompt=PROMPT[:16]), KEY)
    assert session.wants == ((),)
    rig.step()
    assert (outcome(session), session.num_bytes, session.aux, rig.empty()) == (DELIVERED, 0, FIRST, True)


def test_pieces_arrive_as_they_are_computed() -> None:
    """talk-04: pieces of 9, 14 and 22 tokens, asked before the first or after the last: the same bytes, once each."""
    for late in (False, True):
        rig = Rig()
        rig.sides["p"].compute(request())
        rig.p.send(KEY, "r")
        session = None if late else rig.ask(request(), KEY)
        for done in (9, 11, 14):
            assert rig.p.put(KEY, done, last=False)
            rig.step()
        assert session is None or session.verdict is None
        assert rig.p.put(KEY, 22, last=True, aux=FIRST)
        session = session or rig.ask(request(), KEY)
        landing = landing_of(rig, session)
        rig.step()
        assert (outcome(session), session.num_bytes) == (DELIVERED, 6 * 64 + 2 * 32 + 16)
        assert landed_right(rig.sides["d"], landing, request()) and rig.empty()


def test_a_message_survives_the_wire() -> None:
    """talk-05: lists, kinds and positions round trip; lists of another length, cut messages, other versions do not."""
    lists = (
        places_of([BlockRun(0, (1, 2, 3))], 3),
        places_of([BlockRun(2, (9,))], 3),
        places_of([BlockRun(2, (7,))], 3),
    )
    wants = tuple(wire.group_want(places, state=nth == 2, position=40) for nth, places in enumerate(lists))
    ask = wire.Ask(*KEY, 0, 1, 40, b"x", wants, 0, 5.0)
    back = wire.decode(wire.encode(ask))
    assert back == ask and (back.wants[2].state, back.wants[2].position) == (True, 40)
    assert [wire.wanted_places(want).tolist() for want in back.wants] == [[1, 2, 3], [-1, -1, 9], [-1, -1, 7]]
    for data in (b"", b"\x02" + wire.encode(ask)[1:], wire.encode(ask)[:-3], b"\x01\x93\x01\x02\x03", b"\x80\x04."):
        with pytest.raises(InputError, match="a message from a peer"):
            wire.decode(data)
    with pytest.raises(InputError, match="inside the prompt"):
        wire.wanted_places(wire.GroupWant(2, ((1, b"\0" * 8),)))


def test_the_last_word_completes_and_a_foreign_piece_breaks() -> None:
    """talk-06: three words, the third is the last; a word for a piece nobody posted is a failure."""
    session = receiving(["a"])
    for last, expected in ((False, None), (False, None), (True, DELIVERED)):
        session.heard("a", word(last=last), 1.0)
        assert outcome(session) == expected
    session.heard("a", word(piece=2), 2.0)
    assert outcome(session) == FAILED and verdict(session).broken


def test_a_failure_does_not_end_the_writing() -> None:
    """talk-07: one of two writers fails: failed, not quiet; quiet when the other has spoken, and still failed."""
    session = receiving(["a", "b"])
    session.heard("a", word(ok=False, reason="no"), 1.0)
    assert (outcome(session), session.quiet, session.silent) == (FAILED, False, ["b"])
    session.heard("b", word(), 2.0)
    assert (outcome(session), session.quiet, verdict(session).reason) == (FAILED, True, "a: no")


@pytest.mark.parametrize("ok", [True, False])
@pytest.mark.parametrize("asks", [0, 1, 2])
def test_a_cancel_stands_whatever_comes_after_it(ok: bool, asks: int) -> None:
    """talk-08: cancelled, then a word of success or failure, asked before, after or never: cancelled, by us."""
    session = receiving(["a"])
    notices = session.cancel("enough", 1.0)
    assert [say.peer for say in notices] == ["a"] and session.cancel("again", 2.0) == []
    for _ in range(asks):
        assert (outcome(session), session.quiet) == (CANCELLED, False)
    session.heard("a", word(ok=ok), 3.0)
    assert (outcome(session), verdict(session).by_peer, session.quiet) == (CANCELLED, False, True)
    theirs = receiving(["a"])
    assert theirs.cancel("enough", 1.0, by_peer="a") == []
    assert (outcome(theirs), verdict(theirs).by_peer) == (CANCELLED, True)


def test_writers_are_counted_not_messages() -> None:
    """talk-09: one writer's last word twice stands for nobody else; its bytes count once; two different words break."""
    session = receiving(["a", "b"])
    for _ in range(2):
        session.heard("a", word(), 1.0)
    assert (outcome(session), session.num_bytes) == (None, 512)
    session.heard("b", word(size=256), 1.0)
    assert (outcome(session), session.num_bytes) == (DELIVERED, 768)
    session.heard("b", word(ok=False), 2.0)
    assert outcome(session) == FAILED and verdict(session).broken
    stranger = receiving(["a"])
    stranger.heard("x", word(), 1.0)
    assert verdict(stranger).broken


def test_messages_may_come_before_their_session() -> None:
    """talk-10: an ask waits 120 s for its session, no longer; a cancel ends a session when it is opened."""
    rig = Rig()
    rig.sides["p"].compute(request())
    rig.ask(request(), KEY)
    rig.step()
    assert len(rig.p._registry.early.asks) == 1
    rig.d.cancel(KEY)
    rig.step()
    assert (outcome(rig.p.send(KEY, "r")), rig.p._registry.arrivals) == (CANCELLED, {})
    rig.step()
    assert rig.empty()
    other = Key("r", 2)
    rig.ask(request(), other)
    rig.step()
    for seconds, parked in ((119, 1), (2, 0)):
        rig.clock.now += seconds
        rig.p.step()
        assert len(rig.p._registry.early.asks) == parked


def test_a_cancel_before_the_ask_publishes_nothing() -> None:
    """talk-11: the sender cancelled first: the receiver's session is cancelled by it, takes no page and asks nobody."""
    rig = Rig()
    rig.links["p"].send("d", wire.encode(wire.Cancel(*KEY, "full")))
    rig.step()
    before = rig.sides["d"].taken()
    session = rig.ask(request(), KEY)
    assert (outcome(session), verdict(session).by_peer, session.quiet, session.told) == (CANCELLED, True, True, {})
    assert rig.sides["d"].taken() == before
    rig.step()
    assert rig.empty()


def test_the_worked_example_to_the_byte() -> None:
    """talk-12: 10,000 tokens, 8,512 known, window pages gone: asked for blocks 266.., 308.. and the state; start 0."""
    view = QuireView(after_a_turn("auto"))
    landing = wanted(view, Request("next", LONG))
    assert landing.wants == ((Span(266, 313),), (Span(308, 313),), (Span(312, 313),))
    shape = view.shape()
    assert (shape.bytes_of(landing.wants), shape.bytes_of(landing.needs)) == (99_975_168, 309_166_080)
    assert landing.start == 0  # where computing begins after a failure, not 8,512
    view.release(landing)


def test_nothing_is_found_before_all_ranks_agree() -> None:
    """talk-13: delivered at one rank: another request with that prompt finds nothing until the commit; a no on any
    rank means no commit anywhere."""
    for commit in (True, False):
        rig = Rig()
        rig.ends["d"] = rig.end("d", alone=False)
        rig.serve(request(), KEY)
        session = rig.ask(request(), KEY)
        assert session in rig.step()
        assert rig.d.vote().completed == rig.d.vote().quiet == {"r#1"}
        probe = wanted(rig.sides["d"].view, request("probe"))
        assert probe.held == ((), (), ())
        rig.sides["d"].view.release(probe)
        rig.d.conclude(session, commit=commit)
        probe = wanted(rig.sides["d"].view, request("probe"))
        assert bool(probe.held[0]) == commit
        with pytest.raises(StateError, match="it is over"):
            rig.d.conclude(session)


def test_pages_are_held_per_owner() -> None:
    """talk-14: two holders of one prompt: its pages are given back with the second release."""
    side = QuireSide()
    side.compute(request())
    offers = [side.view.offer("r", Span(0, 22)) for _ in range(2)]
    side.end("r")
    held = side.taken()
    first, second = offers
    assert first is not None and second is not None
    side.view.release(first)
    assert side.taken() == held
    side.view.release(second)
    assert side.taken() == [0, 0, 0]


def test_deadlines_of_the_outcome_and_of_the_drain() -> None:
    """talk-15: 10 s to deliver, 10 s to be quiet: failed at 10; cancelled at 4 and 9: due at 14; a word at 19.9 proves
    quiet, one at 20 does not."""
    session = receiving(["a"])
    assert session.tick(9.9) == [] and session.verdict is None
    session.tick(10.0)
    assert (outcome(session), session.quiet_until) == (FAILED, 20.0)
    session.heard("a", word(), 19.9)
    assert session.quiet
    late = receiving(["a"])
    late.tick(10.0)
    late.heard("a", word(), 20.0)
    assert not late.quiet
    twice = receiving(["a"])
    twice.cancel("x", 4.0)
    twice.cancel("x", 9.0)
    assert twice.quiet_until == 14.0


def test_what_cannot_be_proven_quiet_is_kept_for_good() -> None:
    """talk-16: a link that cannot stop a write, and one that never ends: pages stay taken, no new session is opened."""

    def fate(what: str, source: str, target: str) -> tuple[float, ...]:
        return (1e9,) if what == "write" else (0.0,)

    rig = Rig(fate=fate, fenced=False)
    rig.serve(request(), KEY)
    session = rig.ask(request(), KEY)
    rig.step(0.01)
    rig.step(0.01)
    taken = rig.sides["d"].taken()
    rig.step(10)
    assert (outcome(session), session.quiet, rig.sides["d"].taken()) == (FAILED, False, taken)
    rig.step(10)
    assert not session.stuck  # the link to the silent one is closed, and has a second to prove it
    rig.step(1)
    assert session.stuck and rig.d.stuck == [session] and rig.sides["d"].taken() == taken
    with pytest.raises(StateError, match="restart this worker"):
        rig.d.receive(Key("other"), request("other"), Source(("p",)))
    assert not rig.d.close()


def test_what_is_proven_quiet_after_all_is_given_back() -> None:
    """talk-16: the write that could not be stopped comes to its end, as of a sender that was frozen and goes on."""

    def fate(what: str, source: str, target: str) -> tuple[float, ...]:
        return (100.0,) if what == "write" else (0.0,)

    rig = Rig(fate=fate, fenced=False)
    rig.serve(request(), KEY)
    session = rig.ask(request(), KEY)
    for seconds in (0.01, 0.01, 10, 10, 2):
        rig.step(seconds)
    assert rig.d.stuck == [session] and any(rig.sides["d"].taken())
    ended = rig.step(100)
    assert session in ended and not rig.d.stuck and not session.stuck and outcome(session) is FAILED
    assert rig.sides["d"].taken() == [0, 0, 0] and rig.sides["p"].taken() != [0, 0, 0]
    rig.hub.fate = lambda *_: (0.0,)
    rig.p.send(Key("r", 2), "r")
    rig.p.put(Key("r", 2), len(request().tokens), last=True, aux=FIRST)
    again = rig.ask(request(), Key("r", 2))
    rig.step()
    assert outcome(again) is DELIVERED and rig.empty()


def test_a_door_that_is_proven_shut_needs_no_word() -> None:
    """talk-17: the same on a link that can: cancelled and quiet at once, the late write lands nowhere."""

    def fate(what: str, source: str, target: str) -> tuple[float, ...]:
        return (5.0,) if what == "write" else (0.0,)

    rig = Rig(fate=fate)
    rig.serve(request(), KEY)
    session = rig.ask(request(), KEY)
    rig.step(0.01)
    rig.d.cancel(KEY)
    rig.step()
    assert session in rig.ended and rig.sides["d"].taken() == [0, 0, 0]
    before = [page.copy() for page in rig.sides["d"].pages]
    rig.step(6)
    assert all((old == new).all() for old, new in zip(before, rig.sides["d"].pages, strict=True))
    assert rig.empty()


def test_writers_that_could_not_be_asked_are_not_waited_for() -> None:
    """talk-18: the second of three cannot be told: only the first is waited for; nobody told: quiet at once."""
    session = receiving(["a", "b", "c"])
    assert [say.peer for say in session.unsent("b", 1.0)] == ["a"]  # it hears that nobody waits
    assert (outcome(session), list(session.told), session.quiet) == (FAILED, ["a"], False)
    session.heard("a", word(), 2.0)
    assert session.quiet
    none = receiving(["a", "b"])
    none.unsent("a", 1.0)
    assert (outcome(none), none.quiet) == (FAILED, True)


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
