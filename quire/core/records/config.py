"""CacheConfig: everything a cache is built from, checked once. Knows no state."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from quire.core.records.caller_arguments import keep_tuples, names_fields
from quire.core.records.errors import InputError, UnknownError, say, shown
from quire.core.records.groups import LARGEST, LayerGroup, hopeless_group, misplaced, pools_of

MAX_TIERS = 8
MOST_SLOTS = 0x7FFFFF00  # of a group, in all tiers
LOWEST, HIGHEST, DEFAULT_PRIORITY = 0, 100, 35
MOST_GHOSTS = 64  # of a slot
MOST_USES = 255  # that are counted of a page
MOST_CHUNKS = 1 << 28  # 4 GiB
MOST_SCOPES = 64  # that a receipt looks into
SEED_BYTES = 16
Order = Literal["lru", "adaptive", "release_order"]  # of eviction
Eviction = Literal["auto", "lru", "adaptive", "release_order"]
EvictionCost = Literal["tokens", "compute"]  # of a page that goes and is asked for again
RENAMED = {"empty_first": "lru"}  # orders, by their old names
EVENT_SEED = os.urandom(SEED_BYTES)  # of this process


@names_fields
@dataclass(frozen=True, slots=True)
class TierConfig:
    """One kind of memory; the first tier of a cache is the device, later ones are colder."""

    name: str
    slots: int | Sequence[int]  # pages it can hold, for each pool alike or one number per pool; kept as a tuple
    slow: bool = False  # no step waits for it: pages go down ahead and come up by prefetch; only the coldest tier

    def __post_init__(self) -> None:
        keep_tuples(self, "slots")

    def of_pool(self, pool: int) -> int:
        """Slots of this tier for one pool."""
        return self.slots if isinstance(self.slots, int) else self.slots[pool]


def usual_order(groups: Sequence[LayerGroup]) -> Order:
    """What "auto" means: the order that learns where all is full attention, or one pool has all groups; LRU may find
    more of windows and states in pools of their own, and of states alone."""
    kinds = {group.kind for group in groups}
    one_pool = len(set(pools_of(groups))) == 1 and kinds != {"state"}
    return "adaptive" if one_pool or kinds == {"full"} else "lru"


@names_fields
@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Sizes and rules of one cache."""

    tiers: Sequence[TierConfig]  # the device first; kept as a tuple
    block_size: int = 16
    groups: Sequence[LayerGroup] = (LayerGroup(),)  # kept as a tuple
    max_sequences: int = 256  # rows of the block tables
    max_length: int = 8192  # tokens one sequence may reach, drafts included
    max_chunk: int | None = None  # longest part of a prompt one step computes; None: a prompt may be computed whole
    max_encoder_length: int | None = None  # places of an encoder's input; None: max_length
    reuse: bool = True
    partial_reuse: bool = True  # hits may end inside a block
    copy_on_partial_reuse: bool = True  # also from blocks in use or with children; False: only idle leaves
    shadows: bool = True  # an onboarded page keeps its colder copy until the room is needed
    offload_min_priority: int = 30  # idle pages below it are dropped instead of offloaded
    eviction: Eviction = "auto"  # which idle page goes first: learned from what is asked again, or "lru"; see `order`
    eviction_cost: EvictionCost = "tokens"  # what a lost page costs: "compute" keeps deep ones longer; adaptive order
    compute_doubles_at: int = 30_000  # for "compute": the position of a token that costs twice the first one
    ghosts: int = 8  # pages that are gone and remembered, per slot of all tiers; for the adaptive order and receipts
    min_uses: int = 1  # of a page that `offload` copies down early; for the adaptive order
    resume_every: int = 1024  # tokens between resume points that are tried inside prompts; 0: none is guessed anywhere
    receipts: bool = False  # every claim says why it missed what it missed; gone pages are remembered in every order
    receipt_scopes: int = 0  # in so many other scopes, at most 64, a receipt looks for what is new in its own
    receipt_chunks: int = 0  # of text, 8 tokens each, that receipts find again behind another beginning: 1 << 20
    events: bool = False
    max_events: int = 1 << 20  # hashes the recorder holds before it gives up the backlog and says so
    prefetch_share: float = 0.5  # of the slots above the slow tier: what all prefetches together may hold
    lasting: bool = False  # what changes in the slow tier is noted for `lasting_changes`
    rank: int = 0  # of this cache among data-parallel ones; every batch of events carries it
    event_seed: bytes = field(default=EVENT_SEED, repr=False)  # of event hashes: caches with one seed give equal ones
    share_pending: bool = False  # prompts also use whole blocks that a launched step, or their batch, is to compute

    def __post_init__(self) -> None:
        keep_tuples(self, "tiers", "groups")
        self._check_sizes()
        self._check_switches()
        self._check_groups()
        self._check_tiers()
        self._check_pools()
        self._check_slow()
        self._check_eviction()
        self._check_receipts()
        if type(self.offload_min_priority) is not int or not LOWEST <= self.offload_min_priority <= HIGHEST + 1:
            fact, cure = f"priorities go from {LOWEST} to {HIGHEST}", f"use one of them; {HIGHEST + 1} offloads nothing"
            raise InputError(say(f"offload_min_priority {shown(self.offload_min_priority)}", fact, cure))

    def _check_eviction(self) -> None:
        if isinstance(self.eviction, str) and self.eviction in RENAMED:
            name = RENAMED[self.eviction]
            fact = f"eviction '{self.eviction}' is called '{name}' since 0.2; the old name goes with 0.3"
            warnings.warn(fact, DeprecationWarning, stacklevel=4)
            object.__setattr__(self, "eviction", name)
        if not isinstance(self.eviction, str) or self.eviction not in get_args(Eviction):
            cure = "use 'auto', 'lru', 'adaptive' or 'release_order'"
            raise InputError(say(f"eviction {shown(self.eviction)}", "it is not a known order", cure))
        self._check_cost()
        if type(self.ghosts) is not int or not 0 <= self.ghosts <= MOST_GHOSTS:
            fact = f"it must be a whole number from 0 to {MOST_GHOSTS}"
            raise InputError(say(f"ghosts {shown(self.ghosts)}", fact, "8 of them per slot serve well"))
        if type(self.resume_every) is not int or not 0 <= self.resume_every < LARGEST:
            fact = f"it must be a whole number from 0 to {LARGEST - 1:,}"
            raise InputError(say(f"resume_every {shown(self.resume_every)}", fact, "0 guesses no resume points"))
        if type(self.min_uses) is not int or not 1 <= self.min_uses <= MOST_USES:
            fact, cure = f"it must be a whole number from 1 to {MOST_USES}", "2: pages that were used again"
            raise InputError(say(f"min_uses {shown(self.min_uses)}", fact, cure))
        if self.min_uses > 1 and self.order != "adaptive":
            ask = f"min_uses {self.min_uses} with eviction '{self.order}'"
            raise InputError(
                say(ask, "only the adaptive order counts uses", "use eviction='adaptive', or leave it at 1")
            )

    def _check_cost(self) -> None:
        if not isinstance(self.eviction_cost, str) or self.eviction_cost not in get_args(EvictionCost):
            cure = "use 'tokens' or 'compute'"
            raise InputError(say(f"eviction_cost {shown(self.eviction_cost)}", "it is not a known cost", cure))
        if type(self.compute_doubles_at) is not int or not 1 <= self.compute_doubles_at < LARGEST:
            fact = f"it must be a whole number from 1 to {LARGEST - 1:,}"
            raise InputError(say(f"compute_doubles_at {shown(self.compute_doubles_at)}", fact, "30,000 fits 8B models"))
        if self.eviction_cost == "compute" and self.order != "adaptive":
            ask, cure = f"eviction_cost 'compute' with eviction '{self.order}'", "use eviction='adaptive', or 'tokens'"
            raise InputError(say(ask, "only the adaptive order weighs pages", cure))

    def _check_receipts(self) -> None:
        if type(self.receipts) is not bool:
            raise InputError(say(f"receipts {shown(self.receipts)}", "they are on or off", "pass True or False"))
        if type(self.receipt_scopes) is not int or not 0 <= self.receipt_scopes <= MOST_SCOPES:
            fact = f"it must be a whole number from 0 to {MOST_SCOPES}"
            raise InputError(say(f"receipt_scopes {shown(self.receipt_scopes)}", fact, "0 looks into no other scope"))
        if type(self.receipt_chunks) is not int or not 0 <= self.receipt_chunks <= MOST_CHUNKS:
            fact = f"it must be a whole number from 0 to {MOST_CHUNKS:,}"
            raise InputError(say(f"receipt_chunks {shown(self.receipt_chunks)}", fact, "0 keeps none"))
        if self.receipt_chunks and not self.receipts:
            cure = "pass receipts=True, or leave it at 0"
            raise InputError(say(f"receipt_chunks {self.receipt_chunks}", "only receipts look there", cure))

    def _check_sizes(self) -> None:
        if not isinstance(self.groups, tuple) or not all(isinstance(group, LayerGroup) for group in self.groups):
            raise InputError(
                say(f"groups {shown(self.groups)}", "they are not a list of LayerGroup", "pass [LayerGroup(), ...]")
            )
        if not isinstance(self.tiers, tuple) or not all(isinstance(tier, TierConfig) for tier in self.tiers):
            fact = "they are not a list of TierConfig"
            raise InputError(say(f"tiers {shown(self.tiers)}", fact, "pass [TierConfig(name, slots), ...]"))
        for name in ("block_size", "max_sequences", "max_length", "max_events", "max_encoder_length"):
            value = getattr(self, name)
            if name == "max_encoder_length" and value is None:
                continue
            if type(value) is not int or not 1 <= value < LARGEST:
                fact = f"it must be a whole number from 1 to {LARGEST - 1:,}"
                raise InputError(say(f"{name} {shown(value)}", fact, "pass such an int"))
        if type(self.rank) is not int or not 0 <= self.rank < LARGEST:
            fact = f"it must be a whole number from 0 to {LARGEST - 1:,}"
            raise InputError(say(f"rank {shown(self.rank)}", fact, "pass such an int"))
        if not isinstance(self.event_seed, bytes) or len(self.event_seed) != SEED_BYTES:
            fact, cure = f"it must be {SEED_BYTES} secret bytes", "use secrets.token_bytes(16)"
            raise InputError(say("this event_seed", fact, cure))
        if self.max_chunk is not None and (type(self.max_chunk) is not int or self.max_chunk < 1):
            fact = "it must be a whole number of at least 1"
            raise InputError(say(f"max_chunk {shown(self.max_chunk)}", fact, "pass a positive int, or None"))

    def _check_switches(self) -> None:
        for name in ("reuse", "partial_reuse", "copy_on_partial_reuse", "shadows", "events", "share_pending"):
            value = getattr(self, name)
            if type(value) is not bool:
                raise InputError(say(f"{name} {shown(value)}", "it is on or off", "pass True or False"))

    def _check_groups(self) -> None:
        cross = [group.cross for group in self.groups]
        if all(cross):
            fact = "a cache needs at least one layer group that reads the sequence's own tokens"
            raise InputError(say(f"groups {shown(self.groups)}", fact, "pass groups=(LayerGroup(),)"))
        names = [group.name for group in self.groups]
        if len(set(names)) != len(names):
            raise InputError(say(f"groups {names}", "two groups have one name", "name each group apart"))
        if cross != sorted(cross):
            raise InputError(say(f"groups {names}", "a cross group stands before others", "put cross groups last"))
        for group in self.groups:
            if why := misplaced(group, self.block_size):
                raise InputError(say(f"group {shown(group.name)}", why, "use a multiple of block_size"))

    def _check_tiers(self) -> None:
        if not 1 <= len(self.tiers) <= MAX_TIERS:
            raise InputError(
                say(f"{len(self.tiers)} tiers", f"a cache has 1 to {MAX_TIERS}", "start with TierConfig('device', n)")
            )
        names = [tier.name for tier in self.tiers]
        if wrong := [name for name in names if not isinstance(name, str)]:
            raise InputError(say(f"a tier named {shown(wrong[0])}", "its name is not a string", "pass a string"))
        if len(set(names)) != len(names):
            raise InputError(say(f"tiers {names}", "two tiers have one name", "name each tier apart"))
        for place, tier in enumerate(self.tiers):
            numbers = tier.slots if isinstance(tier.slots, tuple) else (tier.slots,)
            if any(type(number) is not int for number in numbers):
                raise InputError(
                    say(f"tier {shown(tier.name)} slots {shown(tier.slots)}", "they are not whole numbers", "use ints")
                )
            pools = self.num_pools
            if not isinstance(tier.slots, int) and len(tier.slots) != pools:
                each = "groups" if pools == len(self.groups) else f"pools of {len(self.groups)} groups"
                cure = f"give one number per {'group' if pools == len(self.groups) else 'pool'}"
                fact = f"{len(tier.slots)} numbers for {pools} {each}"
                raise InputError(say(f"tier {shown(tier.name)} slots", fact, cure))
            least = 1 if place == 0 and not self._has_no_device else 0
            for group in range(len(self.groups)):
                if self.slots_of(place, group) < least:
                    fact = f"{self.slots_of(place, group)} slots for group {shown(self.groups[group].name)}"
                    raise InputError(say(f"tier {shown(tier.name)}", fact, f"give at least {least}"))

    def _check_slow(self) -> None:
        for place, tier in enumerate(self.tiers):
            if type(tier.slow) is not bool:
                raise InputError(
                    say(f"slow={shown(tier.slow)} of tier {shown(tier.name)}", "it is or is not", "pass a bool")
                )
            if tier.slow and (place != len(self.tiers) - 1 or place < 2):
                fact = f"it is number {place} of {len(self.tiers)}, and its pages come up into a tier below the device"
                raise InputError(
                    say(f"slow tier {shown(tier.name)}", fact, "put it last, behind the device and the host")
                )
        share = self.prefetch_share
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise InputError(say(f"prefetch_share {shown(share)}", "it is a part of the slots", "pass 0 to 1"))
        if type(self.lasting) is not bool:
            raise InputError(say(f"lasting {shown(self.lasting)}", "changes are noted or not", "pass True or False"))
        if self.lasting and slow_tier(self) < 0:
            raise InputError(say("lasting=True", "no tier is slow", "give the coldest tier slow=True"))

    def _check_pools(self) -> None:
        for group, layer in enumerate(self.groups):
            first = self.groups[self.pool_of.index(self.pool_of[group])]
            if layer.page_bytes != first.page_bytes:
                names = f"groups {shown(first.name)} and {shown(layer.name)} in pool {shown(layer.pool)}"
                fact = f"their pages have {first.page_bytes} and {layer.page_bytes} bytes, a slot holds either"
                raise InputError(say(names, fact, "give them pages of one size, or pools of their own"))
            total = sum(tier.of_pool(self.pool_of[group]) for tier in self.tiers)
            if total > MOST_SLOTS:
                fact = f"it has {shown(total)} slots in all tiers, the store counts to {MOST_SLOTS:,}"
                raise InputError(say(f"group {shown(layer.name)}", fact, "give it fewer"))

    @property
    def order(self) -> Order:
        """The order of eviction that the cache has: what "auto" means for these groups, or the one that was given."""
        return usual_order(self.groups) if self.eviction == "auto" else self.eviction

    @property
    def pool_of(self) -> tuple[int, ...]:
        """By group: the number of its pool. Pools are counted in the order in which groups first name them."""
        return pools_of(self.groups)

    @property
    def num_pools(self) -> int:
        """Pools that the groups have, shared ones counted once."""
        return max(self.pool_of) + 1

    def slots_of(self, tier: int, group: int) -> int:
        """Slots of a tier in the pool of a group."""
        return self.tiers[tier].of_pool(self.pool_of[group])

    @property
    def _has_no_device(self) -> bool:
        """Pages come and go only by writers and finds: the first tier has no slots, and colder ones have."""
        pools = range(self.num_pools)
        return all(
            self.tiers[0].of_pool(pool) == 0 and sum(tier.of_pool(pool) for tier in self.tiers) > 0 for pool in pools
        )


def check_place(config: CacheConfig, group: int, tier: int = 0) -> None:
    """There is such a layer group, and such a tier."""
    if type(group) is type(tier) is int and 0 <= group < len(config.groups) and 0 <= tier < len(config.tiers):
        return  # the usual case
    for number, word, known in ((group, "group", config.groups), (tier, "tier", config.tiers)):
        if not isinstance(number, int) or not 0 <= number < len(known):
            fact = f"there are {len(known)}: {[item.name for item in known]}"
            raise UnknownError(say(f"{word} {shown(number)}", fact, f"use a number from 0 to {len(known) - 1}"))


def slow_tier(config: CacheConfig) -> int:
    """Number of the slow tier, -1 without one."""
    return len(config.tiers) - 1 if config.tiers[-1].slow else -1


def num_remembered(config: CacheConfig) -> int:
    """Ghosts per slot that the stores keep: none where they are not asked for."""
    return config.ghosts if config.receipts or config.order == "adaptive" else 0


def num_columns(config: CacheConfig) -> int:
    """Blocks of the longest sequence, with the room draft groups keep behind it."""
    longest = config.max_length + max(group.extra_tokens or 0 for group in config.groups)
    return -(-longest // config.block_size)


def num_encoder_columns(config: CacheConfig) -> int:
    """Blocks of the longest encoder input."""
    longest = config.max_length if config.max_encoder_length is None else config.max_encoder_length
    return -(-longest // config.block_size)


def hopeless(config: CacheConfig) -> list[str]:
    """What in this configuration can never take effect, each with the reason."""
    reasons: list[str] = []
    if config._has_no_device:
        return reasons
    if config.reuse:
        for nth, group in enumerate(config.groups):
            layer, slots = group.clamped(config.max_length), config.slots_of(0, nth)
            if why := hopeless_group(layer, slots, config.block_size, config.max_length):
                reasons.append(f"group {shown(group.name)} {why}")
        if config.max_length <= config.block_size and not config.partial_reuse:
            reasons.append(
                f"no prompt can be reused: blocks of {config.block_size} tokens are never full before the last token "
                f"of max_length {config.max_length}, and hits inside a block are off; use smaller blocks"
            )
    colder = [tier for tier in config.tiers[1:] if any(tier.of_pool(pool) for pool in range(config.num_pools))]
    if colder and (not config.reuse or config.offload_min_priority > HIGHEST):
        why = "reuse is off" if not config.reuse else f"offload_min_priority is {config.offload_min_priority}"
        reasons.append(f"tier {shown(colder[0].name)} stays empty: {why}; leave the tier out or change that")
    return reasons
