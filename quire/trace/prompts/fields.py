"""Fields of a logged request, wherever a log puts them. Knows names and places; makes nothing of their values.

A log may hold the request itself, or wrap it: {"body": {...}}, {"request": {...}}, with the answer beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Fields = dict[str, Any]
BODIES = ("", "body", "request", "request.body", "request_body", "params", "kwargs")
PROMPTS = ("prompt_token_ids", "messages", "prompt")
ANSWERS = ("response", "response.body", "response_body", "", "output", "result")
ANSWER_TEXTS = ("completion", "answer", "output", "response", "generated_text", "text")
INPUT_COUNTS = ("prompt_tokens", "input_tokens", "input_length", "context_tokens", "num_prompt_tokens")
SESSIONS = ("session_id", "conversation_id", "prompt_cache_key", "metadata.session_id", "metadata.conversation_id")
APPLICATIONS = ("application", "app", "tenant", "metadata.application", "metadata.app", "metadata.tenant", "user")
OUTPUT_COUNTS = ("completion_tokens", "output_tokens", "output_length", "generated_tokens", "num_generated_tokens")


def kind_of(value: Any) -> str:
    """What it is, without telling it."""
    kinds = {str: "text", list: "a list", dict: "an object", bool: "true or false", int: "a number", float: "a number"}
    return (
        "null" if value is None else f"{'an empty list' if value == [] else kinds.get(type(value), 'something else')}"
    )


def at(fields: Any, path: str) -> Any:
    """What stands at a place such as "response.usage"; None where nothing does."""
    if path:
        for name in path.split(".") if "." in path else (path,):
            if not isinstance(fields, dict) or (fields := fields.get(name)) is None:
                return None
    return fields


def body_of(fields: Fields) -> Fields | None:
    """The request as it was sent: messages, a prompt, or an input."""
    for place in BODIES:
        inner = at(fields, place)
        if isinstance(inner, dict) and any(inner.get(name) is not None for name in PROMPTS):
            return inner
    for place in BODIES:
        inner = at(fields, place)
        if isinstance(inner, dict) and inner.get("input") is not None:
            return inner
    return None


def count_of(fields: Fields, names: tuple[str, ...]) -> int | None:
    """A number of tokens that the log has, in a `usage` or beside the request."""
    for place in ("usage", "response.usage", "response.body.usage", "response_body.usage", "body.usage", ""):
        inner = at(fields, place)
        if isinstance(inner, dict):
            for name in names:
                if type(inner.get(name)) is int and inner[name] >= 0:
                    return int(inner[name])
    return None


def answers_of(fields: Fields) -> Iterator[str]:
    """The texts of the answers, if the log has them."""
    for place in ANSWERS:
        inner = at(fields, place)
        choices = inner.get("choices") if isinstance(inner, dict) else None
        if isinstance(choices, list):
            for choice in choices:
                text = at(choice, "message.content")
                text = at(choice, "text") if text is None else text
                if isinstance(text, str):
                    yield text
            return
    for name in ANSWER_TEXTS:
        if isinstance(fields.get(name), str):
            yield fields[name]
            return


def session_of(fields: Fields, body: Fields, named: str | None) -> str | None:
    """Which conversation it belongs to, as the log says in the field `named`, or in a usual one."""
    return name_of(fields, body, SESSIONS if named is None else (named,))


def name_of(fields: Fields, body: Fields, names: Sequence[str]) -> str | None:
    """The first of these fields that names something, of the line or of the request in it."""
    places = (fields,) if body is fields else (fields, body)
    for name in names:
        head = name.partition(".")[0]
        for inner in places:
            if head in inner and type(value := at(inner, name)) in (int, str):
                return str(value)
    return None


def finish_of(fields: Fields) -> str | None:
    """Why the first answer ended."""
    for place in ANSWERS:
        choices = at(at(fields, place), "choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        if isinstance(reason := at(first, "finish_reason"), str):
            return reason
    reason = fields.get("finish_reason")
    return reason if isinstance(reason, str) else None
