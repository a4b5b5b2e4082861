"""Metrics of what lies outside of an engine's memory: its disk, a store that machines share, a peer for its prompts.

Each yields nothing where the engine has none of it. Read as they are, without waiting for a disk, a store or a peer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from quire.core.records.errors import MissingExtra
from quire.engine.runner.engine import Engine
from quire.serve.metrics.families import Families

if TYPE_CHECKING:
    from quire.engine.disagg.peer import Peer  # needs msgspec
    from quire.tiers.shared import SharedCache  # needs xxhash

KEPT = ("restored", "copied_down", "brought_up", "failed", "left_out", "scrubbed_bad")


def disk_metrics(made: Families, engine: Engine) -> Iterator[Metric]:
    """What the keeper of pages on disk has done. How full it is stands in `quire:pages`."""
    if engine.disk_side is None:
        return
    report = engine.disk_side.keeper.report()
    yield made.gauge("quire:disk_up", "1: pages are copied to disk; 0: it has failed.", float(not report.broken))
    what = "1: changes cannot be recorded now, as on a full disk."
    yield made.gauge("quire:disk_stalled", what, float(bool(report.stalled)))
    pages: dict[tuple[str, ...], float] = {(kind,): getattr(report, kind) for kind in KEPT}
    yield made.counts("quire:disk_pages", "Pages on disk by what became of them.", ("kind",), pages)
    yield made.count("quire:disk_fences", "Times that all before was made durable.", report.fences)
    yield made.count("quire:disk_compactions", "Times that the log was compacted.", report.compactions)
    cache, down, up = engine.cache, 0, 0
    for group, _ in enumerate(cache.config.groups):
        counts = cache.stats(group)
        down += counts.copied_down * counts.page_bytes
        up += counts.prefetched * counts.page_bytes
    moved: dict[tuple[str, ...], float] = {("down",): down, ("up",): up}
    yield made.counts("quire:disk_bytes", "Bytes of pages to and from disk.", ("direction",), moved)


def store_metrics(made: Families, shared: SharedCache | None) -> Iterator[Metric]:
    """What came from a shared store and went there, as its client sees it."""
    if shared is None:
        return
    counts = shared.counts()
    yield made.gauge("quire:store_up", "1: the shared store answers.", float(counts.reachable))
    yield made.count("quire:store_openings", "Times that it was given up as unreachable.", counts.openings)
    pages: dict[tuple[str, ...], float] = {("in",): counts.hits, ("out",): counts.sent}
    yield made.counts("quire:store_pages", "Pages that came from it, and went there.", ("direction",), pages)
    moved: dict[tuple[str, ...], float] = {("in",): counts.bytes_in, ("out",): counts.bytes_out}
    yield made.counts("quire:store_bytes", "And their bytes.", ("direction",), moved)
    missed: dict[tuple[str, ...], float] = {("in", str(why)): number for why, number in counts.misses.items()}
    missed |= {("out", str(why)): number for why, number in counts.drops.items()}
    what = "Pages that were asked for and did not come, or were not sent."
    yield made.counts("quire:store_missed_pages", what, ("direction", "reason"), missed)
    calls: dict[tuple[str, ...], float] = {(verb,): number for verb, number in counts.calls.items()}
    yield made.counts("quire:store_calls", "Calls of the store.", ("verb",), calls)
    seconds: dict[tuple[str, ...], float] = {(verb,): spent for verb, spent in counts.seconds.items()}
    yield made.counts("quire:store_call_seconds", "Seconds in them.", ("verb",), seconds)


def transfer_metrics(made: Families, engine: Engine) -> Iterator[Metric]:
    """Prompts that a peer computes for this engine, or this engine for others."""
    peer = _peer(engine)
    if peer is None:
        return
    yield made.gauge("quire:transfers_open", "Transfers of prompts that are not over.", peer.num_open)
    what = "Prompts that did not come from their peer, and were computed here."
    yield made.count("quire:transfer_fallbacks", what, peer.num_fallbacks)


def _peer(engine: Engine) -> Peer | None:
    """The engine's peer, if its connector is one."""
    connector = engine.connector_side.connector
    if connector is None:
        return None
    try:
        from quire.engine.disagg.peer import Peer
    except MissingExtra:
        return None  # so it is a foreign connector
    return connector if isinstance(connector, Peer) else None
