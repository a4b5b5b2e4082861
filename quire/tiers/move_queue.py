"""MoveQueue: batches of submitted plans that have not run, in an order that means what the plans mean. Owns which is
next, what may overtake, and the tickets that say what is over. Touches no bytes.

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
from threading import Condition
from typing import NamedTuple

import numpy as np

from quire.core.records.errors import StateError, say, without_words
from quire.tiers.move_batch import MoveBatch

PIECE_BYTES = 32 << 20  # of what no step waits for: a move that is asked for meanwhile waits for one such piece


class Ticket:
    """The promise of one submitted plan: it is done when every move has been made or has failed."""

    __slots__ = ("_change", "_done", "_failed", "_over", "_wrong", "number")

    def __init__(self, number: int, num_moves: int) -> None:
        self.number = number
        self._change = Condition()  # guards what follows
        self._over = np.zeros(num_moves, bool)
        self._failed: dict[int, str] = {}
        self._wrong: Exception | None = None
        self._done = False

    @property
    def done(self) -> bool:
        """Whether the plan has run to its end."""
        return self._done

    def wait(self, timeout: float | None = None) -> list[int]:
        """Indices of all failed moves, ascending, once the plan is done; TimeoutError when it is not in time."""
        return sorted(self.reasons(timeout))

    def reasons(self, timeout: float | None = None) -> dict[int, str]:
        """As `wait`, with why each failed. StateError: the mover itself has failed, and what was moved is unknown."""
        with self._change:
            self._wait(None, timeout)
            return dict(self._failed)

    def wait_for(self, moves: Iterable[int], timeout: float | None = None) -> list[int]:
        """Indices of those of some moves that failed, once all of these are over; the others may be under way."""
        places = sorted(moves)
        with self._change:
            self._wait(places, timeout)
            return [place for place in places if place in self._failed]

    def are_over(self, moves: Iterable[int]) -> bool:
        """Whether these have been made, or have failed."""
        return self._done or bool(self._over[list(moves)].all())

    def _wait(self, places: list[int] | None, timeout: float | None) -> None:
        """Until these moves are over, None: all and the count of them. Requires: the condition is held."""
        if not self._change.wait_for(lambda: self._done if places is None else self.are_over(places), timeout):
            fact = f"not done after {timeout} s"
            raise TimeoutError(say(f"plan {self.number}", fact, "wait again; it goes on"))
        if self._wrong is not None:
            fact = f"the mover has failed with {without_words(self._wrong)}"
            raise StateError(say(f"plan {self.number}", fact, "make a new cache: what was moved is unknown"))

    # -- the mover's -------------------------------------------------------------------------------------------------

    @property
    def num_left(self) -> int:
        """Moves that are not over."""
        return len(self._over) - int(np.count_nonzero(self._over))

    def end(self, moves: list[int], failed: dict[int, str]) -> None:
        """These are over; the plan is not done before `finish`."""
        with self._change:
            self._over[moves] = True
            self._failed |= failed
            self._change.notify_all()

    def finish(self, wrong: Exception | None = None) -> None:
        """The plan is done; `wrong`: since the mover has failed."""
        with self._change:
            self._wrong, self._done = wrong, True
            self._change.notify_all()


class QueuedMoves(NamedTuple):
    """Moves of a plan that are carried together."""

    ticket: Ticket
    batch: MoveBatch


class MoveQueue:
    """Of one mover, for its thread alone. A number among the batches: the poison of that plan is taken back there."""

    def __init__(self, piece_bytes: int = 0) -> None:
        self._piece_bytes = piece_bytes or PIECE_BYTES
        self._urgent: deque[QueuedMoves | int] = deque()
        self._others: deque[QueuedMoves | int] = deque()

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    def add(self, ticket: Ticket, batches: Iterable[MoveBatch]) -> None:
        """A plan, behind all others."""
        self._others.extend(QueuedMoves(ticket, batch) for batch in batches)

    def bar(self, number: int) -> None:
        """The poison of a plan counts for what is before this, and for nothing behind it."""
        self._others.append(number)

    def take(self) -> QueuedMoves | int:
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

    def pair(self) -> tuple[QueuedMoves, QueuedMoves] | None:
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
        chosen: deque[QueuedMoves | int] = deque()
        kept: deque[QueuedMoves | int] = deque()
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
