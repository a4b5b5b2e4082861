"""Prompts: what people pass as one, or as many, and its token ids. Knows no engine.

text                                       "Once upon a time"
token ids                                  [12, 7, 99], or an array
a conversation                             [{"role": "user", "content": "Hello"}]
many of them (where many are taken)        [prompt, prompt, ...]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.core.records.errors import InputError, say, shown

Message = Mapping[str, str]  # role and content
Prompt = str | NDArray[np.integer[Any]] | Sequence[int] | Sequence[Message]  # text, token ids, or a conversation
FORMS = 'pass text, a list of token ids, or a conversation: [{"role": "user", "content": "..."}]'
ROLES = 'pass a list of {"role": "user", "content": "..."}'
NAMES = ("role", "content")
_RAW = bytes | bytearray | memoryview  # they are sequences of numbers as well, but never meant as token ids


def listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as a list of them."""
    one: Any = prompts
    if isinstance(one, str | _RAW) or not isinstance(one, Sequence) or not len(one):
        return [one]
    if isinstance(one[0], Mapping | int | float | np.number):
        return [one]
    return list(one)


def prompt_ids(prompt: Any, tokenizer: Any) -> list[int]:
    """Token ids of one prompt; conversations go through the model's own template. The engine checks the numbers."""
    if isinstance(prompt, str):
        return _text_ids(prompt, _needed(tokenizer))
    if isinstance(prompt, Mapping):
        raise InputError(say("a prompt", "it is a single message", f"{ROLES}, also for one"))
    if isinstance(prompt, _RAW):
        fact = f"it is {shown(prompt)}, which is neither text nor token ids"
        raise InputError(say("a prompt", fact, "decode it to text first"))
    parts = _parts(prompt)
    if parts and any(isinstance(part, Mapping) for part in (parts[0], parts[-1])):
        return talk_ids(parts, tokenizer)
    return [part if type(part) is int else _whole(part) for part in parts]


def talk_ids(messages: Any, tokenizer: Any) -> list[int]:
    """Token ids of a conversation."""
    words = _needed(tokenizer)
    if isinstance(messages, str | Mapping | _RAW) or not isinstance(messages, Sequence) or not len(messages):
        raise InputError(say("a conversation", f"it is {shown(messages)}", ROLES))
    for message in messages:
        if not isinstance(message, Mapping) or not all(isinstance(message.get(name), str) for name in NAMES):
            raise InputError(say("a conversation", f"a message of it is {shown(message)}", ROLES))
    if not getattr(words, "chat_template", None):
        fact = "the model's tokenizer has no template for one"
        raise InputError(say("a conversation", fact, "pass text or token ids, as the model was trained to read"))
    try:
        encoding = words.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=True)
    except Exception as wrong:  # a template says by an error what it does not know, a role for instance
        fact = f"the model's own template refuses it: {type(wrong).__name__}: {wrong}"
        raise InputError(say("a conversation", fact, "write it as that template wants it")) from None
    return list(encoding["input_ids"])


def _text_ids(text: str, words: Any) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as wrong:
        fact = f"character {wrong.start} is half of a pair ({shown(text[wrong.start])}), which no tokenizer knows"
        raise InputError(say("a prompt of text", fact, "decode the text correctly, or leave it out")) from None
    return list(words(text)["input_ids"])


def _needed(tokenizer: Any) -> Any:
    if tokenizer is None:
        fact = "the model's folder has no tokenizer"
        raise InputError(say("a prompt of text", fact, "pass token ids, or put the tokenizer's files into it"))
    return tokenizer


def _parts(prompt: Any) -> list[Any]:
    """What it is made of, in order."""
    try:
        parts = np.asarray(prompt).tolist() if hasattr(prompt, "__array__") else prompt
        if isinstance(parts, Set):
            raise TypeError("it has no order")
        return list(parts)
    except (TypeError, ValueError, RuntimeError):  # it cannot be gone through, or is on another device
        raise InputError(say("a prompt", f"it is {shown(prompt)}", FORMS)) from None


def _whole(part: Any) -> int:
    """A token id, of whatever library."""
    try:
        if not isinstance(part, bool):
            return index(part)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise InputError(say("a prompt of token ids", f"one of them is {shown(part)}", FORMS))
