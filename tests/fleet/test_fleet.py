"""A server in front of many workers: answers are those of one engine, also when workers are lost in the middle."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from quire import Scope
from quire.engine import Sampling
from quire.fleet.fleet_stream import FleetLimits
from quire.fleet.fleet_work import FleetWork
from quire.fleet.in_flight import WorkTicket
from quire.serve import ApiKeys, ServeSettings

from ..effort import slow
from ..serve.rig import HELLO, NAME, Serving, serving
from ..waits import PATIENCE
from .rig import fleet

LONG = "A prompt of some blocks, so that there is something to be found where it was computed before: "
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1.0, "seed": 5},
    "penalties": {"temperature": 0.8, "seed": 9, "presence_penalty": 1.0, "repetition_penalty": 1.2},
    "two answers": {"temperature": 1.0, "seed": 4, "n": 2},
    "logprobs": {"temperature": 0, "logprobs": 2},
    "beams": {"use_beam_search": True, "n": 2, "temperature": 0},
}


@pytest.fixture(scope="module")
def alone() -> Iterator[Serving]:
    with serving() as server:
        yield server


def asked(kind: str, **more: Any) -> dict[str, Any]:
    return {"prompt": LONG, "max_tokens": 24, "ignore_eos": True, **KINDS[kind], **more}


def texts(reply: Any) -> list[tuple[str, str]]:
    return [(one["text"], one["finish_reason"]) for one in reply.json["choices"]]


def streamed(reply: Any) -> list[tuple[str, str]]:
    found: dict[int, list[str]] = {}
    ends: dict[int, str] = {}
    for event in reply.events:
        assert "error" not in event, event
        for choice in event["choices"]:
            found.setdefault(choice["index"], []).append(choice["text"])
            if choice["finish_reason"]:
                ends[choice["index"]] = choice["finish_reason"]
    return [("".join(found[nth]), ends[nth]) for nth in sorted(found)]


@pytest.mark.parametrize("kind", [slow(kind) if kind in ("penalties", "logprobs") else kind for kind in KINDS])
def test_an_answer_whose_worker_is_lost_is_the_same(alone: Serving, kind: str) -> None:
    wanted = texts(alone.post("/v1/completions", asked(kind)))
    with fleet(3) as some:
        assert texts(some.post("/v1/completions", asked(kind))) == wanted, "nobody is lost"
        some.kill_after = some.heard + 4
        assert streamed(some.post("/v1/completions", asked(kind, stream=True))) == wanted
        if kind != "beams":  # which come all at once, at the end
            assert len(some.alive) == 2 and some.metric("quire:fleet_lost_total") == 1
        some.kill_after = some.heard + 3
        assert texts(some.post("/v1/completions", asked(kind))) == wanted, "whole, and the second one is lost"
        some.until_idle()


def test_another_worker_goes_on_behind_the_tokens_so_far_with_the_same_seed() -> None:
    with fleet(2) as some:
        some.kill_after = 5
        got = some.complete(prompt=LONG, temperature=1.0, max_tokens=12, ignore_eos=True, stream=True)
        first, second = some.works
        assert first.sampling.seed is not None and second.sampling == first.sampling, "the server has chosen a seed"
        assert first.begun == () and len(second.begun) == 5 and some.chosen[0] != some.chosen[1]
        assert len(streamed(got)[0][0]) > 0 and some.metric("vllm:generation_tokens_total") == 12
        assert some.metric("quire:fleet_resumed_total") == 1


def test_a_worker_knows_whose_work_it_is() -> None:
    """Also when it goes on elsewhere: the engine there lets its tenant take turns."""
    key = "sk-alice-0123456789"
    with fleet(2, settings=ServeSettings(NAME, keys=ApiKeys([f"alice {key}"]))) as some:
        some.kill_after = 2
        body = {"prompt": LONG, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
        assert some.post("/v1/completions", body, authorization=f"Bearer {key}").status == 200
        works = [pickle.loads(pickle.dumps(work)) for work in some.works]
        assert len(works) == 2 and [work.tenant for work in works] == ["alice"] * 2 and works[1].begun


def test_usage_and_pieces_are_those_of_one_engine(alone: Serving) -> None:
    body = {**HELLO, "max_tokens": 12, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    wanted = alone.post("/v1/chat/completions", body).events
    with fleet(2) as some:
        some.kill_after = 3
        got = some.post("/v1/chat/completions", body).events
    told = [[event["choices"] for event in events] for events in (wanted, got)]
    assert told[0] == told[1] and wanted[-1]["usage"] == got[-1]["usage"]


def test_a_prompt_goes_where_it_is_cached_unless_too_many_are_there() -> None:
    with fleet(3) as some:
        first = some.post("/v1/completions", asked("greedy"))
        some.until_exact()
        home = some.chosen[-1]
        again = some.post("/v1/completions", asked("greedy"))
        assert some.chosen[-1] == home and texts(again) == texts(first)
        assert again.json["usage"]["prompt_tokens_details"]["cached_tokens"] >= 80
        tickets = []
        tokens = some.service.prompts.of_text(LONG, True)
        for _ in range(12):
            [best, *_] = some.book.rank(sorted(some.alive), np.array(tokens, np.int32), Scope())
            tickets.append(WorkTicket())
            tickets[-1].enter(some.book.in_flight, best)
        loads = some.book.in_flight.loads()
        assert max(loads.values()) == loads[home] == 8 and len(loads) == 3, "six more than the others: 96 tokens of 16"
        for ticket in tickets:
            ticket.leave()
            ticket.leave()
        assert some.book.in_flight.loads() == {}


def test_a_burst_of_new_prompts_is_spread() -> None:
    with fleet(3) as some:
        threads = [
            threading.Thread(target=some.complete, kwargs={"prompt": f"{nth} {LONG}", "max_tokens": 40})
            for nth in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(some.chosen) == 12 and max(Counter(some.chosen).values()) <= 5, some.chosen
        some.until_idle()


def test_a_worker_that_is_not_known_exactly_holds_nothing() -> None:
    with fleet(2) as some:
        some.post("/v1/completions", asked("greedy"))
        some.until_exact()
        tokens = np.array(some.service.prompts.of_text(LONG, True), np.int32)
        home = some.chosen[-1]
        assert some.book.held(tokens, Scope()) == {home: len(tokens) // 8 * 8}
        some.book.index.silent(home)
        assert some.book.held(tokens, Scope()) == {}


def test_without_a_worker_it_is_503_in_time() -> None:
    with fleet(1, FleetLimits(route_seconds=0.2)) as some:
        some.kill("w0")
        got = some.complete()
        assert got.status == 503 and got.error["code"] == "no_worker" and got.headers["retry-after"] == "1"
        assert some.get("/health").status == 503
        assert some.complete(stream=True).status == 503, "before the first event, so a proxy may ask another server"
        some.until_idle()


def test_an_answer_that_loses_every_worker_says_so() -> None:
    for seconds in (0.2, 2.0, PATIENCE / 2):  # so long a busy machine may take to give it to its worker
        with fleet(1, FleetLimits(route_seconds=seconds)) as some:
            some.kill_after = 3
            got = some.complete(stream=True, max_tokens=60, ignore_eos=True)
            if got.status == 503 and some.alive:
                continue
            assert got.status == 200 and got.events[-1]["error"]["code"] == "no_worker"
            assert some.metric("quire:fleet_lost_total") == 1
            some.until_idle()
            return
    raise AssertionError("no worker has taken it")


def test_too_many_that_wait_are_429() -> None:
    with fleet(1) as some:
        some.is_full = True
        got = some.complete()
        assert got.status == 429 and got.error["code"] == "fleet_full" and got.headers["retry-after"] == "1"
        some.is_full = False
        assert some.complete().status == 200


def test_a_full_worker_is_429_and_what_it_refuses_is_400() -> None:
    with fleet(1, max_waiting=1) as some, some.wire() as busy:
        busy.ask("/v1/completions", {"prompt": "x", "max_tokens": 300, "ignore_eos": True, "stream": True})
        busy.read_until(b"text")
        assert some.complete().error["code"] == "engine_full"
        busy.close()
        some.until_idle()
        got = some.complete(allowed_token_ids=[9999])
        assert got.status == 400 and got.error["param"] == "allowed_token_ids"


def test_a_client_that_leaves_leaves_nothing() -> None:
    with fleet(2) as some:
        with some.wire() as wire:
            wire.ask("/v1/completions", {"prompt": LONG, "max_tokens": 250, "ignore_eos": True, "stream": True})
            wire.read_until(b"text")
            assert some.metric("quire:fleet_in_flight") == 1 == some.metric("quire:fleet_in_flight_most")
        some.until_idle()
        assert some.metric("quire:fleet_workers", status="EXACT") == 2
        assert some.metric("quire:thread_up", part="follower") == 1
        assert some.metric("quire:fleet_choices_total") == 1 and some.metric("quire:fleet_choice_seconds_total") > 0


def test_an_engine_that_fails_is_a_worker_that_is_lost(alone: Serving) -> None:
    wanted = texts(alone.post("/v1/completions", asked("greedy")))
    with fleet(2) as some:
        got: list[Any] = []
        asks = threading.Thread(target=lambda: got.append(some.post("/v1/completions", asked("greedy", stream=True))))
        with some.wire() as wire:  # so that it is known who has it
            wire.ask("/v1/completions", {**asked("greedy"), "max_tokens": 200, "stream": True})
            wire.read_until(b"text")
            [name] = some.book.in_flight.loads()
            loop = some.llms[name].loop
            loop._put(lambda: loop._break(RuntimeError("the device is on fire")))
            rest = wire.read_until(b"[DONE]").decode()
        assert "error" not in rest and '"finish_reason":"length"' in rest
        some.alive.discard(name)
        asks.start()
        asks.join()
        assert streamed(got[0]) == wanted


def test_what_is_sent_to_workers_has_no_ticket() -> None:
    work = FleetWork(np.arange(3, dtype=np.int32), Sampling(), Scope(salt="s"), begun=(1, 2), ticket=WorkTicket())
    again = pickle.loads(pickle.dumps(work))
    assert again.ticket is None and again.begun == (1, 2) and again.scope == work.scope and "s" not in repr(again)[5:9]


def test_the_end_cuts_what_is_left() -> None:
    with fleet(1) as some, some.wire() as wire:
        wire.ask("/v1/completions", {"prompt": "x", "max_tokens": 390, "ignore_eos": True, "stream": True})
        wire.read_until(b"text")
        some.server.grace = 0.0
        some.server.should_exit = True
        rest = wire.read_until(b"[DONE]")
        assert b"shutting_down" in rest or b'"finish_reason":"length"' in rest
