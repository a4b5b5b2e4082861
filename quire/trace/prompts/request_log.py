"""RequestLog: one line of an OpenAI-style log, checked: when, which prompts, how long the answer, whose. No tokens yet.

Errors name the kind of fault and never quote a log: it holds what people wrote.

    {"messages": [...], "tools": [...]}            a conversation, for the tokenizer's own template
    {"prompt": "text" | [ids] | ["text", ...]}     as it is; several are several requests
    {"input": ..., "instructions": ...}            the same as a conversation
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.core.records.identity import Scope
from quire.trace.prompts.arrival_times import ArrivalTimes
from quire.trace.prompts.fields import (
    INPUT_COUNTS,
    OUTPUT_COUNTS,
    Fields,
    answers_of,
    at,
    body_of,
    count_of,
    finish_of,
    kind_of,
    name_of,
    session_of,
)  # fmt: skip
from quire.trace.read.lines import LONGEST, Wrong
from quire.trace.record.trace_writer import is_reason
from quire.trace.units import Int32, shown

MOST_PROMPTS = 1 << 16  # of one line
_ANYBODY = Scope()
_TEMPLATE_SWITCHES = ("add_generation_prompt", "continue_final_message")


@dataclass(slots=True)
class Talk:
    """A conversation, as templates want it."""

    messages: list[Fields]
    tools: list[Any] | None = None
    more: Fields = field(default_factory=dict)  # for the template


@dataclass(slots=True)
class LoggedRequest:
    """What one line says."""

    time_ms: float
    prompts: list[str | list[int] | Int32 | Talk]
    scope: Scope
    output: int | None = None  # tokens of all answers; None: sum of `answers`, if there are any
    answers: list[str] = field(default_factory=list)
    input: int | None = None  # tokens of the prompt, if the log counted them
    session: str | None = None  # which conversation, as the log names it
    finish: str | None = None  # why its answer ended
    name: str | None = None  # of its application or tenant


class RequestLog:
    """Reads line after line of one log; with `prompts_only` nothing of answers and sessions."""

    def __init__(
        self, times: ArrivalTimes, scope_fields: Sequence[str] = (), session_field: str | None = None,
        name_fields: Sequence[str] = (), prompts_only: bool = False,
    ) -> None:  # fmt: skip
        self.times, self._prompts_only = times, prompts_only
        self._name_fields = tuple(name_fields)
        self._session_field = session_field
        self._scope_fields = tuple(scope_fields)

    def read(self, fields: Fields) -> LoggedRequest:
        """One line; raises Wrong."""
        body = body_of(fields)
        if body is None:
            raise Wrong("it has neither messages nor a prompt", "see what logs can be read in docs/trace.md")
        prompts, time = _prompts(body), self.times.read(fields)
        scope, name = self._scope(fields, body), name_of(fields, body, self._name_fields)
        if self._prompts_only:
            return LoggedRequest(time, prompts, scope, name=name)
        output = count_of(fields, OUTPUT_COUNTS)
        answers = [] if output is not None else [text for text in answers_of(fields) if _is_text(text)]
        finish = finish_of(fields)
        return LoggedRequest(
            time, prompts, scope, output, answers, count_of(fields, INPUT_COUNTS),
            session_of(fields, body, self._session_field), finish if is_reason(finish) else None, name,
        )  # fmt: skip

    def _scope(self, fields: Fields, body: Fields) -> Scope:
        """Requests share only within a model, a salt, and what the user named."""
        model = body.get("model", fields.get("model"))
        salt = body.get("cache_salt", fields.get("cache_salt"))
        if model is None and salt is None and not self._scope_fields:
            return _ANYBODY
        own = [at(fields, name) if at(fields, name) is not None else at(body, name) for name in self._scope_fields]
        named = [_named(value) for value in own]
        return Scope(lora=_named(model), salt=_named(salt), epoch=json.dumps(named) if any(named) else None)


def _named(value: Any) -> str | None:
    return None if value is None else json.dumps(value, sort_keys=True)


def _prompts(body: Fields) -> list[str | list[int] | Int32 | Talk]:
    if body.get("prompt_token_ids") is not None:  # what became of it, so no tokenizer is needed
        return _plain(body["prompt_token_ids"])
    if body.get("messages") is not None:
        return [_talk(body["messages"], body)]
    if body.get("prompt") is not None:
        return _plain(body["prompt"])
    content = body["input"]
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    if isinstance(body.get("instructions"), str) and isinstance(messages, list):
        messages = [{"role": "system", "content": body["instructions"]}, *messages]
    return [_talk(messages, body)]


def _plain(prompt: Any) -> list[str | list[int] | Int32 | Talk]:
    if isinstance(prompt, str):
        return [_text(prompt)]
    if not isinstance(prompt, list) or not prompt:
        raise Wrong(f"its prompt is {kind_of(prompt)}", "give text, token ids, or a list of them")
    if len(prompt) > MOST_PROMPTS and type(prompt[0]) is not int:
        fact = f"it has {len(prompt):,} prompts, and a line may have {MOST_PROMPTS:,}"
        raise Wrong(fact, "write one request per line")
    if type(prompt[0]) in (int, float, bool):
        return [_ids(prompt)]
    return [_text(one) if isinstance(one, str) else _ids(one) for one in prompt]


def _ids(prompt: Any) -> list[int]:
    if not isinstance(prompt, list) or not prompt or len(prompt) > LONGEST:
        raise Wrong(f"a prompt is {kind_of(prompt)}", f"give 1 to {LONGEST} token ids")
    for token in prompt:
        if type(token) is not int or not 0 <= token < 1 << 31:
            what = shown(token, 40) if type(token) in (int, float) else kind_of(token)
            raise Wrong(f"a token id is {what}", "token ids are whole numbers from 0 to 2147483647")
    return prompt


def _talk(messages: Any, body: Fields) -> Talk:
    if not isinstance(messages, list) or not messages:
        raise Wrong(f"its messages are {kind_of(messages)}", 'give a list of {"role": ..., "content": ...}')
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise Wrong(f"its tools are {kind_of(tools)}", "give a list, or leave them out")
    more = body.get("chat_template_kwargs")
    more = dict(more) if isinstance(more, dict) else {}
    switches = {name: body[name] for name in _TEMPLATE_SWITCHES if type(body.get(name)) is bool}
    return Talk([_message(one) for one in messages], tools or None, more | switches)


def _message(message: Any) -> Fields:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Wrong(f"a message is {kind_of(message)}", 'write {"role": ..., "content": ...}')
    plain = {**message, "content": _content(message.get("content"))}
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        plain["tool_calls"] = [_call(call) for call in calls]
    return plain


def _content(content: Any) -> str:
    """Text, or its text parts, as servers join them for templates that know text only."""
    if content is None:
        return ""
    if isinstance(content, str):
        return _text(content)
    if not isinstance(content, list):
        raise Wrong(f"the content of a message is {kind_of(content)}", "give text, or a list of text parts")
    texts = []
    for part in content:
        text = part if isinstance(part, str) else at(part, "text")
        if not isinstance(text, str):
            kind = at(part, "type")
            fact = f"a message has a part of type {shown(kind, 40)}, and the log does not say how many tokens it has"
            raise Wrong(fact, "leave such requests out (--skip-bad), or log token ids as the prompt")
        texts.append(_text(text))
    return "\n".join(texts)


def _call(call: Any) -> Any:
    """Templates want the arguments of a call as an object; logs have them as JSON in a string."""
    arguments = at(call, "function.arguments")
    if not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**call["function"], "arguments": parsed}} if isinstance(parsed, dict) else call


def _text(text: str) -> str:
    if not _is_text(text):
        raise Wrong("its text has half of a pair of characters, which no tokenizer knows", "write the log as UTF-8")
    return text


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
