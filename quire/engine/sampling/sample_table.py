"""SampleTable: rows of logits and how each becomes a token, in columns. Knows no branch, and computes no token.

    numbers    temperature   t t t      a column for each row of logits
               top-k         k k k
               top-p         p p p
               min-p         m m m
    chance, positions                   what its token's random number is made of
    edited     {1: SampleRow}           those whose logits are changed before a token is chosen

What can be said of a row before its step stands in `SampleColumns`, from which those of a batch are taken at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quire.engine.sampling.chance import begun, uniform_at
from quire.engine.sampling.params import Sampling
from quire.engine.sampling.sample_row import SampleRow

COLDEST, HOTTEST = 1e-30, 1e30  # temperatures beyond them are these: float32 could not divide by others
TEMPERATURE, TOP_K, TOP_P, MIN_P, CHANCE = range(5)  # CHANCE: of draws only


class SampleColumns:
    """Numbers of so many places: what is the same for all tokens of an answer."""

    __slots__ = ("_drawn", "chance", "numbers")

    def __init__(self, places: int) -> None:
        self.numbers = np.zeros((CHANCE, places))
        self.chance = np.zeros(places, np.uint64)
        self._drawn: tuple[NDArray[np.intp], int] | None = None

    def put(self, place: int, sampling: Sampling, seed: int, branch: int) -> None:
        """One answer's."""
        self.numbers[:, place], self._drawn = _numbers(sampling), None
        if sampling.temperature:
            self.chance[place : place + 1] = begun([seed], [branch])

    def take(self, places: NDArray[np.integer]) -> SampleColumns:
        """Those of some places, in this order."""
        taken = SampleColumns(0)
        taken.numbers, taken.chance = self.numbers[:, places], self.chance[places]
        return taken

    def then(self, other: SampleColumns) -> SampleColumns:
        """Those of another behind these."""
        both = SampleColumns(0)
        both.numbers = np.concatenate([self.numbers, other.numbers], axis=1)
        both.chance = np.concatenate([self.chance, other.chance])
        return both

    def drawn(self) -> tuple[NDArray[np.intp], int]:
        """Places whose tokens are left to chance: first those drawn from some of the tokens only, and how many these
        are. A batch asks in every step, and it stays the same."""
        if self._drawn is None:
            drawn = self.numbers[TEMPERATURE] > 0
            cut = drawn & ((self.numbers[TOP_K] > 0) | (self.numbers[TOP_P] < 1))
            places = np.concatenate([np.flatnonzero(cut), np.flatnonzero(drawn & ~cut)])
            self._drawn = places, int(np.count_nonzero(cut))
        return self._drawn


def _numbers(sampling: Sampling) -> tuple[float, float, float, float]:
    temperature = sampling.temperature and min(max(sampling.temperature, COLDEST), HOTTEST)
    return temperature, float(sampling.top_k), sampling.top_p, sampling.min_p


@dataclass(frozen=True, slots=True, eq=False)
class SampleTable:
    """How rows of logits become tokens."""

    columns: SampleColumns
    positions: NDArray[np.integer]  # of the token in its answer
    edited: Mapping[int, SampleRow] = field(default_factory=dict)  # by row

    def __len__(self) -> int:
        return len(self.positions)

    @classmethod
    def of(cls, rows: Sequence[SampleRow]) -> SampleTable:
        """The same of rows that were made one by one."""
        columns = SampleColumns(len(rows))
        if rows:
            columns.numbers[:] = np.array([_numbers(row.sampling) for row in rows]).T
            columns.chance[:] = begun([row.seed for row in rows], [row.branch for row in rows])
        positions = np.array([row.position for row in rows], np.int64)
        return cls(columns, positions, {nth: row for nth, row in enumerate(rows) if row.edited})

    def then(self, other: SampleTable) -> SampleTable:
        """The rows of another behind these."""
        if not len(other):
            return self
        if not len(self):
            return other
        edited = dict(self.edited) | {len(self) + nth: row for nth, row in other.edited.items()}
        positions = np.concatenate([self.positions, other.positions])
        return SampleTable(self.columns.then(other.columns), positions, edited)


class Draws:
    """Rows of a table that are more than their largest logit: drawn by chance, or edited, or both.

    `rows`: first those drawn from some of the tokens (`num_cut`), then the others that are drawn (`num_drawn` with
    them), then edited ones without chance.
    """

    __slots__ = ("edited", "num_cut", "num_drawn", "numbers", "rows")

    def __init__(self, table: SampleTable) -> None:
        columns, edited = table.columns, table.edited
        self.rows, self.num_cut = columns.drawn()
        self.num_drawn = len(self.rows)
        if greedy := [nth for nth in edited if not columns.numbers[TEMPERATURE, nth]]:
            self.rows = np.concatenate([self.rows, np.array(greedy, np.intp)])
        self.edited: list[tuple[int, SampleRow]] = []  # by place in `rows`
        if edited:
            self.edited = [(nth, edited[row]) for nth, row in enumerate(self.rows.tolist()) if row in edited]
        chance = uniform_at(columns.chance[self.rows], table.positions[self.rows])
        # What the device needs, in one copy: the numbers of a table, chance, and which row of the logits it is.
        self.numbers = np.concatenate([columns.numbers[:, self.rows], chance[None], self.rows[None]])

    def __len__(self) -> int:
        return len(self.rows)


NO_SAMPLES = SampleTable.of(())
