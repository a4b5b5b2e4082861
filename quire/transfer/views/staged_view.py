"""StagedView: pages that a link cannot address travel through slots of host memory. Owns those slots; the view inside
decides everything else.

    sender     device --read--> staging --link-->       offer ... release
    receiver   --link--> staging --write--> device      want ... commit

The last piece of a prompt names the blocks of all pieces before it, so a whole block of a group that keeps everything
is staged once, however many offers name it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from quire.core.records.errors import InputError, StateError, say
from quire.core.records.request import Request
from quire.core.records.span import Span
from quire.tiers.arena import ArenaTier
from quire.tiers.base import Bytes, Tier
from quire.transfer.geometry.pieces import keeps_all
from quire.transfer.geometry.slices import NONE, Places, nowhere
from quire.transfer.views.view import CacheShape, CacheView, Landing, Offer

Held = TypeVar("Held", bound=Offer | Landing)
Copy = Callable[[int, Sequence[int], Sequence[Bytes]], None]


class SlotPool:
    """Staging slots of one group: how many use each, and the device slot whose bytes others may share."""

    __slots__ = ("origin", "pages", "users")

    def __init__(self, pages: Bytes) -> None:
        self.pages = pages
        self.users = np.zeros(len(pages), np.int32)
        self.origin = np.full(len(pages), NONE, np.int32)

    def take(self, places: Places, whole: int) -> Places | None:
        """A slot for every place that has one; None: too few are free. The first `whole` blocks share theirs.

        Fresh ones are the first so many neighbours, else the lowest: what lies side by side is one row for a link.
        """
        there = {origin: slot for slot, origin in enumerate(self.origin.tolist()) if origin != NONE}
        room = nowhere(len(places))
        room[:whole] = [there.get(place, NONE) for place in places[:whole].tolist()]
        fresh, free = np.flatnonzero((places >= 0) & (room < 0)), np.flatnonzero(self.users == 0)
        if len(fresh) > len(free):
            return None
        behind = max(len(fresh) - 1, 0)
        near = np.flatnonzero(free[behind:] - free[: len(free) - behind] == behind)
        first = int(near[0]) if len(near) else 0
        room[fresh] = free[first : first + len(fresh)]
        self.users[room[room >= 0]] += 1
        shared = fresh[fresh < whole]
        self.origin[room[shared]] = places[shared]
        return room

    def give(self, room: Places) -> None:
        """One user less."""
        self.users[room[room >= 0]] -= 1
        self.origin[self.users == 0] = NONE


class StagedView:
    """A view whose pages are on `device`, as one whose pages are in `staging`: the memory that the link is given."""

    __slots__ = ("_device", "_open", "_pools", "_view")

    def __init__(self, view: CacheView, device: Tier, staging: ArenaTier) -> None:
        sizes = tuple(group.page_bytes for group in view.shape().groups)
        for info in (device.info(), staging.info()):
            if info.page_bytes != sizes:
                fact = f"pages of {list(info.page_bytes)} bytes, the cache has {list(sizes)}"
                raise InputError(say(f"staging with tier {info.name!r}", fact, "build all from the same layer groups"))
        self._view = view
        self._device = device
        self._pools = [SlotPool(staging.view(group)) for group in range(len(sizes))]
        self._open: set[Offer | Landing] = set()

    def __repr__(self) -> str:
        used = [f"{self.num_used(group)} of {len(pool.users)}" for group, pool in enumerate(self._pools)]
        return f"StagedView({self._view!r}, staging slots in use: {', '.join(used)})"

    def shape(self) -> CacheShape:
        """Groups and block size."""
        return self._view.shape()

    def num_used(self, group: int) -> int:
        """Staging slots with a holder."""
        return int(np.count_nonzero(self._pools[group].users))

    def offer(self, id: Hashable, span: Span) -> Offer | None:
        """Hold the pages of these tokens and read them into staging; None also when it has too few free slots."""
        inner = self._view.offer(id, span)
        if inner is None:
            return None
        size, length = self.shape().block_size, inner.length
        keeps = [keeps_all(group, length, size) for group in self.shape().groups]
        goes = [bool(span) and (early or span.end == length) for early in keeps]  # else with the last piece
        places = [here if go else nowhere(len(here)) for here, go in zip(inner.places, goes, strict=True)]
        whole = [length // size if early else 0 for early in keeps]  # more may be written behind the end of a prompt
        offer = self._stage(f"offer of {id!r}", inner, places, whole)
        if offer is not None:
            self._copy(self._device.read, offer, inner)
        return offer

    def want(self, request: Request, *, one_start: bool = False) -> Landing | None:
        """Make room for a prompt, on the device and in staging; None: no room now."""
        inner = self._view.want(request, one_start=one_start)
        if inner is None:
            return None
        return self._stage(f"request {request.id!r}", inner, inner.places, [0] * len(inner.places))

    def commit(self, landing: Landing) -> None:
        """Write what has arrived to the device and make it findable. An error of the device releases it."""
        inner = self._inner(landing)
        self._copy(self._device.write, landing, inner)
        self._give(landing)
        self._view.commit(inner)

    def release(self, held: Offer | Landing) -> None:
        """Give up the slots in staging, and what the view inside holds."""
        inner = self._inner(held)
        self._give(held)
        self._view.release(inner)

    def _stage(self, ask: str, inner: Held, places: Sequence[Places], whole: Sequence[int]) -> Held | None:
        """The same with staging slots for `places`; without enough of them nothing is held."""
        rooms = [pool.take(here, edge) for pool, here, edge in zip(self._pools, places, whole, strict=True)]
        taken = tuple(room for room in rooms if room is not None)
        if len(taken) == len(rooms):
            held = replace(inner, places=taken, ref=inner)
            self._open.add(held)
            return held
        for pool, room in zip(self._pools, rooms, strict=True):
            if room is not None:
                pool.give(room)
        self._view.release(inner)
        for group, (pool, here) in enumerate(zip(self._pools, places, strict=True)):
            count, slots = int(np.count_nonzero(here >= 0)), len(pool.users)
            if count > slots:
                fact = f"it takes {count} staging slots of group {group}, there are {slots}"
                raise InputError(say(ask, fact, "shorten it or enlarge the staging memory"))
        return None

    def _copy(self, copy: Copy, held: Held, inner: Held) -> None:
        """Between device and staging, what has one user: what has more is there. An error gives everything up."""
        try:
            for group, (pool, room) in enumerate(zip(self._pools, held.places, strict=True)):
                named = np.flatnonzero(room >= 0)
                alone = named[pool.users[room[named]] == 1]
                buffers = [pool.pages[slot : slot + 1] for slot in room[alone].tolist()]
                if buffers:
                    copy(group, inner.places[group][alone].tolist(), buffers)
        except BaseException:
            self.release(held)
            raise

    def _inner(self, held: Held) -> Held:
        if held not in self._open:
            raise StateError(say("pages in staging", "they are not held here", "commit or release them once"))
        assert isinstance(held.ref, type(held))
        return held.ref

    def _give(self, held: Offer | Landing) -> None:
        self._open.remove(held)
        for pool, room in zip(self._pools, held.places, strict=True):
            pool.give(room)
