"""MoveQueue: batches of submitted plans that have not run, in an order that means what the plans mean. Owns which is
next, and what may overtake. Touches no bytes and knows no threads.

    plans    1: A>x B>y C>z     2: w>D v>E       A..E: places on the device; v..z: on the host
    hurry    w>D, and B>y, since a step is to write B
    order    B>y  w>D  |  A>x C>z  v>E           whoever waits for those two waits for nothing else

A move overtakes others only if it neither reads nor writes what they write, nor writes what they read; those that it
may not overtake come with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from quire.tiers.move_batch import MoveBatch
from quire.tiers.ticket import Ticket

PIECE_BYTES = 32 << 20  # of what no step waits for: a move that is asked for meanwhile waits for one such piece


class Part(NamedTuple):
    """Moves of a plan that are carried together."""

    ticket: Ticket
    batch: MoveBatch


class MoveQueue:
    """Of one mover, for its thread alone. A number among the batches: the poison of that plan is taken back there."""

    def __init__(self, piece_bytes: int = 0) -> None:
        self._piece_bytes = piece_bytes or PIECE_BYTES
        self._urgent: deque[Part | int] = deque()
        self._others: deque[Part | int] = deque()

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    def add(self, ticket: Ticket, batches: Iterable[MoveBatch]) -> None:
        """A plan, behind all others."""
        self._others.extend(Part(ticket, batch) for batch in batches)

    def bar(self, number: int) -> None:
        """The poison of a plan counts for what is before this, and for nothing behind it."""
        self._others.append(number)

    def take(self) -> Part | int:
        """What is next. Of a large batch that no caller waits for, a piece."""
        if self._urgent:
            return self._urgent.popleft()
        first = self._others.popleft()
        if isinstance(first, int):
            return first
        strips, width = first.batch.cut
        most = max(1, self._piece_bytes // (strips * width))
        if len(first.batch.moves) <= most:
            return first
        self._others.appendleft(first._replace(batch=part_of(first.batch, range(most, len(first.batch.moves)))))
        return first._replace(batch=part_of(first.batch, range(most)))

    def pair(self) -> tuple[Part, Part] | None:
        """The next two batches, when they are of one plan and the first makes room for the second; they stay."""
        queue = self._urgent or self._others
        if len(queue) < 2 or isinstance(queue[0], int) or isinstance(queue[1], int):
            return None
        down, up = queue[0], queue[1]
        return (down, up) if down.ticket is up.ticket and down.batch.makes_room_for(up.batch) else None

    def drop_pair(self) -> None:
        """Both were carried at once."""
        queue = self._urgent or self._others
        queue.popleft()
        queue.popleft()

    def hurry(self, ticket: Ticket, moves: Iterable[int]) -> None:
        """These moves of a plan, and what they may not overtake, go before the others."""
        wanted, ahead = set(moves), _Ahead()
        chosen: deque[Part | int] = deque()
        kept: deque[Part | int] = deque()
        others = list(self._others)
        while others:
            one = others.pop()
            if isinstance(one, int):
                if chosen:  # whether a move reads poison depends on it: nothing overtakes it, and it overtakes nothing
                    chosen.extendleft(reversed([*others, one]))
                    break
                kept.appendleft(one)
                continue
            own = wanted if one.ticket is ticket else ()
            picked = [nth for nth, index in enumerate(one.batch.moves) if index in own or ahead.waits(one.batch, nth)]
            if len(picked) == len(one.batch.moves):
                chosen.appendleft(one)
            elif picked:
                left = sorted(set(range(len(one.batch.moves))).difference(picked))
                kept.appendleft(one._replace(batch=part_of(one.batch, left)))
                chosen.appendleft(one._replace(batch=part_of(one.batch, picked)))
            else:
                kept.appendleft(one)
            ahead.add(one.batch, picked)
        self._urgent.extend(chosen)
        self._others = kept

    def clear(self) -> None:
        """Drop everything."""
        self._urgent.clear()
        self._others.clear()


class _Ahead:
    """Places of moves that go first: an earlier move that touches them goes with them."""

    def __init__(self) -> None:
        self._read, self._written = set[int](), set[int]()

    def waits(self, batch: MoveBatch, nth: int) -> bool:
        """Whether one of them would have to wait for this move."""
        source, target = batch.sources[nth], batch.targets[nth]
        if target in self._read or target in self._written or source in self._written:
            return True
        return batch.exchange and source in self._read

    def add(self, batch: MoveBatch, places: Sequence[int]) -> None:
        """These moves of a batch go first too."""
        for nth in places:
            self._read.add(batch.sources[nth])
            self._written.add(batch.targets[nth])
            if batch.exchange:
                self._written.add(batch.sources[nth])


def part_of(batch: MoveBatch, places: Sequence[int]) -> MoveBatch:
    """Some moves of a batch."""
    return replace(
        batch,
        moves=[batch.moves[nth] for nth in places],
        src_slots=[batch.src_slots[nth] for nth in places],
        dst_slots=[batch.dst_slots[nth] for nth in places],
        sources=[batch.sources[nth] for nth in places],
        targets=[batch.targets[nth] for nth in places],
    )
