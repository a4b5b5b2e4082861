"""What tests of a loop share: prompts, loops of a small model, runs that stand in a step, that every place is free."""

from __future__ import annotations

from threading import Event
from typing import Any

from quire.engine import Engine, EngineConfig, Loop, Model, Sampling, Stream

from ...waits import PATIENCE, until
from ..threads import Crew
from ..valve import Valve

PROMPT = range(20, 45)
PLAIN = Sampling(max_tokens=12, ignore_eos=True)
LONG = Sampling(max_tokens=400, ignore_eos=True)
SIZES: dict[str, Any] = {"device_pages": 80, "block_size": 8, "max_num_tokens": 64, "max_sequences": 8}


def loop_of(model: Model, **settings: Any) -> Loop:
    return Loop(Engine(model, EngineConfig(**(SIZES | {"max_length": 512} | settings))))


def tokens(stream: Stream) -> tuple[int, ...]:
    """Of its only answer, as they were told."""
    return tuple(token for piece in stream for token in piece.tokens)


def occupy(loop: Loop, valve: Valve, count: int = 1) -> list[Stream]:
    """Runs in the middle of a step that does not go on."""
    valve.shut()
    ready = Event()
    with Crew() as crew:
        crew.start(loop.call, lambda _: ready.wait(PATIENCE))  # all of them are in the same step
        streams = crew.start(loop.submit_many, [PROMPT] * count, LONG)
        until(lambda: loop._inbox.qsize() >= count)
        ready.set()
    assert valve.reached.wait(PATIENCE)
    found: list[Stream] = streams.result()
    return found


def settle(loop: Loop, places: int) -> None:
    """Nobody is inside, nobody was left to run to the end of a long answer, and every place is free."""
    until(lambda: not loop.call(lambda engine: engine.runs))
    assert loop.engine.stats.num_tokens < LONG.max_tokens
    assert [loop.gate.enter(timeout=0) for _ in range(places + 1)] == [True] * places + [False]
    for _ in range(places):
        loop.gate.leave()
