"""Service: the server of one LLM in this process. Submits what was asked, and cuts what is left at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from quire.core.records.errors import InputError, say
from quire.core.records.request import Request
from quire.engine.llm import LLM
from quire.engine.loop.stream import Stream
from quire.engine.runner.engine import Engine
from quire.engine.thread_watch import troubles
from quire.insight.bills.bill import Bill
from quire.serve.answers.answer_stream import AnswerStream, LoopStream
from quire.serve.any_service import AnyService, Generation
from quire.serve.http.serve_settings import ServeSettings
from quire.serve.metrics.engine_source import EngineSource
from quire.serve.metrics.metrics import Metrics
from quire.viewer.page_routes import PageRoutes, Reply

BILL_SECONDS = 1.0


class Service(AnyService):
    """The service of one server. It does not own the LLM: its maker closes it."""

    def __init__(self, llm: LLM, settings: ServeSettings) -> None:
        if settings.keys is not None and settings.keys.has_deadlines and llm.loop.engine.deadlines is None:
            fact = "its engine keeps no deadlines"
            raise InputError(say("ttft_ms in the key file", fact, "start it with --deadlines 0.95, or leave it out"))
        longest: int = llm.loop.call(longest_request)
        self._run_metrics = Metrics(llm, settings.model_name, longest)
        super().__init__(settings, llm.model.tokenizer, longest, llm.loop.engine.vocabulary, self._run_metrics)
        self.llm = llm
        self._streams: set[Stream] = set()
        self._bill: Bill | None = None  # the last one that was asked for, and when that was
        self._billed, self._bill_lock = 0.0, asyncio.Lock()
        self._viewed = EngineSource(llm, settings.model_name) if settings.has_viewer else None
        self.page = None if self._viewed is None else _page(self._viewed, settings)  # None: there is no live page

    @property
    def wrong(self) -> str | None:
        """Why it cannot compute, if it cannot."""
        return self.llm.loop.error

    @property
    def troubles(self) -> dict[str, str]:
        """By part what is wrong with its threads; while there is something, requests should go elsewhere."""
        return troubles(self.llm)

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
                    tenant=share, ttft=wanted.ttft, **wanted.hints._asdict(),
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
        """The live page's answer; None: there is no live page."""
        if self.page is None:
            return None
        return await asyncio.to_thread(self.page.answer, path, query, authorization)

    async def bill(self) -> Bill | None:
        """What each tenant used, at most a second old: however often it is asked for, the engine goes on."""
        bills = self.llm.loop.engine.bills
        if bills is None:
            return None
        async with self._bill_lock:
            if self._bill is None or time.monotonic() - self._billed > BILL_SECONDS:
                self._bill, self._billed = await asyncio.to_thread(bills.bill), time.monotonic()
            return self._bill

    def end(self) -> None:
        """Accept no new requests; those that wait for a place are refused. Answers under way go on."""
        super().end()
        self.llm.loop.drain(0)

    def cut(self) -> None:
        """Cancel the answers still under way."""
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
