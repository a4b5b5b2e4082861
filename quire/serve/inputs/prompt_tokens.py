"""Prompts: token ids of what a client wrote, conversations through the model's own template. Knows no engine.

What a template does not know of would be lost in silence: tools and chat_template_kwargs are refused then, by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec import Raw, UnsetType

from quire.core.records.errors import say, shown
from quire.core.records.request import MOST_POINTS
from quire.serve.http.api_errors import ApiError
from quire.serve.protocol.bodies import MOST_KWARGS, ChatBody, CompletionBody, TokenizeBody
from quire.serve.protocol.decode import MOST_IN
from quire.serve.protocol.parts import Call, Message
from quire.serve.protocol.raw_parts import Allowance, read_json, read_object, read_prompts

RESERVED = frozenset(
    {"messages", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize",
     "conversation", "return_dict", "return_tensors", "padding", "truncation", "max_length", "tokenizer_kwargs",
     "return_assistant_tokens_mask"}
)  # fmt: skip
ENCODERS = ("__call__", "_encode_plus", "_batch_encode_plus", "_call_one")
DECODERS = ("decode", "_decode", "batch_decode", "convert_tokens_to_string")


class Prompts:
    """Of one model: its tokenizer, its template and the length of the longest prompt."""

    def __init__(self, tokenizer: Any, max_characters: int, vocabulary: int) -> None:
        self.tokenizer, self.max_characters, self.vocabulary = tokenizer, max_characters, vocabulary
        self._encode, self._decode = encoder(tokenizer), decoder(tokenizer)
        self._message_end = message_end(tokenizer, self._encode)

    def of_text(self, text: str, special: bool, param: str = "prompt") -> list[int]:
        """Token ids of a text."""
        self._needed(param)
        if len(text) > self.max_characters:
            fact = f"it has {len(text)} characters, which are too many for any prompt that fits"
            cure = f"give at most {self.max_characters}"
            raise ApiError(400, say(param, fact, cure), param=param, code="context_length_exceeded")
        check_text(text, param)
        return self._encode(text, special)

    def of_completion(self, asked: CompletionBody) -> list[list[int]]:
        """One prompt or many, as text or token ids."""
        special = asked.add_special_tokens is not False
        prompts = read_prompts(asked.prompt)
        read = [self.of_text(one, special) if isinstance(one, str) else self.of_tokens(one) for one in prompts]
        if not all(read):
            raise ApiError(400, say("prompt", "it has no tokens", "give at least one"), param="prompt")
        return read

    def of_tokens(self, tokens: list[int], param: str = "prompt") -> list[int]:
        """Token ids as a client gave them: the model must know them all."""
        if (highest := max(tokens, default=0)) >= self.vocabulary:
            fact = f"a token id is {highest}, the model knows 0 to {self.vocabulary - 1}"
            raise ApiError(400, say(param, fact, "use the model's own tokenizer"), param=param)
        return tokens

    def of_chat(self, asked: ChatBody | TokenizeBody, tools: list[dict[str, Any]] | None) -> list[int]:
        """A conversation through the model's own template."""
        words, template = self._needed("messages"), self.template(bool(tools))
        allowance = Allowance(MOST_IN["messages"])
        messages = [_message(message, nth, allowance) for nth, message in enumerate(asked.messages or ())]
        more = _kwargs(asked.chat_template_kwargs, template)
        generate, go_on = asked.add_generation_prompt is not False, bool(asked.continue_final_message)
        if generate and go_on:
            fact = "add_generation_prompt begins a new message"
            cure = "give add_generation_prompt: false with it"
            raise ApiError(400, say("continue_final_message", fact, cure), param="continue_final_message")
        try:
            text = words.apply_chat_template(
                messages, tools=tools, add_generation_prompt=generate, continue_final_message=go_on, tokenize=False,
                **more,
            )  # fmt: skip
        except Exception as error:  # a template says by an error what it does not know, a role for instance
            fact = f"the model's own template refuses it: {type(error).__name__}: {shown(str(error))}"
            raise ApiError(400, say("messages", fact, "write it as that template wants it"), param="messages") from None
        return self.of_text(text, bool(asked.add_special_tokens), "messages")

    def message_ends(self, tokens: list[int]) -> tuple[int, ...]:
        """Where messages of a conversation end, the last ones: another request may go on from there."""
        ends: list[int] = []
        if self._message_end is not None:
            with suppress(ValueError):  # there are no more
                while True:
                    ends.append(tokens.index(self._message_end, ends[-1] if ends else 0) + 1)
        return tuple(ends[-MOST_POINTS:])

    def to_text(self, tokens: list[int], param: str, special: bool = False) -> str:
        """The text of token ids; `special`: with that of special tokens."""
        if self.tokenizer is None:
            fact = "the model's folder has no tokenizer"
            raise ApiError(400, say(param, fact, "ask for token ids"), param=param)
        return self._decode(tokens, special)

    def template(self, tools: bool) -> str:
        """The model's own template; one that knows tools, if there are some."""
        words = self._needed("messages")
        if not getattr(words, "chat_template", None):
            fact = "the model's tokenizer has no template for a conversation"
            raise ApiError(400, say("messages", fact, "ask /v1/completions"), param="messages")
        template = str(words.get_chat_template(tools=[{}] if tools else None))
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

    Its inner tokenizer is asked directly where nothing lies between: that takes a third of the time, since nothing here
    wants offsets and masks.
    """
    inner: Any = getattr(words, "backend_tokenizer", None)
    plain = inner is not None and inner.truncation is None and inner.padding is None
    if plain and _is_plain(type(words), ENCODERS) and not getattr(words, "split_special_tokens", False):

        def encode(text: str, special: bool) -> list[int]:
            return list(inner.encode_batch_fast([text], add_special_tokens=special)[0].ids)

        return encode
    return lambda text, special: list(words(text, add_special_tokens=special)["input_ids"])


def message_end(words: Any, encode: Callable[[str, bool], list[int]]) -> int | None:
    """The special token that the model's template ends a message with; None: it has no such token, or no template."""
    if not getattr(words, "chat_template", None):
        return None
    try:
        text = words.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    except Exception:  # it wants other messages, or tools: then it is not known
        return None
    special = set(words.all_special_ids)
    return next((token for token in reversed(encode(text, False)) if token in special), None)


def decoder(words: Any) -> Callable[[list[int], bool], str]:
    """From token ids to their text, with special tokens or without, as the tokenizer itself makes it.

    Its inner tokenizer is asked for a batch of one where nothing lies between: only then other threads go on meanwhile.
    """
    inner: Any = getattr(words, "backend_tokenizer", None)
    if inner is not None and _is_plain(type(words), DECODERS):
        return lambda tokens, special: str(inner.decode_batch([tokens], skip_special_tokens=not special)[0])
    return lambda tokens, special: str(
        words.decode(tokens, skip_special_tokens=not special, clean_up_tokenization_spaces=False)
    )


def _is_plain(kind: type, methods: tuple[str, ...]) -> bool:
    """Whether these methods are those of every tokenizer: no class of a model's own changes what goes through them."""
    return not any(
        name in vars(parent)
        for parent in kind.__mro__
        for name in methods
        if ".models." in parent.__module__ or not parent.__module__.startswith("transformers.")
    )


def check_text(text: str, param: str) -> None:
    """Refuse halves of characters, which no tokenizer knows."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        fact = f"character {error.start} is half of a pair ({shown(text[error.start])})"
        raise ApiError(400, say(param, fact, "write whole characters"), param=param) from None


def _kwargs(raw: Raw | UnsetType, template: str) -> dict[str, Any]:
    """`chat_template_kwargs`: names that the template knows."""
    more = read_object(raw, "chat_template_kwargs") or {}
    if len(more) > MOST_KWARGS:
        where, fact = "chat_template_kwargs", f"it has {len(more)} entries"
        raise ApiError(400, say(where, fact, f"give at most {MOST_KWARGS}"), param=where)
    for name in more:
        if name in RESERVED or re.search(rf"\b{re.escape(name)}\b", template) is None:
            where = f"chat_template_kwargs.{shown(name)[1:-1]}"
            raise ApiError(400, say(where, "the model's template knows no such name", "leave it out"), param=where)
    return more


def _message(message: Message, nth: int, allowance: Allowance) -> dict[str, Any]:
    """As templates know one: its content is a string, arguments of calls are objects."""
    made: dict[str, Any] = {"role": message.role}
    if message.content is None:
        if not message.tool_calls:
            where = f"messages[{nth}].content"
            raise ApiError(400, say(where, "it is missing", "give a string, or a list of texts"), param=where)
        made["content"] = ""
    elif isinstance(message.content, str):
        made["content"] = message.content
    else:
        made["content"] = "".join([part.text for part in message.content])
    for name in ("name", "tool_call_id", "annotations"):
        if (value := getattr(message, name)) is not None:
            made[name] = value
    if message.tool_calls is not None:
        where = f"messages[{nth}].tool_calls"
        calls = enumerate(message.tool_calls)
        made["tool_calls"] = [_call(call, f"{where}[{place}]", allowance) for place, call in calls]
    return made


def _call(call: Call, where: str, allowance: Allowance) -> dict[str, Any]:
    arguments = call.function.arguments
    if isinstance(arguments, str):
        arguments = read_json(arguments.encode() or b"{}", f"{where}.function.arguments", allowance)
    given = {"id": call.id, "type": call.type, "index": call.index}
    made: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return {**made, "function": {"name": call.function.name, "arguments": arguments}}
