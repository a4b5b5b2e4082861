"""PageStores: which pages of what a step computes are copied to host memory, and with which step. Hears of no copies.

A step stores at most so many pages of a request. What is left of a long chunk is carried: stored before the steps after
it run, from the blocks that the request had then. vLLM may take such blocks back in between (the request ends, a
window passes them, it is preempted), and what is in them stays until it hands them out again: a few that it hands out
are stored before that step writes, instead of a part, and if it hands out many, all that is left. So is what is left of
a request that comes back, and looks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from quire.core.cache import Cache
from quire.core.outside.writer import to_range
from quire.integrations.vllm.common.worker_orders import Copy, Part, StepOrders
from quire.integrations.vllm.reports.connector_counts import ConnectorCounts
from quire.integrations.vllm.requests.jobs import CopyJob, OpenJobs
from quire.integrations.vllm.requests.left_blocks import LeftBlocks
from quire.integrations.vllm.requests.stay import Stay
from quire.integrations.vllm.requests.stay_stores import StayStores
from quire.integrations.vllm.requests.tables import NULL, Named, Tables

MOST_PAGES = 56  # of a request in one step, with one group
GROUP_COST = 10  # pages that could be stored in the time that one more group takes, whether it has any or not
LEAST_BLOCKS = 8
MANY = 64  # blocks that a step hands out: no longer looked at one by one
FEW = 4  # blocks that are stored before their turn: if more are handed out, all that is left goes with them
NO_BLOCKS: Named = {}
NONE: frozenset[int] = frozenset()


class HandedOut(NamedTuple):
    """Blocks that a step hands out again, and which may hold pages of an earlier stay.

    `by_group` names them, unless the step hands out so many blocks that none was looked up (`are_many` then, too).
    """

    by_group: Mapping[int, list[int]]
    are_many: bool = False  # too many to be stored one by one

    @property
    def are_none(self) -> bool:
        """No pages are in danger."""
        return not self.are_many and not self.by_group


NOTHING_AGAIN = HandedOut({})


class Carried(NamedTuple):
    """What became of stays of which something was left."""

    reached: list[Stay]  # all that they have up to `stores.sent` is copied already: it can be found from now on
    over: list[Stay]  # their requests are gone, and nothing is left of them now


class Ordered(NamedTuple):
    """A store, if there was something to store; if not, whether all up to `stores.sent` can be found from now on."""

    job: CopyJob | None = None
    is_reached: bool = False


class PageStores:
    """Of one engine. Begins jobs; the caller reports their end to `ended`, and makes pages findable."""

    def __init__(self, cache: Cache, counts: ConnectorCounts, jobs: OpenJobs[Stay]) -> None:
        self._cache, self._counts, self._size, self._jobs = cache, counts, cache.config.block_size, jobs
        self._storing: list[set[int]] = [set() for _ in cache.config.groups]  # vLLM's blocks that are being stored
        self._groups = range(len(self._storing))
        self._windowed = [group for group in self._groups if cache.config.groups[group].bounded]
        self._left = LeftBlocks(len(self._storing))
        self._carried: dict[Stay, None] = {}  # something of them is left; in the order in which they came
        groups = len(self._storing)
        self.set_most_blocks(max(LEAST_BLOCKS, (MOST_PAGES - GROUP_COST * (groups - 1)) // groups))

    def set_most_blocks(self, blocks: int) -> None:
        """Store no more of a request in one step than so many of each group."""
        self._most = blocks * self._size

    @property
    def is_storing(self) -> bool:
        """Some of vLLM's blocks are being copied, as far as was heard, or will be."""
        return bool(self._carried) or any(self._storing)

    @property
    def num_carried(self) -> int:
        """Stays of which something that was computed is left."""
        return len(self._carried)

    def drop_carried(self) -> None:
        """Nothing of them is stored any more; the next step lets go of them."""
        for stay in self._carried:
            stay.stores.full = True

    def carry_on(self, orders: StepOrders, taken: AbstractSet[int]) -> Carried:
        """Before a step that writes the blocks `taken`: store what is left of the steps before."""
        carried, again = Carried([], []), self._left_among(taken)
        for stay in list(self._carried):
            stores = stay.stores
            if not stores.full and self._carry_on(stay, orders, taken, again):
                carried.reached.append(stay)
            if stores.is_behind:
                continue
            del self._carried[stay]
            stores.tables, stores.is_noted = (), False
            if stay.over:
                carried.over.append(stay)
        if not self._carried:
            self._left.clear()
        if orders.early:
            self._counts.add("carried_stores", len(orders.early))
        return carried

    def _carry_on(self, stay: Stay, orders: StepOrders, taken: AbstractSet[int], again: HandedOut) -> bool:
        """The next part of what is left of a stay; or what is handed out `again`, and all if that is much."""
        stores = stay.stores
        end, also, hurries = min(stores.due, stores.sent + self._most), NO_BLOCKS, False
        if stay.comes_back or again.are_many:
            hurries = not again.are_none and self._is_handed_out(stay, taken)
            end = stores.due if hurries or stay.comes_back else end
        elif again.by_group:
            also = self._handed_out(stay, again.by_group)
            hurries = bool(also)
            end = stores.sent if hurries else end
        ordered = self._order(stay, end, stores.tables, orders.early, also)
        if hurries and ordered.job is not None:
            self._hurry(ordered.job, orders, taken)
        return ordered.is_reached

    def _is_handed_out(self, stay: Stay, taken: AbstractSet[int]) -> bool:
        """Whether a block that is left of a stay was handed out again; a running one loses windows and states."""
        stores = stay.stores
        left = slice(stores.sent // self._size, stores.due // self._size)
        groups = self._groups if stay.over else self._windowed
        return any(not taken.isdisjoint(stores.tables[group][left]) for group in groups)

    def _handed_out(self, stay: Stay, again: Mapping[int, list[int]]) -> Named:
        """Of a few blocks those that are left of a stay, and were not stored before."""
        stores = stay.stores
        first, stop = stores.sent // self._size, stores.due // self._size
        found: Named = {}
        for group, numbers in again.items():
            if not (stay.over or group in self._windowed):
                continue
            had = stores.saved.get(group, NONE)
            blocks = [block for block in _places(stores.tables[group], first, stop, numbers) if block not in had]
            if blocks:
                stores.saved[group] = had.union(blocks)
                found[group] = to_range(blocks)
        return found

    def _left_among(self, taken: AbstractSet[int]) -> HandedOut:
        if not taken:
            return NOTHING_AGAIN
        if len(taken) > MANY:
            return HandedOut({}, are_many=True)
        for stay in self._carried:
            self._note_left(stay.stores)
        found = self._left.among(taken)
        return HandedOut(found, sum(map(len, found.values())) > FEW)

    def _note_left(self, stores: StayStores) -> None:
        """With what is heard of a stay, or when a step asks: that one has more to do."""
        if not stores.is_noted:
            self._left.add(stores.tables, stores.sent // self._size, stores.due // self._size)
            stores.is_noted = True

    def store(self, stay: Stay, end: int, tables: Tables, orders: StepOrders) -> bool:
        """A step computes the whole blocks of a stay up to `end`: order a store of those that the cache has not.

        Returns whether there was nothing to store, and all up to `stores.sent` can be found from now on.
        """
        stores = stay.stores
        if stores.sent < stores.due:  # behind: what a window has passed since is in the tables from before
            known = stores.due // self._size
            stores.tables = [was[:known] + now[known:] for was, now in zip(stores.tables, tables, strict=True)]
            stores.due, stores.is_noted = end, False
            return False
        stores.due = end
        had = max(stores.sent, stay.loads.there)  # what was there before is mostly here: to look costs little
        ordered = self._order(stay, min(end, had + self._most), tables, orders.stores)
        if stores.is_behind:
            self._carried[stay] = None
            stores.tables = tables
        return ordered.is_reached

    def _order(self, stay: Stay, end: int, tables: Tables, copies: list[Copy], also: Named = NO_BLOCKS) -> Ordered:
        """Order a store of the blocks up to `end` that are still to be stored, and of those `also` named."""
        stores = stay.stores
        first, stop = stores.sent // self._size, end // self._size
        skip: Named = {}
        groups = self._groups if first < stop else also
        for group in groups:
            ids, busy = tables[group][first:stop], self._storing[group]
            if not all(ids) or (busy and not busy.isdisjoint(ids)):  # NULL is 0
                skip[group] = _left_out(ids, first, busy)
        writer = stores.writer or stores.open_writer(self._cache)
        if not self._take_slots(stores, end, skip, also):
            return Ordered()
        parts, ordinals = [], {}
        for group in groups:
            blocks, slots = writer.taken(group)
            if blocks:
                ordinals[group], table = blocks, tables[group]
                whole = len(blocks) == stop - first and blocks[-1] < stop
                ids = table[first:stop] if whole else [table[block] for block in blocks]
                parts.append(Part(group, ids, slots))
                self._storing[group].update(ids)
        if not parts:
            return Ordered(is_reached=bool(stores.saved) and self._reach(stores))
        job = self._jobs.begin(stay, stores.sent, parts, ordinals)
        stores.jobs.append(job)
        copies.append(Copy(job.number, stay.request.request_id, parts))
        self._counts.add("stores")
        return Ordered(job)

    def _reach(self, stores: StayStores) -> bool:
        """All blocks up to where it is now are copied, or being copied: those that were stored ahead too.

        False: they can be found when the last job under way is done.
        """
        if stores.jobs:
            stores.jobs[-1].end = stores.sent
        return not stores.jobs

    def _take_slots(self, stores: StayStores, end: int, skip: Named, also: Named) -> bool:
        """Slots up to `end`, or for as much of it as there is room; then nothing more of this stay is stored.

        What is stored before its turn has all or none: no group but those it names would have its slots filled.
        """
        lack = stores.take_slots(self._cache, end, skip, also)
        if lack is not None:
            stores.full = True
            self._counts.add("refused_stores")
            blocks = (end - stores.sent) // self._size * lack.have // lack.need  # what stands first is worth most
            end = stores.sent + blocks * self._size
            if also or end <= stores.sent or stores.take_slots(self._cache, end, skip, NO_BLOCKS) is not None:
                return False
        stores.sent = end
        return True

    def flush(self, orders: StepOrders, taken: AbstractSet[int]) -> None:
        """Stores of steps before whose blocks are written again in this one, by whom ever, must end before it."""
        if taken and any(self._storing):
            for _, job in self._jobs:
                if job.ordinals and not all(taken.isdisjoint(part.blocks) for part in job.parts):
                    self._hurry(job, orders, taken)

    def _hurry(self, job: CopyJob, orders: StepOrders, taken: AbstractSet[int]) -> None:
        orders.flush.append(job.number)
        job.lost = job.lost | taken if job.lost else taken
        for part in job.parts:
            self._storing[part.group] -= taken  # what is in them from now on is something else

    def ended(self, stay: Stay, job: CopyJob) -> None:
        """The blocks of a store are not read any more; one that was handed out again may be another's by now."""
        for part in job.parts:
            ours = set(part.blocks) - job.lost if job.lost else part.blocks
            self._storing[part.group].difference_update(ours)
        if stay in self._carried and not stay.stores.full:
            self._note_left(stay.stores)


def _places(table: list[int], first: int, stop: int, numbers: list[int]) -> list[int]:
    """Where some of vLLM's blocks stand in a part of a table; looked for from its end, which vLLM hands out first."""
    part, found = table[first:stop], []
    part.reverse()
    for number in numbers:
        if number in part:
            found.append(first + len(part) - 1 - part.index(number))
    return found


def _left_out(ids: Sequence[int], first: int, busy: set[int]) -> Sequence[int]:
    """Blocks, the first of which is `first`, that a window has passed or that are being stored already."""
    passed = ids.count(NULL)
    if any(ids[:passed]) or not busy.isdisjoint(ids[passed:]):
        return [first + nth for nth, block in enumerate(ids) if block == NULL or block in busy]
    return range(first, first + passed)  # mostly the first ones


def fresh_blocks(scheduler_output: Any) -> list[int]:
    """Blocks that this step may write: those that requests were given for it, those of new ones with what they share,
    and what vLLM fills itself, for a request that waits for its load too."""
    fresh = [block for new in scheduler_output.scheduled_new_reqs for ids in new.block_ids for block in ids]
    for grown in scheduler_output.scheduled_cached_reqs.new_block_ids:
        fresh += [block for ids in grown or () for block in ids]
    fresh += scheduler_output.new_block_ids_to_zero or ()
    fresh += [copy.dst_block_id for copy in scheduler_output.kv_cache_block_copies or ()]
    return fresh
