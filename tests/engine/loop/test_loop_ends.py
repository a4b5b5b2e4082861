"""How runs of a loop come to an end that their readers can tell: dropped, unread, drained, timed out, closed."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import InputError, StateError  # noqa: E402
from quire.engine import LLM, Engine, EngineBusy, EngineConfig, Loop, Model, Run, RunFailed, Sampling, from_module  # noqa: E402

from ...waits import PATIENCE, until  # noqa: E402
from .. import families  # noqa: E402
from ..threads import Crew  # noqa: E402
from ..valve import Valve  # noqa: E402
from ..words import byte_tokenizer  # noqa: E402
from .loops import LONG, PLAIN, PROMPT, SIZES, loop_of, occupy, settle, tokens  # noqa: E402


@pytest.fixture(scope="module")
def model() -> Model:
    return from_module(families.build("llama"), byte_tokenizer())


# -- nobody reads ------------------------------------------------------------------------------------------------------


def test_a_dropped_stream_is_cancelled(model: Model, valve: Valve) -> None:
    """Before its first token, and in the middle of an answer."""

    def begin(loop: Loop, pieces: int) -> Run:
        (stream,) = occupy(loop, valve)
        if pieces:
            valve.open()
            until(lambda: stream.feed.num_unread >= pieces)
            valve.shut()
            assert valve.reached.wait(PATIENCE)
        assert stream.run is not None and not stream.run.done
        return stream.run

    with loop_of(model, max_waiting=2) as loop:
        for pieces in (0, 3):
            run = begin(loop, pieces)
            gc.collect()
            valve.open()
            settle(loop, places=2)
            assert run.done and run.answers[0].finish == "cancelled" and pieces <= len(run.answers[0].tokens) < 400


def test_a_coroutine_that_forgets_its_stream_leaves_no_run(model: Model) -> None:
    async def forget(loop: Loop) -> None:
        await loop.submit_async(PROMPT, LONG)

    with loop_of(model, max_waiting=1) as loop:
        asyncio.run(forget(loop))
        settle(loop, places=1)


def test_a_stream_that_nobody_reads_fails(model: Model) -> None:
    with loop_of(model, max_unread=5) as loop:
        stream = loop.submit(PROMPT, LONG)
        until(lambda: stream.done)
        with pytest.raises(RunFailed, match="more than 5 pieces of it wait to be read; read it, `wait`"):
            list(stream)
        assert stream.run is not None and 5 < len(stream.run.answers[0].tokens) < 12
        settle(loop, places=1024)


def test_whoever_waits_or_reads_is_not_too_slow(model: Model) -> None:
    with loop_of(model, max_unread=5) as loop:
        assert len(loop.submit(PROMPT, PLAIN).wait(PATIENCE).answers[0].tokens) == 12
        gathered = loop.submit_many([PROMPT] * 3, PLAIN, gather=True)
        until(lambda: all(stream.done for stream in gathered))
        assert [len(tokens(stream)) for stream in gathered] == [12] * 3
    config = EngineConfig(80, block_size=8, max_num_tokens=64, max_sequences=8, max_length=256, max_unread=5)
    with LLM(model, config=config) as llm:
        assert [len(one.tokens[0]) for one in llm.generate(["ab", "cd"], PLAIN)] == [12, 12]


# -- the end of an answer ----------------------------------------------------------------------------------------------

ENDINGS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "length": ({}, ["length"]),
    "several": ({"n": 3, "temperature": 1.0, "seed": 5, "ignore_eos": False, "max_tokens": 40}, ["eos", "length"]),
    "beams": ({"beams": 2, "n": 2}, ["length"]),
    "stop": ({"stop": "*", "logit_bias": {9: 20}}, ["stop"]),
    "held back": ({"stop": "**?", "logit_bias": {9: 20}}, ["length"]),  # its last stars may be the beginning of a stop
    "drafts": ({"drafts": 4, "max_tokens": 30}, ["length"]),
}


@pytest.mark.parametrize(("fields", "ends"), ENDINGS.values(), ids=ENDINGS)
def test_the_last_piece_of_an_answer_says_why(model: Model, fields: dict[str, Any], ends: list[str]) -> None:
    """No piece of an answer comes behind it, and with it all of the text is there."""
    with loop_of(model) as loop:
        sampling = Sampling(**({"max_tokens": 12, "ignore_eos": True} | fields))
        stream = loop.submit([100, 97, 98, 100, 97, 98], sampling)
        pieces = list(stream)
        run = stream.wait(PATIENCE)
        assert {answer.finish for answer in run.answers} == set(ends)
        for nth, answer in enumerate(run.answers):
            mine = [piece for piece in pieces if piece.answer == nth]
            assert [piece.finish for piece in mine] == [None] * (len(mine) - 1) + [answer.finish]
            text = "".join(piece.text for piece in mine)
            assert text == stream.transcripts[nth].text
            assert answer.finish == "stop" or text == model.tokenizer.decode(answer.tokens)


def test_a_cancelled_and_a_failed_answer_say_so_too(model: Model, valve: Valve) -> None:
    with loop_of(model) as loop:
        (stream,) = occupy(loop, valve)
        stream.close()
        valve.open()
        assert [piece.finish for piece in stream][-1] == "cancelled"
        (broken,) = occupy(loop, valve)
        valve.error = ValueError("bad weights")
        valve.open()
        heard = []
        with pytest.raises(RunFailed, match="a step failed: ValueError: bad weights"):
            for piece in broken:
                heard.append(piece)
        assert heard[-1].finish == "error"


# -- waiting for a place -----------------------------------------------------------------------------------------------


def test_a_coroutine_waits_for_a_place_no_longer_than_it_wants(model: Model, valve: Valve) -> None:
    """And the step under way does not count: once it has a place, it has all the time."""

    async def ask(loop: Loop) -> None:
        with pytest.raises(EngineBusy, match=r"1 runs were inside for 0.01 s; submit again later, or wait longer"):
            await loop.submit_async(PROMPT, PLAIN, timeout=0.01)
        assert loop.num_waiting == 0
        for wrong in ("soon", math.nan, True, -1, -math.inf):
            with pytest.raises(InputError, match="its timeout is"):
                await loop.submit_async(PROMPT, PLAIN, timeout=wrong)  # type: ignore[arg-type]

    async def ask_in_a_long_step(loop: Loop) -> tuple[int, ...]:
        asked = asyncio.create_task(loop.submit_async(PROMPT, PLAIN, timeout=0))
        while loop._inbox.empty():
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)  # its timeout is over, and the step is not
        assert not asked.done()
        valve.open()
        stream = await asked
        return tuple([token async for piece in stream for token in piece.tokens])

    with loop_of(model, max_waiting=1) as loop:
        (inside,) = occupy(loop, valve)
        asyncio.run(asyncio.wait_for(ask(loop), PATIENCE))
        inside.close()
        valve.open()
        settle(loop, places=1)
    with loop_of(model, max_waiting=2) as loop:
        (inside,) = occupy(loop, valve)
        assert len(asyncio.run(asyncio.wait_for(ask_in_a_long_step(loop), PATIENCE))) == 12
        inside.close()


def test_no_wait_is_shorter_than_none(model: Model) -> None:
    with loop_of(model) as loop:
        stream = loop.submit(PROMPT, PLAIN)
        waits: list[Callable[[], object]] = [
            lambda: stream.wait(-0.5), lambda: loop.drain(-1), lambda: loop.submit(PROMPT, PLAIN, timeout=-1),
        ]  # fmt: skip
        for wait in waits:
            with pytest.raises(InputError, match=r"its timeout is -\d.*; give seconds, 0 or more, or None"):
                wait()
        assert len(tokens(stream)) == 12 and not loop.call(lambda engine: engine.runs), "nothing else was queued"


def test_closed_waits_until_the_place_is_free(model: Model) -> None:
    async def act(loop: Loop) -> None:
        for _ in range(3):
            stream = await loop.submit_async(PROMPT, LONG, timeout=0)  # the place is free at once
            async for _ in stream:
                break
            await stream.closed()
            assert stream.done and stream.run is not None and stream.run.answers[0].finish == "cancelled"
        done = await loop.submit_async(PROMPT, PLAIN)
        heard = [piece async for piece in done]
        await done.closed()
        assert heard[-1].finish == "length"

    with loop_of(model, max_waiting=1) as loop:
        asyncio.run(asyncio.wait_for(act(loop), PATIENCE))


def test_wait_async_keeps_what_nobody_reads(model: Model) -> None:
    """However many pieces wait, and it is woken once: at the end."""

    async def act(loop: Loop) -> tuple[Run, int]:
        event_loop = asyncio.get_running_loop()
        stream = await loop.submit_async(PROMPT, PLAIN)
        woken, wake = [], event_loop.call_soon_threadsafe

        def note(*args: Any) -> Any:
            woken.append(args)
            return wake(*args)

        event_loop.call_soon_threadsafe = note  # type: ignore[method-assign, assignment]
        run = await stream.wait_async()
        return run, len(woken)

    with loop_of(model, max_unread=2) as loop:
        run, woken = asyncio.run(asyncio.wait_for(act(loop), PATIENCE))
        assert run.error is None and len(run.answers[0].tokens) == 12 and woken <= 1


def test_call_async_acts_in_the_engines_thread(model: Model, valve: Valve) -> None:
    async def act(loop: Loop) -> None:
        assert await loop.call_async(lambda engine: engine) is loop.engine
        with pytest.raises(ZeroDivisionError):
            await loop.call_async(lambda _: 1 / 0)
        called: list[int] = []
        valve.shut()
        stream = await loop.submit_async(PROMPT, LONG)
        assert valve.reached.wait(PATIENCE)
        task = asyncio.create_task(loop.call_async(lambda _: called.append(1)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        valve.open()
        await stream.closed()
        assert await loop.call_async(lambda _: called) == []

    with loop_of(model) as loop:
        asyncio.run(asyncio.wait_for(act(loop), PATIENCE))


# -- draining ----------------------------------------------------------------------------------------------------------


def test_a_drain_lets_answers_finish_and_takes_no_more(model: Model, valve: Valve) -> None:
    def wait_in_vain() -> None:
        with pytest.raises(StateError, match="the engine is draining: it takes no more; ask another one"):
            loop.submit(PROMPT, PLAIN)

    with loop_of(model, max_waiting=1) as loop:
        valve.shut()
        inside = loop.submit(PROMPT, PLAIN)
        assert valve.reached.wait(PATIENCE)
        with Crew() as crew:
            line = crew.start(wait_in_vain)
            until(lambda: loop.num_waiting == 1)
            assert loop.drain(timeout=0.01) is False  # a step is under way
            line.result(PATIENCE)
            drained = crew.start(loop.drain)
            with pytest.raises(StateError, match="submit: the engine is draining"):
                loop.submit(PROMPT, PLAIN)
            with pytest.raises(StateError, match="submit: the engine is draining"):
                asyncio.run(loop.submit_async(PROMPT, PLAIN))
            valve.open()
            assert drained.result(PATIENCE) is True
        assert inside.done and len(tokens(inside)) == 12
        with pytest.raises(StateError, match="engine's own thread; drain from another one"):
            loop.call(lambda _: loop.drain())
    assert loop.drain(PATIENCE) is True  # closed: nothing is inside


def test_a_drain_does_not_wait_for_a_broken_engine(model: Model, valve: Valve) -> None:
    with loop_of(model) as loop, Crew() as crew:
        (inside,) = occupy(loop, valve)
        drained = crew.start(loop.drain)
        until(lambda: loop._draining)
        valve.error = ValueError("bad weights")
        valve.open()
        assert drained.result(PATIENCE) is True
        assert inside.wait(PATIENCE).error == "a step failed: ValueError: bad weights"


def test_a_drain_waits_for_pages_that_others_read(model: Model) -> None:
    frees: list[Any] = []

    class Slow:
        """A connector that reads finished pages at its leisure."""

        def matched(self, *_: object) -> int:
            return 0

        def allocated(self, *_: object) -> int:
            return 0

        def finished(self, _: object, free: Any) -> bool:
            frees.append(free)
            return False

    with Loop(Engine(model, EngineConfig(**SIZES, max_length=512), connector=Slow())) as loop:
        assert len(tokens(loop.submit(PROMPT, PLAIN))) == 12
        assert loop.drain(timeout=0.01) is False
        frees.pop()()
        assert loop.drain(PATIENCE) is True


# -- times -------------------------------------------------------------------------------------------------------------


class Clock:
    """Goes on by one with every look, and by ten with every step of the model."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now

    def step(self, *_: object) -> None:
        self.now += 10.0


def test_times_are_those_that_a_user_sees(model: Model) -> None:
    """A wait for a place counts; what did not happen is nan."""
    clock = Clock()
    hook = model.module.register_forward_pre_hook(clock.step)
    config = EngineConfig(**SIZES, max_length=512, max_waiting=1)
    try:
        with Loop(Engine(model, config, clock=clock)) as loop, Crew() as crew:
            ready = Event()
            crew.start(loop.call, lambda _: ready.wait(PATIENCE))
            first = crew.start(loop.submit, PROMPT, PLAIN)
            until(lambda: loop._inbox.qsize() == 1)
            second = crew.start(loop.submit, PROMPT, Sampling(max_tokens=1))
            until(lambda: loop.num_waiting == 1)
            ready.set()
            seen = [one.result(PATIENCE).wait(PATIENCE).user_times for one in (first, second)]
        assert 0 < seen[0].queued < 10 < seen[0].first_token < 25 and 10 < seen[0].between_tokens < 20
        assert seen[0].total == pytest.approx(seen[0].first_token + 11 * seen[0].between_tokens, abs=5)
        assert seen[1].queued > 12 * 10 and seen[1].total > seen[1].first_token > seen[1].queued  # twelve steps later
        assert math.isnan(seen[1].between_tokens)
        with Engine(model, config, clock=clock) as engine:
            run = engine.submit(PROMPT, PLAIN)
            engine.cancel(run)
            queued, token, between, total, _ = run.user_times
            assert all(map(math.isnan, (queued, token, between))) and total > 0
    finally:
        hook.remove()


def test_an_output_and_a_stream_have_their_times(model: Model) -> None:
    with LLM(model, config=EngineConfig(**SIZES, max_length=512)) as llm:
        (output,) = llm.generate("abc", PLAIN)
        assert 0 <= output.times.queued <= output.times.first_token <= output.times.total
        stream = llm.stream("abc", PLAIN)
        stream.wait(PATIENCE)
        assert stream.times is not None and stream.times.between_tokens > 0
        assert llm.drain(PATIENCE) is True
