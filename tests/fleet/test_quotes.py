"""All workers are asked at once when a first token would come: real engines behind a real server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from quire import InputError, Scope
from quire.engine import Engine, Sampling, TooLate
from quire.engine.setup.submission import EngineBusy
from quire.fleet.fleet_stream import FleetLimits
from quire.fleet.fleet_work import AskQuote, FleetWork, WorkerQuote, WorkRefused
from quire.fleet.worker import FleetWorker
from quire.fleet.worker_quotes import WorkerQuotes
from quire.insight.deadlines.step_costs import StepWork

from ..serve.rig import HELLO
from ..waits import PATIENCE
from .rig import Fleet, fleet

PROMPT = [65 + nth % 20 for nth in range(48)]
PLENTY = 3_000_000  # ms
QUICK = 1e-9  # seconds for a token
PATIENT = FleetLimits(quote_seconds=PATIENCE)


def cost(some: Fleet, **seconds: float) -> None:
    """What a token of a prompt takes, as each worker has learned it. Steps that really run change little only where
    that is less than they take."""
    for name, each in seconds.items():

        def learn(engine: Engine, each: float = each) -> None:
            assert engine.deadlines is not None
            for tokens in range(1, 64):
                engine.deadlines.door.costs.note(StepWork(tokens), each * tokens)

        some.llms[name].loop.call(learn)


@contextmanager
def hung(some: Fleet, name: str) -> Iterator[None]:
    """Its engine's thread says nothing until the end of the block."""
    inside, over = threading.Event(), threading.Event()

    def hang(_: Engine) -> None:
        inside.set()
        assert over.wait(PATIENCE)

    thread = threading.Thread(target=some.llms[name].loop.call, args=(hang,))
    thread.start()
    assert inside.wait(PATIENCE)
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE)


def ask(some: Fleet, ttft_ms: float = PLENTY, **more: Any) -> Any:
    return some.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2, "ttft_ms": ttft_ms, **more})


def work(ttft: float | None = 1000.0, tokens: Any = PROMPT) -> FleetWork:
    return FleetWork(np.array(tokens, np.int32), Sampling(max_tokens=2), Scope(), ttft=ttft)


def test_it_goes_where_its_first_token_comes_soonest_although_it_is_cached_elsewhere() -> None:
    with fleet(3, PATIENT, deadlines=0.95) as some:
        assert some.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2}).status == 200
        assert not some.quoted, "nobody asks for what is not wanted"
        some.until_idle()
        some.until_exact()
        (home,) = some.chosen
        other = next(name for name in some.workers if name != home)
        cost(some, **{name: QUICK if name == other else 5.0 for name in some.workers})
        got = ask(some)
        assert got.status == 200 and some.chosen == [home, other] and sorted(some.quoted) == ["w0", "w1", "w2"]
        assert 0 < int(got.headers["x-ttft-bound-ms"]) < PLENTY
        some.until_idle()


def test_nobody_is_in_time_and_one_refusal_has_the_least_bound() -> None:
    with fleet(3, PATIENT, deadlines=0.95) as some:
        cost(some, w0=7.0, w1=2.0, w2=5.0)
        got = ask(some, 1000)
        assert got.status == 429 and got.error["code"] == "too_late"
        assert 48 * 2000 <= int(got.headers["x-ttft-bound-ms"]) < 1_000_000, (
            "with a margin, and w2's would be 1,120,000"
        )
        assert some.chosen == ["w1"], "who refuses is the one that would have been the soonest, and counts it"
        sides: list[Any] = [llm.loop.engine.deadlines for llm in some.llms.values()]
        counts = [side.door.counts.num_refused for side in sides]
        assert counts == [0, 1, 0]
        some.until_idle()


def test_a_quote_holds_nothing_and_counts_nothing() -> None:
    with fleet(1, deadlines=0.95) as some:
        cost(some, w0=0.01)
        worker, llm = some.workers["w0"], some.llms["w0"]
        assert ask(some).status == 200
        some.until_idle()

        def state(engine: Engine) -> Any:
            side, cache = engine.deadlines, engine.cache
            assert side is not None
            return repr(side.door.counts), repr(side.holds), side._open, cache.stats(0), cache.num_free(), engine.runs

        before = llm.loop.call(state)
        quotes = [asyncio.run(worker.quote(work(ttft))) for ttft in (1000.0, 1e-6)]
        assert before == llm.loop.call(state)
        assert all(isinstance(one, WorkerQuote) for one in quotes) and [one.accepted for one in quotes] == [True, False]  # type: ignore[union-attr]
        cached, new = quotes[0], asyncio.run(worker.quote(work(tokens=PROMPT[::-1])))
        assert isinstance(cached, WorkerQuote) and isinstance(new, WorkerQuote) and cached.soonest < new.soonest


def test_a_worker_that_hangs_holds_nobody_up_and_nothing_is_left_with_it() -> None:
    with fleet(3, FleetLimits(quote_seconds=0.3), deadlines=0.95) as some:
        cost(some, w0=QUICK, w1=5.0, w2=5.0)
        with hung(some, "w0"):
            for nth in range(6):
                assert ask(some, seed=nth).status == 200
            assert "w0" not in some.chosen and some.quoted.count("w0") == 6
            engine: Any = some.llms["w0"].loop.engine
            calls = list[Any]()
            engine.quote = lambda *given, **_: calls.append(given)
        del engine.quote
        assert not calls, "what was asked while it hung is not asked any more"
        for _ in range(3):  # it answers again, and is waited for
            assert ask(some).status == 200
        assert some.chosen[-1] == "w0"
        some.until_idle()


def test_one_that_was_silent_is_asked_again_and_not_waited_for() -> None:
    asked, over = list[str](), asyncio.Event()

    async def quoter(ask: AskQuote) -> WorkerQuote | WorkRefused:
        asked.append(ask.worker)
        if ask.worker == "hung":
            await over.wait()
        return WorkerQuote(True, 1.0, 2.0)

    async def read() -> None:
        quotes = WorkerQuotes(quoter, lambda: {"hung", "one", "two"})
        assert sorted(await quotes.of(work(), 0.05)) == ["one", "two"]
        assert sorted(await quotes.of(work(), PATIENCE)) == ["one", "two"], "it returns although one never answers"
        assert sorted(asked) == ["hung", "hung", "one", "one", "two", "two"] and len(asyncio.all_tasks()) == 1
        over.set()
        assert sorted(await quotes.of(work(), PATIENCE)) == ["hung", "one", "two"]
        over.clear()
        reader = asyncio.ensure_future(quotes.of(work(), PATIENCE))  # its client leaves
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(read())


def test_workers_that_die_while_they_are_asked_are_passed_over() -> None:
    with fleet(3, PATIENT, deadlines=0.95) as some:
        cost(some, w0=QUICK, w1=QUICK, w2=5.0)
        some.alive.discard("w0")  # dead, and its book does not know yet
        assert ask(some).status == 200 and some.chosen == ["w1"]
        some.kill("w0")
        some.quoted.clear()
        assert ask(some).status == 200 and "w0" not in some.quoted
        some.until_idle()


def test_where_nobody_answers_they_are_asked_in_turn_and_the_time_that_passed_counts() -> None:
    with fleet(2, FleetLimits(quote_seconds=0.05, route_seconds=PATIENCE), deadlines=0.95) as some:
        cost(some, w0=QUICK, w1=QUICK)
        with hung(some, "w0"), hung(some, "w1"):
            got = ask(some, 400)
            assert got.status == 429 and "no worker has said in that time" in got.error["message"]
            assert int(got.headers["x-ttft-bound-ms"]) >= 0.99 * 400
            assert len(some.chosen) == 1 and 0 < (some.works[0].ttft or 0) < 0.4
        assert ask(some).status == 200
        some.until_idle()


def test_what_is_wrong_with_the_work_is_said_once_and_full_workers_are_busy() -> None:
    async def read() -> None:
        said: dict[str, Any] = {"a": WorkRefused("input", "too long"), "b": WorkerQuote(True, 1.0, 1.0)}

        async def quoter(ask: AskQuote) -> Any:
            if isinstance(said[ask.worker], Exception):
                raise said[ask.worker]
            return said[ask.worker]

        quotes = WorkerQuotes(quoter, lambda: said)
        with pytest.raises(InputError, match="too long"):
            await quotes.of(work(), PATIENCE)
        said["a"] = WorkRefused("busy", "full")
        assert list(await quotes.of(work(), PATIENCE)) == ["b"]
        said["b"] = WorkRefused("busy", "full")
        with pytest.raises(EngineBusy, match="full"):
            await quotes.of(work(), PATIENCE)
        said["b"] = RuntimeError("a fault of one worker's")
        with pytest.raises(EngineBusy, match="full"):
            await quotes.of(work(), PATIENCE)
        said["a"] = WorkRefused("ending", "bye")
        assert await quotes.of(work(), PATIENCE) == {}

    asyncio.run(read())


def test_an_engine_says_what_it_would_say() -> None:
    with fleet(1, deadlines=0.95) as some:
        loop = some.llms["w0"].loop
        cost(some, w0=0.01)
        for ttft in (1000.0, 1e-6):
            verdict = loop.call(partial(Engine.quote, tokens=PROMPT, sampling=Sampling(max_tokens=2), ttft=ttft))
            try:
                loop.submit(PROMPT, Sampling(max_tokens=2), ttft=ttft).wait()
                assert verdict.accepted
            except TooLate as late:
                assert not verdict.accepted and late.bound >= (verdict.bound or 0.0)  # it has waited longer
        with pytest.raises(InputError, match="no first token is wanted in time"):
            loop.call(lambda engine: engine.quote(PROMPT, Sampling(max_tokens=2)))
    with fleet(1, deadlines=None) as some:
        refused = asyncio.run(FleetWorker(some.llms["w0"], "w0").quote(work()))
        assert isinstance(refused, WorkRefused) and refused.why == "input" and "keeps no deadlines" in refused.text
        got = some.chat(messages=HELLO["messages"], ttft_ms=1000)
        assert got.status == 400 and "keeps no deadlines" in got.error["message"]
