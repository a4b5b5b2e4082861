"""Hints of a server: the finish of an answer and what clients say reach the cache; sessions stay with their tenant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire import Scope
from quire.cli.main import main
from quire.core.records.request import MOST_POINTS
from quire.engine.runner.engine import Engine
from quire.serve import ApiKeys
from quire.serve.inputs.prompt_tokens import Prompts, encoder, message_end
from quire.serve.inputs.tools import NO_TOOLS, Reads, ToolPlan, calls_tool
from quire.serve.protocol.bodies import ChatBody
from quire.serve.protocol.decode import read_body
from quire.serve.protocol.to_hints import session_of
from quire.trace.read.trace import read_trace

from ..engine.endings import Ending, endings_of
from .rig import HELLO, Reply, Serving, serving, tiny_model
from .test_auth import ALICE, BOB, LINES, bearer
from .test_tools import ONE, TOOLS

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TURNS = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}~{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
ENDS: dict[str, Any] = {"allowed_token_ids": [65], "stop_token_ids": [65]}


@pytest.fixture(scope="module")
def keyed() -> Iterator[Serving]:
    with serving(keys=ApiKeys(LINES)) as made:
        yield made


def ending(server: Serving, path: str = CHAT, key: str = ALICE, **fields: Any) -> tuple[Reply, Ending]:
    """One request, and what its one sequence was released with."""
    asked = HELLO if path == CHAT else {"prompt": "Once upon a time"}
    with endings_of(server.llm.loop.engine.cache) as endings:
        got = server.post(path, {"temperature": 0, "max_tokens": 3, **asked, **fields}, **bearer(key))
        server.until_idle()
    assert got.status == 200 and len(endings) == 1, got.data
    return got, endings[0]


def finish(got: Reply) -> str:
    return str(got.json["choices"][0]["finish_reason"])


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_the_finish_says_when_it_comes_back(keyed: Serving, path: str) -> None:
    got, end = ending(keyed, path, **ENDS)
    assert finish(got) == "stop" and end.back == "later"
    got, end = ending(keyed, path, ignore_eos=True)
    assert finish(got) == "length" and end.back is None and end.session is None


def test_an_answer_that_calls_a_tool_comes_back_soon(keyed: Serving) -> None:
    pytest.importorskip("llguidance")
    call = '<tool_call>{"name":"look"}</tool_call>'
    form: dict[str, Any] = {"structured_outputs": {"choice": [call]}, "max_tokens": 40, "tools": TOOLS}
    got, end = ending(keyed, **form)
    assert end.back == "soon" and finish(got) == "tool_calls"
    got, end = ending(keyed, **form, stream=True, metadata={"quire_back": "never"})
    assert end.back == "never" and got.events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert ending(keyed, **{**form, "max_tokens": 12})[1].back is None  # cut short: there is no call
    broken = {"choice": ["<tool_call>1</tool_call>"]}
    assert ending(keyed, **{**form, "structured_outputs": broken})[1].back == "later"


@pytest.mark.parametrize(
    ("reads", "text", "called"),
    [
        ("auto", ONE, True), ("auto", "no", False), ("required", ONE[11:-12], True), ("required", '{"name"', False),
        ("named", "{}", True), ("text", ONE, False),
    ],
)  # fmt: skip
def test_what_a_call_is_depends_on_the_choice_of_tool(reads: Reads, text: str, called: bool) -> None:
    assert calls_tool(reads, text) is called
    plan = ToolPlan([], None, reads).calls_tool
    assert (plan is not None and plan(text)) is called and NO_TOOLS.calls_tool is None


@pytest.mark.parametrize("back", ["soon", "later", "never"])
def test_a_client_may_say_it_in_metadata(keyed: Serving, back: str) -> None:
    for path in (CHAT, TEXT):
        assert ending(keyed, path, metadata={"quire_back": back})[1].back == back


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"metadata": {"quire_back": "sometimes"}}, "metadata.quire_back"),
        ({"metadata": {"quire_back": ""}}, "metadata.quire_back"),
        ({"session_id": "s" * 257}, "session_id"),
        ({"prompt_cache_key": "s" * 257}, "prompt_cache_key"),
        ({"session_id": 7}, "session_id"),
        ({"metadata": {"session_id": 7}}, "metadata.session_id"),
    ],
)
def test_what_is_no_hint_is_refused_by_name(keyed: Serving, fields: dict[str, Any], param: str) -> None:
    for path, asked in ((CHAT, HELLO), (TEXT, {"prompt": "x"})):
        got = keyed.post(path, {**asked, "max_tokens": 1, **fields}, **bearer(ALICE))
        assert got.status == 400 and got.error["param"] == param and param in got.error["message"]


def test_sessions_stay_with_their_tenant(keyed: Serving) -> None:
    """One name is one session under every field and path, another for every tenant and salt, and is shown nowhere."""
    told: list[dict[str, Any]] = [
        {"session_id": "talk"},
        {"prompt_cache_key": "talk"},
        {"metadata": {"session_id": "talk"}},
    ]
    names = {ending(keyed, path, **fields)[1].session for fields in told for path in (CHAT, TEXT)}
    assert len(names) == 1 and None not in names and "talk" not in str(names)
    others = {ending(keyed, key=BOB, session_id="talk")[1].session, ending(keyed, session_id="tale")[1].session}
    others.add(ending(keyed, session_id="talk", cache_salt="s")[1].session)
    assert len(others) == 3 and not others & names


@pytest.mark.parametrize(
    ("fields", "wins"),
    [
        ({"session_id": "a", "metadata": {"session_id": "b"}, "prompt_cache_key": "c"}, "a"),
        ({"session_id": "", "metadata": {"session_id": "b"}, "prompt_cache_key": "c"}, "b"),
        ({"metadata": {"other": "b"}, "prompt_cache_key": "c"}, "c"),
        ({"session_id": None, "metadata": None, "prompt_cache_key": ""}, ""),
    ],
)
def test_the_most_particular_name_wins(fields: dict[str, Any], wins: str) -> None:
    def session(given: dict[str, Any]) -> str | None:
        from msgspec import json

        return session_of(read_body(json.encode({**HELLO, **given}), ChatBody), Scope(salt="alice:"))

    assert session(fields) == session({"session_id": wins})
    assert (session(fields) is None) == (wins == "")


def test_what_a_server_recorded_is_replayed_with_its_hints(
    keyed: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the requests of two agents and a chat to what the same hints do for another cache."""
    pytest.importorskip("llguidance")
    call = '<tool_call>{"name":"look"}</tool_call>'
    tool: dict[str, Any] = {"structured_outputs": {"choice": [call]}, "max_tokens": 40, "tools": TOOLS}
    path = tmp_path / "day.jsonl"
    recorder = keyed.llm.record(path)
    for fields in (
        {**tool, "session_id": "agent"}, {**ENDS, "session_id": "agent"}, {"ignore_eos": True, "session_id": "chat"},
        {**tool, "stream": True, "metadata": {"quire_back": "never"}},
    ):  # fmt: skip
        ending(keyed, **fields)
    recorder.close()
    trace = read_trace(path)
    assert [(ask.finish, ask.back) for ask in trace] == [
        ("tool_calls", "soon"), ("stop", "later"), ("length", None), ("tool_calls", "never")
    ]  # fmt: skip
    assert len({trace[0].session, trace[1].session}) == 1 and len({ask.session for ask in trace}) == 3
    assert main(["replay", str(path), "--hints", "finish", "--block-size", "8", "--device-blocks", "100"]) == 0
    assert "Hints when requests ended: 1 soon, 1 later, 1 never; 1 without." in capsys.readouterr().out


def turns(template: str | None) -> Any:
    """A model whose template may end messages with a special token."""
    model = tiny_model(template or "")
    model.tokenizer.add_special_tokens({"eos_token": "~"})
    return model


def test_messages_end_where_others_may_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request names these places; a text has none, and of many the last ones count."""
    seen = list[tuple[int, tuple[int, ...]]]()
    submit = Engine.submit

    def noted(self: Engine, *given: Any, **options: Any) -> Any:
        run = submit(self, *given, **options)
        seen.append((len(run.request.tokens), tuple(run.request.resume_points)))
        return run

    monkeypatch.setattr(Engine, "submit", noted)
    messages = [{"role": "system", "content": "Hi " * 4}, {"role": "user", "content": "Hi"}]
    with serving(turns(TURNS)) as server:
        for more in ([], [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]):
            assert server.post(CHAT, {"max_tokens": 1, "messages": messages + more}).status == 200
        assert server.post(TEXT, {"max_tokens": 1, "prompt": "~a~"}).status == 200
        ends = server.service.prompts.message_ends([ord("~") - 33] * (MOST_POINTS + 3))
    assert seen == [(22, (15, 20)), (30, (15, 20, 24, 28)), (3, ())]
    assert ends == tuple(range(4, MOST_POINTS + 4))


@pytest.mark.parametrize("template", [None, "{{ raise_exception('no') }}", "{{ messages[0].content }}"])
def test_without_a_token_that_ends_messages_nobody_names_points(template: str | None) -> None:
    words = turns(template).tokenizer
    assert message_end(words, encoder(words)) is None
    assert Prompts(words, 100, 256).message_ends([ord("~") - 33]) == ()
