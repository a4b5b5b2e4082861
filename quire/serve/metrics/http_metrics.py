"""HttpMetrics: what any server counts of requests, whoever computes them. No label has what a client chooses."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from quire.serve.metrics.families import LABELS
from quire.serve.metrics.tallies import Tallies

BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)


class HttpMetrics:
    """Of one server, in a registry of its own. Counted and read in the event loop's thread."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model, "engine": "0"}
        self.tallies = Tallies([self._labels[name] for name in LABELS])
        self.tallies.counters("quire:http_requests", "Requests by endpoint and status.", "endpoint", "code")
        self._open = self.tallies.gauge("quire:http_requests_in_progress", "Requests that are not answered yet.")
        what = "Seconds between two tokens of a streamed answer, as they were sent."
        self.between_tokens = self.tallies.histogram("vllm:inter_token_latency_seconds", what, BETWEEN).observe
        self.registry.register(self.tallies)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)

    # -- requests ----------------------------------------------------------------------------------------------------

    def begun(self) -> None:
        """A request has come."""
        self._open.inc()

    def ended(self, endpoint: str, status: int) -> None:
        """It is over."""
        self._open.inc(-1)
        self.tallies.of("quire:http_requests", endpoint, str(status)).inc()
