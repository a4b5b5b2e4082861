"""Grammar faults: why a schema or a pattern cannot be kept to, in plain words. Knows llguidance's messages, no tokens.

What cannot be put better is passed on as llguidance says it.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from quire.core.records.errors import InputError, say
from quire.engine.structured_outputs.structured_outputs import ASK, StructuredOutputs

MOST_OPTIONAL: Final = 400  # properties of one object that may be left out: each may come next, at every one of them
LONGEST_FACT: Final = 300  # characters
STUCK: Final = "its grammar cannot go on"  # how the error of an answer begins
_PLAIN: Final = (
    (r"Unsatisfiable schema: Regex is empty.*", "no string has both its pattern and its other bounds"),
    (r"Unsatisfiable schema: anyOf is empty", "an enum or an anyOf is empty"),
    (r"Unsatisfiable schema: (.*)", r"nothing can match it: \1"),
    (r".*lookarounds not supported yet.*", "a pattern has ^ or $ inside, or looks around, which cannot be kept to"),
    (r"Pointer '(.*)' does not exist", r"the $ref '#\1' leads nowhere"),
    (r"Resource '(.*)' is not present.*", r"the $ref '\1' is not present in the schema, and nothing is fetched"),
    (r"Unimplemented keys: \[(.*)\]", r"it has keywords that cannot be kept to: \1"),
    (r".*regex parse error: .* error: (.*?)(?: \d+ \| .*)?", r"a pattern cannot be read: \1"),
)  # fmt: skip
_NOTHING: Final = "NoExtensionBias"  # as llguidance says it of a grammar without any text


def refusal(form: StructuredOutputs, what: str, message: str) -> InputError:
    """Why it is refused, from what llguidance says of it."""
    fact = " ".join(message.split())
    if _NOTHING in fact:
        loop = form.json is not None and '"$ref"' in str(form.json)
        fact = "a $ref leads back to itself, so nothing can match it" if loop else "nothing can match it"
    for pattern, plain in _PLAIN:
        if (found := re.fullmatch(pattern, fact)) is not None:
            fact = found.expand(plain)
            break
    return InputError(say(f"{ASK} by a {what}", fact[:LONGEST_FACT], "change it"))


def check_schema(text: str) -> None:
    """Refuse a schema whose answers would fail while they are written."""
    waiting: list[Any] = [json.loads(text)]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            _check_object(part)
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _check_object(part: dict[str, Any]) -> None:
    properties, required = part.get("properties"), part.get("required")
    if not isinstance(properties, dict) or len(properties) <= MOST_OPTIONAL:
        return
    needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    if (optional := len(properties.keys() - needed)) > MOST_OPTIONAL:
        fact = f"an object has {optional} properties that may be left out"
        raise InputError(say(f"{ASK} by a JSON schema", fact, f"give at most {MOST_OPTIONAL}, or require them"))
