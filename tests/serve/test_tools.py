"""Calls of tools, read from what a model writes: whole, cut into any pieces, or broken."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest

from quire.serve.http.api_errors import ApiError
from quire.serve.inputs.tools import AnswerReader, AutoReader, NamedReader, RequiredReader, ToolCallDelta, plan_tools
from quire.serve.protocol.bodies import ChatBody
from quire.serve.protocol.decode import read_body

from .rig import HELLO, serving, tiny_model

ONE = '<tool_call>\n{"name": "look", "arguments": {"at": "sea"}}\n</tool_call>'
TWO = '<tool_call>{"name": "wait", "arguments": {}}</tool_call>'
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("look", "wait")
]


def read(reader: AnswerReader, text: str, cuts: list[int]) -> tuple[str, list[tuple[str, Any]]]:
    """Content and calls, from a text that comes in pieces."""
    deltas: list[ToolCallDelta] = []
    edges = [0, *sorted(cuts), len(text)]
    for start, end in pairwise(edges):
        deltas += reader.read(text[start:end], False)
    deltas += reader.read("", True)
    calls: dict[int, tuple[str, str]] = {}
    for call in [delta.call for delta in deltas if delta.call is not None]:
        name, before = calls.get(call["index"], ("", ""))
        calls[call["index"]] = (name or call["function"]["name"], before + call["function"]["arguments"])
    return "".join(delta.content for delta in deltas), [(name, json.loads(text)) for name, text in calls.values()]


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("plain", "plain", []),
        ("a < b, a <tool", "a < b, a <tool", []),
        (ONE, "", [("look", {"at": "sea"})]),
        (f"I look. {ONE}", "I look. ", [("look", {"at": "sea"})]),
        (f"{ONE}\n{TWO}\n", "", [("look", {"at": "sea"}), ("wait", {})]),
        ("<tool_call>no json</tool_call>", "<tool_call>no json</tool_call>", []),
        ('<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
        (ONE.removesuffix("</tool_call>"), "", [("look", {"at": "sea"})]),
        (ONE[:30], ONE[:30], []),
        ("<tool_call>" + "[" * 100_000, "<tool_call>" + "[" * 100_000, []),
    ],
)
def test_calls_among_text(text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    dice = random.Random(1)
    for pieces in (0, 1, 5, 40):
        reader = AutoReader()
        cuts = [dice.randrange(len(text)) for _ in range(pieces)]
        assert read(reader, text, cuts) == (content, calls) and reader.called == bool(calls)


def test_text_is_told_as_soon_as_it_can_be_no_mark() -> None:
    reader = AutoReader()
    assert reader.read("hello <", False) == [ToolCallDelta("hello ")] and reader.read("b", False) == [
        ToolCallDelta("<b")
    ]
    assert reader.read("<tool_call>{", False) == [] and reader.read('"name"', False) == []


def test_a_required_call_is_one_or_text() -> None:
    whole, cut = RequiredReader(), RequiredReader()
    assert read(whole, ONE[11:-12], [3, 9]) == ("", [("look", {"at": "sea"})]) and whole.called
    assert read(cut, '{"name": "lo', [4]) == ('{"name": "lo', []) and not cut.called


def test_a_named_call_comes_as_it_is_made() -> None:
    reader = NamedReader("look")
    first, second = reader.read('{"a', False)[0].call, reader.read('": 1}', False)[0].call
    assert first is not None and first["id"].startswith("call_")
    assert first["function"] == {"name": "look", "arguments": '{"a'}
    assert second == {"index": 0, "function": {"arguments": '": 1}'}} and reader.read("", True) == []


@pytest.mark.parametrize(
    ("choice", "template", "param"),
    [
        ("auto", "{{ tools }}", "tool_choice"),
        ({"type": "function", "function": {"name": "fly"}}, "<tool_call>", "tool_choice"),
    ],
)
def test_choices_that_cannot_be_kept_are_refused(choice: Any, template: str, param: str) -> None:
    asked = read_body(json.dumps({**HELLO, "tools": TOOLS, "tool_choice": choice}).encode(), ChatBody)
    with pytest.raises(ApiError) as told:
        plan_tools(asked, template)
    assert told.value.status == 400 and told.value.param == param and told.value.code == "unsupported"


def test_a_template_without_tools_is_not_given_any() -> None:
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with serving(tiny_model(plain)) as server:
        got = server.chat(tools=TOOLS)
        assert got.status == 400 and got.error["param"] == "tools"
        assert server.chat(tools=TOOLS, tool_choice="none").status == server.chat().status == 200
    with serving(tiny_model("")) as server:
        assert server.chat().error["param"] == "messages" and server.complete().status == 200


def test_a_conversation_with_calls_reaches_the_template() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sea"}'}}
    talk: list[Any] = [*HELLO["messages"], {"role": "assistant", "content": None, "tool_calls": [call]}]
    parts = [{"type": "text", "text": "wa"}, {"type": "text", "text": "ves"}]
    talk.append({"role": "tool", "tool_call_id": "call_1", "content": parts})
    with serving() as server:
        tokens = server.post("/tokenize", {"messages": talk}).json["tokens"]
        text = server.post("/detokenize", {"tokens": tokens}).json["prompt"]
        assert text.endswith('a:look{"at": "sea"}t:wavesa:')
        moody = server.post("/tokenize", {"messages": talk, "chat_template_kwargs": {"mood": "glad"}}).json
        assert moody["count"] == len(tokens) + len("glad\n")
        last = [*HELLO["messages"], {"role": "assistant", "content": "I am"}]
        fields = {"continue_final_message": True, "add_generation_prompt": False}
        opened = server.post("/tokenize", {"messages": last, **fields}).json["tokens"]
        assert server.post("/detokenize", {"tokens": opened}).json["prompt"].endswith("a:I am")
