"""Tallies: numbers that one thread counts and Prometheus reads. Owns how a number is kept; knows no metric by name.

A request counts some thirty numbers. prometheus_client's own take a lock for each, which cost a tenth of a request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from quire.serve.metrics.families import LABELS


class MetricNumber:
    """One number."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """So many more."""
        self.value += amount


class TalliedHistogram:
    """How often a number was below each of some bounds, and the sum of all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(map(float, bounds))
        self.counts = [0] * (len(self.bounds) + 1)  # the last one: above all bounds
        self.total = 0.0

    def observe(self, value: float) -> None:
        """One number more."""
        self.total += value
        self.counts[bisect_left(self.bounds, value)] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """Bounds as Prometheus writes them, with how many were at most that."""
        names = [*map(floatToGoString, self.bounds), "+Inf"]
        sums = [sum(self.counts[: nth + 1]) for nth in range(len(names))]
        return list(zip(names, map(float, sums), strict=True))


class Tallies(Collector):
    """All numbers of one server, under labels that are always the same and a few more."""

    def __init__(self, values: Sequence[str]) -> None:
        self._values = list(values)
        self._kinds: dict[str, tuple[type[CounterMetricFamily] | type[GaugeMetricFamily], str, tuple[str, ...]]] = {}
        self._numbers: dict[str, dict[tuple[str, ...], MetricNumber]] = {}
        self._histograms: dict[str, tuple[str, TalliedHistogram]] = {}

    def counters(self, name: str, what: str, *labels: str) -> None:
        """Numbers that only grow, by the values of `labels`."""
        self._kinds[name], self._numbers[name] = (CounterMetricFamily, what, labels), {}

    def counter(self, name: str, what: str) -> MetricNumber:
        """One that only grows."""
        self.counters(name, what)
        return self.number(name)

    def gauge(self, name: str, what: str) -> MetricNumber:
        """One that goes up and down."""
        self._kinds[name], self._numbers[name] = (GaugeMetricFamily, what, ()), {}
        return self.number(name)

    def histogram(self, name: str, what: str, bounds: Sequence[float]) -> TalliedHistogram:
        """A distribution."""
        made = TalliedHistogram(bounds)
        self._histograms[name] = what, made
        return made

    def number(self, name: str, *values: str) -> MetricNumber:
        """The number with these values of its labels."""
        numbers = self._numbers[name]
        found = numbers.get(values)
        if found is None:
            found = numbers[values] = MetricNumber()
        return found

    def collect(self) -> Iterator[Metric]:
        """All of them, as they are now."""
        for name, (kind, what, labels) in self._kinds.items():
            made = kind(name, what, labels=(*LABELS, *labels))
            for values, tally in self._numbers[name].items():
                made.add_metric([*self._values, *values], tally.value)
            yield made
        for name, (what, one) in self._histograms.items():
            family = HistogramMetricFamily(name, what, labels=LABELS)
            family.add_metric(self._values, one.buckets(), one.total)
            yield family
