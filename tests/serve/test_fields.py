"""Every field of OpenAI's and vLLM's requests works, says nothing about the answer, or is refused by its name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quire.serve.protocol.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from quire.serve.protocol.parts import StreamChoices, Structured
from quire.serve.protocol.uses import FieldUse, uses_of

from . import vllm_fields
from .rig import HELLO, NAME, Serving

PAGE = Path(__file__).resolve().parents[2] / "docs" / "serve.md"
CHAT, COMPLETION = uses_of(ChatBody), uses_of(CompletionBody)
TOKENIZE, DETOKENIZE = uses_of(TokenizeBody), uses_of(DetokenizeBody)
TABLES = {"chat": CHAT, "completions": COMPLETION, "tokenize": TOKENIZE, "detokenize": DETOKENIZE}
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
WANTED: dict[str, Any] = {  # a value of each refused field that would change the answer
    "skip_special_tokens": False, "stream_interval": 4, "routed_experts_prompt_start": 3, "include_reasoning": False,
    "suffix": "end", "best_of": 3, "store": True, "echo": True, "reasoning_effort": "high", "verbosity": "low",
    "documents": [{"text": "x"}], "modalities": ["audio"], "return_token_offsets": True, "return_prompt_text": True,
    "return_assistant_tokens_mask": True, "prompt_logprobs": 1, "thinking_token_budget": 5,
}  # fmt: skip
SAMPLES: dict[str, Any] = {  # a value of each other field
    "model": NAME, "stream": False, "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": -1, "min_p": 0.1,
    "seed": -3, "n": 2, "stop": ["zz"], "stop_token_ids": [3], "include_stop_str_in_output": True, "ignore_eos": True,
    "min_tokens": 1, "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.5,
    "logit_bias": {"65": 3.5}, "allowed_token_ids": [65, 66, 67], "bad_words": ["b"], "use_beam_search": False,
    "length_penalty": 1.5, "response_format": {"type": "text"}, "structured_outputs": {"choice": ["yes", "no"]},
    "priority": 0, "truncate_prompt_tokens": 5, "truncation_side": "right", "cache_salt": "salt",
    "retention": {"seconds": 3600}, "request_id": "mine-1", "return_token_ids": True, "user": "me", "session_id": "s",
    "return_tokens_as_token_ids": True, "spaces_between_special_tokens": False, "max_completion_tokens": 3,
    "logprobs": True, "tools": [], "tool_choice": "none", "parallel_tool_calls": True, "add_generation_prompt": False,
    "continue_final_message": False, "add_special_tokens": True, "chat_template_kwargs": {"mood": "glad"},
    "prompt_cache_retention": "24h", "metadata": {"a": "b"}, "prompt_cache_key": "k", "safety_identifier": "s",
    "service_tier": "auto", "ttft_ms": 5000, "messages": HELLO["messages"], "prompt": [65, 66], "echo": True,
}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "a"}}
BAD_TOOL = {"type": "function", "function": {"name": "a", "parameters": {"type": "cat"}}}
IMAGE = {"type": "image_url", "text": "x"}
ROW = re.compile(r"^\| `(\w+)` \| (\w[\w ]*) \| (chat|text|both) \|", re.MULTILINE)
TOGETHER: dict[str, dict[str, Any]] = {
    "stream_options": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "stream": True},
    "top_logprobs": {"top_logprobs": 2, "logprobs": True},
}


def body(kind: str, **fields: Any) -> dict[str, Any]:
    start: dict[str, Any] = {**HELLO} if kind == "chat" else {"prompt": "Once upon a time"}
    return {**start, "max_tokens": 1, "temperature": 0, **fields}


def test_no_field_of_vllm_is_missing() -> None:
    names = {"chat": vllm_fields.CHAT, "completions": vllm_fields.COMPLETION}
    names |= {"tokenize": vllm_fields.TOKENIZE, "detokenize": vllm_fields.DETOKENIZE}
    for kind, fields in names.items():
        assert set(fields.split()) <= set(TABLES[kind]), kind
    for names_of, kind_of in (
        (vllm_fields.STRUCTURED_OUTPUTS, Structured),
        (vllm_fields.STREAM_OPTIONS, StreamChoices),
    ):
        assert set(names_of.split()) <= {field.name for field in msgspec.structs.fields(kind_of)}


def test_no_field_of_the_openai_client_is_missing() -> None:
    pytest.importorskip("openai")
    from openai.resources.chat.completions import Completions as Chat
    from openai.resources.completions import Completions

    for create, table in ((Chat.create, CHAT), (Completions.create, COMPLETION)):
        names = set(inspect.signature(create).parameters) - {"self", "timeout"}
        names = {name for name in names if not name.startswith("extra_")}
        assert len(names) > 15 and names <= set(table)


def of_use(fields: Mapping[str, FieldUse], use: str) -> list[str]:
    return [name for name, field in fields.items() if field.use == use]


REFUSED = [(kind, name) for kind in PATHS for name in of_use(TABLES[kind], "refused")]


def test_refused_fields_are_refused_by_name(server: Serving) -> None:
    assert len(REFUSED) > 40
    for kind, name in REFUSED:
        got = server.post(PATHS[kind], body(kind, **{name: WANTED.get(name, {"some": "thing"})}))
        assert got.status == 400 and got.error["param"] == name and name in got.error["message"], (kind, name)
        assert got.error["type"] == "invalid_request_error" and got.error["code"] == "unsupported"


def test_what_asks_for_nothing_is_let_pass(server: Serving) -> None:
    """Clients that fill in every default are served."""
    for kind, table in TABLES.items():
        if kind in PATHS:
            nothing = {name: field.nothing[-1] for name, field in table.items() if field.use == "refused"}
            nulls = {name: None for name in of_use(table, "works") if not table[name].required}
            got = server.post(PATHS[kind], body(kind) | nulls | nothing | {"max_tokens": 1})
            assert got.status == 200, got.data


@pytest.mark.parametrize("kind", PATHS)
def test_other_fields_are_served(server: Serving, kind: str) -> None:
    """One at a time; that they do what they say is shown elsewhere."""
    pytest.importorskip("llguidance")
    for use in ("works", "neutral"):
        for name in of_use(TABLES[kind], use):
            given = TOGETHER.get(name, {name: SAMPLES.get(name)})
            if name == "logprobs":
                given = {name: True if kind == "chat" else 2}
            assert None not in given.values(), name
            got = server.post(PATHS[kind], body(kind, **given))
            assert got.status == 200, (name, got.data)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temprature": 1}, "temprature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"n": 1.5}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"stop": 5}, "stop"),
        ({"logit_bias": {"65": 101}}, "logit_bias.65"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a"),
        ({"logit_bias": {str(place): 1 for place in range(301)}}, "logit_bias"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"logit_bias": {"10000": 1}}, "logit_bias"),
        ({"allowed_token_ids": [10_000]}, "allowed_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"bad_words": ["x" * 65]}, "bad_words[0]"),
        ({"min_tokens": 9, "max_tokens": 4}, "min_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": "yes"}, "stream"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"structured_outputs": {"grammar": "root ::= 'a'"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "(("}}, "structured_outputs"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "cat"}}}},
         "response_format"),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"use_beam_search": True, "temperature": 0.5}, "temperature"),
        ({"use_beam_search": True, "n": 2, "stop": ["a"]}, "stop"),
        ({"priority": 1}, "priority"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"request_id": "with space"}, "request_id"),
        ({"retention": {"seconds": 1e6}}, "retention.seconds"),
        ({"retention": {"priority": 100}}, "retention.priority"),
        ({"retention": {"ranges": [{"priority": 5, "seconds": 1e6}]}}, "retention.ranges[0].seconds"),
        ({"retention": {"hours": 1}}, "retention.hours"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
    ],
)  # fmt: skip
def test_what_is_out_of_bounds_is_refused_by_name(server: Serving, fields: dict[str, Any], param: str) -> None:
    for kind in PATHS:
        got = server.post(PATHS[kind], body(kind, **fields))
        assert got.status == 400 and got.error["param"] == param, (kind, got.data)
    server.until_idle()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood"),
        ({"messages": [{"role": "martian", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "tools": [BAD_TOOL]}, "tools"),
        ({"tool_choice": "auto", "tools": [TOOL] * 2}, "tools"),
        ({"parallel_tool_calls": False, "tools": [TOOL]}, "parallel_tool_calls"),
        ({"chat_template_kwargs": {"weather": "sun"}}, "chat_template_kwargs.weather"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"retention": {"seconds": 5}, "prompt_cache_retention": "24h"}, "retention"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}]},
         "messages[0].tool_calls[0].function.arguments"),
    ],
)  # fmt: skip
def test_what_a_conversation_cannot_be(server: Serving, fields: dict[str, Any], param: str) -> None:
    got = server.chat(**fields)
    assert got.status == 400 and got.error["param"] == param, got.data


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [256]}, "prompt"),
        ({"prompt": {"text": "x"}}, "prompt"),
        ({"prompt": ["x"] * 129}, "prompt"),
        ({"prompt": ["x"] * 100, "n": 2}, "n"),
        ({"prompt": "x" * 30_000}, "prompt"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_what_a_text_cannot_be(server: Serving, fields: dict[str, Any], param: str) -> None:
    got = server.complete(**fields)
    assert got.status == 400 and got.error["param"] == param, got.data


def test_the_page_has_the_same_table() -> None:
    """docs/serve.md: a row per field, with what becomes of it."""
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    told = {(name, where): use for name, use, where in rows}
    found: dict[tuple[str, str], str] = {}
    for name in {*CHAT, *COMPLETION}:
        chat, text = CHAT.get(name), COMPLETION.get(name)
        if chat and text and chat.use == text.use:
            found[name, "both"] = chat.use
        else:
            found |= {(name, where): one.use for where, one in (("chat", chat), ("text", text)) if one}
    assert told == found and len(rows) == len(told)
