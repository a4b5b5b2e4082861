"""Which eviction order saves more, on which load: one table, made in as many pieces and processes as are wanted.

    python benchmarks/eviction.py --all [--conversation FILE] [--synthetic FILE] [--weka FOLDER] [--every 10]
                                  [--cells cells.json] [--jobs 4]
    python benchmarks/eviction.py --rows agents,mixed --columns lru,finish,optimum ...      a part of it

`benchmarks/orders.py` says what rows and columns are. Each cell is one run, and each run one process. With `--cells`
finished ones are kept in a file and not measured again: stop it at any time, and go on with the same words. Cells are
of one state of the code: name another file after a change. `--every 10` takes a tenth of the agents' sessions, and of
the blocks. At the end the table is printed: prompt tokens found in %; in brackets thousands of token-equivalents that
a request costs in the mean and, with two tiers, thousands of blocks that came up from the host. A cell that is not
measured yet is "..."; one that makes no sense is "-".
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path

from orders import COLUMNS, Cell, Given, Row, paths, rows

Key = str  # load | size | column
ROWS: list[Row] = []  # processes begin as copies of this one, with the load in hand


class Cells:
    """What was measured, kept in a file if there is one."""

    def __init__(self, path: Path | None, given: Given) -> None:
        self._path, self._given = path, given._asdict()
        self.found: dict[Key, Cell | None] = {}
        if path is None or not path.exists():
            return
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["given"] != self._given:
            sys.exit(f"{path} has cells of {told['given']}, and {self._given} was asked: name another file")
        self.found = {key: None if cell is None else Cell(*cell) for key, cell in told["cells"].items()}

    def add(self, key: Key, cell: Cell | None) -> None:
        """One more; the file is whole at any time."""
        self.found[key] = cell
        if self._path is None:
            return
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({"given": self._given, "cells": self.found}, indent=1), encoding="utf-8")
        new.replace(self._path)


def key_of(row: Row, column: str) -> Key:
    return f"{row.load} | {row.size} | {column}"


def measured(job: tuple[int, str]) -> tuple[Key, Cell | None]:
    """One cell, in a process of its own."""
    row, column = ROWS[job[0]], job[1]
    return key_of(row, column), row.measure(column)


def measure(columns: list[str], cells: Cells, jobs: int) -> None:
    """All that is missing, load by load."""
    missing = [(nth, column) for nth, row in enumerate(ROWS) for column in columns
               if key_of(row, column) not in cells.found]  # fmt: skip
    for _, group in groupby(missing, lambda job: ROWS[job[0]].load):
        work = list(group)
        ROWS[work[0][0]].prepare()
        with get_context("fork").Pool(min(jobs, len(work)), maxtasksperchild=1) as pool:
            for key, cell in pool.imap_unordered(measured, work):
                cells.add(key, cell)
                print(f"{key}: {told_of(cell)}", file=sys.stderr, flush=True)


def table(columns: list[str], cells: Cells) -> Iterator[str]:
    """As Markdown."""
    yield f"| load | blocks | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 2) + "|"
    for row in ROWS:
        keys = [key_of(row, column) for column in columns]
        told = [told_of(cells.found[key]) if key in cells.found else "..." for key in keys]
        yield f"| {row.load} | {row.size} | {' | '.join(told)} |"


def told_of(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    more = [f"{number / 1000:.1f}" for number in cell[1:] if number is not None]
    return f"{cell.rate:.1f}" + (f" ({', '.join(more)})" if more else "")


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--all", action="store_true", help="every row that can be had")
    what.add_argument("--rows", metavar="NAMES", help="loads that begin so, such as conversation,agents")
    parser.add_argument("--columns", default=",".join(COLUMNS), help="default: %(default)s")
    parser.add_argument("--conversation", default="sample", metavar="FILE")
    parser.add_argument("--synthetic", metavar="FILE")
    parser.add_argument("--weka", metavar="FOLDER", help="recorded agents, as in kv-cache-tester/traces")
    parser.add_argument("--every", type=int, default=1, help="one agent session in so many")
    parser.add_argument("--seed", type=int, default=1, help="of when agents' sessions begin")
    parser.add_argument("--cells", type=Path, metavar="FILE", help="finished cells, read and written")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--show", action="store_true", help="measure nothing: the table of what --cells has")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    asked = options(argv)
    given = Given(asked.conversation, asked.synthetic, asked.weka, asked.every, asked.seed)
    missing = [str(path) for path in paths(given) if not path.exists()]
    columns, known = asked.columns.split(","), list(rows(given))
    ROWS[:] = known if asked.all else [row for row in known if row.load.startswith(tuple(asked.rows.split(",")))]
    if missing or not ROWS or not set(columns) <= set(COLUMNS):
        loads = ", ".join(dict.fromkeys(row.load for row in known))
        told = f"no file {missing[0]}" if missing else f"rows are {loads}; columns {', '.join(COLUMNS)}"
        print(told, file=sys.stderr)
        return 2
    cells = Cells(asked.cells, given)
    measure([] if asked.show else columns, cells, asked.jobs)
    print("\n".join(table(columns, cells)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
