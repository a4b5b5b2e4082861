"""ModelShape: the layer groups of a model and their bytes, and how many pages a memory holds. Knows no trace."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from quire import InputError, LayerGroup
from quire.core.records.errors import say
from quire.trace.units import cut, shown

MOST = 1 << 48  # of any number here: far beyond a machine, and exact in every sum
LEAST_SHARE = 1e-9
LONGEST_NAME = 200
LONGEST_FILE = 1 << 16  # bytes
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
    snapshot_inside: bool = False  # the kernels write the states inside a span: prompts are not cut for them
    share: float | None = None  # of every memory; None: by what a typical prompt takes

    def __post_init__(self) -> None:
        if type(self.name) is not str or len(self.name) > LONGEST_NAME:
            raise self._wrong("name", f"write a text of at most {LONGEST_NAME} characters")
        needed = "bytes_per_token" if self.snapshot_every is None else "state_bytes"
        for key in ("window", "sinks", "snapshot_every", "bytes_per_token", "state_bytes"):
            number, least = getattr(self, key), 1 if key in (needed, "window") else 0
            if number is None and key in ("window", "snapshot_every"):
                continue
            if type(number) is not int or not least <= number <= MOST:
                raise self._wrong(key, f"give a whole number from {least} to {MOST}")
        for key in ("snapshot_at_end", "snapshot_inside"):
            if type(getattr(self, key)) is not bool:
                raise self._wrong(key, "write true or false")
        if self.snapshot_inside and self.snapshot_every is None:
            raise self._wrong("snapshot_inside", "leave it out, or give snapshot_every and state_bytes")
        if self.share is not None and not (type(self.share) in (int, float) and LEAST_SHARE <= self.share <= 1):
            raise self._wrong("share", f"give {LEAST_SHARE} <= share <= 1")

    def _wrong(self, key: str, cure: str) -> InputError:
        return InputError(say(f"layer group {shown(self.name)}", f"its {key} is {shown(getattr(self, key))}", cure))

    def group(self, block_size: int) -> LayerGroup:
        """As the cache knows it."""
        return LayerGroup(
            self.name, page_bytes=self.page_bytes(block_size), window=self.window, sinks=self.sinks,
            snapshot_every=self.snapshot_every, snapshot_at_end=self.snapshot_at_end,
            snapshot_inside=self.snapshot_inside,
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
class ModelShape:
    """A model as the cache sees it."""

    name: str
    layers: tuple[Layers, ...]
    typical_tokens: int = TYPICAL

    def groups(self, block_size: int) -> tuple[LayerGroup, ...]:
        """Layer groups of the cache."""
        return tuple(layers.group(block_size) for layers in self.layers)

    def shares(self) -> tuple[float, ...]:
        """How a memory is divided between the groups: given shares first, the rest by typical use."""
        shares = sum(layers.share or 0 for layers in self.layers)
        if shares > 1 + 1e-9:
            raise InputError(say(f"shape {self.name!r}", f"its shares add up to {shares:g}", "make them 1 or less"))
        typical = [layers.typical_bytes(self.typical_tokens) for layers in self.layers]
        rest = sum(use for use, layers in zip(typical, self.layers, strict=True) if layers.share is None)
        return tuple(
            layers.share if layers.share is not None else (1 - shares) * use / rest
            for use, layers in zip(typical, self.layers, strict=True)
        )

    def slots(self, num_bytes: int, block_size: int) -> tuple[int, ...]:
        """Pages per group that a memory holds."""
        facts = zip(self.shares(), self.layers, strict=True)
        return tuple(int(num_bytes * share) // layers.page_bytes(block_size) for share, layers in facts)


def _full(name: str, bytes_per_token: int) -> ModelShape:
    return ModelShape(name, (Layers("full", bytes_per_token),))


# Bytes in bfloat16: layers x (K and V) x KV heads x head size x 2. "like": the kinds and sizes, not every detail.
PRESETS = {
    shape.name: shape
    for shape in (
        _full("llama-3-8b", 32 * 2 * 8 * 128 * 2),
        _full("llama-3-70b", 80 * 2 * 8 * 128 * 2),
        _full("deepseek-v3-like", 61 * (512 + 64) * 2),
        ModelShape("gemma-3-like", (Layers("full", 10 * 8192), Layers("local", 52 * 8192, window=1024))),
        ModelShape("gpt-oss-like", (Layers("full", 18 * 2048), Layers("local", 18 * 2048, window=128))),
        ModelShape(
            "qwen3-next-like",
            (
                Layers("full", 12 * 2048),
                Layers("state", state_bytes=36 * (32 * 128 * 128 * 2 + 8192 * 3 * 2), snapshot_every=4096),
            ),
        ),
    )
}


def find_shape(name: str) -> ModelShape:
    """A preset by name, or the shape in a TOML file."""
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    if path.suffix != ".toml":
        fact = f"the presets are {', '.join(PRESETS)}"
        raise InputError(say(f"shape {name!r}", fact, "name one of them or a .toml file"))
    try:
        table = tomllib.loads(_text(path))
    except RecursionError:
        raise InputError(say(f"shape {name!r}", "it is nested too deep", "see docs/replay.md")) from None
    except (OSError, ValueError) as error:
        fact = f"it cannot be read ({cut(str(error), 200)})"
        raise InputError(say(f"shape {name!r}", fact, "see docs/replay.md")) from None
    return _shape(path.stem, table)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        text = file.read(LONGEST_FILE + 1)
    if len(text) > LONGEST_FILE:
        raise ValueError(f"it is longer than {LONGEST_FILE:,} bytes")
    return text.decode()


def _shape(name: str, table: dict[str, Any]) -> ModelShape:
    def wrong(fact: str, cure: str) -> InputError:
        return InputError(say(f"shape {name!r}", fact, cure))

    groups = table.get("group")
    if not isinstance(groups, list) or not groups or not all(isinstance(group, dict) for group in groups):
        raise wrong("it has no [[group]]", "write one [[group]] table per layer group")
    for key in table.keys() - {"name", "typical_tokens", "group"}:
        raise wrong(f"it has the key {shown(key)}", "the keys are name, typical_tokens and [[group]]")
    known = {field.name for field in fields(Layers)}
    for group in groups:
        for key in group.keys() - known:
            raise wrong(f"a group has the key {shown(key)}", f"the keys are {', '.join(sorted(known))}")
    typical, said = table.get("typical_tokens", TYPICAL), table.get("name", name)
    if type(typical) is not int or not 1 <= typical <= MOST:
        raise wrong(f"typical_tokens is {shown(typical)}", "give a number of tokens")
    if type(said) is not str or len(said) > LONGEST_NAME:
        raise wrong(f"its name is {shown(said)}", f"write a text of at most {LONGEST_NAME} characters")
    return ModelShape(said, tuple(Layers(**group) for group in groups), typical)
