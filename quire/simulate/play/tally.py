"""Tally: counts while a replay runs. ReplayResult: everything counted, for people, pages and machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from quire import CacheConfig, Counts, Receipt
from quire.core.records.reports.stats import ReuseCounts
from quire.simulate.play.admission import AdmissionResult
from quire.simulate.play.compute_cost import CostTally
from quire.simulate.play.decoders import RunningRequest
from quire.simulate.play.hints import HintCounts
from quire.simulate.play.misses import MissTally, with_mark
from quire.simulate.play.series import Series
from quire.simulate.play.timed_cache import NONE_MOVED, BytesMoved, TimedCache
from quire.simulate.setup.engine_pace import NOTE
from quire.simulate.setup.replay_settings import ReplaySettings
from quire.trace.read.trace import Trace


@dataclass(frozen=True, slots=True)
class ReplayResult:
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
    hit_rate_second_half: float  # of the second half of all requests: the memory is full, an order has learned
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
    compute_cost: float  # of prompts, in tokens at the start of one: later ones cost more (compute_cost.py)
    compute_cost_mean: float
    compute_cost_p99: float
    hints: dict[str, int]  # how often each was given; empty without
    restarts: int  # resumed requests that no longer fit with their answers, and began again
    generated_tokens: int
    slow_tier: dict[str, Any]  # what a disk or a shared store has done; empty without one
    misses: dict[str, Any]  # tokens by cause; empty without receipts
    load: dict[str, Any]  # what the trace asks of the modelled engine, and what that can do
    model: dict[str, Any]
    settings: dict[str, Any]
    series: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        return asdict(self)


class Tally:
    """Counts one replay."""

    def __init__(
        self, trace: Trace, settings: ReplaySettings, config: CacheConfig, times: list[float], explain: int | None
    ) -> None:
        self._trace, self._settings, self._config, self._times = trace, settings, config, times
        self._unit = trace.unit or config.block_size
        self._counts: Counter[str] = Counter()
        self._half = len(trace) // 2
        self._worst = 0
        self._ttft: list[float] = []
        self._last = 0.0
        full = [n for n, group in enumerate(config.groups) if group.kind == "full"]
        self.measure = full[0] if full else 0  # the group that says from which tiers a prompt came
        self._is_exact = bool(full)  # token by token
        self._groups = range(len(config.groups))
        self._no_tokens = [0] * len(config.tiers)
        self._tier_tokens = [0] * len(config.tiers)
        self._group_blocks = [0] * (2 * len(config.groups))  # by group: blocks reused, and asked for
        self._reached: dict[Hashable, int] = {}  # tokens that a request has had computed so far
        self.busy = 0.0  # seconds in which the modelled engine computed
        self._misses = MissTally(trace, explain)
        self._costs = CostTally(settings.compute_doubles_at)
        self.hints = HintCounts()
        self.series = Series(config, times[-1] if times else 0.0)

    def admit(self, now: float, run: RunningRequest, receipt: Receipt | None) -> None:
        """A request was admitted; of a resumed one only what others have computed for it meanwhile counts."""
        sequence, request = run.sequence, run.waiting.request
        start = sequence.computed
        if run.waiting.again:
            more = start - self._reached[request.number]
            if more > 0:
                self._counts["saved"] += more
                self._add_up(self._tier_tokens, self._in_proportion(more, sequence._reuse(self.measure)))
                self._reached[request.number] = start
            return
        self._reached[request.number] = start
        self._costs.add(start, request.length)
        if receipt is not None:
            receipt = with_mark(receipt, request.interrupted)
            self._misses.add(now, request, receipt)
            for miss in receipt.misses:
                self.series.miss(now, miss.cause, miss.num_tokens)
        pages = [sequence._reuse(group) for group in self._groups]
        tiers = self._by_tier(start, pages[self.measure]) if start else self._no_tokens
        if run.waiting.brought:
            tiers = self._came_up(tiers, run.waiting.brought)
        blocks = [number for count in pages for number in (count.reused, count.reused + count.missed)]
        self._add_up(self._tier_tokens, tiers)
        self._add_up(self._group_blocks, blocks)
        self.series.admit(now, request.length, tiers, blocks)
        counts = self._counts
        counts["prompt"] += request.length
        counts["saved"] += start
        if request.number >= self._half:
            counts["saved late"] += start
        counts["blocks"] += request.length // self._unit
        counts["blocks hit"] += start // self._unit

    def _by_tier(self, start: int, pages: ReuseCounts) -> list[int]:
        """Tokens of a hit by the tier they came from: exact for full attention, in proportion otherwise."""
        if self._is_exact:
            size, rest = self._config.block_size, start % self._config.block_size
            both = zip(pages.reused_from, pages.partial_from, strict=True)
            return [(came - partly) * size + partly * rest for came, partly in both]
        return self._in_proportion(start, pages)

    def _came_up(self, tiers: list[int], pages: int) -> list[int]:
        """Tokens by tier, those that a prefetch has brought counted where they were before it."""
        came = min(pages * self._config.block_size, tiers[-2])
        return [*tiers[:-2], tiers[-2] - came, tiers[-1] + came]

    def _in_proportion(self, num_tokens: int, pages: ReuseCounts) -> list[int]:
        came = pages.reused_from if any(pages.reused_from) else [1, *pages.reused_from[1:]]
        tokens = [num_tokens * count // sum(came) for count in came]
        tokens[0] += num_tokens - sum(tokens)
        return tokens

    @staticmethod
    def _add_up(sums: list[int], numbers: list[int]) -> None:
        for index, number in enumerate(numbers):
            sums[index] += number

    def step(self, now: float, admission: AdmissionResult) -> None:
        """A step that computes something was decided."""
        tokens, counts, budget = admission.num_tokens, self._counts, self._settings.token_budget
        beyond = 0 if budget is None else max(0, tokens - budget)
        overshoot = max(0, tokens - admission.estimate, beyond)
        counts["steps"] += 1
        counts["computed"] += tokens
        if admission.admitted:
            counts["batches"] += 1
            counts["lost"] += admission.lost
        if overshoot:
            self._worst = max(self._worst, overshoot)
            counts["broken"] += 1
            counts["over budget"] += beyond > 0
        for sequence, start, end in admission.spans:
            before = self._reached[sequence.id]
            if before > start:
                counts["recomputed"] += min(end, before) - start
            if end > before:
                self._reached[sequence.id] = end
        self.series.step(now, bool(admission.admitted), overshoot)

    def moved(self, now: float, moved: BytesMoved) -> None:
        """Bytes went between tiers."""
        self._last = now
        if moved is not NONE_MOVED:
            self.series.moved(now, sum(moved.up), sum(moved.down))

    def first_token(self, now: float, run: RunningRequest) -> None:
        """A prompt is computed; a resumed one may have had its first token before."""
        if not run.waiting.answered:
            run.waiting.answered = True
            self._ttft.append(now - self._times[run.waiting.request.number])

    def end(self, now: float, run: RunningRequest) -> None:
        """A request is done."""
        self._last = now
        del self._reached[run.waiting.request.number]
        self._counts["served"] += 1
        self._counts["generated"] += 0 if self._settings.prefill_only else run.waiting.request.output

    def refuse(self, now: float) -> None:
        """A request can never fit."""
        self._last = now
        self._counts["refused"] += 1

    def preempt(self, run: RunningRequest, computed: int) -> None:
        """A running request made room for others; it has KV of so many tokens."""
        number = run.waiting.request.number
        self._reached[number] = max(self._reached[number], computed)
        self._counts["preempted"] += 1

    def has_run(self, number: Hashable) -> bool:
        """Whether a request was admitted before, and is not done."""
        return number in self._reached

    def restart(self) -> None:
        """A preempted request begins again."""
        self._counts["restarts"] += 1

    def result(self, cache: TimedCache, wall: float, slow_tier: dict[str, Any] | None = None) -> ReplayResult:
        """Everything counted."""
        counts, config = self._counts, self._config
        pages = [cache.inner.stats(group) for group in range(len(config.groups))]
        seconds = cache.ns / 1e9
        return ReplayResult(
            trace=self._trace.name,
            admission=self._settings.admission,
            requests=counts["served"],
            refused=counts["refused"],
            skipped_lines=len(self._trace.skipped),
            requests_per_second=counts["served"] / max(seconds, 1e-9),
            wall_requests_per_second=counts["served"] / max(wall, 1e-9),
            cache_seconds=seconds,
            wall_seconds=wall,
            batches=counts["batches"],
            steps=counts["steps"],
            broken_promises=counts["broken"],
            worst_overshoot_tokens=self._worst,
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
            **self._runs(),
            slow_tier=slow_tier or {},
            misses=self._misses.to_json(),
            load=self._load(),
            model=self._model(),
            settings={"trace": self._trace.name, **_sharing(self._trace), **self._settings.to_json()},
            series=self.series.to_json(),
        )

    def _runs(self) -> dict[str, Any]:
        """What became of requests: setbacks, answers, what was said at their end, what their prompts cost."""
        counts = self._counts
        return {
            "preemptions": counts["preempted"],
            "recomputed_tokens": counts["recomputed"],
            "restarts": counts["restarts"],
            "generated_tokens": counts["generated"],
            "hints": {} if self._settings.hints == "none" else dict(sorted(self.hints.items())),
            **self._costs.to_json(),
        }

    def _hit_rates(self) -> dict[str, Any]:
        """Tokens saved / asked for; blocks of each group the same at first admissions, as in the series."""
        saved, prompt = self._counts["saved"], max(self._counts["prompt"], 1)
        late = sum(request.length for request in self._trace.requests[self._half :])
        tiers = zip(self._config.tiers, self._tier_tokens, strict=True)
        groups = zip(self._config.groups, self._group_blocks[::2], self._group_blocks[1::2], strict=True)
        return {
            "hit_rate": saved / prompt,
            "hit_rate_of_trace": saved / max(self._trace.num_tokens, 1),
            "hit_rate_second_half": self._counts["saved late"] / max(late, 1),
            "hit_rate_by_tier": {tier.name: tokens / prompt for tier, tokens in tiers},
            "hit_rate_by_group": {group.name: reused / max(asked, 1) for group, reused, asked in groups},
        }

    def _load(self) -> dict[str, Any]:
        """Offered: what arrives each second. Capacity: what the modelled engine gets done in a second of work."""
        span, tiers = self._times[-1] if self._times else 0.0, range(len(self._config.tiers))
        blocks = sum(self._config.slots_of(tier, self.measure) for tier in tiers)
        return {
            "offered_tokens_per_second": round(self._counts["prompt"] / span, 3) if span else None,
            "capacity_tokens_per_second": round(self._counts["prompt"] / max(self.busy, 1e-9), 3),
            "load": round(self.busy / span, 4) if span else None,
            "memory_tokens": blocks * self._config.block_size,
        }

    def _model(self) -> dict[str, Any]:
        """Times of the modelled engine."""
        waits = np.array(self._ttft or [0.0]) * 1000
        p50, p90, p99 = (round(float(wait), 3) for wait in np.percentile(waits, [50, 90, 99]))
        tokens = self._counts["prompt"] + self._counts["generated"]
        return {
            "note": NOTE,
            "seconds": round(self._last, 3),
            "ttft_ms": {"mean": round(float(waits.mean()), 3), "p50": p50, "p90": p90, "p99": p99},
            "throughput_tokens_per_second": round(tokens / max(self._last, 1e-9), 3),
            "generated_tokens_per_second": round(self._counts["generated"] / max(self._last, 1e-9), 3),
        }


def _sharing(trace: Trace) -> dict[str, str]:
    """Only where prompts are not known: a hit rate means nothing then."""
    return {"trace_sharing": "unknown"} if trace.lengths_only else {}


def _moves(pages: Sequence[Counts]) -> dict[str, Any]:
    """What making room and bringing pages up took, all groups together."""
    return {
        "evictions": sum(count.allocated - count.allocated_new for count in pages),
        "dropped": sum(count.dropped for count in pages),
        "demoted": sum(count.demoted for count in pages),
        "onboarded_bytes": sum(count.onboarded_bytes for count in pages),
        "offloaded_bytes": sum(count.offloaded_bytes for count in pages),
    }
