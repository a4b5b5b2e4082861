"""Whatever is passed to an LLM: an answer, or an InputError that names the fact in a line; the next one is served."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import InputError  # noqa: E402
from quire.engine import LLM, Engine, EngineConfig, Sampling, from_module  # noqa: E402

from .. import families  # noqa: E402
from ..words import byte_tokenizer  # noqa: E402

ONE = Sampling(max_tokens=1)
MESSAGE = {"role": "user", "content": "x"}
PATIENCE = 120.0


class Shy:
    """Something that does not even show itself."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    model = from_module(families.build("llama"), byte_tokenizer())
    with LLM(model, config=EngineConfig(60, block_size=8, max_num_tokens=64, max_sequences=8, max_length=256)) as made:
        yield made


WRONG: list[tuple[Any, str]] = [
    (None, "it is None; pass text, a list of token ids, or a conversation"),
    (7, "it is 7; pass text"),
    (1.5, "it is 1.5; pass text"),
    (10**5000, "it is a int; pass text"),
    (b"x", "it is b'x', which is neither text nor token ids; decode it to text first"),
    (bytearray(b"xy"), "neither text nor token ids"),
    (memoryview(b"xy"), "neither text nor token ids"),
    ([1.5], "one of them is 1.5; pass text"),
    ([20, 21.0], "one of them is 21.0"),
    ([20, True], "one of them is True"),
    ([20, "a"], "one of them is 'a'"),
    ([20, None], "one of them is None"),
    ([20, [21]], r"one of them is \[21\]"),
    ([20, Shy()], "one of them is a Shy"),
    ([20, 10**5000], "one of them is too large for any model"),
    ("", "it is empty; pass at least one token"),
    ([], "it is empty; pass at least one token"),
    ([20, -1], "from -1 to 20, the model knows 0 to 255"),
    ([math.nan], "one of them is nan"),
    ([np.float32(20)], "one of them is "),
    (np.array([1.5]), "one of them is 1.5"),
    (np.array([[20, 21]]), r"one of them is \[20, 21\]"),
    (np.array(20), "it is array"),
    (np.array([2**63], np.uint64), "the model knows 0 to 255"),
    (torch.tensor([1.5]), "one of them is 1.5"),
    (torch.tensor(20), "it is tensor"),
    ({20, 21}, "it is {20, 21}"),
    (MESSAGE, 'it is a single message; pass a list of {"role": "user", "content": "..."}, also for one'),
    ([MESSAGE, "y"], "a message of it is 'y'"),
    ([{"role": "user"}], "a message of it is {'role': 'user'}; pass a list of"),
    ([{"role": "user", "content": None}], "a message of it is"),
    ([{"role": 1, "content": "x"}], "a message of it is"),
    ([{}], "a message of it is {}"),
    ("\ud800", "character 0 is half of a pair"),
    (Shy(), "it is a Shy"),
    ("", "at least one"),
    ([], "at least one"),
]
MANY: list[tuple[Any, str]] = [
    ([None], "it is None"),
    ([b"x"], "it is b'x'"),
    (["a", 7], "it is 7"),
    ([[20], [1.5]], "one of them is 1.5"),
    (["a", ""], "at least one"),
    ([[MESSAGE], MESSAGE], "it is a single message"),
    ([[[20]]], r"one of them is \[20\]"),
]


def refused(words: str, act: Any) -> None:
    with pytest.raises(InputError, match=words) as told:
        act()
    assert len(str(told.value)) < 250 and "\n" not in str(told.value)


@pytest.mark.parametrize(("wrong", "words"), WRONG, ids=[f"{nth}" for nth in range(len(WRONG))])
def test_a_wrong_prompt(llm: LLM, wrong: Any, words: str) -> None:
    async def ask() -> None:
        await llm.stream_async(wrong, ONE)

    for act in (lambda: llm.generate(wrong, ONE), lambda: llm.stream(wrong, ONE), lambda: asyncio.run(ask())):
        refused(words, act)


@pytest.mark.parametrize(("wrong", "words"), MANY, ids=[f"{nth}" for nth in range(len(MANY))])
def test_one_wrong_prompt_among_many(llm: LLM, wrong: Any, words: str) -> None:
    refused(words, lambda: llm.generate(wrong, ONE))
    assert llm.loop.call(lambda engine: len(engine.runs)) == 0


@pytest.mark.parametrize(
    "wrong", [MESSAGE, "hello", ["hello"], None, [], [20, 21], b"x", [[MESSAGE]], [{"role": "user"}]], ids=str
)
def test_what_is_no_conversation(llm: LLM, wrong: Any) -> None:
    refused("a conversation: .*pass a list of", lambda: llm.chat(wrong, ONE))


def test_a_conversation_that_the_template_refuses(llm: LLM) -> None:
    words = byte_tokenizer()
    words.chat_template = "{{ raise_exception('roles must take turns') }}"
    before, llm.model.tokenizer.chat_template = llm.model.tokenizer.chat_template, words.chat_template
    try:
        refused("the model's own template refuses it: .*roles must take turns", lambda: llm.chat([MESSAGE], ONE))
    finally:
        llm.model.tokenizer.chat_template = before
    assert llm.chat([MESSAGE], ONE).num_prompt_tokens


@pytest.mark.parametrize("wrong", [None, {}, {"max_tokens": 5}, 5, Sampling, Shy()], ids=lambda one: type(one).__name__)
def test_what_is_no_sampling(llm: LLM, wrong: Any) -> None:
    for act in (llm.generate, llm.stream, llm.loop.engine.submit):
        refused("submit: sampling is .*; pass a Sampling", lambda act=act: act([20, 21], wrong))
    refused("pass a Sampling", lambda: llm.chat([MESSAGE], wrong))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"scope": "a"}, "scope='a': it is a str; pass a Scope"),
        ({"scope": None}, "scope=None: it is a NoneType; pass a Scope"),
        ({"retention": [1]}, r"retention=\[1\]: it is a list; pass a Retention"),
    ],
)
def test_what_comes_beside_a_prompt(llm: LLM, given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        llm.generate([20, 21], max_tokens=2, **given)


def test_timeouts(llm: LLM) -> None:
    for endless in (10**400, 1e300, math.inf, None):
        assert llm.loop.submit([20, 21], ONE, timeout=endless).wait(endless).done
    for wrong in ("1", math.nan, True, [1]):
        refused("its timeout is .*; give seconds", lambda wrong=wrong: llm.loop.submit([20], ONE, timeout=wrong))
        refused("its timeout is", lambda wrong=wrong: llm.loop.submit([20], ONE).wait(wrong))


def test_prompts_of_every_form_are_one_prompt(llm: LLM) -> None:
    """Beside the wrong ones, the right ones; and the engine still serves them."""
    (wanted,) = llm.generate([97, 98, 99], ONE)
    forms: list[Any] = [range(97, 100), np.arange(97, 100), torch.arange(97, 100), [np.int64(97), 98, torch.tensor(99)]]
    for same in forms:
        assert llm.generate(same, ONE)[0].tokens == wanted.tokens
    many: list[Any] = [[97], "b", [MESSAGE], np.array([99])]
    assert len(llm.generate(many, ONE)) == 4
    assert llm.loop.error is None and not llm.loop.call(lambda engine: engine.runs)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"device_bytes": 10**5000}, "no machine has so many bytes"),
        ({"device_bytes": 10**30}, "no machine has so many bytes"),
        ({"device_bytes": 1.5}, "it is not an amount of memory"),
        ({"device_bytes": -1}, "it is not an amount of memory; write 40GB"),
        ({"host_bytes": "x"}, "it is not an amount of memory"),
        ({"config": 5}, "config is 5; pass config=EngineConfig\\(.*, or None"),
        ({"config": {}}, "config is {}; pass config=EngineConfig\\("),
        ({"prefill_peer": "host:1"}, "prefill_peer is 'host:1'; pass prefill_peer=PrefillPeer\\("),
    ],
    ids=lambda one: "",
)
def test_a_wrong_llm(llm: LLM, given: dict[str, Any], words: str) -> None:
    refused(words, lambda: LLM(llm.model, **given))


@pytest.mark.parametrize("field", [one.name for one in fields(EngineConfig)])
def test_a_wrong_config(llm: LLM, field: str) -> None:
    """Refused when it is made, or by the cache: never something else, and never served in part."""
    good: dict[str, Any] = {"device_pages": 20, "max_length": 64, "max_num_tokens": 64, "max_sequences": 8}
    fitting = {"incidents": "x", "bills": "x", "incidents_keep": 1.5}.get(field)  # a folder, and seconds
    for wrong in ("x", -1, 1.5, 10**30, 10**5000, [1.5], (1.5,), [-1], (-1,), (10**30,), Shy()):
        if wrong == fitting:
            continue
        with pytest.raises(InputError) as told:
            Engine(llm.model, EngineConfig(**(good | {field: wrong})))
        assert len(str(told.value)) < 250
