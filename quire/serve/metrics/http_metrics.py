"""HttpMetrics: what any server counts of requests, whoever computes them. No label has what a client chooses."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from quire.serve.metrics.families import LABELS

BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)


class HttpMetrics:
    """Of one server, in a registry of its own."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self._children: dict[tuple[Counter, tuple[str, ...]], Counter] = {}
        self._labels = {"model_name": model, "engine": "0"}
        self._replies = self._counter("quire:http_requests", "Requests by endpoint and status.", "endpoint", "code")
        self._open = self._labelled(Gauge, "quire:http_requests_in_progress", "Requests that are not answered yet.")
        what = "Seconds between two tokens of a streamed answer, as they were sent."
        self.between_tokens = self._labelled(
            Histogram, "vllm:inter_token_latency_seconds", what, buckets=BETWEEN
        ).observe

    def _labelled(self, kind: Any, name: str, what: str, **more: Any) -> Any:
        return kind(name, what, LABELS, registry=self.registry, **more).labels(**self._labels)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(name, what, (*LABELS, *labels), registry=self.registry)

    def _child(self, counter: Counter, *values: str) -> Counter:
        """A counter with these labels; kept, since looking it up costs more than counting."""
        key = (counter, values)
        if key not in self._children:
            self._children[key] = counter.labels(*self._labels.values(), *values)
        return self._children[key]

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)

    # -- requests ----------------------------------------------------------------------------------------------------

    def begun(self) -> None:
        """A request has come."""
        self._open.inc()

    def ended(self, endpoint: str, status: int) -> None:
        """It is over."""
        self._open.dec()
        self._child(self._replies, endpoint, str(status)).inc()
