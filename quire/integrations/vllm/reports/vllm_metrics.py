"""Metrics: the connector's counts as vLLM's logger and its Prometheus endpoint show them. Needs vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from quire.integrations.vllm.reports.connector_counts import COUNTERS, GAUGES

PREFIX = "vllm:quire_"


@dataclass
class QuireStats(KVConnectorStats):  # type: ignore[misc]  # vLLM is not there when types are checked
    """Counters add up over ranks and steps, gauges are the last ones told."""

    def reset(self) -> None:
        """Empty."""
        self.data: dict[str, dict[str, float]] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """With those of another rank, or of a later step."""
        counters, gauges = self.data.setdefault("counters", {}), self.data.setdefault("gauges", {})
        for name, number in other.data.get("counters", {}).items():
            counters[name] = counters.get(name, 0) + number
        gauges.update(other.data.get("gauges", {}))
        return self

    def reduce(self) -> dict[str, int | float]:
        """One line of the log."""
        return {**self.data.get("counters", {}), **self.data.get("gauges", {})}

    def is_empty(self) -> bool:
        """Nothing was counted."""
        return not self.data


class QuirePromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]  # the same
    """vllm:quire_* on /metrics, with vLLM's own labels."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._metrics = {name: self._counter_cls(name=PREFIX + name, documentation=text, labelnames=labelnames)
                         for name, text in COUNTERS.items()}  # fmt: skip
        told = {"labelnames": labelnames, "multiprocess_mode": "mostrecent"}  # one series, of however many API servers
        self._metrics |= {name: self._gauge_cls(name=PREFIX + name, documentation=text, **told)
                          for name, text in GAUGES.items()}  # fmt: skip

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """What a step told."""
        labels = self.per_engine_labelvalues[engine_idx]
        for name, number in transfer_stats_data.get("counters", {}).items():
            self._metrics[name].labels(*labels).inc(number)
        for name, number in transfer_stats_data.get("gauges", {}).items():
            self._metrics[name].labels(*labels).set(number)
