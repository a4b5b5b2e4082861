"""Setup: what never changes in a cache: config, layer groups, stores, clock, lock. Knows no sequences."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from quire.core.records.config import CacheConfig, num_columns, num_encoder_columns, slow_tier
from quire.core.records.errors import InputError, say, shown
from quire.core.records.groups import LayerGroup
from quire.core.records.reports.stats import Usage
from quire.core.records.retain import TICKS_PER_SECOND
from quire.core.state.roots import Roots
from quire.core.state.stream import TokenStream, open_stream
from quire.core.store import StoreName, open_store

if TYPE_CHECKING:
    from quire.core.store.interface import Chain, Store

Clock = Callable[[], float]
CallOver = Callable[[], None]

EARLIEST, LATEST = -1e12, 1e12  # seconds: what a clock may say, so that ticks fit the store's numbers


class WatchedLock:
    """A lock like the cache's, which says when a call is over, before another can begin."""

    def __init__(self, call_over: CallOver) -> None:
        self._lock, self._depth, self._call_over = threading.RLock(), 0, call_over

    def __enter__(self) -> bool:
        self._lock.acquire()
        self._depth += 1
        return True

    def __exit__(self, *_: object) -> None:
        try:
            if self._depth == 1:
                self._call_over()
        finally:
            self._depth -= 1
            self._lock.release()


class GroupPool(NamedTuple):
    """Where the pages of a layer group are."""

    store: Store
    place: int  # the group's number in that store


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """The fixed parts of one cache. What is inside the stores changes; which stores there are does not."""

    config: CacheConfig
    block_size: int
    layers: tuple[LayerGroup, ...]  # the config's, where a window that no sequence outgrows is full attention
    groups: range  # numbers of all layer groups
    own_groups: range  # of those that read the sequence's own tokens
    state_groups: tuple[int, ...]  # of those with a recurrent state
    inside_groups: tuple[int, ...]  # of those whose states a step writes inside its span
    windows: tuple[int, ...]  # of those with a window
    shared: tuple[int, ...]  # by group: pages of a hit that another request may count on, at most
    device_slots: tuple[int, ...]  # by group: of its pool
    smallest_pool: int  # the least of them
    pool_of: tuple[int, ...]  # by group: the number of its pool
    sharers: tuple[tuple[int, ...], ...]  # by pool: the groups whose pages are in it
    smallest_share: int  # slots of a pool for each of its groups, where that is least
    bounded: bool  # some group forgets
    groups_differ: bool  # groups may hold different parts of one prompt
    most_extra: int  # tokens of room that some group always has behind a sequence
    same_reach: bool  # every group of its own tokens makes room for as many: no states, and no room of its own
    only_full: bool  # every group takes the same pages: neither bounded nor cross, without room of its own
    slow_tier: int  # the number of the slow tier, -1 without one
    shares_pending: bool  # claims find what steps in flight compute: not a state, nor what waits for an encoder
    partial_policy: int  # the store's word for which partial hits are allowed
    clock: Callable[[], float]
    lock: AbstractContextManager[bool]  # the cache's only one; no function below takes it, only handles do
    chain: type[Chain]
    store: Store  # of the sequence's own tokens,
    roots: Roots  # and their roots
    cross: TokenStream | None  # the encoder's tokens
    streams: tuple[TokenStream, ...]
    pools: tuple[GroupPool, ...]  # by group

    def __post_init__(self) -> None:
        if not callable(self.clock):
            fact = f"it is a {type(self.clock).__name__}"
            raise InputError(say(f"clock={shown(self.clock)}", fact, "pass a function that returns seconds"))

    def now(self) -> int:
        """The clock in the store's ticks."""
        seconds = self.clock()
        if type(seconds) is not float or not EARLIEST < seconds < LATEST:
            _check_seconds(seconds)
        return int(seconds * TICKS_PER_SECOND)

    def seconds(self) -> float:
        """What the clock says, a finite number."""
        seconds = self.clock()
        _check_seconds(seconds)
        return seconds

    def available(self, group: int) -> int:
        """Device slots of a group's pool that can be had now, less what is reserved for running prompts."""
        store, place = self.pools[group]
        return store.available(place)

    def usage(self, tier: int, group: int) -> Usage:
        """Where the slots of one tier are, in the pool of a group."""
        (store, place), capacity = self.pools[group], self.config.slots_of(tier, group)
        empty, idle = store.num_empty(place, tier), store.num_idle(place, tier)
        shadows = store.num_shadow(place, tier)
        ghosts = store.ghost_room(place) if tier == 0 else (0, 0)
        by_age, fallbacks = store.fallback(place) if tier == 0 else (False, 0)
        held = capacity - empty - idle - shadows
        return Usage(capacity, empty, idle, shadows, held, *ghosts, by_age=by_age, fallbacks=fallbacks)

    def longest(self, row: int) -> int:
        """The longest the sequence in a row can be with the pages that it has."""
        size, most = self.block_size, self.config.max_length
        for group in self.own_groups:
            (store, place), layer = self.pools[group], self.layers[group]
            columns = store.capacity[place].item(row)
            most = min(most, (columns + 1) * size - 1 if layer.current else columns * size - (layer.extra_tokens or 0))
        return most

    def refresh(self, now: int) -> None:
        """Let retention durations that have passed run out."""
        self.store.refresh(now)
        if self.cross is not None:
            self.cross.store.refresh(now)


def _check_seconds(seconds: float) -> None:
    try:
        if EARLIEST < seconds < LATEST:
            return
    except (TypeError, ValueError):
        pass  # it is not a number
    fact = f"it returned {shown(seconds)}"
    raise InputError(say("the clock of a cache", fact, "pass one that returns seconds, as time.monotonic does"))


def open_setup(config: CacheConfig, clock: Clock, store: StoreName, call_over: CallOver | None = None) -> Setup:
    """Stores and numbers for a config."""
    module, layers = open_store(store), tuple(group.clamped(config.max_length) for group in config.groups)
    groups, own_groups = range(len(layers)), range(len(layers) - sum(group.cross for group in layers))
    device_slots, across = tuple(config.slots_of(0, group) for group in groups), range(own_groups.stop, groups.stop)
    bounded, roomy = any(group.bounded for group in layers), any(group.extra_tokens is not None for group in layers)
    own, sharers = open_stream(module.Store, config, layers, own_groups, num_columns(config)), _sharers(config)
    cross = open_stream(module.Store, config, layers, across, num_encoder_columns(config)) if across else None
    return Setup(
        config=config,
        block_size=config.block_size,
        layers=layers,
        groups=groups,
        own_groups=own_groups,
        state_groups=tuple(group for group in own_groups if layers[group].current),
        inside_groups=tuple(group for group in own_groups if layers[group].snapshot_inside),
        windows=tuple(group for group in own_groups if layers[group].window is not None),
        shared=tuple(_most_shared(group, config.block_size) for group in layers),
        device_slots=device_slots,
        smallest_pool=min(device_slots),
        pool_of=config.pool_of,
        sharers=sharers,
        smallest_share=min([device_slots[some[0]] // len(some) for some in sharers]),
        bounded=bounded,
        groups_differ=bounded or len(own_groups) > 1,
        most_extra=max(group.extra_tokens or 0 for group in layers),
        same_reach=not (roomy or any(layers[group].current for group in own_groups)),
        only_full=not (bounded or across or roomy),
        slow_tier=slow_tier(config),
        shares_pending=config.share_pending and not across and not any(layers[group].current for group in own_groups),
        partial_policy=1 + config.copy_on_partial_reuse if config.partial_reuse else 0,
        clock=clock,
        lock=threading.RLock() if call_over is None else WatchedLock(call_over),
        chain=module.Chain,
        store=own.store,
        roots=own.roots,
        cross=cross,
        streams=(streams := (own,) if cross is None else (own, cross)),
        pools=tuple(GroupPool(one.store, place) for one in streams for place in range(len(one.store.pages))),
    )


def _sharers(config: CacheConfig) -> tuple[tuple[int, ...], ...]:
    homes = list(enumerate(config.pool_of))
    return tuple(tuple(group for group, home in homes if home == pool) for pool in range(config.num_pools))


def _most_shared(group: LayerGroup, size: int) -> int:
    return 0 if group.window is None else group.sink(size) + group.tail(size) + 1
