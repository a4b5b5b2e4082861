"""FleetService: a server whose answers come from workers elsewhere. It has no LLM of its own, only a tokenizer.

Owns which FleetStreams are open; endpoints, fields, keys and errors are those of any server.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from quire.fleet.fleet_metrics import FleetMetrics
from quire.fleet.fleet_stream import Caller, FleetLimits, FleetStream
from quire.fleet.fleet_work import FleetWork, LookAt, WorkerFacts
from quire.fleet.worker_book import WorkerBook
from quire.fleet.worker_quotes import Quoter, WorkerQuotes
from quire.serve.answers.answer_stream import AnswerStream
from quire.serve.any_service import AnyService, Generation
from quire.serve.http.serve_settings import ServeSettings
from quire.viewer.many import Ask, ManyPages
from quire.viewer.page_routes import Reply

Books = Callable[[], list[WorkerBook]]
Looker = Callable[[LookAt], Awaitable[Reply]]


class FleetService(AnyService):
    """One server's, in front of many workers; `books` are those of its routers, `looker` asks one for the live page.

    `quoter` asks one when a first token would come: those with a deadline go where it comes soonest.
    """

    def __init__(
        self, settings: ServeSettings, tokenizer: Any, facts: WorkerFacts, caller: Caller, books: Books,
        limits: FleetLimits | None = None, *, looker: Looker | None = None, quoter: Quoter | None = None,
    ) -> None:  # fmt: skip
        self._fleet_metrics = FleetMetrics(settings.model_name, books)
        super().__init__(settings, tokenizer, facts.longest, facts.vocabulary, self._fleet_metrics)
        self.limits = limits or FleetLimits()
        self._caller, self._books = caller, books
        self._quotes = None if quoter is None else WorkerQuotes(quoter, self._names)
        self._pages: ManyPages | None = None
        if looker is not None and settings.has_viewer:
            facts_of_all = _BookFacts(settings.model_name, books, self._fleet_metrics)
            self._pages = ManyPages(facts_of_all, _asker(looker), settings.viewer_key)
        self._open: set[FleetStream] = set()

    def _names(self) -> set[str]:
        """Workers that there are."""
        return {name for book in self._books() for name in book.addresses()}

    @property
    def wrong(self) -> str | None:
        """Why it cannot answer, if it cannot."""
        return None if any(book.statuses() for book in self._books()) else "there is no worker"

    @property
    def troubles(self) -> dict[str, str]:
        """Workers have threads of their own, and Ray asks each how it is."""
        return {} if self.wrong is None else {"fleet": self.wrong}

    @property
    def num_streams(self) -> int:
        """Answers under way."""
        return len(self._open)

    @asynccontextmanager
    async def streams(self, wanted: Generation) -> AsyncIterator[list[AnswerStream]]:
        """A stream per prompt, each with a worker; none is left when the block is. One that is refused refuses all."""
        self.check_open()
        began: list[AnswerStream] = []
        sampling = wanted.sampling
        if sampling.seed is None:  # so that another worker goes on as the first one would have
            sampling = replace(sampling, seed=secrets.randbits(63))
        opened: list[FleetStream] = []
        share = wanted.share
        try:
            for prompt in wanted.prompts:
                tokens = np.array(prompt, np.int32)
                work = FleetWork(tokens, sampling, wanted.scope, wanted.hints, tenant=share, ttft=wanted.ttft)
                stream = FleetStream(self._caller, work, self.limits, self._fleet_metrics.resumed, self._quotes)
                opened.append(stream)
                self._open.add(stream)
                await stream.open()
                began.append(stream)
            yield began
        finally:
            for stream in opened:
                stream.close()
                self._open.discard(stream)
                self._fleet_metrics.stream_over(stream, wanted.tenant)

    async def look(self, path: str, query: str, authorization: str) -> Reply | None:
        """The page of all workers, and of each."""
        return None if self._pages is None else await self._pages.answer(path, query, authorization)

    def cut(self) -> None:
        """What is still under way ends where it is: reading it raises."""
        for stream in list(self._open):
            stream.cut()


class _BookFacts:
    """What the books know of workers, for the live page."""

    def __init__(self, name: str, books: Books, metrics: FleetMetrics) -> None:
        self.name, self._books, self._metrics = name, books, metrics

    def workers(self) -> dict[str, dict[str, Any]]:
        """How well each one's cache is known, and what it has to do."""
        found: dict[str, dict[str, Any]] = {}
        for book in self._books():
            loads = book.in_flight.loads()
            for name, status in book.statuses().items():
                found[name] = {"status": status, "in_flight": loads.get(name, 0)}
        return found

    def totals(self) -> dict[str, float]:
        """Since the server was started."""
        books = self._books()
        choices, spent = sum(book.num_choices for book in books), sum(book.choice_seconds for book in books)
        return {**self._metrics.totals(), "choices": choices, "choice_seconds": spent}


def _asker(looker: Looker) -> Ask:
    async def ask(worker: str, path: str, query: str, is_operator: bool) -> Reply:
        return await looker(LookAt(worker, path, query, is_operator))

    return ask
