"""TokenStream: one run of tokens that layer groups read: the store of its pages, its roots. Knows no requests."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from quire.core.records.config import CacheConfig, num_remembered, slow_tier
from quire.core.records.groups import LayerGroup, blocks_kept
from quire.core.state.roots import Roots
from quire.core.store.reuse import ADAPTIVE, AGES_PER_OCTAVE, LRU, MOST_YOUNGER, RELEASE_ORDER

if TYPE_CHECKING:
    from quire.core.store.interface import Store


ORDERS = {"lru": LRU, "release_order": RELEASE_ORDER, "adaptive": ADAPTIVE}
POWER = 0.25  # of what a token costs: ages are divided by it


class TokenStream:
    """The sequence's own tokens, or its encoder's: the store of the layer groups that read them, and its roots.

    A sequence has the same row in all of them. Cross groups read a stream of their own.
    """

    __slots__ = ("first", "roots", "store")

    def __init__(self, store: Store, first: int, roots: Roots) -> None:
        self.store = store
        self.first = first  # number of its first group
        self.roots = roots

    def has(self, row: int) -> bool:
        """Whether that live row is in this stream; a request may come without encoder."""
        return self.first == 0 or bool(self.store.length[row])


def open_stream(
    make: type[Store], config: CacheConfig, layers: tuple[LayerGroup, ...], groups: range, columns: int
) -> TokenStream:
    """An empty stream for some of the layer groups."""
    size = config.block_size
    facts = [_numbers(layers[group], size, _slots(config, group)) for group in groups]
    store = make(
        size, facts, config.max_sequences, columns, ORDERS[config.order], config.shadows,
        config.offload_min_priority, config.events, config.max_events, config.partial_reuse,
        config.event_seed, num_remembered(config), config.min_uses, slow_tier(config) >= 0, config.lasting,
        [config.pool_of[group] - config.pool_of[groups.start] for group in groups], _spacing(config, layers),
    )  # fmt: skip
    if config.eviction_cost == "compute" and not groups.start:
        for group in groups:
            if depths := dear_depths(layers[group], size, columns, config.compute_doubles_at):
                store.weigh(group, depths)
    return TokenStream(store, groups.start, Roots(store, config.events, config.event_seed))


def dear_depths(layer: LayerGroup, size: int, columns: int, doubles_at: int) -> list[int]:
    """Depths, in blocks, from which a page of a layer group counts as one age younger each: an age is shorter by the
    fourth root of what a token costs there. What a window reads is no more; a state costs the same everywhere."""
    last = 0 if layer.current else columns * size if layer.window is None else layer.window
    costs = [2 ** ((ages - 0.5) / (AGES_PER_OCTAVE * POWER)) for ages in range(1, MOST_YOUNGER + 1)]
    starts = [ceil(doubles_at * (cost - 1)) for cost in costs]
    return [-(-start // size) + 1 for start in starts if start < last]


def _spacing(config: CacheConfig, layers: tuple[LayerGroup, ...]) -> int:
    """Blocks between resume points that are guessed inside a prompt; with states only where snapshots are."""
    every = max(config.block_size, *(layer.snapshot_every or 0 for layer in layers))
    return -(-config.resume_every // every) * (every // config.block_size)


def _slots(config: CacheConfig, group: int) -> list[int]:
    """Slots per tier, of its pool."""
    return [config.slots_of(tier, group) for tier in range(len(config.tiers))]


def _numbers(layer: LayerGroup, size: int, slots: list[int]) -> tuple[int, int, int, int, int, int, list[int]]:
    """A layer group as the store knows it."""
    reach = (layer.tail(size), layer.sink(size), blocks_kept(layer, size))
    return (*reach, layer.every(size), layer.extra_tokens or 0, layer.current, slots)
