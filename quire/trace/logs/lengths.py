"""Lengths: logs of when requests came and how long they were, without their text.

Tables (CSV with a header line, such as Azure's) and JSON lines. What such requests share cannot be known.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import count
from typing import Any

from quire.trace.prompts.arrival_times import ArrivalTimes, column
from quire.trace.prompts.fields import INPUT_COUNTS, OUTPUT_COUNTS, Fields, count_of
from quire.trace.read.lines import LONGEST, MOONCAKE_BLOCK, MOST_BLOCKS, Wrong
from quire.trace.record.trace_writer import TraceRecord

INPUT_COLUMNS = (*INPUT_COUNTS, "request tokens", "prompt length", "prompt")
OUTPUT_COLUMNS = (*OUTPUT_COUNTS, "response tokens", "response length", "output", "completion")
CURE = "name columns as in TIMESTAMP,ContextTokens,GeneratedTokens"


class LengthLog:
    """Reads line after line; every block it makes is like no other."""

    def __init__(self, times: ArrivalTimes, block_size: int | None) -> None:
        self.times = times
        self.block_size = block_size or MOONCAKE_BLOCK
        self._numbers = count()
        self._columns: tuple[list[str], int, int] | None = None  # names, and which are the lengths

    def begin_table(self, text: bytes) -> None:
        """The header line of a table."""
        names = _cells(text)
        columns = column(names, INPUT_COLUMNS), column(names, OUTPUT_COLUMNS)
        if columns[0] is None or columns[1] is None:
            raise Wrong(
                "it is neither a JSON object nor the header of a table with lengths", f"{CURE}; plain text is not read"
            )
        self._columns = names, columns[0], columns[1]

    def read_row(self, text: bytes) -> TraceRecord:
        """One row of the table."""
        assert self._columns is not None
        names, asked, answered = self._columns
        cells = _cells(text)
        if len(cells) != len(names):
            raise Wrong(f"it has {len(cells)} columns, the header has {len(names)}", "correct the row")
        time = self.times.read(dict(zip(names, cells, strict=True)))
        return self._record(time, _whole(cells[asked]), _whole(cells[answered]))

    def read(self, fields: Fields) -> TraceRecord:
        """One line of JSON."""
        return self._record(self.times.read(fields), count_of(fields, INPUT_COUNTS), count_of(fields, OUTPUT_COUNTS))

    def _record(self, time: float, length: int | None, output: int | None) -> TraceRecord:
        if length is None or not 1 <= length <= LONGEST:
            raise Wrong(f"its prompt has {length} tokens", f"give a whole number from 1 to {LONGEST}")
        if output is not None and output > LONGEST:
            raise Wrong(f"its answer has {output} tokens", f"give a whole number from 0 to {LONGEST}")
        blocks = -(-length // self.block_size)
        if blocks > MOST_BLOCKS:
            raise Wrong(f"its prompt has {length:,} tokens", "use a larger --block-size, or leave the request out")
        return TraceRecord(time, length, output or 0, list(_taken(self._numbers, blocks)))


def _taken(numbers: Iterator[int], many: int) -> Iterator[int]:
    return (next(numbers) for _ in range(many))


def _cells(text: bytes) -> list[str]:
    try:
        rows = list(csv.reader([text.decode("utf-8-sig")], strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise Wrong(f"it is not a row of a table ({error})", CURE) from None
    return [cell.strip() for cell in rows[0]] if rows else []


def _whole(cell: Any) -> int | None:
    """A number of tokens; some tables write them with a fraction."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return int(number) if 0 <= number <= 1e15 and number == int(number) else None
