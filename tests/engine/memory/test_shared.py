"""Engines that share a store: the second answers what the first computed, exactly, without computing it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import InputError, Request, Scope  # noqa: E402
from quire.engine import LLM, from_module  # noqa: E402
from quire.engine.loop.engine_thread import Loop  # noqa: E402
from quire.engine.memory import outer_memory  # noqa: E402
from quire.engine.model import smollm2  # noqa: E402
from quire.engine.runner.engine import Engine  # noqa: E402
from quire.engine.setup.engine_config import EngineConfig  # noqa: E402
from quire.engine.step.runs.branch import Run  # noqa: E402
from quire.tiers.shared import FolderStore, SharedCache, SharedConfig, StoreMiss  # noqa: E402
from tests.tiers.shared.redis_server import BINARY, NO_REDIS, RedisServer  # noqa: E402

from .. import families  # noqa: E402
from ..steps import SMALL, assert_clean, assert_exact, model_of, plain, words  # noqa: E402
from ..worker_process import WorkerProcess  # noqa: E402

PATIENT = 120.0


@contextmanager
def sharing(name: str, place: Path | str, pages: Any = 40, host: Any = 60, **settings: Any) -> Iterator[Engine]:
    """An engine over a store, with nothing left open at its end."""
    config = EngineConfig(pages, host, **SMALL)
    shared = SharedConfig(place, **({"wait": PATIENT} | settings))
    with Engine(model_of(name), config, shared=shared) as engine:
        yield engine
        assert_clean(engine)
        assert not engine.cache.open_finds() and not engine.cache.open_writers()


def cache_of(engine: Engine) -> SharedCache:
    assert engine.shared_side is not None
    return engine.shared_side.shared


def settle(engine: Engine) -> None:
    """Until everything has come and gone; with states that takes steps."""
    end = time.monotonic() + PATIENT
    while not cache_of(engine).wait_until_idle(0.01):
        engine.step()
        assert time.monotonic() < end
    engine.step()


def answer(engine: Engine, prompt: Sequence[int], count: int = 6, **options: Any) -> Run:
    run = engine.submit(list(prompt), plain(count), **options)
    engine.drain()
    assert run.error is None
    settle(engine)
    return run


@pytest.mark.parametrize("name", (*families.NAMES, *families.POOLED))
def test_the_second_engine_reuses_what_the_first_computed(name: str, tmp_path: Path) -> None:
    prompt = words(0, 100)
    with sharing(name, tmp_path) as first, sharing(name, tmp_path) as second:
        one = answer(first, prompt)
        before = second.stats.num_tokens
        two = answer(second, prompt)
        other = answer(second, (*prompt[:60], *words(500, 20)))
        assert one.reused == 0 and two.answers[0].tokens == one.answers[0].tokens
        assert two.reused == 96 and second.stats.num_tokens - before - len(other.prompt) + other.reused < 100
        for run in (one, two, other):
            assert_exact(name, [run])


def test_a_conversation_goes_on_at_the_other_engine(tmp_path: Path) -> None:
    with sharing("llama", tmp_path) as first, sharing("llama", tmp_path) as second:
        talk = list(words(0, 40))
        for turn in range(4):
            run = answer((first, second)[turn % 2], talk, 10)
            assert_exact("llama", [run])
            assert run.reused >= (len(talk) - 25) // 8 * 8 if turn else run.reused == 0
            talk = [*talk, *run.answers[0].tokens, *words(100 * turn, 12)]


def test_scopes_and_models_do_not_mix(tmp_path: Path) -> None:
    prompt = words(0, 60)
    with sharing("llama", tmp_path) as first, sharing("llama", tmp_path) as second:
        answer(first, prompt, scope=Scope(salt="a"))
        assert answer(second, prompt, scope=Scope(salt="b")).reused == 0
        assert answer(second, prompt, scope=Scope(salt="a")).reused == 56
        gone = cache_of(second).forget(Scope(salt="a"))
        assert gone.store >= 7
    with sharing("llama", tmp_path) as third:
        assert answer(third, prompt, scope=Scope(salt="a")).reused == 0
        assert answer(third, prompt, scope=Scope(salt="b")).reused == 56
    config = EngineConfig(40, 60, **SMALL)
    with Engine(
        from_module(families.build("llama", seed=2)), config, shared=SharedConfig(tmp_path, wait=PATIENT)
    ) as stranger:
        assert answer(stranger, prompt, scope=Scope(salt="b")).reused == 0
    with sharing("llama", tmp_path, namespace="other") as apart:
        assert answer(apart, prompt, scope=Scope(salt="b")).reused == 0


@pytest.mark.parametrize("name", (*families.NAMES, *families.POOLED))
def test_many_prompts_on_little_memory_are_answered_exactly(name: str, tmp_path: Path) -> None:
    """Pages come and go between store, host and device while others are computed."""
    dice = np.random.default_rng(5)
    pages = {
        "llama": (28, 24), "gemma3": ((28, 40), (24, 30)), "gemma3_pool": (90, 70), "qwen3_next": ((28, 14), (24, 10)),
    }[name]  # fmt: skip
    with sharing(name, tmp_path, *pages) as first, sharing(name, tmp_path, *pages) as second:
        runs = []
        prompts = [[*words(200 * n, 20 + 7 * n), *words(300 * n, 30)] for n in range(4)]
        for _ in range(2):
            for engine in (first, second):
                for _ in range(3):
                    prompt = prompts[int(dice.integers(4))]
                    runs.append(
                        engine.submit(prompt[: int(dice.choice([len(prompt), 30]))], plain(int(dice.integers(1, 8))))
                    )
            for engine in (first, second):
                engine.drain()
                settle(engine)  # what one has sent by now the other can have
        assert all(run.error is None for run in runs)
        for run in runs:
            assert_exact(name, [run])
        assert sum(cache_of(engine).counts().hits for engine in (first, second)) > 0


# -- waiting -----------------------------------------------------------------------------------------------------------


class HangingStore(FolderStore):
    """A folder that does not answer before it is told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gate, self.asked = Event(), Event()

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        self.asked.set()
        assert self.gate.wait(PATIENT)
        return super().exists_many(names, deadline)


@contextmanager
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: float) -> Iterator[tuple[Engine, HangingStore]]:
    with sharing("llama", tmp_path) as first:
        answer(first, words(0, 60))
    store = HangingStore(tmp_path)
    monkeypatch.setattr("quire.tiers.shared.shared_cache.open_store", lambda _: store)
    with sharing("llama", tmp_path, wait=wait) as engine:
        yield engine, store
        store.gate.set()
        assert cache_of(engine).wait_until_idle(PATIENT)


def test_a_request_waits_for_its_pages_and_no_step_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hanging(tmp_path, monkeypatch, PATIENT) as (engine, store):
        waits = engine.submit(words(0, 60), plain(4))
        for _ in range(5):
            report = engine.step()
            assert report is not None and report.num_tokens == 0
        later = engine.submit(words(900, 8), plain(4))  # no whole block before its last token: nothing to bring
        while not later.done:
            assert engine.step() is not None
        assert later.error is None and not waits.done and engine.scheduler.waiting == waits.branches
        store.gate.set()
        engine.drain()
        assert waits.reused == 56
        for run in (waits, later):
            assert_exact("llama", [run])


@pytest.mark.parametrize("looped", [False, True])
def test_an_engine_with_nothing_to_do_rests_until_pages_have_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looped: bool
) -> None:
    """Here it would rest for a minute: only who brings the pages ends that."""
    monkeypatch.setattr(outer_memory.OuterMemory.rest, "__defaults__", (PATIENT,))
    monkeypatch.setattr("quire.engine.loop.engine_thread.REST", PATIENT)
    with hanging(tmp_path, monkeypatch, PATIENT) as (engine, store), ThreadPoolExecutor(1) as threads:
        if looped:
            with Loop(engine) as loop:
                stream = loop.submit(words(0, 60), plain(4))
                store.gate.set()
                run = stream.wait(PATIENT / 2)
        else:
            run = engine.submit(words(0, 60), plain(4))
            drained = threads.submit(engine.drain)
            store.gate.set()
            drained.result(PATIENT / 2)
        assert run.reused == 56 and engine.stats.num_steps <= 8


class EndingStore(HangingStore):
    """A folder that comes to an end in some way when it is asked; then it has nothing more to bring."""

    def __init__(self, folder: Path, end: str) -> None:
        super().__init__(folder)
        self.end = end

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        there = super().exists_many(names, deadline)
        if self.end == "asking fails":
            raise OSError("no such host")
        return [False] * len(there) if self.end == "is empty" else there

    def get_many(self, names: Sequence[bytes], into: Sequence[Any], deadline: float) -> list[StoreMiss | None]:
        if self.end == "reading fails":
            raise OSError("connection reset")
        if self.end == "has lost them":
            return [StoreMiss.ABSENT] * len(names)
        if self.end == "has lost some":
            answers = super().get_many(names, into, deadline)
            return [*answers[:2], *[StoreMiss.ABSENT] * len(answers[2:])]
        return super().get_many(names, into, deadline)


ENDS = ("is empty", "asking fails", "reading fails", "has lost them", "has lost some", "has answered all")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
def test_a_wait_ends_when_nothing_can_come_any_more(
    name: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before its deadline, and before a rest is over, which takes minutes here: the engine sleeps until told."""
    with sharing(name, tmp_path) as first:
        answer(first, words(0, 60))
    store = EndingStore(tmp_path, end)
    monkeypatch.setattr("quire.tiers.shared.shared_cache.open_store", lambda _: store)
    monkeypatch.setattr("quire.engine.loop.engine_thread.REST", PATIENT)
    with sharing(name, tmp_path, wait=10 * PATIENT) as engine:
        steps, step = count(), engine.step
        monkeypatch.setattr(engine, "step", lambda: (next(steps), step())[1])
        with Loop(engine) as loop:
            stream = loop.submit(words(0, 80), plain(4))
            assert store.asked.wait(PATIENT)
            store.gate.set()
            run = stream.wait(PATIENT / 2)
            assert run.done and run.error is None, "it waits for what cannot come"
            assert next(steps) <= 16, "it spins"
        assert run.reused == {"has lost some": 16, "has answered all": 56}.get(end, 0) or name != "llama"
    assert_exact(name, [run])


def test_a_request_waits_no_longer_than_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hanging(tmp_path, monkeypatch, 0.05) as (engine, _):
        started = time.monotonic()
        run = engine.submit(words(0, 60), plain(4))
        engine.drain()
        assert time.monotonic() - started >= 0.05 and run.reused == 0
        assert_exact("llama", [run])


def test_a_request_that_is_cancelled_waits_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hanging(tmp_path, monkeypatch, PATIENT) as (engine, store):
        run = engine.submit(words(0, 60), plain(4))
        engine.step()
        (branch,) = run.branches
        assert engine.cancel(run) and branch.prefetch is None
        assert engine.step() is None
        store.gate.set()
        assert cache_of(engine).wait_until_idle(PATIENT)
        assert cache_of(engine).counts().hits == 0 and not engine.cache.open_finds()


def test_an_engine_closes_with_requests_that_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HangingStore(tmp_path)
    monkeypatch.setattr("quire.tiers.shared.shared_cache.open_store", lambda _: store)
    monkeypatch.setattr("quire.tiers.shared.shared_cache.CLOSING", 0.05)
    engine = Engine(model_of("llama"), EngineConfig(40, 60, **SMALL), shared=SharedConfig(tmp_path, wait=PATIENT))
    run = engine.submit(words(0, 60), plain(4))
    engine.step()
    engine.close()
    assert run.done and run.answers[0].finish == "cancelled"
    store.gate.set()


def test_nobody_fails_for_want_of_pages_that_wait_for_others(tmp_path: Path) -> None:
    """What came for a request that waits may have gone up to the device since; it is let go of before anybody fails."""
    with sharing("llama", tmp_path, pages=10, host=20) as engine:
        answer(engine, words(0, 60))

        class Holding:
            """Pages of the device, held for somebody who waits."""

            done = True

            def __init__(self) -> None:
                self.found = engine.cache.find(Request("held", np.array(words(0, 60), np.int32)))
                self.close = self.found.close

            def when_done(self, act: Callable[[], None]) -> None:
                act()

        old = engine.submit(words(300, 70), plain(4))
        young = engine.submit(words(600, 70), plain(4))
        assert cache_of(engine).wait_until_idle(PATIENT)
        young.branches[0].end_prefetch()
        young.branches[0].prefetch = Holding()
        assert engine.cache.num_free() < 9
        engine.drain()
        for run in (old, young):
            assert_exact("llama", [run])


def test_nobody_fails_for_want_of_pages_that_are_being_copied(tmp_path: Path) -> None:
    """Whoever sends pages holds them for a moment; a request that does not fit meanwhile fits later."""
    with sharing("llama", tmp_path, pages=10, host=20) as engine:
        answer(engine, words(0, 60))
        finds = cache_of(engine).finds
        found = finds.find(Request("copied", np.array(words(0, 60), np.int32)))
        run = engine.submit(words(300, 70), plain(4))
        assert cache_of(engine).wait_until_idle(PATIENT)
        for _ in range(4):
            engine.step()
            assert not run.done and run.branches[0].sequence is None
        finds.let_go(found)
        engine.drain()
        assert_exact("llama", [run])


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    config = EngineConfig(40, **SMALL)
    with pytest.raises(InputError, match="host_bytes"):
        Engine(model_of("llama"), config, shared=str(tmp_path))
    for wrong in (5, b"folder", "http://host", ""):
        with pytest.raises(InputError):
            LLM(model_of("llama"), shared=wrong)  # type: ignore[arg-type]


# -- processes ---------------------------------------------------------------------------------------------------------


@contextmanager
def stores(kind: str, tmp_path: Path) -> Iterator[str]:
    if kind == "folder":
        yield str(tmp_path / "pages")
        return
    if BINARY is None:
        pytest.skip(NO_REDIS)
    with tempfile.TemporaryDirectory(prefix="qr") as folder:
        server = RedisServer(Path(folder)).start()
        try:
            yield server.url
        finally:
            server.kill()


@pytest.mark.parametrize("kind", ["redis", pytest.param("folder", marks=pytest.mark.slow)])
def test_two_processes_and_one_store(kind: str, tmp_path: Path) -> None:
    """The first is another one and gets killed, the second is this one."""
    families.build("llama").save_pretrained(tmp_path / "model")
    prompt = list(words(0, 200))
    with stores(kind, tmp_path) as place:
        first = WorkerProcess("shared_worker", str(tmp_path / "model"), place)
        try:
            one = first.ask(prompt, 8)
        finally:
            first.kill()
        with LLM(tmp_path / "model", shared=SharedConfig(place, wait=PATIENT), device_bytes="64MiB") as second:
            (two,) = second.generate([prompt], max_tokens=8, temperature=0, ignore_eos=True)
            computed = second.loop.call(lambda engine: engine.stats.num_tokens)
    assert one["reused"] == 0 and one["sent"] == 12
    assert list(two.tokens[0]) == one["tokens"] and two.reused == 192
    assert computed == one["computed"] - 192


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "redis"])
@pytest.mark.skipif(bool(smollm2.missing()), reason="the embedded model is not installed")
def test_two_processes_with_the_embedded_model(kind: str, tmp_path: Path) -> None:
    prompt = "The history of the lighthouse keepers of the northern coast. " * 20
    with stores(kind, tmp_path) as place:
        answers = []
        for _ in range(2):
            worker = WorkerProcess("shared_worker", "smollm2", place)
            try:
                answers.append(worker.ask(prompt, 12))
            finally:
                worker.kill()
    one, two = answers
    assert two["tokens"] == one["tokens"] and one["reused"] == 0
    assert two["reused"] == (one["length"] - 1) // 16 * 16 and two["computed"] == one["computed"] - two["reused"]


def test_a_rest_ends_with_the_news_that_it_waits_for_and_not_with_older_ones() -> None:
    with Engine(model_of("llama"), EngineConfig(8, 0, **SMALL)) as engine:
        outer = engine.outer
        outer.tell_news()
        outer.rest(PATIENT)  # told before: at once
        waiting = Thread(target=outer.rest, args=(PATIENT,))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        outer.tell_news()
        waiting.join(PATIENT)
        assert not waiting.is_alive()


def test_a_rest_without_news_ends_by_itself() -> None:
    with Engine(model_of("llama"), EngineConfig(8, 0, **SMALL)) as engine:
        resting = Thread(target=engine.outer.rest, daemon=True)
        resting.start()
        resting.join(PATIENT / 2)
        assert not resting.is_alive()
