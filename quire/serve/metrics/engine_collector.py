"""EngineCollector: what cache, engine and publisher count themselves, read when Prometheus asks. Changes nothing.

Read from the thread that asks: the cache has its own lock, and the other numbers are single words. A step that takes
long, or an engine that has failed, keeps nobody from seeing them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quire.core.cache import Cache
from quire.engine.engine import Engine
from quire.engine.llm import LLM

LABELS = ("model_name", "engine")
STATES = ("empty", "idle", "shadows", "held")
PAGES = {  # of a layer group, since the beginning
    "reused_full": "hit whole", "reused_partial": "hit in part", "missed": "computed", "onboarded": "read up",
    "offloaded": "written down", "copied": "copied inside the device", "dropped": "evicted with their last copy",
    "demoted": "whose device copy was given up", "grown": "for tokens behind a prompt",
}  # fmt: skip


class EngineCollector(Collector):
    """Numbers of one LLM under fixed labels."""

    def __init__(self, llm: LLM, labels: Mapping[str, str]) -> None:
        self._llm, self._values = llm, [labels[name] for name in LABELS]

    def collect(self) -> Iterator[Metric]:
        """All of them, as they are now."""
        engine = self._llm.loop.engine
        yield from self._queues(engine)
        yield from self._steps(engine)
        yield from self._pools(engine.cache)
        yield from self._moves(engine)
        yield from self._events()

    def _gauge(self, name: str, what: str, value: float) -> Metric:
        made = GaugeMetricFamily(name, what, labels=LABELS)
        made.add_metric(self._values, value)
        return made

    def _count(self, name: str, what: str, value: float) -> Metric:
        made = CounterMetricFamily(name, what, labels=LABELS)
        made.add_metric(self._values, value)
        return made

    def _counts(self, name: str, what: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Metric:
        made = CounterMetricFamily(name, what, labels=(*LABELS, *labels))
        for key, value in values.items():
            made.add_metric([*self._values, *key], value)
        return made

    def _queues(self, engine: Engine) -> Iterator[Metric]:
        loop, scheduler = self._llm.loop, engine.scheduler
        waiting, inside = len(scheduler.waiting), len(engine.runs)
        running = len(scheduler.ready) + len(scheduler.prompts) + len(scheduler.held)
        yield self._gauge("vllm:num_requests_running", "Answers that have pages.", running)
        yield self._gauge("vllm:num_requests_waiting", "Answers without pages.", waiting)
        yield self._gauge("quire:runs", "Runs inside the engine.", inside)
        yield self._gauge("quire:places", "Runs that may be inside the engine.", engine.config.max_waiting)
        yield self._gauge("quire:line", "Requests that wait for a place.", loop.num_waiting)
        yield self._gauge("quire:engine_up", "1: it computes; 0: a step has failed.", float(loop.error is None))

    def _steps(self, engine: Engine) -> Iterator[Metric]:
        stats, scheduler = engine.stats, engine.scheduler
        yield self._count("quire:steps", "Steps.", stats.num_steps)
        yield self._count("quire:computed_tokens", "Tokens that steps have computed.", stats.num_tokens)
        yield self._count("quire:admissions", "Answers that got pages, again or not.", stats.num_admitted)
        yield self._count("vllm:num_preemptions", "Answers that lost their pages.", scheduler.num_preemptions)
        yield self._count("quire:setbacks", "Promises that failed moves have changed.", stats.num_setbacks)
        yield self._count("quire:reuse_waits", "Steps that a prompt waited for a prefix.", scheduler.num_waits)
        spent = {(part,): seconds for part, seconds in dict(stats.seconds).items()}
        yield self._counts("quire:step_seconds", "Seconds of steps, by part.", ("part",), spent)

    def _pools(self, cache: Cache) -> Iterator[Metric]:
        pages = GaugeMetricFamily(
            "quire:pages", "Slots of a pool by state.", labels=(*LABELS, "tier", "group", "state")
        )
        fullest = 0.0
        for tier, tier_config in enumerate(cache.config.tiers):
            for group, group_config in enumerate(cache.config.groups):
                usage = cache.usage(tier, group)
                for state in STATES:
                    names = [tier_config.name, group_config.name, state]
                    pages.add_metric([*self._values, *names], getattr(usage, state))
                if tier == 0 and usage.capacity:
                    fullest = max(fullest, usage.held / usage.capacity)
        yield pages
        yield self._gauge("vllm:kv_cache_usage_perc", "Held slots of the fullest device pool; 1 is all.", fullest)
        counted: dict[tuple[str, str], float] = {}
        for group, group_config in enumerate(cache.config.groups):
            counts = cache.stats(group)
            counted |= {(group_config.name, kind): getattr(counts, kind) for kind in PAGES}
        what = f"Pages by what became of them: {', '.join(f'{kind} ({word})' for kind, word in PAGES.items())}."
        yield self._counts("quire:pages_by_kind", what, ("group", "kind"), counted)

    def _moves(self, engine: Engine) -> Iterator[Metric]:
        moved, tiers = engine.pages.mover.stats(), [tier.name for tier in engine.cache.config.tiers]
        by_way = {(tiers[source], tiers[target]): size for (source, target), size in moved.bytes_moved.items()}
        yield self._counts("quire:moved_bytes", "Bytes of moves.", ("source", "target"), by_way)
        yield self._count("quire:moves", "Moves, failed ones included.", moved.num_moves)
        yield self._count("quire:failed_moves", "Moves that failed.", moved.num_failed)

    def _events(self) -> Iterator[Metric]:
        publisher = self._llm.publisher
        if publisher is None:
            return
        yield self._gauge("quire:events_up", "1: routers hear what is cached.", float(publisher.failure is None))
        yield self._count("quire:event_batches", "Batches of events that were published.", publisher.published)
        yield self._gauge("quire:event_hashes_waiting", "Hashes of pages that wait to be published.", publisher.waiting)
        yield self._count("quire:event_hashes_lost", "Hashes that there was no room for.", publisher.lost)
