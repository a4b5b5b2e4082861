"""What is said beside a prompt: fields of Sampling as keywords, together with a Sampling or without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import InputError, Scope, StateError
from quire.engine import LLM, EngineConfig, Sampling, from_module
from quire.engine.loop.call_options import OPTIONS, merge_options

from .. import families
from ..endings import endings_of
from ..words import byte_tokenizer

Ask = Callable[..., tuple[int, ...]]  # the tokens of the answer


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    config = EngineConfig(80, block_size=8, max_num_tokens=64, max_sequences=8, max_length=256)
    with LLM(from_module(families.build("llama"), byte_tokenizer()), config=config) as made:
        yield made


async def read(llm: LLM, *given: Any, **options: Any) -> tuple[int, ...]:
    return tuple([token async for piece in llm.stream_async(*given, **options) for token in piece.tokens])


@pytest.fixture(params=["generate", "stream", "stream_async", "awaited"])
def ask(llm: LLM, request: pytest.FixtureRequest) -> Ask:
    async def awaited(*given: Any, **options: Any) -> tuple[int, ...]:
        stream = await llm.stream_async(*given, **options)
        return tuple([token async for piece in stream for token in piece.tokens])

    ways: dict[str, Ask] = {
        "generate": lambda *given, **options: llm.generate(*given, **options)[0].tokens[0],
        "stream": lambda *given, **options: tuple(
            token for one in llm.stream(*given, **options) for token in one.tokens
        ),
        "stream_async": lambda *given, **options: asyncio.run(read(llm, *given, **options)),
        "awaited": lambda *given, **options: asyncio.run(awaited(*given, **options)),
    }
    return ways[request.param]


def test_every_field_of_sampling_is_an_option() -> None:
    names = {one.name for one in fields(Sampling)}
    assert names < OPTIONS and OPTIONS - names == {
        "scope",
        "retention",
        "session",
        "back",
        "resume_points",
        "tenant",
        "ttft",
        "timeout",
    }


def test_points_where_others_may_go_on_reach_the_cache(llm: LLM) -> None:
    with endings_of(llm.loop.engine.cache) as ended:
        llm.generate("many words to begin with", max_tokens=2, resume_points=[16, 8])
        with pytest.raises(InputError, match="resume point 100"):
            llm.generate("few words", max_tokens=2, resume_points=[100])
    assert [one.resume_points for one in ended] == [(8, 16)]


def test_plain_options(ask: Ask) -> None:
    wanted = ask("abc", Sampling(max_tokens=6, temperature=1.0, seed=3, ignore_eos=True))
    assert len(wanted) == 6
    assert ask("abc", max_tokens=6, temperature=1.0, seed=3, ignore_eos=True) == wanted
    beside = Sampling(temperature=1.0, seed=3)
    assert ask("abc", beside, max_tokens=6, ignore_eos=True, scope=Scope("adapter"), timeout=120) == wanted
    assert beside == Sampling(temperature=1.0, seed=3)


def test_options_of_a_conversation() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    config = EngineConfig(80, block_size=8, max_num_tokens=64, max_sequences=8, max_length=256)
    with LLM(from_module(families.build("llama"), tokenizer), config=config) as llm:
        talk = [{"role": "user", "content": "abc"}]
        answer = llm.chat(talk, max_tokens=3, ignore_eos=True, timeout=120)
        assert answer.tokens == llm.chat(talk, Sampling(max_tokens=3, ignore_eos=True)).tokens
        with pytest.raises(InputError, match=r"max_token=3: there is no such option; did you mean max_tokens\?"):
            llm.chat(talk, max_token=3)  # type: ignore[call-arg]


def test_one_stop_string(llm: LLM) -> None:
    whole = llm.generate("abc", max_tokens=40, ignore_eos=True)[0].text
    stop = whole[10:13]
    assert len(stop) == 3
    for given in (stop, [stop], (stop,)):
        assert llm.generate("abc", max_tokens=40, ignore_eos=True, stop=given)[0].text == whole[: whole.index(stop)]


@pytest.mark.parametrize(
    ("sampling", "options", "words"),
    [
        (
            Sampling(max_tokens=5),
            {"max_tokens": 6},
            "max_tokens=6: max_tokens is 5 in the Sampling as well; give it in one",
        ),
        (Sampling(max_tokens=5), {"max_tokens": 5}, "give it in one of them"),
        (Sampling(), {"max_token": 6}, "max_token=6: there is no such option; did you mean max_tokens?"),
        (Sampling(), {"temprature": 1}, "did you mean temperature?"),
        (Sampling(), {"zzz": 1}, "there is no such option; there are allowed_token_ids, back, bad_words, beams"),
        (Sampling(), {"max_tokens": 0}, "max_tokens is 0; give a whole number >= 1"),
        (Sampling(), {"stop": 7}, "stop is 7; give a string or a list of strings"),
        (None, {"max_tokens": 6}, "sampling is None; pass a Sampling, or its fields as keywords"),
        ({"max_tokens": 6}, {}, "pass a Sampling, or its fields as keywords: max_tokens=64"),
    ],
)
def test_wrong_options(ask: Ask, llm: LLM, sampling: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as told:
        ask("abc", sampling, **options)
    assert words in str(told.value)
    assert not llm.loop.call(lambda engine: engine.runs) and not llm.loop.num_waiting


def test_a_sampling_without_options_stays_itself() -> None:
    mine = Sampling(max_tokens=3)
    assert merge_options(mine, {}).sampling is mine and merge_options(mine, {"timeout": 2}).others == {"timeout": 2}


# -- one object that is awaited or read ------------------------------------------------------------------------------


def test_a_task_can_be_made_of_it(llm: LLM) -> None:
    async def main() -> tuple[int, ...]:
        stream = await asyncio.create_task(llm.stream_async("abc", max_tokens=3, ignore_eos=True))
        return tuple([token async for piece in stream for token in piece.tokens])

    assert asyncio.run(main()) == llm.generate("abc", max_tokens=3, ignore_eos=True)[0].tokens[0]


def test_it_is_used_once(llm: LLM) -> None:
    """Whoever came first has the answer; a second one is told so, and nothing is computed for him."""

    async def main() -> None:
        stream = llm.stream_async("abc", max_tokens=3, ignore_eos=True)
        read = [piece async for piece in stream]
        assert sum(len(piece.tokens) for piece in read) == 3
        with pytest.raises(StateError, match=r"a second use of an AsyncStream: .*; keep the Stream that `await` gives"):
            await stream
        with pytest.raises(StateError, match="a second use"):
            _ = [piece async for piece in stream]
        with pytest.raises(StateError, match="a second use"):
            await asyncio.create_task(stream)
        again = llm.stream_async("abc", max_tokens=3, ignore_eos=True)
        first = asyncio.create_task(again)
        await asyncio.sleep(0)  # it has begun, and waits for the engine
        with pytest.raises(StateError, match="a second use"):
            await again
        assert [piece.tokens async for piece in await first] == [piece.tokens for piece in read]

    before = llm.loop.call(lambda engine: engine.stats.num_admitted)
    asyncio.run(main())
    assert llm.loop.call(lambda engine: (len(engine.runs), engine.stats.num_admitted)) == (0, before + 2)


def test_nothing_is_queued_before_it_is_read(llm: LLM) -> None:
    """And nothing complains when it never is."""
    before = llm.loop.call(lambda engine: engine.stats.num_admitted)
    llm.stream_async("abc").close()
    llm.stream_async("abc")
    assert llm.loop.call(lambda engine: (len(engine.runs), engine.stats.num_admitted)) == (0, before)


def test_whoever_leaves_early_cancels(llm: LLM) -> None:
    async def main() -> int:
        pieces = aiter(llm.stream_async("abc", max_tokens=200, ignore_eos=True))
        await anext(pieces)
        await pieces.aclose()  # type: ignore[attr-defined]
        return 1

    assert asyncio.run(main()) == 1
    assert not llm.loop.call(lambda engine: engine.runs)
