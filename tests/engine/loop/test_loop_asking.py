"""Asking a loop: errors reach who asked, prompts wait for places, and every place comes back, whoever is cancelled."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from quire import InputError  # noqa: E402
from quire.engine import (  # noqa: E402
    EngineBusy,
    Loop,
    Model,
    Sampling,
)

from ...waits import PATIENCE, until  # noqa: E402
from .. import families  # noqa: E402
from ..threads import Crew, interruptible  # noqa: E402
from ..valve import Valve  # noqa: E402
from .loops import LONG, PLAIN, PROMPT, loop_of, occupy, settle, tokens  # noqa: E402

BAD: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
    ([], PLAIN, {}, InputError, "at least one"),
    ([1, 2, families.VOCAB], PLAIN, {}, InputError, "the model knows 0 to 255"),
    ([[1, 2], [3]], PLAIN, {}, InputError, "in one row"),
    (["a"], PLAIN, {}, InputError, "whole numbers"),
    (PROMPT, Sampling(max_tokens=1000), {}, InputError, "that is 1025; one request may reach 512"),
    (PROMPT, Sampling(stop=("a",)), {}, InputError, "stop strings: the model has no tokenizer; give stop_ids"),
    (PROMPT, PLAIN, {"colour": "red"}, TypeError, "colour"),
    (PROMPT, {"max_tokens": 5}, {}, InputError, "sampling is {'max_tokens': 5}; pass a Sampling"),
    (PROMPT, None, {}, InputError, "sampling is None; pass a Sampling"),
]


@pytest.mark.parametrize(("prompt", "sampling", "options", "kind", "words"), BAD)
def test_a_refused_prompt_tells_why_and_gives_its_place_back(
    model: Model, prompt: Any, sampling: Any, options: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with loop_of(model, max_waiting=1) as loop:
        for _ in range(2):
            with pytest.raises(kind, match=words):
                loop.submit(prompt, sampling, timeout=PATIENCE, **options)
            with pytest.raises(kind, match=words):
                asyncio.run(asyncio.wait_for(loop.submit_async(prompt, sampling, **options), PATIENCE))
        assert len(tokens(loop.submit(PROMPT, PLAIN, timeout=PATIENCE))) == 12


def test_a_full_engine_says_so_after_the_timeout(model: Model, valve: Valve) -> None:
    with loop_of(model, max_waiting=1) as loop:
        (inside,) = occupy(loop, valve)
        with pytest.raises(EngineBusy, match=r"1 runs were inside for 0.01 s; submit again later, or wait longer"):
            loop.submit(PROMPT, PLAIN, timeout=0.01)
        inside.close()
        valve.open()
        assert inside.wait(PATIENCE).answers[0].finish == "cancelled"
        assert len(tokens(loop.submit(PROMPT, PLAIN, timeout=PATIENCE))) == 12


def test_a_tenant_with_too_many_requests_leaves_places_to_others(model: Model, valve: Valve) -> None:
    """It waits, and is told so in the end; another one comes in at once. First come, first served: nobody does."""
    for scheduling, other in (("fair", True), ("fcfs", False)):
        with loop_of(model, max_waiting=5, scheduling=scheduling) as loop:
            (inside,) = occupy(loop, valve)
            inside.close()
            valve.open()
            inside.wait(PATIENCE)
            many = [loop.submit(PROMPT, LONG, timeout=0, tenant="greedy") for _ in range(4 if other else 5)]
            with pytest.raises(EngineBusy, match="too many of the same tenant" if other else "5 runs were inside"):
                loop.submit(PROMPT, LONG, timeout=0, tenant="greedy")
            if other:
                assert len(tokens(loop.submit(PROMPT, PLAIN, timeout=0, tenant="small"))) == 12
                assert len(tokens(asyncio.run(loop.submit_async(PROMPT, PLAIN, timeout=0)))) == 12
            for stream in many:
                stream.close()
                stream.wait(PATIENCE)
            assert not loop.gate._taken


def test_prompts_that_are_submitted_together_are_computed_together(
    model: Model, expected: tuple[int, ...], valve: Valve
) -> None:
    with loop_of(model) as loop:
        (first,) = occupy(loop, valve)
        with Crew() as crew:
            asked = crew.start(lambda: loop.submit_many([PROMPT] * 5, PLAIN))
            until(lambda: loop._inbox.qsize() == 5)
            valve.open()
            streams = asked.result(PATIENCE)
        first.close()
        assert [tokens(stream) for stream in streams] == [expected] * 5
        arrivals = [stream.run.arrival for stream in streams]
        assert arrivals == sorted(arrivals)


def test_when_one_of_several_is_refused_none_goes_on(model: Model) -> None:
    with loop_of(model, max_waiting=3) as loop:
        with pytest.raises(InputError, match="the model knows"):
            loop.submit_many([PROMPT, [999], PROMPT], LONG, timeout=PATIENCE)
        settle(loop, places=3)


def test_a_coroutine_cancelled_before_anybody_saw_it_gives_its_place_back(model: Model, valve: Valve) -> None:
    """Its job is in the inbox, and the engine is in a step."""

    async def ask_in_vain(loop: Loop) -> None:
        task = asyncio.create_task(loop.submit_async(PROMPT, LONG))
        while loop._inbox.empty():
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    with loop_of(model, max_waiting=2) as loop:
        (inside,) = occupy(loop, valve)
        asyncio.run(ask_in_vain(loop))
        inside.close()
        valve.open()
        settle(loop, places=2)
        assert inside.wait(PATIENCE).answers[0].finish == "cancelled"


def test_a_coroutine_cancelled_before_it_hears_of_its_run_leaves_none_behind(model: Model) -> None:
    """The engine has taken it, but the news is still on its way."""

    async def ask_in_vain(loop: Loop) -> None:
        task = asyncio.create_task(loop.submit_async(PROMPT, LONG))
        await asyncio.sleep(0)
        until(lambda: bool(loop.engine.runs))  # meanwhile nothing else runs in this thread
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    with loop_of(model, max_waiting=2) as loop:
        asyncio.run(ask_in_vain(loop))
        settle(loop, places=2)


@pytest.mark.skipif(sys.platform == "win32", reason="no signals to a thread")
def test_ctrl_c_while_asking_leaves_no_run_behind(model: Model, valve: Valve) -> None:
    def interrupt(loop: Loop, send: Callable[[], None]) -> None:
        until(lambda: loop._inbox.qsize() == 1)
        send()

    with loop_of(model) as loop:
        (inside,) = occupy(loop, valve)
        with interruptible() as send, Crew() as crew:
            crew.start(interrupt, loop, send)
            with pytest.raises(KeyboardInterrupt):
                loop.submit(PROMPT, LONG)
        inside.close()
        valve.open()
        settle(loop, places=1024)


def test_event_loops_in_two_threads_share_an_engine(model: Model, expected: tuple[int, ...]) -> None:
    async def ask(loop: Loop) -> tuple[int, ...]:
        stream = await loop.submit_async(PROMPT, PLAIN)
        return tuple([token async for piece in stream for token in piece.tokens])

    async def ask_often(loop: Loop) -> list[tuple[int, ...]]:
        return await asyncio.wait_for(asyncio.gather(*(ask(loop) for _ in range(8))), PATIENCE)

    with loop_of(model, max_waiting=5) as loop, Crew() as crew:
        found = [crew.start(asyncio.run, ask_often(loop)) for _ in range(2)]
        assert [answer for one in found for answer in one.result(PATIENCE)] == [expected] * 16
