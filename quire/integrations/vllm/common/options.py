"""Options: what an operator writes into kv_connector_extra_config, checked by name. Knows no vLLM and no cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import cast, get_args

from quire.core.records.config import Eviction
from quire.core.records.errors import InputError, say, shown
from quire.core.records.memory import parse_bytes

TESTED = "0.32"  # of vLLM; the connector leans on what its scheduler and worker do, not only on signatures


@dataclass(frozen=True, slots=True)
class ConnectorOptions:
    """Sizes and rules of the connector; the names are those of the extra config."""

    host: int  # bytes of host memory for pages, of all ranks together
    eviction: Eviction = "auto"  # which page goes first: "adaptive" learns it, but for models with windows "lru"
    checksums: bool = True  # of every page, made when it is stored and looked at when it is loaded
    store_decoded: bool = True  # blocks that hold generated tokens are kept too
    min_load_tokens: int = 1  # a hit that saves fewer tokens than this is not loaded
    receipts: bool = False  # say why a request missed: in the metrics, and in its answer if it asks
    disk: str | None = None  # folder for pages that outlive the process
    disk_bytes: int = 0  # that may lie there, of all ranks together
    shared: str | None = field(default=None, repr=False)  # a store: a folder, or redis://user:password@host:6379/0
    wait: float = 2.0  # seconds that a request is passed over for pages from there
    namespace: str = ""  # of pages that last: what you know of the model and vLLM's config does not tell
    record: str | None = None  # file for a trace of the requests, without their tokens
    any_version: bool = False  # run under a vLLM that was not tested

    def __post_init__(self) -> None:
        if self.host < 1:
            raise InputError(say("host memory of 0 bytes", "there is nothing to keep pages in", "write host=40GB"))
        if self.eviction not in get_args(Eviction):
            fact, cure = "it is no known order", f"use one of {', '.join(get_args(Eviction))}"
            raise InputError(say(f"eviction {shown(self.eviction)}", fact, cure))
        for name in ("checksums", "store_decoded", "receipts", "any_version"):
            if type(getattr(self, name)) is not bool:
                raise InputError(say(f"{name} {shown(getattr(self, name))}", "it is on or off", "write true or false"))
        for name in ("disk", "shared", "namespace", "record"):
            given = getattr(self, name)
            if given is not None and (not isinstance(given, str) or (name != "namespace" and not given)):
                raise InputError(say(f"{name} {shown(given)}", "it is no text", f"write {name}=..., or leave it out"))
        if (self.disk is None) != (self.disk_bytes == 0):
            fact = "a disk has a folder and a size" if self.disk is None else "it must be told how much may lie there"
            raise InputError(say(f"disk {shown(self.disk)}", fact, "write disk=/folder and disk_bytes=200GB"))
        if isinstance(self.wait, bool) or not isinstance(self.wait, int | float) or not 0 <= self.wait < 3600:
            raise InputError(say(f"a wait of {shown(self.wait)}", "it is no time", "give seconds, below 3600"))
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
        raise InputError(say("QuireConnector without 'host'", "it must be told how much memory to use", "host=40GB"))
    given = dict(extra)
    given["host"] = parse_bytes(cast("str | int", given["host"]), "host memory")
    if "disk_bytes" in given:
        given["disk_bytes"] = parse_bytes(cast("str | int", given["disk_bytes"]), "a disk")
    return ConnectorOptions(**given)  # type: ignore[arg-type]  # __post_init__ looks at every one


def check_version(found: str, any_version: bool) -> None:
    """Refuse a vLLM whose scheduler nobody has tried the connector with."""
    if not any_version and ".".join(found.split(".")[:2]) != TESTED:
        fact = f"it was tested with {TESTED} only, and leans on how the scheduler calls it"
        raise InputError(say(f"QuireConnector under vLLM {shown(found)}", fact, "use that, or write any_version=true"))
