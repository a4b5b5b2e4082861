"""State: what one cache owns, in one place: streams, sequences, open claims, unfinished plans. Decides nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import numpy as np

from quire.core.records.config import CacheConfig
from quire.core.records.groups import LayerGroup
from quire.core.records.plan import NO_MOVES, Moves, Plan
from quire.core.records.retain import TICKS_PER_SECOND
from quire.core.records.stats import Usage
from quire.core.state.roots import Roots
from quire.core.store import StoreName, open_store

if TYPE_CHECKING:
    from weakref import ref

    from quire.core.admission.claim import Claim
    from quire.core.admission.claims import Claims
    from quire.core.life.hold import Hold
    from quire.core.state.sequence import Sequence
    from quire.core.store.twin import Chain, Store


class Stream:
    """One token stream of every sequence: the store of the layer groups that read it, and its roots.

    A sequence has the same row in all of them. Cross groups read a stream of their own.
    """

    __slots__ = ("first", "roots", "store")

    def __init__(self, store: Store, first: int, told: bool, seed: bytes) -> None:
        self.store = store
        self.first = first  # number of its first group
        self.roots = Roots(store, told, seed)

    def has(self, row: int) -> bool:
        """Whether that live row is in this stream; a request may come without encoder."""
        return self.first == 0 or bool(self.store.length[row])


class State:
    """One cache's belongings; the functions of claim, admit, life and finish act on it under the door's lock."""

    __slots__ = (
        "abandoned", "apart", "block_size", "bounded", "chain", "clock", "config", "cross", "free_rows",
        "groups", "holds", "layers", "least", "lock", "next_plan", "open_claims", "own_groups", "plain", "plans",
        "policy", "pools", "room", "roots", "sequences", "states", "store", "streams", "timed", "watched",
    )  # fmt: skip

    def __init__(self, config: CacheConfig, clock: Callable[[], float], store: StoreName) -> None:
        module = open_store(store)
        self.config = config
        self.block_size = config.block_size
        self.layers = tuple(group.clamped(config.max_length) for group in config.groups)
        num_cross = sum(group.cross for group in self.layers)
        self.groups = range(len(self.layers))
        self.own_groups = range(len(self.layers) - num_cross)  # those that read the sequence's own tokens
        self.room = tuple(config.tiers[0].of_group(group) for group in self.groups)  # device slots
        self.least = min(self.room)
        self.bounded = any(group.bounded for group in self.layers)
        self.states = tuple(group for group in self.own_groups if self.layers[group].current)  # groups with a state
        self.apart = self.bounded or len(self.own_groups) > 1  # groups may hold different parts of one prompt
        self.plain = not (self.bounded or num_cross or any(group.extra_tokens is not None for group in self.layers))
        self.policy = 1 + config.copy_on_partial_reuse if config.partial_hits else 0  # the store's word for it
        self.clock = clock
        self.lock = threading.RLock()  # the door's; nothing below it knows threads
        self.chain: type[Chain] = module.Chain
        own = self._open(module.Store, self.own_groups, config.columns)
        across = range(self.own_groups.stop, self.groups.stop)
        self.cross = self._open(module.Store, across, config.encoder_columns) if across else None
        self.streams = (own,) if self.cross is None else (own, self.cross)
        self.store, self.roots = own.store, own.roots
        self.pools = tuple((s.store, g - s.first) for s in self.streams for g in self._groups_of(s))
        self.sequences: dict[Hashable, Sequence] = {}
        self.free_rows = list(range(config.max_sequences - 1, -1, -1))
        self.open_claims: dict[ref[Claims], list[Claim]] = {}  # by their handles, in the order they were made
        self.abandoned: list[ref[Claims]] = []  # handles that were lost: appended to in any thread, at any time
        self.holds: dict[Hold, None] = {}
        self.plans: dict[int, Plan] = {}
        self.next_plan = 0
        self.timed = False  # some page may have a duration, or was claimed to get one
        self.watched: dict[int, Sequence] = {}  # by row: commits of these are checked against what they were given

    def _open(self, make: type[Store], groups: range, columns: int) -> Stream:
        config, size = self.config, self.block_size
        facts = [_numbers(self.layers[g], size, [tier.of_group(g) for tier in config.tiers]) for g in groups]
        store = make(
            size, facts, config.max_sequences, columns, int(config.eviction == "release_order"), config.shadows,
            config.offload_min_priority, config.events, config.max_events, config.partial_hits,
            config.event_seed,
        )  # fmt: skip
        return Stream(store, groups.start, config.events, config.event_seed)

    def _groups_of(self, stream: Stream) -> range:
        return self.own_groups if stream.first == 0 else range(stream.first, self.groups.stop)

    def now(self) -> int:
        """The clock in the store's ticks."""
        return int(self.clock() * TICKS_PER_SECOND)

    def available(self, group: int) -> int:
        """Device slots that can be had now, promises to running prompts aside."""
        store, place = self.pools[group]
        return store.available(place)

    def usage(self, tier: int, group: int) -> Usage:
        """Where the slots of one tier and group are."""
        (store, place), capacity = self.pools[group], self.config.tiers[tier].of_group(group)
        empty, idle = store.num_empty(place, tier), store.num_idle(place, tier)
        shadows = store.num_shadow(place, tier)
        return Usage(capacity, empty, idle, shadows, capacity - empty - idle - shadows)

    def refresh(self, now: int) -> None:
        """Let retention durations that have passed run out."""
        for stream in self.streams:
            stream.store.refresh(now)

    def take_plan(self) -> Plan:
        """Everything the stores decided to move since the last plan; one without moves needs no finishing."""
        number = self.next_plan
        self.next_plan = number + 1
        if not self.store.num_moves and (self.cross is None or not self.cross.store.num_moves):
            return Plan(number, NO_MOVES)
        moves = self._take_moves()
        moves.flags.writeable = False
        plan = self.plans[number] = Plan(number, moves)
        self._trust(False)
        return plan

    def _take_moves(self) -> Moves:
        """In the numbering of the cache's groups; streams share no slot, so their order does not matter."""
        if self.cross is None:
            return self.store.take_moves()
        theirs = self.cross.store.take_moves()
        theirs[:, 1] += self.cross.first
        return np.concatenate([self.store.take_moves(), theirs])

    def close_plan(self, number: int) -> None:
        """A plan is finished; when none is under way the stores may trust every copy again."""
        self.plans.pop(number, None)
        self._trust(not self.plans)

    def _trust(self, copies: bool) -> None:
        for stream in self.streams:
            stream.store.inherit = copies


def _numbers(layer: LayerGroup, size: int, slots: list[int]) -> tuple[int, int, int, int, int, int, list[int]]:
    """A layer group as the store knows it."""
    reach = (layer.tail(size), layer.sink(size), layer.keep(size))
    return (*reach, layer.every(size), layer.extra_tokens or 0, layer.current, slots)
