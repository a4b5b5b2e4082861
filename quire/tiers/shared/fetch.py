"""Fetch: bring the pages of one request from a shared store into the host's memory, on a thread that may wait.

    what is here? ──► which of the rest is there? ──► how far does that reach? ──► get, batch by batch
                                                                 check ──► writer ──► copy ──► findable

Bytes come into memory of their own first, so no slot is held while a store takes its time, and one that answers too
late does no harm. Only pages that going on needs are brought: of a window its last ones, of a state one snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock

import numpy as np

from quire.core.outside.find import Found
from quire.core.outside.writer import Writer
from quire.core.records.errors import QuireError, shown
from quire.core.records.groups import ALL
from quire.core.records.plan import COLUMNS, Plan
from quire.core.records.request import Request
from quire.core.state.claim import Refusal
from quire.tiers.page_digest import BlockDigests
from quire.tiers.shared.calls.host_room import HostRoom
from quire.tiers.shared.ground import Page, SharedGround
from quire.tiers.shared.needs import Present, needed_blocks, reach, useful_pages
from quire.tiers.shared.stores.bad_pages import DAMAGE, UNUSABLE
from quire.tiers.shared.stores.store import StoreMiss

NO_PLAN = Plan(0, np.empty((0, COLUMNS), np.int32))
FIRST_ASK = 32  # pages; four times as many with each further question


class Fetch:
    """Pages of a request on their way; `done` when they are here, will not come, or the deadline has passed.

    What has come is held until `close`: claim the request, then close. `tokens` have come, `why` the rest has not.
    """

    __slots__ = (
        "_closed", "_found", "_ground", "_hearer", "_lock", "_over", "_room", "_taken", "deadline", "request",
        "tokens", "why",
    )  # fmt: skip

    def __init__(self, ground: SharedGround, room: HostRoom, request: Request, deadline: float) -> None:
        self._ground, self._room = ground, room
        self.request, self.deadline = request, deadline
        self._lock = Lock()
        self._over = self._closed = False
        self._hearer: Callable[[], None] | None = None
        self._found: Found | None = None
        self._taken: list[int] | None = None  # slots that it may hold, by pool
        self.tokens = 0
        self.why = ""

    def __repr__(self) -> str:
        state = "under way" if not self.done else f"{self.tokens} tokens came{self.why and f', then: {self.why}'}"
        return f"Fetch({shown(self.request.id)}, {state})"

    @property
    def done(self) -> bool:
        """Whether waiting longer brings nothing more."""
        return self._over or time.monotonic() >= self.deadline

    def when_done(self, act: Callable[[], None]) -> None:
        """Call it when no more comes, on the thread that knows; at once if that is so already. A deadline does not call
        it.

        It is one: a second takes the first one's place.
        """
        with self._lock:
            self._hearer = act
            over = self._over
        if over:
            act()

    def _end(self) -> None:
        """Nothing more comes."""
        with self._lock:
            self._over, act = True, self._hearer
        if act is not None:
            act()

    def close(self) -> None:
        """End it: what has not come is not brought, what has come is no longer held."""
        with self._lock:
            self._closed = True
            found, self._found = self._found, None
            taken, self._taken = self._taken, None
        if found is not None:
            self._ground.finds.let_go(found)
        if taken is not None:
            self._room.give_back(taken)

    def __enter__(self) -> Fetch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- on a thread of the crew -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Bring what there is."""
        try:
            if not self._stopped:
                self._bring()
        except QuireError as error:  # such as a request that this cache cannot hold
            self.why = self.why or str(error)
        finally:
            self._settle()
            self._end()

    def _settle(self) -> None:
        """Room for pages that did not come, or that no request waits for any more, is given back."""
        with self._lock:
            keep = self._found is not None
            taken, self._taken = (self._taken, None) if not keep else (None, self._taken)
        if taken is not None:
            self._room.give_back(taken)

    def dropped(self) -> None:
        """It will not be run."""
        self.refuse(StoreMiss.CLOSED)

    def refuse(self, why: StoreMiss) -> None:
        """It brings nothing."""
        self.why = why
        self._end()

    @property
    def _stopped(self) -> bool:
        if time.monotonic() >= self.deadline:
            self.why = self.why or StoreMiss.LATE
        return self._closed or self._ground.closing or time.monotonic() >= self.deadline

    def _bring(self) -> None:
        ground, forgets = self._ground, self._ground.forgets
        limit = ground.usable_blocks(self.request)
        have, here = self._look(limit)
        if have >= limit:
            return
        names = ground.digests(self.request, limit)
        pages = self._wanted(have, here, names)
        if pages and not self._stopped:
            self._write(pages, have, ground.own(names), forgets)

    def _look(self, limit: int) -> tuple[int, Present]:
        """Blocks that are here, together and by group. Nothing is held while a store is asked: that may take long."""
        groups, size = self._ground.groups, self._ground.block_size
        here: Present = [np.zeros(limit, np.bool_) for _ in groups]
        with self._ground.finds.reading(self.request) as found:
            have = found.end // size
            for nth, own in enumerate(groups):
                here[nth][found.blocks(nth)] = True
                here[nth][:have] |= own.tail(size) == ALL
        return have, here

    def _wanted(self, have: int, here: Present, names: Sequence[BlockDigests]) -> list[Page]:
        """Pages that are there, on every rank, and that get us further; block by block."""
        ground, groups, size = self._ground, self._ground.groups, self._ground.block_size
        limit = len(names[0])
        pages = [(block, group) for block, group in useful_pages(groups, have, limit, size) if not here[group][block]]
        present = [one.copy() for one in here]
        if not self._ask(pages, names, present):
            return []
        edge = self._fitted(have, reach(groups, present, have, limit, size), here)
        if edge == have:
            self.why = self.why or StoreMiss.ABSENT
            ground.client.tally.missed(StoreMiss.ABSENT, len(pages))
            return []
        need = [(block, nth) for nth, own in enumerate(groups) for block in needed_blocks(own, edge, size)]
        return sorted((block, nth) for block, nth in need if not here[nth][block])

    def _ask(self, pages: list[Page], names: Sequence[BlockDigests], present: Present) -> bool:
        """Note which pages are there on every rank; False: that cannot be known. Ends at a gap that nothing gets over.

        A few first: most prompts that were never computed show by their first blocks.
        """
        ground, start, count = self._ground, 0, FIRST_ASK
        whole = {nth for nth, group in enumerate(ground.groups) if group.tail(ground.block_size) == ALL}
        while start < len(pages):
            some = pages[start : start + count]
            there = ground.client.exists_many([one.page(*page) for one in names for page in some], self.deadline)
            if isinstance(there, StoreMiss):
                self.why = there
                return False
            everywhere = np.logical_and.reduce(np.array(there, np.bool_).reshape(len(names), len(some)), axis=0)
            for (block, group), is_there in zip(some, everywhere.tolist(), strict=True):
                present[group][block] |= is_there
            if any(group in whole and not present[group][block] for block, group in some):
                return True
            start, count = start + count, 4 * count
        return True

    def _fitted(self, have: int, edge: int, here: Present) -> int:
        """The edge, or an earlier one that the host has room for; `have` when there is none."""
        groups, size = self._ground.groups, self._ground.block_size
        while edge > have:
            counts = [sum(not here[n][b] for b in needed_blocks(group, edge, size)) for n, group in enumerate(groups)]
            slots = self._ground.by_pool(counts)
            if self._room.take(slots):
                with self._lock:
                    self._taken = slots
                return edge
            self.why = "no room in the host's memory"
            if any(group.tail(size) != ALL for group in groups):
                return have  # another edge may be none where all groups can go on
            edge = have + (edge - have) // 2
        return have

    def _write(self, pages: list[Page], have: int, names: Sequence[BlockDigests], forgets: int) -> None:
        ground, size = self._ground, self._ground.block_size
        writer = self._open_writer()
        if writer is None:
            return
        with writer:
            for batch in ground.batches(pages):
                if self._stopped or ground.forgets != forgets:
                    return
                number = ground.ranks.next_number()
                try:
                    came = self._get(number, batch, names, behind=pages[pages.index(batch[-1]) + 1 :])
                    stop = max((block for block, _ in came), default=-1) + 1
                    if came and not self._fill(writer, number, came, forgets):
                        return
                finally:
                    ground.ranks.drop(number)
                self.tokens = max(self.tokens, (stop - have) * size)
                self._hold(ground.finds.find(self.request, from_=have * size))
                if len(came) < len(batch):
                    return

    def _open_writer(self) -> Writer | None:
        """One that has no slots yet."""
        made: list[Writer | Refusal] = []

        def open_writer() -> Plan:
            made.append(self._ground.cache.writer(self.request, tier=self._ground.tier, end=0))
            return made[0].plan if isinstance(made[0], Writer) else NO_PLAN

        if self._ground.in_turn(open_writer, self.deadline) and isinstance(made[0], Writer):
            return made[0]
        self.why = self.why or ("no room in the host's memory" if made else StoreMiss.LATE)
        return None

    def _get(
        self, number: int, batch: list[Page], names: Sequence[BlockDigests], behind: Sequence[Page]
    ) -> dict[Page, int]:
        """Pages of the batch that came, up to the first block of which one did not; each with its place in it."""
        answers = self._ground.get(number, batch, names, self.deadline)
        missed = [page for page, answer in zip(batch, answers, strict=True) if answer is not None]
        if missed:
            self.why = self.why or str(next(answer for answer in answers if answer is not None))
            self._ground.known.discard(names[0].page(*page) for page in missed)
            bad = [page for page, answer in zip(batch, answers, strict=True) if answer in UNUSABLE]
            if not DAMAGE.isdisjoint(
                answers
            ):  # seldom one page's alone: the rest is not read, and computed here anyway
                bad.extend(behind)
            self._ground.bad.add(names[0].page(*page) for page in bad)
        cut = min((block for block, _ in missed), default=1 << 60)
        return {page: nth for nth, page in enumerate(batch) if page[0] < cut}

    def _fill(self, writer: Writer, number: int, came: dict[Page, int], forgets: int) -> bool:
        """Copy what came into slots and make it findable; False: that was not possible."""
        ground, size = self._ground, self._ground.block_size
        groups, stop = range(len(ground.groups)), max(block for block, _ in came) + 1
        left_out = {group: [block for block in range(stop) if (block, group) not in came] for group in groups}
        refused: list[Refusal] = []

        def extend() -> Plan:
            refusal = writer.extend(end=stop * size, skip=left_out)
            if refusal is None:
                return writer.plan
            refused.append(refusal)
            return NO_PLAN

        if not ground.in_turn(extend, self.deadline) or refused:
            self.why = self.why or ("no room in the host's memory" if refused else StoreMiss.LATE)
            return False
        filled = [(block, group) for group in groups for block in writer.blocks(group).tolist()]
        places = [(group, ground.tier, slot) for group in groups for slot in writer.slots(group).tolist()]
        if not ground.settled(places, self.deadline, reading=False) or ground.forgets != forgets:
            self.why = self.why or StoreMiss.LATE
            return False
        if wrong := ground.ranks.place(number, [came[page] for page in filled], places):
            self.why = wrong
            return False
        writer.written(stop * size)
        return True

    def _hold(self, found: Found) -> None:
        """Hold what has come, and only that: what was here before is as safe as it was."""
        with self._lock:
            if self._closed:
                old: Found | None = found
            else:
                old, self._found = self._found, found
        if old is not None:
            self._ground.finds.let_go(old)
