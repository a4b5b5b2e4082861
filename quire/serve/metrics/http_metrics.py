"""HttpMetrics: what any server counts of requests, computed here or elsewhere. No label has what a client chooses.

Of each tenant the same numbers are counted once more, apart from those of all: a tenant's key shows its own.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from quire.serve.http.auth import NO_TENANT
from quire.serve.metrics.families import LABELS
from quire.serve.metrics.tallies import Tallies

BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)


class HttpMetrics:
    """Of one server, or of one tenant, in a registry of its own. Counted and read in the event loop's thread."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model, "engine": "0"}
        self.tallies = Tallies([self._labels[name] for name in LABELS])
        self.tallies.counters("quire:http_requests", "Requests by endpoint and status.", "endpoint", "code")
        self._open = self.tallies.gauge("quire:http_requests_in_progress", "Requests that are not answered yet.")
        what = "Seconds between two tokens of a streamed answer, as they were sent."
        self._between = self.tallies.histogram("vllm:inter_token_latency_seconds", what, BETWEEN)
        self.registry.register(self.tallies)
        self._tenants: dict[str, HttpMetrics] = {}  # as many as have keys

    def of_tenant(self, tenant: str) -> HttpMetrics:
        """The numbers of one tenant; without one, those of all."""
        if tenant == NO_TENANT:
            return self
        found = self._tenants.get(tenant)
        if found is None:
            found = self._tenants[tenant] = self._new_tenant(tenant)
        return found

    def _new_tenant(self, tenant: str) -> HttpMetrics:
        return HttpMetrics(self._labels["model_name"])

    def text(self, tenant: str = NO_TENANT) -> bytes:
        """All of it, or of one tenant's, as Prometheus reads it."""
        return generate_latest(self.of_tenant(tenant).registry)

    # -- requests ----------------------------------------------------------------------------------------------------

    def begun(self) -> None:
        """A request has come."""
        self._open.inc()

    def ended(self, endpoint: str, status: int) -> None:
        """It is over."""
        self._open.inc(-1)
        self.tallies.number("quire:http_requests", endpoint, str(status)).inc()

    def between_tokens(self, tenant: str = NO_TENANT) -> Callable[[float], None]:
        """What to call when two tokens of a tenant's stream came so many seconds apart."""
        all_of_them = self._between.observe
        if tenant == NO_TENANT:
            return all_of_them
        its_own = self.of_tenant(tenant)._between.observe

        def both(seconds: float) -> None:
            all_of_them(seconds)
            its_own(seconds)

        return both
