"""A replay on the terminal: tables and a progress bar, with rich where it is installed, as plain text where not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TextIO

import quire.simulate.show.story as story
from quire.core.records.errors import install_line
from quire.simulate.show.causes import explained, overload
from quire.simulate.show.number_format import Json

ADVICE = f"(plain text; tables and a progress bar come with: {install_line('tools')})"


def has_rich() -> bool:
    """Whether the extra is installed."""
    return find_spec("rich") is not None


def show(result: Json, file: TextIO | None = None) -> None:
    """One replay: in words, then everything counted, then what is modelled."""
    out = sys.stdout if file is None else file
    if lines := explained(result):
        print("\n".join(lines), file=out)
        return
    print("\n".join([story.answer(result), *filter(None, [overload(result)]), "", *story.outcome(result)]), file=out)
    show_table("Counted and measured", ["", ""], story.facts(result), out)
    if rows := story.modelled(result):
        show_table("A model, not a measurement", ["", ""], rows, out)
        print(story.note(result), file=out)
    _advise(out)


def show_comparison(two_phase: Json, one_at_a_time: Json, file: TextIO | None = None) -> None:
    """Both ways of admission side by side."""
    out = sys.stdout if file is None else file
    rows = story.comparison(two_phase, one_at_a_time)
    show_table("Two-phase beside one at a time", ["", *story.PHASES], rows, out)
    print(story.gained(two_phase, one_at_a_time), file=out)
    for line in filter(None, [overload(two_phase)]):
        print(line, file=out)
    if story.modelled(two_phase):
        print(f"{story.MODELLED}: {story.note(two_phase)}", file=out)
    _advise(out)


def show_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO, *, words: int = 1) -> None:
    """The first `words` columns are text, the others numbers."""
    (_rich_table if has_rich() else _plain_table)(title, head, rows, out, words)


def _advise(out: TextIO) -> None:
    if not has_rich():
        print(ADVICE, file=out)


def _plain_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO, words: int) -> None:
    every = [list(head), *(list(row) for row in rows)] if any(head) else [list(row) for row in rows]
    widths = [max(len(row[at]) for row in every) for at in range(len(head))] if every else []
    print(f"\n{title}\n{'-' * len(title)}", file=out)
    for row in every:
        cells = [
            cell.ljust(width) if at < words else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip(), file=out)


def _rich_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO, words: int) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE, show_header=any(head), pad_edge=False)
    for at, name in enumerate(head):
        table.add_column(Text(name), justify="left" if at < words else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: names of tiers and files are no markup
    print(file=out)
    console = Console(file=out, width=None if out.isatty() else 100)
    console.print(table)


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while requests are done; call what it gives with how many more. Silent off the terminal."""
    if not sys.stderr.isatty() or not has_rich():
        yield lambda more: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda more: bar.advance(task, more)
