"""RayCall: one FleetWork on its way to a replica and back; and a question for one. Turns Ray's errors into ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RequestCancelledError

from quire.core.records.errors import say
from quire.fleet.fleet_work import (
    AskQuote,
    FleetFull,
    FleetWork,
    WorkerLost,
    WorkerMessage,
    WorkerQuote,
    WorkRefused,
)

GONE = (RayError, RequestCancelledError, DeploymentUnavailableError)


class RayCall:
    """A WorkerCall through a handle of the deployment."""

    def __init__(self, handle: Any, work: FleetWork) -> None:
        self._response = handle.answer.remote(work)

    async def __aiter__(self) -> AsyncIterator[WorkerMessage]:
        try:
            async for message in self._response:
                yield message
        except BackPressureError:
            fact = "as many requests wait for a replica as may"
            raise FleetFull(say("the request", fact, "ask again later")) from None
        except RayTaskError:
            raise  # a fault of the replica's code: reported as one of ours
        except GONE as gone:
            raise WorkerLost(type(gone).__name__) from None

    def cancel(self) -> None:
        """The replica's run ends."""
        with suppress(Exception):  # whatever became of it: it has no reader
            self._response.cancel()


async def ask_quote(handle: Any, ask: AskQuote) -> WorkerQuote | WorkRefused:
    """What one replica says. Who waits for it no more has it cancelled there."""
    response = handle.quote.remote(ask)
    try:
        said: WorkerQuote | WorkRefused = await response
    except BackPressureError:
        raise FleetFull(say("a quote", "as many requests wait for a replica as may", "ask again later")) from None
    except RayTaskError:
        raise
    except GONE as gone:
        raise WorkerLost(type(gone).__name__) from None
    except BaseException:
        with suppress(Exception):
            response.cancel()
        raise
    return said
