"""A chain, which is a text with its keys, and a hit, which is what a walk found of one."""

from __future__ import annotations

from typing import Protocol

from quire.core.store.interface.arrays import BoolArray, Explained, Int32Array, UInt64Array


class Chain(Protocol):
    """A growing token sequence whose private keys are computed on demand."""

    def __init__(self, block_size: int, tokens: Int32Array, extras: UInt64Array | None = None) -> None: ...

    def __len__(self) -> int: ...

    def tokens(self) -> Int32Array:
        """A copy of the tokens."""

    def extras(self) -> UInt64Array | None:
        """The extra words, three a token; None when every token is plain."""

    def extend_keys(self, num_blocks: int = -1) -> int:
        """Make the keys of the first `num_blocks` full blocks (-1: all); how many keys are ready."""

    def key(self, block: int) -> int:
        """A key that two chains share exactly when their identities up to and including full block `block` match."""

    def event_hashes(self, root: int, seed: bytes = ...) -> UInt64Array:
        """The event hashes of all full blocks under a root's."""

    def add_tokens(self, tokens: Int32Array) -> None:
        """Add plain tokens; not to a chain that is a row's."""

    def cut_tokens(self, length: int) -> None:
        """Keep the first `length` tokens; likewise."""

    def clone(self) -> Chain:
        """A chain of its own with the same tokens, extras and keys."""


class Hit(Protocol):
    """The result of a walk: leading blocks, and perhaps a block that shares some tokens of the next one."""

    @property
    def blocks(self) -> int:
        """Full blocks that can be reused."""

    @property
    def coming(self) -> int:
        """Full blocks that could be reused if pages that are only in the slow tier had been brought up."""

    def reach(self, group: int) -> tuple[Int32Array, Int32Array]:
        """Page and hottest tier now of each block that resuming at `coming` reads."""

    @property
    def matched(self) -> int:
        """Tokens of the next block that can be reused."""

    @property
    def start(self) -> int:
        """First token to compute."""

    @property
    def source(self) -> int:
        """Node that has the matched tokens, or -1."""

    @property
    def num_nodes(self) -> int:
        """Blocks that were walked."""

    @property
    def parts(self) -> bool:
        """Whether texts went on behind the last walked block at the time of the walk, full or partial."""

    @property
    def claimed(self) -> bool:
        """Whether a claim is on it."""

    def explained(self) -> Explained:
        """What `explain` noted: int64 runs (`causes.py`), and tokens of the pages it reads, int64 [groups, tiers]."""

    def node(self, block: int) -> int:
        """Node of a walked block, -1 out of range; meaningless once the hit is frozen."""

    def present(self, group: int) -> BoolArray:
        """Which walked blocks had a page of the group, outside the slow tier, at the time of the walk."""

    def held(self, group: int) -> Int32Array:
        """Blocks the claim is on, ascending; without a claim those it would be on."""

    def tiers(self, group: int) -> Int32Array:
        """Hottest tier now of each held block, -1 where none is held."""

    def pages(self, group: int) -> Int32Array:
        """Page of each held block, in the order of `held`."""

    def places(self, group: int) -> tuple[Int32Array, Int32Array]:
        """Tier and slot of the hottest copy of each of those, now."""

    def sources(self) -> tuple[int, ...]:
        """Page of the source per group that the claim is on; nothing without."""
