"""TemplateFile: prompts that a Jinja template makes of example data, one example per line. Runs no code but Jinja's.

Each example is filled in at another time (`strftime_now`, as chat templates call it, and `now`), so that what depends
on the clock shows. How often requests come is what `rate` says: examples have no times of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from quire.core.records.errors import InputError, MissingExtra, install_line, say
from quire.trace.prompts.fields import Fields, name_of
from quire.trace.prompts.log_lines import LONGEST_LOG_LINE, read_object
from quire.trace.prompts.logged_prompts import KEPT_ERRORS, LoggedPrompt, LogOptions
from quire.trace.prompts.message_places import message_with
from quire.trace.prompts.prompt_tokenizer import PromptTokenizer
from quire.trace.read.lines import TraceError, Wrong
from quire.trace.read.streams import open_lines
from quire.trace.units import cut

FIRST_TIME = datetime(2026, 1, 1, tzinfo=UTC)
BETWEEN = timedelta(days=1, hours=1, minutes=1, seconds=1)  # of examples: whatever a clock writes is another
MOST_TEXT = 1 << 24  # characters of a prompt
ENDINGS = (".jinja", ".jinja2", ".j2")  # of templates


@dataclass(slots=True)
class TemplateFile:
    """A template, the examples for it, and the tokenizer of the model that reads what it makes."""

    path: str
    data: str
    options: LogOptions  # of them the tokenizer, the rate, the name field, the limit, and skip_bad
    again: bool = True  # it can be read a second time
    skipped: list[TraceError] = field(default_factory=list)
    num_skipped: int = 0
    _opened: PromptTokenizer | None = None

    @property
    def has_times(self) -> bool:
        """Whether it is known how often requests come."""
        return self.options.rate is not None

    def prompts(self) -> Iterator[LoggedPrompt]:
        """One for each example."""
        every = 1.0 / (self.options.rate or 1.0)
        names = () if self.options.name_field is None else (self.options.name_field,)
        for count, (number, example, text) in enumerate(self._filled(self._note)):
            if count == self.options.limit:
                return
            tokens = np.array(self._tokenizer().encode([text], False)[0], np.int32)
            yield LoggedPrompt(tokens, count * every, name=name_of(example, example, names), line=number)

    def place_of(self, line: int, token: int) -> str | None:
        """The message of a prompt that a token is in, and the line of its text."""
        found = ((example, text) for number, example, text in self._filled(lambda _: None) if number == line)
        example, text = next(found, ({}, ""))
        begins = self._tokenizer().token_begins(text)
        if not begins:
            return None
        character = begins[min(token, len(begins) - 1)]
        of_text = f"in line {text.count(chr(10), 0, character) + 1} of what the template makes"
        message = message_with(text, example.get("messages"), character)
        return of_text if message is None else f"{message}, {of_text}"

    def _note(self, wrong: TraceError) -> None:
        self.num_skipped += 1
        if len(self.skipped) < KEPT_ERRORS:
            self.skipped.append(wrong)

    def _filled(self, note: Callable[[TraceError], None]) -> Iterator[tuple[int, Fields, str]]:
        """By line: the example, and the text that is made of it."""
        fill = _opened_template(self.path)
        with open_lines(self.data, LONGEST_LOG_LINE) as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    example = read_object(line)
                    yield number, example, fill(example, FIRST_TIME + (number - 1) * BETWEEN)
                except Wrong as wrong:
                    error = TraceError(Path(self.data).name, number, *wrong.args)
                    if not self.options.skip_bad:
                        raise error from None
                    note(error)

    def _tokenizer(self) -> PromptTokenizer:
        if self._opened is None:
            folder = self.options.tokenizer
            if folder is None:
                fact = "it makes text, and no tokenizer was named"
                raise InputError(say(f"template {self.path!r}", fact, "pass --tokenizer FOLDER, that of the model"))
            self._opened = PromptTokenizer(folder)
        return self._opened


def _opened_template(path: str) -> Callable[[Fields, datetime], str]:
    ask = f"template {path!r}"
    try:
        from jinja2 import TemplateError, TemplateSyntaxError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as missing:
        raise MissingExtra(say(ask, f"jinja2 is not installed ({missing})", install_line("trace"))) from None
    world = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    world.globals["raise_exception"] = _refuse
    try:
        template = world.from_string(Path(path).read_text(encoding="utf-8"))
    except (TemplateSyntaxError, UnicodeDecodeError) as wrong:
        fact = f"it is not a template: {cut(str(wrong), 200)}"
        raise InputError(say(ask, fact, "give a Jinja template, as UTF-8")) from None

    def fill(example: Fields, when: datetime) -> str:
        clock: dict[str, Any] = {"now": lambda: when, "strftime_now": when.strftime, "add_generation_prompt": True}
        try:
            text = "".join(_pieces(template.generate(clock | example)))
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as wrong:
            fact = f"the template refuses it: {type(wrong).__name__}: {cut(str(wrong), 100)}"
            raise Wrong(fact, "give an example that has what the template needs") from None
        if not text:
            raise Wrong("the template makes an empty prompt of it", "leave the example out")
        return text

    return fill


def _pieces(pieces: Iterator[str]) -> Iterator[str]:
    """As they come, as long as they are no flood."""
    left = MOST_TEXT
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise ValueError(f"it makes more than {MOST_TEXT:,} characters")
        yield piece


def _refuse(message: str) -> None:
    raise ValueError(message)
