"""Tools: what a choice of tool means for prompt, form and answer. Owns the reading of calls; knows no engine.

choice          given to the template    form of the answer                 read as
none            -                        -                                  text
auto            tools                    -                                  text and <tool_call>{...}</tool_call>
required        tools                    {"name", "arguments"} of a tool    one call
a function      tools                    the function's parameters          one call, as it comes
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from quire.core.records.errors import say, shown
from quire.engine.structured_outputs.structured_outputs import StructuredOutputs
from quire.serve.http.api_errors import ApiError
from quire.serve.protocol.bodies import ChatBody
from quire.serve.protocol.parts import ChosenTool, Tool
from quire.serve.protocol.raw_parts import read_object

OPEN, CLOSE = "<tool_call>", "</tool_call>"
ANYTHING: dict[str, Any] = {"type": "object"}


class ToolCallDelta(NamedTuple):
    """What a piece of text means: content, or a part of a call."""

    content: str = ""
    call: dict[str, Any] | None = None


class AnswerReader(Protocol):
    """Reads one answer as it comes."""

    called: bool  # whether the answer ends with calls

    def read(self, text: str, last: bool) -> list[ToolCallDelta]:
        """What more text means; `last`: none comes after it."""
        ...


Reads = Literal["text", "auto", "required", "named"]


class ToolPlan(NamedTuple):
    """What a request's tools come to."""

    tools: list[dict[str, Any]] | None  # for the template
    form: StructuredOutputs | None  # that the answer must have
    reads: Reads
    name: str = ""  # of the function that must be called

    def reader(self) -> AnswerReader | None:
        """Of one answer; None: all of it is text."""
        return reader_of(self.reads, self.name)

    @property
    def calls_tool(self) -> Callable[[str], bool] | None:
        """Says of a complete answer whether it calls a tool; goes to other processes. None: there are no tools."""
        return None if self.reads == "text" else partial(calls_tool, self.reads)


NO_TOOLS = ToolPlan(None, None, "text")


def reader_of(reads: Reads, name: str = "") -> AnswerReader | None:
    """Reads an answer as it was asked for; None: all of it is text."""
    match reads:
        case "auto":
            return AutoReader()
        case "required":
            return RequiredReader()
        case "named":
            return NamedReader(name)
    return None


def calls_tool(reads: Reads, text: str) -> bool:
    """Whether a complete answer calls a tool. A named function is called, although its finish is `stop`."""
    reader = reader_of(reads)
    if reader is None or reads == "named":
        return reader is not None
    reader.read(text, True)
    return reader.called


def plan_tools(asked: ChatBody, template: str | None) -> ToolPlan:
    """What `tools` and `tool_choice` ask for. What cannot be enforced or read is refused by name."""
    tools, choice = template_tools(asked.tools), asked.tool_choice
    if tools is None:
        if choice not in (None, "none"):
            raise _refuse("tool_choice", "there are no tools", "give some")
        return NO_TOOLS
    _check(tools)
    choice = choice or "auto"
    if choice == "none":
        return NO_TOOLS
    if asked.parallel_tool_calls is False and choice == "auto":
        raise _refuse("parallel_tool_calls", "nothing keeps the model from several calls", "choose required")
    if choice == "auto":
        if template is None or OPEN not in template:
            fact = f"this model does not write its calls as {OPEN}, which is all that this server reads"
            raise _refuse("tool_choice", fact, "choose none, required, or a function")
        return ToolPlan(tools, None, "auto")
    if choice == "required":
        return ToolPlan(tools, StructuredOutputs(json={"anyOf": [_call_schema(tool) for tool in tools]}), "required")
    assert isinstance(choice, ChosenTool)
    wanted = choice.function.name
    for tool in tools:
        if tool["function"]["name"] == wanted:
            schema = tool["function"].get("parameters") or ANYTHING
            return ToolPlan(tools, StructuredOutputs(json=schema), "named", wanted)
    raise _refuse("tool_choice", f"there is no tool {shown(wanted)}", "name one of them")


def template_tools(tools: list[Tool] | None) -> list[dict[str, Any]] | None:
    """As templates know them: without what was not given."""
    if not tools:
        return None
    made = []
    for nth, tool in enumerate(tools):
        given = tool.function
        function: dict[str, Any] = {"name": given.name, "description": given.description}
        function["parameters"] = read_object(given.parameters, f"tools[{nth}].function.parameters")
        function["strict"] = given.strict
        function = {name: value for name, value in function.items() if value is not None}
        made.append({"type": tool.type, "function": function})
    return made


def _check(tools: list[dict[str, Any]]) -> None:
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise _refuse("tools", "two have the same name", "give each its own")


def _refuse(param: str, fact: str, cure: str) -> ApiError:
    return ApiError(400, say(param, fact, cure), param=param, code="unsupported")


def _call_schema(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    return {
        "type": "object",
        "properties": {"name": {"enum": [function["name"]]}, "arguments": function.get("parameters") or ANYTHING},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _call(index: int, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


class NamedReader:
    """All text is the arguments of one function."""

    called = False  # OpenAI says `stop` when the function was named

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def read(self, text: str, last: bool) -> list[ToolCallDelta]:
        """The first piece has name and id, later ones have arguments alone."""
        name, self._name = self._name, None
        if name is not None:
            return [ToolCallDelta(call=_call(0, name, text))]
        return [ToolCallDelta(call={"index": 0, "function": {"arguments": text}})] if text else []


class RequiredReader:
    """One call, sent when it is whole; an answer that was cut short is content."""

    called = False

    def __init__(self) -> None:
        self._text = ""

    def read(self, text: str, last: bool) -> list[ToolCallDelta]:
        """Nothing before the end."""
        self._text += text
        if not last:
            return []
        call = _read_call(self._text, 0)
        self.called = call is not None
        return [ToolCallDelta(content=self._text) if call is None else ToolCallDelta(call=call)]


class AutoReader:
    """Text with calls between marks. What may be the beginning of a mark is held back."""

    called = False

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self._calls = 0

    def read(self, text: str, last: bool) -> list[ToolCallDelta]:
        """Calls are sent when they are whole; what is not a call is text."""
        self._held += text
        found: list[ToolCallDelta] = []
        while (place := self._held.find(CLOSE if self._inside else OPEN)) >= 0:
            before = self._held[:place]
            self._held = self._held[place + len(CLOSE if self._inside else OPEN) :]
            found += self._ended(before) if self._inside else self._content(before)
            self._inside = not self._inside
        if last and self._inside:  # cut short, or a model that leaves out the last mark
            found += self._ended(self._held, closed=False)
            self._held = ""
        elif not self._inside:
            keep = 0 if last else _begun(self._held)
            found += self._content(self._held[: len(self._held) - keep])
            self._held = self._held[len(self._held) - keep :]
        return found

    def _content(self, text: str) -> list[ToolCallDelta]:
        if self._calls and not text.strip():
            return []  # line breaks between calls
        return [ToolCallDelta(content=text)] if text else []

    def _ended(self, text: str, closed: bool = True) -> list[ToolCallDelta]:
        call = _read_call(text, self._calls)
        if call is None:
            return [ToolCallDelta(content=f"{OPEN}{text}{CLOSE if closed else ''}")]
        self._calls += 1
        self.called = True
        return [ToolCallDelta(call=call)]


def _begun(text: str) -> int:
    """Characters at the end that may be the beginning of a mark."""
    return next((size for size in range(min(len(OPEN) - 1, len(text)), 0, -1) if OPEN.startswith(text[-size:])), 0)


def _read_call(text: str, index: int) -> dict[str, Any] | None:
    try:
        made = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(made, dict) or not isinstance(made.get("name"), str):
        return None
    arguments = made.get("arguments", made.get("parameters", {}))
    return _call(index, made["name"], arguments if isinstance(arguments, str) else json.dumps(arguments))
