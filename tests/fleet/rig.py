"""A fleet in one process: real engines, publishers, index and HTTP server; only what Ray would carry is passed by hand.

A worker can be lost in the middle of an answer, as if its process had been killed. Knows no test.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from quire.engine import LLM, Engine, EngineConfig
from quire.events import Status
from quire.fleet.fleet_service import FleetService
from quire.fleet.fleet_stream import FleetLimits
from quire.fleet.fleet_work import (
    AskQuote,
    FleetFull,
    FleetWork,
    LookAt,
    MorePieces,
    WorkerLost,
    WorkerMessage,
    WorkerQuote,
    WorkRefused,
)
from quire.fleet.worker import FleetWorker
from quire.fleet.worker_book import WorkerAddress, WorkerBook
from quire.serve import Server, ServeSettings, bind
from quire.viewer.page_routes import Reply

from ..serve.rig import NAME, SIZES, HttpAsker, tiny_model
from ..waits import PATIENCE, until

SEED = b"0123456789abcdef"


class Carried:
    """A WorkerCall: messages are pickled on their way, as between processes."""

    def __init__(self, fleet: Fleet, work: FleetWork) -> None:
        self._fleet, self._work = fleet, work
        self._cancelled = False

    async def __aiter__(self) -> AsyncIterator[WorkerMessage]:
        work, fleet = self._work, self._fleet
        assert work.ticket is not None
        if fleet.is_full:
            raise FleetFull("as many requests wait as may")
        while not (alive := sorted(fleet.alive)):
            await asyncio.sleep(0.005)  # as Ray does: it waits for a replica
        name = fleet.book.rank(alive, work.tokens, work.scope, work.ticket)[0]
        work.ticket.enter(fleet.book.in_flight, name)
        fleet.chosen.append(name)
        fleet.works.append(work)
        messages = fleet.workers[name].answer(pickle.loads(pickle.dumps(work)))
        try:
            async for message in messages:
                if self._cancelled or name not in fleet.alive:
                    raise WorkerLost("it was killed")
                for part in _singly(pickle.loads(pickle.dumps(message))):
                    if name not in fleet.alive:
                        raise WorkerLost("it was killed")
                    fleet.heard += isinstance(part, MorePieces) and bool(part.pieces)
                    yield part
                    if fleet.kill_after is not None and fleet.heard >= fleet.kill_after:
                        fleet.kill_after = None
                        fleet.kill(name)
        finally:
            await messages.aclose()  # type: ignore[attr-defined]  # it is an async generator

    def cancel(self) -> None:
        self._cancelled = True


def _tell(engine: Engine) -> None:
    """Publish what was recorded."""
    for one in engine.participants:
        one.step()


def _singly(message: WorkerMessage) -> list[WorkerMessage]:
    """A piece at a time, so that it does not depend on the machine where a worker is lost."""
    if isinstance(message, MorePieces) and message.pieces:
        return [MorePieces([piece], message.reused) for piece in message.pieces]
    return [message]


class Fleet(HttpAsker):
    """So many workers and one server."""

    def __init__(self, number: int, limits: FleetLimits, settings: ServeSettings, **sizes: Any) -> None:
        config = EngineConfig(**(SIZES | {"events": True, "event_seed": SEED} | sizes))
        here = "tcp://127.0.0.1:*"
        self.llms = {f"w{nth}": LLM(tiny_model(), config=config, publish=here, replay=here) for nth in range(number)}
        self.workers = {name: FleetWorker(llm, name, beat=0.05) for name, llm in self.llms.items()}
        self.alive = set(self.workers)
        self.book = WorkerBook()
        self.chosen: list[str] = []
        self.quoted: list[str] = []
        self.works: list[FleetWork] = []
        self.heard, self.is_full = 0, False
        self.kill_after: int | None = None
        self.book.update({name: self._address(name) for name in self.workers})
        for llm in self.llms.values():
            llm.loop.call(_tell)
        self.until_exact()
        facts = self.workers["w0"].facts()
        words = self.llms["w0"].model.tokenizer
        self.service = FleetService(
            settings, words, facts, lambda work: Carried(self, work), lambda: [self.book], limits, looker=self._look,
            quoter=self._quote,
        )  # fmt: skip
        self.server = Server(self.service, grace=1)
        self._socket = bind("127.0.0.1", 0)
        self.port = self._socket.getsockname()[1]
        ready = threading.Event()
        self.server.on_ready = ready.set
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()
        assert ready.wait(PATIENCE)

    async def _quote(self, ask: AskQuote) -> WorkerQuote | WorkRefused:
        self.quoted.append(ask.worker)
        said = await self.workers[ask.worker].quote(pickle.loads(pickle.dumps(ask)).work)
        if ask.worker not in self.alive:
            raise WorkerLost("it was killed")
        return pickle.loads(pickle.dumps(said))  # type: ignore[no-any-return]

    async def _look(self, asked: LookAt) -> Reply:
        if asked.worker not in self.alive:
            raise WorkerLost("it was killed")
        reply = await asyncio.to_thread(self.workers[asked.worker].look, pickle.loads(pickle.dumps(asked)))
        assert isinstance(reply, Reply)
        return pickle.loads(pickle.dumps(reply))  # type: ignore[no-any-return]

    def _address(self, name: str) -> WorkerAddress:
        publisher = self.llms[name].publisher
        assert publisher is not None and publisher.replay_endpoint is not None
        return WorkerAddress(publisher.endpoint, publisher.replay_endpoint)

    def kill(self, name: str) -> None:
        """It says nothing any more, and is forgotten."""
        self.alive.discard(name)
        self.book.forget(name)

    def until_exact(self) -> None:
        """What all workers have cached is known."""

        def known() -> bool:
            for name in self.alive:
                self.llms[name].loop.call(_tell)
            statuses = self.book.index.workers()
            return all(
                statuses.get(name) is Status.EXACT and self._is_complete(name) for name in self.alive
            )  # fmt: skip

        until(known)

    def _is_complete(self, name: str) -> bool:
        cache = self.llms[name].loop.engine.cache
        publisher = self.llms[name].publisher
        assert publisher is not None
        idle = cache.usage(0, 0)
        told = len(self.book.index.pages(name))
        return not publisher.waiting and (told > 0 or idle.idle == 0)

    def until_idle(self) -> None:
        """No run is left anywhere, and nothing in the table."""
        until(lambda: not any(llm.loop.engine.runs for llm in self.llms.values()))
        until(lambda: not self.service.num_streams and not self.book.in_flight.loads())

    def close(self) -> None:
        self.server.should_exit = True
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self._socket.close()
        self.book.close()
        for llm in self.llms.values():
            llm.close()


@contextmanager
def fleet(
    number: int, limits: FleetLimits | None = None, settings: ServeSettings | None = None, **sizes: Any
) -> Iterator[Fleet]:
    made = Fleet(number, limits or FleetLimits(), settings or ServeSettings(NAME), **sizes)
    try:
        yield made
    finally:
        made.close()
