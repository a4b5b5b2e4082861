"""The real openai client: what it asks comes as it knows it, streamed or whole."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from typing import Any

import pytest

from .rig import HELLO, NAME, Serving

# it takes seconds to import, and every process of the tests reads this file
pytestmark = pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason="could not import 'openai'")

PLAIN: dict[str, Any] = {"model": NAME, "temperature": 0, "max_tokens": 24, **HELLO}
TEXT: dict[str, Any] = {"model": NAME, "temperature": 0, "max_tokens": 24, "prompt": "Once upon a time there was"}
SCHEMA = {
    "type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False,
}  # fmt: skip
TOOLS: Any = [
    {"type": "function", "function": {"name": "look_up", "description": "looks", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "wait"}},
]


@pytest.fixture(scope="module")
def client(server: Serving) -> Iterator[Any]:
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def told(chunks: list[Any], choice: int = 0) -> str:
    """The content of one choice of a streamed conversation."""
    choices = [one for chunk in chunks for one in chunk.choices if one.index == choice]
    return "".join(one.delta.content or "" for one in choices)


def test_a_streamed_conversation_equals_the_whole_one(client: Any) -> None:
    whole = client.chat.completions.create(**PLAIN)
    chunks = list(client.chat.completions.create(**PLAIN, stream=True, stream_options={"include_usage": True}))
    assert whole.choices[0].message.content and whole.choices[0].message.role == "assistant"
    assert told(chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    ends = [one.finish_reason for chunk in chunks for one in chunk.choices if one.finish_reason]
    assert ends == [whole.choices[0].finish_reason]
    assert chunks[-1].choices == [] and all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert {chunk.id for chunk in chunks} == {chunks[0].id} and chunks[0].id.startswith("chatcmpl-")
    assert whole.object == "chat.completion" and {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def test_a_streamed_text_equals_the_whole_one(client: Any) -> None:
    whole = client.completions.create(**TEXT)
    chunks = list(client.completions.create(**TEXT, stream=True))
    assert whole.choices[0].text == "".join(one.text for chunk in chunks for one in chunk.choices) != ""
    assert whole.object == "text_completion" and whole.id.startswith("cmpl-")


def test_usage_says_what_was_cached(client: Any, server: Serving) -> None:
    asked = {**TEXT, "prompt": "A prompt that nobody has sent before, and that takes some blocks", "max_tokens": 2}
    first, again = client.completions.create(**asked), client.completions.create(**asked)
    assert first.usage.prompt_tokens == len(asked["prompt"]) and first.usage.total_tokens == len(asked["prompt"]) + 2
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert again.usage.prompt_tokens_details.cached_tokens >= len(asked["prompt"]) - 8
    salted = client.completions.create(**asked, extra_body={"cache_salt": "mine"})
    assert salted.usage.prompt_tokens_details.cached_tokens == 0, "a salt is a cache of its own"
    salted = client.completions.create(**asked, extra_body={"cache_salt": "mine"})
    assert salted.usage.prompt_tokens_details.cached_tokens > 0


def test_n_answers_of_several_prompts_have_their_places(client: Any) -> None:
    asked = {**TEXT, "prompt": ["One", "Two", "Three"], "n": 2, "temperature": 1, "seed": 5, "max_tokens": 6}
    whole = client.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == list(range(6))
    alone = [client.completions.create(**{**asked, "prompt": [one]}) for one in asked["prompt"]]
    assert [choice.text for choice in whole.choices] == [choice.text for one in alone for choice in one.choices]
    texts = dict.fromkeys(range(6), "")
    for chunk in client.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert list(texts.values()) == [choice.text for choice in whole.choices]
    assert whole.usage.prompt_tokens == len("OneTwoThree") and whole.usage.completion_tokens <= 36


def test_a_conversation_with_n_answers(client: Any) -> None:
    asked = {**PLAIN, "n": 3, "temperature": 1, "seed": 9}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert [told(chunks, place) for place in range(3)] == [one.message.content for one in whole.choices]
    assert len({one.message.content for one in whole.choices}) > 1


def test_stop_strings_end_an_answer_before_them(client: Any) -> None:
    whole = client.completions.create(**TEXT).choices[0].text
    stop = whole[5:7]
    cut = client.completions.create(**TEXT, stop=[stop])
    assert cut.choices[0].text == whole[: whole.index(stop)] and cut.choices[0].finish_reason == "stop"
    shown = client.completions.create(**TEXT, stop=stop, extra_body={"include_stop_str_in_output": True})
    assert shown.choices[0].text == whole[: whole.index(stop) + len(stop)]
    streamed = client.completions.create(**TEXT, stop=[stop], stream=True)
    assert "".join(one.text for chunk in streamed for one in chunk.choices) == cut.choices[0].text


def test_logprobs_of_a_conversation(client: Any) -> None:
    whole = client.chat.completions.create(**PLAIN, logprobs=True, top_logprobs=3).choices[0]
    entries = whole.logprobs.content
    assert len(entries) == 24 or whole.finish_reason == "stop"
    assert all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in entries)
    assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in entries), "greedy takes the most likely one"
    raw = bytes(byte for entry in entries for byte in entry.bytes or [])
    assert raw.decode(errors="replace").startswith(whole.message.content[:4])
    chunks = list(client.chat.completions.create(**PLAIN, logprobs=True, top_logprobs=3, stream=True))
    streamed = [e for c in chunks for one in c.choices if one.logprobs for e in one.logprobs.content]
    assert streamed == entries


def test_logprobs_of_a_text(client: Any) -> None:
    whole = client.completions.create(**TEXT, logprobs=2).choices[0].logprobs
    assert len(whole.tokens) == len(whole.token_logprobs) == len(whole.top_logprobs) == len(whole.text_offset)
    assert whole.text_offset[0] == 0 and whole.text_offset == sorted(whole.text_offset)
    assert all(token in top and len(top) <= 3 for token, top in zip(whole.tokens, whole.top_logprobs, strict=True))
    chunks = [c for chunk in client.completions.create(**TEXT, logprobs=2, stream=True) for c in chunk.choices]
    assert [token for one in chunks if one.logprobs for token in one.logprobs.tokens] == whole.tokens
    assert [place for one in chunks if one.logprobs for place in one.logprobs.text_offset] == whole.text_offset
    named = client.completions.create(**TEXT, logprobs=0, extra_body={"return_tokens_as_token_ids": True})
    assert all(token.startswith("token_id:") for token in named.choices[0].logprobs.tokens)


def test_a_json_schema_is_kept(client: Any) -> None:
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    whole = client.chat.completions.create(**PLAIN, response_format=form).choices[0]
    assert set(json.loads(whole.message.content)) == {"ok"} and whole.finish_reason == "stop"
    picked = client.chat.completions.create(**PLAIN, extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
    assert picked.choices[0].message.content in ("yes", "no")
    text = client.completions.create(**TEXT, extra_body={"structured_outputs": {"regex": "[0-9]{4}"}})
    assert text.choices[0].text.isdigit() and len(text.choices[0].text) == 4


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look_up"}}])
def test_a_tool_that_must_be_called_is_called(client: Any, choice: Any, stream: bool) -> None:
    pytest.importorskip("llguidance")
    tools = TOOLS[:1]
    asked = {**PLAIN, "tools": tools, "tool_choice": choice, "max_tokens": 64}
    if stream:
        chunks = [one for chunk in client.chat.completions.create(**asked, stream=True) for one in chunk.choices]
        calls = [call for one in chunks for call in one.delta.tool_calls or []]
        name, arguments = calls[0].function.name, "".join(call.function.arguments or "" for call in calls)
        finish = chunks[-1].finish_reason
        assert calls[0].id.startswith("call_") and {call.index for call in calls} == {0}
    else:
        whole = client.chat.completions.create(**asked).choices[0]
        [call] = whole.message.tool_calls
        name, arguments, finish = call.function.name, call.function.arguments, whole.finish_reason
        assert whole.message.content is None
    assert name == "look_up" and set(json.loads(arguments)) == {"ok"}
    assert finish == ("tool_calls" if choice == "required" else "stop")


def test_tools_reach_the_template(client: Any, server: Serving) -> None:
    plain = client.chat.completions.create(**PLAIN).usage.prompt_tokens
    auto = client.chat.completions.create(**PLAIN, tools=TOOLS)
    assert auto.usage.prompt_tokens > plain and auto.choices[0].message.content
    none = client.chat.completions.create(**PLAIN, tools=TOOLS, tool_choice="none")
    assert none.usage.prompt_tokens == plain, "a model that hears of no tools calls none"


def test_errors_are_the_clients_own(client: Any) -> None:
    import openai

    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(**{**PLAIN, "temperature": -1})
    assert wrong.value.param == "temperature" and wrong.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(**{**PLAIN, "model": "gpt-5"})
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(**{**TEXT, "prompt": "x" * 400})
    assert long.value.code == "context_length_exceeded" and long.value.param == "prompt"


def test_the_model_is_listed(client: Any, server: Serving) -> None:
    import openai

    [model] = client.models.list().data
    assert model.id == NAME and model.max_model_len == 400
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_without_max_tokens_there_is_all_the_room_there_is(client: Any) -> None:
    messages = [{"role": "user", "content": "Hello! " * 50}]
    whole = client.chat.completions.create(model=NAME, messages=messages, extra_body={"ignore_eos": True})
    assert whole.usage.total_tokens == 400 and whole.choices[0].finish_reason == "length"
    text = client.completions.create(model=NAME, prompt="Once", extra_body={"ignore_eos": True})
    assert text.usage.completion_tokens == 16, "OpenAI's default"
