"""Tally: counts while a replay runs. Result: everything counted, for people, pages and machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from quire import CacheConfig, Counts
from quire.tools.replay.play.admission import Outcome
from quire.tools.replay.play.decode import Run
from quire.tools.replay.play.pace import NOTE
from quire.tools.replay.play.series import Series
from quire.tools.replay.play.timed_cache import Door
from quire.tools.replay.settings import Settings
from quire.tools.replay.units import Int64
from quire.tools.replay.workload.trace import Trace


@dataclass(frozen=True, slots=True)
class Result:
    """What a replay counted. The names are those of the JSON."""

    trace: str
    admission: str
    requests: int  # served to the end
    refused: int  # that can never fit, and never ran
    skipped_lines: int
    requests_per_second: float  # by the time inside cache calls, one core
    wall_requests_per_second: float
    cache_seconds: float
    wall_seconds: float
    batches: int  # steps that admitted something
    steps: int  # that computed prompt tokens
    broken_promises: int
    worst_overshoot_tokens: int
    over_budget: int  # steps that computed more prompt tokens than the budget
    lost_reuse_tokens: int  # counted on when the batch was chosen, gone when it was admitted
    prompt_tokens: int
    tokens_saved: int
    tokens_computed: int  # of prompts, by all steps
    hit_rate: float  # of the requests that ran
    hit_rate_of_trace: float  # of all requests: a refused one is missed
    hit_rate_by_tier: dict[str, float]
    hit_rate_by_group: dict[str, float]  # blocks reused / asked for
    block_hit_rate: float  # whole blocks of the trace's own size
    trace_blocks: int  # whole ones
    trace_blocks_hit: int
    evictions: int  # device slots taken from cached pages
    dropped: int  # pages lost with their last copy
    demoted: int  # evicted for nothing: a colder copy was there
    onboarded_bytes: int
    offloaded_bytes: int
    preemptions: int
    recomputed_tokens: int  # by resumed requests: what they had computed before
    restarts: int  # resumed requests that no longer fit with their answers, and began again
    generated_tokens: int
    model: dict[str, Any]
    settings: dict[str, Any]
    series: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        return asdict(self)


class Tally:
    """Counts one replay."""

    def __init__(self, trace: Trace, settings: Settings, config: CacheConfig, times: list[float]) -> None:
        self.trace, self.settings, self.config, self.times = trace, settings, config, times
        self.unit = trace.unit or config.block_size
        self.counts: Counter[str] = Counter()
        self.worst = 0
        self.ttft: list[float] = []
        self.last = 0.0
        full = [n for n, group in enumerate(config.groups) if group.kind == "full"]
        self.measure = full[0] if full else 0  # the group that says from which tiers a prompt came
        self.by_tier = np.zeros(len(config.tiers), np.int64)
        self.no_tier = np.zeros(len(config.tiers), np.int64)
        self.by_group = np.zeros((len(config.groups), 2), np.int64)  # blocks reused, and asked for
        self.reached: dict[Hashable, int] = {}  # tokens that a request has had computed so far, by ask
        self.series = Series(config, times[-1] if times else 0.0)

    def admit(self, now: float, run: Run) -> None:
        """A request was admitted; of a resumed one only what others have computed for it meanwhile counts."""
        sequence, ask = run.sequence, run.waiting.ask
        start = sequence.computed
        if run.waiting.again:
            more = start - self.reached[ask.number]
            if more > 0:
                self.counts["saved"] += more
                self.by_tier += self._in_proportion(more, sequence.counts(self.measure))
                self.reached[ask.number] = start
            return
        self.reached[ask.number] = start
        pages = [sequence.counts(group) for group in range(len(self.config.groups))]
        tiers = self._by_tier(start, pages[self.measure]) if start else self.no_tier
        self.by_tier += tiers
        self.by_group += [(count.reused, count.reused + count.missed) for count in pages]
        self.counts["prompt"] += ask.length
        self.counts["saved"] += start
        self.counts["blocks"] += ask.length // self.unit
        self.counts["blocks hit"] += start // self.unit
        self.series.admit(now, ask.length, tiers, pages)

    def _by_tier(self, start: int, counts: Counts) -> Int64:
        """Tokens of a hit by the tier they came from: exact for full attention, in proportion otherwise."""
        if self.config.groups[self.measure].kind == "full":
            pages = np.array(counts.reused_from, np.int64)
            partial = np.array(counts.partial_from, np.int64)
            tokens: Int64 = (pages - partial) * self.config.block_size + partial * (start % self.config.block_size)
            return tokens
        return self._in_proportion(start, counts)

    def _in_proportion(self, num_tokens: int, counts: Counts) -> Int64:
        pages = np.array(counts.reused_from, np.int64)
        if not pages.sum():
            pages[0] = 1
        tokens: Int64 = num_tokens * pages // int(pages.sum())
        tokens[0] += num_tokens - tokens.sum()
        return tokens

    def step(self, now: float, outcome: Outcome) -> None:
        """A step was decided."""
        tokens = outcome.num_tokens
        if not outcome.edges:
            return
        budget = self.settings.token_budget
        beyond = 0 if budget is None else max(0, tokens - budget)
        overshoot = max(outcome.overshoot, beyond)
        self.worst = max(self.worst, overshoot)
        self.counts["steps"] += 1
        self.counts["batches"] += bool(outcome.admitted)
        self.counts["broken"] += overshoot > 0
        self.counts["over budget"] += beyond > 0
        self.counts["lost"] += outcome.lost
        self.counts["computed"] += tokens
        for sequence, start, end in outcome.edges:
            before = self.reached[sequence.id]
            self.counts["recomputed"] += max(0, min(end, before) - start)
            self.reached[sequence.id] = max(end, before)
        self.series.step(now, bool(outcome.admitted), overshoot)

    def moved(self, now: float, up: list[int], down: list[int]) -> None:
        """Bytes went between tiers."""
        self.last = now
        self.series.moved(now, sum(up), sum(down))

    def first_token(self, now: float, run: Run) -> None:
        """A prompt is computed; a resumed one may have had its first token before."""
        if not run.waiting.answered:
            run.waiting.answered = True
            self.ttft.append(now - self.times[run.waiting.ask.number])

    def end(self, now: float, run: Run) -> None:
        """A request is done."""
        self.last = now
        del self.reached[run.waiting.ask.number]
        self.counts["served"] += 1
        self.counts["generated"] += 0 if self.settings.prefill_only else run.waiting.ask.output

    def refuse(self, now: float) -> None:
        """A request can never fit."""
        self.last = now
        self.counts["refused"] += 1

    def preempt(self, run: Run, computed: int) -> None:
        """A running request made room for others; it has KV of so many tokens."""
        number = run.waiting.ask.number
        self.reached[number] = max(self.reached[number], computed)
        self.counts["preempted"] += 1

    def restart(self) -> None:
        """A preempted request begins again."""
        self.counts["restarts"] += 1

    def look(self, now: float, door: Door) -> None:
        """See how full the tiers are, now and then."""
        self.series.look(now, door.cache)

    def result(self, door: Door, wall: float) -> Result:
        """Everything counted."""
        counts, config = self.counts, self.config
        pages = [door.cache.stats(group) for group in range(len(config.groups))]
        seconds = door.ns / 1e9
        return Result(
            trace=self.trace.name,
            admission=self.settings.admission,
            requests=counts["served"],
            refused=counts["refused"],
            skipped_lines=len(self.trace.skipped),
            requests_per_second=counts["served"] / max(seconds, 1e-9),
            wall_requests_per_second=counts["served"] / max(wall, 1e-9),
            cache_seconds=seconds,
            wall_seconds=wall,
            batches=counts["batches"],
            steps=counts["steps"],
            broken_promises=counts["broken"],
            worst_overshoot_tokens=self.worst,
            over_budget=counts["over budget"],
            lost_reuse_tokens=counts["lost"],
            prompt_tokens=counts["prompt"],
            tokens_saved=counts["saved"],
            tokens_computed=counts["computed"],
            **self._hit_rates(),
            block_hit_rate=counts["blocks hit"] / max(counts["blocks"], 1),
            trace_blocks=counts["blocks"],
            trace_blocks_hit=counts["blocks hit"],
            **_moves(pages),
            preemptions=counts["preempted"],
            recomputed_tokens=counts["recomputed"],
            restarts=counts["restarts"],
            generated_tokens=counts["generated"],
            model=self._model(),
            settings={"trace": self.trace.name, **self.settings.to_json()},
            series=self.series.to_json(),
        )

    def _hit_rates(self) -> dict[str, Any]:
        """Tokens saved / asked for; blocks of each group the same at first admissions, as in the series."""
        saved, prompt = self.counts["saved"], max(self.counts["prompt"], 1)
        tiers = zip(self.config.tiers, self.by_tier.tolist(), strict=True)
        groups = zip(self.config.groups, self.by_group.tolist(), strict=True)
        return {
            "hit_rate": saved / prompt,
            "hit_rate_of_trace": saved / max(self.trace.num_tokens, 1),
            "hit_rate_by_tier": {tier.name: tokens / prompt for tier, tokens in tiers},
            "hit_rate_by_group": {group.name: reused / max(asked, 1) for group, (reused, asked) in groups},
        }

    def _model(self) -> dict[str, Any]:
        """Times of the modelled engine."""
        waits = np.array(self.ttft or [0.0]) * 1000
        p50, p90, p99 = (round(float(wait), 3) for wait in np.percentile(waits, [50, 90, 99]))
        tokens = self.counts["prompt"] + self.counts["generated"]
        return {
            "note": NOTE,
            "seconds": round(self.last, 3),
            "ttft_ms": {"mean": round(float(waits.mean()), 3), "p50": p50, "p90": p90, "p99": p99},
            "throughput_tokens_per_second": round(tokens / max(self.last, 1e-9), 3),
            "generated_tokens_per_second": round(self.counts["generated"] / max(self.last, 1e-9), 3),
        }


def _moves(pages: Sequence[Counts]) -> dict[str, Any]:
    """What making room and bringing pages up took, all groups together."""
    return {
        "evictions": sum(count.allocated - count.allocated_new for count in pages),
        "dropped": sum(count.dropped for count in pages),
        "demoted": sum(count.demoted for count in pages),
        "onboarded_bytes": sum(count.onboarded_bytes for count in pages),
        "offloaded_bytes": sum(count.offloaded_bytes for count in pages),
    }
