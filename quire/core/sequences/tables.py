"""Rows of a block table, copied for steps that compute with some of them; how far rows are. Changes nothing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from quire.core.records.errors import InputError, say, shown
from quire.core.records.request import Int32
from quire.core.sequences.rows import Sequences, rows_of, wrong_rows
from quire.core.state.registry import Registry
from quire.core.state.setup import Setup


class Progress(NamedTuple):
    """By row what `Sequence` says of one: tokens known, computed, handed out. Live and read-only; 0: no sequence."""

    length: Int32
    computed: Int32
    ran: Int32


def progress_of(setup: Setup) -> Progress:
    """The views of all rows."""
    store = setup.store
    return Progress(*[read_only(numbers) for numbers in (store.length, store.computed, store.handed)])


def read_only(table: Int32) -> Int32:
    """A view that only the cache writes."""
    view = table.view()
    view.flags.writeable = False
    return view


def copy_rows(registry: Registry, group: int, sequences: Sequences, out: Int32 | None) -> Int32:
    """Slots of the columns that one of these sequences uses, a row each; in the front of `out` if that is given."""
    setup = registry.setup
    rows, (store, place) = rows_of(setup, sequences), setup.pools[group]
    try:
        live = setup.store.length[rows]
        if len(live) and (rows.min() < 0 or not live.all()):  # a live one has tokens
            raise IndexError
    except IndexError:
        raise wrong_rows(registry, "table", rows) from None
    width = int(store.capacity[place][rows].max(initial=0))
    if out is None:
        out = np.empty((len(rows), width), np.int32)
    else:
        _check_out(out, len(rows), width)
    store.copy_rows(place, rows, out)
    return out[: len(rows), :width]


def _check_out(out: Int32, rows: int, width: int) -> None:
    cure = "pass a writeable, contiguous int32 array of [rows, columns], large enough for all steps"
    if not isinstance(out, np.ndarray) or out.dtype != np.int32 or out.ndim != 2:
        fact = f"out is {out.dtype} of shape {out.shape}" if isinstance(out, np.ndarray) else f"out is {shown(out)}"
        raise InputError(say("rows of a table", fact, cure))
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise InputError(say("rows of a table", "out has gaps or cannot be written", cure))
    if out.shape[0] < rows or out.shape[1] < width:
        fact = f"they are {rows} rows of {width} columns, and out has {out.shape[0]} of {out.shape[1]}"
        raise InputError(say("rows of a table", fact, cure))
