"""One answer of a fleet by itself: cut, closed and read at any moment, it says what has become of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from quire import Scope, StateError
from quire.engine import Sampling
from quire.engine.loop.feed import Piece
from quire.fleet.fleet_stream import FleetLimits, FleetStream
from quire.fleet.fleet_work import FleetWork, MorePieces, Taken, WorkerMessage
from quire.serve.http.api_errors import ApiError


class Endless:
    """A worker that takes everything and never comes to an end."""

    def __init__(self) -> None:
        self.cancelled = False

    async def __aiter__(self) -> AsyncIterator[WorkerMessage]:
        yield Taken("worker")
        while not self.cancelled:
            yield MorePieces([Piece(0, (1,), "x")], 0)

    def cancel(self) -> None:
        self.cancelled = True


async def begun() -> tuple[FleetStream, list[Endless]]:
    calls: list[Endless] = []

    def call(work: FleetWork) -> Endless:
        calls.append(Endless())
        return calls[-1]

    work = FleetWork(np.arange(4, dtype=np.int32), Sampling(max_tokens=10), Scope())
    stream = FleetStream(call, work, FleetLimits(), lambda: None)
    await stream.open()
    return stream, calls


def test_cut_between_two_reads_it_is_told_that_the_server_ends() -> None:
    async def read() -> None:
        stream, calls = await begun()
        batches = stream.batches()
        assert len(await anext(batches)) == 1
        stream.cut()
        with pytest.raises(ApiError, match="the server shuts down") as told:
            await anext(batches)
        assert (told.value.status, told.value.code) == (503, "shutting_down")
        with pytest.raises(ApiError, match="the server shuts down"):
            await stream.open()
        stream.close()
        assert all(call.cancelled for call in calls) and stream.num_losses == 0

    asyncio.run(read())


def test_closed_it_is_not_read_and_looks_for_no_worker() -> None:
    async def read() -> None:
        stream, calls = await begun()
        stream.close()
        with pytest.raises(StateError, match="it is not open"):
            await anext(stream.batches())
        assert len(calls) == 1 and calls[0].cancelled

    asyncio.run(read())
