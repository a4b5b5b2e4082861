"""small_memory: a memory that cannot keep one prompt while another runs. Of larger ones `quire sweep` says more."""

from __future__ import annotations

import numpy as np

from quire.insight.findings.finding import Finding, at_least
from quire.insight.findings.prompt_rows.window import Window

PROMPTS = 2  # of the mean length: less is too small, whatever the traffic is
LEAST_GAIN = 0.1  # of all prompt tokens
ENOUGH = 0.9  # of what the largest brings


def small_memory(window: Window) -> list[Finding]:
    """Whether more would be found in a memory that is some times as large."""
    mean = float(window.lengths.mean())
    if window.capacity >= PROMPTS * mean:
        return []
    plain, every = window.hits(), np.ones(len(window), bool)
    before, most = window.rate(plain, every), window.rate(window.hits_in(int(window.lengths.sum())), every)
    if most - before < LEAST_GAIN:
        return []
    size, found = window.capacity, plain
    while window.rate(found, every) < before + ENOUGH * (most - before):
        size *= 2
        found = window.hits_in(size)
    hurt = found > plain
    text = (
        f"The memory holds {window.capacity:,} tokens, a prompt has {mean:,.0f} in the mean: it cannot keep one while "
        "another runs."
    )
    return [
        Finding(
            "memory", text, f"Give the cache memory for {size:,} tokens; quire sweep shows what each size brings.",
            1.0, float(hurt.mean()), before, window.rate(found, every), at_least(int(hurt.sum()), len(window)),
            None, None, None, tuple(window.lines[np.flatnonzero(hurt)[:3]].tolist()), int(window.lengths.sum()),
            {"memory_tokens": size},
        )
    ]  # fmt: skip
