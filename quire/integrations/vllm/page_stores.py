"""PageStores: which pages of what a step computes are copied to host memory, and with which step. Hears of no copies.

A step stores at most so many pages of a request. What is left of a long chunk is carried: stored before the steps after
it run, from the blocks that the request had then. vLLM may take such blocks back in between (the request ends, a
window passes them, it is preempted), and what is in them stays until it hands them out again: then all that is left is
stored before that step writes, however much it is. So is what is left of a request that comes back: it will look for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from quire.core.cache import Cache
from quire.integrations.vllm.connector_counts import ConnectorCounts
from quire.integrations.vllm.orders import Copy, Part, StepOrders
from quire.integrations.vllm.stay import NULL, Stay, StoreJob, Tables

MOST_PAGES = 64  # of a request in one step, of all groups together
Begin = Callable[[Stay, int, list[Part], dict[int, list[int]]], StoreJob]


class PageStores:
    """Of one engine. `begin` notes a job."""

    def __init__(self, cache: Cache, counts: ConnectorCounts, begin: Begin) -> None:
        self._cache, self._counts, self._begin, self._size = cache, counts, begin, cache.config.block_size
        self._storing: list[set[int]] = [set() for _ in cache.config.groups]  # vLLM's blocks that are being stored
        self._carried: dict[Stay, None] = {}  # something of them is left; in the order in which they came
        self.set_most_blocks(max(1, MOST_PAGES // len(self._storing)))

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

    def carry_on(self, orders: StepOrders, taken: AbstractSet[int]) -> list[Stay]:
        """Before a step that writes the blocks `taken`: what is left of the steps before. Returns stays that are over,
        and of which nothing is left now."""
        ended = []
        for stay in list(self._carried):
            if not stay.full:
                end = min(stay.due, stay.sent + self._most)
                if end < stay.due and (stay.comes_back or (taken and self._is_taken(stay, taken))):
                    end = stay.due
                self._order(stay, end, stay.tables, orders.early)
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
        """Whether some block that is left of a stay is somebody's again."""
        left = slice(stay.sent // self._size, stay.due // self._size)
        return not all(taken.isdisjoint(table[left]) for table in stay.tables)

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

    def _order(self, stay: Stay, end: int, tables: Tables, copies: list[Copy]) -> None:
        """Order a store of the blocks up to `end` that are still to be stored."""
        first, stop = stay.sent // self._size, end // self._size
        if not self._take_slots(stay, end, tables):
            return
        parts, ordinals = [], {}
        for group, table in enumerate(tables):
            blocks, slots = stay.taken(group)
            if blocks:
                ordinals[group] = blocks
                whole = len(blocks) == stop - first
                ids = table[first:stop] if whole else [table[block] for block in blocks]
                parts.append(Part(group, ids, slots))
                self._storing[group].update(ids)
        if parts:
            job = self._begin(stay, stay.sent, parts, ordinals)
            stay.jobs.append(job)
            copies.append(Copy(job.number, stay.request.request_id, parts))
            self._counts.add("stores")

    def _take_slots(self, stay: Stay, end: int, tables: Tables) -> bool:
        """Slots up to `end`, or for as much of it as there is room; then nothing more of this stay is stored."""
        first, stop = stay.sent // self._size, end // self._size
        skip: dict[int, Sequence[int]] = {}
        for group, busy in enumerate(self._storing):
            ids = tables[group][first:stop]
            if not all(ids) or (busy and not busy.isdisjoint(ids)):  # NULL is 0
                skip[group] = _left_out(ids, first, busy)
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
        """Stores whose blocks are written again in this step, by whom ever, must end before it."""
        if taken and any(self._storing):
            orders.flush = [
                job.number for job in jobs
                if job.ordinals and any(not taken.isdisjoint(part.blocks) for part in job.parts)
            ]  # fmt: skip
            if orders.flush:
                for busy in self._storing:
                    busy -= taken  # what is in them from now on is something else

    def ended(self, job: StoreJob) -> None:
        """Nobody reads the blocks of a store any more."""
        for part in job.parts:
            self._storing[part.group].difference_update(part.blocks)


def _left_out(ids: Sequence[int], first: int, busy: set[int]) -> Sequence[int]:
    """Blocks, the first of which is `first`, that a window has passed or that somebody stores already."""
    passed = ids.count(NULL)
    if any(ids[:passed]) or not busy.isdisjoint(ids[passed:]):
        return [first + nth for nth, block in enumerate(ids) if block == NULL or block in busy]
    return range(first, first + passed)  # mostly the first ones
