"""Prompts: token ids of what a client wrote, conversations through the model's own template. Knows no engine.

What a template does not know of would be lost in silence: tools and chat_template_kwargs are refused then, by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quire.core.records.errors import say, shown
from quire.serve.errors import ApiError

RESERVED = frozenset(
    {"messages", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize",
     "conversation", "return_dict", "return_tensors", "padding", "truncation", "max_length", "tokenizer_kwargs",
     "return_assistant_tokens_mask"}
)  # fmt: skip
LONG = 4096  # characters of a prompt that are not tokenized beside other people's answers


class Prompts:
    """Of one model: its tokenizer, its template and the length of the longest prompt."""

    def __init__(self, tokenizer: Any, max_characters: int, vocabulary: int) -> None:
        self.tokenizer, self.max_characters, self.vocabulary = tokenizer, max_characters, vocabulary
        self._encode = encoder(tokenizer)

    def of_text(self, text: str, special: bool, param: str = "prompt") -> list[int]:
        """Token ids of a text."""
        self._needed(param)
        if len(text) > self.max_characters:
            fact = f"it has {len(text)} characters, which are too many for any prompt that fits"
            cure = f"give at most {self.max_characters}"
            raise ApiError(400, say(param, fact, cure), param=param, code="context_length_exceeded")
        check_text(text, param)
        return self._encode(text, special)

    def of_completion(self, prompt: Any, special: bool) -> list[list[int]]:
        """One prompt or many, as text or token ids."""
        many = prompt if isinstance(prompt, list) and not _are_tokens(prompt) else [prompt]
        read = [self.of_text(one, special) if isinstance(one, str) else self.of_tokens(one) for one in many]
        if not all(read):
            raise ApiError(400, say("prompt", "it has no tokens", "give at least one"), param="prompt")
        return read

    def of_tokens(self, tokens: Sequence[Any], param: str = "prompt") -> list[int]:
        """Token ids as a client gave them: the model must know them all."""
        read = [int(token) for token in tokens]  # 1.0 is a whole number to JSON
        if max(read, default=0) >= self.vocabulary:
            fact = f"a token id is {max(read)}, the model knows 0 to {self.vocabulary - 1}"
            raise ApiError(400, say(param, fact, "use the model's own tokenizer"), param=param)
        return read

    def of_chat(self, asked: Mapping[str, Any], tools: list[dict[str, Any]] | None) -> list[int]:
        """A conversation through the model's own template; `asked` has the fields of the request."""
        words, template = self._needed("messages"), self.template(tools)
        messages = [_message(message, nth) for nth, message in enumerate(asked["messages"])]
        more = asked["chat_template_kwargs"]
        for name in more:
            if name in RESERVED or re.search(rf"\b{re.escape(name)}\b", template) is None:
                where = f"chat_template_kwargs.{shown(name)[1:-1]}"
                raise ApiError(400, say(where, "the model's template knows no such name", "leave it out"), param=where)
        generate, go_on = asked["add_generation_prompt"], asked["continue_final_message"]
        if generate and go_on:
            fact = "add_generation_prompt begins a new message"
            cure = "give add_generation_prompt: false with it"
            raise ApiError(400, say("continue_final_message", fact, cure), param="continue_final_message")
        try:
            text = words.apply_chat_template(
                messages, tools=tools, add_generation_prompt=generate, continue_final_message=go_on, tokenize=False,
                **more,
            )  # fmt: skip
        except Exception as wrong:  # a template says by an error what it does not know, a role for instance
            fact = f"the model's own template refuses it: {type(wrong).__name__}: {shown(str(wrong))}"
            raise ApiError(400, say("messages", fact, "write it as that template wants it"), param="messages") from None
        return self.of_text(text, bool(asked["add_special_tokens"]), "messages")

    def template(self, tools: list[dict[str, Any]] | None) -> str:
        """The model's own template; one that knows tools, if there are some."""
        words = self._needed("messages")
        if not getattr(words, "chat_template", None):
            fact = "the model's tokenizer has no template for a conversation"
            raise ApiError(400, say("messages", fact, "ask /v1/completions"), param="messages")
        template = str(words.get_chat_template(tools=tools or None))
        if tools and re.search(r"\btools\b", template) is None:
            fact = "the model's template knows no tools"
            raise ApiError(400, say("tools", fact, "use a model that was trained with tools"), param="tools")
        return template

    def _needed(self, param: str) -> Any:
        if self.tokenizer is None:
            fact = "the model's folder has no tokenizer"
            raise ApiError(400, say(param, fact, "ask /v1/completions with token ids"), param=param)
        return self.tokenizer


def encoder(words: Any) -> Callable[[str, bool], list[int]]:
    """From a text, with special tokens or without, to token ids, as the tokenizer itself makes them.

    Its inner tokenizer is asked directly where nothing lies between: that takes a third of the time, since nobody here
    wants offsets and masks.
    """
    inner: Any = getattr(words, "backend_tokenizer", None)
    plain = inner is not None and inner.truncation is None and inner.padding is None
    if plain and _is_plain(type(words)) and not getattr(words, "split_special_tokens", False):

        def encode(text: str, special: bool) -> list[int]:
            return list(inner.encode_batch_fast([text], add_special_tokens=special)[0].ids)

        return encode
    return lambda text, special: list(words(text, add_special_tokens=special)["input_ids"])


def _is_plain(kind: type) -> bool:
    """Whether texts go to the inner tokenizer as they are: no class of a model's own changes them before."""
    makers = ("__call__", "_encode_plus", "_batch_encode_plus", "_call_one")
    return not any(
        name in vars(parent)
        for parent in kind.__mro__
        for name in makers
        if ".models." in parent.__module__ or not parent.__module__.startswith("transformers.")
    )


def check_text(text: str, param: str) -> None:
    """Refuse halves of characters, which no tokenizer knows."""
    try:
        text.encode()
    except UnicodeEncodeError as wrong:
        fact = f"character {wrong.start} is half of a pair ({shown(text[wrong.start])})"
        raise ApiError(400, say(param, fact, "write whole characters"), param=param) from None


def _are_tokens(prompt: list[Any]) -> bool:
    return not isinstance(prompt[0], str | list)


def _message(message: Mapping[str, Any], nth: int) -> dict[str, Any]:
    """As templates know one: its content is a string, arguments of calls are objects."""
    made = {name: value for name, value in message.items() if value is not None}
    content = message.get("content")
    if isinstance(content, list):
        made["content"] = "".join(part["text"] for part in content)
    elif content is None:
        if not message.get("tool_calls"):
            where = f"messages[{nth}].content"
            raise ApiError(400, say(where, "it is missing", "give a string, or a list of texts"), param=where)
        made["content"] = ""
    if calls := message.get("tool_calls"):
        made["tool_calls"] = [_call(call, f"messages[{nth}].tool_calls[{place}]") for place, call in enumerate(calls)]
    return made


def _call(call: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = dict(call["function"])
    if isinstance(arguments := function["arguments"], str):
        try:
            function["arguments"] = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            where = f"{where}.function.arguments"
            raise ApiError(400, say(where, "it is no JSON", "give it as the model wrote it"), param=where) from None
    return {**call, "function": function}
