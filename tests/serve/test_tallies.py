"""Tallies say what prometheus_client's own numbers say."""

from __future__ import annotations

import random

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from quire.serve.metrics.families import LABELS
from quire.serve.metrics.http_metrics import BETWEEN
from quire.serve.metrics.metrics import SECONDS
from quire.serve.metrics.tallies import Tallies


def test_numbers_read_as_those_of_prometheus_itself() -> None:
    theirs, ours, tallies = CollectorRegistry(), CollectorRegistry(), Tallies(["m", "0"])
    ours.register(tallies)
    counter = Counter("quire:asked", "Asked.", (*LABELS, "code"), registry=theirs)
    gauge = Gauge("quire:open", "Open.", LABELS, registry=theirs).labels("m", "0")
    histograms = [
        Histogram(f"vllm:h{nth}", "Seconds.", LABELS, buckets=bounds, registry=theirs).labels("m", "0")
        for nth, bounds in enumerate((BETWEEN, SECONDS))
    ]
    tallies.counters("quire:asked", "Asked.", "code")
    also = tallies.gauge("quire:open", "Open.")
    tallied = [tallies.histogram(f"vllm:h{nth}", "Seconds.", bounds) for nth, bounds in enumerate((BETWEEN, SECONDS))]
    dice = random.Random(0)
    for _ in range(500):
        code, amount = dice.choice(("200", "429", "499")), dice.randrange(5)
        counter.labels("m", "0", code).inc(amount)
        tallies.number("quire:asked", code).inc(amount)
        gauge.inc(amount - 2)
        also.inc(amount - 2)
        seconds = dice.choice((0.0, 0.01, 0.3, 1, 8000.0, dice.random(), dice.expovariate(0.1)))  # bounds, too
        for one, other in zip(histograms, tallied, strict=True):
            one.observe(seconds)
            other.observe(seconds)
    assert _lines(ours) == _lines(theirs)


def _lines(registry: CollectorRegistry) -> set[str]:
    return {line for line in generate_latest(registry).decode().splitlines() if "_created" not in line}
