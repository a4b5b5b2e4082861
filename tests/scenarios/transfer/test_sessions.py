"""A prompt on its way, end to end on one clock: outcome and drain, early and late messages, deadlines. Rows `talk`."""

from __future__ import annotations

from typing import Any

import pytest

from quire import InputError, Request, Span, StateError
from quire.core.records.request import Int32
from quire.transfer.geometry.ranks import Source
from quire.transfer.geometry.slices import BlockRun, places_of
from quire.transfer.session.endpoint_registry import Session
from quire.transfer.session.receiving_session import Receiving
from quire.transfer.views.quire_view import QuireView
from quire.transfer.views.view import CacheView, Landing
from quire.transfer.wire import messages as wire
from quire.transfer.wire.verdict import Key, Outcome, Verdict

from ...transfer.rig import FIRST, LIMITS, Rig
from ...transfer.sides import GROUPS, ListSide, QuireSide, landed_right, tokens
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
    writers: list[str], expected: int | None = None, wants: tuple[tuple[Span, ...], ...] = ((),), **options: Any
) -> Receiving:
    return Receiving(KEY, wants, writers, expected=expected or len(writers), limits=LIMITS, now=0.0, **options)


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
    assert (outcome(session), verdict(session).by_peer, session.quiet, session.writers) == (CANCELLED, True, True, {})
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
    assert (outcome(session), list(session.writers), session.quiet) == (FAILED, ["a"], False)
    session.heard("a", word(), 2.0)
    assert session.quiet
    none = receiving(["a", "b"])
    none.unsent("a", 1.0)
    assert (outcome(none), none.quiet) == (FAILED, True)
