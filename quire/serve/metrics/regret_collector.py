"""RegretCollector: the last hour of the cache as gauges, from the last report that was made. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quire.insight.regret import Regret
from quire.insight.regret_report import RegretReport
from quire.serve.metrics.families import LABELS

Rows = Mapping[Any, float | None]  # by the values of the labels
_SINGLE = {
    "seconds": "Seconds that the numbers of quire:regret_ cover.",
    "requests": "Requests in that time.",
    "hit_rate": "Share of prompt tokens that were hit, in whole blocks.",
    "ceiling": "Share that a cache would have hit that forgets nothing.",
    "optimum": "Share that this much memory could have hit at best, had it known what comes.",
    "one_in": "Blocks for which one is tracked: 1 is all of them.",
    "lost": "Requests since the start that are not counted.",
}


class RegretCollector(Collector):
    """Gauges of one Regret under fixed labels; none before its first report."""

    def __init__(self, regret: Regret, labels: Mapping[str, str]) -> None:
        self._regret, self._values = regret, [labels[name] for name in LABELS]

    def collect(self) -> Iterator[Metric]:
        """All of them, as they were when the report was made."""
        report = self._regret.latest
        if report is not None:
            yield from self._families(report)

    def _families(self, report: RegretReport) -> Iterator[Metric]:
        for name, what in _SINGLE.items():
            yield self._gauge(name, what, (), {(): getattr(report, name)})
        orders = {(order,): rate for order, rate in report.orders.items()}
        yield self._gauge("order_hit_rate", "Share that an eviction order would have hit.", ("order",), orders)
        what = "Share that the tiers down to this one would have hit together, evicting what was used longest ago."
        yield self._gauge("tier_hit_rate", what, ("tier",), {(tier.name,): tier.hit_rate for tier in report.tiers})
        more = {(tier.name,): tier.per_gb for tier in report.tiers}
        yield self._gauge("tier_gain_per_gb", "What one more GB in a tier would add to that.", ("tier",), more)

    def _gauge(self, name: str, what: str, labels: tuple[str, ...], rows: Rows) -> Metric:
        made = GaugeMetricFamily(f"quire:regret_{name}", what, labels=(*LABELS, *labels))
        for key, value in rows.items():
            if value is not None:
                made.add_metric([*self._values, *key], float(value))
        return made
