"""The engine's thread: calls between two steps, nobody who keeps it from stepping, pages that others still read."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, current_thread

import pytest

torch = pytest.importorskip("torch")

from quire import StateError, check  # noqa: E402
from quire.engine import (  # noqa: E402
    Engine,
    EngineConfig,
    Loop,
    Model,
)

from ...waits import PATIENCE, until  # noqa: E402
from ..threads import Crew  # noqa: E402
from .loops import PLAIN, PROMPT, SIZES, loop_of, tokens  # noqa: E402


def test_call_acts_in_the_engines_thread(model: Model) -> None:
    with loop_of(model) as loop:
        assert loop.call(lambda _: current_thread().name) == "quire-engine"
        assert loop.call(lambda engine: engine) is loop.engine
        assert loop.call(lambda _: loop.call(lambda _: 5)) == 5
        with pytest.raises(ZeroDivisionError):
            loop.call(lambda _: 1 / 0)
        with pytest.raises(StateError, match="engine's own thread; submit from another one"):
            loop.call(lambda _: loop.submit(PROMPT, PLAIN))
        with pytest.raises(StateError, match="engine's own thread; close from another one"):
            loop.call(lambda _: loop.close())
        assert len(tokens(loop.submit(PROMPT, PLAIN))) == 12


def test_nobody_keeps_the_engine_from_stepping(model: Model, expected: tuple[int, ...]) -> None:
    """Calls that come without a pause are answered between steps, not instead of them."""
    with loop_of(model) as loop, Crew() as crew:
        done = Event()

        def pester() -> int:
            count = 0
            while not done.is_set():
                loop.call(lambda _: None)
                count += 1
            return count

        callers = [crew.start(pester) for _ in range(4)]
        try:
            assert tokens(loop.submit(PROMPT, PLAIN)) == expected
        finally:
            done.set()
        assert all(caller.result(PATIENCE) for caller in callers)


class Slow:
    """A connector that reads finished pages at its leisure."""

    def __init__(self) -> None:
        self.frees: list[Callable[[], None]] = []

    def matched(self, *_: object) -> int:
        return 0

    def allocated(self, *_: object) -> int:
        return 0

    def finished(self, _: object, free: Callable[[], None]) -> bool:
        self.frees.append(free)
        return False


def test_pages_that_a_connector_has_read_are_freed_without_another_run(model: Model) -> None:
    slow = Slow()
    with Loop(Engine(model, EngineConfig(**SIZES, max_length=512), connector=slow)) as loop:
        assert len(tokens(loop.submit(PROMPT, PLAIN))) == 12
        assert loop.engine.num_lingering == 1
        slow.frees.pop()()
        until(lambda: loop.engine.num_lingering == 0)
        loop.call(lambda engine: check(engine.cache))
        assert loop.call(lambda engine: engine.cache.num_sequences) == 0


def test_a_run_waits_for_pages_that_a_connector_still_reads(model: Model, expected: tuple[int, ...]) -> None:
    """Room for one: the second begins when the connector lets the first one's pages go."""
    slow = Slow()
    config = EngineConfig(6, block_size=8, max_num_tokens=64, max_sequences=8, max_length=48)
    with Loop(Engine(model, config, connector=slow)) as loop:
        first = loop.submit(PROMPT, PLAIN)
        assert tokens(first) == expected
        second = loop.submit(range(120, 150), PLAIN)
        with pytest.raises(TimeoutError):
            second.wait(0.1)
        slow.frees.pop()()
        assert len(tokens(second)) == 12
        slow.frees.pop()()
