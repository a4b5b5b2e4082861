"""Split: a model's layers as groups of equal page size, so that groups of unlike reading rules can share one pool.

    layers    w w w w w f w w w w w f w w w w w f        15 windows, 3 full
    groups    full: 3 layers   window 1..5: 3 each       every page holds 3 layers of a block: any slot serves any group

Knows no cache. What a group's pages hold besides its layers, the padding, is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire.core.records.errors import InputError, say, shown
from quire.core.records.groups import LayerGroup

MAX_PADDING = 0.15  # of the pages of a kind


@dataclass(frozen=True, slots=True)
class ModelLayer:
    """One layer that keeps keys and values: what a block takes in it, and what its queries read."""

    page_bytes: int  # keys and values of one block in this layer
    window: int | None = None  # tokens a query reads, itself included; None: all
    sinks: int = 0  # leading tokens that a window reads for ever

    def __post_init__(self) -> None:
        if type(self.page_bytes) is not int or self.page_bytes < 1:
            fact = f"page_bytes {shown(self.page_bytes)} is not a size"
            raise InputError(say("a layer", fact, "give the bytes of one block's keys and values in it"))


class LayerPlace(NamedTuple):
    """Where a layer's keys and values are."""

    group: int  # its layer group
    nth: int  # which of the group's layers it is


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """Layer groups for a CacheConfig, and which layers are in which: nth in a group is nth in each of its pages."""

    groups: tuple[LayerGroup, ...]
    layers: tuple[tuple[int, ...], ...]  # by group: its layers
    padded: tuple[int, ...]  # by group: room for so many more layers, unused, at the end of its pages

    @property
    def padding(self) -> float:
        """The share of bytes that is padding, when every group has equally many pages."""
        empty = total = 0
        for group, layers, padded in zip(self.groups, self.layers, self.padded, strict=True):
            total += group.page_bytes
            empty += group.page_bytes // (len(layers) + padded) * padded
        return empty / total

    def place(self, layer: int) -> LayerPlace:
        """Where a layer is."""
        for group, layers in enumerate(self.layers):
            if layer in layers:
                return LayerPlace(group, layers.index(layer))
        count = sum(map(len, self.layers))
        raise InputError(say(f"layer {shown(layer)}", f"the model has {count}", "count layers from 0"))

    def __repr__(self) -> str:
        return f"LayerSplit({self})"

    def __str__(self) -> str:
        parts = []
        for group, layers, padded in zip(self.groups, self.layers, self.padded, strict=True):
            parts.append(f"{group.name}: {len(layers)} layers" + (f" and room for {padded}" if padded else ""))
        return f"{'; '.join(parts)}; {self.padding:.1%} padding"


def split_layers(
    layers: Sequence[ModelLayer], *, planes: int = 2, pool: str = "kv", max_padding: float = MAX_PADDING
) -> LayerSplit:
    """Groups of a model's layers that can share a pool: all of one page size, each of one reading rule.

    Every group gets equally many layers; the last one of a rule may have fewer, and its pages are padded. Of the layers
    per group with which padding is at most `max_padding` of the pages of each rule it takes the number that makes the
    fewest groups, then the least padding: many groups cost time, padding costs memory. 0: no padding.

    Layers whose keys and values have unlike sizes are put apart, in pools by size. Where all layers of a size have one
    rule they are one group with a pool of its own: no other could share it. `planes` is what a layer's part of a
    page divides into, token by token (keys and values: 2); 0: it does not.
    """
    _check(layers, planes, max_padding)
    sizes = list(dict.fromkeys(layer.page_bytes for layer in layers))
    windows = {(layer.window, layer.sinks) for layer in layers if layer.window is not None}
    groups: list[LayerGroup] = []
    members: list[tuple[int, ...]] = []
    padded: list[int] = []
    for size in sizes:
        apart = f" of {size}" if len(sizes) > 1 else ""
        rules = _rules(layers, size)
        count = _layers_per_group([len(some) for some in rules.values()], max_padding)
        home = f"{pool}{apart}" if len(rules) > 1 else None
        for (window, sinks), some in rules.items():
            parts = [some[first : first + count] for first in range(0, len(some), count)]
            for nth, part in enumerate(parts, 1):
                name = _name(window, sinks, len(windows) > 1) + apart + (f" {nth}" if len(parts) > 1 else "")
                whole = LayerGroup(
                    name, page_bytes=count * size, planes=count * planes, window=window, sinks=sinks, pool=home
                )
                groups.append(whole)
                members.append(part)
                padded.append(count - len(part))
    return LayerSplit(tuple(groups), tuple(members), tuple(padded))


def _check(layers: Sequence[ModelLayer], planes: int, max_padding: float) -> None:
    if not layers or not all(isinstance(layer, ModelLayer) for layer in layers):
        raise InputError(say(f"layers {shown(layers)}", "they are not a list of ModelLayer", "pass one for each layer"))
    if type(planes) is not int or planes < 0:
        raise InputError(say(f"planes {shown(planes)}", "it is not a whole number from 0 on", "2: keys and values"))
    if type(max_padding) not in (int, float) or not 0 <= max_padding < 1:
        fact = "it is not a share from 0 up to 1"
        raise InputError(say(f"max_padding {shown(max_padding)}", fact, f"{MAX_PADDING} serves well; 0 allows none"))


def _rules(layers: Sequence[ModelLayer], size: int) -> dict[tuple[int | None, int], tuple[int, ...]]:
    """By reading rule, those that read all first: the layers of one size."""
    found: dict[tuple[int | None, int], tuple[int, ...]] = {}
    for nth, layer in enumerate(layers):
        if layer.page_bytes == size:
            rule = (layer.window, layer.sinks)
            found[rule] = (*found.get(rule, ()), nth)
    return dict(sorted(found.items(), key=lambda item: (item[0][0] or 0, item[0][1])))


def _layers_per_group(counts: list[int], max_padding: float) -> int:
    """One layer per group needs no padding, so there is always a number."""
    best = (sum(counts), 0, 1)
    for each in range(1, max(counts) + 1):
        groups = [-(-count // each) for count in counts]
        empty = [number * each - count for number, count in zip(groups, counts, strict=True)]
        if all(some <= max_padding * number * each for some, number in zip(empty, groups, strict=True)):
            best = min(best, (sum(groups), sum(empty), each))
    return best[2]


def _name(window: int | None, sinks: int, several: bool) -> str:
    if window is None:
        return "full"
    if not several:
        return "window"
    return f"window {window}" + (f" with {sinks} sinks" if sinks else "")
