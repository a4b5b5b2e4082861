"""TokenStream: one run of tokens that layer groups read: the store of its pages, its roots. Knows no requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.core.records.config import CacheConfig, num_remembered, slow_tier
from quire.core.records.groups import LayerGroup, blocks_kept
from quire.core.state.roots import Roots
from quire.core.store.reuse import ADAPTIVE, LRU, RELEASE_ORDER

if TYPE_CHECKING:
    from quire.core.store.interface import Store


ORDERS = {"lru": LRU, "release_order": RELEASE_ORDER, "adaptive": ADAPTIVE}


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
        [config.pool_of[group] - config.pool_of[groups.start] for group in groups],
    )  # fmt: skip
    return TokenStream(store, groups.start, Roots(store, config.events, config.event_seed))


def _slots(config: CacheConfig, group: int) -> list[int]:
    """Slots per tier, of its pool."""
    return [config.slots_of(tier, group) for tier in range(len(config.tiers))]


def _numbers(layer: LayerGroup, size: int, slots: list[int]) -> tuple[int, int, int, int, int, int, list[int]]:
    """A layer group as the store knows it."""
    reach = (layer.tail(size), layer.sink(size), blocks_kept(layer, size))
    return (*reach, layer.every(size), layer.extra_tokens or 0, layer.current, slots)
