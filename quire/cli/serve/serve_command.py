"""quire serve: a model behind an OpenAI-compatible HTTP server. Prints where it listens when it is ready.

Without options it serves the embedded SmolLM2 on the CPU, to this machine only. Ctrl-C or TERM ends it: answers under
way are finished, for as long as --grace says; a second time, at once. API keys come from a file or $QUIRE_API_KEYS.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any, get_args

from quire import InputError, QuireError
from quire.cli.arguments import CommandParser, finite, not_negative
from quire.cli.model_options import add_model, note_printer, read_secret
from quire.cli.serve.fleet_options import add_fleet, check_fleet
from quire.cli.serve.watcher_options import add_watchers, watcher_fields
from quire.core.records.config import Eviction
from quire.core.records.errors import say
from quire.core.records.memory import parse_bytes
from quire.core.store import tell_slow_store
from quire.net.hosts import LOOPBACK, is_loopback
from quire.net.tls import check_tls

if TYPE_CHECKING:
    from quire.engine import LLM, PrefillPeer
    from quire.serve import ServeSettings, Service

SHARED = "QUIRE_SHARED"  # in the environment, where a password is in no list of processes
USUAL_ORDER = "auto (the default) is adaptive, but lru where windows or states have their own pools"
FIRST = (
    "--model", "--device", "--device-memory", "--host-memory", "--host", "--port", "--model-name", "--max-length",
    "--max-requests", "--api-key-file", "--disk", "--disk-bytes", "--shared", "--replicas", "--record",
)  # fmt: skip
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def main(argv: list[str] | None = None) -> int:
    """Bind, load, serve until a signal ends it."""
    options = _parser().parse_args(argv)
    tell = note_printer()
    tell_slow_store(tell)
    logging.basicConfig(level=options.log_level.upper(), format=FORMAT, stream=sys.stderr)
    try:
        settings, listening = _prepare(options, tell)
    except (QuireError, ImportError, OSError, ValueError) as wrong:
        print(f"quire serve: {wrong}", file=sys.stderr)
        return 2
    if options.replicas is not None:
        with listening:
            return _run_fleet(options, settings, listening, tell)
    with listening:
        try:
            llm = _open(options, tell)
        except (QuireError, ImportError, OSError, ValueError) as wrong:  # of a folder without a model that works, too
            print(f"quire serve: {wrong}", file=sys.stderr)
            return 2
        with llm:
            from quire.serve import Service

            _serve(Service(llm, settings), listening, options)
            broken = llm.loop.error
    if broken:
        print(f"quire serve: {broken}", file=sys.stderr)
    return int(bool(broken))


def _run_fleet(options: Namespace, settings: ServeSettings, listening: socket, tell: Callable[[str], None]) -> int:
    from quire.cli.serve.fleet_options import run_fleet

    try:
        run_fleet(options, settings, tell, lambda service: _serve(service, listening, options))
    except (QuireError, ImportError, OSError, ValueError, RuntimeError) as wrong:
        print(f"quire serve: {wrong}", file=sys.stderr)
        return 2
    return 0


def _parser() -> ArgumentParser:
    parser = CommandParser(prog="quire serve", description=__doc__, first=FIRST)
    add_model(parser)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="where to listen (default %(default)s: this machine only)")
    add("--port", type=int, default=8000, help="0: any free one (default %(default)s)")
    add("--model-name", metavar="NAME", help="what clients call the model (default: its folder or hub id)")
    add("--max-length", type=int, metavar="N", help="tokens of a prompt and its answer (default: the model's, or 8192)")
    add("--eviction", choices=get_args(Eviction), default="auto", help=f"which cached page goes first: {USUAL_ORDER}")
    add("--eviction-cost", choices=["tokens", "compute"], default="tokens", help="compute keeps deep pages longer")
    add("--compute-doubles-at", type=int, metavar="N", help="where a token costs twice (default: the model's shape)")
    add("--receipt-chunks", type=int, default=0, metavar="N", help="of 8 tokens: text that receipts find again (0)")
    _add_steps(parser)
    add("--max-requests", type=int, default=256, metavar="N", help="at the same time; others get 429 (default 256)")
    add("--max-connections", type=int, default=1024, metavar="N", help="idle ones make room (default %(default)s)")
    add("--queue-seconds", type=float, default=0.0, metavar="S", help="they may wait so long for a place (default 0)")
    add("--api-key-file", metavar="FILE", help="a key per line, or a tenant and a key; default: $QUIRE_API_KEYS")
    add("--allow-origin", action="append", default=[], metavar="URL", help="pages that may ask (CORS); default none")
    add("--allow-host", action="append", default=[], metavar="NAME", help="a Host header to accept, besides local ones")
    add("--allow-priority", action="store_true", help="clients may choose who is scheduled first")
    add("--viewer-key-file", metavar="FILE", help="a key for the live page at /; default: $QUIRE_VIEWER_KEY")
    add("--no-viewer", action="store_true", help="no live page (default: with a key, or for this machine only)")
    add("--show-tokens", action="store_true", help="the live page shows prompts to everyone who may look at it")
    add("--events", metavar="ENDPOINT", help="publish what is cached to routers: tcp://127.0.0.1:5557")
    add("--events-replay", metavar="ENDPOINT", help="and what they have missed: tcp://127.0.0.1:5558")
    _add_outside(parser)
    add_fleet(parser)
    add("--record", metavar="FILE", help="write a trace of what is served, without text and tokens: for quire replay")
    add("--record-key", metavar="FILE", help="traces with one key can be joined (default: a new key)")
    add_watchers(parser)
    add("--tls-cert", metavar="PEM", help="a certificate: HTTPS")
    add("--tls-key", metavar="PEM", help="and its key")
    add("--grace", type=float, default=30.0, metavar="S", help="for answers under way at the end (default 30)")
    add("--log-level", choices=["debug", "info", "warning", "error"], default="info", help="(default info)")
    return parser


def _add_steps(parser: ArgumentParser) -> None:
    """Whose turn it is, and how steps run."""
    add = parser.add_argument
    add("--scheduling", choices=["fair", "fcfs"], default="fair", help="turns between tenants (default), or not")
    add("--deadlines", type=finite, metavar="Q", help="requests may have ttft_ms; so many bounds are kept: 0.95")
    ahead = "prepare a step while the one before computes (default: on GPUs)"
    add("--overlap", action=BooleanOptionalAction, help=ahead)
    sharing = "prompts use what a step computes for others (default), or wait for it"
    add("--share-pending", action=BooleanOptionalAction, default=True, help=sharing)
    add("--enforce-eager", action="store_true", help="no CUDA graphs for decoding steps")
    add("--grant", action="append", default=[], metavar="TENANT=N", help="its priority; lower goes first (default 0)")
    parser.set_defaults(granted=())  # what --grant says, when it has been read


def _add_outside(parser: ArgumentParser) -> None:
    """What lies outside of the engine's memory."""
    add = parser.add_argument
    add("--disk", metavar="FOLDER", help="keep pages in this folder, also over a restart")
    add("--disk-bytes", default="0", metavar="SIZE", help="space for them, such as 200GB")
    add("--shared", metavar="STORE", help=f"a folder or redis://host:6379/0 that machines share; default: ${SHARED}")
    add("--prefill-peer", metavar="HOST:PORT", help="prompts are computed by a `quire prefill` there")
    add("--patience", type=not_negative, default=60.0, metavar="S", help="for a prompt to come from it (default 60)")
    add("--secret-file", metavar="FILE", help="the secret of both sides; default: $QUIRE_SECRET")
    add("--link", choices=["tcp", "nixl"], default="tcp", help="how pages travel from it (default tcp)")
    add("--peer-tls", nargs=3, metavar="PEM", help="certificate, key, and authority to trust: encrypts the connection")


def _prepare(options: Namespace, tell: Callable[[str], None]) -> tuple[ServeSettings, socket]:
    """Everything that can be wrong before a model is loaded, which takes long."""
    from quire.serve import ApiKeys, ServeSettings, bind
    from quire.serve.http.auth import ENVIRONMENT
    from quire.serve.server import check_grace

    check_grace(options.grace)
    _check_memory(options)
    check_fleet(options)
    keys = None
    if options.api_key_file is not None:
        keys = ApiKeys.of_file(options.api_key_file)
    elif os.environ.get(ENVIRONMENT):
        keys = ApiKeys.of_environment(os.environ[ENVIRONMENT])
    if bool(options.tls_cert) != bool(options.tls_key):
        raise InputError(say("TLS", "a certificate needs its key", "give --tls-cert and --tls-key"))
    if options.tls_cert:
        check_tls(options.tls_cert, options.tls_key)
    options.granted = _granted(options.grant, keys is not None)
    local = is_loopback(options.host)
    if not local and keys is None:
        tell(f"everyone who can reach {options.host} may use this server: give it API keys, or a private network")
    hosts = (*LOOPBACK, options.host, *options.allow_host) if local and keys is None else None
    settings = ServeSettings(
        _name(options), keys=keys, hosts=hosts, origins=tuple(options.allow_origin),
        queue_seconds=options.queue_seconds, max_connections=options.max_connections,
        allow_priority=options.allow_priority, viewer_key=_viewer_key(options),
        viewer=False if options.no_viewer else None, show_tokens=options.show_tokens,
    )  # fmt: skip
    return settings, bind(options.host, options.port)


def _check_memory(options: Namespace) -> None:
    """What memory, disk, store and peer cannot be, before a model is loaded."""
    _engine_fields(options)
    amounts = {"device memory": options.device_memory, "host memory": options.host_memory, "disk": options.disk_bytes}
    sizes = {what: parse_bytes(amount, what) for what, amount in amounts.items()}
    if (options.disk is None) != (not sizes["disk"]):
        fact = "nothing says where" if options.disk is None else "nothing says how much of it"
        raise InputError(say("a disk", fact, "give --disk FOLDER and --disk-bytes 200GB"))
    if options.record_key and not options.record:
        raise InputError(say("--record-key", "nothing is recorded", "give --record FILE"))
    options.shared = options.shared or os.environ.get(SHARED) or None
    if options.shared is not None:
        from quire.engine.memory.shared_side import shared_config

        shared_config(options.shared)
    if options.disk is not None:
        from quire.engine.memory.disk_side import disk_config

        disk_config(options.disk)
    options.peer = None if options.prefill_peer is None else _peer(options)


def _peer(options: Namespace) -> PrefillPeer:
    from quire.engine import PrefillPeer
    from quire.engine.disagg.remote import check_peer
    from quire.transfer import Tls

    tls = None if options.peer_tls is None else Tls(*options.peer_tls)
    peer = PrefillPeer(options.prefill_peer, read_secret(options), options.link, options.patience, tls)
    check_peer(peer)
    return peer


def _granted(grants: list[str], has_keys: bool) -> tuple[tuple[str, int], ...]:
    """Priorities of tenants, from TENANT=N."""
    granted: dict[str, int] = {}
    for grant in grants:
        name, _, number = grant.rpartition("=")
        if not name or re.fullmatch(r"-?[0-9]{1,9}", number) is None:
            raise InputError(say(f"--grant {grant}", "it is not TENANT=N", "give a name and a whole number: alice=-1"))
        granted[name] = int(number)
    if granted and not has_keys:
        raise InputError(
            say("--grant", "without API keys there are no tenants", "give --api-key-file, or leave it out")
        )
    return tuple(sorted(granted.items()))


def _viewer_key(options: Namespace) -> str | None:
    if options.viewer_key_file is None:
        return os.environ.get("QUIRE_VIEWER_KEY") or None
    try:
        return Path(options.viewer_key_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as wrong:
        raise InputError(say("the live page's key", str(wrong), "name a file that has it")) from None


def _name(options: Namespace) -> str:
    if options.model_name:
        return str(options.model_name)
    if options.model is None:
        return "SmolLM2-135M-Instruct"
    return str(options.model) if not Path(options.model).exists() else Path(options.model).resolve().name


def _engine_fields(options: Namespace) -> dict[str, Any]:
    """The engine's options, checked."""
    from quire.engine import EngineConfig

    fields: dict[str, Any] = {
        "max_waiting": options.max_requests, "receipts": True, "eviction": options.eviction,
        "eviction_cost": options.eviction_cost, "compute_doubles_at": options.compute_doubles_at,
        "receipt_chunks": options.receipt_chunks,
        "scheduling": options.scheduling, "granted": options.granted, "overlap": options.overlap,
        "graphs": "off" if options.enforce_eager else "auto", "share_pending": options.share_pending,
        "deadlines": options.deadlines,
    }  # fmt: skip
    if options.max_length is not None:
        fields["max_length"] = options.max_length
    fields |= watcher_fields(options)
    EngineConfig(1, **fields)
    return fields


def _open(options: Namespace, tell: Callable[[str], None]) -> LLM:
    from quire.engine import LLM, fitting, load
    from quire.engine.llm import check_device
    from quire.engine.memory.shared_side import HOST_BYTES
    from quire.engine.model import smollm2
    from quire.engine.model.load import outline
    from quire.engine.setup.fitting import check_room

    check_device(options.device)
    place = smollm2.folder(tell) if options.model is None else options.model
    fields, host = _engine_fields(options), options.host_memory
    if not parse_bytes(host, "host memory") and (options.disk or options.shared):
        host = HOST_BYTES  # pages come from there through host memory
    plan = outline(place, dtype=options.dtype)
    if plan is not None:  # memory that cannot suffice is refused before the weights are read
        fitting(plan, options.device_memory, host, options.disk_bytes, **fields)
        check_room(plan, options.device, options.device_memory)
    tell(f"loading {_name(options)}")
    model = load(place, device=options.device, dtype=options.dtype)
    config = fitting(model, options.device_memory, host, options.disk_bytes, **fields)
    llm = LLM(
        model, config=config, publish=options.events, replay=options.events_replay, disk=options.disk,
        shared=options.shared, prefill_peer=options.peer,
    )  # fmt: skip
    try:
        if options.record:
            llm.record(options.record, key_file=options.record_key)
        if llm.loop.engine.incidents is not None:
            llm.loop.engine.incidents.listen()
        if options.device != "cpu":
            tell("warming up")
            llm.loop.call(lambda engine: engine.warm_up())
    except BaseException:
        llm.close()
        raise
    return llm


def _serve(service: Service, listening: socket, options: Namespace) -> None:
    from prometheus_client import disable_created_metrics

    from quire.serve import Server

    disable_created_metrics()  # type: ignore[no-untyped-call]  # as many series again, for no reader
    tls = (options.tls_cert, options.tls_key) if options.tls_cert else None
    server = Server(service, grace=options.grace, tls=tls)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    server.on_ready = lambda: print(f"{'https' if tls else 'http'}://{shown}:{port}", flush=True)
    server.run(sockets=[listening])


if __name__ == "__main__":
    sys.exit(main())
