"""Publish: send the pages of a text that was served to a shared store, on a thread of its own. Slows nobody.

    leave out what the store has ──► find, copy, batch by batch ──► put

What is found keeps its slots until it is given back, so what is read is what was found.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Lock

from quire.core.admission.find import Found
from quire.core.records.groups import ALL
from quire.core.records.identity import Scope
from quire.core.records.request import Request
from quire.tiers.base import Bytes, TierError
from quire.tiers.digest import BlockDigests
from quire.tiers.shared.calls.quota import QuotaAccounts
from quire.tiers.shared.ground import Page, Place, SharedGround
from quire.tiers.shared.needs import needed
from quire.tiers.shared.stores.store import StoreMiss

PATIENCE = 5.0  # seconds for one batch; whoever sends waits for nobody's step
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
    label_of: Callable[[Scope], str]  # somebody else's: called here, where it may take its time or fail
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
        names = ground.digests(self.request, blocks)[ground.rank]
        enough = self.uses.count(names)
        if not any(enough):
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

    def _send(self, edge: int, names: BlockDigests, enough: Sequence[bool]) -> None:
        """Pages for going on behind `edge` blocks, or as far as there are some; held only while they are copied."""
        ground, size = self.ground, self.ground.block_size
        with ground.finds.reading(replace(self.request, reuse_limit=edge * size)) as found:
            edge = found.end // size
        pages = sorted(
            (block, nth) for nth, group in enumerate(ground.groups) for block in needed(group, edge, size)
            if enough[block] and not ground.known.has(names.page(block, nth))
        )  # fmt: skip
        if not pages:
            return
        asks = [names.page(*page) for page in pages]
        there = ground.client.exists_many(asks, time.monotonic() + PATIENCE)
        if isinstance(there, StoreMiss):
            ground.client.tally.dropped(there, len(pages))
            return
        ground.known.add(name for name, is_there in zip(asks, there, strict=True) if is_there)
        missing = [page for page, is_there in zip(pages, there, strict=True) if not is_there]
        left = len(missing)
        for batch in ground.batches(missing):
            reason = StoreMiss.CLOSED if ground.closing else self._send_batch(edge, batch, names)
            left -= 0 if reason in (StoreMiss.QUOTA, StoreMiss.CLOSED) else len(batch)
            if reason is not None:
                ground.client.tally.dropped(reason, left)
                return

    def _send_batch(self, edge: int, batch: list[Page], names: BlockDigests) -> StoreMiss | None:
        """Send some; why it is not worth going on. Of a batch that was not begun nothing is counted."""
        ground, tally = self.ground, self.ground.client.tally
        size = sum(ground.page_bytes(group) for _, group in batch)
        if not self.accounts.take(self.label, size):
            return StoreMiss.QUOTA
        deadline = time.monotonic() + PATIENCE
        found = ground.find(replace(self.request, reuse_limit=edge * ground.block_size), deadline)
        if found is None:
            self.accounts.give_back(self.label, size)
            tally.dropped(StoreMiss.BUSY, len(batch))
            return StoreMiss.BUSY
        try:
            here = _places(found, batch)
            pages = self._read(found, [page for page in batch if page in here])
        finally:
            ground.finds.let_go(found)
        tally.dropped(StoreMiss.BUSY, len(here) - len(pages))
        ready = [names.page(*page) for page in pages]
        answers = ground.client.put_many(ready, list(pages.values()), time.monotonic() + PATIENCE) if pages else []
        ground.known.add(name for name, answer in zip(ready, answers, strict=True) if answer is None)
        sent = sum(page.nbytes for page, answer in zip(pages.values(), answers, strict=True) if answer is None)
        self.accounts.give_back(self.label, size - sent)
        return next((answer for answer in answers if answer is not None), None)

    def _read(self, found: Found, batch: list[Page]) -> dict[Page, Bytes]:
        """Copies of the pages that could be read."""
        ground = self.ground
        places = _places(found, batch)
        if not ground.settled(places.values(), time.monotonic() + PATIENCE, reading=True):
            return {}
        pages = dict(zip(batch, ground.buffers(batch), strict=True))
        bad: set[Place] = set()
        for group, tier in {(group, tier) for group, tier, _ in places.values()}:
            some = [page for page, place in places.items() if place[:2] == (group, tier)]
            try:
                with ground.moving:
                    ground.tiers[tier].read(
                        group, [places[page][2] for page in some], [pages[page][None] for page in some]
                    )
            except TierError as wrong:
                bad.update((group, tier, slot) for slot in wrong.failed)
        return {page: pages[page] for page in batch if places[page] not in bad}


def _places(found: Found, batch: list[Page]) -> dict[Page, Place]:
    """Where each page of a batch is now, of those that are here."""
    where: dict[Page, Place] = {}
    for group in {group for _, group in batch}:
        columns = (found.blocks(group).tolist(), found.tiers(group).tolist(), found.slots(group).tolist())
        where.update({(block, group): (group, tier, slot) for block, tier, slot in zip(*columns, strict=True)})
    return {page: where[page] for page in batch if page in where}
