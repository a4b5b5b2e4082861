"""Sessions in a fleet: hints go to the worker that answers, and a session's next request to whoever had its last."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from quire import Scope
from quire.fleet import in_flight
from quire.fleet.in_flight import InFlight, WorkTicket
from quire.fleet.worker_book import WorkerBook
from quire.serve import ApiKeys, ServeSettings

from ..engine.endings import Endings, endings_of
from ..serve.rig import NAME
from ..serve.test_auth import ALICE, BOB, LINES, bearer
from ..serve.test_tools import TOOLS
from .rig import fleet

WORKERS = ["a", "b", "c"]
PROMPT = np.arange(200, dtype=np.int32)


def test_hints_reach_the_worker_that_answers_and_the_next_turn_finds_it() -> None:
    with fleet(2, settings=ServeSettings(NAME, keys=ApiKeys(LINES))) as some, ExitStack() as stack:
        heard: dict[str, Endings] = {
            name: stack.enter_context(endings_of(llm.loop.engine.cache)) for name, llm in some.llms.items()
        }

        def end(key: str, **fields: Any) -> Any:
            body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 2, **fields}
            assert some.post("/v1/chat/completions", body, **bearer(key)).status == 200
            some.until_idle()
            return heard[some.chosen[-1]].pop()

        stops = {"allowed_token_ids": [65], "stop_token_ids": [65]}
        assert end(ALICE, **stops).back == "later" and end(ALICE, metadata={"quire_back": "never"}).back == "never"
        assert end(ALICE, **stops, tools=TOOLS).back == "later"  # what reads calls goes to the other process, too
        mine = [end(ALICE, session_id="talk").session for _ in range(6)]
        assert len(set(mine)) == 1 and mine[0] is not None
        assert len(set(some.chosen[-6:])) == 1, "none of these prompts is long enough to be found by its blocks"
        assert end(BOB, session_id="talk").session not in mine
        assert not any(heard.values())


def test_of_equal_workers_the_one_that_had_the_session_comes_first() -> None:
    book = WorkerBook()
    try:
        for nth in range(20):
            ticket = WorkTicket(session=f"s{nth}")
            ticket.enter(book.in_flight, WORKERS[nth % 3])
            ticket.leave()
        for nth in range(20):
            ticket = WorkTicket(session=f"s{nth}")
            assert book.rank(WORKERS, PROMPT, Scope(), ticket)[0] == WORKERS[nth % 3]
            lost = WorkTicket(session=f"s{nth}")
            lost.enter(book.in_flight, WORKERS[nth % 3])
            lost.lost()
            assert book.rank(WORKERS, PROMPT, Scope(), lost)[-1] == WORKERS[nth % 3], "it has lost this request"
        busy = WorkTicket()
        busy.enter(book.in_flight, "a")
        assert book.rank(WORKERS, PROMPT, Scope(), WorkTicket(session="s0"))[-1] == "a", "work counts more"
        assert {book.rank(WORKERS, PROMPT, Scope(), WorkTicket(session="new"))[0] for _ in range(60)} == {"b", "c"}
    finally:
        book.close()


def test_sessions_that_are_idle_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "MOST_SESSIONS", 3)
    table = InFlight()
    for name in ("s0", "s1", "s2", "s0", "s3"):
        ticket = WorkTicket(session=name)
        ticket.enter(table, "a")
        ticket.leave()
    assert [table.home(f"s{nth}") for nth in range(4)] == ["a", None, "a", "a"] and table.home(None) is None
