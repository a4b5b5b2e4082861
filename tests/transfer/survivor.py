"""The survivor's side of a kill: it recovers in time and no page is lost. Also as a process of its own:

python -m tests.transfer.survivor sender|receiver LINK SEED        (who is killed, over which link)
"""

from __future__ import annotations

import faulthandler
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from quire import check
from quire.transfer.endpoint import Endpoint
from quire.transfer.geometry.ranks import Source
from quire.transfer.geometry.slices import Places
from quire.transfer.session.endpoint_registry import Session
from quire.transfer.wire.verdict import Key, Outcome

from .rig import received
from .sides import QuireSide, landed_right
from .worker import GROUPS, LIMITS, PAGE, make_end, request, serve

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = LIMITS.transfer + LIMITS.grace + 20


class Worker:
    """A child process; killed at the end in any case."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "tests.transfer.worker", *words]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert ":" in self.address

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def step_until(end: Endpoint, done: Callable[[], bool]) -> list[Session]:
    limit, ended = time.monotonic() + PATIENCE, []
    while not done():
        assert time.monotonic() < limit, "it hangs"
        ended += end.step(0.001)
    return ended


def landed(side: QuireSide, slots: Places) -> int:
    """Pages that have got some bytes."""
    return int(np.count_nonzero(side.pages[0][slots, 0:PAGE:4096].any(axis=1)))


def all_free(side: QuireSide) -> bool:
    check(side.cache)
    return side.taken() == [0, 0]


def without_sender(link: str, seed: int) -> None:
    end, _, side = make_end(link, "survivor")
    part = random.Random(seed).randrange(1, 30)
    with Worker("sender", link, "1") as first:
        session = received(end, Key("r", 1), request(), Source((first.address,)), lambda: end.step(0.001))
        landing = end.landing(session)
        assert landing is not None
        slots = landing.places[0][landing.places[0] >= 0]
        step_until(end, lambda: landed(side, slots) >= part or session.verdict is not None)
        first.kill()
        step_until(end, lambda: not end._registry.arrivals)
    if session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED:  # it was faster than the kill
        side.end("r")
    else:
        assert session.verdict is not None and session.verdict.outcome is Outcome.FAILED
    assert all_free(side) and not end.stuck
    before = side.pages[0].copy()
    for _ in range(50):
        end.step(0.001)
    assert np.array_equal(before, side.pages[0]), "something landed in pages that were given back"
    side.cache.clear()
    with Worker("sender", link, "2") as second:  # another one takes over
        again = received(end, Key("r", 2), request(), Source((second.address,)), lambda: end.step(0.001))
        landing = end.landing(again)
        assert landing is not None
        step_until(end, lambda: not end._registry.arrivals)
    assert again.verdict is not None and again.verdict.outcome is Outcome.DELIVERED, again.verdict
    assert landed_right(side, landing, request(), GROUPS) and again.aux is not None
    side.end("r")
    assert all_free(side) and end.close()


def without_receiver(link: str, seed: int) -> None:
    end, own, side = make_end(link, "survivor")
    serve(end, side, Key("r", 1))
    turns = random.Random(seed).randrange(1, 6)
    with Worker("receiver", link, "1", own.address) as first:
        step_until(end, lambda: bool(end._registry.tickets))
        for _ in range(turns):
            end.step(0.001)
        first.kill()
        step_until(end, lambda: not end._registry.dispatches)
    side.end("r")
    assert all_free(side) and not end.stuck and not end._registry.tickets
    serve(end, side, Key("r", 2))
    with Worker("receiver", link, "2", own.address):
        ended = step_until(end, lambda: not end._registry.dispatches)
    assert [s.verdict.outcome for s in ended if s.verdict] == [Outcome.DELIVERED]
    side.end("r")
    assert all_free(side) and end.close()


KILLED = {"sender": without_sender, "receiver": without_receiver}

if __name__ == "__main__":
    faulthandler.enable()
    KILLED[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
