"""FleetMetrics: what a server in front of many workers reports to Prometheus. Workers count the rest themselves."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from quire.fleet.fleet_stream import FleetStream
from quire.fleet.worker_book import WorkerBook
from quire.serve.http.auth import NO_TENANT
from quire.serve.metrics.families import Families
from quire.serve.metrics.http_metrics import HttpMetrics

STATUSES = ("EXACT", "REPAIRING", "UNKNOWN")
_COUNTERS = {
    "vllm:prompt_tokens": "Tokens of prompts.",
    "vllm:prompt_tokens_cached": "Tokens of them that workers have reused.",
    "vllm:generation_tokens": "Tokens of answers.",
    "quire:fleet_lost": "Times that an answer lost its worker.",
    "quire:fleet_resumed": "Times that one went on with another worker.",
}


class StreamMetrics(HttpMetrics):
    """What is counted of answers, for all or for one tenant."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._counters = {name: self.tallies.counter(name, what) for name, what in _COUNTERS.items()}

    def _new_tenant(self, tenant: str) -> HttpMetrics:
        return StreamMetrics(self._labels["model_name"])

    def resumed(self) -> None:
        """An answer goes on with another worker."""
        self._counters["quire:fleet_resumed"].inc()

    def totals(self) -> dict[str, float]:
        """For the live page."""
        return {name: self._counters[f"quire:fleet_{name}"].value for name in ("lost", "resumed")}

    def stream_over(self, stream: FleetStream, tenant: str = NO_TENANT) -> None:
        """An answer is over, or its client has gone."""
        self._count(stream)
        own = self.of_tenant(tenant)
        if own is not self and isinstance(own, StreamMetrics):
            own._count(stream)

    def _count(self, stream: FleetStream) -> None:
        self._counters["vllm:prompt_tokens"].inc(len(stream.prompt))
        self._counters["vllm:prompt_tokens_cached"].inc(stream.reused)
        self._counters["vllm:generation_tokens"].inc(sum(len(answer.tokens) for answer in stream.answers))
        self._counters["quire:fleet_lost"].inc(stream.num_losses)


class FleetMetrics(StreamMetrics):
    """Of one server."""

    def __init__(self, model: str, books: Callable[[], list[WorkerBook]]) -> None:
        super().__init__(model)
        self.registry.register(_BookCollector(books, Families(self._labels)))


class _BookCollector(Collector):
    """What the books of workers say now."""

    def __init__(self, books: Callable[[], list[WorkerBook]], made: Families) -> None:
        self._books, self._made = books, made

    def collect(self) -> Iterator[Metric]:
        books = self._books()
        found = Tally(status for book in books for status in book.statuses().values())
        statuses: dict[tuple[str, ...], float] = {(status,): found[status] for status in STATUSES}
        yield self._made.gauges("quire:fleet_workers", "Workers by what is known of them.", ("status",), statuses)
        up: dict[tuple[str, ...], float] = {("follower",): float(not any(book.stopped for book in books))}
        yield self._made.gauges("quire:thread_up", "1: the threads of this part are at work.", ("part",), up)
        loads = [book.in_flight.loads() for book in books]
        under_way = sum(sum(load.values()) for load in loads)
        yield self._made.gauge("quire:fleet_in_flight", "Requests that workers have.", under_way)
        most = max((max(load.values(), default=0) for load in loads), default=0)
        yield self._made.gauge("quire:fleet_in_flight_most", "Requests that the busiest worker has.", most)
        yield self._made.count("quire:fleet_choices", "Choices of a worker.", sum(book.num_choices for book in books))
        spent = sum(book.choice_seconds for book in books)
        yield self._made.count("quire:fleet_choice_seconds", "Seconds in them.", spent)
