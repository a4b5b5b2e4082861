"""Publish: send the pages of a text that was served to a shared store, on a thread of its own. No step waits for it.

    leave out what the store has ──► find, copy, batch by batch ──► put
                     and is sound, as far as is known here

What is found keeps its slots until it is given back, so what is read is what was found, but for pages that are lost
meanwhile: a find sees pages that an open plan brings, and a move of it may fail.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock

from quire.core.outside.find import Found
from quire.core.records.groups import ALL
from quire.core.records.identity import Scope
from quire.core.records.request import Request
from quire.tiers.page_digest import BlockDigests
from quire.tiers.shared.calls.quota import QuotaAccounts
from quire.tiers.shared.ground import Page, SharedGround
from quire.tiers.shared.needs import needed_blocks
from quire.tiers.shared.rank_parts import Place
from quire.tiers.shared.stores.store import StoreMiss

PATIENCE = 5.0  # seconds for one batch; no step waits for it
MOST_COUNTED = 1 << 16  # blocks whose uses are remembered


class UseCounts:
    """How many texts that were served have had a block; bounded, the latest."""

    def __init__(self, min_uses: int) -> None:
        self.min_uses = min_uses
        self._uses: OrderedDict[bytes, int] = OrderedDict()
        self._lock = Lock()

    def count(self, digests: BlockDigests) -> list[bool]:
        """Count one more use of every block of a text; which of them may go out."""
        if self.min_uses <= 1:
            return [self.min_uses == 1] * len(digests)
        with self._lock:
            enough = []
            for block in range(len(digests)):
                uses = self._uses.pop(digests[block], 0) + 1
                self._uses[digests[block]] = uses
                enough.append(uses >= self.min_uses)
            while len(self._uses) > MOST_COUNTED:
                self._uses.popitem(last=False)
        return enough


@dataclass(slots=True, eq=False)
class Publish:
    """One text that was served; its pages go out as far as policy, quota and store allow."""

    ground: SharedGround
    uses: UseCounts
    accounts: QuotaAccounts
    label_of: Callable[[Scope], str]  # the caller's: called here, where it may take its time or fail
    request: Request
    edges: tuple[int, ...]  # tokens after which others may go on, besides the end
    label: str = ""

    def dropped(self) -> None:
        """It will not be run."""
        self.ground.client.tally.dropped(StoreMiss.CLOSED, self.ground.usable_blocks(self.request))

    def run(self) -> None:
        """Send what the store has not."""
        ground = self.ground
        blocks = ground.usable_blocks(self.request)
        names = ground.own(ground.digests(self.request, blocks))
        enough = self.uses.count(names[0])
        if not any(enough) and not ground.bad:
            return
        if not ground.client.takes_pages:
            reason = StoreMiss.FULL if ground.client.reachable else StoreMiss.UNREACHABLE
            ground.client.tally.dropped(reason, blocks)
            return
        self.label = self.label_of(self.request.scope)
        for edge in self._ends(blocks):
            self._send(edge, names, enough)

    def _ends(self, blocks: int) -> list[int]:
        """Where to look: windows and states keep other pages for each place where one may go on."""
        size = self.ground.block_size
        if all(group.tail(size) == ALL for group in self.ground.groups):
            return [blocks]
        return sorted({blocks, *(min(edge // size, blocks) for edge in self.edges)} - {0})

    def _send(self, edge: int, names: Sequence[BlockDigests], enough: Sequence[bool]) -> None:
        """Pages for going on behind `edge` blocks, or as far as there are some; held only while they are copied."""
        ground, size = self.ground, self.ground.block_size
        try:
            with self._found(edge) as found:
                edge = found.end // size
        except _NoTurn:
            ground.client.tally.dropped(StoreMiss.BUSY, edge)
            return
        pages = sorted(
            (block, nth) for nth, group in enumerate(ground.groups) for block in needed_blocks(group, edge, size)
            if self._is_wanted(names[0].page(block, nth), enough[block])
        )  # fmt: skip
        if not pages:
            return
        asks = [one.page(*page) for one in names for page in pages]
        there = ground.client.exists_many(asks, time.monotonic() + PATIENCE)
        if isinstance(there, StoreMiss):
            ground.client.tally.dropped(there, len(pages))
            return
        there = [  # with every rank's part, each of them sound
            all(there[nth :: len(pages)]) and asks[nth] not in ground.bad for nth in range(len(pages))
        ]
        ground.known.add(name for name, is_there in zip(asks, there, strict=False) if is_there)
        missing = [page for page, is_there in zip(pages, there, strict=True) if not is_there]
        left = len(missing)
        for batch in ground.batches(missing):
            reason = StoreMiss.CLOSED if ground.closing else self._send_batch(edge, batch, names)
            left -= 0 if reason in (StoreMiss.QUOTA, StoreMiss.CLOSED) else len(batch)
            if reason is not None:
                ground.client.tally.dropped(reason, left)
                return

    @contextmanager
    def _found(self, edge: int) -> Iterator[Found]:
        """What is here of the first `edge` blocks, held meanwhile."""
        request = replace(self.request, reuse_limit=edge * self.ground.block_size)
        found = self.ground.find(request, time.monotonic() + PATIENCE)
        if found is None:
            raise _NoTurn
        try:
            yield found
        finally:
            self.ground.finds.let_go(found)

    def _is_wanted(self, name: bytes, is_used_enough: bool) -> bool:
        """Whether to ask for a page and send it. One that was bad in the store had been used enough when it went."""
        return name in self.ground.bad or (is_used_enough and not self.ground.known.has(name))

    def _send_batch(self, edge: int, batch: list[Page], names: Sequence[BlockDigests]) -> StoreMiss | None:
        """Send some; why it is not worth going on. Of a batch that was not begun nothing is counted."""
        ground, tally = self.ground, self.ground.client.tally
        size = sum(ground.page_bytes(group) for _, group in batch)
        if not self.accounts.take(self.label, size):
            return StoreMiss.QUOTA
        number = ground.ranks.next_number()
        try:
            pages, ready = self._copy(number, edge, batch)
            answers = ground.put(number, pages, ready, names, time.monotonic() + PATIENCE) if ready else []
        except _NoTurn:
            self.accounts.give_back(self.label, size)
            tally.dropped(StoreMiss.BUSY, len(batch))
            return StoreMiss.BUSY
        finally:
            ground.ranks.drop(number)
        tally.dropped(StoreMiss.BUSY, len(pages) - len(ready))
        went = [pages[nth] for nth, answer in zip(ready, answers, strict=True) if answer is None]
        ground.known.add(names[0].page(*page) for page in went)
        ground.bad.discard(names[0].page(*page) for page in went)
        self.accounts.give_back(self.label, size - sum(ground.page_bytes(group) for _, group in went))
        return next((answer for answer in answers if answer is not None), None)

    def _copy(self, number: int, edge: int, batch: list[Page]) -> tuple[list[Page], list[int]]:
        """Copy pages out of their slots, held only meanwhile: those that are here, and which of them could be read."""
        ground = self.ground
        with self._found(edge) as found:
            places = _places(found, batch)
            if not ground.settled(places.values(), time.monotonic() + PATIENCE, reading=True):
                return list(places), []
            read = ground.ranks.copy(number, list(places.values()))
            lost = _lost(found, batch)  # by now: a move that failed has left other bytes in their slots
        return list(places), [nth for nth, page in enumerate(places) if read[nth] and page not in lost]


class _NoTurn(Exception):
    """The owner of the plans had no time."""


def _places(found: Found, batch: list[Page]) -> dict[Page, Place]:
    """Where each page of a batch is now, of those that are here."""
    where: dict[Page, Place] = {}
    for group in {group for _, group in batch}:
        columns = (found.blocks(group).tolist(), found.tiers(group).tolist(), found.slots(group).tolist())
        where.update({(block, group): (group, tier, slot) for block, tier, slot in zip(*columns, strict=True)})
    return {page: where[page] for page in batch if page in where}


def _lost(found: Found, batch: list[Page]) -> set[Page]:
    """Pages of a batch that are bad, as far as the cache knows now."""
    return {(block, group) for group in {group for _, group in batch} for block in found.lost(group).tolist()}
