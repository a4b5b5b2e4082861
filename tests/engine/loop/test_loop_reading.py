"""Reading from a loop: cancelled readers, closed event loops, limits of a wait, and what a listener hears."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from quire.engine import (  # noqa: E402
    Engine,
    EngineConfig,
    Loop,
    Model,
    Piece,
    Run,
    Sampling,
    Stream,
)

from ...waits import PATIENCE  # noqa: E402
from ..valve import Valve  # noqa: E402
from .loops import LONG, PLAIN, PROMPT, SIZES, loop_of, occupy, tokens  # noqa: E402


def test_leaving_a_loop_over_a_stream_cancels_it(model: Model) -> None:
    async def leave(loop: Loop) -> Stream:
        stream = await loop.submit_async(PROMPT, LONG)
        async for _ in stream:
            break
        return stream

    with loop_of(model) as loop:
        first = loop.submit(PROMPT, LONG)
        for _ in first:
            break
        for stream in (first, asyncio.run(leave(loop))):
            run = stream.wait(PATIENCE)
            assert run.answers[0].finish == "cancelled" and 1 <= len(run.answers[0].tokens) < 400


def test_a_cancelled_reader_cancels_its_run(model: Model, valve: Valve) -> None:
    async def act(loop: Loop) -> Stream:
        valve.shut()
        stream = await loop.submit_async(PROMPT, LONG)

        async def read() -> None:
            async for _ in stream:
                raise AssertionError("nothing came")

        task = asyncio.create_task(read())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return stream

    with loop_of(model) as loop:
        stream = asyncio.run(act(loop))
        valve.open()
        assert stream.wait(PATIENCE).answers[0].finish == "cancelled"


def test_a_reader_whose_event_loop_is_closed_breaks_nothing(model: Model, expected: tuple[int, ...]) -> None:
    """It waits in an event loop that ends without a word; the engine and everybody else go on."""
    with loop_of(model) as loop:
        own = asyncio.new_event_loop()
        stream = own.run_until_complete(loop.submit_async(PROMPT, LONG))
        pieces = stream.__aiter__()
        own.run_until_complete(pieces.__anext__())
        while stream.feed.num_unread:
            own.run_until_complete(pieces.__anext__())

        async def wait() -> None:
            await pieces.__anext__()

        task: Any = own.create_task(wait())
        own.run_until_complete(asyncio.sleep(0))
        own.close()
        assert tokens(loop.submit(PROMPT, PLAIN)) == expected
        stream.close()
        assert stream.wait(PATIENCE).error is None
        task._log_destroy_pending = False


def test_a_finished_run_cannot_be_cancelled(model: Model, expected: tuple[int, ...]) -> None:
    with loop_of(model) as loop:
        stream = loop.submit(PROMPT, PLAIN)
        assert tokens(stream) == expected and stream.done
        stream.close()
        loop.cancel(stream)
        run = stream.wait()
        assert loop.call(lambda engine: engine.cancel(run)) is False
        assert run.answers[0].finish == "length" and tuple(run.answers[0].tokens) == expected
        assert tokens(stream) == ()  # everything was read; reading again ends at once


def test_waiting_for_a_run_has_a_limit_and_can_go_on(model: Model, valve: Valve) -> None:
    with loop_of(model) as loop:
        (stream,) = occupy(loop, valve)
        with pytest.raises(TimeoutError, match="wait again, it goes on"):
            stream.wait(0.01)
        stream.close()
        valve.open()
        assert stream.wait(PATIENCE).done


class Diary:
    """Writes down what an engine tells."""

    def __init__(self) -> None:
        self.told: list[tuple[int, list[int]] | str] = []

    def hear(self, run: Run, branch: int, tokens: list[int]) -> bool:
        assert not run.done
        self.told.append((branch, tokens))
        return False

    def over(self, run: Run) -> None:
        assert run.done and all(answer.finish for answer in run.answers)
        self.told.append("over")


@pytest.mark.parametrize(
    "sampling",
    [
        PLAIN,
        Sampling(max_tokens=12, n=3, temperature=1.0, seed=5),
        Sampling(max_tokens=12, beams=3, n=2),
        Sampling(max_tokens=30, drafts=4, ignore_eos=True),
    ],
)
def test_a_listener_hears_every_token_in_order_and_the_end_last(model: Model, sampling: Sampling) -> None:
    with Engine(model, EngineConfig(**SIZES, max_length=512)) as engine:
        diary = Diary()
        run = engine.submit([*PROMPT, *PROMPT], sampling, listener=diary)
        engine.drain()
        assert diary.told.count("over") == 1 and diary.told[-1] == "over"
        for nth, answer in enumerate(run.answers):
            heard = [token for one in diary.told[:-1] if one[0] == nth for token in one[1]]
            assert heard == answer.tokens


def test_a_stream_tells_what_its_run_has(model: Model) -> None:
    with loop_of(model) as loop:
        stream = loop.submit(PROMPT, Sampling(max_tokens=12, n=3, temperature=1.0, seed=5))
        pieces: list[Piece] = list(stream)
        run = stream.wait()
        for nth, answer in enumerate(run.answers):
            assert [token for piece in pieces if piece.answer == nth for token in piece.tokens] == answer.tokens
        assert {piece.text for piece in pieces} == {""}  # no tokenizer
