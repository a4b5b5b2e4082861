"""RayFleet: starts Ray, or joins it, deploys replicas, and gives a server what it needs of them. Knows no HTTP."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from quire.core.records.errors import InputError, say, shown
from quire.engine.model import smollm2
from quire.engine.model.folders import TOKENIZER_FILES, checked
from quire.engine.model.load import LOCAL
from quire.fleet.fleet_work import AskQuote, FleetWork, LookAt, WorkerFacts, WorkerQuote, WorkRefused
from quire.fleet.on_ray.calls import RayCall, ask_quote
from quire.fleet.on_ray.open_books import open_books
from quire.fleet.on_ray.replica import Replica, ReplicaConfig
from quire.fleet.worker_book import RankWeights, WorkerBook
from quire.viewer.page_routes import Reply

LOOPBACK = "127.0.0.1"
ROUTER = "quire.fleet.on_ray.router.IndexRouter"


@dataclass(frozen=True, slots=True)
class RayFleetConfig:
    """How many replicas, where, and how requests find them."""

    replicas: int
    replica: ReplicaConfig = field(default_factory=ReplicaConfig)
    ray_address: str | None = None  # of a running cluster; None: one of this machine, which ends with us
    max_queued: int = 256  # requests that wait for a replica; more get 429
    grace: float = 30.0  # seconds that a replica has to finish its answers when it is replaced
    cpus: float = 1.0  # of Ray's account, per replica
    gpus: float = 0.0
    weights: RankWeights = field(default_factory=RankWeights)
    key_file: str | None = None  # CURVE: the server's own secret key
    server_key: str | None = None  # and the replicas' public one
    max_per_node: int | None = None
    router: str | None = ROUTER  # None: Ray's own, by queue length
    name: str = "quire"

    def __post_init__(self) -> None:
        if type(self.replicas) is not int or not 1 <= self.replicas <= 4096:
            raise InputError(
                say(f"replicas {shown(self.replicas)}", "it is not a number of replicas", "give 1 or more")
            )


class RayFleet:
    """Replicas that run until it is closed."""

    def __init__(self, config: RayFleetConfig) -> None:
        seed = config.replica.event_seed or secrets.token_bytes(16)
        self._config = replace(config, replica=replace(config.replica, event_seed=seed))
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            _start(self._config)
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        self._handle = self._deploy()
        self.facts: WorkerFacts = self._handle.facts.remote().result(timeout_s=120)
        self._answers = self._handle.options(stream=True)

    def __repr__(self) -> str:
        return f"RayFleet({self._config.replicas} replicas of {self._config.replica.model or 'the embedded model'})"

    def _deploy(self) -> Any:
        config = self._config
        kwargs = {
            "share": config.weights.share, "least": config.weights.least, "key_file": config.key_file,
            "server_key": config.server_key,
        }  # fmt: skip
        routing = (
            RequestRouterConfig()
            if config.router is None
            else RequestRouterConfig(request_router_class=config.router, request_router_kwargs=kwargs)
        )
        made = serve.deployment(
            Replica, name="Replica", num_replicas=config.replicas, max_ongoing_requests=config.replica.max_requests,
            max_queued_requests=config.max_queued, request_router_config=routing, health_check_period_s=1,
            health_check_timeout_s=10, graceful_shutdown_timeout_s=config.grace, graceful_shutdown_wait_loop_s=0.1,
            ray_actor_options={"num_cpus": config.cpus, "num_gpus": config.gpus},
            max_replicas_per_node=config.max_per_node,
        )  # fmt: skip
        return serve.run(made.bind(config.replica), name=config.name, route_prefix=None)

    def call(self, work: FleetWork) -> RayCall:
        """Have some replica do it."""
        return RayCall(self._answers, work)

    async def quote(self, ask: AskQuote) -> WorkerQuote | WorkRefused:
        """Ask one replica when a first token would come."""
        return await ask_quote(self._handle, ask)

    async def look(self, asked: LookAt) -> Reply:
        """Ask one replica about its cache."""
        reply: Reply = await self._handle.look.remote(asked)
        return reply

    def books(self) -> list[WorkerBook]:
        """What is known of the replicas."""
        return open_books()

    def restart(self) -> None:
        """Other replicas, a few at a time; each finishes its answers first. Returns when all are new."""
        replica = replace(self._config.replica, generation=self._config.replica.generation + 1)
        self._config = replace(self._config, replica=replica)
        self._deploy()

    def close(self) -> None:
        """End the replicas, and Ray if it was started here."""
        serve.delete(self._config.name)
        if self._owns_ray:
            serve.shutdown()
            ray.shutdown()


def _start(config: RayFleetConfig) -> None:
    common: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if config.ray_address is not None:
        ray.init(address=config.ray_address, **common)
        return
    cpus = max(os.cpu_count() or 1, int(config.replicas * config.cpus) + 1)
    ray.init(num_cpus=cpus, include_dashboard=False, _node_ip_address=LOOPBACK, **common)


def tokenizer_of(model: str | None) -> Any:
    """A model's tokenizer alone; None: it has none."""
    from transformers import AutoTokenizer

    place = smollm2.folder() if model is None else checked(model)
    if not any((place / name).is_file() for name in TOKENIZER_FILES):
        return None
    return AutoTokenizer.from_pretrained(place, **LOCAL)
