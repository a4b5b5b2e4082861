"""Find: hold exactly what the cache has of a request, for an outside reader. Teaches nothing by itself.

A claim is a promise of slots on the device; a find is the hit alone: whole blocks, where they are. It costs about as
much as a claim that is dropped. `used` reports to the eviction order that the request was served.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from quire.core.admission.prepare import ready_for
from quire.core.records.errors import InputError, StateError, UnknownError, say, shown
from quire.core.records.request import Int32, Request
from quire.core.state.handle import Handle, take_lost
from quire.core.state.held_hit import HeldHit, give_up, hits_of
from quire.core.state.learner import learn
from quire.core.state.prefetching import end_prefetches
from quire.core.state.prepared import Prepared, ReadyRequest, ready_of
from quire.core.state.registry import Registry
from quire.core.state.roots import NO_ROOT
from quire.core.state.setup import Setup

if TYPE_CHECKING:
    from quire.core.store.interface import Hit

NO_BLOCKS: Int32 = np.empty(0, np.int32)
NOWHERE = (NO_BLOCKS, NO_BLOCKS)


class Found(Handle[HeldHit]):
    """What the cache has of a request, held where it is until `close`; use it in a `with` block.

    Tokens [`start`, `end`) are there, whole blocks of them. Per layer group `blocks` are those that resuming at `end`
    reads, `tiers` and `slots` where each of them is now. What the plans that are open still move can be read when they
    are finished; a move that failed has brought nothing, and `lost` names its page: look there after you have read.
    A page below the device stays where it was found: a sequence may bring it up, and the copy stays.
    """

    __slots__ = ("_use",)

    def __init__(self, registry: Registry, kept: HeldHit, use: Callable[[HeldHit], None]) -> None:
        super().__init__(registry.setup.lock, registry.open_finds, registry.lost_finds, kept)
        self._use = use

    @property
    def request(self) -> Request:
        """What was asked."""
        return self._kept.prepared.request

    @property
    def start(self) -> int:
        """Tokens before it that the caller has."""
        return self._kept.first * self._kept.prepared.setup.block_size

    @property
    def end(self) -> int:
        """The first token that is not there; `start` when nothing is. Only lost pages lower it."""
        return max(self._kept.first, self._kept.blocks) * self._kept.prepared.setup.block_size

    def blocks(self, group: int = 0) -> Int32:
        """Blocks that it holds of a group, ascending; of a cross group those of the encoder's input."""
        hit, place = self._look(group)
        return NO_BLOCKS if hit is None else hit.held(place)

    def tiers(self, group: int = 0) -> Int32:
        """The tier where each of them was found."""
        hit, _ = self._look(group)
        return NO_BLOCKS if hit is None else self._kept.places[group][0].copy()

    def slots(self, group: int = 0) -> Int32:
        """The slot of each of them in that tier."""
        hit, _ = self._look(group)
        return NO_BLOCKS if hit is None else self._kept.places[group][1].copy()

    def lost(self, group: int = 0) -> Int32:
        """Those of `blocks` whose bytes did not come, or were reported as bad, since they were found; ascending."""
        self._look(group)
        with self._lock:
            return np.array(sorted(block for one, block in self._kept.bad if one == group), np.int32)

    def _look(self, group: int) -> tuple[Hit | None, int]:
        setup = self._kept.prepared.setup
        if self.closed:
            raise StateError(say(f"use of {shown(self)}", "it was closed, and holds nothing", "find again"))
        if not isinstance(group, int) or not 0 <= group < len(setup.groups):
            raise UnknownError(say(f"group {shown(group)}", f"there are {len(setup.groups)}", "number them from 0"))
        return hits_of(self._kept, group), setup.pools[group].place

    def used(self) -> None:
        """The request was served: what it has of the cache, and the tokens before `start`, were used once more."""
        with self._lock:
            if self.closed:
                raise StateError(say(f"use of {shown(self)}", "it was closed", "call it before"))
            self._use(self._kept)

    def close(self) -> None:
        """Give the pages back."""
        with self._lock:
            if self._end():
                give_up(self._kept)

    def __enter__(self) -> Found:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"tokens [{self.start}, {self.end})"
        return f"Found({shown(self.request.id)}, {state})"


def find_pages(registry: Registry, request: Request | Prepared, from_: int) -> Found:
    """Hold the hit of a request behind its first `from_` tokens."""
    setup = registry.setup
    if type(from_) is not int or not 0 <= from_ <= setup.config.max_length:
        fact = "that is not a place in a request"
        raise InputError(say(f"find from token {shown(from_)}", fact, f"pass 0 to {setup.config.max_length}"))
    prepared = ready_of(request) if type(request) is Prepared else None
    if prepared is None or prepared.setup is not setup or prepared.seated:
        (prepared,) = ready_for(setup, [request], "decode")
    held = _look_up(setup, prepared, from_ // setup.block_size)
    if registry.page_watcher is not None:
        registry.page_watcher.reading(prepared.request, (held.hit, held.cross_hit))
    return Found(registry, held, lambda kept: _mark_used(registry, kept))


def _look_up(setup: Setup, prepared: ReadyRequest, first: int) -> HeldHit:
    store, limit = setup.store, prepared.request.reuse_limit
    root = setup.roots.find(prepared.scope_key) if prepared.keep else NO_ROOT
    usable = min(prepared.end, setup.config.max_length)
    usable = usable if limit is None else min(usable, limit)
    hit, redo = _walk(setup, prepared, root, usable, first), prepared.request.redo_blocks
    if redo and hit.blocks > first:
        hit = _walk(setup, prepared, root, max(first, hit.blocks - redo) * setup.block_size, first)
    store.claim(hit, None, True)
    cross, places, across = setup.cross, prepared.encoder, None
    if cross is not None and places is not None:
        root = cross.roots.find(prepared.request.scope.key) if places.keep else NO_ROOT
        across = cross.store.walk(places.chain, root, places.blocks * setup.block_size, 0)
        cross.store.claim(across, None, True)
    held = HeldHit(prepared, hit, across, first, hit.blocks)
    held.places = _places(setup, held)
    return held


def _walk(setup: Setup, prepared: ReadyRequest, root: int, usable: int, first: int) -> Hit:
    """The last edge within so many tokens at which all groups could resume, and whose states are written."""
    store = setup.store
    hit = store.walk(prepared.chain, root, usable, 0, first)
    while hit.blocks > first and _is_unwritten(setup, hit):
        hit = store.walk(prepared.chain, root, hit.blocks * setup.block_size - 1, 0, first)
    return hit


def _is_unwritten(setup: Setup, hit: Hit) -> bool:
    """Whether a commit has just made its snapshot: until a plan has the copy it is unknown when to read it."""
    store = setup.store
    if not setup.state_groups or not store.num_moves:
        return False
    return any(store.is_pending(group, page) for group in setup.state_groups for page in hit.pages(group).tolist())


def _places(setup: Setup, held: HeldHit) -> list[tuple[Int32, Int32]]:
    """Tier and slot of each page that it holds, by group."""
    if held.cross_hit is None and not held.hit.blocks:  # nothing was found: no need to look group by group
        return [NOWHERE] * len(setup.groups)
    if setup.cross is None:
        return [held.hit.places(group) for group in setup.groups]
    found = [(hits_of(held, group), setup.pools[group].place) for group in setup.groups]
    return [NOWHERE if one is None else one.places(place) for one, place in found]


def _mark_used(registry: Registry, kept: HeldHit) -> None:
    """Once: later calls say nothing new."""
    setup, prepared = registry.setup, kept.prepared
    now = setup.now() if registry.timed else 0  # before the first change: a caller's clock may raise
    if kept.is_used:
        return
    kept.is_used = True
    end_prefetches(registry.open_prefetches, [prepared])
    if registry.timed:
        setup.refresh(now)
    root = setup.roots.find(prepared.scope_key) if prepared.keep else NO_ROOT
    if root != NO_ROOT:
        setup.store.use(root, prepared.chain, kept.hit.blocks)
    cross, places = setup.cross, prepared.encoder
    if cross is not None and places is not None and places.keep and kept.cross_hit is not None:
        root = cross.roots.find(prepared.request.scope.key)
        if root != NO_ROOT:
            cross.store.use(root, places.chain, kept.cross_hit.blocks)
    for store, place, learner in registry.learners:
        if store.is_due(place):
            learn(store, place, learner)


def give_back_finds(registry: Registry) -> None:
    """What was found and lost is given back. Between two calls only: never inside one."""
    lost = take_lost(registry.open_finds, registry.lost_finds)
    for kept in lost:
        give_up(kept)
    if lost:
        fact = f"{len(lost)} of them were lost without being closed: their pages are given back"
        warnings.warn(say("finds", fact, "use a `with` block"), ResourceWarning, stacklevel=4)
