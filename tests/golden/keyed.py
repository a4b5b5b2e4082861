"""Write pages by key, as an engine's tier leaves them, for later versions to find: python -m tests.golden.keyed FOLDER

Four keys of one text in three slots, so that one made room, and a key of another length beside them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from quire.tiers import Bytes
from quire.tiers.disk.keyed import KeyDisk

FINGERPRINT = bytes(range(50, 82))
PAGE, SLOTS = 48, 4
FIRST = tuple(b"text a, block %d" % nth for nth in range(3))
THEN = (b"text b, block 0", bytes(range(200, 240)))
THERE, GONE = (*FIRST[:2], *THEN), FIRST[2:]  # a text goes from its end


def page_of(key: bytes) -> Bytes:
    return np.frombuffer((key * PAGE)[:PAGE], np.uint8).copy()


def opened(folder: Path) -> KeyDisk:
    return KeyDisk(folder, FINGERPRINT, PAGE, SLOTS, eviction="lru", fence_seconds=1000)


def main(folder: Path) -> None:
    disk = opened(folder)
    for keys in (FIRST, THEN):
        disk.write(keys, [page_of(key) for key in keys])
    disk.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
