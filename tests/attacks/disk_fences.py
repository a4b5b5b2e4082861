"""Fences while the log is compacted and pages are put and forgotten, with syncs that take 30 ms: no recorded page goes
missing, and fsck finds nothing in the folder that was closed.

    python -m tests.attacks.disk_fences [SECONDS]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from quire import Scope
from quire.tiers import Bytes
from quire.tiers.disk import KeeperPace
from quire.tiers.disk.calls.files import File, RealFiles
from quire.tiers.disk.fsck import examine

from ..tiers.disk.rig import Kept
from .checks import Checks, run

SECONDS = 20.0
PACE = KeeperPace(look_seconds=0.001, fence_seconds=0.001, compact_bytes=200, scrub_bytes_per_second=0)
TENANT = Scope(salt="tenant")


class SlowFile:
    def __init__(self, file: File) -> None:
        self._file = file
        self.read, self.read_ready, self.size, self.resize = file.read, file.read_ready, file.size, file.resize
        self.close = file.close

    def write(self, offset: int, parts: Sequence[Bytes]) -> int:
        return self._file.write(offset, parts)

    def sync(self) -> None:
        time.sleep(0.03)
        self._file.sync()


class SlowFiles(RealFiles):
    def open(self, path: Path, create: bool = False) -> File:
        return SlowFile(super().open(path, create))


def attack(folder: Path, checks: Checks) -> None:
    """Serve, flush and forget until the time is over; then look."""
    end = time.monotonic() + (float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)
    rounds = missing = 0
    while time.monotonic() < end:
        place = folder / f"{rounds % 2}"
        kept = Kept(place, PACE, SlowFiles())
        for number in range(6):
            kept.compute(100 * rounds + number, TENANT if number % 3 == 2 else None)
            kept.keeper.flush()
            if number % 3 == 2:
                kept.keeper.forget(TENANT)
        wanted = [100 * rounds + number for number in (3, 4)]
        wrong = kept.keeper.report().broken
        kept.close()
        findings = examine(kept.folder.folder).findings
        again = Kept(place)
        missing += sum(again.fetched(number) != 16 for number in wanted)
        missing += sum(again.fetched(100 * rounds + number, TENANT) > 0 for number in (2, 5))
        again.close()
        rounds += 1
        if wrong or findings or missing:
            break
    checks.held(f"{rounds} lives: every prompt is found, none that was forgotten", not missing, missing)
    checks.held("nothing broke", not wrong, wrong)
    checks.held("fsck finds nothing", not findings, findings)


if __name__ == "__main__":
    run("fences beside compactions", attack)
