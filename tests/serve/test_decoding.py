"""Types of bodies agree with the OpenAPI document, say what is wrong with a value, and build only what fits them."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.serve import ServeSettings
from quire.serve.http.api_errors import ApiError
from quire.serve.protocol import decode, extent
from quire.serve.protocol.bodies import Body, ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from quire.serve.protocol.decode import LARGE, MOST_VALUES, read_body, with_whole_numbers
from quire.serve.protocol.extent import MOST_DEPTH, MOST_DIGITS, Extent
from quire.serve.protocol.openapi import document
from quire.serve.protocol.raw_parts import Allowance, check_raw_parts, read_json, read_prompts, read_tokens
from quire.serve.protocol.uses import uses_of

KINDS: dict[type[Body], dict[str, Any]] = {  # with what each needs
    ChatBody: {"messages": [{"role": "user", "content": "x"}]},
    CompletionBody: {"prompt": "x"},
    TokenizeBody: {},
    DetokenizeBody: {"tokens": []},
}
VALIDATORS: dict[Any, Any] = {}
LEAVES = (
    st.none() | st.booleans() | st.integers(-5, 150) | st.floats(-3, 3) | st.sampled_from(["", "a", "function", "text"])
)
NAMES = st.sampled_from(["type", "function", "name", "json_schema", "schema", "role", "content", "seconds", "65"])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)


def read(kind: type[Body], body: dict[str, Any] | bytes) -> Body:
    """All that an endpoint reads of a body before it does something."""
    made = read_body(body if isinstance(body, bytes) else json.dumps(body).encode(), kind)
    check_raw_parts(made)
    if isinstance(made, CompletionBody):
        read_prompts(made.prompt)
    if isinstance(made, DetokenizeBody):
        read_tokens(made.tokens, "tokens")
    return made


def refusal(kind: type[Body], body: dict[str, Any] | bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(kind, body)
    assert caught.value.status == 400
    return caught.value


@settings(max_examples=15, deadline=None, derandomize=True)
@given(value=VALUES)
def test_types_and_the_document_agree(value: Any) -> None:
    """What the document allows is read, and nothing else is."""
    real = pytest.importorskip("jsonschema_rs")
    if not VALIDATORS:
        schemas = document(ServeSettings("tiny"))["components"]
        for kind in KINDS:
            schema = {"$ref": f"#/components/schemas/{kind.__name__}", "components": schemas}
            VALIDATORS[kind] = real.validator_for(schema)
    for kind, needed in KINDS.items():
        for name in uses_of(kind):
            body = {**needed, name: value}
            try:
                read(kind, body)
                is_read = True
            except ApiError as wrong:
                is_read = False
                assert wrong.param is not None and wrong.param.startswith(name), (body, str(wrong))
            assert is_read == VALIDATORS[kind].is_valid(body), body


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("stop", ["a", ""], "stop[1]: it has 0 characters; give at least 1"),
        ("stop", 5, "stop: it is 5; give a string or a list"),
        ("tool_choice", "never", "tool_choice: it is 'never'; give one of auto, none, required"),
        ("tool_choice", {"type": "function"}, "tool_choice.function: it is missing; give it"),
        ("response_format", {"type": "json_schema"}, "response_format.json_schema: it is missing; give it"),
        ("response_format", {"type": "xml"},
         "response_format.type: it is 'xml'; give one of text, json_object, json_schema"),
        ("retention", {"hours": 1}, "retention.hours: there is no such field; there are priority, seconds, ranges"),
        ("retention", {"ranges": [{"priority": 1, "end": -1}]}, "retention.ranges[0].end: it is -1; give at least 0"),
        ("structured_outputs", {"grammar": "a"},
         "structured_outputs.grammar: it is 'a'; this server cannot do that: leave it out"),
        ("logit_bias", {"3": 1, "4": "x"}, "logit_bias.4: it is 'x'; give a number"),
        ("logit_bias", {"3": 1, "4": 101}, "logit_bias.4: it is 101; give at most 100"),
        ("metadata", {"a": ["b"]}, "metadata.a: it is ['b']; give a string"),
        ("metadata", {"a" * 65: "b"}, "metadata: one of its names is too long; give at most 64"),
        ("n", 129, "n: it is 129; give at most 128"),
        ("n", 1.5, "n: it is 1.5; give a whole number, without a fraction"),
        ("top_p", 0, "top_p: it is 0; give more than 0"),
        ("temperature", True, "temperature: it is True; give a number"),
        ("stream", "yes", "stream: it is 'yes'; give true or false"),
        ("temprature", 1, "temprature: there is no such field; did you mean temperature?"),
        ("echo", True,
         "echo: this server cannot do that; it is in the request already: leave it out, or ask /v1/completions"),
        ("messages", [{"role": "user", "content": 5}], "messages[0].content: it is 5; give a string or a list"),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}],
         "messages[0].content[0].text: it is missing; give it"),
        ("tools", [{"type": "function", "function": {"name": "a", "parameters": [1]}}],
         "tools[0].function.parameters: it is [1]; give an object"),
        ("chat_template_kwargs", "x", "chat_template_kwargs: it is 'x'; give an object"),
    ],
)  # fmt: skip
def test_a_message_has_the_path_the_fact_and_the_cure(name: str, value: Any, message: str) -> None:
    wrong = refusal(ChatBody, {**KINDS[ChatBody], name: value})
    assert str(wrong) == message and wrong.param == message.partition(":")[0]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (["x"] * 129, "prompt: it has 129 entries; give at most 128"),
        (5, "prompt: it is 5; give a string or a list"),
        ([], "prompt: it has 0 entries; give at least 1"),
        ([[1], [-2]], "prompt[1][0]: it is -2; give at least 0"),
        ([1, "a"], "prompt[1]: it is 'a'; give a whole number"),
        (["a", 1], "prompt[1]: it is 1; give a string"),
        ([[1], "a"], "prompt[1]: it is 'a'; give a list"),
        ([1] * LARGE + [1.5], f"prompt[{LARGE}]: it is a number; give a whole number, without a fraction"),
        ([[1]] * LARGE, f"prompt: it has {LARGE} entries; give at most 128"),
    ],
)
def test_what_a_prompt_cannot_be(prompt: Any, message: str) -> None:
    assert str(refusal(CompletionBody, {"prompt": prompt})) == message


def test_whole_numbers_may_be_written_with_a_point() -> None:
    """1.0 is a whole number to JSON, wherever it stands; in a string it stays."""
    text = b'{"a":1.0,"b":"1.0","c":[2.00,-3.0,1.5,1.05,1.0e3,10.0]}'
    assert with_whole_numbers(text) == b'{"a":1,"b":"1.0","c":[2,-3,1.5,1.05,1.0e3,10]}'
    body = read(ChatBody, {**KINDS[ChatBody], "n": 2.0, "stop": ["1.0"], "retention": {"priority": 5.0}})
    assert isinstance(body, ChatBody) and body.n == 2 and body.stop == ["1.0"] and body.retention is not None
    many = [float(nth % 50) for nth in range(LARGE)]
    assert read_prompts(msgspec.Raw(json.dumps(many).encode())) == [many]
    long = json.dumps({**KINDS[ChatBody], "user": "1.0," * LARGE, "n": 3.0}).encode()
    read_again = read(ChatBody, long)
    assert isinstance(read_again, ChatBody) and read_again.n == 3 and read_again.user == "1.0," * LARGE


def test_many_token_ids_are_read_in_pieces() -> None:
    tokens = [nth % 999 for nth in range(60_000)]
    for text in (json.dumps(tokens), json.dumps(tokens, indent=1), json.dumps(tokens, separators=(",", ":"))):
        assert read_prompts(msgspec.Raw(text.encode())) == [tokens] == [read_tokens(msgspec.Raw(text.encode()), "t")]
    assert read_tokens(msgspec.Raw(b"[ ]"), "tokens") == []


# -- bounds ----------------------------------------------------------------------------------------------------------

LISTS = b"[],"
TALK = b'{"messages":[{"role":"u","content":"x"}],'


@pytest.mark.parametrize(
    ("kind", "data", "param", "fact"),
    [
        (ChatBody, TALK + b'"metadata":{"a":[' + LISTS * 100_000 + b"[]]}}", "metadata", "it has 200003 entries"),
        (ChatBody, TALK + b",".join(b'"%d":1' % nth for nth in range(9000)) + b"}", "0", "there is no such field"),
        (ChatBody, TALK + b'"n":1,' * 20_000 + b'"n":1}', None, "it has 20002 fields"),
        (ChatBody, TALK + b'"user":' + b"[" * LARGE + b"]" * LARGE + b"}", "user", "it is nested too deeply"),
        (ChatBody, TALK + b'"audio":' + b"[" * 2000 + b"]" * 2000 + b"}", "audio", "it is nested too deeply"),
        (ChatBody, TALK + b'"seed":' + b"9" * LARGE + b"}", "seed", "400 digits or more"),
        (ChatBody, TALK + b'"stop":[' + b'"a",' * 40_000 + b'"a"]}', "stop", "it has 40001 entries"),
        (ChatBody, b'{"messages":[' + b'{"role":"a"},' * 80_000 + b'{"role":"a"}]}', "messages", "give at most 131072"),
        (ChatBody, TALK + b'"audio":[' + LISTS * 30_000 + b"1]}", "audio", "it has 60001 entries"),
        (CompletionBody, b'{"prompt":[' + b"1," * (1 << 20) + b"1]}", "prompt", "give at most 1048576"),
        (DetokenizeBody, b'{"tokens":[' + b"1," * (1 << 20) + b"1]}", "tokens", "give at most 1048576"),
        (TokenizeBody, b'{"tools":[' + LISTS * 40_000 + b"1]}", "tools", "give at most 32768"),
    ],
)  # fmt: skip
def test_what_no_field_takes_is_refused_by_name(kind: type[Body], data: bytes, param: str, fact: str) -> None:
    wrong = refusal(kind, data)
    assert wrong.param == param and fact in str(wrong) and len(str(wrong)) < 200


def test_what_is_refused_is_not_built() -> None:
    """A body of empty lists would take twenty times its size."""
    data = TALK + b'"metadata":{"a":[' + LISTS * (1 << 20) + b"[]]}}"
    refusal(ChatBody, data)  # what is made once is made
    tracemalloc.start()
    try:
        refusal(ChatBody, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * len(data)


def test_texts_of_arguments_have_one_allowance() -> None:
    allowance = Allowance(MOST_VALUES + 10)
    text = b"[" + b"1," * (MOST_VALUES // 2) + b"1]"
    assert read_json(text, "a", allowance) == read_json(text, "b") and read_json(text[:-4] + b"1]", "b", allowance)
    with pytest.raises(ApiError) as caught:
        read_json(text, "c", allowance)
    assert caught.value.param == "c"
    for bad in (b"[" * (MOST_DEPTH + 1) + b"]" * (MOST_DEPTH + 1), b"9" * (MOST_DIGITS + 1), b"{", b'"\xff"'):
        with pytest.raises(ApiError):
            read_json(bad, "d")
    assert read_json(b"[" * MOST_DEPTH + b"]" * MOST_DEPTH, "d") and read_json(b"9" * (MOST_DIGITS - 1), "d")


def slow_extent(text: str) -> tuple[int, int, bool, list[tuple[str, int]]]:
    """The same, character by character."""
    values, depth, deepest, run, long, inside, escaped = 1, 0, 0, 0, False, False, False
    sections: list[tuple[str, int]] = []
    begin, before = 0, 1
    for place, char in enumerate(text):
        run = run + 1 if char in "0123456789" and not inside else 0
        long = long or run >= 4
        if inside:
            inside, escaped = escaped or char != '"', not escaped and char == "\\"
            continue
        inside = char == '"'
        depth += (char in "[{") - (char in "]}")
        deepest, values = max(depth, deepest), values + (char in "[{,")
        if char == "{" and depth == 1:
            begin = place + 1
        if (char == "," and depth == 1) or (char == "}" and depth == 0):
            name = text[begin:place].partition(":")[0].strip()
            sections.append((name, values - before))
            begin, before = place + 1, values
    return values, deepest, long, sections


TEXTS = st.text(st.sampled_from('ab",[]{}\\:\n1é'), max_size=12)
OBJECTS = st.dictionaries(
    st.text(st.sampled_from("ab1"), max_size=4),
    st.recursive(TEXTS | st.sampled_from([-5, 99, 123, 1234, 12345]), lambda inner: st.lists(inner, max_size=3)),
    max_size=4,
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(body=OBJECTS, size=st.sampled_from([3, 8, 64]))
def test_a_text_is_counted_in_pieces_as_it_is_by_character(body: dict[str, Any], size: int) -> None:
    text = json.dumps(body, ensure_ascii=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extent, "PIECE", size)
        patch.setattr(extent, "MOST_DIGITS", 4)
        counted = Extent(text.encode())
    values, depth, long, sections = slow_extent(text)
    assert (counted.values, counted.depth, counted.long_number is not None) == (values, depth, long)
    names = [(section.name.decode(), section.values) for section in counted.sections(99)]
    assert names == (sections if body else [("", 1)])
    for name in body:
        place = text.encode().index(json.dumps(name).encode() + b":") + len(name) + 3
        assert counted.section_at(place).decode() == json.dumps(name)


def test_a_large_body_is_read_as_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its size decides whether it is counted first."""
    bodies = [{**KINDS[ChatBody], "n": 2}, {**KINDS[ChatBody], "n": 0}, {**KINDS[ChatBody], "m": [[]]}, {"n": 1}, [1]]
    before = [outcome(body) for body in bodies]
    monkeypatch.setattr(decode, "LARGE", 0)
    assert [outcome(body) for body in bodies] == before


def outcome(body: Any) -> Any:
    try:
        return read_body(json.dumps(body).encode(), ChatBody)
    except ApiError as wrong:
        return str(wrong), wrong.param, wrong.code
