"""When the first token came: when its value was on the host, not when a device was told to compute it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire.engine import Engine, EngineConfig, Model, Run, Sampling, from_module

from .. import families
from ..steps import SMALL, plain, words

QUEUED, COMPUTED = 1.0, 64.0  # seconds to queue a forward, and until its numbers are there


class Time:
    """A clock that only work moves on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Late(torch.Tensor):  # type: ignore[misc]
    """Numbers of a device that is still computing: whoever wants them on the host waits, the first time."""

    time: Time
    due = 0.0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in ("tolist", "numpy", "cpu", "item", "__bool__"):
            cls.time.now = max(cls.time.now, cls.due)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.fixture(scope="module")
def model() -> Model:
    return from_module(families.build("llama"))


@pytest.fixture
def time(model: Model) -> Iterator[Time]:
    """Of a model that computes in the background, as a GPU does."""
    Late.time = made = Time()

    def queue(module: Any, given: Any, out: Any) -> Any:
        made.now += QUEUED
        Late.due = made.now + COMPUTED
        out.logits = out.logits.as_subclass(Late)
        return out

    hook = model.module.register_forward_hook(queue)
    yield made
    hook.remove()


SAMPLINGS = {
    "greedy": plain(3),
    "sampled": plain(3, temperature=1.0, top_p=0.9, seed=1),
    "several": plain(3, temperature=1.0, n=2, seed=1),
    "beams": plain(3, beams=2),
    "drafts": plain(3, drafts=2),
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_the_first_token_is_there_when_the_host_has_it(model: Model, time: Time, sampling: Sampling) -> None:
    heard: list[float] = []

    class Hears:
        def hear(self, run: Run, branch: int, tokens: list[int]) -> bool:
            heard.append(time.now)
            return False

        def over(self, run: Run) -> None:
            pass

    with Engine(model, EngineConfig(24, **SMALL), clock=time) as engine:
        run = engine.submit(words(0, 20), sampling, listener=Hears())
        engine.step()
        assert run.time_to_first_token == QUEUED + COMPUTED
        assert heard[:1] in ([], [run.times.first_token])  # beams are told at the end
        engine.drain()
        assert run.time_to_first_token == QUEUED + COMPUTED and run.times.finished > run.times.first_token


def test_a_run_whose_logits_are_no_numbers_has_no_first_token(model: Model, time: Time) -> None:
    def spoil(module: Any, given: Any, out: Any) -> None:
        out.logits.fill_(math.nan)

    hook = model.module.register_forward_hook(spoil)
    try:
        with Engine(model, EngineConfig(24, **SMALL), clock=time) as engine:
            run = engine.submit(words(0, 20), plain(3))
            engine.drain()
    finally:
        hook.remove()
    assert run.error is not None and math.isnan(run.time_to_first_token)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_a_gpu_it_waits_for_the_kernels() -> None:
    """The device is kept busy behind the forward; its own clock says how long."""
    model = from_module(families.build("llama").to("cuda"))
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def keep_busy(module: Any, given: Any, out: Any) -> Any:
        began.record()
        torch.cuda._sleep(1 << 29)  # cycles: a quarter of a second or so
        out.logits = out.logits + 0.0
        ended.record()
        return out

    with Engine(model, EngineConfig(24, **SMALL)) as engine:
        engine.warm_up()
        hook = model.module.register_forward_hook(keep_busy)
        run = engine.submit(words(0, 20), plain(1))
        engine.drain()
        hook.remove()
        torch.cuda.synchronize()
        assert run.time_to_first_token >= began.elapsed_time(ended) / 1000
