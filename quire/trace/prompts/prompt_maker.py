"""PromptMaker: logged requests become prompts of token ids, in batches, by a tokenizer where they are text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quire.core.records.errors import InputError, say
from quire.trace.prompts.fields import Fields
from quire.trace.prompts.prompt_tokenizer import PromptTokenizer
from quire.trace.prompts.request_log import LoggedRequest, RequestLog, Talk
from quire.trace.read.lines import LONGEST, Wrong
from quire.trace.units import Int32

BATCH, BATCH_TEXT = 64, 1 << 20  # prompts and characters that are made into tokens at once


@dataclass(slots=True)
class MadePrompt:
    """One prompt: text until it is tokens."""

    logged: LoggedRequest
    line: int
    place: int  # among the prompts of its line
    text: str
    special: bool  # plain text: the tokenizer puts its own tokens around it
    ids: list[int] | Int32 | None
    answered: int | None  # tokens of its answer; None: those of the line's answers
    talk: Talk | None = None  # what the text was made of

    @property
    def tokens(self) -> Int32:
        """Its token ids."""
        assert self.ids is not None
        return np.asarray(self.ids, np.int32)


class PromptMaker:
    """Makes prompts of a log; `hand_on` gets each, in the order of the log."""

    def __init__(
        self, log: RequestLog, tokenizer: Callable[[], PromptTokenizer] | None, hand_on: Callable[[MadePrompt], None],
        *, longest: int = LONGEST, drop_tools: bool = False, answers: bool = True,
    ) -> None:  # fmt: skip
        self._log, self._open, self._hand_on, self._longest = log, tokenizer, hand_on, longest
        self._tokenizer: PromptTokenizer | None = None
        self._drop_tools, self._answers = drop_tools, answers
        self._batch: list[MadePrompt] = []
        self._text = 0
        self.counts: Counter[str] = Counter()

    @property
    def notes(self) -> list[str]:
        """What a reader should know of the tokenizer."""
        return [] if self._tokenizer is None else self._tokenizer.notes

    def add(self, fields: Fields, line: int = 0, ids: Int32 | None = None) -> int:
        """One line; raises Wrong. How many requests it has. `ids` are those of a prompt that stands there as [0]."""
        logged = self._log.read(fields)
        if ids is not None and logged.prompts == [[0]]:
            logged.prompts = [ids]
        ready = [self._ready(logged, prompt, line, place) for place, prompt in enumerate(logged.prompts)]
        self._batch += ready
        self._text += sum(len(one.text) for one in ready) + sum(map(len, logged.answers))
        if len(self._batch) >= BATCH or self._text >= BATCH_TEXT:
            self.flush()
        return len(ready)

    def _ready(
        self, logged: LoggedRequest, prompt: str | list[int] | Int32 | Talk, line: int, place: int
    ) -> MadePrompt:  # fmt: skip
        answered = None if logged.output is None else min(logged.output // len(logged.prompts), LONGEST)
        if isinstance(prompt, list | np.ndarray):
            self._check_length(len(prompt))
            return MadePrompt(logged, line, place, "", False, prompt, answered)
        if isinstance(prompt, str):
            if not prompt:
                raise Wrong("its prompt is empty", "leave the request out")
            self._needed()
            return MadePrompt(logged, line, place, prompt, True, None, answered)
        text = self._needed().render(prompt.messages, prompt.tools, prompt.more)
        if not text:
            raise Wrong("the chat template makes an empty prompt of it", "leave the request out")
        self._check_tools(prompt, text)
        return MadePrompt(logged, line, place, text, False, None, answered, prompt)

    def _check_tools(self, talk: Talk, text: str) -> None:
        """What a model has read and is not in the text would be shared by all, or by none."""
        missing = self._needed().unprinted(text, talk.messages, talk.tools, talk.more)
        if missing and self._drop_tools:
            self.counts["tools dropped"] += 1
        elif missing:
            fact = f"it has {missing}, and the chat template does not print them: their tokens would be missing"
            cure = "name the tokenizer of the model that was asked (its template prints them), or pass --drop-tools if "
            raise Wrong(fact, f"{cure}that model did not see them either, or --skip-bad to leave such requests out")

    def _needed(self) -> PromptTokenizer:
        if self._tokenizer is None:
            if self._open is None:
                fact = "the log has text, and no tokenizer was named"
                raise InputError(say("a trace of it", fact, "pass --tokenizer FOLDER, that of the model"))
            self._tokenizer = self._open()
        return self._tokenizer

    def _check_length(self, num_tokens: int) -> None:
        if num_tokens > self._longest:
            raise Wrong(f"its prompt has {num_tokens:,} tokens", "use a larger --block-size, or leave the request out")

    @property
    def waiting(self) -> list[MadePrompt]:
        """Prompts that are not tokens yet."""
        return self._batch

    def flush(self) -> None:
        """Make the batch into records."""
        batch, self._batch, self._text = self._batch, [], 0
        for special in (True, False):
            texts = [one for one in batch if one.ids is None and one.special is special]
            encoded = self._needed().encode([one.text for one in texts], special) if texts else []
            for one, ids in zip(texts, encoded, strict=True):
                one.ids = ids
        if self._answers:
            self._count_answers(batch)
        for one in batch:
            self._hand_on(one)

    def _count_answers(self, batch: list[MadePrompt]) -> None:
        answers = [text for one in batch if one.answered is None for text in one.logged.answers]
        lengths = iter([len(ids) for ids in self._needed().encode(answers, False)] if answers else [])
        for one in batch:
            if one.answered is None:
                total = sum(next(lengths) for _ in one.logged.answers)
                one.answered = min(total // len(one.logged.prompts), LONGEST)
                self.counts["answers counted" if one.logged.answers else "without output"] += 1
