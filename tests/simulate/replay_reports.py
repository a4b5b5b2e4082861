"""What a replay reports of some workloads, by number: for a change that must change nothing but speed.

`python -m tests.simulate.replay_reports` writes `replay_reports.json` anew, after a change that was meant to do so.
"""

from __future__ import annotations

import hashlib
import json
import random
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from quire import RetainRange, Scope
from quire.simulate.play.trace_player import play
from quire.simulate.setup.replay_settings import Memory, ReplaySettings
from quire.simulate.setup.slow_pace import SlowPace
from quire.trace.read.trace import Trace, TraceRequest, read_trace

FILE = Path(__file__).parent / "replay_reports.json"
LATER = (  # reported since the digests were taken
    "compute_cost", "compute_cost_mean", "compute_cost_p99", "hints", "hit_rate_second_half",
)  # fmt: skip
TIMES = ("requests_per_second", "wall_requests_per_second", "cache_seconds", "wall_seconds")
NUMBERS = (
    "requests", "refused", "batches", "steps", "tokens_saved", "tokens_computed", "lost_reuse_tokens", "evictions",
    "dropped", "demoted", "onboarded_bytes", "offloaded_bytes", "preemptions", "recomputed_tokens", "restarts",
)  # fmt: skip


def written(seed: int, count: int) -> Trace:
    """Prompts that share beginnings, in two scopes, with priorities and retention: everything at once."""
    chance, now, requests = random.Random(seed), 0.0, []
    for number in range(count):
        now += chance.expovariate(30)
        length, topic = chance.randint(1, 12), 100 * chance.randrange(6)
        parts = [topic + place for place in range(length)]
        sizes = [10 + part * 7 % 60 for part in parts]
        if chance.random() < 0.7:
            parts[-1], sizes[-1] = 1000 + number, chance.randint(1, 90)
        retain = (RetainRange(0, 1 + chance.randrange(20), 70, 3.0),) if chance.random() < 0.2 else ()
        request = TraceRequest(
            number, now, np.array(parts, np.int64), sum(sizes), chance.randint(1, 120), 0, np.array(sizes, np.int64),
            Scope(chance.choice("ab")), chance.choice([0, 0, 0, 1, -1]), retain, chance.random() > 0.05, number + 1,
        )  # fmt: skip
        requests.append(request)
    return Trace("written", requests)


def tiers(device: int, host: int, disk: int = 0) -> tuple[Memory, ...]:
    """In blocks."""
    fast = (Memory("device", blocks=(device,)), Memory("host", blocks=(host,)))
    return (*fast, Memory("disk", blocks=(disk,), slow=True)) if disk else fast


def cases() -> Iterator[tuple[str, Trace, ReplaySettings]]:
    """A name, a trace and settings under which memory is short."""
    sample, mixed = read_trace("sample", limit=60), written(5, 120)
    usual = ReplaySettings(tiers=tiers(4000, 8000), eviction="lru")
    yield "sample", sample, usual
    yield "sample, adaptive", sample, replace(usual, eviction="adaptive")
    yield "sample, prompts only", sample, replace(usual, prefill_only=True)
    yield "sample, whole prompts", sample, replace(usual, token_budget=131072, max_chunk=None, batch=32)
    yield "sample, one at a time", sample, replace(usual, two_phase=False)
    yield "sample, disk", sample, replace(usual, tiers=tiers(4000, 4000, 20000), slow=SlowPace())
    tight = replace(usual, tiers=tiers(80, 200), token_budget=256, max_chunk=128, max_sequences=16)
    yield "written", mixed, tight
    yield "written, adaptive", mixed, replace(tight, eviction="adaptive")
    yield "written, receipts", mixed, replace(tight, receipts=True)
    yield "written, token by token", mixed, replace(tight, decode_stride=1)
    yield "written, three at once", mixed, replace(tight, max_sequences=3, speed=4.0)
    yield "written, disk", mixed, replace(tight, tiers=tiers(80, 80, 600), slow=SlowPace())


def report(trace: Trace, settings: ReplaySettings) -> dict[str, Any]:
    """Its main numbers, to see what has changed, and a digest of all it reports but how long it took."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = play(trace, settings).to_json()
    for name in (*TIMES, *LATER):
        del result[name]
    result["series"].pop("computed_by_cause", None)  # later, too
    digest = hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()[:16]
    return {**{name: result[name] for name in NUMBERS}, "ttft_ms": result["model"]["ttft_ms"], "all": digest}


if __name__ == "__main__":
    reports = {name: report(trace, settings) for name, trace, settings in cases()}
    FILE.write_text(json.dumps(reports, indent=1) + "\n", encoding="utf-8")
