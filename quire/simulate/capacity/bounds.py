"""Bounds: what no fleet can be below, whatever its memory and its router. Plays nothing.

    a first token    no sooner than its prompt's new tokens are computed on one worker that has nothing else to do, and
                     than any step takes
    workers          no fewer than can compute all new tokens once, from the first arrival to the last first token

New are tokens that stand behind no equal beginning of an earlier request: a cache that forgets nothing computes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from quire.simulate.setup.replay_settings import ReplaySettings
from quire.trace.read.trace import Trace


@dataclass(frozen=True, slots=True)
class Bounds:
    """For one trace, one engine and one objective."""

    seconds: float = 0.0  # of the first token that the objective is about
    workers: int = 1


NO_BOUNDS = Bounds()


def find_bounds(trace: Trace, settings: ReplaySettings, seconds: float, percent: float) -> Bounds:
    """Of the `percent`-th first token, and of the workers that bring it within so many seconds."""
    tokens, rate = new_tokens(trace), settings.pace.prefill_tokens_per_second
    in_time = floor((len(trace) - 1) * percent / 100) + 1  # at least so many: the others may be the longest
    work = int(np.sort(tokens)[:in_time].sum())
    window = settings.times(trace)[-1] + seconds
    alone = max(float(np.percentile(tokens, percent)) / rate, settings.pace.least)
    return Bounds(alone, max(1, ceil(work / rate / window)))


def new_tokens(trace: Trace) -> NDArray[np.int64]:
    """Of each prompt, those that have to be computed although nothing is forgotten; at least the last one."""
    longest: dict[tuple[int, int], int] = {}  # of a part behind a beginning
    beginnings: dict[object, int] = {}  # a scope, or a beginning, a part and its size
    reused = np.empty(len(trace), np.int64)
    for nth, request in enumerate(trace):
        known, shared = request.reuse, 0
        node = beginnings.setdefault(request.scope, len(beginnings)) if known else -1
        for part, size in zip(request.parts.tolist(), request.sizes.tolist(), strict=True):
            if node < 0:
                break
            before = longest.get((node, part), 0)
            longest[node, part] = max(before, size)
            shared += min(before, size) if known else 0
            known = known and (node, part, size) in beginnings
            node = beginnings.setdefault((node, part, size), len(beginnings))
        reused[nth] = max(request.length - shared, 1)
    return reused
