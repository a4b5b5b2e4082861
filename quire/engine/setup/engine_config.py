"""EngineConfig: sizes and budgets of one engine, checked once; PrefillPeer: who computes its prompts. No model here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from quire.core.records.caller_arguments import keep_tuples, names_fields
from quire.core.records.config import EVENT_SEED, CacheConfig, Eviction, EvictionCost, TierConfig
from quire.core.records.errors import InputError, say, shown
from quire.core.records.groups import LayerGroup
from quire.core.records.memory import parse_bytes
from quire.core.records.request import check_tenant
from quire.engine.sampling.param_checks import LARGEST
from quire.engine.sampling.params import brief
from quire.incidents.signs import Lines, seconds_of
from quire.insight.deadlines.margins import checked_share

Scheduling = Literal["fair", "fcfs"]
Graphs = Literal["auto", "on", "off"]
NO_STEPS_FOR_A_MINUTE = Lines()
_SIZES = ("block_size", "max_num_tokens", "max_sequences", "max_length", "snapshot_every", "max_waiting", "max_unread")
_SWITCHES = ("reuse", "partial_reuse", "wait_for_reuse", "share_pending", "events", "receipts", "bill_sessions")
_CHOICES: tuple[tuple[str, object, str], ...] = (
    ("eviction", Eviction, "order"), ("eviction_cost", EvictionCost, "cost"), ("scheduling", Scheduling, "order"),
    ("graphs", Graphs, "mode"),
)  # fmt: skip

if TYPE_CHECKING:
    from quire.transfer import Tls  # needs msgspec, which others do without


@names_fields
@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes and budgets of one engine."""

    device_pages: int | Sequence[int]  # slots on the device, for each pool of layer groups alike or one number per pool
    host_pages: int | Sequence[int] = 0  # and in host memory
    block_size: int = 16
    max_num_tokens: int = 512  # tokens one step computes, decoding included: never exceeded
    max_sequences: int = 64  # answers computed at the same time
    max_length: int = 2048  # prompt and answer of one request
    max_chunk: int | None = None  # longest part of a prompt in one step; None: as the budget allows
    snapshot_every: int = 256  # tokens between snapshots of a recurrent state
    snapshot_decoding: int | None = None  # the same in answers; 0: none; None: as in prompts
    reuse: bool = True
    partial_reuse: bool = True
    wait_for_reuse: bool = True  # a request may wait a step for a prefix that another is computing; False: nor share it
    share_pending: bool = True  # it uses what a step is computing of that, and waits only for the rest, if it may wait
    graphs: Graphs = (
        "auto"  # decoding steps of fixed sizes, as CUDA graphs; "on": on a CPU too, uncaptured; "off": none
    )
    overlap: bool | None = None  # prepare a step while the one before computes; None: where a GPU computes
    max_waiting: int = 1024  # runs in the engine at the same time; more are refused
    max_unread: int = 4096  # unread pieces of one stream; a run with more is ended
    events: bool = False  # record what a Publisher sends to routers
    receipts: bool = False  # every run says why it reused no more of its prompt (`run.receipt`)
    receipt_chunks: int = 0  # of text that receipts find again behind another beginning, as in CacheConfig
    rank: int = 0  # of this engine among data-parallel ones, as events say it
    event_seed: bytes = field(default=EVENT_SEED, repr=False)  # of event hashes, shared by engines behind one router
    disk_pages: int | Sequence[int] = 0  # slots on disk, behind host memory; what is there lasts (Engine(disk=...))
    eviction: Eviction = "auto"  # which idle page goes first, as in CacheConfig
    eviction_cost: EvictionCost = "tokens"  # likewise
    compute_doubles_at: int | None = None  # likewise; None: by the model's shape
    scheduling: Scheduling = "fair"  # turns between tenants; "fcfs": first come, first served
    granted: Mapping[str, int] | Sequence[tuple[str, int]] = ()  # priority of tenants, lower first; of others 0
    deadlines: float | None = None  # share of bounds to keep, as 0.95; None: no request may have a deadline
    incidents: str | Path | None = None  # a folder for the cache's last calls, written when something is wrong
    incidents_keep: str | float = "1h"  # how far back they are to reach
    incidents_bytes: str | int = "256MiB"  # memory that they may take; with less than `keep` needs a warning is logged
    incident_lines: Lines = NO_STEPS_FOR_A_MINUTE  # what must not be crossed: no step for long, few hits, long waits
    bills: str | Path | None = None  # what each tenant uses is written there: a .json file, or a folder for it
    bill_sessions: bool = False  # each session is billed apart

    def __post_init__(self) -> None:
        keep_tuples(self, "device_pages", "host_pages", "disk_pages")
        for name in _SIZES:
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= LARGEST:
                raise InputError(say(f"{name} {shown(value)}", "it is not a whole number above 0", "give one, as 16"))
        for name in _SWITCHES:
            if type(value := getattr(self, name)) is not bool:
                raise InputError(say(f"{name} {shown(value)}", "it is neither True nor False", "give one of them"))
        _check_overlap(self.overlap)
        for name in ("device_pages", "host_pages", "disk_pages"):
            value = getattr(self, name)
            if any(type(one) is not int or not 0 <= one <= LARGEST for one in _each(value)):
                fact = f"it is not a number of pages from 0 to {LARGEST}"
                raise InputError(say(f"{name} {shown(value)}", fact, "give one, or a list with one per pool"))
        if self.max_num_tokens < self.max_sequences:
            fact = f"{self.max_sequences} sequences compute a token each"
            cure = f"give at least {self.max_sequences}, or lower max_sequences"
            raise InputError(say(f"max_num_tokens {self.max_num_tokens}", fact, cure))
        _check_count("max_chunk", self.max_chunk)
        _check_count("compute_doubles_at", self.compute_doubles_at)
        every = 0 if self.snapshot_decoding is None else self.snapshot_decoding
        if type(every) is not int or not 0 <= every <= LARGEST:
            fact = "it is not a whole number from 0 on"
            raise InputError(say(f"snapshot_decoding {shown(every)}", fact, "give one, as 256, or None"))
        for name, known, word in _CHOICES:
            value = getattr(self, name)
            if not isinstance(value, str) or value not in get_args(known):
                fact = f"it is not a known {word}"
                raise InputError(say(f"{name} {shown(value)}", fact, f"use one of {', '.join(get_args(known))}"))
        object.__setattr__(self, "granted", granted_pairs(self.granted))
        checked_share(self.deadlines)
        for name in ("incidents", "bills"):
            _check_folder(name, getattr(self, name))
        seconds_of(self.incidents_keep)
        parse_bytes(self.incidents_bytes, "incidents_bytes")
        _check_lines(self.incident_lines)
        if type(self.rank) is not int or not 0 <= self.rank <= LARGEST:
            raise InputError(say(f"rank {shown(self.rank)}", "it is not a whole number from 0 on", "give one, as 0"))

    def __repr__(self) -> str:
        return brief(self)

    @property
    def longest_chunk(self) -> int:
        """The longest part of a prompt that one step computes."""
        return min(self.max_num_tokens, self.max_chunk or self.max_num_tokens)

    @property
    def longest_uncut(self) -> int:
        """Tokens of a prompt that one step can compute together, whatever other sequences do."""
        return min(self.longest_chunk, self.max_num_tokens - self.max_sequences + 1)

    def overlaps_on(self, device: str) -> bool:
        """Whether a step is prepared while the one before computes, on this type of device."""
        return device == "cuda" if self.overlap is None else self.overlap

    def cache_config(
        self, groups: tuple[LayerGroup, ...], computes_all: bool = True, doubles_at: int = 30_000
    ) -> CacheConfig:
        """The cache of such an engine; else a connector may bring KV that a step was to compute, and no other uses it
        before. `doubles_at`: where a token costs twice, by the model's shape."""
        tiers = [TierConfig("device", self.device_pages)]
        if _some(self.host_pages):
            tiers.append(TierConfig("host", self.host_pages))
        if _some(self.disk_pages):
            if len(tiers) < 2:
                fact = "pages come from there into host memory, and there is none"
                raise InputError(say(f"disk_pages {shown(self.disk_pages)}", fact, "give host_pages too"))
            tiers.append(TierConfig("disk", self.disk_pages, slow=True))
        if self.snapshot_decoding is not None:
            every = -(-self.snapshot_decoding // self.block_size) * self.block_size
            groups = tuple(replace(one, snapshot_decoding=every) if one.current else one for one in groups)
        shares = self.share_pending and self.wait_for_reuse and computes_all
        shares = shares and not any(one.current or one.cross for one in groups)
        return CacheConfig(
            tiers=tuple(tiers), block_size=self.block_size, groups=groups, max_sequences=self.max_sequences,
            max_length=self.max_length, max_chunk=self.longest_chunk, reuse=self.reuse,
            partial_reuse=self.partial_reuse, events=self.events, rank=self.rank,
            event_seed=self.event_seed, receipts=self.receipts, lasting=tiers[-1].slow, eviction=self.eviction,
            eviction_cost=self.eviction_cost, receipt_chunks=self.receipt_chunks, share_pending=shares,
            compute_doubles_at=self.compute_doubles_at or doubles_at,
        )  # fmt: skip


def _check_count(name: str, value: object) -> None:
    if value is not None and (type(value) is not int or not 1 <= value <= LARGEST):
        raise InputError(say(f"{name} {shown(value)}", "it is not a whole number above 0", "give one, or None"))


def _check_lines(lines: object) -> None:
    if not isinstance(lines, Lines):
        fact = f"they are a {type(lines).__name__}"
        raise InputError(say("incident_lines", fact, "pass quire.incidents.Lines(...)"))


def _check_overlap(overlap: object) -> None:
    if overlap is not None and type(overlap) is not bool:
        fact = "it is neither True nor False, nor None for the engine's own choice"
        raise InputError(say(f"overlap {shown(overlap)}", fact, "give one of them"))


def granted_pairs(given: object) -> tuple[tuple[str, int], ...]:
    """Priorities of tenants, by name, each once; the last one given counts."""
    pairs = given.items() if isinstance(given, Mapping) else given
    try:
        granted = dict(pairs)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        fact = "it has no priority for each of its tenants"
        raise InputError(say(f"granted {shown(given)}", fact, "give a dict, as {'alice': -1}")) from None
    for name, priority in granted.items():
        check_tenant(name, "a granted priority")
        if type(priority) is not int or abs(priority) > LARGEST:
            fact = f"that of a tenant is {shown(priority)}"
            raise InputError(say("a granted priority", fact, "give a whole number; lower goes first"))
    return tuple(sorted(granted.items()))


def _some(pages: object) -> bool:
    return any(_each(pages))


def _each(pages: object) -> tuple[object, ...]:
    return pages if isinstance(pages, tuple) else (pages,)


@dataclass(frozen=True, slots=True)
class PrefillPeer:
    """A peer that computes prompts for an engine that decodes them."""

    address: str  # host:port
    secret: bytes = field(repr=False)  # known to both
    link: str = "tcp"  # or nixl
    patience: float = 60.0  # seconds from asking for a prompt until it is computed here: its queue there counts
    tls: Tls | None = None  # of quire.transfer; tcp only


def _check_folder(name: str, value: object) -> None:
    if value is not None and not (isinstance(value, str | Path) and str(value)):
        raise InputError(say(f"{name} {shown(value)}", "it is not a folder", "give its path, or None"))
