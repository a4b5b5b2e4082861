"""WorkerQuotes: when would a first token come? All workers are asked at once, and no silent one holds the others up.

FleetStream ─► every worker at once ─► quotes by worker ─► the ticket: the soonest first
                    '─ silent until the end of the wait: asked again next time, and not waited for until it answers
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from quire.core.records.errors import InputError, without_words
from quire.engine.setup.submission import EngineBusy
from quire.fleet.fleet_work import AskQuote, FleetFull, FleetWork, WorkerLost, WorkerQuote, WorkRefused

Quoter = Callable[[AskQuote], Awaitable[WorkerQuote | WorkRefused]]
_log = logging.getLogger("quire.fleet")


class WorkerQuotes:
    """Of one server. `quoter` asks one worker; cancelled, it leaves nothing there."""

    def __init__(self, quoter: Quoter, workers: Callable[[], Iterable[str]]) -> None:
        self._quoter, self._workers = quoter, workers
        self._silent: set[str] = set()

    def __repr__(self) -> str:
        return f"WorkerQuotes({len(self._silent)} silent)"

    async def of(self, work: FleetWork, seconds: float, avoided: Iterable[str] = ()) -> dict[str, WorkerQuote]:
        """What each says that says anything within so many seconds. Work that is wrong, or a full fleet, is raised."""
        workers = set(self._workers()) - set(avoided)
        self._silent &= workers
        asked = {asyncio.create_task(self._ask(AskQuote(name, work))): name for name in sorted(workers)}
        try:
            await self._wait(asked, seconds)
            said = {name: one.result() for one, name in asked.items() if one.done()}
        finally:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        answered = {name: answer for name, answer in said.items() if answer is not None}
        self._silent = workers - answered.keys()
        return _quotes(answered)

    async def _wait(self, asked: dict[asyncio.Task[WorkerQuote | WorkRefused | None], str], seconds: float) -> None:
        """For those that answered the last time; for all, if none of them did."""
        prompt = {one for one, name in asked.items() if name not in self._silent} or set(asked)
        if prompt:
            await asyncio.wait(prompt, timeout=seconds)

    async def _ask(self, ask: AskQuote) -> WorkerQuote | WorkRefused | None:
        try:
            return await self._quoter(ask)
        except (WorkerLost, FleetFull):
            return None
        except Exception as wrong:  # one worker's fault: the others are asked all the same
            _log.warning("worker %s gives no quote: %s", ask.worker, without_words(wrong))
            return None


def _quotes(answered: dict[str, WorkerQuote | WorkRefused]) -> dict[str, WorkerQuote]:
    """What is wrong with the work is wrong everywhere, and raised; so it is if all that answered are busy."""
    refused = [one for one in answered.values() if isinstance(one, WorkRefused)]
    for one in refused:
        if one.why == "input":
            raise InputError(one.text)
    if refused and len(refused) == len(answered) and all(one.why == "busy" for one in refused):
        raise EngineBusy(refused[0].text)
    return {name: one for name, one in answered.items() if isinstance(one, WorkerQuote)}
