"""Page hints: what the engine knows when an answer ends reaches the cache, with the session it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

from quire import InputError
from quire.core.records.errors import UnknownField
from quire.engine import LLM, EngineConfig
from quire.engine.runner.engine import Engine
from quire.engine.sampling.params import Sampling
from quire.engine.step.runs.page_hints import PageHints

from ..endings import Endings, endings_of
from ..steps import SMALL, model_of, open_engine
from ..valve import Valve

PROMPT = list(range(60, 90))
PLAIN = Sampling(max_tokens=4, ignore_eos=True)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with open_engine("llama", 60) as made:
        yield made


@pytest.fixture
def endings(engine: Engine) -> Iterator[Endings]:
    with endings_of(engine.cache) as made:
        yield made


def first_token(engine: Engine) -> int:
    run = engine.submit(PROMPT, PLAIN)
    engine.drain()
    return run.answers[0].tokens[0]


def test_an_answer_that_its_model_has_ended_comes_back_later(engine: Engine, endings: Endings) -> None:
    token = first_token(engine)
    assert endings.backs == [None]  # it was cut short by max_tokens: nobody knows
    engine.submit(PROMPT, Sampling(max_tokens=4, stop_ids=[token]), session="talk")
    engine.drain()
    assert endings[1].back == "later" and endings[1].session == "talk" and endings[1].store


def test_what_the_caller_says_counts_more_than_the_finish(engine: Engine, endings: Endings) -> None:
    token = first_token(engine)
    for back in ("soon", "later", "never"):
        engine.submit(PROMPT, Sampling(max_tokens=4, stop_ids=[token]), back=back)
        engine.submit(PROMPT, PLAIN, back=back)
        engine.submit(PROMPT, Sampling(max_tokens=4, n=2, ignore_eos=True), back=back)
        engine.submit(PROMPT, Sampling(max_tokens=4, beams=3, ignore_eos=True), back=back)
        engine.drain()
        assert set(endings.backs[1:]) == {back} and len(endings) >= 8
        del endings[1:]


def test_beams_are_let_go_before_it_is_known_which_of_them_are_answers(engine: Engine, endings: Endings) -> None:
    engine.submit(PROMPT, Sampling(max_tokens=3, beams=4))
    engine.drain()
    assert len(endings) >= 4 and set(endings.backs) == {None}


@pytest.mark.parametrize("back", [None, "never"])
def test_one_that_is_cancelled_comes_back_as_its_caller_says(engine: Engine, endings: Endings, back: Any) -> None:
    run = engine.submit(PROMPT, PLAIN, back=back)
    engine.step()
    assert engine.cancel(run)
    assert endings.backs == [back] and not endings[0].store


def test_each_answer_ends_for_itself(engine: Engine, endings: Endings) -> None:
    """Of two answers one is complete, and the other is cut short."""
    sampling = Sampling(max_tokens=6, n=2, temperature=3.0, seed=1, ignore_eos=True)
    run = engine.submit(PROMPT, sampling)
    engine.drain()
    one, other = (answer.tokens for answer in run.answers)
    (stop, *_) = [token for token in one if token not in other]
    endings.clear()
    engine.submit(PROMPT, Sampling(max_tokens=6, n=2, temperature=3.0, seed=1, ignore_eos=True, stop_ids=[stop]))
    engine.drain()
    assert sorted(endings.backs, key=str) == [None, "later"]


class Hears:
    """A listener that says of every answer that it calls a tool."""

    def hear(self, run: Any, branch: int, tokens: list[int]) -> bool:
        run.answers[branch].called = True
        return len(run.answers[branch].tokens) == 2

    def over(self, run: Any) -> None:
        pass


def test_an_answer_that_calls_a_tool_comes_back_soon(engine: Engine, endings: Endings) -> None:
    engine.submit(PROMPT, PLAIN, listener=Hears())
    engine.drain()
    assert endings.backs == ["soon"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"back": "sooner"}, "submit with back='sooner'.*did you mean soon"),
        ({"session": 7}, "submit: its session is a int"),
        ({"session": ""}, "0 characters"),
        ({"calls_tool": "x"}, "calls_tool='x': it is a str"),
    ],
)
def test_hints_that_are_none_are_refused_before_anything_is_queued(engine: Engine, wrong: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        engine.submit(PROMPT, PLAIN, **wrong)
    assert not engine.runs


def test_a_keyword_that_submit_does_not_know_is_refused_with_the_one_that_was_meant(engine: Engine) -> None:
    for wrong, cure in (("sesion", "did you mean session"), ("listner", "did you mean listener"), ("zzz", "there are")):
        asked: Any = {wrong: "a"}
        with pytest.raises(UnknownField, match=rf"submit\({wrong}=...\): it has no such option; {cure}"):
            engine.submit(PROMPT, PLAIN, **asked)
    assert not engine.runs


def test_a_connector_that_reads_on_does_not_lose_the_hint() -> None:
    """The pages are released when it has read them, with what was known before."""
    freed: list[Any] = []

    class Slow:
        def matched(self, request: Any, start: int) -> int:
            return 0

        def allocated(self, sequence: Any, span: Any) -> int:
            return 0

        def finished(self, sequence: Any, free: Any) -> bool:
            freed.append(free)
            return False

    with open_engine("llama", 60, connector=Slow()) as engine, endings_of(engine.cache) as endings:
        run = engine.submit(PROMPT, PLAIN, back="soon", session="s")
        while not run.done:
            engine.step()
        assert not endings
        freed[0]()
        engine.step()
        assert endings.backs == ["soon"] and endings[0].session == "s"


def test_an_llm_takes_them_as_keywords_and_a_cancelled_stream_keeps_them() -> None:
    valve = Valve(model_of("llama").module)
    with LLM(model_of("llama"), config=EngineConfig(60, **SMALL)) as llm, endings_of(llm.loop.engine.cache) as endings:
        llm.generate([PROMPT], PLAIN, session="talk", back="never")
        assert endings[0].session == "talk" and endings.backs == ["never"]
        valve.shut()
        stream = llm.stream(PROMPT, PLAIN, back="never")
        stream.close()
        valve.open()
        stream.wait()
        assert set(endings.backs) == {"never"}
    valve.hook.remove()


def test_hints_do_not_show_whose_session_it_is() -> None:
    assert "alice" not in repr(PageHints(session="alice"))
