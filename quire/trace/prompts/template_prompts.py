"""TemplateFile: prompts that a Jinja template makes of example data, one example per line. Runs no code but Jinja's.

Each example is filled in at another time (`strftime_now`, as chat templates call it, and `now`), so that what depends
on the clock shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from quire.core.records.errors import InputError, MissingExtra, install_line, say
from quire.trace.prompts.fields import Fields
from quire.trace.prompts.log_lines import LONGEST_LOG_LINE, read_object
from quire.trace.prompts.logged_prompts import LoggedPrompt
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
    tokenizer_folder: str | None
    again: bool = True  # it can be read a second time
    has_times: bool = False
    _opened: PromptTokenizer | None = None

    def prompts(self) -> Iterator[LoggedPrompt]:
        """One for each example."""
        for number, text in self._texts():
            tokens = np.array(self._tokenizer().encode([text], False)[0], np.int32)
            yield LoggedPrompt(tokens, float(number), line=number)

    def place_of(self, line: int, token: int) -> str | None:
        """The line of a prompt's text that a token is in."""
        text = next((text for number, text in self._texts() if number == line), "")
        begins = self._tokenizer().token_begins(text)
        if not begins:
            return None
        return f"in line {text.count(chr(10), 0, begins[min(token, len(begins) - 1)]) + 1} of what the template makes"

    def _texts(self) -> Iterator[tuple[int, str]]:
        fill = _opened_template(self.path)
        with open_lines(self.data, LONGEST_LOG_LINE) as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    yield number, fill(read_object(line), FIRST_TIME + (number - 1) * BETWEEN)
                except Wrong as wrong:
                    raise TraceError(Path(self.data).name, number, *wrong.args) from None

    def _tokenizer(self) -> PromptTokenizer:
        if self._opened is None:
            if self.tokenizer_folder is None:
                fact = "it makes text, and no tokenizer was named"
                raise InputError(say(f"template {self.path!r}", fact, "pass --tokenizer FOLDER, that of the model"))
            self._opened = PromptTokenizer(self.tokenizer_folder)
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
