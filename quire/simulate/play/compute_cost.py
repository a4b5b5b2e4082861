"""What computing a part of a prompt costs, in tokens: a token at position p costs 1 + p / D of one at the start.

The part of a layer that is linear costs the same everywhere, attention grows with what is before a token, and at D
tokens (`compute_doubles_at`; 30,000 in a model of 8B parameters) both cost the same. So what is lost deep inside a long
prompt is dearer.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def cost_of(start: int, end: int, doubles_at: int) -> float:
    """Token-equivalents of the tokens from `start` to `end`."""
    return (end - start) * (1 + (start + end) / (2 * doubles_at))


class CostTally:
    """Adds up what prompts cost at their first admission."""

    def __init__(self, doubles_at: int) -> None:
        self._costs: list[float] = []
        self._doubles_at = doubles_at

    def add(self, start: int, end: int) -> None:
        """A prompt, of which so much was found."""
        self._costs.append(cost_of(start, end, self._doubles_at))

    def to_json(self) -> dict[str, Any]:
        """Of all prompts together, of one in the mean, and of the dearest in a hundred."""
        costs = np.array(self._costs or [0.0])
        names = ("compute_cost", "compute_cost_mean", "compute_cost_p99")
        numbers = (costs.sum(), costs.mean(), np.percentile(costs, 99))
        return {name: round(float(number), 1) for name, number in zip(names, numbers, strict=True)}
