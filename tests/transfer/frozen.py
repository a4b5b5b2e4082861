"""A sender that freezes in the middle and goes on later, over a real link, as a process of its own:

python -m tests.transfer.frozen LINK
"""

from __future__ import annotations

import faulthandler
import signal
import sys

import numpy as np

from quire import check
from quire.transfer.endpoint import Endpoint
from quire.transfer.geometry.ranks import Source
from quire.transfer.wire.layout import layout_of
from quire.transfer.wire.verdict import Key, Limits, Outcome

from .rig import received
from .survivor import Worker, landed, step_until
from .worker import make_link, make_side, request

SHORT = Limits(lease=20, transfer=1, grace=0.3)


def main(kind: str) -> None:
    side = make_side()
    link = make_link(kind, "survivor", side)
    end = Endpoint(link, side.view, layout_of(side.view.shape(), "survivor"), limits=SHORT)
    with Worker("sender", kind, "1") as sender:
        session = received(end, Key("r", 1), request(), Source((sender.address,)), lambda: end.step(0.001))
        landing = end.landing(session)
        assert landing is not None
        slots = landing.places[0][landing.places[0] >= 0]
        step_until(end, lambda: landed(side, slots) >= 2 or session.verdict is not None)
        sender.process.send_signal(signal.SIGSTOP)
        step_until(end, lambda: bool(end.stuck) or not end._registry.arrivals)
        print("stuck" if end.stuck else "quiet at once", session.verdict, flush=True)
        sender.process.send_signal(signal.SIGCONT)
        step_until(end, lambda: not end._registry.arrivals)
    assert session.verdict is not None
    if session.verdict.outcome is Outcome.DELIVERED:  # it was faster than the signal
        side.end("r")
    before = side.pages[0].copy()
    for _ in range(50):
        end.step(0.001)
    check(side.cache)
    assert not end.stuck and side.taken() == [0, 0] and np.array_equal(before, side.pages[0])
    assert end.close()


if __name__ == "__main__":
    faulthandler.enable()
    main(sys.argv[1])
