"""Writers of a shared folder that were killed in the middle: what they left is removed, without a quota too."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from quire.tiers.shared.stores.folder_store import FolderStore
from quire.tiers.shared.stores.folder_sweep import TEMPORARY

from .checks import Checks, run

COUNT = 300


def attack(folder: Path, checks: Checks) -> None:
    """Files as a killed writer leaves them, an hour old and young."""
    store = FolderStore(folder)
    page = np.zeros((1, 64), np.uint8)
    names = [bytes([number % 3]) * 16 + number.to_bytes(2, "big") * 16 + b"\0\0" for number in range(COUNT)]
    store.put_many(names, [page] * COUNT, time.monotonic() + 60)
    parts = sorted({store._path(name).parent for name in names})
    for part in parts:
        for age in ("old", "young"):
            (part / f"{TEMPORARY}{age}").write_bytes(b"half a page")
        os.utime(part / f"{TEMPORARY}old", (1, 1))
    again, puts = FolderStore(folder), 0
    while puts < COUNT and any((part / f"{TEMPORARY}old").exists() for part in parts):
        again.put_many(names[:1], [page], time.monotonic() + 60)
        puts += 1
    checks.held(f"{len(parts)} old files are gone after {puts} puts", puts < COUNT)
    checks.held("those of living writers stay", all((part / f"{TEMPORARY}young").exists() for part in parts))
    checks.held("every page is there", all(again.exists_many(names, time.monotonic() + 60)))


if __name__ == "__main__":
    run("killed writers of a shared folder", attack)
