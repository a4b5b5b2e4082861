"""Service: what all endpoints of a server share: the LLM, its settings, its metrics, the streams that are open.

Submits what was asked, and cuts what is left at the end. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from quire.core.records.errors import say
from quire.core.records.identity import Scope
from quire.core.records.request import Request
from quire.core.records.retain import Retention
from quire.engine.choose.sampling import Sampling
from quire.engine.front.stream import Stream
from quire.engine.llm import LLM
from quire.engine.runner.engine import Engine
from quire.engine.step.runs.tenant import Together
from quire.engine.watch import troubles
from quire.serve.answers.answer_stream import AnswerStream, LoopStream
from quire.serve.answers.token_words import TokenWords
from quire.serve.auth import NOBODY
from quire.serve.errors import RETRY_AFTER, ApiError
from quire.serve.exchange import BodyRoom
from quire.serve.metrics.engine_source import EngineSource
from quire.serve.metrics.http_metrics import HttpMetrics
from quire.serve.metrics.metrics import Metrics
from quire.serve.prompts import Prompts
from quire.serve.protocol.large_work import LargeWork
from quire.serve.settings import ServeSettings
from quire.viewer.routes import PageRoutes, Reply


@dataclass(frozen=True, slots=True)
class Generation:
    """What shall be generated: the same for each of its prompts."""

    prompts: list[list[int]]
    sampling: Sampling
    scope: Scope
    retention: Retention | None = None
    tenant: str = NOBODY

    @property
    def share(self) -> str | Together | None:
        """As which its prompts take their turns; None: turns of its own, one share for all its prompts."""
        if self.tenant == NOBODY and len(self.prompts) > 1:
            return Together(secrets.token_hex(8))
        return self.tenant or None

    def __repr__(self) -> str:
        return f"Generation({len(self.prompts)} prompts, {self.sampling!r})"


class Service:
    """One server's. It does not own the LLM: whoever made that closes it."""

    def __init__(self, llm: LLM, settings: ServeSettings) -> None:
        self.llm, self.settings = llm, settings
        self.created = int(time.time())
        self.longest: int = llm.loop.call(longest_request)  # tokens of a prompt and its answer
        vocabulary = llm.loop.engine.vocabulary
        self.prompts = Prompts(llm.model.tokenizer, settings.max_characters * self.longest, vocabulary)
        self.words, self.id_words = TokenWords(llm.model.tokenizer), TokenWords(None)
        self._run_metrics = Metrics(llm, settings.model_name, self.longest)
        self.metrics: HttpMetrics = self._run_metrics
        self.bodies = BodyRoom(settings.max_bodies)
        self.large = LargeWork()
        self._streams: set[Stream] = set()
        self._viewed = EngineSource(llm, settings.model_name) if settings.has_viewer else None
        self.page = None if self._viewed is None else _page(self._viewed, settings)  # None: there is no live page
        self.ending = False  # it takes no more

    def __repr__(self) -> str:
        return f"Service({self.settings.model_name}, {len(self._streams)} streams{', ending' if self.ending else ''})"

    @property
    def wrong(self) -> str | None:
        """Why it cannot compute, if it cannot."""
        return self.llm.loop.error

    @property
    def troubles(self) -> dict[str, str]:
        """By part what is wrong with its threads; while there is something, others should be asked."""
        return troubles(self.llm)

    def now(self) -> int:
        """The time of a reply, as clients know it."""
        return int(time.time())

    @property
    def num_streams(self) -> int:
        """Answers under way."""
        return len(self._streams)

    @asynccontextmanager
    async def streams(self, wanted: Generation) -> AsyncIterator[list[AnswerStream]]:
        """A stream per prompt; none of them is left when the block is. One that is refused refuses all."""
        self.check_open()
        began: list[Stream] = []
        share = wanted.share
        try:
            for prompt in wanted.prompts:
                stream = await self.llm.loop.submit_async(
                    prompt, wanted.sampling, timeout=self.settings.queue_seconds, scope=wanted.scope,
                    retention=wanted.retention, tenant=share,
                )  # fmt: skip
                began.append(stream)
                self._streams.add(stream)
            yield [LoopStream(stream) for stream in began]
        finally:
            for stream in began:
                stream.close()
                self._streams.discard(stream)
                self._run_metrics.run_over(stream, wanted.tenant)
                if self._viewed is not None:
                    self._viewed.run_over(stream.run)

    async def look(self, path: str, query: str, authorization: str) -> Reply | None:
        """What the live page is told; None: there is none."""
        if self.page is None:
            return None
        return await asyncio.to_thread(self.page.answer, path, query, authorization)

    def check_open(self) -> None:
        """Refuse what comes after the end has begun."""
        if self.ending:
            fact, cure = "the server is shutting down", "ask another one"
            raise ApiError(503, say("the request", fact, cure), code="shutting_down", headers=RETRY_AFTER)

    def end(self) -> None:
        """Take no more; whoever waits for a place is sent away. What is under way goes on."""
        self.ending = True
        self.llm.loop.drain(0)

    def cut(self) -> None:
        """What is still under way ends where it is."""
        for stream in list(self._streams):
            stream.close()


def _page(source: EngineSource, settings: ServeSettings) -> PageRoutes:
    return PageRoutes(source, settings.viewer_key, settings.show_tokens)


def longest_request(engine: Engine) -> int:
    """The most tokens that one request may reach: by the model, by the config, and by the pages there are."""
    low, high = 0, min(engine.config.max_length, engine.model.max_length)
    while low < high:
        middle = (low + high + 1) // 2
        probe: Any = Request.dummy(("longest", middle), middle)
        with engine.cache.claim([probe]) as claims:
            fits = not claims.refused
        low, high = (middle, high) if fits else (low, middle - 1)
    return low
