"""FleetWorker: an engine that does a server's work, a stream of messages for each. Knows no server and no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from quire.core.records.errors import InputError, MissingExtra, StateError, say
from quire.engine.llm import LLM
from quire.engine.loop.feed import Piece
from quire.engine.loop.stream import Stream
from quire.engine.runner.engine import Engine
from quire.engine.setup.submission import EngineBusy, TooLate
from quire.engine.thread_watch import troubles
from quire.fleet.fleet_work import (
    FleetWork,
    LookAt,
    MorePieces,
    Over,
    Taken,
    WorkerFacts,
    WorkerMessage,
    WorkerQuote,
    WorkRefused,
)
from quire.serve.metrics.engine_source import EngineSource
from quire.serve.service import longest_request
from quire.viewer.page_routes import PageRoutes, Reply

BEAT = 5.0  # seconds: a worker that computes says something that often
REFUSALS = ((EngineBusy, "busy"), (InputError, "input"), (MissingExtra, "input"), (StateError, "ending"))


class FleetWorker:
    """Owns no LLM: its maker closes it."""

    def __init__(self, llm: LLM, name: str, *, beat: float = BEAT, show_tokens: bool = False) -> None:
        self.llm, self.name, self._beat = llm, name, beat
        self._viewed = EngineSource(llm, name)
        self._page = PageRoutes(self._viewed, show_tokens=show_tokens)

    def __repr__(self) -> str:
        return f"FleetWorker({self.name!r}, {self.llm.loop!r})"

    def facts(self) -> WorkerFacts:
        """What a server must know before it takes requests."""
        engine: Engine = self.llm.loop.engine
        return WorkerFacts(self.llm.loop.call(longest_request), engine.vocabulary)

    def check(self) -> None:
        """Refuse to go on with an engine that has failed, or a thread that is gone."""
        self.llm.loop.check_open("a worker")
        for part, why in troubles(self.llm).items():
            raise StateError(say(f"the {part} of a worker", why, "make a new one"))

    def look(self, asked: LookAt) -> Reply:
        """The live page's answer about this worker's cache; the server has decided who may look."""
        return self._page.show(asked.path, asked.query, asked.is_operator)

    async def quote(self, work: FleetWork) -> WorkerQuote | WorkRefused:
        """When its first token would come, and whether it would be taken. Holds nothing; the next step is not delayed
        by more than that."""
        sampling, ttft = replace(work.sampling, structured_outputs=None), work.ttft or 0.0
        try:
            verdict = await self.llm.loop.quote_async(
                work.tokens, sampling, ttft=ttft, scope=work.scope, tenant=work.tenant, **work.hints._asdict()
            )
        except (InputError, MissingExtra, StateError) as wrong:
            return _refusal(wrong)
        return WorkerQuote(verdict.accepted, verdict.soonest, verdict.bound or 0.0)

    async def answer(self, work: FleetWork) -> AsyncIterator[WorkerMessage]:
        """Taken, pieces as they come, Over; or why not. A reader that stops cancels it."""
        options: dict[str, Any] = {"begun": work.begun} if work.begun else {"ttft": work.ttft}
        try:
            stream = await self.llm.loop.submit_async(
                work.tokens, work.sampling, timeout=0.0, scope=work.scope, tenant=work.tenant,
                **work.hints._asdict(), **options,
            )  # fmt: skip
        except TooLate as late:
            yield WorkRefused("late", str(late), self.name, late.bound)
            return
        except (InputError, MissingExtra, StateError) as wrong:
            yield _refusal(wrong)
            return
        try:
            run, ended = stream.run, False
            assert run is not None
            yield Taken(self.name, run.user_times.bound if run.times.bound else None)
            while not ended and (pieces := await self._pieces(stream)) is not None:
                ended = any(piece.finish in ("error", "cancelled") for piece in pieces)
                good = [piece for piece in pieces if piece.finish not in ("error", "cancelled")]
                yield MorePieces(good, run.reused)
            if run.error is None and ended:
                yield Over("it was ended before it was complete", is_lost=True)  # this worker ends
            else:
                yield Over(run.error, is_lost=run.error is not None and self.llm.loop.error is not None)
        finally:
            stream.close()
            self._viewed.run_over(stream.run)

    async def _pieces(self, stream: Stream) -> list[Piece] | None:
        """What has come: nothing, when nothing has for a while; None: nothing will."""
        feed = stream.feed
        try:
            piece = await asyncio.wait_for(feed.take_async(), self._beat)
        except TimeoutError:
            return []
        if piece is None:
            return None
        pieces = [piece]
        while feed.num_unread and (more := feed.take()) is not None:
            pieces.append(more)
        return pieces


def _refusal(wrong: Exception) -> WorkRefused:
    kind: Any = next(kind for error, kind in REFUSALS if isinstance(wrong, error))
    return WorkRefused(kind, str(wrong))
