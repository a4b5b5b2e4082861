"""A loop that closes or breaks: every run ends, everybody who waits is told why, nobody hangs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from quire import StateError, check  # noqa: E402
from quire.engine import (  # noqa: E402
    Engine,
    EngineConfig,
    Loop,
    Model,
    RunFailed,
)
from quire.tiers.arena import ArenaTier  # noqa: E402

from ...waits import PATIENCE, until  # noqa: E402
from ..threads import Crew  # noqa: E402
from ..valve import Valve  # noqa: E402
from ..words import byte_tokenizer  # noqa: E402
from .loops import LONG, PLAIN, PROMPT, SIZES, loop_of, occupy, tokens  # noqa: E402


def crowd(loop: Loop, crew: Crew) -> list[Any]:
    """Threads and coroutines that wait outside; what they hear in the end."""

    def ask() -> Exception | None:
        with pytest.raises(StateError) as caught:
            loop.submit(PROMPT, LONG)
        return caught.value

    async def ask_async() -> list[BaseException]:
        asks = [loop.submit_async(PROMPT, LONG) for _ in range(3)]
        found = await asyncio.wait_for(asyncio.gather(*asks, return_exceptions=True), PATIENCE)
        return [one for one in found if isinstance(one, BaseException)]

    futures = [*(crew.start(ask) for _ in range(3)), crew.start(asyncio.run, ask_async())]
    until(lambda: loop.num_waiting == 6)
    return futures


def test_closing_ends_runs_and_waits(model: Model, valve: Valve) -> None:
    loop = loop_of(model, max_waiting=2)
    inside = occupy(loop, valve, 2)
    with Crew() as crew:
        outside = crowd(loop, crew)
        closing = [crew.start(loop.close) for _ in range(2)]
        until(lambda: loop._closing)
        valve.open()
        for one in closing:
            one.result(PATIENCE)
        heard = [*(one.result(PATIENCE) for one in outside[:3]), *outside[3].result(PATIENCE)]
    assert len(heard) == 6
    assert all("submit: the engine is closed; make a new one" in str(one) for one in heard)
    assert [stream.wait(PATIENCE).answers[0].finish for stream in inside] == ["cancelled"] * 2
    assert [len(list(stream)) >= 0 for stream in inside] == [True] * 2  # reading ends, without an error
    loop.close()


def test_a_closed_loop_says_so(model: Model) -> None:
    loop = loop_of(model, max_waiting=1)
    stream = loop.submit(PROMPT, PLAIN)
    stream.wait(PATIENCE)
    loop.close()
    for _ in range(3):
        with pytest.raises(StateError, match="submit: the engine is closed; make a new one"):
            loop.submit(PROMPT, PLAIN, timeout=PATIENCE)
        with pytest.raises(StateError, match="the engine is closed"):
            asyncio.run(asyncio.wait_for(loop.submit_async(PROMPT, PLAIN), PATIENCE))
    stream.close()
    loop.cancel(stream)
    loop.close()
    assert loop.call(lambda engine: engine.cache.num_sequences) == 0
    assert not loop._thread.is_alive()


def test_a_model_that_throws_ends_every_run_and_tells_why(model: Model, valve: Valve) -> None:
    loop = loop_of(model, max_waiting=2)
    inside = occupy(loop, valve, 2)
    with Crew() as crew:
        outside = crowd(loop, crew)
        valve.error = MemoryError("no room for activations")
        valve.open()
        heard = [*(one.result(PATIENCE) for one in outside[:3]), *outside[3].result(PATIENCE)]
    why = "a step failed: MemoryError: no room for activations"
    assert len(heard) == 6
    assert all(f"submit: {why}; make a new engine" in str(one) for one in heard)
    for stream in inside:
        with pytest.raises(RunFailed, match=why):
            list(stream)
        run = stream.wait(PATIENCE)
        assert run.error == why and run.answers[0].finish == "error"
    with pytest.raises(StateError, match=why):
        loop.submit(PROMPT, PLAIN, timeout=PATIENCE)
    assert loop.call(lambda engine: len(engine.runs)) == 0
    with Crew() as crew:
        crew.start(loop.close)
    with pytest.raises(StateError, match=why):
        loop.submit(PROMPT, PLAIN)


def test_coroutines_hear_of_a_broken_engine(model: Model, valve: Valve) -> None:
    async def read(loop: Loop) -> None:
        stream = await loop.submit_async(PROMPT, LONG)
        async for _ in stream:
            valve.error = ValueError("bad weights")

    with loop_of(model) as loop, pytest.raises(RunFailed, match="a step failed: ValueError: bad weights"):
        asyncio.run(asyncio.wait_for(read(loop), PATIENCE))


class Moody:
    """A tokenizer that stops working in the middle."""

    def __init__(self) -> None:
        self.inner, self.works = byte_tokenizer(), True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def decode(self, *args: Any, **options: Any) -> Any:
        if not self.works:
            raise ValueError("no words")
        return self.inner.decode(*args, **options)


@pytest.mark.parametrize("in_a_cancel", [False, True])
def test_a_tokenizer_that_throws_leaves_nobody_waiting(model: Model, valve: Valve, in_a_cancel: bool) -> None:
    """In a step, or in a cancel that hands out the last words: its own run fails, and the engine goes on."""
    words = Moody()
    with loop_of(replace(model, tokenizer=words)) as loop:
        streams = occupy(loop, valve, 2)
        if in_a_cancel:
            loop._put(lambda: setattr(words, "works", False))
            streams[0].close()
            streams.reverse()
        else:
            words.works = False
        valve.open()
        with pytest.raises(RunFailed, match="its listener failed: ValueError: no words"):
            list(streams[0])
        assert streams[1].wait(PATIENCE).done
        words.works = True
        assert list(loop.submit(PROMPT, PLAIN, timeout=PATIENCE))
        assert loop.call(lambda engine: len(engine.runs)) == 0


class Stubborn(ArenaTier):
    """A host whose reads throw, or that cannot be closed."""

    view = None  # type: ignore[assignment]  # so that the mover asks `read`

    def __init__(self, pages: int, page_bytes: int, *, reads: bool = True, closes: bool = True) -> None:
        super().__init__("host", [pages], [page_bytes])
        self.reads, self.closes, self.asked = reads, closes, 0

    def read(self, *args: Any) -> None:
        self.asked += 1
        if not self.reads:
            raise OSError("the line is dead")
        super().read(*args)

    def close(self) -> None:
        super().close()
        if not self.closes:
            raise OSError("it is busy")


def over_a_host(model: Model, pages: int, **faults: bool) -> tuple[Loop, Stubborn]:
    config = EngineConfig(12, host_pages=pages, block_size=8, max_num_tokens=64, max_sequences=8, max_length=96)
    (group,) = model.groups(8, 256)
    host = Stubborn(pages, group.page_bytes, **faults)
    return Loop(Engine(model, config, colder=[host])), host


@pytest.mark.parametrize("reads", [True, False])
def test_a_tier_that_throws_costs_reuse_and_no_run(model: Model, reads: bool) -> None:
    """What cannot be brought back is computed again."""
    prompts = [range(first, first + 60) for first in (20, 90, 160)]  # two of them fit into the device's memory
    with Engine(model, EngineConfig(**SIZES, max_length=512)) as engine:
        runs = [engine.submit(prompt, PLAIN) for prompt in prompts]
        engine.drain()
    loop, host = over_a_host(model, 24, reads=reads)
    with loop:
        for _ in range(3):
            assert [tokens(loop.submit(prompt, PLAIN)) for prompt in prompts] == [
                tuple(run.answers[0].tokens) for run in runs
            ]
        loop.call(lambda engine: check(engine.cache))
        assert loop.call(lambda engine: engine.cache.num_sequences) == 0
    assert host.asked, "nothing was to come from the host"


def test_a_fault_while_closing_is_told_once(model: Model) -> None:
    loop, _ = over_a_host(model, 4, closes=False)
    with pytest.raises(OSError, match="it is busy"):
        loop.close()
    loop.close()
    with pytest.raises(StateError, match="it is busy"):
        loop.submit(PROMPT, PLAIN, timeout=PATIENCE)


FORGETFUL = """
import sys, torch
from transformers import AutoModelForCausalLM, LlamaConfig
from quire.engine import Engine, EngineConfig, Loop, Sampling, from_module
torch.set_num_threads(1)
config = LlamaConfig(vocab_size=64, hidden_size=768, intermediate_size=3072, num_hidden_layers=4, num_attention_heads=8)
loop = Loop(Engine(from_module(AutoModelForCausalLM.from_config(config)), EngineConfig(80, max_length=1024)))
pieces = iter(loop.submit(range(20, 60), Sampling(max_tokens=900, ignore_eos=True)))
next(pieces)
print("the end")
"""


def test_a_program_may_end_in_the_middle_of_an_answer() -> None:
    """Nobody closed anything; torch's work must not be cut short by the end of the interpreter, which is an abort."""
    done = subprocess.run([sys.executable, "-c", FORGETFUL], capture_output=True, text=True, timeout=4 * PATIENCE)
    assert (done.returncode, done.stdout) == (0, "the end\n"), done.stderr
