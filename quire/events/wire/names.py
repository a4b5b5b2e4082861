"""Names: how consumers call tiers, layer groups and scopes. Knows no bytes and no sockets.

Routers drop what they cannot name: a medium must be one of MEDIA, and a salt must be text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from quire.core.records.config import CacheConfig
from quire.core.records.errors import InputError, say
from quire.core.records.groups import LayerGroup
from quire.core.records.identity import RestoredScope, Scope

MEDIA = (
    "GPU", "DEVICE", "CPU", "CPU_PINNED", "CPU_TIER1", "CPU_TIER2", "DISK", "NVME", "STORAGE", "EXTERNAL", "NETWORK",
    "REMOTE", "SHARED",
)  # fmt: skip
_BY_TIER = ("GPU", "CPU", "DISK", "REMOTE")
_BY_NAME = {
    "device": "GPU", "gpu": "GPU", "host": "CPU", "cpu": "CPU", "disk": "DISK", "nvme": "DISK", "ssd": "DISK",
    "storage": "STORAGE", "remote": "REMOTE", "network": "NETWORK", "shared": "SHARED",
}  # fmt: skip
_KINDS = {"full": "full_attention", "window": "sliding_window", "state": "mamba", "cross": "cross_attention"}
SALT_TAG = "dynamo-cache-salt:"  # how a salt among extra keys says what it is


@dataclass(frozen=True, slots=True)
class GroupNames:
    """A layer group as consumers know it, and what resuming needs of it: blocks before the boundary, and first ones."""

    kind: str
    window: int | None
    tail: int  # -1: all blocks
    sink: int


@dataclass(frozen=True, slots=True)
class Names:
    """What one publisher calls the parts of its cache."""

    block_size: int
    media: tuple[str, ...]  # per tier
    groups: tuple[GroupNames, ...]
    seed: bytes = field(repr=False)  # of its event hashes

    @property
    def own_groups(self) -> tuple[int, ...]:
        """Groups that read the sequence's own tokens."""
        return tuple(nth for nth, group in enumerate(self.groups) if group.kind != _KINDS["cross"])

    @property
    def plain(self) -> bool:
        """Only one group decides where to resume, and it needs every block."""
        own = self.own_groups
        return len(own) == 1 and self.groups[own[0]].tail < 0

    @staticmethod
    def from_config(config: CacheConfig, media: Iterable[str] | None = None) -> Names:
        """The names of a cache; `media` overrides those of its tiers."""
        known = (_medium(nth, tier.name) for nth, tier in enumerate(config.tiers))
        chosen = tuple(known if media is None else media)
        if len(chosen) != len(config.tiers):
            fact = f"the cache has {len(config.tiers)} tiers"
            raise InputError(say(f"media {chosen}", fact, "name one medium per tier"))
        for name in chosen:
            if name not in MEDIA:
                raise InputError(say(f"medium {name!r}", "routers drop it", f"use one of {', '.join(MEDIA)}"))
        layers = (group.clamped(config.max_length) for group in config.groups)
        groups = tuple(_group(layer, config.block_size) for layer in layers)
        return Names(config.block_size, chosen, groups, config.event_seed)


def _medium(tier: int, name: str) -> str:
    return _BY_NAME.get(name.lower(), _BY_TIER[min(tier, len(_BY_TIER) - 1)])


def _group(layer: LayerGroup, size: int) -> GroupNames:
    return GroupNames(_KINDS[layer.kind], layer.window, layer.tail(size), layer.sink(size))


def lora_of(scope: Scope | RestoredScope | None) -> tuple[int | None, str | None]:
    """(id, name) of the adapter, as far as consumers can take it; what they cannot is in the salt."""
    lora = scope.lora if isinstance(scope, Scope) else None
    if isinstance(lora, str):
        return None, lora or None
    return (lora, f"lora-{lora}") if isinstance(lora, int) else (None, None)


def salt_of(scope: Scope | RestoredScope | None) -> str | None:
    """The salt in text. A plain one stands for itself; anything else that distinguishes scopes becomes one."""
    if scope is None:
        return None
    if isinstance(scope, RestoredScope):
        return "quire-scope:" + blake2b(scope.digest, digest_size=16, person=b"quire-restored").hexdigest()
    texts = [value for value in (scope.lora, scope.salt) if value is not None]
    if scope.epoch is None and scope.space is None and all(isinstance(text, str) and text for text in texts):
        return None if scope.salt is None else str(scope.salt)
    return "quire-scope:" + blake2b(scope.key, digest_size=16, person=b"quire-salt").hexdigest()


def salt_of_words(first: int) -> str:
    """A salt for blocks whose tokens carry words (extra ids, media): token ids alone must not match them."""
    return f"quire-words:{first:016x}"
