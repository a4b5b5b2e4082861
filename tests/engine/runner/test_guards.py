"""What keeps a step from touching pages that are not its own: raised, not asserted. These run under `python -O` too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import Request, StateError  # noqa: E402
from quire.engine import Engine, EngineConfig, Model, Sampling  # noqa: E402
from quire.engine.model.layers import KvShape, Shape, StateShape  # noqa: E402
from quire.engine.model.packing import Segment, pack  # noqa: E402

FULL = KvShape("full", (0,), 1, 4)
STATE = StateShape("state", (1,), (4, 3), (1, 4, 4))


def open_engine(pages: Any, host: int = 0, shapes: tuple[Shape, ...] = (FULL,)) -> Engine:
    """One whose model never computes: every guard stands before it. A real one would take seconds to import."""
    config = SimpleNamespace(vocab_size=256)
    module = SimpleNamespace(
        dtype=torch.float32, device=torch.device("cpu"), config=SimpleNamespace(get_text_config=lambda: config)
    )
    model = Model(module, shapes, {}, frozenset(), 256, lambda _: torch.empty(0))
    return Engine(model, EngineConfig(pages, host, block_size=8, max_num_tokens=64, max_sequences=8, max_length=256))


def prompt(first: int, count: int) -> Any:
    return np.arange(first, first + count, dtype=np.int32)


def a_token_without_a_page() -> None:
    """Eight tokens have a page, the ninth has none: its KV would go to slot -1."""
    with open_engine(4) as engine:
        (sequence,) = engine.cache.add_sequence_batch([Request(1, prompt(20, 8))]).sequences
        pack(engine.cache, [0], [Segment(sequence.row, 0, np.full(8, 20, np.int32), 1)], torch.device("cpu"))
        with pytest.raises(StateError, match="a token to compute has no page; compute what admit or grow has given"):
            pack(engine.cache, [0], [Segment(sequence.row, 0, np.full(9, 20, np.int32), 1)], torch.device("cpu"))


def a_row_without_a_state() -> None:
    """A row that nobody holds has no state: it would be written over the last slot's."""
    with open_engine((4, 6), shapes=(FULL, STATE)) as engine:
        (sequence,) = engine.cache.add_sequence_batch([Request(1, prompt(20, 8))]).sequences
        segment = Segment(sequence.row, 0, np.full(1, 20, np.int32), 1)
        assert pack(engine.cache, [0, None], [segment], torch.device("cpu")).state_slots[1][0] >= 0
        with pytest.raises(StateError, match="a sequence to compute has no state"):
            pack(engine.cache, [None, None], [segment._replace(row=sequence.row + 1)], torch.device("cpu"))


def a_step_over_its_budget() -> None:
    """The scheduler works by other numbers than the engine: nothing of that step is computed."""
    with open_engine(24) as engine:
        run = engine.submit(prompt(20, 40), Sampling(max_tokens=4))
        engine.config = replace(engine.config, max_num_tokens=32)
        with pytest.raises(StateError, match="a step: 40 tokens are due, max_num_tokens is 32"):
            engine.step()
        if run.computed or engine.stats.num_steps:
            raise AssertionError("it has computed something")


def plans_out_of_order() -> None:
    """A plan that is to run now, while an earlier one has not finished."""
    with open_engine(4, 8) as engine:
        plans = []
        for number in range(2):
            request = Request(number, prompt(20 + 60 * number, 32))
            batch = engine.cache.add_sequence_batch([request])
            plans.append(batch.plan)
            engine.cache.commit(batch.sequences)
            engine.cache.release(batch.sequences[0])
        engine.plans.carry(plans[1])  # it offloads what the first one left
        again = engine.cache.add_sequence_batch([Request(9, prompt(150, 8))])
        with pytest.raises(StateError, match="1 earlier plans are still under way; plans run in the order they were"):
            engine.plans.run(again.plan)
        engine.plans.carry(again.plan)
        engine.plans.settle()


GUARDS: list[Callable[[], None]] = [
    a_token_without_a_page, a_row_without_a_state, a_step_over_its_budget, plans_out_of_order,
]  # fmt: skip


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.__name__)
def test_guards(guard: Callable[[], None]) -> None:
    guard()
