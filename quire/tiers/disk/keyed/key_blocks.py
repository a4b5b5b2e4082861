"""Keys as blocks of a manifest: each a block of its own under one root, whose tokens are the key's length and bytes.

So fences, compaction, restore and `quire fsck` serve pages by key as they serve a cache's. Knows no file.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quire.core.records.lasting import BlockNodes, LastingChanges, LastingPages
from quire.tiers.disk.log.manifest_contents import Contents
from quire.tiers.disk.log.records import NO_NODES, NO_PAGES

ROOT = b"keys of another cache".ljust(32, b"\0")
MOST_KEY_BYTES = 1024


def freed(slots: Sequence[int]) -> LastingChanges:
    """These slots hold nothing any more."""
    return LastingChanges(np.zeros(len(slots), np.int32), np.array(slots, np.int32), NO_NODES, NO_PAGES)


def came(keys: Sequence[bytes], slots: Sequence[int], first: int) -> LastingChanges:
    """These slots hold the pages of these keys, whose blocks are numbered from `first` on."""
    cut = [np.frombuffer(len(key).to_bytes(4, "little") + key + bytes(-len(key) % 4), "<i4") for key in keys]
    number = np.arange(first, first + len(keys), dtype=np.int64)
    nodes = BlockNodes(
        number, np.full(len(keys), -1, np.int64), np.cumsum([0, *map(len, cut)], dtype=np.int64),
        np.concatenate([np.empty(0, np.int32), *cut]).astype(np.int32), NO_NODES.words, NO_NODES.word_at, (ROOT,),
    )  # fmt: skip
    pages = LastingPages(np.zeros(len(keys), np.int32), np.array(slots, np.int32), number)
    return LastingChanges(NO_PAGES.group, NO_PAGES.slot, nodes, pages)


def read_keys(contents: Contents) -> tuple[list[tuple[bytes, int]], list[int]]:
    """Key and slot of each page, first come first; and slots whose pages have no key, or an older one of the same."""
    nodes, found, spare = contents.nodes, dict[bytes, int](), list[int]()
    place = {number: nth for nth, number in enumerate(nodes.number.tolist())}
    for at in np.argsort(contents.pages.node, kind="stable").tolist():
        slot, nth = int(contents.pages.slot[at]), place[int(contents.pages.node[at])]
        key = _key_of(nodes.tokens[int(nodes.start[nth]) : int(nodes.start[nth + 1])])
        if key is None:
            spare.append(slot)
            continue
        if key in found:
            spare.append(found.pop(key))
        found[key] = slot
    return list(found.items()), spare


def _key_of(tokens: NDArray[np.int32]) -> bytes | None:
    raw = tokens.astype("<i4").tobytes()
    size = int.from_bytes(raw[:4], "little")
    return raw[4 : 4 + size] if 0 < size <= min(MOST_KEY_BYTES, len(raw) - 4) else None
