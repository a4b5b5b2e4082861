"""Real processes over real links, one of them killed in the middle: the other recovers in time, no page is lost."""

from __future__ import annotations

import importlib.util
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from quire import check
from quire.transfer.books import Session
from quire.transfer.endpoint import Endpoint
from quire.transfer.ranks import Source
from quire.transfer.verdict import Key, Outcome

from .rig import received
from .views import QuireSide, landed_right
from .worker import GROUPS, LIMITS, PAGE, make_end, request, serve

ROOT = Path(__file__).resolve().parents[2]
LINKS = [
    "tcp",
    pytest.param(
        "nixl", marks=pytest.mark.skipif(importlib.util.find_spec("nixl") is None, reason="nixl is not installed")
    ),
]
MORE = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 20)]
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

    def end(self) -> None:
        self.process.kill()
        self.process.wait(30)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    made: list[Worker] = []
    yield made
    for worker in made:
        worker.end()


def step_until(end: Endpoint, done: Callable[[], bool]) -> list[Session]:
    limit, ended = time.monotonic() + PATIENCE, []
    while not done():
        assert time.monotonic() < limit, "it hangs"
        ended += end.step(0.001)
    return ended


def landed(side: QuireSide, slots: np.ndarray) -> int:
    """Pages that have got some bytes."""
    return np.count_nonzero(side.pages[0][slots, 0:PAGE:4096].any(axis=1))


def all_free(side: QuireSide) -> bool:
    check(side.cache)
    return side.taken() == [0, 0]


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("seed", [1, 2, *MORE])
def test_the_sender_is_killed(link: str, seed: int, workers: list[Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp,self")  # page by page; otherwise a READ is over before anybody is killed
    end, _, side = make_end(link, "survivor")
    part = random.Random(seed).randrange(1, 30)
    workers.append(Worker("sender", link, "1"))
    session = received(end, Key("r", 1), request(), Source((workers[0].address,)), lambda: end.step(0.001))
    landing = end.landing(session)
    assert landing is not None
    slots = landing.places[0][landing.places[0] >= 0]
    step_until(end, lambda: landed(side, slots) >= part or session.verdict is not None)
    workers[0].kill()
    step_until(end, lambda: not end.books.arrivals)
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
    workers.append(Worker("sender", link, "2"))  # another one takes over
    again = received(end, Key("r", 2), request(), Source((workers[1].address,)), lambda: end.step(0.001))
    landing = end.landing(again)
    assert landing is not None
    step_until(end, lambda: not end.books.arrivals)
    assert again.verdict is not None and again.verdict.outcome is Outcome.DELIVERED, again.verdict
    assert landed_right(side, landing, request(), GROUPS) and again.aux is not None
    side.end("r")
    assert all_free(side) and end.close()


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("seed", [3, 4, *MORE])
def test_the_receiver_is_killed(link: str, seed: int, workers: list[Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    end, own, side = make_end(link, "survivor")
    serve(end, side, Key("r", 1))
    turns = random.Random(seed).randrange(1, 6)
    workers.append(Worker("receiver", link, "1", own.address))
    step_until(end, lambda: bool(end.books.tickets))
    for _ in range(turns):
        end.step(0.001)
    workers[0].kill()
    step_until(end, lambda: not end.books.dispatches)
    side.end("r")
    assert all_free(side) and not end.stuck and not end.books.tickets
    serve(end, side, Key("r", 2))
    workers.append(Worker("receiver", link, "2", own.address))
    ended = step_until(end, lambda: not end.books.dispatches)
    assert [s.verdict.outcome for s in ended if s.verdict] == [Outcome.DELIVERED]
    side.end("r")
    assert all_free(side) and end.close()
