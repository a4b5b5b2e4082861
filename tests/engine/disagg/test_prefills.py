"""Prompts for others, when things go wrong: no room, no time, nobody who wants them, engines that fail or close."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("msgspec")

from quire import InputError, Scope, StateError, check  # noqa: E402
from quire.engine import (  # noqa: E402
    LLM,
    EngineConfig,
    PrefillPeer,
    Run,
    Sampling,
    from_module,
)
from quire.engine.disagg.peer import Peer  # noqa: E402
from quire.transfer import Key, Limits, Tls  # noqa: E402

from ...net.certificates import Authority, needs_openssl  # noqa: E402
from ...waits import PATIENCE, rest  # noqa: E402
from .. import families  # noqa: E402
from ..reference import assert_same  # noqa: E402
from ..steps import reference_of  # noqa: E402
from .test_peer import SECRET, drive, open_peer, words  # noqa: E402

LONG = Limits(transfer=50.0, lease=50.0)  # whoever waits for one of these fails the test


@pytest.fixture
def peers() -> Iterator[list[Peer]]:
    made: list[Peer] = []
    yield made
    for peer in made:
        peer.engine.close()


def until(done: Any, *peers: Peer) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, "not done"
        for peer in peers:
            peer.engine.step()
        rest()


def test_a_prompt_without_room_takes_nothing_that_others_are_owed(peers: list[Peer]) -> None:
    """Its admission carries copies of other sequences' states: they are made, although it does not come in."""
    reference = reference_of("qwen3_next")
    there = open_peer("qwen3_next", serve=True, limits=LONG)
    here = open_peer("qwen3_next", 36, 0, limits=LONG)
    peers += [there, here]
    first = here.decode(Key("first"), words(7, 5), Sampling(max_tokens=1), source=there.link.address, order=True)
    until(lambda: first.done, there, here)  # they know each other
    prompt, sampling = words(1, 100), Sampling(max_tokens=30, ignore_eos=True)
    running = here.engine.submit(prompt, sampling)
    here.engine.step()
    late = here.decode(Key("late"), words(2, 240), Sampling(max_tokens=4), source=there.link.address, order=True)
    until(lambda: running.done, there, here)
    here.engine.cancel(late)
    again = here.engine.submit(prompt + words(3, 9), Sampling(max_tokens=12, ignore_eos=True))
    drive(there, here)
    assert again.reused >= 64
    for tokens, how, run in ((prompt, sampling, running), (prompt + words(3, 9), again.sampling, again)):
        assert_same(reference, tokens, how, [run.answers[0].tokens])


def test_an_older_prompt_is_not_overtaken_for_ever(peers: list[Peer]) -> None:
    """A local prompt that needs most of the memory, beside ever new ones from the peer."""
    there = open_peer("llama", 200, serve=True, limits=LONG)
    here = open_peer("llama", 34, 0, limits=LONG, reuse=False)
    peers += [there, here]
    younger: list[Any] = []

    def feed() -> bool:
        while sum(not run.done for run in younger) < 6:
            prompt = words(len(younger), 40)
            key = Key(f"r{len(younger)}")
            sampling = Sampling(max_tokens=24, ignore_eos=True)
            younger.append(here.decode(key, prompt, sampling, source=there.link.address, order=True))
        return len(younger) > 10

    until(feed, there, here)
    old = here.engine.submit(words(5, 200), Sampling(max_tokens=4, ignore_eos=True))
    before = len(younger)
    until(lambda: feed() and old.done, there, here)
    assert len(younger) - before < 40
    for run in younger:
        here.engine.cancel(run)
    drive(there, here)


def test_what_cannot_be_ordered_changes_nothing(peers: list[Peer]) -> None:
    here = open_peer("llama")
    peers.append(here)
    with pytest.raises(InputError, match="64 bits"):
        here.decode(Key("a"), words(0, 9), Sampling(), source="127.0.0.1:9", order=True, scope=Scope(lora=2**70))
    with pytest.raises(InputError):
        here.decode(Key("b"), [-1], Sampling(), source="127.0.0.1:9", order=True)
    assert not here.engine.runs and not here.num_open
    numpy = Sampling(max_tokens=2, temperature=np.float64(0.7))
    run = here.decode(Key("c"), words(0, 9), numpy, source="127.0.0.1:9", order=True)
    drive(here)
    assert run.error is None and "Connection refused" in run.fallback


def test_a_cancel_during_the_last_step_is_heard(peers: list[Peer], monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt is computed, and sent to nobody; its pages are not kept for a lease."""
    told: list[str] = []
    there, here = open_peer("llama", serve=True, limits=LONG, tell=told.append), open_peer("llama", limits=LONG)
    peers += [there, here]
    compute, runs = there.engine._run, list[Run]()

    def slow(*args: Any) -> Any:
        if runs:
            here.engine.cancel(runs.pop())
            until(lambda: not here.num_open, here)
            until(lambda: there.endpoint._registry.orders._withdrawn)  # the cancel has come
        return compute(*args)

    monkeypatch.setattr(there.engine, "_run", slow)
    runs.append(here.decode(Key("r"), words(2, 30), Sampling(max_tokens=4), source=there.link.address, order=True))
    drive(there, here)
    assert len(told) == 1 and "0 bytes sent; cancelled" in told[0]


def test_cancelled_prompts_behind_one_without_room_are_not_computed(peers: list[Peer]) -> None:
    there, here = open_peer("llama", serve=True, limits=LONG), open_peer("llama", 34, 0, limits=LONG)
    peers += [there, here]
    running = here.engine.submit(words(1, 20), Sampling(max_tokens=200, ignore_eos=True))
    until(lambda: here.engine.stats.num_steps > 3, here)
    runs = [
        here.decode(Key(f"r{nth}"), words(nth, 240), Sampling(max_tokens=4), source=there.link.address, order=True)
        for nth in range(10)
    ]
    until(lambda: there.engine.runs, there, here)
    for run in runs[1:]:
        here.engine.cancel(run)
    until(lambda: len(here._unasked) <= 1, here)
    here.engine.cancel(running)
    drive(there, here)
    assert runs[0].error is None and there.engine.stats.num_tokens < 5 * 240


def test_a_listener_that_fails_costs_nobody_a_prompt(peers: list[Peer]) -> None:
    def broken(line: str) -> None:
        raise BrokenPipeError(line)

    there, here = open_peer("llama", serve=True, tell=broken), open_peer("llama")
    peers += [there, here]
    runs = [
        here.decode(Key(f"r{nth}"), words(nth, 20), Sampling(max_tokens=3), source=there.link.address, order=True)
        for nth in range(3)
    ]
    drive(there, here)
    assert all(not run.fallback for run in runs)


# -- in a loop ---------------------------------------------------------------------------------------------------------


def open_llm(max_waiting: int = 64, **options: Any) -> LLM:
    config = EngineConfig(
        80, block_size=8, max_num_tokens=48, max_sequences=8, max_length=256, snapshot_every=32, max_waiting=max_waiting
    )
    return LLM(from_module(families.build("llama")), config=config, **options)


def test_a_server_whose_engine_fails_is_not_waited_for() -> None:
    """It leaves: prompts are computed here at once, not after a minute."""
    with open_llm() as there:
        address = there.serve_prompts("127.0.0.1:0", SECRET)
        with open_llm(prefill_peer=PrefillPeer(address, SECRET)) as here:
            assert here.generate([words(1, 20)], Sampling(max_tokens=3))[0].tokens
            there.loop.engine.advance.choose = None  # type: ignore[method-assign, assignment]
            stream = here.stream(words(2, 20), Sampling(max_tokens=3))
            run = stream.wait(PATIENCE)
            assert run.error is None and "in time" not in run.fallback and run.fallback
            assert there.loop.error is not None and "TypeError" in there.loop.error
            with pytest.raises(StateError, match="a step failed"):
                there.serve_prompts("127.0.0.1:0", SECRET)


def test_orders_and_local_prompts_share_the_places() -> None:
    """A full engine makes local prompts wait, and refuses orders; nobody is told that it is busy."""
    with open_llm(max_waiting=2) as there, open_llm() as one:
        address = there.serve_prompts("127.0.0.1:0", SECRET)
        with open_llm(prefill_peer=PrefillPeer(address, SECRET)) as here:
            streams = [here.stream(words(nth, 40), Sampling(max_tokens=3)) for nth in range(12)]
            local = there.generate([words(nth, 30) for nth in range(6)], Sampling(max_tokens=4))
            answers = [tuple(stream.wait(PATIENCE).answers[0].tokens) for stream in streams]
        alone = one.generate([words(nth, 40) for nth in range(12)], Sampling(max_tokens=3))
        assert answers == [output.tokens[0] for output in alone] and len(local) == 6
        assert there.loop.call(lambda engine: check(engine.cache)) is None
        for _ in range(2):
            assert there.loop.gate.enter(5), "every place was given back"


@needs_openssl
def test_prompts_come_inside_tls(tmp_path: Path) -> None:
    """And whoever is not believed computes here."""
    ours = Authority(tmp_path)
    tls = ours.issue("worker")
    with open_llm() as there:
        address = there.serve_prompts("127.0.0.1:0", SECRET, tls=tls)
        for way, comes in ((tls, True), (Tls(ca=ours.ca), False), (None, False)):
            with open_llm(prefill_peer=PrefillPeer(address, SECRET, tls=way)) as here:
                run = here.stream(words(1, 20), Sampling(max_tokens=2)).wait(PATIENCE)
                assert run.error is None and bool(run.received) == comes == (not run.fallback)


def test_what_is_wrong_is_refused_before_anything_is_left_behind() -> None:
    before = threading.active_count()
    for peer, wrong in (
        (PrefillPeer("nowhere", SECRET), "not host:port"),
        (PrefillPeer("127.0.0.1:9", b"short"), "16"),
        (PrefillPeer("127.0.0.1:9", SECRET, "pigeon"), "there are tcp, nixl"),
    ):
        with pytest.raises(InputError, match=wrong):
            open_llm(prefill_peer=peer)
    llm = open_llm()
    llm.close()
    with pytest.raises(StateError, match="the engine is closed"):
        llm.serve_prompts("127.0.0.1:0", SECRET)
    assert threading.active_count() <= before


def test_an_engine_closes_although_sessions_have_ended_that_nobody_took(peers: list[Peer]) -> None:
    """And although a decoder has stopped in the middle: the link to it is closed after a second."""
    there, here = open_peer("llama", serve=True, limits=LONG), open_peer("llama", limits=LONG)
    for nth in range(3):
        here.decode(Key(f"r{nth}"), words(nth, 40), Sampling(max_tokens=3), source=there.link.address, order=True)
    until(lambda: here._coming, there, here)
    until(lambda: not here.pump._ended.empty(), there)  # what was asked for has come, and nobody has looked
    there.engine.close()
    here.engine.close()
    assert not there.endpoint._registry.dispatches and not here.endpoint._registry.arrivals
