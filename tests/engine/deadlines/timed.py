"""A tiny model that takes its time on a clock of the test's own, so that no test waits. Knows no deadlines."""

from __future__ import annotations

from typing import Any, cast

import torch

from quire.engine import EngineConfig, Model
from quire.engine.model.attention import AttentionStep
from quire.engine.runner.engine import Engine

from ..steps import SMALL, model_of

BASE, TOKEN = 0.004, 0.0002  # seconds of a step, and of each token in it


class Clock:
    """Seconds that pass when a model computes, or when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class TimedModel:
    """A model whose steps take `pace` times so long as they should."""

    def __init__(self, model: Model, clock: Clock) -> None:
        self._model, self._clock = model, clock
        self.pace = 1.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, given: AttentionStep) -> torch.Tensor:
        """As the model's, and later."""
        self._clock.now += self.pace * (BASE + TOKEN * int(given.packed.ids.numel()))
        return self._model.forward(given)


class TimedEngine(Engine):
    """An engine on its own clock."""

    def __init__(self, pages: Any, host: Any = 0, name: str = "llama", **settings: Any) -> None:
        self.time = Clock()
        self.timed = TimedModel(model_of(name), self.time)
        config = EngineConfig(pages, host, **(SMALL | {"deadlines": 0.9} | settings))
        super().__init__(cast(Model, self.timed), config, clock=self.time)

    def calibrate(self, number: int = 40) -> None:
        """Requests of many lengths, one after the other."""
        from quire.engine.sampling.params import Sampling

        for nth in range(number):
            self.submit([16 + nth % 90] * (3 + nth), Sampling(max_tokens=3, ignore_eos=True))
            self.drain()
        assert self.deadlines is not None and self.deadlines.door.costs.ready
