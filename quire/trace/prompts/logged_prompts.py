"""LogFile: the prompts of a log or of a trace that names its parts, as token ids, as often as they are wanted.

What reads a log for its text (findings, lint, diff) asks here; `quire trace make` has its own way, which keeps none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from quire.core.records.errors import InputError, say
from quire.core.records.identity import Scope
from quire.trace.prompts.arrival_times import ArrivalTimes
from quire.trace.prompts.fields import APPLICATIONS
from quire.trace.prompts.log_lines import LONGEST_LOG_LINE, read_object, take_ids
from quire.trace.prompts.prompt_maker import MadePrompt, PromptMaker
from quire.trace.prompts.prompt_tokenizer import PromptTokenizer
from quire.trace.prompts.request_log import RequestLog
from quire.trace.read.lines import TraceError, Wrong
from quire.trace.read.streams import STDIN, BrokenStream, open_lines
from quire.trace.read.token_ids import TokenIds
from quire.trace.read.trace import read_trace
from quire.trace.units import Int32

KEPT_ERRORS = 10
PLAIN = Scope()
NO_TEXT = "give the log it was made of: an id stands for a block and all before it, so text behind a difference is gone"


@dataclass(frozen=True, slots=True)
class LoggedPrompt:
    """One prompt, as token ids, and whose it was."""

    tokens: Int32
    time: float  # s
    scope: Scope = PLAIN
    name: str | None = None  # of its application or tenant, if the log has one
    line: int = 0  # where it stands
    place: int = 0  # among the prompts of its line


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How a log is read."""

    tokenizer: str | None = None  # folder
    time_field: str | None = None
    time_unit: str | None = None
    rate: float | None = None
    scope_fields: tuple[str, ...] = ()
    name_field: str | None = None  # None: one of the usual ones
    skip_bad: bool = False
    limit: int | None = None
    drop_tools: bool = False
    times_needed: bool = True  # else a log without any is read as well


@dataclass(slots=True)
class LogFile:
    """One log. Standard input is read once; a file again for the lines that are asked for."""

    path: str
    options: LogOptions = LogOptions()
    skipped: list[TraceError] = field(default_factory=list)
    num_skipped: int = 0
    has_times: bool = True  # as far as it was read
    _opened: PromptTokenizer | None = None

    @property
    def again(self) -> bool:
        """Whether it can be read a second time: no pipe can."""
        path = Path(self.path)
        return self.path != STDIN and (path.is_file() or not path.exists())

    def prompts(
        self, lines: Collection[int] | None = None, passed: Callable[[int], None] | None = None
    ) -> Iterator[LoggedPrompt]:
        """All of it, or what stands in some lines."""
        for made in self._made(lines, passed):
            if isinstance(made, LoggedPrompt):
                yield made
                continue
            logged = made.logged
            yield LoggedPrompt(made.tokens, logged.time_ms / 1000, logged.scope, logged.name, made.line, made.place)

    @property
    def _name(self) -> str:
        return "standard input" if self.path == STDIN else Path(self.path).name

    def tokenizer(self) -> PromptTokenizer:
        """That of the folder that was named."""
        if self._opened is None:
            folder = self.options.tokenizer
            if folder is None:
                fact = "the log has text, and no tokenizer was named"
                raise InputError(say(f"log {self.path!r}", fact, "pass --tokenizer FOLDER, that of the model"))
            self._opened = PromptTokenizer(folder)
        return self._opened

    def log(self) -> RequestLog:
        """What reads a line."""
        options = self.options
        times = ArrivalTimes(options.time_field, options.time_unit, options.rate, needed=options.times_needed)
        names = APPLICATIONS if options.name_field is None else (options.name_field,)
        return RequestLog(times, options.scope_fields, None, names, prompts_only=True)

    def _made(
        self, lines: Collection[int] | None, passed: Callable[[int], None] | None
    ) -> Iterator[MadePrompt | LoggedPrompt]:
        ready: list[MadePrompt] = []
        options = self.options
        log = self.log()
        maker = PromptMaker(log, self.tokenizer, ready.append, drop_tools=options.drop_tools, answers=False)
        count = number = 0
        with open_lines(self.path, LONGEST_LOG_LINE, passed=passed) as texts:
            for number, text in enumerate(self._texts(texts), 1):
                if not text.strip() or (lines is not None and number not in lines):
                    continue
                if not count and (kind := _trace_kind(text)):
                    yield from self._parts(kind, lines)
                    return
                count += self._line(maker, text, number, lines is not None)
                self.has_times = log.times.are_known
                yield from _taken(ready)
                if lines is None and options.limit is not None and count >= options.limit:
                    break
        maker.flush()
        yield from _taken(ready)

    def _texts(self, texts: Iterator[bytes]) -> Iterator[bytes]:
        try:
            yield from texts
        except BrokenStream as broken:
            self._bad(TraceError(self._name, 0, str(broken), "fetch the file again"), False)

    def _line(self, maker: PromptMaker, text: bytes, number: int, again: bool) -> int:
        try:
            if len(text) > LONGEST_LOG_LINE:
                raise Wrong(f"it is longer than {LONGEST_LOG_LINE:,} bytes", "write one request per line")
            short, ids = take_ids(text)
            return maker.add(read_object(short), number, ids)
        except Wrong as wrong:
            self._bad(TraceError(self._name, number, *wrong.args), again)
        except RecursionError:
            fact = "it is nested too deep"
            self._bad(TraceError(self._name, number, fact, "write the request as it was sent"), again)
        return 0

    def _bad(self, wrong: TraceError, again: bool) -> None:
        if not self.options.skip_bad:
            raise wrong
        if not again:
            self.num_skipped += 1
            if len(self.skipped) < KEPT_ERRORS:
                self.skipped.append(wrong)

    def _parts(self, kind: str, lines: Collection[int] | None) -> Iterator[LoggedPrompt]:
        """Prompts of a trace of named parts."""
        if kind == "mooncake" or self.path == STDIN:
            fact = "it is a trace of hash ids" if kind == "mooncake" else "a trace of parts is not read from a pipe"
            raise InputError(say(f"trace {self.path!r}", fact, NO_TEXT if kind == "mooncake" else "name its file"))
        trace = read_trace(self.path, limit=self.options.limit, skip_bad=self.options.skip_bad)
        ids = TokenIds(trace)
        for one in trace:
            if lines is None or one.line in lines:
                yield LoggedPrompt(ids.prompt(one), one.time, one.scope, None, one.line)


def _taken(ready: list[MadePrompt]) -> list[MadePrompt]:
    taken = [one for one in ready if len(one.tokens)]
    ready.clear()
    return taken


def _trace_kind(text: bytes) -> str:
    """Of a trace rather than a log."""
    try:
        fields = read_object(take_ids(text)[0])
    except Wrong:
        return ""
    if "hash_ids" in fields:
        return "mooncake"
    return "quire" if {"time_ms", "prompt", "output_tokens"} <= fields.keys() else ""


def tokens_of(file: LogFile, wanted: dict[tuple[int, int], int]) -> dict[int, Int32]:
    """Prompts by line and place, under other numbers."""
    found = {}
    for prompt in file.prompts({line for line, _ in wanted}):
        if (number := wanted.get((prompt.line, prompt.place))) is not None:
            found[number] = np.asarray(prompt.tokens, np.int32)
    return found
