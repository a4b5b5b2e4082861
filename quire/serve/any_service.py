"""AnyService: what all endpoints of a server share, with an LLM here or workers elsewhere.

Owns the settings, the tokenizer's work, the room for bodies, and whether the server ends. Knows no HTTP.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from quire.core.records.errors import say
from quire.core.records.identity import Scope
from quire.engine.sampling.params import Sampling
from quire.engine.step.runs.page_hints import NO_HINTS, PageHints
from quire.engine.step.runs.tenant import Together
from quire.insight.bills.bill import Bill
from quire.serve.answers.answer_stream import AnswerStream
from quire.serve.answers.token_words import TokenWords
from quire.serve.http.api_errors import RETRY_AFTER, ApiError
from quire.serve.http.auth import NO_TENANT
from quire.serve.http.exchange import BodyRoom
from quire.serve.http.serve_settings import ServeSettings
from quire.serve.inputs.prompt_tokens import Prompts
from quire.serve.metrics.http_metrics import HttpMetrics
from quire.serve.protocol.large_work import LargeWork
from quire.viewer.page_routes import Reply


@dataclass(frozen=True, slots=True)
class Generation:
    """What shall be generated: the same for each of its prompts."""

    prompts: list[list[int]]
    sampling: Sampling
    scope: Scope
    hints: PageHints = NO_HINTS  # of what becomes of their pages
    tenant: str = NO_TENANT
    ttft: float | None = None  # seconds within which each first token is wanted

    @property
    def share(self) -> str | Together | None:
        """As which its prompts take their turns; None: turns of its own, one share for all its prompts."""
        if self.tenant == NO_TENANT and len(self.prompts) > 1:
            return Together(secrets.token_hex(8))
        return self.tenant or None

    def __repr__(self) -> str:
        return f"Generation({len(self.prompts)} prompts, {self.sampling!r})"


class AnyService(ABC):
    """One server's. `longest` is the most tokens that a prompt and its answer may have, `vocabulary` the model's."""

    def __init__(
        self, settings: ServeSettings, tokenizer: Any, longest: int, vocabulary: int, metrics: HttpMetrics
    ) -> None:
        self.settings, self.longest, self.metrics = settings, longest, metrics
        self.created = int(time.time())
        self.prompts = Prompts(tokenizer, settings.max_characters * longest, vocabulary)
        self.words, self.id_words = TokenWords(tokenizer), TokenWords(None)
        self.bodies = BodyRoom(settings.max_bodies)
        self.large = LargeWork()
        self.ending = False  # it takes no more

    def __repr__(self) -> str:
        ending = ", ending" if self.ending else ""
        return f"{type(self).__name__}({self.settings.model_name}, {self.num_streams} streams{ending})"

    @property
    @abstractmethod
    def wrong(self) -> str | None:
        """Why it cannot answer, if it cannot."""

    @property
    @abstractmethod
    def troubles(self) -> dict[str, str]:
        """By part what is wrong with its threads; while there is something, requests should go elsewhere."""

    @property
    @abstractmethod
    def num_streams(self) -> int:
        """Answers under way."""

    @abstractmethod
    def streams(self, wanted: Generation) -> AbstractAsyncContextManager[list[AnswerStream]]:
        """A stream per prompt; none of them is left when the block is. One that is refused refuses all."""

    @abstractmethod
    async def look(self, path: str, query: str, authorization: str) -> Reply | None:
        """The live page's answer; None: there is no live page."""

    async def bill(self) -> Bill | None:
        """What each tenant used; None: it is not kept."""
        return None

    @abstractmethod
    def cut(self) -> None:
        """Cancel the answers still under way."""

    def end(self) -> None:
        """Take no more. What is under way goes on."""
        self.ending = True

    def check_open(self) -> None:
        """Refuse what comes after the end has begun."""
        if self.ending:
            fact, cure = "the server is shutting down", "ask another one"
            raise ApiError(503, say("the request", fact, cure), code="shutting_down", headers=RETRY_AFTER)

    def now(self) -> int:
        """The time of a reply, as clients know it."""
        return int(time.time())
