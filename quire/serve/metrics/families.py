"""Families: numbers under a server's fixed labels, as Prometheus takes them. Knows no engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

LABELS = ("model_name", "engine")


class Families:
    """Makes metrics whose first labels are always the same."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._values = [labels[name] for name in LABELS]

    def gauge(self, name: str, what: str, value: float) -> Metric:
        """One number that goes up and down."""
        return self.gauges(name, what, (), {(): value})

    def count(self, name: str, what: str, value: float) -> Metric:
        """One number that only grows."""
        return self.counts(name, what, (), {(): value})

    def gauges(
        self, name: str, what: str, labels: Iterable[str], values: Mapping[tuple[str, ...], float]
    ) -> GaugeMetricFamily:
        """Several, by the values of more labels."""
        made = GaugeMetricFamily(name, what, labels=(*LABELS, *labels))
        for key, value in values.items():
            made.add_metric([*self._values, *key], value)
        return made

    def counts(
        self, name: str, what: str, labels: Iterable[str], values: Mapping[tuple[str, ...], float]
    ) -> CounterMetricFamily:
        """The same of numbers that only grow."""
        made = CounterMetricFamily(name, what, labels=(*LABELS, *labels))
        for key, value in values.items():
            made.add_metric([*self._values, *key], value)
        return made
