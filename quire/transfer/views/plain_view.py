"""BlockLists: a plain cache of block lists behind the same door, for foreign engines and for tests.

One list of slots per request and group, whole prompts (nothing leaves a window), scratch blocks behind them; blocks are
found by a hash of everything before them. It shows what a cache must do to take part; it knows no tiers and no tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from quire.core.records.errors import InputError, StateError, UnknownError, say
from quire.core.records.groups import LayerGroup
from quire.core.records.request import Request
from quire.core.records.span import Span
from quire.transfer.geometry.pieces import keeps_all
from quire.transfer.geometry.slices import BlockRun, Places, Spans, nowhere, num_blocks, offered
from quire.transfer.geometry.wants import below, first_missing, wants
from quire.transfer.views.view import CacheShape, Landing, Offer, content_of

Slot = tuple[int, int]  # group, slot


@dataclass(frozen=True, slots=True, eq=False)
class PromptBlocks:
    """One request's blocks: names by ordinal (the last one may be partial), slots by group and ordinal."""

    request: Request
    names: list[bytes]
    slots: list[list[int]]


class BlockLists:
    """Slots per group, found by content; idle ones are taken in the order they became idle."""

    def __init__(self, groups: Sequence[LayerGroup], block_size: int, slots: Sequence[int]) -> None:
        self._shape = CacheShape(tuple(groups), block_size)
        self._slots = tuple(slots)
        self._free = [list(range(count - 1, -1, -1)) for count in slots]
        self._found: list[dict[bytes, int]] = [{} for _ in slots]  # by content; least recently let go first
        self._names: list[dict[int, bytes]] = [{} for _ in slots]
        self._users: Counter[Slot] = Counter()
        self._tables: dict[Hashable, PromptBlocks] = {}

    def __repr__(self) -> str:
        used = [self.num_used(group) for group in range(len(self._slots))]
        return f"BlockLists({len(self._tables)} prompts, slots {used} of {list(self._slots)} in use)"

    def shape(self) -> CacheShape:
        """Groups and block size."""
        return self._shape

    def num_used(self, group: int) -> int:
        """Slots with a holder."""
        return sum(1 for (which, _), users in self._users.items() if which == group and users)

    # -- the engine's side -------------------------------------------------------------------------------------------

    def compute(self, request: Request, extra_tokens: int = 0) -> PromptBlocks | None:
        """A prompt that was computed here, with room behind it; None when there is no room."""
        length, size = len(request.tokens), self._shape.block_size
        counts = [1 if group.current else num_blocks(length + extra_tokens, size) for group in self._shape.groups]
        taken = self._take(counts)
        if taken is None:
            return None
        table = self._tables[request.id] = PromptBlocks(request, self._names_of(request), taken)
        return table

    def finish(self, table: PromptBlocks, keep: bool = True) -> None:
        """The request ends; what it has whole can be found afterwards."""
        if self._tables.get(table.request.id) is table:
            del self._tables[table.request.id]
        for group, layer in enumerate(self._shape.groups):
            if keep:
                self._publish(group, layer, table)
            self._let_go((group, slot) for slot in table.slots[group] if slot >= 0)

    def _publish(self, group: int, layer: LayerGroup, table: PromptBlocks) -> None:
        whole = len(table.request.tokens) // self._shape.block_size
        if layer.current:
            pairs = [(table.names[-1] + b"state", table.slots[group][0])]
        else:
            pairs = list(zip(table.names[:whole], table.slots[group], strict=False))
        for name, slot in pairs:
            if slot >= 0 and name not in self._found[group] and slot not in self._names[group]:
                self._found[group][name] = slot
                self._names[group][slot] = name

    # -- the door ----------------------------------------------------------------------------------------------------

    def offer(self, id: Hashable, span: Span) -> Offer | None:
        """Hold what may be read of these tokens."""
        table = self._tables.get(id)
        if table is None:
            raise UnknownError(say(f"offer of {id!r}", "no such prompt is live", "compute it first"))
        length, size = len(table.request.tokens), self._shape.block_size
        places = []
        for group, layer in enumerate(self._shape.groups):
            if span.end < length and not keeps_all(layer, length, size):
                places.append(nowhere(num_blocks(length, size)))
            elif layer.current:
                places.append(_state_at(length, size, table.slots[group][0]))
            else:
                places.append(offered(layer, BlockRun(0, tuple(table.slots[group])), length, size, done=span.end))
        self._use(_pages(places))
        return Offer(length, tuple(places), length, content_of(table.request, length), None)

    def want(self, request: Request, *, one_start: bool = False) -> Landing | None:
        """Hold what is found, group by group, then take slots for the rest."""
        length, size, groups = len(request.tokens), self._shape.block_size, self._shape.groups
        names = self._names_of(request)
        needs = tuple(group.needs_at(length, size) for group in groups)
        self._check_fits(request, needs)
        found = [self._find(group, names, length) for group in range(len(groups))]
        present = [[slot >= 0 for slot in slots] for slots in found]
        held = tuple(layer.found(there, length, size) for layer, there in zip(groups, present, strict=True))
        held = below(held, first_missing(needs, held)) if one_start else held
        kept = [(g, found[g][b]) for g, spans in enumerate(held) for s in spans for b in range(s.start, s.end)]
        self._use(kept)
        wanted = wants(needs, held)
        taken = self._take([sum(len(span) for span in spans) for spans in wanted])
        if taken is None:
            self._let_go(kept)
            return None
        places = [_fill(spans, slots, num_blocks(length, size)) for spans, slots in zip(wanted, taken, strict=True)]
        slots = [list(map(int, room)) for room in places]
        for span_group, spans in enumerate(held):
            for span in spans:
                slots[span_group][span.start : span.end] = found[span_group][span.start : span.end]
        table = PromptBlocks(request, names, slots)
        start = min((spans[0].end if spans and not spans[0].start else 0) for spans in held) * size
        return Landing(length, needs, held, tuple(places), start, content_of(request, length), table)

    def _check_fits(self, request: Request, needs: Sequence[Spans]) -> None:
        for group, need in enumerate(needs):
            count = sum(map(len, need))
            if count > self._slots[group]:
                fact = f"it needs {count} slots of group {group}, there are {self._slots[group]}"
                raise InputError(say(f"request {request.id!r}", fact, "shorten it or enlarge the cache"))

    def commit(self, landing: Landing) -> None:
        """It has arrived: a live prompt like one computed here, whose whole blocks can be found."""
        table = self._table(landing)
        self._tables[table.request.id] = table
        for group, layer in enumerate(self._shape.groups):
            if not layer.current:  # a state stays private until the request ends
                self._publish(group, layer, table)

    def release(self, held: Offer | Landing) -> None:
        """Give pages up."""
        if isinstance(held, Offer):
            self._let_go(_pages(held.places))
        else:
            self.finish(self._table(held), keep=False)

    def _table(self, landing: Landing) -> PromptBlocks:
        assert isinstance(landing.ref, PromptBlocks)
        return landing.ref

    # -- slots -------------------------------------------------------------------------------------------------------

    def _names_of(self, request: Request) -> list[bytes]:
        size, name = self._shape.block_size, request.scope.key
        names = []
        for first in range(0, len(request.tokens), size):
            block = request.tokens[first : first + size].tobytes()
            name = blake2b(name + block, digest_size=16, person=b"quire-lists").digest()
            names.append(name)
        return names

    def _find(self, group: int, names: list[bytes], length: int) -> list[int]:
        if self._shape.groups[group].current:
            state = self._found[group].get(names[-1] + b"state", -1)
            return [-1] * (len(names) - 1) + [state if length % self._shape.block_size == 0 else -1]
        return [self._found[group].get(name, -1) for name in names]

    def _take(self, counts: Sequence[int]) -> list[list[int]] | None:
        """So many slots of every group, or none at all."""
        idle = [[s for s in found.values() if not self._users[g, s]] for g, found in enumerate(self._found)]
        if any(len(self._free[g]) + len(idle[g]) < count for g, count in enumerate(counts)):
            return None
        taken: list[list[int]] = []
        for group, count in enumerate(counts):
            for slot in idle[group][: max(0, count - len(self._free[group]))]:
                del self._found[group][self._names[group].pop(slot)]
                self._free[group].append(slot)
            taken.append([self._free[group].pop() for _ in range(count)])
            self._use((group, slot) for slot in taken[group])
        return taken

    def _use(self, pages: Iterable[Slot]) -> None:
        self._users.update(pages)

    def _let_go(self, pages: Iterable[Slot]) -> None:
        for group, slot in pages:
            self._users[group, slot] -= 1
            if self._users[group, slot] < 0:
                raise StateError(say(f"release of slot {slot}, group {group}", "it has no holder", "release once"))
            if self._users[group, slot] == 0:
                del self._users[group, slot]
                name = self._names[group].get(slot)
                if name is None:
                    self._free[group].append(slot)
                else:
                    self._found[group][name] = self._found[group].pop(name)


def _fill(spans: Spans, slots: list[int], blocks: int) -> Places:
    places, rest = nowhere(blocks), iter(slots)
    for span in spans:
        for block in range(span.start, span.end):
            places[block] = next(rest)
    return places


def _state_at(length: int, size: int, slot: int) -> Places:
    places = nowhere(num_blocks(length, size))
    places[-1] = slot
    return places


def _pages(places: Iterable[Places]) -> list[Slot]:
    return [(group, int(slot)) for group, slots in enumerate(places) for slot in slots if slot >= 0]
