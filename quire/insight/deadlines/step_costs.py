"""StepCosts: what a step takes, learned from the steps that ran. Owns samples and weights; knows no engine, no clock.

seconds of a step = base + tokens + attended + rows + context + bytes + slow bytes, each times a weight from 0 on

Kept are the last samples of every size of step, so that hours of decoding do not push out what a prompt costs. A fit
weighs errors by the length of the step: one that took ten times too long counts as one that was wrong, not as ten.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

KEPT = 64  # samples of one size of step; a size is a power of two of its prompt tokens
SIZES = 24
FEWEST = 24  # steps, and ...
FEWEST_PROMPTS = 8  # ... steps with prompt tokens among them, before anything is known
REFIT = 32  # steps between two fits
SWEEPS = 60
HALF = 256  # steps behind which a sample counts half as much, so that a machine that became slower is noticed ...
LEAST = 1e-3  # ... down to this, since it may be the last one of its size
Weights = tuple[float, float, float, float, float, float, float]
Numbers = NDArray[np.float64]


class StepWork(NamedTuple):
    """What one step does, or many steps together."""

    tokens: float = 0.0  # of prompts, computed
    attended: float = 0.0  # sum over them of the tokens before each
    rows: float = 0.0  # sequences that decode a token
    context: float = 0.0  # tokens that those read
    bytes: float = 0.0  # of pages that are read from colder tiers, but for a slow one
    slow_bytes: float = 0.0  # that come from the slow tier meanwhile: their price is another

    def plus(self, other: StepWork) -> StepWork:
        """Both together."""
        a, b = self, other
        return StepWork(
            a.tokens + b.tokens, a.attended + b.attended, a.rows + b.rows, a.context + b.context, a.bytes + b.bytes,
            a.slow_bytes + b.slow_bytes,
        )  # fmt: skip


def prompt_work(start: int, end: int, num_bytes: float = 0.0) -> StepWork:
    """To compute the tokens of a prompt from `start` to `end`, and to bring up so many bytes before."""
    return StepWork(end - start, (end - start) * (start + end) / 2, bytes=num_bytes)


class StepCosts:
    """Learns from `note`; `seconds` says what work will take on average, once `ready`."""

    def __init__(self) -> None:
        self._samples: list[deque[tuple[float, ...]]] = [deque(maxlen=KEPT) for _ in range(SIZES)]
        self._weights: Weights = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        self._ready = False
        self._fresh = 0  # samples since the last fit
        self.num_steps = 0
        self.modelled = 0.0  # seconds that all steps since the first fit should have taken

    def __repr__(self) -> str:
        state = "calibrated" if self.ready else "not calibrated yet"
        return f"StepCosts({self.num_steps} steps, {state})"

    @property
    def ready(self) -> bool:
        """Enough has been seen to say anything."""
        if not self._ready:
            prompts = sum(len(some) for some in self._samples[1:])
            self._ready = prompts >= FEWEST_PROMPTS and prompts + len(self._samples[0]) >= FEWEST
        return self._ready

    def note(self, work: StepWork, seconds: float, count: int = 1) -> None:
        """A step has done this in so many seconds; or so many steps did, each."""
        if not 0.0 < seconds < 1e9:
            return  # a clock that stands still, or goes back
        size = min(int(work.tokens).bit_length(), SIZES - 1)
        self.num_steps += count
        self._samples[size].append((self.num_steps, 1.0, *work, seconds))
        self._fresh += 1
        self.modelled += count * _times(self._weights, 1.0, work)

    def seconds(self, work: StepWork, steps: float = 1.0) -> float:
        """What so many steps take that do this together; 0 before it is ready."""
        if self._fresh >= REFIT or (self._fresh and not self._weights[0] and not self._weights[1]):
            self._fit()
        return _times(self._weights, steps, work)

    def _fit(self) -> None:
        rows = [sample for some in self._samples for sample in some]
        table: Numbers = np.array(rows, np.float64)
        age, features, seconds = self.num_steps - table[:, 0], table[:, 1:-1], table[:, -1]
        trust: Numbers = np.maximum(0.5 ** (age / HALF), LEAST)
        scale = np.maximum(features.max(axis=0), 1e-12)
        relative = features / scale / seconds[:, None]
        found = _least_squares((relative.T * trust) @ relative, trust @ relative) / scale
        base, tokens, attended, decoding, context, moved, slow = found.tolist()
        self._weights = (base, tokens, attended, decoding, context, moved, slow)
        self._fresh = 0


def _times(weights: Weights, steps: float, work: StepWork) -> float:
    base, tokens, attended, rows, context, moved, slow = weights
    return (
        base * steps + tokens * work.tokens + attended * work.attended + rows * work.rows
        + context * work.context + moved * work.bytes + slow * work.slow_bytes
    )  # fmt: skip


def _least_squares(gram: Numbers, sums: Numbers) -> Numbers:
    """Weights from 0 on with the least sum of squared errors, one weight after the other, again and again."""
    count = len(sums)
    rows, wanted = (gram + np.eye(count) * (1e-9 * max(float(gram.trace()), 1e-300))).tolist(), sums.tolist()
    weights = [0.0] * count
    for _ in range(SWEEPS):
        for nth in range(count):
            row = rows[nth]
            rest = wanted[nth] - sum([a * b for a, b in zip(row, weights, strict=True)]) + row[nth] * weights[nth]
            weights[nth] = max(0.0, rest / row[nth])
    return np.array(weights)
