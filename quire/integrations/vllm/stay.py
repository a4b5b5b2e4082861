"""Stay: one stay of a vLLM request on the device, from its first look to its end, its preemption or a failed load.

A request that was preempted comes back under its own id while copies of its last stay are still under way: hence a
stay has its own number. Owns what is open for it in the cache; decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from quire.core.cache import Cache
from quire.core.outside.find import Found
from quire.core.outside.writer import Writer
from quire.core.records.identity import Scope
from quire.core.records.request import Int32, Request
from quire.core.state.claim import Refusal
from quire.core.state.prepared import Prepared
from quire.integrations.vllm.cache_groups import HOST
from quire.integrations.vllm.identity import EngineRequest, media_of, retention_of
from quire.integrations.vllm.orders import BadPage, Part
from quire.integrations.vllm.outer.outer_pages import PagesAhead
from quire.integrations.vllm.reports.kv_events import BlockNames
from quire.integrations.vllm.request_tokens import RequestTokens

NULL = 0  # vLLM's block for places that a window has passed
Tables = Sequence[list[int]]  # blocks of a request, by group
Named = dict[int, Collection[int]]  # by group: some blocks of its text


@dataclass(slots=True, eq=False)
class StoreJob:
    """A copy under way, for a stay."""

    number: int
    stay: Stay
    end: int  # tokens whose pages are there when it is done
    parts: list[Part]
    ordinals: dict[int, list[int]]  # of a store, by group: which block of the text each page is; none of a load
    since: float
    ranks: int = 0  # that have ended it
    ended: bool = False
    bad: set[BadPage] = field(default_factory=set)
    lost: AbstractSet[int] = frozenset()  # vLLM's blocks of a store that were handed out again before it was heard of

    def bad_blocks(self) -> dict[int, list[int]]:
        """Blocks of a store whose pages could not be copied, by group."""
        if not self.bad:
            return {}
        return {
            part.group: [
                block for block, slot in zip(self.ordinals[part.group], part.slots, strict=True)
                if BadPage(part.group, slot) in self.bad
            ]
            for part in self.parts
        }  # fmt: skip


class Stay:
    """What one stay knows and holds."""

    __slots__ = (
        "_prepared", "_text", "_wish", "ahead", "asked_ahead", "bad", "born", "comes_back", "due", "found", "full",
        "is_noted", "jobs", "load", "names", "number", "over", "placed", "request", "saved", "scope", "sent",
        "tables", "there", "writer",
    )  # fmt: skip

    def __init__(self, request: EngineRequest, text: RequestTokens, number: int, born: int, scope: Scope) -> None:
        self.request, self._text, self.number, self.scope = request, text, number, scope
        self.born = born  # step in which it began
        self.found: Found | None = None  # what it was offered, or loads
        self.ahead: PagesAhead | None = None  # what is brought into host memory for it
        self.asked_ahead = False
        self.writer: Writer | None = None
        self.load: StoreJob | None = None
        self.jobs: list[StoreJob] = []  # stores under way, in the order of their tokens
        self.sent = 0  # tokens that are stored, or being stored, or found to be there
        self.due = 0  # tokens that are computed, or being computed
        self.there = 0  # tokens that were, here or on vLLM's device, when it was last looked up
        self.tables: Tables = ()  # its blocks when it had all that are due, while some are still to be stored
        self.is_noted = False  # as blocks that may be handed out again
        self.bad: dict[int, list[int]] = {}  # by group: blocks of its text whose pages could not be copied
        self.saved: dict[int, frozenset[int]] = {}  # by group: blocks that were stored before their turn
        self.placed = False  # vLLM has given it blocks
        self.over = False
        self.comes_back = False  # it is over, and the request is not: it will look for what this one has
        self.full = False  # nothing more of it is stored
        self.names = BlockNames(request)  # for events
        self._wish: Request | None = None
        self._prepared: Prepared | None = None

    def tokens(self) -> Int32:
        """All that are known; only those that came since are read."""
        return self._text.known(self.request)

    def read(self) -> Request:
        """What it asks for, with all tokens that are known; the last one vLLM computes itself."""
        tokens = self.tokens()
        if self._wish is None or len(self._wish.tokens) != len(tokens):
            self._wish = self._asked(tokens, reuse_limit=len(tokens) - 1)
        return self._wish

    def look(self, cache: Cache) -> Prepared:
        """The same ready to be looked up, as often as vLLM asks."""
        wish = self.read()
        if self._prepared is None or self._prepared.request is not wish:
            self._prepared = cache.prepare(wish, keys=False)
        return self._prepared

    def _asked(self, tokens: Int32, reuse_limit: int | None = None) -> Request:
        request = self.request
        media = media_of(request, min(len(tokens), request.num_prompt_tokens))
        return Request(
            (request.request_id, self.number), tokens, self.scope, media=media,
            retention=retention_of(request), reuse_limit=reuse_limit,
        )  # fmt: skip

    def open_writer(self, cache: Cache) -> Writer:
        """For its prompt, without slots yet; behind what was loaded, which may be more than the prompt."""
        prompt, ready = self.request.num_prompt_tokens, self._prepared
        if ready is None or len(ready.request.tokens) != prompt:
            ready = cache.prepare(self._asked(self.tokens()[:prompt].copy()), keys=False)
        made = cache.writer(ready, tier=HOST, from_=min(self.sent, prompt), end=0)
        assert not isinstance(made, Refusal)  # it asks for nothing
        self.writer = made
        if self.sent > prompt:  # it has come back: some of what it had generated is loaded, and is not its to store
            size, groups = cache.config.block_size, range(len(cache.config.groups))
            loaded = range(prompt // size, self.sent // size)
            made.extend(self.tokens()[prompt:], end=self.sent, skip=dict.fromkeys(groups, loaded))
        return made

    def take_slots(self, cache: Cache, end: int, skip: Named, also: Named) -> Refusal | None:
        """Slots for the whole blocks up to `end`, and for those of `also`. A refusal has taken none.

        The prompt is its writer's text, and what is generated is appended, so that retention tells them apart.
        """
        writer = self.writer or self.open_writer(cache)
        length, last = writer.length, self.due if also else end
        tokens = self.tokens()[length:] if last > length else None
        return (
            writer.extend(tokens, end=end, skip=skip, also=also) if also else writer.extend(tokens, end=end, skip=skip)
        )

    def parts_to_load(self, tables: Tables, external: int, size: int) -> list[Part] | None:
        """Which page goes into which of vLLM's blocks; None when the two do not agree on what is needed."""
        found = self.found
        if found is None or found.end - found.start != external:
            return None
        first, last, parts = found.start // size, found.end // size, []
        for group, table in enumerate(tables):
            slots = found.slots(group).tolist()
            edge = last - len(slots)  # what is there are mostly the last ones: a window has passed the others
            ids = table[edge:last]
            if edge < first or len(ids) != len(slots) or not all(ids) or any(table[first:edge]):  # NULL is 0
                at = dict(zip(found.blocks(group).tolist(), slots, strict=True))
                wanted = [nth for nth, block in enumerate(table[first:last], first) if block != NULL]
                if not at.keys() >= set(wanted):
                    return None
                ids, slots = [table[nth] for nth in wanted], [at[nth] for nth in wanted]
            elif edge > first and slots and found.blocks(group)[0] != edge:  # ascending, and none behind `last`
                return None
            if ids:
                parts.append(Part(group, ids, slots))
        return parts

    def note_bad(self, job: StoreJob) -> None:
        """Pages of a store that are not to become findable, now or when those before them are there."""
        for group, blocks in job.bad_blocks().items():
            self.bad.setdefault(group, []).extend(blocks)

    def stored(self) -> Request:
        """The text of what was stored of it, for others."""
        return self._asked(self.tokens()[: self.sent])

    def end_ahead(self) -> None:
        """What was brought for it is held no longer."""
        if self.ahead is not None:
            self.ahead.close()
            self.ahead = None

    def let_go(self) -> None:
        """Close what it was offered, unless that is being loaded."""
        if self.found is not None and self.load is None:
            self.found.close()
            self.found = None

    @property
    def is_behind(self) -> bool:
        """Some of what is computed is still to be stored."""
        return self.sent < self.due and not self.full

    @property
    def is_quiet(self) -> bool:
        """Nobody reads or writes pages for it, or will."""
        return self.load is None and not self.jobs and not self.is_behind

    def close(self) -> None:
        """Give back everything."""
        self.let_go()
        self.end_ahead()
        if self.writer is not None:
            self.writer.close()
            self.writer = None
