"""Metrics: what is counted as requests come and go. vLLM's names where the meaning is the same, else `quire:`.

Labels have a few known values each: the model's name, an endpoint, a status, a reason; never anything that a client
chooses. What the cache and the engine count themselves is read with each scrape (`engine_collector.py`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from quire.engine.llm import LLM
from quire.engine.loop.stream import Stream
from quire.engine.step.runs.branch import Run
from quire.serve.http.auth import NO_TENANT
from quire.serve.metrics.bill_collector import BillCollector, RecentBill
from quire.serve.metrics.engine_collector import EngineCollector
from quire.serve.metrics.http_metrics import BETWEEN, HttpMetrics
from quire.serve.metrics.regret_collector import RegretCollector

SECONDS = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
REASONS = {"eos": "stop", "stop": "stop", "length": "length", "error": "error", "cancelled": "abort"}
RUN_HISTOGRAMS = {  # name: what it is, and its buckets; None: those of lengths
    "time_to_first_token_seconds": ("Seconds until the first token, a wait for a place included.", FIRST),
    "request_time_per_output_token_seconds": ("Seconds per token of an answer, behind its first.", BETWEEN),
    "e2e_request_latency_seconds": ("Seconds until all answers of a run were complete.", SECONDS),
    "request_queue_time_seconds": ("Seconds until a run got pages.", SECONDS),
    "request_inference_time_seconds": ("Seconds from getting pages to the last token.", SECONDS),
    "request_prefill_time_seconds": ("Seconds from getting pages to the first token.", SECONDS),
    "request_decode_time_seconds": ("Seconds from the first token to the last.", SECONDS),
    "request_prompt_tokens": ("Tokens of a prompt.", None),
    "request_generation_tokens": ("Tokens of a run's answers.", None),
    "request_params_max_tokens": ("What max_tokens was.", None),
    "request_params_n": ("What n was.", (1, 2, 5, 10, 20)),
    "request_prefill_kv_computed_tokens": ("Prompt tokens that were not reused, when a run was admitted.", None),
}
_COUNTERS = {
    "prompt_tokens": "Tokens of prompts that were admitted.",
    "prompt_tokens_cached": "Tokens of them that were reused.",
    "prefix_cache_queries": "Tokens of prompts that were looked up in the cache.",
    "prefix_cache_hits": "Tokens of them that were found.",
    "generation_tokens": "Tokens of answers.",
}


class PoolNames(NamedTuple):
    """Of what is cached."""

    groups: tuple[str, ...]
    tiers: tuple[str, ...]


class RunMetrics(HttpMetrics):
    """What is counted of runs, for all or for one tenant; `names` are those of layer groups and tiers."""

    def __init__(self, model: str, longest: int, names: PoolNames) -> None:
        super().__init__(model)
        self._longest, self._names = longest, names
        lengths = _lengths(longest)
        tallies = self.tallies
        self._histograms = {
            name: tallies.histogram(f"vllm:{name}", what, lengths if buckets is None else buckets)
            for name, (what, buckets) in RUN_HISTOGRAMS.items()
        }
        self._counters = {name: tallies.counter(f"vllm:{name}", what) for name, what in _COUNTERS.items()}
        tallies.counters("vllm:request_success", "Answers by why they ended.", "finished_reason")
        what = "Prompt tokens that admission said would be computed."
        self._promised = tallies.counter("quire:promised_tokens", what)
        what = "Tokens computed for runs that are over, again or not."
        self._run_computed = tallies.counter("quire:run_computed_tokens", what)
        what = "Bytes of prompts' pages that a peer has sent here."
        self._received = tallies.counter("quire:transfer_bytes", what)
        tallies.counters("quire:hit_tokens", "Prompt tokens read from the cache.", "tier", "group")
        tallies.counters("quire:missed_tokens", "Prompt tokens not reused.", "cause", "group")

    def _new_tenant(self, tenant: str) -> HttpMetrics:
        return RunMetrics(self._labels["model_name"], self._longest, self._names)

    def run_over(self, stream: Stream, tenant: str = NO_TENANT) -> None:
        """A run is over, or its client has gone."""
        if stream.run is None:
            return
        self._count(stream.run)
        own = self.of_tenant(tenant)
        if own is not self and isinstance(own, RunMetrics):
            own._count(stream.run)

    def _count(self, run: Run) -> None:
        for answer in run.answers:
            reason = REASONS["cancelled" if answer.finish is None else answer.finish]
            self.tallies.number("vllm:request_success", reason).inc()
        generated = sum(len(answer.tokens) for answer in run.answers)
        self._counters["generation_tokens"].inc(generated)
        self._histograms["request_generation_tokens"].observe(generated)
        self._histograms["request_params_max_tokens"].observe(run.sampling.max_tokens)
        self._histograms["request_params_n"].observe(run.sampling.n)
        self._run_computed.inc(run.computed)
        self._received.inc(run.received)
        self._count_times(run)
        if run.times.admitted:
            self._count_prompt(run)

    def _count_times(self, run: Run) -> None:
        seen, times = run.user_times, run.times
        found = {
            "request_queue_time_seconds": seen.queued,
            "time_to_first_token_seconds": seen.first_token,
            "request_time_per_output_token_seconds": seen.between_tokens,
            "e2e_request_latency_seconds": seen.total,
        }
        if times.first_token and times.admitted:
            found["request_prefill_time_seconds"] = times.first_token - times.admitted
            found["request_decode_time_seconds"] = times.last_token - times.first_token
            found["request_inference_time_seconds"] = times.last_token - times.admitted
        for name, seconds in found.items():
            if not math.isnan(seconds):
                self._histograms[name].observe(seconds)

    def _count_prompt(self, run: Run) -> None:
        length = len(run.prompt)
        for name in ("prompt_tokens", "prefix_cache_queries"):
            self._counters[name].inc(length)
        for name in ("prompt_tokens_cached", "prefix_cache_hits"):
            self._counters[name].inc(run.reused)
        self._promised.inc(length - run.reused)
        self._histograms["request_prompt_tokens"].observe(length)
        self._histograms["request_prefill_kv_computed_tokens"].observe(length - run.reused)
        if run.receipt is None:
            return
        for (tier, group), tokens in run.receipt.hits.items():
            self.tallies.number("quire:hit_tokens", self._names.tiers[tier], self._names.groups[group]).inc(tokens)
        for miss in run.receipt.misses:
            cause = "new" if miss.cause == "other_scope" else miss.cause  # what other tenants have stays private
            group_name = "" if miss.group is None else self._names.groups[miss.group]
            self.tallies.number("quire:missed_tokens", cause, group_name).inc(miss.num_tokens)


class Metrics(RunMetrics):
    """Of one server and its engine."""

    def __init__(self, llm: LLM, model: str, longest: int) -> None:
        config = llm.loop.engine.cache.config
        names = PoolNames(tuple(group.name for group in config.groups), tuple(tier.name for tier in config.tiers))
        super().__init__(model, longest, names)
        self.registry.register(EngineCollector(llm, self._labels))
        self.registry.register(RegretCollector(llm.regret(), self._labels))
        bills = llm.loop.engine.bills
        self._bill = None if bills is None else RecentBill(bills.bill)
        if self._bill is not None:
            self.registry.register(BillCollector(self._bill, self._labels))

    def _new_tenant(self, tenant: str) -> HttpMetrics:
        made = super()._new_tenant(tenant)
        if self._bill is not None:
            made.registry.register(BillCollector(self._bill, self._labels, tenant))
        return made


def _lengths(longest: int) -> tuple[int, ...]:
    """1, 2, 5, 10, ... up to the longest."""
    steps = [digit * 10**power for power in range(10) for digit in (1, 2, 5)]
    return (*(step for step in steps if step < longest), longest)
