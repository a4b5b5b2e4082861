"""Options: what an operator writes into kv_connector_extra_config, checked by name. Knows no vLLM and no cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import get_args

from quire.core.records.config import Eviction, EvictionCost
from quire.core.records.errors import InputError, say, shown
from quire.core.records.groups import LARGEST
from quire.integrations.vllm.common.memory_sizes import disk_bytes, host_bytes, is_percent

TESTED = ("0.32", "0.33")  # of vLLM; the connector leans on what its scheduler and worker do, not only on signatures


@dataclass(frozen=True, slots=True)
class ConnectorOptions:
    """Sizes and rules of the connector; the names are those of the extra config."""

    host: int  # bytes of host memory for pages, of all ranks together; written "40GB", or "20%" of what may be had
    eviction: Eviction = "auto"  # which page goes first: "adaptive" learns it, "auto" does so but for states alone
    eviction_cost: EvictionCost = "tokens"  # what a lost page costs; "compute" keeps deep pages longer
    compute_doubles_at: int = 30_000  # for "compute": the position of a token that costs twice the first one
    checksums: bool = True  # of every page, made when it is stored and looked at when it is loaded
    store_decoded: bool = True  # blocks that hold generated tokens are kept too
    min_load_tokens: int = 1  # a hit that saves fewer tokens than this is not loaded
    receipts: bool = False  # say why a request missed: in the metrics, and in its answer if it asks
    receipt_chunks: int = 0  # of text that receipts find again behind another beginning, 8 tokens each
    disk: str | None = None  # folder for pages that outlive the process
    disk_bytes: int = 0  # that may lie there, of all ranks together
    shared: str | None = field(default=None, repr=False)  # a store: a folder, or redis://user:password@host:6379/0
    wait: float = 2.0  # seconds that a request is passed over for pages from there
    namespace: str = ""  # of pages that last: what you know of the model and vLLM's config does not say
    record: str | None = None  # file for a trace of the requests, without their tokens
    keep_over_sleep: bool = False  # pages stay while vLLM sleeps: its weights must be the same when it wakes
    any_version: bool = False  # run under a vLLM that was not tested

    def __post_init__(self) -> None:
        if self.host < 1:
            raise InputError(say("host memory of 0 bytes", "there is nothing to keep pages in", "write host=40GB"))
        if self.eviction not in get_args(Eviction):
            fact, cure = "it is not a known order", f"use one of {', '.join(get_args(Eviction))}"
            raise InputError(say(f"eviction {shown(self.eviction)}", fact, cure))
        if self.eviction_cost not in get_args(EvictionCost):
            fact, cure = "it is not a known cost", f"use one of {', '.join(get_args(EvictionCost))}"
            raise InputError(say(f"eviction_cost {shown(self.eviction_cost)}", fact, cure))
        if type(self.compute_doubles_at) is not int or not 1 <= self.compute_doubles_at < LARGEST:
            fact = f"it is a position in a prompt, from 1 to {LARGEST - 1:,}"
            raise InputError(say(f"compute_doubles_at {shown(self.compute_doubles_at)}", fact, "30000 fits 8B models"))
        for name in ("checksums", "store_decoded", "receipts", "keep_over_sleep", "any_version"):
            if type(getattr(self, name)) is not bool:
                raise InputError(say(f"{name} {shown(getattr(self, name))}", "it is on or off", "write true or false"))
        for name in ("disk", "shared", "namespace", "record"):
            given = getattr(self, name)
            if given is not None and (not isinstance(given, str) or (name != "namespace" and not given)):
                raise InputError(say(f"{name} {shown(given)}", "it is not text", f"write {name}=..., or leave it out"))
        if (self.disk is None) != (self.disk_bytes == 0):
            fact = (
                "a disk has a folder and a size" if self.disk is None else "its size is not given, or less than a byte"
            )
            raise InputError(say(f"disk {shown(self.disk)}", fact, "write disk=/folder and disk_bytes=200GB"))
        if isinstance(self.wait, bool) or not isinstance(self.wait, int | float) or not 0 <= self.wait < 3600:
            raise InputError(say(f"a wait of {shown(self.wait)}", "it is not a time", "give seconds, below 3600"))
        chunks = self.receipt_chunks
        if type(chunks) is not int or chunks < 0 or (chunks and not self.receipts):
            fact, cure = "it is a number of chunks, for receipts", "write receipts=true too, or leave it out"
            raise InputError(say(f"receipt_chunks {shown(self.receipt_chunks)}", fact, cure))
        if type(self.min_load_tokens) is not int or self.min_load_tokens < 1:
            fact = "it is a number of tokens, of at least 1"
            raise InputError(say(f"min_load_tokens {shown(self.min_load_tokens)}", fact, "leave it out"))

    @property
    def outer(self) -> bool:
        """Whether there is anything below host memory."""
        return self.disk is not None or self.shared is not None


def read_options(extra: Mapping[str, object]) -> ConnectorOptions:
    """The options of an extra config; what is unknown is refused by name."""
    known = [one.name for one in fields(ConnectorOptions)]
    for name in extra:
        if name not in known:
            raise InputError(
                say(f"option {shown(name)} of QuireConnector", "there is none of that name", f"use {known}")
            )
    if "host" not in extra:
        raise InputError(say("QuireConnector without 'host'", "its memory is not given", "host=40GB"))
    given = dict(extra)
    given["host"] = host_bytes(given["host"])
    if "disk_bytes" in given:
        given["disk_bytes"] = disk_bytes(given["disk_bytes"], given.get("disk"))
    return ConnectorOptions(**given)  # type: ignore[arg-type]  # __post_init__ looks at every one


def check_nodes(extra: Mapping[str, object], nodes: int) -> None:
    """Refuse a percentage where ranks on other machines would take it of other memory."""
    if nodes > 1 and is_percent(extra["host"]):
        fact = f"the ranks are on {nodes} machines, and must come to the same number"
        raise InputError(say(f"host memory of {shown(extra['host'])}", fact, "write 40GB, or a number of bytes"))


def check_version(found: str, any_version: bool) -> None:
    """Refuse a vLLM with whose scheduler the connector was never tried."""
    if not any_version and ".".join(found.split(".")[:2]) not in TESTED:
        fact = f"it was tested with {' and '.join(TESTED)} only, and leans on how the scheduler calls it"
        raise InputError(say(f"QuireConnector under vLLM {shown(found)}", fact, "use those, or write any_version=true"))


def check_sleep(options: ConnectorOptions, is_told: bool) -> None:
    """Refuse to keep pages over a sleep of which this vLLM does not tell."""
    if options.keep_over_sleep and not is_told:
        fact = "this vLLM does not tell its connectors when it wakes"
        raise InputError(say("keep_over_sleep=true", fact, "use vLLM 0.33 or later, or leave it out"))
