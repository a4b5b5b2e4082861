"""SharedConfig: where a shared store is, what goes out to it, how long one waits for what comes in. Checked once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quire.core.records.errors import InputError, say, shown
from quire.core.records.identity import Scope
from quire.core.records.memory import parse_bytes
from quire.tiers.shared.calls.quota import Quota
from quire.tiers.shared.stores.store import SharedStore


def one_label(_: Scope) -> str:
    """All requests alike."""
    return "all"


@dataclass(frozen=True, slots=True)
class SharedConfig:
    """A shared store, and how it is used."""

    store: str | Path = field(repr=False)  # a folder, redis://user:password@host:6379/0, or mooncake://host:50051
    namespace: str = ""  # of the fingerprint: what distinguishes two models that look alike
    min_uses: int = 1  # a block goes out when so many texts that were served have had it; 0: nothing goes out
    wait: float = 1.0  # seconds that a request may wait for its pages before it is computed without
    folder_bytes: int | str | None = None  # quota of a folder; None: as much as there is
    host_share: float = 0.5  # of the host's slots that pages may take which came and wait for their request
    batch_bytes: int | str = "16MiB"  # bytes of one call of the store; each thread has at most one under way
    quotas: Mapping[str, Quota] = field(default_factory=dict)  # by label; "*" for all others
    label: Callable[[Scope], str] = one_label  # of the account that pages of a scope are charged to
    audit: bool = False  # to find faults: an engine hashes all that it computes, and nothing else goes out. Slow

    def __post_init__(self) -> None:
        if not isinstance(self.store, str | Path) or not str(self.store):
            fact = f"it is a {type(self.store).__name__}"
            raise InputError(say("a shared store", fact, "name a folder, or redis://host:6379/0"))
        if type(self.min_uses) is not int or self.min_uses < 0:
            raise InputError(say(f"min_uses {shown(self.min_uses)}", "it is not a number of uses", "give 0 or more"))
        if isinstance(self.wait, bool) or not isinstance(self.wait, int | float) or not 0 <= self.wait < 3600:
            raise InputError(say(f"a wait of {shown(self.wait)}", "it is not a time", "give seconds, below 3600"))
        if not isinstance(self.host_share, float | int) or not 0 < self.host_share <= 1:
            fact = "it is not a share of the host's slots"
            raise InputError(say(f"host_share {shown(self.host_share)}", fact, "give more than 0 and at most 1"))
        parse_bytes(self.batch_bytes, "a batch")
        if self.folder_bytes is not None:
            parse_bytes(self.folder_bytes, "a shared folder")


def open_store(config: SharedConfig) -> SharedStore:
    """The store that a config names; one that does not answer yet is not an error."""
    place = str(config.store)
    if place.startswith("mooncake://"):
        from quire.tiers.shared.stores.mooncake_store import MooncakeStore

        return MooncakeStore(place)
    if "://" in place:
        from quire.tiers.shared.stores.redis_store import RedisStore

        return RedisStore(place)
    from quire.tiers.shared.stores.folder_store import FolderStore

    quota = None if config.folder_bytes is None else parse_bytes(config.folder_bytes, "a shared folder")
    return FolderStore(place, quota=quota)
