"""StructuredOutputs: the form that an answer must have. Owns the record and its bounds; knows no tokens."""

from __future__ import annotations

import json as json_text
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.core.records.caller_arguments import keep_tuples
from quire.core.records.errors import InputError, check_text, say, shown

LONGEST_SCHEMA = 65_536  # characters
LONGEST_REGEX = 4096
MOST_CHOICES = 256
LONGEST_CHOICE = 256  # characters
ASK = "structured outputs"


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """One of three: `StructuredOutputs(json={"type": "object"})`, `regex="[0-9]+"`, `choice=["yes", "no"]`."""

    json: str | Mapping[str, Any] | None = None  # a JSON schema, as text or not; at most 65,536 characters
    regex: str | None = None  # the whole answer matches it; at most 4096 characters, in the syntax of Rust's regex
    choice: Sequence[str] = ()  # the answer is one of them; at most 256, of 256 characters each

    def __post_init__(self) -> None:
        keep_tuples(self, "choice")
        kinds = [name for name in ("json", "regex", "choice") if getattr(self, name) not in (None, ())]
        if len(kinds) != 1:
            fact = f"{' and '.join(kinds)} are given" if kinds else "nothing is given"
            raise InputError(say(ASK, fact, "give one of json, regex and choice"))
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        if self.regex is not None and (not isinstance(self.regex, str) or len(self.regex) > LONGEST_REGEX):
            fact = f"regex is {shown(self.regex)}"
            raise InputError(say(ASK, fact, f"give a string of at most {LONGEST_REGEX} characters"))
        if self.regex is not None:
            check_text(self.regex, f"{ASK} by a regex")
        if not isinstance(self.choice, tuple) or not all(isinstance(one, str) and one for one in self.choice):
            raise InputError(say(ASK, f"choice is {shown(self.choice)}", "give a list of strings, none of them empty"))
        if len(self.choice) > MOST_CHOICES or max(map(len, self.choice), default=0) > LONGEST_CHOICE:
            fact = f"choice has {len(self.choice)} strings, the longest of {max(map(len, self.choice))} characters"
            raise InputError(say(ASK, fact, f"give at most {MOST_CHOICES}, of {LONGEST_CHOICE} characters each"))
        for one in self.choice:
            check_text(one, f"{ASK} by a choice")

    def __repr__(self) -> str:
        """Which of the three, and how long; what it says is a user's."""
        kind = next(name for name in ("json", "regex", "choice") if getattr(self, name) not in (None, ()))
        return f"StructuredOutputs({kind}=<{len(getattr(self, kind))}>)"


def _schema_text(schema: object) -> str:
    """A schema as it is kept: text, so that the record can be compared and hashed."""
    try:
        parsed = json_text.loads(schema) if isinstance(schema, str) else schema
        text = json_text.dumps(parsed, sort_keys=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as wrong:
        raise InputError(say(ASK, f"json is not JSON: {wrong}", "give a JSON schema, as text or as a dict")) from None
    if not isinstance(parsed, Mapping):
        raise InputError(say(ASK, f"json is {shown(parsed)}", "give a JSON schema, which is an object"))
    if len(text) > LONGEST_SCHEMA:
        fact = f"the schema has {len(text)} characters"
        raise InputError(say(ASK, fact, f"give one of at most {LONGEST_SCHEMA}"))
    if r"\ud" in text:  # half of a pair, or a whole one
        check_text(json_text.dumps(parsed, ensure_ascii=False), f"{ASK} by a JSON schema")
    return text
