"""RequestMaker: logged requests become records of a trace: tokens by a tokenizer, ids by a key. Tokens end here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.core.records.errors import InputError, say
from quire.core.records.identity import Scope
from quire.trace.logs.differences import PromptDifferences
from quire.trace.logs.fields import Fields
from quire.trace.logs.prompt_tokenizer import PromptTokenizer
from quire.trace.logs.request_log import LoggedRequest, RequestLog, Talk
from quire.trace.read.lines import LONGEST, MOST_BLOCKS, Wrong
from quire.trace.record.block_ids import TraceKey
from quire.trace.record.trace_writer import TraceRecord

BATCH, BATCH_TEXT = 64, 1 << 20  # prompts and characters that are made into tokens at once
MOST_SCOPES = 1 << 16  # that are told apart when they are counted
PLAIN = Scope()


@dataclass(slots=True)
class _Prompt:
    """One prompt on its way: text until it is tokens."""

    logged: LoggedRequest
    text: str
    special: bool  # plain text: the tokenizer puts its own tokens around it
    ids: list[int] | None
    answered: int | None  # tokens of its answer; None: those of the line's answers


class RequestMaker:
    """Makes records of a log, in batches; `hand_on` hears of each."""

    def __init__(
        self, log: RequestLog, tokenizer: Callable[[], PromptTokenizer] | None, key: TraceKey, block_size: int,
        hand_on: Callable[[TraceRecord], None], *, drop_tools: bool = False,
    ) -> None:  # fmt: skip
        self._log, self._open, self._key, self._size, self._hand_on = log, tokenizer, key, block_size, hand_on
        self._tokenizer: PromptTokenizer | None = None
        self._drop_tools = drop_tools
        self._batch: list[_Prompt] = []
        self._text = 0
        self._differences = PromptDifferences(block_size)
        self._scopes: set[bytes] = set()
        self.counts: Counter[str] = Counter()

    @property
    def notes(self) -> list[str]:
        """What somebody should know of the tokenizer."""
        return [] if self._tokenizer is None else self._tokenizer.notes

    def add(self, fields: Fields) -> int:
        """One line; raises Wrong. How many requests it has."""
        logged = self._log.read(fields)
        ready = [self._ready(logged, prompt) for prompt in logged.prompts]
        self._batch += ready
        self._text += sum(len(one.text) for one in ready) + sum(map(len, logged.answers))
        if len(self._batch) >= BATCH or self._text >= BATCH_TEXT:
            self.flush()
        return len(ready)

    def _ready(self, logged: LoggedRequest, prompt: str | list[int] | Talk) -> _Prompt:
        answered = None if logged.output is None else min(logged.output // len(logged.prompts), LONGEST)
        if isinstance(prompt, list):
            self._check_length(len(prompt))
            return _Prompt(logged, "", False, prompt, answered)
        if isinstance(prompt, str):
            if not prompt:
                raise Wrong("its prompt is empty", "leave the request out")
            self._needed()
            return _Prompt(logged, prompt, True, None, answered)
        text = self._needed().render(prompt.messages, prompt.tools, prompt.more)
        if not text:
            raise Wrong("the chat template makes an empty prompt of it", "leave the request out")
        self._check_tools(prompt, text)
        return _Prompt(logged, text, False, None, answered)

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
        if num_tokens > min(LONGEST, MOST_BLOCKS * self._size):
            raise Wrong(f"its prompt has {num_tokens:,} tokens", "use a larger --block-size, or leave the request out")

    def flush(self) -> None:
        """Make the batch into records."""
        batch, self._batch, self._text = self._batch, [], 0
        for special in (True, False):
            texts = [one for one in batch if one.ids is None and one.special is special]
            made = self._needed().encode([one.text for one in texts], special) if texts else []
            for one, ids in zip(texts, made, strict=True):
                one.ids = ids
        answers = [text for one in batch if one.answered is None for text in one.logged.answers]
        lengths = iter([len(ids) for ids in self._needed().encode(answers, False)] if answers else [])
        for one in batch:
            if one.answered is None:
                total = sum(next(lengths) for _ in one.logged.answers)
                one.answered = min(total // len(one.logged.prompts), LONGEST)
                self.counts["answers counted" if one.logged.answers else "without output"] += 1
            self._finish(one, one.answered)

    def _finish(self, one: _Prompt, answered: int) -> None:
        assert one.ids is not None
        scope = one.logged.scope
        tokens = np.asarray(one.ids, np.int32)
        if not len(tokens) or len(tokens) > min(LONGEST, MOST_BLOCKS * self._size):
            self.counts["unusable"] += 1  # text that is no tokens, or more than a line can hold
            return
        if one.logged.input is not None and len(one.logged.prompts) == 1:
            self.counts["lengths compared"] += 1
            self.counts["other length"] += one.logged.input != len(tokens)
        self.counts["tokens"] += len(tokens)
        if len(self._scopes) < MOST_SCOPES:
            self._scopes.add(scope.key)
        self._differences.add(tokens, scope)
        ids = self._key.hash_ids(tokens, self._size, scope)
        name = None if scope == PLAIN else self._key.scope_id(scope)
        self._hand_on(TraceRecord(one.logged.time_ms, len(tokens), answered, ids, name))

    def summary(self) -> dict[str, Any]:
        """For the end mark of the trace."""
        told: dict[str, Any] = {"scopes": len(self._scopes)}
        for name in ("without output", "unusable", "other length", "tools dropped"):
            if self.counts[name]:
                told[name.replace(" ", "_")] = self.counts[name]
        compared = self._differences.summary()
        return {**told, "compared": compared} if compared else told
