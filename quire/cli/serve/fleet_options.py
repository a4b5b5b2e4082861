"""quire serve --replicas N: a server in front of many workers, which Ray Serve runs. HUP restarts them in turn."""

from __future__ import annotations

import signal
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quire import InputError
from quire.cli.arguments import not_negative, positive
from quire.core.records.errors import say, without_words

if TYPE_CHECKING:
    from quire.fleet.on_ray.launch import RayFleet
    from quire.serve import ServeSettings

NOT_THERE = ("disk", "prefill_peer", "record", "events", "events_replay", "incidents", "bills")  # options of one engine


def add_fleet(parser: ArgumentParser) -> None:
    """How many workers, and where."""
    add = parser.add_argument
    add("--replicas", type=int, metavar="N", help="engines behind this server, run by Ray Serve")
    add("--ray", metavar="ADDRESS", help="a running Ray cluster (auto, or host:port); default: one of this machine")
    add("--replica-gpus", type=not_negative, metavar="N", help="of each replica (default: 1 with --device cuda)")
    add("--max-queued", type=int, default=256, metavar="N", help="may wait for a replica; others get 429 (default 256)")
    add(
        "--route-seconds", type=positive, default=30.0, metavar="S", help="until a replica takes a request (default 30)"
    )
    add("--worker-keys", nargs=2, metavar="FILE", help="CURVE: the replicas' secret key and public key, for events")
    add("--router-keys", nargs=2, metavar="FILE", help="CURVE: this server's secret key and public key")


def check_fleet(options: Namespace) -> None:
    """What does not go together, before anything is started."""
    if options.replicas is None:
        if options.ray is not None:
            raise InputError(say("--ray", "there are no replicas to run there", "give --replicas N"))
        return
    import quire.fleet.on_ray  # noqa: F401  (says which extra is missing)

    for name in NOT_THERE:
        if getattr(options, name) not in (None, False):
            fact = "it is of one engine, and here are many"
            raise InputError(say(f"--{name.replace('_', '-')} with --replicas", fact, "leave it out"))
    if bool(options.worker_keys) != bool(options.router_keys):
        raise InputError(say("CURVE keys", "both sides need some", "give --worker-keys and --router-keys"))


def run_fleet(
    options: Namespace, settings: ServeSettings, tell: Callable[[str], None], serve: Callable[[Any], None]
) -> None:
    """Start the replicas, serve until a signal, end them. `serve` runs a server over a Service."""
    from quire.fleet.fleet_service import FleetService
    from quire.fleet.fleet_stream import FleetLimits
    from quire.fleet.on_ray.launch import RayFleet, tokenizer_of

    tell(f"starting {options.replicas} replicas")
    words = tokenizer_of(options.model)
    fleet = RayFleet(_config(options))
    try:
        limits = FleetLimits(route_seconds=options.route_seconds)
        service = FleetService(
            settings, words, fleet.facts, fleet.call, fleet.books, limits, looker=fleet.look, quoter=fleet.quote
        )
        _restart_on_hangup(fleet, tell)
        serve(service)
    finally:
        fleet.close()


def _config(options: Namespace) -> Any:
    from quire.fleet.on_ray.launch import RayFleetConfig
    from quire.fleet.on_ray.replica import ReplicaConfig

    worker, router = options.worker_keys or (None, None), options.router_keys or (None, None)
    replica = ReplicaConfig(
        options.model, options.device, options.dtype, options.device_memory, options.host_memory,
        max_length=options.max_length, max_requests=options.max_requests, shared=options.shared,
        key_file=worker[0], router_key=router[1], show_tokens=options.show_tokens, eviction=options.eviction,
        eviction_cost=options.eviction_cost, compute_doubles_at=options.compute_doubles_at,
        receipt_chunks=options.receipt_chunks,
        scheduling=options.scheduling, granted=options.granted, overlap=options.overlap,
        share_pending=options.share_pending, graphs="off" if options.enforce_eager else "auto",
        deadlines=options.deadlines,
    )  # fmt: skip
    gpus = options.replica_gpus if options.replica_gpus is not None else float(options.device != "cpu")
    return RayFleetConfig(
        options.replicas, replica, ray_address=options.ray, max_queued=options.max_queued, grace=options.grace,
        gpus=gpus, key_file=router[0], server_key=worker[1],
    )  # fmt: skip


def _restart_on_hangup(fleet: RayFleet, tell: Callable[[str], None]) -> None:
    """HUP: other replicas, a few at a time, while requests go on."""
    if not hasattr(signal, "SIGHUP"):
        return

    def restart() -> None:
        tell("restarting the replicas")
        try:
            fleet.restart()
        except Exception as wrong:  # those that there are go on
            tell(f"the replicas were not restarted: {without_words(wrong)}")
        else:
            tell("all replicas are new")

    def hear(*_: object) -> None:
        threading.Thread(target=restart, name="quire-restart", daemon=True).start()

    signal.signal(signal.SIGHUP, hear)
