"""Parts of request bodies: the types that several fields share, with their bounds. Nothing but data.

A type holds what a value may be; `msgspec` decodes by it, and the OpenAPI document is written from it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from quire.engine.sampling import param_checks as bounds
from quire.engine.structured_outputs.structured_outputs import LONGEST_CHOICE, LONGEST_REGEX, MOST_CHOICES

MOST_CHOICES_ASKED = 128  # answers to one request, over all of its prompts
MOST_PROMPTS = 128
MOST_TOOLS = 128
MOST_MESSAGES = 1 << 14  # and parts of one
MOST_TOKENS = 1 << 20  # of one prompt; a model's own limit is checked later, and named with its number
LONGEST_NAME = 256  # of a model, a salt, a request

Use = Literal["works", "neutral", "refused"]
NEUTRAL: Final = Meta(extra={"use": "neutral"})  # of a field that says nothing about the answer
OBJECT: Final = Meta(extra_json_schema={"type": "object"})  # of a raw part


def refusal(cure: str, *nothing: Any) -> Meta:
    """Of a field that this server cannot do; null and `nothing` ask for nothing, and are let pass."""
    allowed = [None, *nothing]
    return Meta(extra_json_schema={"enum": allowed}, extra={"use": "refused", "cure": cure, "nothing": allowed})


Count = Annotated[int, Meta(ge=0, le=bounds.LARGEST)]
Length = Annotated[int, Meta(ge=1, le=bounds.LARGEST)]
Token = Annotated[int, Meta(ge=0, le=bounds.LARGEST)]
Tokens = Annotated[list[Token], Meta(min_length=1, max_length=MOST_TOKENS)]
Name = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]
Label = Annotated[str, Meta(max_length=LONGEST_NAME)]  # an empty one says nothing
Priority = Annotated[int, Meta(ge=0, le=100)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Penalty = Annotated[float, Meta(ge=-bounds.STRONGEST_PENALTY, le=bounds.STRONGEST_PENALTY)]
Bias = Annotated[float, Meta(ge=-bounds.STRONGEST_BIAS, le=bounds.STRONGEST_BIAS)]
Stop = Annotated[str, Meta(min_length=1, max_length=bounds.LONGEST_STOP)]
BadWord = Annotated[str, Meta(min_length=1, max_length=bounds.LONGEST_BAD_WORD)]
Choice = Annotated[str, Meta(min_length=1, max_length=LONGEST_CHOICE)]
FunctionName = Annotated[str, Meta(min_length=1, max_length=64)]
Object = Annotated[Raw, OBJECT]  # any JSON object, not read before it is needed
# OpenAI's bounds
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


class ContentPart(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A piece of a message's content."""

    type: Literal["text"]
    text: str


class CalledFunction(Struct, frozen=True, forbid_unknown_fields=True):
    """What a model has called."""

    name: str
    arguments: str | dict[str, Any]


class Call(Struct, frozen=True, forbid_unknown_fields=True):
    """A call that a model has made."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] | None = None
    index: Count | None = None


class Message(Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a conversation."""

    role: Name
    content: str | Annotated[list[ContentPart], Meta(max_length=MOST_MESSAGES)] | None = None
    name: Name | None = None
    tool_calls: Annotated[list[Call], Meta(max_length=MOST_TOOLS)] | None = None
    tool_call_id: Name | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = None


Messages = Annotated[list[Message], Meta(min_length=1, max_length=MOST_MESSAGES)]


class Function(Struct, frozen=True, forbid_unknown_fields=True):
    """A function that a model may call."""

    name: FunctionName
    description: str | None = None
    parameters: Annotated[Raw, Meta(extra_json_schema={"type": ["object", "null"]})] | UnsetType = UNSET
    strict: bool | None = None


class Tool(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool, of the only kind there is."""

    type: Literal["function"]
    function: Function


Tools = Annotated[list[Tool], Meta(max_length=MOST_TOOLS)]


class ChosenFunction(Struct, frozen=True, forbid_unknown_fields=True):
    """The name of the function that must be called."""

    name: FunctionName


class ChosenTool(Struct, frozen=True, forbid_unknown_fields=True):
    """The tool that must be called."""

    type: Literal["function"]
    function: ChosenFunction


class TextFormat(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Any text."""


class JsonObjectFormat(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_object"):
    """Some JSON object."""


class NamedSchema(Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON schema with its name."""

    name: Name
    schema: Object
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"):
    """JSON as a schema says."""

    json_schema: NamedSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class Structured(Struct, frozen=True, forbid_unknown_fields=True):
    """The form of an answer, in vLLM's words."""

    json: Annotated[Raw, Meta(extra_json_schema={"type": ["string", "object", "null"]})] | UnsetType = UNSET
    regex: Annotated[str, Meta(max_length=LONGEST_REGEX)] | None = None
    choice: Annotated[list[Choice], Meta(min_length=1, max_length=MOST_CHOICES)] | None = None
    json_object: bool | None = None
    disable_any_whitespace: Annotated[bool, Meta(extra_json_schema={"enum": [False]})] | None = None
    disable_additional_properties: Annotated[bool, Meta(extra_json_schema={"enum": [False]})] | None = None
    grammar: None = None
    structural_tag: None = None
    whitespace_pattern: None = None


class KeptRange(Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens of a prompt whose pages shall be kept."""

    priority: Priority
    start: Count | None = None
    end: Count | None = None
    seconds: Seconds | None = None


class Keep(Struct, frozen=True, forbid_unknown_fields=True):
    """How long the pages of a prompt shall be kept."""

    priority: Priority | None = None
    seconds: Seconds | None = None
    ranges: Annotated[list[KeptRange], Meta(min_length=1, max_length=16)] | None = None


class StreamChoices(Struct, frozen=True, forbid_unknown_fields=True):
    """What events say of usage; obfuscation says nothing."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None
