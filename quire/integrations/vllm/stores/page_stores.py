"""PageStores: which pages of what a step computes are copied to host memory, and with which step. Hears of no copies.

A step stores at most so many pages of a request. What is left of a long chunk is carried: stored before the steps after
it run, from the blocks that the request had then. vLLM may take such blocks back in between (the request ends, a
window passes them, it is preempted), and what is in them stays until it hands them out again: a few that it hands out
are stored before that step writes, instead of a part, and if it hands out many, all that is left. So is what is left of
a request that comes back, and looks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from quire.core.cache import Cache
from quire.core.outside.writer import as_run
from quire.integrations.vllm.orders import Copy, Part, StepOrders
from quire.integrations.vllm.reports.connector_counts import ConnectorCounts
from quire.integrations.vllm.stay import NULL, Named, Stay, StoreJob, Tables
from quire.integrations.vllm.stores.left_blocks import LeftBlocks

MOST_PAGES = 56  # of a request in one step, with one group
GROUP_COST = 10  # pages that could be stored in the time that one more group takes, whether it has any or not
LEAST_BLOCKS = 8
MANY = 64  # blocks that a step hands out: no longer looked at one by one
FEW = 4  # blocks that are stored before their turn: if more are handed out, all that is left goes with them
NO_BLOCKS: Named = {}
NONE: frozenset[int] = frozenset()
Again = dict[int, list[int]] | None  # by group: left of somebody, and handed out; None: too many are handed out to tell
NOBODYS: Again = {}
Begin = Callable[[Stay, int, list[Part], dict[int, list[int]]], StoreJob]
Publish = Callable[[Stay, int], None]


class PageStores:
    """Of one engine. `begin` notes a job, `publish` makes what is copied of a stay findable up to a token."""

    def __init__(self, cache: Cache, counts: ConnectorCounts, begin: Begin, publish: Publish) -> None:
        self._cache, self._counts, self._size = cache, counts, cache.config.block_size
        self._begin, self._publish = begin, publish
        self._storing: list[set[int]] = [set() for _ in cache.config.groups]  # vLLM's blocks that are being stored
        self._groups = range(len(self._storing))
        self._windowed = [group for group in self._groups if cache.config.groups[group].window is not None]
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
            stay.full = True

    def carry_on(self, orders: StepOrders, taken: AbstractSet[int]) -> list[Stay]:
        """Before a step that writes the blocks `taken`: what is left of the steps before. Returns stays that are over,
        and of which nothing is left now."""
        ended, again = [], self._left_among(taken)
        for stay in list(self._carried):
            if not stay.full:
                self._carry_on(stay, orders, taken, again)
            if stay.is_behind:
                continue
            del self._carried[stay]
            stay.tables, stay.is_noted = (), False
            if stay.over:
                ended.append(stay)
        if not self._carried:
            self._left.clear()
        if orders.early:
            self._counts.add("carried_stores", len(orders.early))
        return ended

    def _carry_on(self, stay: Stay, orders: StepOrders, taken: AbstractSet[int], again: Again) -> None:
        """The next part of what is left of a stay; or what is handed out `again`, and all if that is much."""
        end, also, hurries = min(stay.due, stay.sent + self._most), NO_BLOCKS, False
        if again is None or stay.comes_back or sum(map(len, again.values())) > FEW:
            hurries = again != NOBODYS and self._is_handed_out(stay, taken)
            end = stay.due if hurries or stay.comes_back else end
        elif again:
            also = self._handed_out(stay, again)
            hurries = bool(also)
            end = stay.sent if hurries else end
        job = self._order(stay, end, stay.tables, orders.early, also)
        if hurries and job is not None:
            self._hurry(job, orders, taken)

    def _is_handed_out(self, stay: Stay, taken: AbstractSet[int]) -> bool:
        """Whether some block that is left of a stay is somebody's again; who runs lets go of none but by windows."""
        left = slice(stay.sent // self._size, stay.due // self._size)
        groups = self._groups if stay.over else self._windowed
        return any(not taken.isdisjoint(stay.tables[group][left]) for group in groups)

    def _handed_out(self, stay: Stay, again: Mapping[int, list[int]]) -> Named:
        """Of a few blocks those that are left of a stay, and were not stored before."""
        first, stop = stay.sent // self._size, stay.due // self._size
        found: Named = {}
        for group, numbers in again.items():
            if not (stay.over or group in self._windowed):
                continue
            had = stay.saved.get(group, NONE)
            blocks = [block for block in _places(stay.tables[group], first, stop, numbers) if block not in had]
            if blocks:
                stay.saved[group] = had.union(blocks)
                found[group] = as_run(blocks)
        return found

    def _left_among(self, taken: AbstractSet[int]) -> Again:
        if not taken or len(taken) > MANY:
            return NOBODYS if not taken else None
        for stay in self._carried:
            self._note_left(stay)
        return self._left.among(taken)

    def _note_left(self, stay: Stay) -> None:
        """With what is heard of a stay, or when a step asks: that one has more to do."""
        if not stay.is_noted:
            self._left.add(stay.tables, stay.sent // self._size, stay.due // self._size)
            stay.is_noted = True

    def store(self, stay: Stay, end: int, tables: Tables, orders: StepOrders) -> None:
        """A step computes the whole blocks of a stay up to `end`: order a store of those that the cache has not."""
        if stay.sent < stay.due:  # behind: what a window has passed since is in the tables from before
            known = stay.due // self._size
            stay.tables = [was[:known] + now[known:] for was, now in zip(stay.tables, tables, strict=True)]
            stay.due, stay.is_noted = end, False
            return
        stay.due = end
        had = max(stay.sent, stay.there)  # what was there before is mostly here: to look costs little
        self._order(stay, min(end, had + self._most), tables, orders.stores)
        if stay.is_behind:
            self._carried[stay] = None
            stay.tables = tables

    def _order(
        self, stay: Stay, end: int, tables: Tables, copies: list[Copy], also: Named = NO_BLOCKS
    ) -> StoreJob | None:
        """Order a store of the blocks up to `end` that are still to be stored, and of those `also` named."""
        first, stop = stay.sent // self._size, end // self._size
        skip: Named = {}
        groups = self._groups if first < stop else also
        for group in groups:
            ids, busy = tables[group][first:stop], self._storing[group]
            if not all(ids) or (busy and not busy.isdisjoint(ids)):  # NULL is 0
                skip[group] = _left_out(ids, first, busy)
        writer = stay.writer or stay.open_writer(self._cache)
        if not self._take_slots(stay, end, skip, also):
            return None
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
            if stay.saved:
                self._reach(stay)
            return None
        job = self._begin(stay, stay.sent, parts, ordinals)
        stay.jobs.append(job)
        copies.append(Copy(job.number, stay.request.request_id, parts))
        self._counts.add("stores")
        return job

    def _reach(self, stay: Stay) -> None:
        """All blocks up to where a stay is now are copied, or being copied: those that were stored ahead too."""
        if stay.jobs:
            stay.jobs[-1].end = stay.sent
        else:
            self._publish(stay, stay.sent)

    def _take_slots(self, stay: Stay, end: int, skip: Named, also: Named) -> bool:
        """Slots up to `end`, or for as much of it as there is room; then nothing more of this stay is stored.

        What is stored before its turn has all or none: no group but those it names would have its slots filled.
        """
        lack = stay.take_slots(self._cache, end, skip, also)
        if lack is not None:
            stay.full = True
            self._counts.add("refused_stores")
            blocks = (end - stay.sent) // self._size * lack.have // lack.need  # what stands first is worth most
            end = stay.sent + blocks * self._size
            if also or end <= stay.sent or stay.take_slots(self._cache, end, skip, NO_BLOCKS) is not None:
                return False
        stay.sent = end
        return True

    def flush(self, orders: StepOrders, jobs: Iterable[StoreJob], taken: AbstractSet[int]) -> None:
        """Stores of steps before whose blocks are written again in this one, by whom ever, must end before it."""
        if taken and any(self._storing):
            for job in jobs:
                if job.ordinals and not all(taken.isdisjoint(part.blocks) for part in job.parts):
                    self._hurry(job, orders, taken)

    def _hurry(self, job: StoreJob, orders: StepOrders, taken: AbstractSet[int]) -> None:
        orders.flush.append(job.number)
        job.lost = job.lost | taken if job.lost else taken
        for part in job.parts:
            self._storing[part.group] -= taken  # what is in them from now on is something else

    def ended(self, job: StoreJob) -> None:
        """Nobody reads the blocks of a store any more; one that was handed out again may be another's by now."""
        for part in job.parts:
            ours = set(part.blocks) - job.lost if job.lost else part.blocks
            self._storing[part.group].difference_update(ours)
        if job.stay in self._carried and not job.stay.full:
            self._note_left(job.stay)


def _places(table: list[int], first: int, stop: int, numbers: list[int]) -> list[int]:
    """Where some of vLLM's blocks stand in a part of a table; looked for from its end, which vLLM hands out first."""
    part, found = table[first:stop], []
    part.reverse()
    for number in numbers:
        if number in part:
            found.append(first + len(part) - 1 - part.index(number))
    return found


def _left_out(ids: Sequence[int], first: int, busy: set[int]) -> Sequence[int]:
    """Blocks, the first of which is `first`, that a window has passed or that somebody stores already."""
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
