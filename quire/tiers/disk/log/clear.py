"""Clear a log where it lies: what nothing on disk rests on any more is overwritten with zeros, frame by frame, and no
byte is added. Owns what of a frame is cleared; knows no file. For a disk that has no room for a compacted copy.

A cleared block has number -1, which no record names; a cleared page has block -1, and so says that its slot is free.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quire.core.records.lasting import BlockNodes, LastingPages
from quire.tiers.disk.log.frames import CHANGES, FRAME_BYTES, Frame, Log, pack_frame
from quire.tiers.disk.log.manifest_contents import Contents, read_log, slot_keys
from quire.tiers.disk.log.records import unpack_changes

Mask = NDArray[np.bool_]
CLEARED = -1


def clear_log(log: Log, free: LastingPages, pool_of: Sequence[int] = ()) -> tuple[Contents, list[Frame]]:
    """Clear the payloads of a log that was read into memory of one's own; what it says then, and the frames that it
    changed. `free`: slots that hold nothing any more, whatever the log says.

    Requires: payloads can be written, and nothing is recorded of the free slots that is not in the log.
    """
    records = [(frame, unpack_changes(frame.payload)) for frame in log.frames if frame.kind == CHANGES]
    sound = [(frame, read.changes) for frame, read in records if read is not None]
    freed = slot_keys(free.group, free.slot, pool_of)
    pages = [changes.pages for _, changes in sound]
    changed = [_clear_pages(some, np.isin(slot_keys(some.group, some.slot, pool_of), freed)) for some in pages]
    contents = read_log(log, pool_of)
    kept = contents.nodes.number
    for nth, (_, changes) in enumerate(sound):
        gone = ~np.isin(changes.nodes.number, kept) & (changes.nodes.number != CLEARED)
        changed[nth] |= _clear_nodes(changes.nodes, gone)
    return contents, [frame for (frame, _), dirty in zip(sound, changed, strict=True) if dirty]


def packed(frame: Frame, seed: int) -> bytes:
    """A frame with the checksums of what its payload is now."""
    raw = pack_frame(frame.number, frame.kind, frame.payload.tobytes(), seed)
    assert len(raw) == FRAME_BYTES + len(frame.payload) == frame.end - frame.start
    return raw


def _clear_pages(pages: LastingPages, gone: Mask) -> bool:
    gone &= pages.node != CLEARED
    pages.node[gone] = CLEARED
    return bool(gone.any())


def _clear_nodes(nodes: BlockNodes, gone: Mask) -> bool:
    tokens = np.repeat(gone, np.diff(nodes.start))
    nodes.tokens[tokens] = 0
    nodes.words[tokens[nodes.word_at]] = 0
    nodes.number[gone] = CLEARED
    return bool(gone.any())
