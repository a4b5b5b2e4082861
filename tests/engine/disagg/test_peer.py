"""Prefill here, decode there: two engines, then two processes, and the tokens are those of one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("msgspec")

from quire import InputError, Scope, StateError, check  # noqa: E402
from quire.core.records.request import PLAIN  # noqa: E402
from quire.engine import from_module  # noqa: E402
from quire.engine.disagg import prefill_orders as orders  # noqa: E402
from quire.engine.disagg.peer import Peer  # noqa: E402
from quire.engine.runner.engine import Engine  # noqa: E402
from quire.engine.sampling.params import Sampling  # noqa: E402
from quire.engine.setup.engine_config import EngineConfig  # noqa: E402
from quire.engine.step.runs.tenant import Together  # noqa: E402
from quire.transfer import Aux, Key, Limits, TcpLink, with_logits  # noqa: E402

from ...waits import PATIENCE, rest, until  # noqa: E402
from .. import families  # noqa: E402
from ..reference import assert_same  # noqa: E402
from ..steps import reference_of  # noqa: E402

SECRET = b"a secret of at least sixteen bytes"
LIMITS = Limits(transfer=30.0, lease=5.0)


def open_peer(
    name: str, pages: int = 80, host: int = 40, *, limits: Limits = LIMITS, serve: bool = False, device: str = "cpu",
    tell: Callable[[str], None] = lambda _: None, **settings: Any,
) -> Peer:  # fmt: skip
    config = EngineConfig(
        pages, host, block_size=8, max_num_tokens=48, max_sequences=8, max_length=256, snapshot_every=32, **settings
    )
    engine = Engine(from_module(families.build(name).to(device)), config)
    return Peer(engine, lambda arenas: TcpLink(name, arenas, SECRET), limits=limits, serve=serve, tell=tell)


def words(seed: int, count: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(families.FIRST_WORD, families.VOCAB, count).tolist()
    return tokens


def drive(*peers: Peer) -> None:
    """Until nobody has anything to do."""
    end = time.monotonic() + PATIENCE
    busy = True
    while busy:
        reports = [peer.engine.step() for peer in peers]  # all of them, in every round
        busy = any(reports) or any(peer.num_open for peer in peers)
        if not any(reports):
            rest()  # their threads are at work
        assert time.monotonic() < end, "not done"
    for peer in peers:
        check(peer.engine.cache)
        assert peer.engine.cache.num_sequences == 0 and not peer.engine.runs and not peer.engine.cache.open_plans()


@pytest.fixture(params=families.NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_tokens_are_those_of_one_engine(name: str) -> None:
    """Prompts that share a beginning, greedy and sampled, some with drafts; each is computed there and decoded here."""
    reference = reference_of(name)
    there, here = open_peer(name), open_peer(name)
    shared = words(0, 50)
    asks = []
    for nth in range(8):
        prompt = shared[: 10 + 5 * nth] + words(nth, 7)
        sampling = Sampling(max_tokens=10, ignore_eos=nth % 2 == 0)
        if nth % 3 == 1:
            sampling = Sampling(max_tokens=10, temperature=0.8, seed=nth)
        elif nth % 3 == 2 and not here.engine.model.recurrent:
            sampling = Sampling(max_tokens=10, drafts=3)
        key = Key(f"r{nth}")
        asks.append((prompt, sampling, here.decode(key, prompt, sampling, source=there.link.address)))
        there.prefill(key, prompt, sampling)
    drive(there, here)
    for prompt, sampling, run in asks:
        assert run.error is None and not run.fallback and run.received > 0 and run.reused <= len(prompt)
        assert_same(reference, prompt, sampling, [run.answers[0].tokens])
    assert here.num_fallbacks == 0 and here.engine.stats.num_tokens < sum(len(prompt) for prompt, _, _ in asks)
    for peer in (there, here):
        peer.engine.close()


def test_what_does_not_come_is_computed_here(name: str) -> None:
    """The sender never hears of it: the lease and the deadline run out, and the answer is the same."""
    reference = reference_of(name)
    there, here = open_peer(name), open_peer(name, limits=Limits(transfer=0.3, lease=0.3))
    prompt, sampling = words(3, 40), Sampling(max_tokens=8)
    run = here.decode(Key("nobody"), prompt, sampling, source=there.link.address)
    drive(there, here)
    assert here.num_fallbacks == 1
    assert_same(reference, prompt, sampling, [run.answers[0].tokens])
    for peer in (there, here):
        peer.engine.close()


def test_cancelled_on_either_side(name: str) -> None:
    there, here = open_peer(name), open_peer(name, limits=Limits(transfer=0.5, lease=0.5))
    reference = reference_of(name)
    prompt, sampling = words(4, 60), Sampling(max_tokens=6)
    first = here.decode(Key("first"), prompt, sampling, source=there.link.address)
    second = here.decode(Key("second"), prompt, sampling, source=there.link.address)
    there.prefill(Key("first"), prompt, sampling)
    computing = there.prefill(Key("second"), prompt, sampling)
    here.engine.cancel(first)
    there.engine.step()
    there.engine.cancel(computing)
    drive(there, here)
    assert first.answers[0].finish == "cancelled"
    assert_same(reference, prompt, sampling, [second.answers[0].tokens])
    for peer in (there, here):
        peer.engine.close()


def test_several_answers_and_beams_over_a_transfer(name: str) -> None:
    """The logits come with the pages, and are chosen from here; forks and beams share what has arrived."""
    reference = reference_of(name)
    there, here = open_peer(name, serve=True), open_peer(name)
    asks = []
    many = [Sampling(max_tokens=6, n=3, temperature=0.9, seed=5), Sampling(max_tokens=6, beams=3), Sampling(n=2)]
    # fields that an order does not carry
    many += [Sampling(max_tokens=6, logit_bias={30: 40.0}, repetition_penalty=2.0, min_tokens=3)]
    many += [Sampling(max_tokens=6, temperature=30.0, min_p=0.95, seed=3), Sampling(max_tokens=3, logprobs=2)]
    for nth, sampling in enumerate(many):
        prompt = words(0, 20 + 9 * nth) + words(nth, 6)
        run = here.decode(Key(f"r{nth}"), prompt, sampling, source=there.link.address, order=True)
        asks.append((prompt, sampling, run))
    prompt, sampling = words(7, 33), Sampling(max_tokens=6, n=2, beams=2)
    asks.append((prompt, sampling, here.decode(Key("told"), prompt, sampling, source=there.link.address)))
    there.prefill(Key("told"), prompt, sampling)
    drive(there, here)
    for prompt, sampling, run in asks:
        assert run.error is None and not run.fallback and run.received > 0
        assert_same(reference, prompt, sampling, [answer.tokens for answer in run.answers])
        assert [one.token for one in run.answers[0].logprobs] == (run.answers[0].tokens if sampling.logprobs else [])
    for peer in (there, here):
        peer.engine.close()


@pytest.mark.parametrize("logits", [None, (1, 7), (2, families.VOCAB)])
def test_logits_that_are_none(logits: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several answers, and a peer that sends only one token, or logits of another vocabulary: computed here."""
    there, here = open_peer("llama"), open_peer("llama")
    put = there.endpoint.put
    aux = Aux(first_tokens=(3,)) if logits is None else with_logits(Aux(), np.zeros(logits, np.float32))
    monkeypatch.setattr(there.endpoint, "put", lambda *a, **k: put(*a, **k | {"aux": aux}))
    prompt, sampling = words(6, 30), Sampling(max_tokens=5, n=2, temperature=1.0, seed=1)
    run = here.decode(Key("odd"), prompt, sampling, source=there.link.address)
    there.prefill(Key("odd"), prompt, sampling)
    drive(there, here)
    assert here.num_fallbacks == 1 and "not logits" in run.fallback, (run.fallback, run.received)
    assert_same(reference_of("llama"), prompt, sampling, [answer.tokens for answer in run.answers])
    for peer in (there, here):
        peer.engine.close()


def test_logits_without_numbers_fail_their_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    there, here = open_peer("llama"), open_peer("llama")
    put = there.endpoint.put
    aux = with_logits(Aux(), np.full((1, families.VOCAB), np.nan, np.float32))
    monkeypatch.setattr(there.endpoint, "put", lambda *a, **k: put(*a, **k | {"aux": aux}))
    run = here.decode(Key("nan"), words(6, 30), Sampling(max_tokens=5, n=2), source=there.link.address)
    there.prefill(Key("nan"), words(6, 30), Sampling(n=2))
    drive(there, here)
    assert run.done and run.error is not None and "NaN" in run.error, (run.fallback, run.received)
    for peer in (there, here):
        peer.engine.close()


def test_a_key_is_used_once() -> None:
    """Wrong keys are refused before anything is queued, and unknown ones say so."""
    there, here = open_peer("llama"), open_peer("llama")
    prompt, sampling = words(0, 20), Sampling(max_tokens=4)
    here.decode(Key("a"), prompt, sampling, source=there.link.address)
    there.prefill(Key("a"), prompt, sampling)
    for peer in (there, here):
        with pytest.raises(StateError, match="another epoch"):
            peer.prefill(Key("a"), prompt, sampling)
        with pytest.raises(StateError, match="another epoch"):
            peer.decode(Key("a"), prompt, sampling, source="127.0.0.1:9")
        for wrong in ("a", Key("")):
            with pytest.raises(InputError):
                peer.decode(wrong, prompt, sampling, source="127.0.0.1:9")  # type: ignore[arg-type]
    drive(there, here)
    with pytest.raises(StateError, match="another epoch"):
        here.decode(Key("a"), prompt, sampling, source=there.link.address)
    assert here.num_fallbacks == 0
    for peer in (there, here):
        peer.engine.close()


def test_who_will_not_be_served_learns_it_at_once() -> None:
    """A prefill that is cancelled before it has pages, or refused: the decoder does not wait for its deadline."""
    there, here = open_peer("llama"), open_peer("llama", limits=Limits(transfer=50.0, lease=50.0))
    prompt, sampling = words(5, 30), Sampling(max_tokens=5)
    runs = [here.decode(Key(name), prompt, sampling, source=there.link.address) for name in ("cancelled", "refused")]
    there.engine.cancel(there.prefill(Key("cancelled"), prompt, sampling))
    with pytest.raises(InputError):
        there.prefill(Key("refused"), words(0, 2000), sampling)
    drive(there, here)
    assert here.num_fallbacks == 2 and all("in time" not in run.fallback for run in runs)
    reference = reference_of("llama")
    for run in runs:
        assert_same(reference, prompt, sampling, [run.answers[0].tokens])
    for peer in (there, here):
        peer.engine.close()


@pytest.mark.parametrize("first", [(), (-1,), (families.VOCAB,), (2**40,)])
def test_a_first_token_that_is_none(first: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a peer says is checked: the answer is computed here then."""
    there, here = open_peer("llama"), open_peer("llama")
    put = there.endpoint.put
    monkeypatch.setattr(there.endpoint, "put", lambda *a, **k: put(*a, **k | {"aux": Aux(first_tokens=first)}))
    prompt, sampling = words(6, 30), Sampling(max_tokens=5)
    run = here.decode(Key("odd"), prompt, sampling, source=there.link.address)
    there.prefill(Key("odd"), prompt, sampling)
    drive(there, here)
    assert here.num_fallbacks == 1 and run.reused >= 24, "its pages came all the same"
    assert_same(reference_of("llama"), prompt, sampling, [run.answers[0].tokens])
    for peer in (there, here):
        peer.engine.close()


def test_waiting_for_room_keeps_nobody_from_giving_way() -> None:
    """Beams that hold pages in vain, and a prompt from outside that waits for theirs: all are served."""
    here = open_peer("llama", pages=9, limits=Limits(transfer=1.0, lease=1.0))
    beams = [here.engine.submit(words(nth, 12), Sampling(max_tokens=8, beams=2)) for nth in range(3)]
    run = here.decode(Key("late"), words(9, 48), Sampling(max_tokens=4), source="127.0.0.1:9")
    drive(here)
    assert all(one.done and one.error is None for one in [*beams, run])
    here.engine.close()


def test_an_engine_orders_its_prompts(name: str) -> None:
    """Nobody else tells the sender: the decoder does, with the seed it has drawn; answers are those of one engine."""
    reference = reference_of(name)
    there, here = open_peer(name, serve=True), open_peer(name)
    asks = []
    for nth in range(4):
        prompt = words(0, 20 + 9 * nth) + words(nth, 6)
        sampling = Sampling(max_tokens=8, temperature=0.9 if nth % 2 else 0.0, top_k=20)
        scope = Scope(salt="tenant") if nth > 1 else PLAIN
        key = Key(f"r{nth}")
        run = here.decode(key, prompt, sampling, source=there.link.address, order=True, scope=scope)
        asks.append((prompt, sampling, run))
    drive(there, here)
    for prompt, sampling, run in asks:
        assert run.error is None and not run.fallback and run.received > 0
        assert_same(reference, prompt, replace(sampling, seed=run.seed), [run.answers[0].tokens])
    for peer in (there, here):
        peer.engine.close()


def test_what_was_ordered_and_is_not_wanted_is_not_computed() -> None:
    there, here = open_peer("llama", serve=True), open_peer("llama")
    runs = []
    for nth in range(3):
        prompt = words(nth, 200)
        runs.append(here.decode(Key(f"r{nth}"), prompt, Sampling(max_tokens=4), source=there.link.address, order=True))

    def all_have_come() -> bool:
        there.engine.step()
        return len(there.engine.runs) == 3

    until(all_have_come)
    for run in runs[1:]:
        here.engine.cancel(run)
    drive(here, there)
    assert runs[0].error is None and not runs[0].fallback
    assert there.engine.stats.num_tokens < 600, "two of them were given up on the way"
    for peer in (there, here):
        peer.engine.close()


@pytest.mark.parametrize(("serve", "reason"), [(False, "no prompts are computed"), (True, "are in the engine")])
def test_an_order_that_is_refused_is_computed_here_at_once(serve: bool, reason: str) -> None:
    there = open_peer("llama", serve=serve, max_waiting=1)
    here = open_peer("llama", limits=Limits(transfer=50.0, lease=50.0))
    there.engine.submit(words(1, 40), Sampling(max_tokens=30))
    prompt, sampling = words(5, 30), Sampling(max_tokens=5)
    run = here.decode(Key("r"), prompt, sampling, source=there.link.address, order=True)
    registry = there.endpoint._registry
    until(lambda: bool(registry.orders._found or registry.orders._refused))  # before the run that is in its way is done
    drive(there, here)
    assert here.num_fallbacks == 1 and reason in run.fallback
    assert_same(reference_of("llama"), prompt, sampling, [run.answers[0].tokens])
    for peer in (there, here):
        peer.engine.close()


def test_an_order_survives_the_wire_and_junk_does_not() -> None:
    tokens = np.array([1, 2, 3], np.int32)
    scope, sampling = Scope(lora=7, salt="s", epoch=b"e"), Sampling(temperature=0.5, top_p=0.9, top_k=3, max_tokens=50)
    body = orders.pack(tokens, sampling, 2**64 - 1, scope)
    got, how, where, logits, tenant, session, back, points = orders.unpack(body)
    assert tenant is None and session is None and back == "later" and points == ()
    for whose in ("alice", Together("a call")):
        assert orders.unpack(orders.pack(tokens, sampling, 1, scope, whose)).tenant == whose
    assert not logits and orders.unpack(orders.pack(tokens, Sampling(beams=2), 0, scope)).logits
    assert got.tolist() == [1, 2, 3] and got.dtype == np.int32 and where == scope
    assert how == Sampling(max_tokens=1, temperature=0.5, top_p=0.9, top_k=3, seed=2**64 - 1)
    with pytest.raises(InputError, match="64 bits"):
        orders.pack(tokens, sampling, 0, Scope(lora=2**70))
    for cut in range(len(body)):
        with pytest.raises(InputError):
            orders.unpack(body[:cut])
    for place in range(len(body)):
        for byte in (0, 0x7F, 0xC1, 0xFF):
            with suppress(InputError):
                orders.unpack(body[:place] + bytes([byte]) + body[place + 1 :])


# -- two processes -----------------------------------------------------------------------------------------------------


def prefill_worker(name: str, pipe: Any) -> None:
    """Computes what it is asked to, until it is killed."""
    torch.set_num_threads(1)
    peer = open_peer(name)
    pipe.send(peer.link.address)
    while True:
        if pipe.poll(0 if peer.engine.runs or peer.num_open else 0.01):
            key, prompt, sampling = pipe.recv()
            peer.prefill(Key(key), prompt, sampling)
        peer.engine.step()


def test_two_processes() -> None:
    """When the sender is killed the survivor computes the prompts itself, and every page is accounted for."""
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    process = spawn.Process(target=prefill_worker, args=("llama", theirs), daemon=True)
    process.start()
    assert mine.poll(PATIENCE)
    source = mine.recv()
    sampling = Sampling(max_tokens=12)
    for kill in (False, True):
        here = open_peer("llama", limits=Limits(transfer=2.0, lease=2.0) if kill else LIMITS)
        runs = []
        for nth in range(4 if kill else 6):
            prompt = words(10 * kill + nth % 3, 70) + words(nth, 5)
            mine.send((f"{kill} {nth}", prompt, sampling))
            runs.append((prompt, here.decode(Key(f"{kill} {nth}"), prompt, sampling, source=source)))
        if kill:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join(PATIENCE)
            prompt = words(99, 40)  # whatever it has done before, this it cannot
            runs.append((prompt, here.decode(Key("late"), prompt, sampling, source=source)))
        drive(here)
        for prompt, run in runs:
            assert run.error is None
            assert_same(reference_of("llama"), prompt, sampling, [run.answers[0].tokens])
        assert (here.num_fallbacks > 0) == kill
        here.engine.close()
