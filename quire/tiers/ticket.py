"""Ticket: what a caller gets for a submitted plan. Owns which of its moves are over, and why some failed."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Condition

import numpy as np

from quire.core.records.errors import StateError, say, without_words


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
