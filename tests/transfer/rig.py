"""A sender and a receiver of one process on a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quire import Request
from quire.transfer.endpoint import Endpoint
from quire.transfer.geometry.ranks import Source
from quire.transfer.links.local import LocalHub
from quire.transfer.session.endpoint_registry import Session
from quire.transfer.session.receiving_session import Receiving
from quire.transfer.wire.aux import Aux
from quire.transfer.wire.layout import layout_of
from quire.transfer.wire.verdict import Key, Limits

from .sides import QuireSide, Side

LIMITS = Limits(lease=30, transfer=10, grace=10, parked=120)
FIRST = Aux(first_tokens=(7,))


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def received(
    end: Endpoint, key: Key, request: Request, source: Source, step: Callable[[], object], **options: Any
) -> Receiving:
    """Call `receive` again until the peers have said hello."""
    for _ in range(100_000):
        session = end.receive(key, request, source, **options)
        if session is not None:
            return session
        step()
    raise AssertionError("they never say hello, or there is no room")


class Rig:
    """`sender` computes, `receiver` decodes; `step` lets both work until nothing more happens at this moment."""

    def __init__(self, sender: Side | None = None, receiver: Side | None = None, **options: Any) -> None:
        self.clock = Clock()
        self.hub = LocalHub(self.clock, **options)
        self.sides = {"p": sender or QuireSide(), "d": receiver or QuireSide()}
        self.links = {name: self.hub.link(name, side.pages) for name, side in self.sides.items()}
        self.ends = {name: self.end(name) for name in self.sides}
        self.ended: list[Session] = []

    def end(self, name: str, **options: Any) -> Endpoint:
        side = self.sides[name]
        layout = options.pop("layout", layout_of(side.view.shape(), name))
        return Endpoint(self.links[name], side.view, layout, limits=LIMITS, clock=self.clock, **options)

    @property
    def p(self) -> Endpoint:
        return self.ends["p"]

    @property
    def d(self) -> Endpoint:
        return self.ends["d"]

    def serve(self, request: Request, key: Key, *, aux: Aux | None = FIRST) -> None:
        """Compute a prompt at the sender and send it whole."""
        self.sides["p"].compute(request)
        self.p.send(key, request.id)
        assert self.p.put(key, len(request.tokens), last=True, aux=aux)

    def ask(self, request: Request, key: Key, **options: Any) -> Receiving:
        """A session of the receiver; when the peers do not know each other yet both work in between."""
        return received(self.d, key, request, Source(("p",)), lambda: self.step(), **options)

    def step(self, seconds: float = 0.0, names: Sequence[str] = ("p", "d")) -> list[Session]:
        """Let time pass, then both work in turn until it is quiet."""
        self.clock.now += seconds
        ended: list[Session] = []
        for _ in range(8):
            for name in names:
                ended += self.ends[name].step()
        self.ended += ended
        return ended

    def empty(self) -> bool:
        """Nothing is left of any session, on either side."""
        registry = [end._registry for end in self.ends.values()]
        return not any(b.dispatches or b.arrivals or b.early.asks or b.tickets or b.expected for b in registry)
