"""RequestMaker: logged requests become records of a trace: tokens by a tokenizer, ids by a key. Tokens end here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quire.core.records.identity import Scope
from quire.trace.prompts.fields import Fields
from quire.trace.prompts.prompt_maker import MadePrompt, PromptMaker
from quire.trace.prompts.prompt_tokenizer import PromptTokenizer
from quire.trace.prompts.request_log import RequestLog
from quire.trace.read.lines import LONGEST, MOST_BLOCKS
from quire.trace.record.block_ids import TraceKey
from quire.trace.record.interruptions import PromptInterruptions
from quire.trace.record.trace_writer import TraceRecord
from quire.trace.units import Int32

MOST_SCOPES = 1 << 16  # that are distinguished when counted
PLAIN = Scope()


class RequestMaker:
    """Makes records of a log, in batches; `hand_on` hears of each."""

    def __init__(
        self, log: RequestLog, tokenizer: Callable[[], PromptTokenizer] | None, key: TraceKey, block_size: int,
        hand_on: Callable[[TraceRecord], None], *, drop_tools: bool = False,
    ) -> None:  # fmt: skip
        self._key, self._size, self._hand_on = key, block_size, hand_on
        self._longest = min(LONGEST, MOST_BLOCKS * block_size)
        self._prompts = PromptMaker(log, tokenizer, self._finish, longest=self._longest, drop_tools=drop_tools)
        self._interruptions = PromptInterruptions()
        self._scopes: set[bytes] = set()
        self.counts = self._prompts.counts

    @property
    def notes(self) -> list[str]:
        """What a reader should know of the tokenizer."""
        return self._prompts.notes

    def add(self, fields: Fields, ids: Int32 | None = None) -> int:
        """One line; raises Wrong. How many requests it has."""
        return self._prompts.add(fields, ids=ids)

    def flush(self) -> None:
        """Make what waits into records."""
        self._prompts.flush()

    def _finish(self, one: MadePrompt) -> None:
        scope, tokens = one.logged.scope, one.tokens
        if not len(tokens) or len(tokens) > self._longest:
            self.counts["unusable"] += 1  # text that is not tokens, or more than a line can hold
            return
        if one.logged.input is not None and len(one.logged.prompts) == 1:
            self.counts["lengths compared"] += 1
            self.counts["other length"] += one.logged.input != len(tokens)
        self.counts["tokens"] += len(tokens)
        if len(self._scopes) < MOST_SCOPES:
            self._scopes.add(scope.key)
        interrupted = self._interruptions.add(tokens, scope)
        ids = self._key.hash_ids(tokens, self._size, scope)
        name = None if scope == PLAIN else self._key.scope_id(scope)
        session = None if one.logged.session is None else self._key.session_id(one.logged.session, scope)
        self._hand_on(
            TraceRecord(
                one.logged.time_ms, len(tokens), one.answered or 0, ids, name, session, one.logged.finish, interrupted
            )
        )

    def summary(self) -> dict[str, Any]:
        """For the end mark of the trace."""
        facts: dict[str, Any] = {"scopes": len(self._scopes)}
        for name in ("without output", "unusable", "other length", "tools dropped"):
            if self.counts[name]:
                facts[name.replace(" ", "_")] = self.counts[name]
        return facts
