"""The loop: errors reach who asked, nobody hangs, every place comes back; whatever closes, breaks or is cancelled."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from threading import Event, current_thread
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from quire import InputError, StateError, check  # noqa: E402
from quire.engine import (  # noqa: E402
    Engine,
    EngineBusy,
    EngineConfig,
    Loop,
    Model,
    Piece,
    Run,
    RunFailed,
    Sampling,
    Stream,
    of,
)
from quire.tiers.arena import ArenaTier  # noqa: E402

from . import families  # noqa: E402
from .threads import PATIENCE, Crew, interruptible, until  # noqa: E402
from .valve import Valve  # noqa: E402
from .words import byte_tokenizer  # noqa: E402

PROMPT = range(20, 45)
PLAIN = Sampling(max_tokens=12, ignore_eos=True)
LONG = Sampling(max_tokens=400, ignore_eos=True)
SIZES: dict[str, Any] = {"device_pages": 80, "block_size": 8, "max_num_tokens": 64, "max_sequences": 8}


@pytest.fixture(scope="module")
def model() -> Model:
    return of(families.build("llama"))


@pytest.fixture(scope="module")
def expected(model: Model) -> tuple[int, ...]:
    """The plain answer."""
    with Engine(model, EngineConfig(**SIZES, max_length=512)) as engine:
        run = engine.submit(PROMPT, PLAIN)
        engine.drain()
    return tuple(run.answers[0].tokens)


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


# -- asking ------------------------------------------------------------------------------------------------------------

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


def settle(loop: Loop, places: int) -> None:
    """Nobody is inside, nobody was left to run to the end of a long answer, and every place is free."""
    until(lambda: not loop.call(lambda engine: engine.runs))
    assert loop.engine.stats.num_tokens < LONG.max_tokens
    assert [loop.gate.enter(timeout=0) for _ in range(places + 1)] == [True] * places + [False]
    for _ in range(places):
        loop.gate.leave()


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


# -- reading -----------------------------------------------------------------------------------------------------------


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


# -- the engine's thread -----------------------------------------------------------------------------------------------


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


# -- the end -----------------------------------------------------------------------------------------------------------


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
from quire.engine import Engine, EngineConfig, Loop, Sampling, of
torch.set_num_threads(1)
config = LlamaConfig(vocab_size=64, hidden_size=768, intermediate_size=3072, num_hidden_layers=4, num_attention_heads=8)
loop = Loop(Engine(of(AutoModelForCausalLM.from_config(config)), EngineConfig(80, max_length=1024)))
pieces = iter(loop.submit(range(20, 60), Sampling(max_tokens=900, ignore_eos=True)))
next(pieces)
print("the end")
"""


def test_a_program_may_end_in_the_middle_of_an_answer() -> None:
    """Nobody closed anything; torch's work must not be cut short by the end of the interpreter, which is an abort."""
    done = subprocess.run([sys.executable, "-c", FORGETFUL], capture_output=True, text=True, timeout=4 * PATIENCE)
    assert (done.returncode, done.stdout) == (0, "the end\n"), done.stderr
