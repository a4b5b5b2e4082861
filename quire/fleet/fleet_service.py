"""FleetService: a Service whose answers come from workers elsewhere. It has no LLM of its own, only a tokenizer.

Endpoints, fields, keys and errors are the server's own; this owns which FleetStreams are open.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from quire.fleet.fleet_metrics import FleetMetrics
from quire.fleet.fleet_stream import Caller, FleetLimits, FleetStream
from quire.fleet.work import FleetWork, WorkerFacts
from quire.fleet.worker_book import WorkerBook
from quire.serve.answers.answer_stream import AnswerStream
from quire.serve.answers.token_words import TokenWords
from quire.serve.exchange import BodyRoom
from quire.serve.prompts import Prompts
from quire.serve.service import Generation, Service
from quire.serve.settings import ServeSettings

Books = Callable[[], list[WorkerBook]]


class FleetService(Service):
    """One server's, in front of many workers; `books` are those of its routers.

    To endpoints it is a Service; of what that one has, nothing is made that needs an LLM.
    """

    def __init__(
        self, settings: ServeSettings, tokenizer: Any, facts: WorkerFacts, caller: Caller, books: Books,
        limits: FleetLimits | None = None,
    ) -> None:  # fmt: skip
        self.settings, self.limits = settings, limits or FleetLimits()
        self.created = int(time.time())
        self.longest = facts.longest
        self.prompts = Prompts(tokenizer, settings.max_characters * self.longest, facts.vocabulary)
        self.words, self.id_words = TokenWords(tokenizer), TokenWords(None)
        self._caller, self._books = caller, books
        self._fleet_metrics = FleetMetrics(settings.model_name, books)
        self.metrics = self._fleet_metrics
        self.bodies = BodyRoom(settings.max_bodies)
        self.page = None  # each worker has its own cache to look at
        self._open: set[FleetStream] = set()
        self.ending = False

    def __repr__(self) -> str:
        return f"FleetService({self.settings.model_name}, {len(self._open)} streams{', ending' if self.ending else ''})"

    @property
    def wrong(self) -> str | None:
        """Why it cannot answer, if it cannot."""
        return None if any(book.statuses() for book in self._books()) else "there is no worker"

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
        try:
            for prompt in wanted.prompts:
                work = FleetWork(np.array(prompt, np.int32), sampling, wanted.scope, wanted.retention)
                stream = FleetStream(self._caller, work, self.limits, self._fleet_metrics.resumed)
                opened.append(stream)
                self._open.add(stream)
                await stream.open()
                began.append(stream)
            yield began
        finally:
            for stream in opened:
                stream.close()
                self._open.discard(stream)
                self._fleet_metrics.stream_over(stream)

    def end(self) -> None:
        """Take no more. What is under way goes on."""
        self.ending = True

    def cut(self) -> None:
        """What is still under way ends where it is: reading it raises."""
        for stream in list(self._open):
            stream.cut()
