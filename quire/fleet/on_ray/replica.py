"""Replica: a FleetWorker that Ray Serve runs. Owns its LLM and its publisher, whose addresses travel to routers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import serve

from quire.core.records.config import Eviction, EvictionCost
from quire.engine import LLM, fitting, load
from quire.engine.model import smollm2
from quire.engine.model.folders import checked
from quire.engine.publishing import EnginePublisher
from quire.engine.setup.engine_config import Graphs, Scheduling
from quire.events import Keys, Publisher, Room
from quire.fleet.fleet_work import (
    AskQuote,
    FleetWork,
    LookAt,
    WorkerFacts,
    WorkerMessage,
    WorkerQuote,
    WorkRefused,
)
from quire.fleet.worker import FleetWorker
from quire.tiers.shared import SharedConfig
from quire.viewer.page_routes import Reply

HOST_BYTES = "256MiB"  # of a replica with a shared store for which nothing else is said


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """What every replica is made of. Files are read where the replica runs."""

    model: str | None = None  # a folder or a hub id; None: the embedded one
    device: str = "cpu"
    dtype: str = "float32"
    device_memory: str = "512MiB"
    host_memory: str = "0"
    max_length: int | None = None
    max_requests: int = 64  # inside one replica at the same time
    shared: str | None = field(default=None, repr=False)  # a store that all replicas share; may have a password
    event_seed: bytes = field(default=b"", repr=False)  # the same for all, so that a prompt is hashed once
    key_file: str | None = None  # CURVE: the replicas' own secret key
    router_key: str | None = None  # and the public key of who may listen
    threads: int | None = None  # of torch, per replica
    show_tokens: bool = False  # whether the live page shows prompts
    eviction: Eviction = "auto"  # which idle page goes first, as in CacheConfig
    eviction_cost: EvictionCost = "tokens"  # likewise
    compute_doubles_at: int | None = None  # as in EngineConfig
    receipt_chunks: int = 0  # as in CacheConfig
    scheduling: Scheduling = "fair"  # as in EngineConfig
    overlap: bool | None = None  # likewise
    share_pending: bool = True  # likewise
    graphs: Graphs = "auto"  # likewise
    deadlines: float | None = None  # likewise
    granted: tuple[tuple[str, int], ...] = ()  # priorities of tenants, as in EngineConfig
    generation: int = 0  # another number makes other replicas: a rolling restart


class Replica:
    """One of them."""

    def __init__(self, config: ReplicaConfig) -> None:
        if config.threads is not None:
            import torch

            torch.set_num_threads(config.threads)
        self._config = config
        place = smollm2.folder() if config.model is None else checked(config.model)
        model = load(place, device=config.device, dtype=config.dtype)
        fields: dict[str, Any] = {
            "max_waiting": config.max_requests, "events": True, "receipts": True, "eviction": config.eviction,
            "eviction_cost": config.eviction_cost, "compute_doubles_at": config.compute_doubles_at,
            "receipt_chunks": config.receipt_chunks,
            "scheduling": config.scheduling, "granted": config.granted, "overlap": config.overlap,
            "share_pending": config.share_pending, "graphs": config.graphs, "deadlines": config.deadlines,
        }  # fmt: skip
        if config.event_seed:
            fields["event_seed"] = config.event_seed
        if config.max_length is not None:
            fields["max_length"] = config.max_length
        host = config.host_memory if config.shared is None or config.host_memory != "0" else HOST_BYTES
        shared = None if config.shared is None else SharedConfig(config.shared)
        self._llm = LLM(model, config=fitting(model, config.device_memory, host, **fields), shared=shared)
        self._publisher = self._llm.loop.call(self._published)
        self._worker = FleetWorker(
            self._llm,
            serve.get_replica_context().replica_id.unique_id,
            show_tokens=config.show_tokens,
        )
        if config.device != "cpu":
            self._llm.loop.call(lambda engine: engine.warm_up())

    def _published(self, engine: Any) -> Publisher:
        """On an address that routers on other nodes can reach, if there are any."""
        config, here = self._config, f"tcp://{ray.util.get_node_ip_address()}:*"
        room = Room()
        if config.key_file is not None:
            keys = Keys.read(config.key_file)
            room = Room(keys=keys if config.router_key is None else keys.admitting([config.router_key]))
        publisher = Publisher(engine.cache, here, replay=here, bind=True, room=room)
        EnginePublisher(engine, publisher).step()  # so that routers know of an empty cache, too
        return publisher

    def record_replica_metadata(self) -> dict[str, Any]:
        """What routers hear of it."""
        return {
            "quire_events": self._publisher.endpoint,
            "quire_replay": self._publisher.replay_endpoint,
            "pid": os.getpid(),
        }

    def check_health(self) -> None:
        """Ray starts another one when this raises."""
        self._worker.check()

    def facts(self) -> WorkerFacts:
        """What the server must know."""
        return self._worker.facts()

    async def answer(self, work: FleetWork) -> AsyncIterator[WorkerMessage]:
        """As FleetWorker.answer."""
        async for message in self._worker.answer(work):
            yield message

    async def quote(self, ask: AskQuote) -> WorkerQuote | WorkRefused:
        """As FleetWorker.quote."""
        return await self._worker.quote(ask.work)

    async def look(self, asked: LookAt) -> Reply:
        """As FleetWorker.look, beside the answers."""
        return await asyncio.to_thread(self._worker.look, asked)

    def __del__(self) -> None:
        if hasattr(self, "_llm"):
            self._llm.close()
