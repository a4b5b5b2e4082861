"""A lease: how long a sender waits to be asked, what makes it wait longer, and how a receiver asks for that."""

from __future__ import annotations

from quire import Request
from quire.transfer.session.lease import BEATS, Lease, beats, next_beat
from quire.transfer.wire import messages as wire
from quire.transfer.wire.verdict import Key, Outcome

from ..rig import Rig
from ..sides import tokens


def test_a_heartbeat_renews_two_thirds_of_a_lease_and_shortens_none() -> None:
    lease = Lease(30.0, now=0.0)
    lease.renew(5.0)  # until 25: less than it had
    assert not lease.has_run_out(29.9) and lease.has_run_out(30.0)
    lease.renew(20.0)
    assert not lease.has_run_out(39.9) and lease.has_run_out(40.0)
    lease.begin_anew(15.0)
    assert not lease.has_run_out(44.9) and lease.has_run_out(45.0)
    assert next_beat(30.0, 100.0) == 105.0 and 1 / BEATS < 2 / 3 / 3  # three of them may be lost


def test_every_piece_begins_it_anew() -> None:
    rig, key = Rig(), Key("r")
    request = Request("r", tokens(range(22)))
    rig.sides["p"].compute(request)
    rig.p.send(key, request.id)
    for done in (8, 16):
        rig.step(25)
        assert rig.p.put(key, done, last=False)
    assert not rig.step(29) and not rig.ended  # 79 s after it was opened, 29 after its last piece
    (session,) = rig.step(1)
    assert session.verdict is not None and session.verdict.outcome is Outcome.FAILED
    assert session.verdict.reason == "the lease ran out before every receiver had asked" and rig.empty()


def test_a_sender_gets_one_heartbeat_for_all_that_is_awaited_from_it() -> None:
    many = [Key(str(number)) for number in range(wire.MAX_KEYS + 1)]
    awaited = [(key, ("a", "b") if nth == 1 else ("a",)) for nth, key in enumerate(many)]
    assert list(beats(awaited)) == [
        ("a", wire.Beat(tuple(many[:-1]))), ("a", wire.Beat((many[-1],))), ("b", wire.Beat((many[1],))),
    ]  # fmt: skip
    assert list(beats([])) == []
