"""An answer that another engine has begun goes on here as it would have there: the same tokens, text and end."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import InputError, check  # noqa: E402
from quire.engine import LLM, EngineConfig, Sampling, from_module  # noqa: E402
from quire.engine.loop.stream import Stream  # noqa: E402

from .. import families  # noqa: E402
from ..words import byte_tokenizer  # noqa: E402

PROMPT = list(b"An answer is cut in the middle, and goes on elsewhere.")
SIZES: dict[str, Any] = {"device_pages": 80, "block_size": 8, "max_num_tokens": 64, "max_length": 200}


@pytest.fixture(scope="module")
def llm() -> Any:
    with LLM(
        from_module(families.build("llama"), byte_tokenizer()), config=EngineConfig(max_sequences=8, **SIZES)
    ) as made:
        yield made


def answer(llm: LLM, sampling: Sampling, begun: list[int] | None = None) -> tuple[list[int], str, Any, list[Any]]:
    options: dict[str, Any] = {} if begun is None else {"begun": begun}
    stream: Stream = llm.loop.submit(PROMPT, sampling, **options)
    pieces = list(stream)
    assert stream.run is not None
    [made] = stream.run.answers
    return made.tokens, "".join(piece.text for piece in pieces), made.finish, pieces


@pytest.mark.parametrize(
    "fields",
    [
        {"ignore_eos": True},
        {"temperature": 1.0, "seed": 7, "ignore_eos": True},
        {"temperature": 0.9, "top_k": 20, "seed": 3, "presence_penalty": 1.0, "ignore_eos": True},
        {"repetition_penalty": 1.3, "min_tokens": 12},
        {"temperature": 1.0, "seed": 11, "stop": ["e", "a", "x"], "min_tokens": 3},
    ],
)
def test_it_goes_on_as_it_would_have(llm: LLM, fields: dict[str, Any]) -> None:
    sampling = Sampling(max_tokens=24, **fields)
    tokens, text, finish, pieces = answer(llm, sampling)
    assert len(tokens) > 2
    for cut in {1, 2, len(tokens) // 2, len(tokens) - 1}:
        again = answer(llm, sampling, tokens[:cut])
        assert again[:3] == (tokens, text, finish), cut
        assert [piece.text for piece in again[3]] == [piece.text for piece in pieces], (
            "piece by piece, those of before too"
        )
    llm.loop.call(lambda engine: check(engine.cache))


def test_an_answer_of_a_form_goes_on_in_it(llm: LLM) -> None:
    pytest.importorskip("llguidance")
    from quire.engine import StructuredOutputs

    sampling = Sampling(
        max_tokens=40, structured_outputs=StructuredOutputs(regex="(ab|cd){3,9}"), seed=2, temperature=1.0
    )
    tokens, text, finish, _ = answer(llm, sampling)
    for cut in range(1, len(tokens)):
        assert answer(llm, sampling, tokens[:cut])[:3] == (tokens, text, finish)


def test_logprobs_behind_the_cut_are_the_same(llm: LLM) -> None:
    sampling = Sampling(max_tokens=8, logprobs=2, ignore_eos=True)
    tokens, _, _, pieces = answer(llm, sampling)
    again = answer(llm, sampling, tokens[:3])[3]
    assert [piece.logprobs for piece in again[:3]] == [(), (), ()]
    for one, other in zip(again[3:], pieces[3:], strict=True):
        assert [token.token for token in one.logprobs] == [token.token for token in other.logprobs]


@pytest.mark.parametrize(
    ("fields", "begun", "fact"),
    [
        ({"n": 2}, [1], "there are several answers"),
        ({"beams": 2}, [1], "there are several answers"),
        ({"max_tokens": 2}, [1, 2], "max_tokens is 2"),
        ({}, [1, -1], "the model knows 0 to"),
    ],
)
def test_what_cannot_go_on_is_refused(llm: LLM, fields: dict[str, Any], begun: list[int], fact: str) -> None:
    with pytest.raises(InputError, match=fact):
        llm.loop.submit(PROMPT, Sampling(**({"max_tokens": 8} | fields)), begun=begun)
    assert not llm.loop.engine.runs
