"""Inside: pages for the states that a step writes itself, in the middle of its span. No request waits for them.

Given out when every request of the batch has what was promised. The last one of each step has the slot that admission
has reserved for a snapshot; the others have what is left, the last positions first.
"""

from __future__ import annotations

import numpy as np

from quire.core.admission import charge
from quire.core.admission.batch import SequenceSpan, Snapshot, Snapshots
from quire.core.records.groups import snapshots_inside
from quire.core.state.sequence import Sequence, running_of
from quire.core.state.setup import Setup


def open_inside(setup: Setup, parts: list[SequenceSpan]) -> Snapshots:
    """Pages for the snapshots inside these parts of prompts; where the step shall write each that it got."""
    written: dict[Sequence, tuple[Snapshot, ...]] = {}
    for sequence, start, end in parts:
        prepared = running_of(sequence).prepared
        for group in setup.inside_groups:
            last = min(end, prepared.end)  # what was generated meanwhile may be computed with it
            columns = snapshots_inside(setup.layers[group], start, last, prepared.marks, setup.block_size)
            later = charge.peak(setup, prepared, group, sequence.start) if end < prepared.end else 0
            ends = (
                columns and prepared.marks is not None and (columns[-1] + 1) * setup.block_size == prepared.marks.last
            )
            beside = charge.beside_end(setup, prepared, group, start) if ends else -1
            setup.store.open_snapshots(
                sequence.row, group, columns, later, prepared.priorities, prepared.ticks, beside,
            )  # fmt: skip
        found = _to_write(setup, sequence.row, start, end)
        if found:
            written[sequence] = found
    return written


def _to_write(setup: Setup, row: int, start: int, end: int) -> tuple[Snapshot, ...]:
    """What a row has pages for inside a span, those of an earlier try too."""
    size = setup.block_size
    first, found = start // size, list[Snapshot]()
    for group in setup.inside_groups:
        slots = setup.store.slots[group][row, first : end // size]
        found += [Snapshot(group, int(first + at + 1) * size, int(slots[at])) for at in np.flatnonzero(slots >= 0)]
    return tuple(found)
