"""ManyPages: one page for many caches, each with a worker elsewhere. Owns what it asks of them, and how often.

    browser ──► /  and /viewer/workers ──► ManyPages ──BRIEF──► every worker, once for all who look
            ──► /worker?worker=NAME    ──► the page of one cache, whose questions go to that worker alone

Whom a question reaches, and how, is its caller's.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from quire.viewer.page_routes import (
    BRIEF,
    FILES,
    RECEIPT,
    SNAPSHOT,
    TOO_MANY,
    PageKey,
    Reply,
    query_fields,
    static,
    wrong,
)

WORKERS = "/viewer/workers"
WORKER_PAGE = "/worker"  # of one of them
OWN_FILES = {
    "/": ("many.html", "text/html; charset=utf-8"),
    WORKER_PAGE: ("page.html", "text/html; charset=utf-8"),
    "/viewer/many.js": ("many.js", "text/javascript; charset=utf-8"),
}
FLEET_PATHS = (*OWN_FILES, WORKERS)
PACE = 1.0  # seconds from one look at all workers to the next
PATIENCE = 3.0  # seconds that a worker has to answer
MOST_SHOWN = 256  # workers

Ask = Callable[[str, str, str, bool], Awaitable[Reply]]  # worker, path, query, is_operator


class FleetFacts(Protocol):
    """What the sender of requests knows of its workers."""

    name: str

    def workers(self) -> dict[str, dict[str, Any]]:
        """By name: how well its cache is known (`status`) and requests that it has (`in_flight`)."""
        ...

    def totals(self) -> dict[str, float]:
        """Counts over all of them."""
        ...


class ManyPages:
    """The answers about all workers."""

    def __init__(self, facts: FleetFacts, ask: Ask, key: str | None = None) -> None:
        self._facts, self._ask, self._key = facts, ask, PageKey(key)
        self._lock = asyncio.Lock()
        self._body, self._when = b"", float("-inf")

    async def answer(self, path: str, query: str, authorization: str) -> Reply:
        """To GET `path`."""
        own = OWN_FILES.get(path) or FILES.get(path)
        if own is not None:
            return Reply(200, static(own[0]), own[1])
        if path not in (WORKERS, SNAPSHOT, RECEIPT):
            return wrong(404, "there is no such path")
        refused = self._key.refusal(authorization)
        if refused is not None:
            return refused
        return Reply(200, await self._workers()) if path == WORKERS else await self._of_one(path, query)

    async def _of_one(self, path: str, query: str) -> Reply:
        """A question about one cache, to the worker that has it."""
        fields = query_fields(query)
        if fields is None:
            return wrong(400, TOO_MANY)
        asked = fields.get("worker", [""])[0]
        if asked not in self._facts.workers():
            return wrong(404, "there is no such worker: it has ended, or never was")
        return await self._asked(asked, path, query, self._key.is_there)

    async def _asked(self, worker: str, path: str, query: str, is_operator: bool) -> Reply:
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._ask(worker, path, query, is_operator)
        except Exception:  # whatever became of it: the page says that it does not answer
            return wrong(503, "the worker does not answer")

    async def _workers(self) -> bytes:
        """All of them, asked at most once per PACE."""
        async with self._lock:
            if time.monotonic() - self._when >= PACE:
                self._body = json.dumps(await self._look(), separators=(",", ":"), allow_nan=False).encode()
                self._when = time.monotonic()
            return self._body

    async def _look(self) -> dict[str, Any]:
        known = self._facts.workers()
        names = sorted(known)[:MOST_SHOWN]
        briefs = await asyncio.gather(*(self._asked(name, BRIEF, "", False) for name in names))
        shown = [
            {"worker": name, **known[name], "brief": json.loads(brief.body) if brief.status == 200 else None}
            for name, brief in zip(names, briefs, strict=True)
        ]
        page = {"name": self._facts.name, "pace": PACE, "workers": shown, "left_out": len(known) - len(names)}
        return {**page, "totals": self._facts.totals()}
