"""Endpoints on threads of their own, over real sockets: bytes move while nobody polls."""

from __future__ import annotations

import time

import pytest

from quire import Request, check
from quire.core.records.errors import StateError
from quire.transfer import Aux, Endpoint, Key, Outcome, Pump, Source, TcpLink, layout_of

from .test_tcp_link import SECRET
from .views import QuireSide, landed_right, tokens


def make(name: str) -> tuple[Pump, TcpLink, QuireSide]:
    side = QuireSide()
    link = TcpLink(name, side.pages, SECRET)
    return Pump(Endpoint(link, side.view, layout_of(side.view.shape(), name), alone=False)), link, side


def test_prompts_arrive_while_nobody_polls() -> None:
    (sender, from_link, computes), (receiver, to_link, decodes) = make("p"), make("d")
    requests = [Request(f"r{nth}", tokens(nth, range(13))) for nth in range(3)]
    landings = {}
    for request in requests:
        session = None
        while session is None:  # until they know each other
            with receiver as end:
                session = end.receive(Key(request.id), request, Source((from_link.address,)))
            time.sleep(0.001)
        with receiver as end:
            landings[session] = end.landing(session)
        with sender as end:
            computes.compute(request)
            end.send(Key(request.id), request.id)
            assert end.put(Key(request.id), 14, last=True, aux=Aux(first_tokens=(1,)))
    for pump, side in ((sender, computes), (receiver, decodes)):
        left = {request.id for request in requests}
        while left:
            ended = pump.ended(20.0)
            assert ended, "it hangs"
            for session in ended:
                assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED, session.verdict
                landing = landings.get(session)
                if landing is not None:
                    assert landed_right(side, landing, next(r for r in requests if r.id == session.key.request))
                with pump as end:
                    end.conclude(session)
                left.discard(session.key.request)
        for request in requests:
            side.end(request.id)
        check(side.cache)
        assert side.taken() == [0, 0, 0] and pump.ended() == []
        pump.close()
        with pytest.raises(StateError, match="it was closed"), pump:
            pass
    assert from_link.close() and to_link.close()


def test_a_thread_that_has_stopped_says_why() -> None:
    pump, link, _ = make("p")
    with pump:
        link.close()  # behind its back
    with pytest.raises(StateError, match="it has stopped"):
        while True:
            pump.ended(0.05)
    pump.close()
