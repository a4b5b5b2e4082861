"""A recorded workload under pressure, on real bytes: no step exceeds its budget, and what was promised is reused."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire.trace.read.trace import TraceRequest, read_trace  # noqa: E402

from ...effort import slow  # noqa: E402
from ..families import FIRST_WORD, VOCAB  # noqa: E402
from ..steps import assert_exact, open_engine, plain, step  # noqa: E402

BUDGET = 96
PER_PART = 4  # tokens that stand for one part of a prompt
LEAST, MOST = 5, 50  # parts
NUM_ASKS = 100
INSIDE = 10  # runs in the engine at the same time


def returning() -> list[TraceRequest]:
    """Requests of the first conversations with several turns, in order of arrival."""
    asks = [ask for ask in read_trace("sample") if LEAST <= len(ask.parts) <= MOST]
    talks: dict[int, list[TraceRequest]] = defaultdict(list)
    for ask in asks:
        talks[int(ask.parts[1])].append(ask)
    several = [ask for talk in talks.values() if len(talk) > 1 for ask in talk]
    return sorted(several[:NUM_ASKS], key=lambda ask: ask.number)


def tokens_of(ask: TraceRequest) -> list[int]:
    """Equal parts, equal tokens."""
    rows = [random.Random(int(part)) for part in ask.parts]
    return [dice.randrange(FIRST_WORD, VOCAB) for dice in rows for _ in range(PER_PART)]


@pytest.mark.parametrize("chunk", [slow(None), 40])
def test_a_trace_with_a_host_tier(chunk: int | None) -> None:
    asks = returning()
    assert len(asks) == NUM_ASKS
    engine = open_engine("llama", 56, 300, max_num_tokens=BUDGET, max_chunk=chunk)
    waiting = [(tokens_of(ask), plain(1 + ask.output % 8, drafts=3 * (ask.number % 2))) for ask in asks]
    runs, near = [], 0
    while waiting or engine.runs:
        while waiting and len(engine.runs) < INSIDE:
            runs.append(engine.submit(*waiting.pop(0)))
        report = step(engine) if engine.stats.num_steps % 8 == 0 else engine.step()  # a whole check is slow
        assert report is not None and report.num_tokens <= BUDGET
        near += report.num_tokens > BUDGET - engine.config.block_size
        assert engine.stats.num_steps < 1500
    assert near > 8, "the budget was never in the way"
    assert engine.stats.num_tokens == sum(run.computed for run in runs)
    for run in runs:
        if not run.num_preemptions and not run.sampling.drafts:  # the promise, to the token
            assert run.computed == len(run.prompt) - run.reused + run.sampling.max_tokens - 1
    counts, moved = engine.cache.stats(), engine.pages.mover.stats().bytes_moved
    assert counts.onboarded > 10 and counts.offloaded > 100 and counts.dropped > 10, counts
    assert 0 < moved[1, 0] <= counts.onboarded_bytes and 0 < moved[0, 1] <= counts.offloaded_bytes
    assert sum(run.reused for run in runs) > 500 and engine.advance.num_accepted
    assert_exact("llama", runs)
    engine.close()
