"""The engine loop of examples/: under every pressure its answers are those of the model alone."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import check
from quire.tiers import ArenaTier, Mover, PageLayout, TierError

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "engine.py"
MAX_LINES = 140


def example() -> Any:
    spec = importlib.util.spec_from_file_location("example_engine", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def alone(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """The model without any cache."""
    text = list(prompt)
    for _ in range(num_tokens):
        kv = total = 0
        for token in text:
            kv = model.kv_of(token, kv)
            total += kv
        text.append(total % model.VOCABULARY)
    return text


def served(model: Any, engine: Any, chance: random.Random) -> None:
    """Prompts with shared beginnings, some of them while others run; every answer is compared."""
    head = [chance.randrange(model.VOCABULARY) for _ in range(12)]
    wanted = {}
    for nth in range(14):
        prompt = head[: chance.randrange(1, 13)] + [chance.randrange(model.VOCABULARY) for _ in range(nth % 9)]
        num_tokens = chance.randrange(1, 14)
        engine.submit(f"r{nth}", prompt, num_tokens)
        wanted[f"r{nth}"] = alone(model, prompt, num_tokens)
        if nth % 3 == 0:
            engine.step()
    for _ in range(500):
        if not engine.waiting and not engine.running:
            break
        engine.step()
        check(engine.cache)
    assert engine.texts == wanted


@pytest.mark.parametrize("seed", range(12))
def test_its_answers_are_those_of_the_model_alone(seed: int) -> None:
    model, chance = example(), random.Random(seed)
    engine = model.Engine(chance.choice([12, 16, 24]), chance.choice([0, 6, 30]), chance.choice([4, 8, 40]))
    with engine.mover:
        served(model, engine, chance)
    assert engine.reused and engine.events


def test_pressure_makes_it_suspend_and_onboard() -> None:
    model = example()
    engine = model.Engine(12, 30, 8)
    with engine.mover:
        served(model, engine, random.Random(3))
        assert engine.suspended and engine.mover.stats().bytes_moved[1, 0]


class Unlucky:
    """A host whose slots cannot be read now and then."""

    def __init__(self, slots: int, page_bytes: int, chance: random.Random) -> None:
        self.tier, self.chance, self.failed = ArenaTier("host", [slots], [page_bytes]), chance, 0
        self.info, self.write, self.close = self.tier.info, self.tier.write, self.tier.close

    def read(self, group: int, slots: Any, out: Any) -> None:
        self.tier.read(group, slots, out)
        if wrong := {slot: "worn out" for slot in slots if self.chance.random() < 0.5}:
            self.failed += len(wrong)
            raise TierError("host", group, wrong)


def unlucky(model: Any, engine: Any, chance: random.Random) -> Unlucky:
    """Its host from now on."""
    page_bytes = 8 * model.BLOCK
    host, device = Unlucky(30, page_bytes, chance), ArenaTier.over("device", [engine.pages.view(np.uint8)])
    engine.mover.close()
    engine.mover = Mover([device, host], [PageLayout(page_bytes, planes=1)], model.BLOCK)
    return host


@pytest.mark.parametrize("seed", [0, 1, 2, 4, 5])
def test_pages_that_cannot_be_read_cost_time_and_no_answer(seed: int) -> None:
    model, chance = example(), random.Random(seed)
    engine = model.Engine(12, 30, 8)
    host = unlucky(model, engine, chance)
    with engine.mover:
        served(model, engine, chance)
    assert host.failed


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example that runs one step ahead; it imports the other one as its neighbour."""
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    monkeypatch.setitem(sys.modules, "engine", example())
    spec = importlib.util.spec_from_file_location("example_overlap", EXAMPLE.with_name("overlap.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module


@pytest.mark.parametrize("seed", range(6))
def test_one_step_ahead_the_answers_are_the_same(ahead: Any, seed: int) -> None:
    model, chance = sys.modules["engine"], random.Random(seed)
    engine = ahead.AheadEngine(chance.choice([12, 16, 24]), chance.choice([0, 6, 30]), chance.choice([4, 8, 40]))
    with engine.mover:
        served(model, engine, chance)
    assert engine.reused and engine.events


@pytest.mark.parametrize("seed", range(3))
def test_one_step_ahead_pages_that_cannot_be_read_cost_no_answer(ahead: Any, seed: int) -> None:
    model, chance = sys.modules["engine"], random.Random(seed)
    engine = ahead.AheadEngine(12, 30, 8)
    host = unlucky(model, engine, chance)
    with engine.mover:
        served(model, engine, chance)
    assert host.failed and engine.suspended


def test_a_request_that_can_never_fit_is_told() -> None:
    model = example()
    engine = model.Engine(2, 0, 8)
    engine.submit("long", list(range(40)), 4)
    engine.submit("short", [1, 2, 3], 2)
    engine.submit("grows", [1, 2, 3], 6)  # its prompt fits, its answer does not
    with engine.mover:
        while engine.waiting or engine.running:
            engine.step()
    assert sorted(engine.failed) == ["grows", "long"] and "needs 11 slots" in engine.failed["long"]
    assert engine.texts["short"] == alone(model, [1, 2, 3], 2)


@pytest.mark.parametrize("name", ["engine.py", "overlap.py"])
def test_it_runs_as_it_is_told_to_and_is_short(name: str) -> None:
    path = EXAMPLE.with_name(name)
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0 and "12 answers" in ran.stdout, ran.stderr
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES
