"""EngineCollector: what cache, engine and publisher count themselves, read when Prometheus asks. Changes nothing.

Read from the thread that asks: the cache has its own lock, and the other numbers are single words. A step that takes
long, or an engine that has failed, does not hide them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from quire.core.cache import Cache
from quire.core.records.hint_words import BACKS
from quire.engine.llm import LLM
from quire.engine.runner.engine import Engine
from quire.engine.thread_watch import parts, side_troubles, troubles
from quire.serve.metrics.families import Families
from quire.serve.metrics.outer_metrics import disk_metrics, store_metrics, transfer_metrics

STATES = ("empty", "idle", "shadows", "held")
PAGES = {  # of a layer group, since the beginning
    "reused_full": "hit whole", "reused_partial": "hit in part", "reused_pending": "hit while a step computed them",
    "missed": "computed", "onboarded": "read up", "offloaded": "written down", "copied": "copied inside the device",
    "dropped": "evicted with their last copy", "demoted": "whose device copy was given up",
    "grown": "for tokens behind a prompt",
    "copied_down": "copied to disk ahead of an eviction", "prefetched": "brought up from disk",
    "behind": "evicted before they were on disk", "superseded": "of text that its session has left behind",
}  # fmt: skip


class EngineCollector(Collector):
    """Numbers of one LLM under fixed labels."""

    def __init__(self, llm: LLM, labels: Mapping[str, str]) -> None:
        self._llm, self._made = llm, Families(labels)

    def collect(self) -> Iterator[Metric]:
        """All of them, as they are now."""
        engine = self._llm.loop.engine
        yield from self._queues(engine)
        yield from self._steps(engine)
        yield from self._deadlines(engine)
        yield from self._pools(engine.cache)
        yield from self._moves(engine)
        yield from self._threads()
        yield from self._events()
        yield from disk_metrics(self._made, engine)
        yield from store_metrics(self._made, self._llm.shared)
        yield from transfer_metrics(self._made, engine)

    def _queues(self, engine: Engine) -> Iterator[Metric]:
        loop, scheduler, made = self._llm.loop, engine.scheduler, self._made
        waiting, inside = len(scheduler.waiting), len(engine.runs)
        running = len(scheduler.queues.holders)
        yield made.gauge("vllm:num_requests_running", "Answers that have pages.", running)
        yield made.gauge("vllm:num_requests_waiting", "Answers without pages.", waiting)
        yield made.gauge("quire:runs", "Runs inside the engine.", inside)
        yield made.gauge("quire:places", "Runs that may be inside the engine.", engine.config.max_waiting)
        yield made.gauge("quire:line", "Requests that wait for a place.", loop.num_waiting)
        yield made.gauge("quire:engine_up", "1: it computes; 0: a step has failed.", float(loop.error is None))

    def _steps(self, engine: Engine) -> Iterator[Metric]:
        stats, scheduler, made = engine.stats, engine.scheduler, self._made
        yield made.count("quire:steps", "Steps.", stats.num_steps)
        yield made.count("quire:computed_tokens", "Tokens that steps have computed.", stats.num_tokens)
        yield made.count("quire:admissions", "Answers that got pages, again or not.", stats.num_admitted)
        yield made.count("vllm:num_preemptions", "Answers that lost their pages.", scheduler.num_preemptions)
        yield made.count("quire:setbacks", "Promises that failed moves have changed.", stats.num_setbacks)
        yield made.count("quire:reuse_waits", "Steps that a prompt waited for a prefix.", scheduler.num_waits)
        overlap = engine.in_flight.counts
        yield made.count("quire:steps_overlapped", "Steps launched before the last was read.", overlap.num_steps)
        yield made.count("quire:token_waits", "Steps that answers sat out for a token.", overlap.num_waits)
        yield made.count("quire:drains", "Times that all steps were read before the next.", overlap.num_drains)
        yield made.count("quire:dropped_tokens", "Tokens computed in vain behind an end.", overlap.num_dropped)
        spent: dict[tuple[str, ...], float] = {(part,): seconds for part, seconds in dict(stats.seconds).items()}
        yield made.counts("quire:step_seconds", "Seconds of steps, by part.", ("part",), spent)

    def _deadlines(self, engine: Engine) -> Iterator[Metric]:
        if engine.deadlines is None:
            return
        made, counts, costs = self._made, engine.deadlines.door.counts, engine.deadlines.door.costs
        fates: dict[tuple[str, ...], float] = {(fate,): number for fate, number in dict(counts.fates).items()}
        what = "Bounds of first tokens by what became of them: kept, left before it, or why broken."
        yield made.counts("quire:ttft_bounds", what, ("fate",), fates)
        refused: dict[tuple[str, ...], float] = {(reason,): count for reason, count in dict(counts.refused).items()}
        what = "Requests refused since a first token would be late: theirs, or others', or they cost more."
        yield made.counts("quire:ttft_refused", what, ("whose",), refused)
        what = "Requests with a deadline that were accepted without a bound."
        yield made.count("quire:ttft_unbounded", what, counts.unbounded)
        yield made.count("quire:ttft_late", "Deadlines of first tokens that were missed.", counts.late)
        yield made.gauge("quire:ttft_calibrated", "1: what steps cost is known.", float(costs.ready))
        holds = engine.deadlines.holds
        yield made.gauge("quire:ttft_held_pages", "Pages held for requests that wait.", holds.num_pages)
        yield made.count("quire:ttft_holds_given_up", "Hits that were held no longer.", holds.num_given_up)

    def _pools(self, cache: Cache) -> Iterator[Metric]:
        slots: dict[tuple[str, ...], float] = {}
        by_age: dict[tuple[str, ...], float] = {}
        fallbacks: dict[tuple[str, ...], float] = {}
        fullest = 0.0
        for tier, tier_config in enumerate(cache.config.tiers):
            for group, group_config in enumerate(cache.config.groups):
                usage = cache.usage(tier, group)
                slots |= {(tier_config.name, group_config.name, state): getattr(usage, state) for state in STATES}
                if tier == 0 and usage.capacity:
                    fullest = max(fullest, usage.held / usage.capacity)
                if tier == 0 and cache.config.order == "adaptive":
                    by_age[group_config.name,], fallbacks[group_config.name,] = usage.by_age, usage.fallbacks
        yield self._made.gauges("quire:pages", "Slots of a pool by state.", ("tier", "group", "state"), slots)
        what = "1: the adaptive order evicts by age alone: nothing is learned yet, or LRU did better."
        yield self._made.gauges("quire:order_by_age", what, ("group",), by_age)
        what = "How often LRU did better than the adaptive order, which fell back to it."
        yield self._made.counts("quire:order_fallbacks", what, ("group",), fallbacks)
        what = "Held slots of the fullest device pool; 1 is all."
        yield self._made.gauge("vllm:kv_cache_usage_perc", what, fullest)
        counted: dict[tuple[str, ...], float] = {}
        for group, group_config in enumerate(cache.config.groups):
            counts = cache.stats(group)
            counted |= {(group_config.name, kind): getattr(counts, kind) for kind in PAGES}
        what = f"Pages by event: {', '.join(f'{kind} ({word})' for kind, word in PAGES.items())}."
        yield self._made.counts("quire:pages_by_kind", what, ("group", "kind"), counted)
        hinted: dict[tuple[str, ...], float] = {}
        for group, group_config in enumerate(cache.config.groups):
            counts = cache.stats(group)
            for kind, pages in (("hinted", counts.hinted), ("reused", counts.reused_hinted)):
                hinted |= {(group_config.name, back, kind): number for back, number in zip(BACKS, pages, strict=True)}
        what = "Pages by the hint of their request: those hinted, and those of them reused."
        yield self._made.counts("quire:hinted_pages", what, ("group", "back", "kind"), hinted)

    def _moves(self, engine: Engine) -> Iterator[Metric]:
        moved, tiers = engine.pages.mover.stats(), [tier.name for tier in engine.cache.config.tiers]
        by_way: dict[tuple[str, ...], float] = {
            (tiers[source], tiers[target]): size for (source, target), size in moved.bytes_moved.items()
        }
        yield self._made.counts("quire:moved_bytes", "Bytes of moves.", ("source", "target"), by_way)
        yield self._made.count("quire:moves", "Moves, failed ones included.", moved.num_moves)
        yield self._made.count("quire:failed_moves", "Moves that failed.", moved.num_failed)

    def _threads(self) -> Iterator[Metric]:
        wrong = troubles(self._llm) | side_troubles(self._llm)
        up: dict[tuple[str, ...], float] = {(part,): float(part not in wrong) for part in parts(self._llm)}
        yield self._made.gauges("quire:thread_up", "1: the threads of this part are at work.", ("part",), up)

    def _events(self) -> Iterator[Metric]:
        publisher, made = self._llm.publisher, self._made
        if publisher is None:
            return
        yield made.gauge("quire:events_up", "1: routers hear what is cached.", float(publisher.failure is None))
        yield made.count("quire:event_batches", "Batches of events that were published.", publisher.published)
        yield made.gauge("quire:event_hashes_waiting", "Hashes of pages that wait to be published.", publisher.waiting)
        yield made.count("quire:event_hashes_lost", "Hashes that there was no room for.", publisher.lost)
        what = "Events and batches that could not be made, and were left out."
        yield made.count("quire:events_dropped", what, publisher.dropped)
        yield made.count(
            "quire:event_restarts", "Times that the publisher has opened its sockets anew.", publisher.restarts
        )
