"""Engine: what a model does with block tables: reads all it may, writes what it computes. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence as Some
from typing import Any

import numpy as np

from fuzzing.compare import Mismatch
from fuzzing.world.build import int32
from fuzzing.world.content import Content, encoded
from fuzzing.world.plain import Ask, World
from quire import Cache, Kind, Plan, Sequence, Snapshot, Span

RUBBISH = 0xDDDD
Wants = tuple[tuple[Span, ...], ...]  # per group, blocks


class Engine:
    """The model's side of one cache."""

    def __init__(self, world: World, cache: Cache, content: Content) -> None:
        self.world, self.cache, self.content = world, cache, content
        self.told: dict[Sequence, tuple[Snapshot, ...]] = {}  # states to write inside the span handed out last
        self.writes: list[list[tuple[int, Any, list[int], range]]] = []  # of each step in flight: group, slots, what
        self.reads: list[
            dict[int, list[tuple[int, Any, list[int], list[int]]]]
        ] = []  # by row: group, slots, what, blocks
        self.wanted: dict[Sequence, Wants] = {}  # sequences that only decode: what a transfer must bring first

    def compute(self, live: Sequence, ask: Ask, numbers: list[int], since: int) -> None:
        """A step: KV of the tokens behind `since`, and the new state; or what a transfer brings instead."""
        brought = self.wanted.get(live)
        for group, position, slot in self.told.get(live, ()):
            if since < position <= len(numbers):
                self.content.write_state(group, slot, numbers[position - 1])
        for group, layer in enumerate(self.cache.config.groups):
            slots = self.cache.table(group)[live.row]
            if layer.kind == "state":
                if brought is None or brought[group]:
                    self.content.write_state(group, live.state_slot(group), numbers[-1])
            elif layer.kind == "cross":
                made = cross_numbers(ask)
                self.content.write(group, slots, made, range(self._encoded(live), len(made)))
            elif brought is None:
                self.content.write(group, slots, numbers, range(since, len(numbers)))
            else:
                places = self._places(brought[group])
                self.content.write(group, slots, numbers, [place for place in places if place < len(numbers)])

    def launch(self, live: Sequence, numbers: list[int], since: int) -> None:
        """What the step last begun writes for a sequence: its KV comes at any time until the step is closed."""
        size = self.world.block_size
        for group, layer in enumerate(self.cache.config.groups):
            if layer.kind == "state":
                self.writes[-1].append((group, live.state_slot(group), numbers, range(0)))
            elif layer.kind != "cross":
                slots = self.cache.table(group)[live.row].copy()
                self.writes[-1].append((group, slots, numbers, range(since, len(numbers))))
                blocks = [block for span in layer.live_blocks(since, size) for block in range(span.start, span.end)]
                self.reads[-1].setdefault(live.row, []).append((group, slots, numbers[:since], blocks))

    def begin(self) -> None:
        """A step is launched."""
        self.writes.append([])
        self.reads.append({})

    def misread(self, row: int) -> str | None:
        """What the oldest step in flight would read wrong for a row if it ran only now, after all moves since."""
        for group, slots, numbers, blocks in self.reads[0].get(row, ()):
            if (token := self.content.wrong(group, slots, numbers, blocks)) is not None:
                return f"group {group}: token {token}"
        return None

    def land(self) -> None:
        """The KV of the oldest step in flight comes once more, as late as it may."""
        del self.reads[0]
        for group, slots, numbers, places in self.writes.pop(0):
            if places:
                self.content.write(group, slots, numbers, places)

    def crash(self, nth: int) -> None:
        """What steps write that fail is rubbish, states too."""
        for group, slots, numbers, places in (write for writes in self.writes[nth:] for write in writes):
            if places:
                self.content.write(group, slots, [number ^ RUBBISH for number in numbers], places)
            else:
                self.content.write_state(group, slots, numbers[-1] ^ RUBBISH)
        del self.writes[nth:], self.reads[nth:]

    def run(self, plan: Plan, bad: Some[tuple[int, str, int]]) -> list[int]:
        """Carry out a plan while some (tier, verb, slot) fail; the moves that failed.

        Moves between tiers may run before the steps in flight have: these write none of their slots.
        """
        written = {place for step in self.writes for write in step for place in self._written(*write)}
        for nth, move in enumerate(plan):
            for tier, slot in (move.src, move.dst) if written and move.kind != Kind.COPY else ():
                if tier == 0 and (self.world.home(move.group), slot) in written:
                    raise Mismatch(f"plan {plan.number}, move {nth}: a step in flight writes slot {slot}: {move}")
        return self.content.run(plan, bad)

    def _written(self, group: int, slots: Any, numbers: list[int], places: range) -> set[tuple[int, int]]:
        size, home = self.world.block_size, self.world.home(group)
        blocks = {place // size for place in places}
        return {(home, int(slots[block])) for block in blocks} if blocks else {(home, int(slots))}

    def _places(self, spans: tuple[Span, ...]) -> list[int]:
        size = self.world.block_size
        return [place for span in spans for place in range(span.start * size, span.end * size)]

    def _encoded(self, live: Sequence) -> int:
        """Places of the encoder's stream that are written, whole blocks."""
        return -(-live.encoder_computed // self.world.block_size) * self.world.block_size

    def wrong(self, live: Sequence, ask: Ask, numbers: list[int], waits: bool = False) -> str | None:
        """The first thing this sequence reads after these tokens that is not its own; None when all is right.

        One that waits for a transfer has read nothing of its own yet.
        """
        size = self.world.block_size
        for group, layer in enumerate(self.cache.config.groups):
            slots, found = self.cache.table(group)[live.row], None
            if layer.kind == "state":
                good = not numbers or self.content.is_state(group, 0, live.state_slot(group), numbers[-1])
                found = None if good or waits else len(numbers)
            elif layer.kind == "cross":
                found = self.content.wrong(group, slots, cross_numbers(ask), range(self._encoded(live) // size))
            elif not waits:
                read = layer.live_blocks(len(numbers), size)
                found = self.content.wrong(group, slots, numbers, (b for s in read for b in range(s.start, s.end)))
            if found is not None:
                return f"{layer.kind} group {group}: token {found}"
        return None


def cross_numbers(ask: Ask) -> list[int]:
    """What an encoder makes for a request."""
    return [] if ask.encoder is None else encoded(ask.scope_root, ask.encoder.meaning, len(ask.places))


def grow(cache: Cache, rows: list[Sequence], tokens: Some[Some[int]] | None, num_tokens: int) -> Plan | None:
    """As many tokens for each, or for each its own number."""
    if tokens is None:
        return cache.grow(rows, num_tokens=num_tokens)
    if len({*map(len, tokens)}) == 1:
        return cache.grow(rows, np.array(tokens, np.int32))
    counts = int32([len(some) for some in tokens])
    return cache.grow(rows, int32([one for some in tokens for one in some]), num_tokens=counts)
