"""cache_faults: blocks so large that what prompts share ends inside the first ones (it needs tokens of some prompts),
and a memory that cannot keep one prompt while another runs; of larger ones `quire sweep` says more."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quire.insight.findings.exact import equal_tokens
from quire.insight.findings.finding import Fetch, Finding, at_least
from quire.insight.findings.prompt_rows.lost_text import LostText
from quire.insight.findings.prompt_rows.prompt_log import PromptLog
from quire.insight.findings.prompt_rows.window import Window

SAMPLE, NEIGHBOURS = 256, 4
LEAST_GAIN = 0.1  # of the prompt tokens
ENOUGH = 0.9  # of what the smallest blocks, or the largest memory, bring
PROMPTS = 2  # of the mean length: a memory for less is too small, whatever the traffic is
SMALLEST = 16  # tokens


def large_blocks(log: PromptLog, lost: LostText, block_size: int, fetch: Fetch) -> list[Finding]:
    """Whether smaller blocks would share more, were nothing forgotten."""
    if block_size <= SMALLEST or len(log) < SAMPLE // 4:
        return []
    shared, lengths, lines = [], [], []
    for request, common in _shared(log, lost, fetch):
        shared.append(common)
        lengths.append(int(log.lengths[request]))
        lines.append(int(log.lines[request][0]))
    tokens, total = np.array(shared), max(sum(lengths), 1)
    rates = {}
    size = block_size
    while size >= SMALLEST:
        rates[size] = float((tokens // size * size).sum() / total)
        size //= 2
    least = min(rates)
    if rates[least] - rates[block_size] < LEAST_GAIN:
        return []
    enough = rates[block_size] + ENOUGH * (rates[least] - rates[block_size])
    better = max(size for size, rate in rates.items() if rate >= enough)
    hurt = int((tokens // better * better - tokens // block_size * block_size > 0).sum())
    middle = int(np.median(tokens[tokens > 0])) if (tokens > 0).any() else 0
    text = f"Blocks of {block_size:,} tokens are too large: what prompts share ends inside one (at token {middle:,} in "
    return [
        Finding(
            "blocks", text + "the middle).", f"Use blocks of {better:,} tokens.", 1.0, hurt / len(tokens),
            rates[block_size], rates[better], at_least(hurt, len(tokens)), None, middle, None, tuple(lines[:3]),
            int(log.lengths.sum()), {"block_size": better},
        )
    ]  # fmt: skip


def _shared(log: PromptLog, lost: LostText, fetch: Fetch) -> Iterator[tuple[int, int]]:
    """Some requests, and how many leading tokens each shares with an earlier one of its scope."""
    places = np.linspace(NEIGHBOURS, len(log) - 1, min(len(log) - NEIGHBOURS, SAMPLE)).astype(np.int64)
    others = {}
    for request in np.unique(places).tolist():
        chosen = set(range(request - NEIGHBOURS, request))
        first = int(log.starts[request])
        deepest = first + int(lost.found[first : int(log.starts[request + 1])].sum()) - 1
        if deepest >= first:
            chosen.add(int(lost.continued[deepest]))
        others[request] = [other for other in chosen if log.scopes[other] == log.scopes[request]]
    tokens = fetch(sorted({one for request, many in others.items() for one in (request, *many)}))
    for request, many in others.items():
        yield request, max((equal_tokens(tokens[request], tokens[other]) for other in many), default=0)


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
