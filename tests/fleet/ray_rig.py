"""Fleets on a Ray of this machine, for the checks of `on_ray.py`. Knows no check."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray

from quire import Scope
from quire.engine import Sampling
from quire.fleet.fleet_stream import FleetLimits, FleetStream
from quire.fleet.fleet_work import FleetWork
from quire.fleet.on_ray.launch import RayFleet, RayFleetConfig
from quire.fleet.on_ray.replica import ReplicaConfig

from ..serve.rig import tiny_model

PLAIN = Scope()


def folder() -> str:
    """A tiny model on disk, so that replicas can load it."""
    place = Path(tempfile.mkdtemp(prefix="quire-fleet-")) / "tiny"
    model = tiny_model()
    model.module.save_pretrained(place)
    model.tokenizer.save_pretrained(place)
    return str(place)


def start_ray() -> None:
    """Requires the main thread: Ray's processes end with the thread that has started them."""
    if not ray.is_initialized():
        ray.init(
            num_cpus=4, include_dashboard=False, _node_ip_address="127.0.0.1", logging_level="ERROR",
            log_to_driver=False,
        )  # fmt: skip


_kept: list[tuple[str, RayFleet]] = []  # the fleet that was used last: to start one takes long


def opened(replicas: int, **more: Any) -> RayFleet:
    """A fleet of tiny models; the one before, if it was the same."""
    key = f"{replicas} {more}"
    if _kept and _kept[0][0] == key:
        return _kept[0][1]
    close_kept()
    fields = {"device_memory": "1MiB", "max_length": 500, "threads": 1, "max_requests": 32, **more.pop("replica", {})}
    if "model" not in fields:
        fields["model"] = folder()
    began = time.perf_counter()
    fleet = RayFleet(RayFleetConfig(replicas, ReplicaConfig(**fields), cpus=0.1, **more))
    until(lambda: statuses(fleet).count("EXACT") == replicas or more.get("router", "") is None, 60)
    print(f"{replicas} replicas after {time.perf_counter() - began:.1f} s", flush=True)
    _kept.append((key, fleet))
    return fleet


def close_kept() -> None:
    """End the fleet that was used last."""
    while _kept:
        _kept.pop()[1].close()


def statuses(fleet: RayFleet) -> list[str]:
    return [status for book in fleet.books() for status in book.statuses().values()]


def loads(fleet: RayFleet) -> dict[str, int]:
    return {name: number for book in fleet.books() for name, number in book.in_flight.loads().items()}


def until(true: Callable[[], bool], seconds: float) -> float:
    """Seconds until it was so."""
    began = time.perf_counter()
    while not true():
        assert time.perf_counter() - began < seconds, "it has not come to that"
        time.sleep(0.01)
    return time.perf_counter() - began


async def ask(
    fleet: RayFleet, tokens: list[int], count: int, **fields: Any
) -> tuple[list[int], int, str | None, float]:
    """Tokens of an answer, reused ones of the prompt, who made the last of it, seconds to the first token."""
    limits, quotes, ttft = fields.pop("limits", FleetLimits()), fields.pop("quotes", None), fields.pop("ttft", None)
    sampling = Sampling(max_tokens=count, ignore_eos=True, seed=1, **fields)
    work = FleetWork(np.array(tokens, np.int32), sampling, PLAIN, ttft=ttft)
    stream = FleetStream(fleet.call, work, limits, lambda: None, quotes)
    began, first = time.perf_counter(), 0.0
    try:
        await stream.open()
        async for _ in stream.batches():
            first = first or time.perf_counter() - began
        return list(stream.answers[0].tokens), stream.reused, stream.worker, first
    finally:
        stream.close()


def words(dice: random.Random, count: int) -> list[int]:
    return dice.choices(range(16, 250), k=count)


def pids(fleet: RayFleet) -> dict[str, int]:
    """Processes of the replicas that routers know."""
    return {name: address.pid for book in fleet.books() for name, address in book.addresses().items()}
