"""Shape: the layer groups of a model and their bytes, and how many pages a memory holds. Knows no trace."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from quire import InputError, LayerGroup
from quire.core.errors import say

TYPICAL = 16384  # tokens of the prompt by which memory is divided between groups


@dataclass(frozen=True, slots=True)
class Layers:
    """One layer group of a model: what it reads and what a token (or a state) of it takes."""

    name: str = "full"
    bytes_per_token: int = 0
    state_bytes: int = 0  # of one recurrent state, in place of bytes_per_token
    window: int | None = None
    sinks: int = 0
    snapshot_every: int | None = None
    snapshot_at_end: bool = True
    share: float | None = None  # of every memory; None: by what a typical prompt takes

    def __post_init__(self) -> None:
        taken = self.bytes_per_token if self.snapshot_every is None else self.state_bytes
        name = "bytes_per_token" if self.snapshot_every is None else "state_bytes"
        if type(taken) is not int or taken < 1:
            raise InputError(say(f"layer group {self.name!r}", f"its {name} is {taken!r}", "give bytes, at least 1"))
        if type(self.snapshot_at_end) is not bool:
            fact = f"its snapshot_at_end is {self.snapshot_at_end!r}"
            raise InputError(say(f"layer group {self.name!r}", fact, "write true or false"))
        for key in ("window", "sinks", "snapshot_every", "bytes_per_token", "state_bytes"):
            number = getattr(self, key)
            if number is not None and (type(number) is not int or number < 0):
                raise InputError(say(f"layer group {self.name!r}", f"its {key} is {number!r}", "give a whole number"))
        if self.share is not None and not (type(self.share) in (int, float) and 0 < self.share <= 1):
            raise InputError(say(f"layer group {self.name!r}", f"its share is {self.share!r}", "give 0 < share <= 1"))

    def group(self, block_size: int) -> LayerGroup:
        """As the cache knows it."""
        return LayerGroup(
            self.name, page_bytes=self.page_bytes(block_size), window=self.window, sinks=self.sinks,
            snapshot_every=self.snapshot_every, snapshot_at_end=self.snapshot_at_end,
        )  # fmt: skip

    def page_bytes(self, block_size: int) -> int:
        """Bytes of one page: a block's tokens, or a state."""
        return self.bytes_per_token * block_size if self.snapshot_every is None else self.state_bytes

    def typical_bytes(self, length: int) -> float:
        """What a cached prompt of `length` tokens takes: all of it, twice its window, or its snapshots and a state."""
        if self.snapshot_every is not None:
            return self.state_bytes * (2 + (length // self.snapshot_every if self.snapshot_every else 0))
        return self.bytes_per_token * (length if self.window is None else min(length, 2 * self.window + self.sinks))


@dataclass(frozen=True, slots=True)
class Shape:
    """A model as the cache sees it."""

    name: str
    layers: tuple[Layers, ...]
    typical_tokens: int = TYPICAL

    def groups(self, block_size: int) -> tuple[LayerGroup, ...]:
        """Layer groups of the cache."""
        return tuple(layers.group(block_size) for layers in self.layers)

    def shares(self) -> tuple[float, ...]:
        """How a memory is divided between the groups: given shares first, the rest by typical use."""
        given = sum(layers.share or 0 for layers in self.layers)
        if given > 1 + 1e-9:
            raise InputError(say(f"shape {self.name!r}", f"its shares add up to {given:g}", "make them 1 or less"))
        typical = [layers.typical_bytes(self.typical_tokens) for layers in self.layers]
        rest = sum(use for use, layers in zip(typical, self.layers, strict=True) if layers.share is None)
        return tuple(
            layers.share if layers.share is not None else (1 - given) * use / rest
            for use, layers in zip(typical, self.layers, strict=True)
        )

    def slots(self, num_bytes: int, block_size: int) -> tuple[int, ...]:
        """Pages per group that a memory holds."""
        facts = zip(self.shares(), self.layers, strict=True)
        return tuple(int(num_bytes * share) // layers.page_bytes(block_size) for share, layers in facts)


def _full(name: str, bytes_per_token: int) -> Shape:
    return Shape(name, (Layers("full", bytes_per_token),))


# Bytes in bfloat16: layers x (K and V) x KV heads x head size x 2. "like": the kinds and sizes, not every detail.
PRESETS = {
    shape.name: shape
    for shape in (
        _full("llama-3-8b", 32 * 2 * 8 * 128 * 2),
        _full("llama-3-70b", 80 * 2 * 8 * 128 * 2),
        _full("deepseek-v3-like", 61 * (512 + 64) * 2),
        Shape("gemma-3-like", (Layers("full", 10 * 8192), Layers("local", 52 * 8192, window=1024))),
        Shape("gpt-oss-like", (Layers("full", 18 * 2048), Layers("local", 18 * 2048, window=128))),
        Shape(
            "qwen3-next-like",
            (
                Layers("full", 12 * 2048),
                Layers("state", state_bytes=36 * (32 * 128 * 128 * 2 + 8192 * 3 * 2), snapshot_every=4096),
            ),
        ),
    )
}


def find_shape(name: str) -> Shape:
    """A preset by name, or the shape in a TOML file."""
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    if path.suffix != ".toml":
        fact = f"the presets are {', '.join(PRESETS)}"
        raise InputError(say(f"shape {name!r}", fact, "name one of them or a .toml file"))
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as wrong:
        raise InputError(say(f"shape {name!r}", f"it cannot be read ({wrong})", "see docs/replay.md")) from None
    return _shape(path.stem, table)


def _shape(name: str, table: dict[str, Any]) -> Shape:
    groups = table.get("group")
    if not isinstance(groups, list) or not groups or not all(isinstance(group, dict) for group in groups):
        raise InputError(say(f"shape {name!r}", "it has no [[group]]", "write one [[group]] table per layer group"))
    for key in table.keys() - {"name", "typical_tokens", "group"}:
        cure = "the keys are name, typical_tokens and [[group]]"
        raise InputError(say(f"shape {name!r}", f"it has the key {key!r}", cure))
    known = {field.name for field in fields(Layers)}
    for group in groups:
        for key in group.keys() - known:
            fact = f"a group has the key {key!r}"
            raise InputError(say(f"shape {name!r}", fact, f"the keys are {', '.join(sorted(known))}"))
    typical = table.get("typical_tokens", TYPICAL)
    if type(typical) is not int or typical < 1:
        raise InputError(say(f"shape {name!r}", f"typical_tokens is {typical!r}", "give a number of tokens"))
    try:
        return Shape(str(table.get("name", name)), tuple(Layers(**group) for group in groups), typical)
    except TypeError as wrong:
        raise InputError(say(f"shape {name!r}", str(wrong), "see docs/replay.md")) from None
