"""Endpoints on threads of their own, over real sockets: bytes move while nobody polls."""

from __future__ import annotations

import pytest

import quire.transfer
from quire import Request, check
from quire.core.records.errors import StateError
from quire.transfer import Aux, Endpoint, EndpointThread, Key, Landing, Outcome, Session, Source, TcpLink, layout_of

from .links.raw_peer import SECRET
from .sides import QuireSide, landed_right, tokens


def make(name: str) -> tuple[EndpointThread, TcpLink, QuireSide]:
    side = QuireSide()
    link = TcpLink(name, side.pages, SECRET)
    return EndpointThread(Endpoint(link, side.view, layout_of(side.view.shape(), name), alone=False)), link, side


def ask(receiver: EndpointThread, request: Request, source: Source) -> tuple[Session, Landing]:
    """Ask again, between turns of the thread, until the two know each other."""
    while True:
        with receiver as end:
            session = end.receive(Key(str(request.id)), request, source)
            if session is not None:
                landing = end.landing(session)
                assert landing is not None
                return session, landing
        assert receiver.ended(0.01) == []


def test_prompts_arrive_while_nobody_polls() -> None:
    (sender, from_link, computes), (receiver, to_link, decodes) = make("p"), make("d")
    requests = {f"r{nth}": Request(f"r{nth}", tokens(nth, range(13))) for nth in range(3)}
    landings: dict[Session, Landing] = {}
    for name, request in requests.items():
        session, landings[session] = ask(receiver, request, Source((from_link.address,)))
        with sender as end:
            computes.compute(request)
            end.send(Key(name), name)
            assert end.put(Key(name), 14, last=True, aux=Aux(first_tokens=(1,)))
    for thread, side in ((sender, computes), (receiver, decodes)):
        left = set(requests)
        while left:
            ended = thread.ended(20.0)
            assert ended, "it hangs"
            for session in ended:
                assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED, session.verdict
                landing = landings.get(session)
                if landing is not None:
                    assert landed_right(side, landing, requests[session.key.request])
                with thread as end:
                    end.conclude(session)
                left.discard(session.key.request)
        for name in requests:
            side.end(name)
        check(side.cache)
        assert side.taken() == [0, 0, 0] and thread.ended() == []
        thread.close()
        with pytest.raises(StateError, match="it was closed"), thread:
            pass
    assert from_link.close() and to_link.close()


def test_a_thread_that_has_stopped_says_why() -> None:
    thread, link, _ = make("p")
    with thread:
        link.close()  # behind its back
    with pytest.raises(StateError, match="it has stopped"):
        while True:
            thread.ended(0.05)
    thread.close()


def test_the_old_name_warns_and_is_the_same_class() -> None:
    with pytest.warns(DeprecationWarning, match=r"quire\.transfer\.Pump is called EndpointThread"):
        old = quire.transfer.Pump
    assert old is EndpointThread
