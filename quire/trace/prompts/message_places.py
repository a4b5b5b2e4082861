"""message_places: the message of a logged conversation that a token is in, by the text its template makes."""

from __future__ import annotations

from quire.trace.prompts.fields import Fields, at
from quire.trace.prompts.log_lines import LONGEST_LOG_LINE, read_object, take_ids
from quire.trace.prompts.logged_prompts import LogFile
from quire.trace.prompts.prompt_maker import MadePrompt, PromptMaker
from quire.trace.prompts.prompt_tokenizer import PromptTokenizer
from quire.trace.prompts.request_log import Talk
from quire.trace.read.lines import Wrong
from quire.trace.read.streams import open_lines


def message_at(file: LogFile, line: int, place: int, token: int) -> str | None:
    """The message that a token of a prompt is in; None where it is not a conversation."""
    with open_lines(file.path, LONGEST_LOG_LINE) as texts:
        text = next((text for number, text in enumerate(texts, 1) if number == line), b"")
    try:
        return message_of(file, read_object(take_ids(text)[0]), place, token)
    except Wrong:  # a trace's line, for instance
        return None


def message_of(file: LogFile, fields: Fields, place: int, token: int) -> str | None:
    """The same for a line that was read."""
    ready: list[MadePrompt] = []
    maker = PromptMaker(file.log(), file.tokenizer, ready.append, drop_tools=True, answers=False)
    maker.add(fields)
    prompts = [*ready, *maker.waiting]
    talk = prompts[place].talk if place < len(prompts) else None
    return None if talk is None else _message_in(talk, prompts[place].text, token, file.tokenizer())


def _message_in(talk: Talk, text: str, token: int, tokenizer: PromptTokenizer) -> str | None:
    begins = tokenizer.token_begins(text)
    if not begins:
        return None
    return message_with(text, talk.messages, begins[min(token, len(begins) - 1)])


def message_with(text: str, messages: object, character: int) -> str | None:
    """The message that a character of a template's text is of; None where there are no messages."""
    if not isinstance(messages, list) or not messages:
        return None
    named, end = "before the first message", 0
    for number, message in enumerate(messages):
        content = _content_of(message).strip()
        begin = text.find(content, end)
        if begin < 0 or begin > character:
            break
        end = begin + len(content)
        named = f"{'in' if character < end else 'behind'} message {number} ({at(message, 'role')})"
    return named


def _content_of(message: object) -> str:
    content = at(message, "content")
    if isinstance(content, list):  # of parts: the first with text
        content = next((at(part, "text") for part in content if isinstance(at(part, "text"), str)), "")
    return content if isinstance(content, str) else ""
