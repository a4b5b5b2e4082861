"""PageStores: which pages of what a step computes are copied to host memory, and with which step. Hears of no copies.

A step stores at most so many pages of a request. What is left of a long chunk is carried: stored before the steps after
it run, from the blocks that the request had then. vLLM may take such blocks back in between (the request ends, a
window passes them, it is preempted), and what is in them stays until it hands them out again: then all that is left is
stored before that step writes, however much it is. So is what is left of a request that comes back, and looks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from quire.core.cache import Cache
from quire.integrations.vllm.connector_counts import ConnectorCounts
from quire.integrations.vllm.orders import Copy, Part, StepOrders
from quire.integrations.vllm.stay import NULL, Stay, StoreJob, Tables

MOST_PAGES = 64  # of a request in one step, with one group
GROUP_COST = 14  # pages that could be stored in the time that one more group takes, whether it has any or not
LEAST_BLOCKS = 8
Begin = Callable[[Stay, int, list[Part], dict[int, list[int]]], StoreJob]


class PageStores:
    """Of one engine. `begin` notes a job."""

    def __init__(self, cache: Cache, counts: ConnectorCounts, begin: Begin) -> None:
        self._cache, self._counts, self._begin, self._size = cache, counts, begin, cache.config.block_size
        self._storing: list[set[int]] = [set() for _ in cache.config.groups]  # vLLM's blocks that are being stored
        self._groups = range(len(self._storing))
        self._windowed = [group for group in self._groups if cache.config.groups[group].window is not None]
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
        ended = []
        for stay in list(self._carried):
            if not stay.full:
                now = bool(taken) and self._is_taken(stay, taken)
                end = stay.due if now or stay.comes_back else min(stay.due, stay.sent + self._most)
                job = self._order(stay, end, stay.tables, orders.early)
                if now and job is not None:
                    self._hurry(job, orders, taken)
            if stay.is_behind:
                continue
            del self._carried[stay]
            stay.tables = ()
            if stay.over:
                ended.append(stay)
        if orders.early:
            self._counts.add("carried_stores", len(orders.early))
        return ended

    def _is_taken(self, stay: Stay, taken: AbstractSet[int]) -> bool:
        """Whether some block that is left of a stay is somebody's again; who runs lets go of none but by windows."""
        left = slice(stay.sent // self._size, stay.due // self._size)
        for group in self._groups if stay.over else self._windowed:
            if not taken.isdisjoint(stay.tables[group][left]):
                return True
        return False

    def store(self, stay: Stay, end: int, tables: Tables, orders: StepOrders) -> None:
        """A step computes the whole blocks of a stay up to `end`: order a store of those that the cache has not."""
        if stay.sent < stay.due:  # behind: what a window has passed since is in the tables from before
            known = stay.due // self._size
            stay.tables = [was[:known] + now[known:] for was, now in zip(stay.tables, tables, strict=True)]
            stay.due = end
            return
        stay.due = end
        had = max(stay.sent, stay.there)  # what was there before is mostly here: to look costs little
        self._order(stay, min(end, had + self._most), tables, orders.stores)
        if stay.is_behind:
            self._carried[stay] = None
            stay.tables = tables

    def _order(self, stay: Stay, end: int, tables: Tables, copies: list[Copy]) -> StoreJob | None:
        """Order a store of the blocks up to `end` that are still to be stored."""
        first, stop = stay.sent // self._size, end // self._size
        skip: dict[int, Sequence[int]] = {}
        for group, busy in enumerate(self._storing):
            ids = tables[group][first:stop]
            if not all(ids) or (busy and not busy.isdisjoint(ids)):  # NULL is 0
                skip[group] = _left_out(ids, first, busy)
        writer = stay.writer or stay.open_writer(self._cache)
        if not self._take_slots(stay, end, skip):
            return None
        parts, ordinals = [], {}
        for group, table in enumerate(tables):
            blocks, slots = writer.taken(group)
            if blocks:
                ordinals[group] = blocks
                ids = table[first:stop] if len(blocks) == stop - first else [table[block] for block in blocks]
                parts.append(Part(group, ids, slots))
                self._storing[group].update(ids)
        if not parts:
            return None
        job = self._begin(stay, stay.sent, parts, ordinals)
        stay.jobs.append(job)
        copies.append(Copy(job.number, stay.request.request_id, parts))
        self._counts.add("stores")
        return job

    def _take_slots(self, stay: Stay, end: int, skip: dict[int, Sequence[int]]) -> bool:
        """Slots up to `end`, or for as much of it as there is room; then nothing more of this stay is stored."""
        lack = stay.take_slots(self._cache, end, skip)
        if lack is not None:
            stay.full = True
            self._counts.add("refused_stores")
            end = stay.sent + lack.have * self._size  # what stands first is worth most
            if end <= stay.sent or stay.take_slots(self._cache, end, skip) is not None:
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
        job.lost |= taken
        for part in job.parts:
            self._storing[part.group] -= taken  # what is in them from now on is something else

    def ended(self, job: StoreJob) -> None:
        """Nobody reads the blocks of a store any more; one that was handed out again may be another's by now."""
        for part in job.parts:
            ids = [block for block in part.blocks if block not in job.lost] if job.lost else part.blocks
            self._storing[part.group].difference_update(ids)


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
