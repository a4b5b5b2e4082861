"""ColderTiers: the verbs of a cache that bring pages down and up ahead of time. A part of Cache; the files below do it.

`offload` is a step's plan. Into a slow tier, which no step waits for, pages go by `copy_down`, and up from it by
`prefetch`: plans in the background. What lies there may outlive the process: `lasting_changes` reports it, `restore`
takes it back.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

from quire.core.outside.lasting import restore_pages, take_changes
from quire.core.outside.prefetch import Prefetch, prefetch_pages
from quire.core.records.config import CacheConfig, check_place
from quire.core.records.errors import InputError, StateError, say, shown
from quire.core.records.lasting import BlockNodes, LastingChanges, LastingPages
from quire.core.records.plan import NO_MOVES, MoveColumn, Moves, Plan
from quire.core.records.request import Request
from quire.core.sequences.finish import land_moves
from quire.core.state.claim import Refusal
from quire.core.state.handle import handles_of
from quire.core.state.prepared import Prepared
from quire.core.state.registry import Registry


class ColderTiers:
    """What Cache can do with the tiers below the device."""

    config: CacheConfig
    _registry: Registry
    _asked: Callable[[], AbstractContextManager[bool]]

    def offload(self, num_pages: int, group: int = 0) -> Plan:
        """Copy idle pages down early, into empty slots, so that evicting them later is free: the next victims, with
        eviction="adaptive" those that would go last and were used at least `min_uses` times."""
        check_place(self.config, group)
        if type(num_pages) is not int or num_pages < 0:
            raise InputError(say(f"offload of {shown(num_pages)} pages", "that is not a number", "pass 0 or more"))
        with self._asked():
            store, place = self._registry.setup.pools[group]
            store.offload(place, min(num_pages, self.config.slots_of(0, group)))
            return self._registry.take_plan()

    def copy_down(self, limit: int) -> Plan:
        """Copy up to `limit` idle pages of every group into the slow tier, ahead of their eviction: a background plan.

        Those go first that would be evicted last, and where uses are counted only those with `min_uses`. A page has its
        copy when the plan is finished; until then its source stays where it is.
        """
        if type(limit) is not int or limit < 0:
            raise InputError(say(f"copy_down of {shown(limit)} pages", "that is not a number", "pass 0 or more"))
        with self._asked():
            registry, moves = self._registry, [NO_MOVES]
            if registry.setup.slow_tier < 0:
                raise StateError(say("copy_down", "this cache has no slow tier", "give the coldest tier slow=True"))
            for group, (store, place) in enumerate(registry.setup.pools):
                taken = store.copy_down(place, min(limit, registry.setup.config.slots_of(-1, group)))
                taken[:, MoveColumn.GROUP] = group
                moves.append(taken)
            return registry.take_background(self._sound(np.concatenate(moves)))

    def _sound(self, moves: Moves) -> Moves:
        """Less those that would read what a step's plan may still fail to write: they are called off."""
        doubtful = np.zeros(len(moves), np.bool_)
        for plan in self._registry.plans.values():
            doubtful |= plan.writes_source_of(moves)
        if doubtful.any():
            land_moves(self._registry.setup, moves[doubtful], np.ones(int(doubtful.sum()), np.bool_))
        return moves[~doubtful]

    def background_plans(self) -> list[Plan]:
        """Background plans that were not finished yet, in order."""
        with self._asked():
            return list(self._registry.background.values())

    def prefetch(self, request: Request | Prepared, deadline: float | None = None) -> Prefetch | Refusal:
        """Bring the pages of a request's hit that are in the slow tier only up into host memory: a background plan.

        They are held there until the request is admitted or its find is used, the prefetch is closed, or the cache's
        clock passes `deadline`. A refusal (no slots to be had, or more than `prefetch_share`) has changed nothing.
        """
        with self._asked():
            return prefetch_pages(self._registry, request, deadline)

    def open_prefetches(self) -> list[Prefetch]:
        """Prefetches that hold something still, in order."""
        with self._asked():
            handles = handles_of(self._registry.open_prefetches)
            return [prefetch for prefetch in handles if isinstance(prefetch, Prefetch)]

    def lasting_changes(self) -> LastingChanges:
        """Pages that came into the slow tier or left it since the last call, with the blocks they need."""
        with self._asked():
            return take_changes(self._registry)

    def restore(self, nodes: BlockNodes, pages: LastingPages) -> int:
        """Put the blocks and pages that an earlier cache had in its slow tier into this one, which is empty.

        They are idle there, in this order. Returns pages; arrays that no cache has told are refused.
        """
        for given, kind in ((nodes, BlockNodes), (pages, LastingPages)):
            if not isinstance(given, kind):
                raise InputError(
                    say(f"restore of a {type(given).__name__}", f"it is not a {kind.__name__}", "pass both")
                )
        with self._asked():
            return restore_pages(self._registry, nodes, pages)


def registry_of(cache: ColderTiers) -> Registry:
    """Everything that a cache owns, for the parts of the core that look into it; under its lock, `setup.lock`."""
    return cache._registry
