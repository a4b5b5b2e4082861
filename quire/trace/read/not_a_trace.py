"""not_a_trace: what a line is that is no request of a trace, and the command that reads it. Opens no files."""

from __future__ import annotations

import re
from typing import Any

LONGEST_HEADER = 4096  # bytes
_NAME = re.compile(rb'"?[A-Za-z_][\w ./()-]*"?')
_COUNTS = ("prompt_tokens", "input_tokens", "context_tokens", "num_prompt_tokens")
TEXT = "it is a logged request, with its text, and not yet a trace"
IDS = "it is a logged request, of token ids, and not yet a trace"
LENGTHS = "it is a logged request's lengths, and not yet a trace"
SESSION = "it is of a recorded session, and not yet a trace"
TABLE = "it is a table of lengths (CSV), and not yet a trace"


def make_cure(options: str = "") -> str:
    """The command that makes a trace of it."""
    return f"make a trace of it first: quire trace make{options} (docs/trace.md)"


PLAIN = make_cure(" LOG -o TRACE")


def is_table(text: bytes) -> bool:
    """Whether a line is like the header of a table: names with commas between them."""
    names = text.removeprefix(b"\xef\xbb\xbf").split(b",") if len(text) <= LONGEST_HEADER else []
    return len(names) > 1 and all(_NAME.fullmatch(name.strip()) for name in names)


def other_kind(fields: dict[str, Any]) -> tuple[str, str] | None:
    """A fact and a cure for a line that `quire trace make` reads; None for one of a trace, or of anything else."""
    if (cure := session_cure(fields)) is not None:
        return SESSION, cure
    if "prompt" not in fields and ("hash_ids" in fields or "input_length" in fields):
        return None
    bodies = [body for body in (fields, *fields.values()) if isinstance(body, dict)]
    if any(_has_ids(body) for body in bodies):
        return IDS, PLAIN
    if any(_has_text(body) for body in bodies):
        return TEXT, make_cure(" LOG -o TRACE --tokenizer FOLDER")
    if "prompt" not in fields and any(type(body.get(name)) is int for body in bodies for name in _COUNTS):
        return LENGTHS, PLAIN
    return None


def session_cure(fields: dict[str, Any]) -> str | None:
    """The command for recorded sessions of agents, which only looks for them if it is asked to."""
    if "session_id" in fields and "hash_ids" in fields and "timestamp" not in fields:
        return make_cure(" --from aiperf LOG -o TRACE --rate 30/h")
    if "session_id" in fields and "input_tokens_total" in fields:
        return make_cure(" --from tracelab LOG -o TRACE")
    if isinstance(fields.get("requests"), list) and "prompt" not in fields:
        return make_cure(" --from weka FOLDER -o TRACE --rate 30/h")
    return None


def _has_text(body: dict[str, Any]) -> bool:
    """A request as a client sent it: with messages, or a prompt that is text."""
    prompt = body.get("prompt")
    first = prompt[0] if isinstance(prompt, list) and prompt else prompt
    return "messages" in body or isinstance(first, str) or isinstance(body.get("input"), str)


def _has_ids(body: dict[str, Any]) -> bool:
    """The same with token ids. Parts of a trace have a name and a length, and their request a time of its own."""
    if isinstance(body.get("prompt_token_ids"), list):
        return True
    prompt = body.get("prompt")
    if not isinstance(prompt, list) or not prompt:
        return False
    several = isinstance(prompt[0], list) and "time_ms" not in body
    return type((prompt[0] or [None])[0] if several else prompt[0]) is int
