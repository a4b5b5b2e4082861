"""PromptTokenizer: token ids of logged prompts, by the files of a model's tokenizer. Fetches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quire.core.records.errors import InputError, MissingExtra, install_line, say
from quire.trace.read.lines import Wrong
from quire.trace.units import cut

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_OURS = {"messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt", "tokenize",
         "continue_final_message", "padding", "truncation", "max_length", "return_tensors", "return_dict",
         "return_assistant_tokens_mask", "tokenizer_kwargs"}  # fmt: skip


class PromptTokenizer:
    """One tokenizer, with its template for conversations."""

    def __init__(self, folder: str | Path) -> None:
        self._inner = _loaded(folder)
        self._template = getattr(self._inner, "chat_template", None)

    @property
    def notes(self) -> list[str]:
        """What a reader of the trace should know of it."""
        if isinstance(self._template, str) and "strftime_now" in self._template:
            return ["the chat template writes the date of today into prompts, not that of the request"]
        return []

    def render(self, messages: Sequence[Any], tools: Any, more: dict[str, Any]) -> str:
        """A conversation as the model reads it; what the template does not know is reported with its line."""
        if not self._template:
            raise Wrong("it is a conversation, and the tokenizer has no template for one", "name another tokenizer")
        try:
            return self._apply(messages, tools, more)
        except Exception as error:  # a template says by an error what it does not know, a role for instance
            fact = f"the chat template refuses it: {type(error).__name__}: {cut(str(error), 100)}"
            raise Wrong(fact, "name the tokenizer of the model that was asked, or pass --skip-bad") from None

    def unprinted(self, text: str, messages: Sequence[Any], tools: Any, more: dict[str, Any]) -> str:
        """What of a conversation is not in the text that the template has made of it; nothing: all of it is."""
        if tools and self._makes(text, messages, None, more):
            return "tools"
        bare = [{name: part for name, part in one.items() if name != "tool_calls"} for one in messages]
        has_calls = any(one.get("tool_calls") for one in messages)
        return "tool calls" if has_calls and self._makes(text, bare, tools, more) else ""

    def _makes(self, text: str, messages: Sequence[Any], tools: Any, more: dict[str, Any]) -> bool:
        """Whether the template makes this text of another conversation."""
        try:
            return self._apply(messages, tools, more) == text
        except Exception:  # it asks for what is not there
            return False

    def _apply(self, messages: Sequence[Any], tools: Any, more: dict[str, Any]) -> str:
        known = {name: value for name, value in more.items() if name not in _OURS}
        options = {"add_generation_prompt": True} | known
        return str(self._inner.apply_chat_template(messages, tools=tools, tokenize=False, **options))

    def encode(self, texts: list[str], special: bool) -> list[list[int]]:
        """Token ids of each; `special`: with those that the tokenizer puts around plain text."""
        if not texts:
            return []
        made = self._inner(texts, add_special_tokens=special, return_attention_mask=False, verbose=False)["input_ids"]
        return [list(ids) for ids in made]

    def token_begins(self, text: str) -> list[int] | None:
        """The character at which each token of a conversation's text begins; None: this tokenizer does not say."""
        try:
            places = self._inner(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        except NotImplementedError:
            return None
        return [begin for begin, _ in places["offset_mapping"]]


def _loaded(folder: str | Path) -> Any:
    place = Path(folder)
    ask = f"tokenizer {str(folder)!r}"
    if not any((place / name).is_file() for name in TOKENIZER_FILES):
        fact = f"there is none of {', '.join(TOKENIZER_FILES)} in it"
        raise InputError(say(ask, fact, "name a folder with a model's tokenizer"))
    try:
        from transformers import AutoTokenizer
        from transformers.utils import logging as notes
    except ImportError as missing:
        raise MissingExtra(say(ask, f"transformers is not installed ({missing})", install_line("trace"))) from None
    level = notes.get_verbosity()
    notes.set_verbosity_error()
    try:
        return AutoTokenizer.from_pretrained(place, local_files_only=True, trust_remote_code=False)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # tokenizers panic at some files, which is not an Exception
        fact = f"transformers cannot load it: {type(error).__name__}: {cut(str(error), 200)}"
        raise InputError(say(ask, fact, "name a folder with a whole tokenizer")) from None
    finally:
        notes.set_verbosity(level)
