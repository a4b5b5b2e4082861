"""What a KeyDisk has promised to keep, told by a process that is about to be killed, and looked for in the next one.

    child     fence ─► ("durable", names) ... a page goes ─► ("gone", names), before its slot is written again
    parent    durable - gone must be in the folder; each that is not is lost

A name is 8 bytes of a key's digest, so that what is told goes through a pipe at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from quire.tiers.disk.fsck import examine, model_folders
from quire.tiers.disk.keyed import KeyDisk
from tests.tiers.disk.dying import Tell


def _names(keys: Iterable[bytes]) -> set[bytes]:
    return {blake2b(key, digest_size=8).digest() for key in keys}


class DurableKeys:
    """In the child."""

    def __init__(self, disk: KeyDisk, tell: Tell) -> None:
        self._disk, self._tell, others = disk, tell, disk.tell_gone

        def gone(keys: Sequence[bytes]) -> None:
            tell(("gone", _names(keys)))
            others(keys)

        disk.tell_gone = gone

    def fence(self) -> bool:
        """While no write is under way: what is there now is durable, and told."""
        before = set(self._disk._slots)
        if not self._disk.fence():
            return False
        with self._disk._lock:  # what goes meanwhile is told after this
            self._tell(("durable", _names(before & self._disk._slots.keys())))
        return True


def durable_of(told: Sequence[Any]) -> set[bytes]:
    """Names that the child's disk must still have."""
    durable: set[bytes] = set()
    for what, names in told:
        durable = set(names) if what == "durable" else durable - names
    return durable


def whole_after(told: Sequence[Any], folder: Path) -> None:
    """The folder of a disk whose process was killed: every model's part is as a restart wants it."""
    for model in model_folders(folder):
        report = examine(model)
        assert not report.damaged and not report.refused, (report.refused, report.findings)
    assert not durable_of(told) or model_folders(folder), "the folder has gone"


def say_kills(ends: Sequence[tuple[int, int]], what: str) -> None:
    """Of each kill: what was found afterwards, and how many pages were durable."""
    found, durable = (sum(one[nth] for one in ends) for nth in (0, 1))
    assert not ends or (found and durable), "nothing was there to be lost"
    print(f"{len(ends)} kills: {found} {what} found by the processes after them, none wrong; {durable} pages were "
          "durable, none is lost; fsck finds no damage", flush=True)  # fmt: skip


def lost(told: Sequence[Any], disk: KeyDisk) -> set[bytes]:
    """In the process after it, before anything is read or written: durable, and not there."""
    return durable_of(told) - _names(disk._slots)
